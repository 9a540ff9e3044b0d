//! The handle: what an application does with a queue inside its own transactions.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use microqueue::keyspace::codec::{Codec, MessagePack};
use microqueue::keyspace::{Database, OpenOptions, Runner, Subspace, Transaction};

use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::settings::{KnownSettings, MIN_LEASE, Settings, SettingsRecord};

/// A queue of `T` in a subspace that many consumers take from, stored as the codec `C` writes them.
///
/// Its operations take a transaction, stage their work there and leave the commit to the
/// transaction's owner. Taking items is what a [`Consumer`](crate::Consumer) does.
///
/// A handle holds nothing of the store: clone it freely.
///
/// # Conflicts
/// Each operation says what it reads. An enqueue without a dedupe id never fails with one.
///
/// # Retries
/// An operation that takes a transaction retries nothing: who commits the transaction calls it again in
/// the next attempt, as [`Runner::run`] does, and all is staged anew. One that takes a runner commits by
/// itself, and the runner retries.
pub struct HighContentionQueue<T, C = MessagePack> {
    pub(crate) keys: Arc<Keys>,
    pub(crate) settings: KnownSettings,
    pub(crate) codec: C,
    value: PhantomData<fn() -> T>,
}

impl<T, C: Codec<T>> HighContentionQueue<T, C> {
    /// Opens the queue in `subspace`, and creates it with these settings if there is none. A queue that is there
    /// keeps its settings, until they are [changed](Self::configure).
    ///
    /// # Conflicts
    /// Reads the settings, and writes them if there are none.
    ///
    /// # Errors
    /// [`Error::SettingsDiffer`] if the queue was created with another codec, [`Error::TooShort`] for a
    /// lease that leaves no time for three heartbeats, and those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves a queue or none.
    pub async fn open<D: Database>(
        runner: &Runner<D>,
        subspace: Subspace,
        settings: Settings,
    ) -> Result<Self>
    where
        C: Default,
    {
        let options = OpenOptions::new().codec(C::default());
        Self::open_with(runner, subspace, settings, options).await
    }

    /// Opens the queue as [`open`](Self::open) does, with a codec and a registry of ids, where it is an
    /// `hc-dequeue`.
    ///
    /// # Conflicts
    /// As [`open`](Self::open), and as [`Ids::register`](microqueue::keyspace::ids::Ids::register).
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`Overlap`](microqueue::keyspace::Error::Overlap). Nothing was
    /// changed.
    ///
    /// # Cancel safety
    /// As [`open`](Self::open).
    pub async fn open_with<D: Database>(
        runner: &Runner<D>,
        subspace: Subspace,
        settings: Settings,
        options: OpenOptions<C>,
    ) -> Result<Self> {
        check_settings(&settings)?;
        let keys = Keys::new(subspace, runner.environment().clone());
        let given = SettingsRecord {
            settings,
            codec: C::NAME.to_owned(),
        };
        let (subspace, key) = (&keys.queue, keys.settings());
        let stored: Result<_> = options.open(runner, subspace, &key, &given).await;
        Ok(Self {
            settings: KnownSettings::new(stored?.settings),
            keys: Arc::new(keys),
            codec: options.get_codec().clone(),
            value: PhantomData,
        })
    }

    /// Returns the queue's subspace.
    #[must_use]
    pub fn subspace(&self) -> &Subspace {
        &self.keys.queue
    }

    /// Stages that nothing is granted until [`resume`](Self::resume). What is held already is not
    /// touched.
    ///
    /// # Conflicts
    /// Writes a key that every grant reads.
    pub fn pause(&self, tr: &impl Transaction) {
        tr.set(&self.keys.pause(), b"");
    }

    /// Stages that items are granted again.
    ///
    /// # Conflicts
    /// As [`pause`](Self::pause).
    pub fn resume(&self, tr: &impl Transaction) {
        tr.clear(&self.keys.pause());
        self.keys.wake_all(tr);
    }
}

/// Refuses settings that no session can follow.
pub(crate) fn check_settings(settings: &Settings) -> Result<()> {
    match settings.lease < MIN_LEASE {
        true => Err(Error::TooShort {
            option: "lease",
            given: settings.lease,
            least: MIN_LEASE,
        }),
        false => Ok(()),
    }
}

impl<T, C: Clone> Clone for HighContentionQueue<T, C> {
    fn clone(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            settings: self.settings.clone(),
            codec: self.codec.clone(),
            value: PhantomData,
        }
    }
}

impl<T, C> fmt::Debug for HighContentionQueue<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HighContentionQueue")
            .field("subspace", &self.keys.queue.to_string())
            .field("settings", &self.settings.get())
            .finish_non_exhaustive()
    }
}
