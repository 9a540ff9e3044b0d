//! The handle: what an application does with a queue inside its own transactions.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{TryFutureExt, try_join};
use microqueue::keyspace::codec::{Codec, DecodeError, MessagePack};
use microqueue::keyspace::recipe::warn_if_settings_differ;
use microqueue::keyspace::{
    Bytes, Database, Isolation, OpenOptions, Runner, Store, Subspace, Transaction, Versionstamp,
};

use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::kind::{Kind, Kinds};
use crate::items::part::describe_key;
use crate::items::priority::Priority;
use crate::items::settings::{KnownSettings, MIN_LEASE, Settings, SettingsRecord};
use crate::items::settings_row::is_paused;
use crate::items::value::{Decode, decoder};
use crate::options::Handling;
use crate::queue::configure::check_deaths;
use crate::session::HEARTBEATS;

/// A queue of `T` in a subspace, from which many consumers take items. The codec `C` encodes the values.
///
/// Its operations stage their work in the caller's transaction and leave the commit to the caller. A
/// [`Consumer`](crate::Consumer) takes items.
///
/// A handle has no connection to the store and is cheap to clone.
///
/// # Conflicts
/// Each operation documents its reads. An enqueue without a dedupe id never fails with a conflict.
///
/// # Retries
/// Operations that take a transaction retry nothing. In each attempt of the transaction, the caller's closure calls
/// them again and they stage their work anew, as with [`Runner::run`]. Operations that take a runner commit their own
/// transactions, and the runner retries them.
///
/// # Cancel safety
/// If the future of an operation on a transaction is dropped before it is ready, the operation has staged nothing but
/// conflict ranges, unless its documentation says otherwise. An operation that takes a runner, and writes, may or may
/// not have committed; one that only reads or waits changes nothing, so that `tokio::time::timeout` can limit any wait.
pub struct Queue<T, C = MessagePack> {
    pub(crate) keys: Arc<Keys>,
    pub(crate) settings: KnownSettings,
    pub(crate) codec: C,
    pub(crate) value: PhantomData<fn() -> T>,
}

/// A queue without the type of its values, for code that is compiled once.
#[derive(Clone)]
pub(crate) struct UntypedQueue {
    pub(crate) keys: Arc<Keys>,
    pub(crate) settings: KnownSettings,
    pub(crate) decode: Arc<Decode>,
    /// Which items a session takes.
    pub(crate) kinds: Arc<Kinds>,
    /// How it handles those of some kinds.
    pub(crate) handling: Arc<BTreeMap<Kind, Handling>>,
}

impl<T, C> Queue<T, C>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
{
    pub(crate) fn untyped(&self) -> UntypedQueue {
        UntypedQueue {
            keys: self.keys.clone(),
            settings: self.settings.clone(),
            decode: decoder(self.codec.clone()),
            kinds: Arc::new(Kinds::unnamed()),
            handling: Arc::default(),
        }
    }
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Opens the queue in `subspace` with the codec `C` and the default registry of ids. Creates it with the default
    /// [settings](Settings) if it does not exist; an existing queue keeps its stored settings.
    ///
    /// ```
    /// use hc_dequeue::Queue;
    /// use hc_dequeue::keyspace::{self, Runner};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let jobs = Queue::<String>::open(&runner, "jobs").await?;
    /// // A tuple names a queue within an application's part of the store.
    /// let mails = Queue::<String>::open(&runner, ("shop", "mails")).await?;
    /// # drop((jobs, mails));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Conflicts
    /// As [`open_with`](Self::open_with).
    ///
    /// # Errors
    /// As [`open_with`](Self::open_with).
    pub async fn open<D: Database>(
        runner: &Runner<D>,
        subspace: impl Into<Subspace>,
    ) -> Result<Self>
    where
        C: Default,
    {
        let given = Self::record(Settings::default());
        Self::open_or_create(runner, subspace.into(), given, OpenOptions::default()).await
    }

