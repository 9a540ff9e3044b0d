//! Functions that recipes share: opening a recipe, and waiting for workers.
//!
//! A recipe that has settings stores them under a key of its subspace when it is first opened. Every later
//! opening gets the stored ones, and is refused if its own do not agree with them. Each opening is one transaction.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use foundationdb_tuple::Subspace;
use futures::future::BoxFuture;

use super::ids::Ids;
use crate::contract::env::Environment;
use crate::contract::error::{Error, Result, RunError};
use crate::contract::transaction::{Database, Isolation, Transaction};
use crate::run::{Runner, Tx};
use crate::text::names::queue_name;
use crate::values::codec::MessagePack;
use crate::values::record::{self, Fields};

/// The codec and the registry of ids that a recipe is opened with.
///
/// ```
/// use keyspace::Subspace;
/// use keyspace::codec::Json;
/// use keyspace::ids::Ids;
/// use keyspace::recipe::OpenOptions;
///
/// let options = OpenOptions::new().with_codec(Json).with_ids(Ids::new(Subspace::from("ids")));
/// # drop(options);
/// ```
#[derive(Debug, Clone, Default)]
pub struct OpenOptions<C = MessagePack> {
    codec: C,
    ids: Ids,
}

impl OpenOptions {
    /// Returns options with [`MessagePack`] and the [default registry](Ids::default).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl<C> OpenOptions<C> {
    /// Sets the codec of values. All handles on a recipe must use the same codec.
    #[must_use]
    pub fn with_codec<Other>(self, codec: Other) -> OpenOptions<Other> {
        OpenOptions {
            codec,
            ids: self.ids,
        }
    }

    /// Sets the registry of ids. Tools look for recipes in the [default one](Ids::default).
    #[must_use]
    pub fn with_ids(mut self, ids: Ids) -> Self {
        self.ids = ids;
        self
    }

    /// Registers a subspace for the recipe with this name and these codecs, as [`Ids::register`] does.
    ///
    /// # Cancel safety
    /// Dropping the future stages nothing.
    pub async fn register(
        &self,
        tr: &impl Transaction,
        subspace: &Subspace,
        recipe: &str,
        codecs: &[&str],
    ) -> Result<()> {
        self.ids.register(tr, subspace, recipe, codecs).await
    }

    /// Opens a recipe in one transaction, and returns its stored settings.
    ///
    /// The transaction [registers](Self::register) the subspace. It then stores the settings if there are
    /// none yet, or else compares them with the stored ones.
    ///
    /// # Conflicts
    /// As for [`register`](Self::register). Reads the key of the settings, and writes it if it was missing.
    ///
    /// # Errors
    /// [`SettingsDiffer`], [`Error::Overlap`](crate::Error::Overlap),
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the stored settings do not decode, and the errors of
    /// [`Runner::run`]. Nothing was changed, unless the error is
    /// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown).
    ///
    /// # Cancel safety
    /// Dropping the future leaves the recipe either created or not, never in between.
    pub async fn open<D, S, E, Kind>(
        &self,
        runner: &Runner<D>,
        subspace: &Subspace,
        key: &[u8],
        settings: &S,
    ) -> Result<S, E>
    where
        D: Database,
        C: Send + Sync,
        S: StoredSettings,
        E: RunError<Kind> + From<Box<SettingsDiffer<S>>>,
    {
        let open = |tr: Tx<D::Transaction>| async move {
            self.register(&tr, subspace, S::RECIPE, &settings.codecs())
                .await?;
            agree(&tr, subspace, key, settings).await
        };
        runner.run(open).await
    }

    /// Returns the codec.
    pub fn codec(&self) -> &C {
        &self.codec
    }
}

/// Logs a warning if the settings that an application gave to an opening differ from the stored ones, which hold.
/// `hint` says how stored settings change.
pub fn warn_if_settings_differ<S>(subspace: &Subspace, given: &S, stored: &S, hint: &str)
where
    S: StoredSettings + fmt::Display,
{
    // As they are stored, with times in whole milliseconds.
    if given.encode() != stored.encode() {
        tracing::warn!(queue = %queue_name(subspace), %given, %stored, "stored settings hold: {hint}");
    }
}

/// The format of stored settings.
const FORMAT: u8 = 1;

/// The record of a recipe that is written when it is first opened: its settings and the names of its
/// codecs.
///
/// The record begins with its format number, 1.
pub trait StoredSettings: Sized + Send + Sync {
    /// The name of the recipe, as a registry of ids records it.
    const RECIPE: &'static str;

    /// Returns the names of the recipe's codecs, as a registry of ids records them.
    fn codecs(&self) -> Vec<&str>;

    /// Appends the fields of the record, without the format number.
    fn write(&self, record: &mut Vec<u8>);

    /// Reads the fields that [`write`](Self::write) appended, and checks that nothing is left over.
    ///
    /// # Errors
    /// The reason why the fields do not decode.
    fn read(fields: &mut Fields<'_>) -> Result<Self, String>;

    /// Returns whether a handle with these settings may use a recipe whose stored record has different
    /// bytes. The default is false. Override it if the record contains fields that may differ between
    /// handles.
    fn agrees_with(&self, _stored: &Self) -> bool {
        false
    }

    /// Returns the bytes of the record.
    fn encode(&self) -> Vec<u8> {
        let mut record = vec![FORMAT];
        self.write(&mut record);
        record
    }

    /// Decodes the record under a key.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if it does not decode.
    fn decode(key: &[u8], record: &[u8]) -> Result<Self> {
        record::decode(key, record, FORMAT, Self::read)
    }
}

/// A recipe was opened with settings that do not agree with its stored ones. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{subspace}` was created with {stored}, not with {given}: open it with the same codecs",
    subspace = queue_name(.subspace)
)]
#[non_exhaustive]
pub struct SettingsDiffer<S> {
    /// The recipe's subspace.
    pub subspace: Subspace,
    /// The settings that the recipe was created with.
    pub stored: S,
    /// The settings that the recipe was opened with.
    pub given: S,
}