    /// Opens the queue in `subspace`. Creates it with `settings` if it does not exist; an existing queue keeps its
    /// stored settings until [`configure`](Self::configure) changes them. If these differ from `settings`, a warning in
    /// the log names both.
    ///
    /// The options contain the codec, and a registry of ids in which the queue is registered as an `hc-dequeue`.
    ///
    /// # Conflicts
    /// As [`verify_order`](Self::verify_order) and [`Ids::register`](microqueue::keyspace::ids::Ids::register). Also
    /// reads the settings, and writes them if there are none. If `settings` name a queue of deaths, an earlier
    /// transaction reads its settings, and those of the queues to which its own deaths lead.
    ///
    /// # Errors
    /// - [`Error::SettingsDiffer`] if the queue was created with another codec
    /// - [`Error::TooShort`] if the lease is shorter than [`MIN_LEASE`]
    /// - [`Error::Deaths`] if the queue of deaths cannot be used
    /// - [`Overlap`](microqueue::keyspace::Error::Overlap) if the subspace overlaps that of another recipe; nothing was
    ///   changed
    /// - those of [`verify_order`](Self::verify_order) and of [`Runner::run`]
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may or may not have been created.
    pub async fn open_with<D: Database>(
        runner: &Runner<D>,
        subspace: impl Into<Subspace>,
        settings: Settings,
        options: OpenOptions<C>,
    ) -> Result<Self> {
        let given = Self::record(settings);
        let queue = Self::open_or_create(runner, subspace.into(), given.clone(), options).await?;
        let stored = Self::record((*queue.settings.get()).clone());
        let hint = "`configure` changes them";
        warn_if_settings_differ(queue.subspace(), &given, &stored, hint);
        Ok(queue)
    }

    /// Returns what is stored for these settings.
    fn record(settings: Settings) -> SettingsRecord {
        SettingsRecord {
            settings,
            codec: C::NAME.to_owned(),
        }
    }

    async fn open_or_create<D: Database>(
        runner: &Runner<D>,
        subspace: Subspace,
        given: SettingsRecord,
        options: OpenOptions<C>,
    ) -> Result<Self> {
        let codec = options.codec().clone();
        // The codec is in the record.
        let options = options.with_codec(());
        let (keys, settings) = open(&runner.on_store(), subspace, given, options).await?;
        Ok(Self {
            keys: Arc::new(keys),
            settings: KnownSettings::new(settings),
            codec,
            value: PhantomData,
        })
    }

    /// Verifies that items enqueued after this transaction will go after all queued items, and that sessions which
    /// have died will be found. [`open`](Self::open) calls this.
    ///
    /// If rows come from a store with a larger version, new items would be granted first, and the other sessions
    /// would wait for the store's version to pass the last heartbeat of a dead session before they return its items.
    ///
    /// # Conflicts
    /// As [`MicroQueue::verify_order`](microqueue::MicroQueue::verify_order). Reads the heartbeats by snapshot.
    ///
    /// # Errors
    /// [`StampAhead`](microqueue::Error::StampAhead) if a queued item or a heartbeat comes from a store with a larger
    /// version; those of [`MicroQueue::verify_order`](microqueue::MicroQueue::verify_order).
    pub async fn verify_order(&self, tr: &impl Transaction) -> Result<()> {
        verify_order(tr, &self.keys).await
    }

    /// Decodes a value that was encoded for this queue, such as the payload of a [`Death`](crate::Death).
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are none of the queue's codec.
    pub fn decode_payload(&self, payload: Bytes) -> Result<T, DecodeError> {
        self.codec.decode(payload)
    }

    /// Returns the queue's subspace.
    #[must_use]
    pub fn subspace(&self) -> &Subspace {
        &self.keys.queue
    }