/// Reads the stored settings of a recipe, or returns `None` if the recipe does not exist.
///
/// A tool that knows a recipe only from its [registration](crate::ids::RegisteredRecipe) opens it this way,
/// with the settings and codecs that are stored.
///
/// # Conflicts
/// Reads the record. A snapshot read is safe if no write depends on the settings. It also is if the write
/// depends only on settings that never change.
///
/// # Errors
/// [`Error::Corrupt`](crate::Error::Corrupt) if the record does not decode, and the errors of the store.
pub async fn stored_settings<S: StoredSettings>(
    tr: &impl Transaction,
    key: &[u8],
    isolation: Isolation,
) -> Result<Option<S>> {
    let record = tr.get(key, isolation).await?;
    record.map(|record| S::decode(key, &record)).transpose()
}

/// Reads the stored settings of a recipe in a transaction of its own, as [`stored_settings`] does.
///
/// # Conflicts
/// None: the read is a snapshot read, and nothing is written.
///
/// # Errors
/// [`Error::Corrupt`](crate::Error::Corrupt) if the record does not decode, and the errors of
/// [`Runner::run`].
///
/// # Cancel safety
/// Dropping the future changes nothing.
pub async fn read_settings<D: Database, S: StoredSettings>(
    runner: &Runner<D>,
    key: &[u8],
) -> Result<Option<S>> {
    let read = |tr: Tx<D::Transaction>| async move {
        stored_settings(&tr, key, Isolation::Snapshot).await
    };
    runner.run(read).await
}

/// Stages settings under a key that has none, and returns the stored settings if they agree.
async fn agree<S, E>(
    tr: &impl Transaction,
    subspace: &Subspace,
    key: &[u8],
    given: &S,
) -> Result<S, E>
where
    S: StoredSettings,
    E: From<Error> + From<Box<SettingsDiffer<S>>>,
{
    let bytes = given.encode();
    // Compares the settings as they would be stored: a stored time is cut off to whole milliseconds.
    let given = S::decode(key, &bytes)?;
    let Some(stored) = tr.get(key, Isolation::Serializable).await? else {
        tr.set(key, &bytes);
        return Ok(given);
    };
    let is_same = stored == bytes;
    let stored = S::decode(key, &stored)?;
    if is_same || given.agrees_with(&stored) {
        return Ok(stored);
    }
    let differ = SettingsDiffer {
        subspace: subspace.clone(),
        stored,
        given,
    };
    Err(Box::new(differ).into())
}

/// The longest wait for a watch before the next read, because a watch may never fire.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Runs `find` until it returns `None`.
///
/// `find` returns a key that changes with every step of the workers. Between two runs, the function waits
/// until that key changes, and for at most one second.
///
/// # Conflicts
/// Those of `find`, which may use snapshot reads.
///
/// # Errors
/// Those of [`Runner::run`].
///
/// # Cancel safety
/// Dropping the future stops the waiting and changes nothing, provided that `find` only reads.
pub async fn wait_until_none<D, E, Kind, Fut>(
    runner: &Runner<D>,
    find: impl Fn(Tx<D::Transaction>) -> Fut + Send + Sync,
) -> Result<(), E>
where
    D: Database,
    E: RunError<Kind>,
    Fut: Future<Output = Result<Option<Vec<u8>>, E>> + Send,
{
    loop {
        let find = &find;
        let read = |tr: Tx<D::Transaction>| async move {
            let found = find(tr.clone()).await?;
            Ok::<_, E>(found.map(|key| -> BoxFuture<'static, _> { Box::pin(tr.watch(&key)) }))
        };
        let Some(changed) = runner.run(read).await? else {
            return Ok(());
        };
        wait_for(runner.environment(), changed).await;
    }
}

/// Waits until a watch fires, and for at most [`POLL_INTERVAL`].
fn wait_for(env: &Environment, changed: BoxFuture<'static, Result<()>>) -> BoxFuture<'static, ()> {
    let env = env.clone();
    Box::pin(async move {
        // A failed watch is treated like one that fired, since the next read decides. A watch may fail
        // immediately each time, so wait a little before the next read.
        if let Some(Err(_)) = env.timeout(POLL_INTERVAL, changed).await {
            env.sleep(POLL_INTERVAL / 100).await;
        }
    })
}

#[cfg(test)]
mod tests {
    use conformance::with_warnings;

    use super::*;

    struct Size(u32);

    impl StoredSettings for Size {
        const RECIPE: &'static str = "test";

        fn codecs(&self) -> Vec<&str> {
            Vec::new()
        }

        fn write(&self, record: &mut Vec<u8>) {
            record.extend_from_slice(&self.0.to_be_bytes());
        }

        fn read(fields: &mut Fields<'_>) -> Result<Self, String> {
            fields.u32().map(Self)
        }
    }

    impl fmt::Display for Size {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "size {}", self.0)
        }
    }

    #[tokio::test]
    async fn settings_other_than_the_stored_ones_give_one_warning_that_names_both() {
        let warnings = async |given, stored| {
            let queue = &Subspace::from("jobs");
            let warn = async {
                warn_if_settings_differ(queue, &Size(given), &Size(stored), "they never change");
            };
            with_warnings(warn).await.1
        };
        assert_eq!(warnings(7, 7).await, [""; 0]);
        let expected = "given=size 8, message=stored settings hold: they never change, queue=jobs, stored=size 7";
        assert_eq!(warnings(8, 7).await, [expected]);
    }
}