    /// Returns what a key is in this queue, in words. Returns `None` if it is no key of the queue. For the same without
    /// a handle, see [`describe_key`](crate::describe_key).
    #[must_use]
    pub fn describe_key(&self, key: &[u8]) -> Option<&'static str> {
        describe_key(self.subspace(), key)
    }

    /// Stages a pause: no item is granted until [`resume`](Self::resume). Items that sessions already hold are not
    /// affected.
    ///
    /// # Conflicts
    /// Writes a key that every grant reads.
    pub fn pause(&self, tr: &impl Transaction) {
        tr.set(&self.keys.pause(), b"");
    }

    /// Returns whether the queue is [paused](Self::pause).
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the read.
    pub async fn is_paused(&self, tr: &impl Transaction) -> Result<bool> {
        is_paused(tr, &self.keys, Isolation::Snapshot).await
    }

    /// Stages the end of a pause: items are granted again.
    ///
    /// # Conflicts
    /// As [`pause`](Self::pause). Also writes the wake stamp.
    pub fn resume(&self, tr: &impl Transaction) {
        tr.clear(&self.keys.pause());
        self.keys.wake_all(tr);
    }
}

/// Opens a queue, and returns its keys and its stored settings.
fn open(
    runner: &Runner<Store>,
    subspace: Subspace,
    given: SettingsRecord,
    options: OpenOptions<()>,
) -> BoxFuture<'_, Result<(Keys, Settings)>> {
    Box::pin(async move {
        check_settings(&given.settings)?;
        let keys = Keys::new(subspace, runner.environment().clone());
        let given_settings = &given.settings;
        let checked_keys = &keys;
        let check = |tr| async move { check_deaths(&tr, checked_keys, given_settings).await };
        if given_settings.deaths.is_some() {
            runner.run(check).await?;
        }
        let opened: Result<SettingsRecord> = options
            .open(runner, &keys.queue, &keys.settings(), &given)
            .await;
        let settings = opened?.settings;
        let opened_keys = &keys;
        let verify = |tr| async move { verify_order(&tr, opened_keys).await };
        runner.run(verify).await?;
        Ok((keys, settings))
    })
}

/// Verifies that new items will go after all queued items, and that sessions which have died will be found.
///
/// # Conflicts
/// As [`Queue::verify_order`].
async fn verify_order(tr: &impl Transaction, keys: &Keys) -> Result<()> {
    // The heartbeats and the wake stamp are read by snapshot. That is safe: what commits after the read version has a
    // larger version, as it should.
    let wake = keys.wake();
    let (heartbeats, wake, read_version, ()) = try_join!(
        keys.sessions.page(tr, HEARTBEATS).map_err(Error::from),
        tr.get(&wake, Isolation::Snapshot).map_err(Error::from),
        tr.read_version().map_err(Error::from),
        keys.queued(Priority::DEFAULT)
            .verify_order(tr)
            .map_err(Error::from),
    )?;
    // No item is newer than the wake stamp.
    let last_wake = wake
        .and_then(|stamp| <[u8; 10]>::try_from(&*stamp).ok())
        .map(|stamp| Versionstamp::from_bytes(stamp).commit_version());
    let newest = heartbeats
        .iter()
        // A heartbeat that does not decode keeps no application from opening the queue.
        .filter_map(|row| keys.sessions.parse_heartbeat_row(row).ok())
        .map(|heartbeat| heartbeat.version)
        .chain(last_wake)
        .max();
    match newest {
        Some(newest) if newest > read_version => Err(microqueue::Error::StampAhead {
            queue: keys.queue.clone(),
            stamp: Versionstamp::new(newest, 0),
            read_version,
        }
        .into()),
        _ => Ok(()),
    }
}

/// Returns an error if no session can follow the settings.
pub(super) fn check_settings(settings: &Settings) -> Result<()> {
    if settings.lease < MIN_LEASE {
        return Err(Error::TooShort {
            option: "lease",
            given: settings.lease,
            least: MIN_LEASE,
        });
    }
    Ok(())
}

impl<T, C: Clone> Clone for Queue<T, C> {
    fn clone(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            settings: self.settings.clone(),
            codec: self.codec.clone(),
            value: PhantomData,
        }
    }
}

impl<T, C> fmt::Debug for Queue<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("subspace", &self.keys.name)
            .field("settings", &self.settings.get())
            .finish_non_exhaustive()
    }
}
