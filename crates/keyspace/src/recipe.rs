//! What recipes have in common: how they are opened, and how callers wait for what workers do.
//!
//! A recipe that has settings stores them under a key of its subspace when it is first opened, and
//! every later opening compares its own with them. All of that happens in one transaction.

use std::future::Future;
use std::time::Duration;

use foundationdb_tuple::Subspace;

use crate::codec::MessagePack;
use crate::error::{Result, RunError};
use crate::ids::Ids;
use crate::record::{self, Fields};
use crate::run::{Runner, Tx};
use crate::transaction::{Database, Isolation, Transaction};

/// How a recipe is opened, beside its settings: with which codec, and in which registry of ids.
///
/// ```
/// use keyspace::Subspace;
/// use keyspace::codec::Json;
/// use keyspace::ids::Ids;
/// use keyspace::recipe::OpenOptions;
///
/// let options = OpenOptions::new().codec(Json).ids(Ids::new(Subspace::from("ids")));
/// # drop(options);
/// ```
#[derive(Debug, Clone, Default)]
pub struct OpenOptions<C = MessagePack> {
    codec: C,
    ids: Ids,
}

impl OpenOptions {
    /// Begins with [`MessagePack`] and the [default registry](Ids::default).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl<C> OpenOptions<C> {
    /// Stores values as `codec` writes them. All handles on a recipe must name the same codec.
    #[must_use]
    pub fn codec<Other>(self, codec: Other) -> OpenOptions<Other> {
        OpenOptions {
            codec,
            ids: self.ids,
        }
    }

    /// Registers the subspace in another registry of ids than the [default](Ids::default), in which tools look for
    /// recipes.
    #[must_use]
    pub fn ids(mut self, ids: Ids) -> Self {
        self.ids = ids;
        self
    }

    /// Registers the subspace for a recipe of this name, with these codecs.
    ///
    /// # Conflicts
    /// As [`Ids::register`].
    ///
    /// # Errors
    /// As [`Ids::register`].
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

    /// Opens a recipe in one transaction: [registers](Self::register) its subspace, and stores the
    /// settings under their key, or compares them with those that are there. Returns those that are there.
    ///
    /// # Conflicts
    /// As [`register`](Self::register). Reads the key of the settings, and writes it if there are none.
    ///
    /// # Errors
    /// [`SettingsDiffer`], [`Error::Overlap`](crate::Error::Overlap),
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the stored settings do not decode, and those of
    /// [`Runner::run`]. Nothing was changed.
    ///
    /// # Cancel safety
    /// Dropping the future leaves a recipe or none.
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
            let agreed = agree(&tr, subspace, key, settings).await?;
            agreed.map_err(|differ| Box::new(differ).into())
        };
        runner.run(open).await
    }

    /// Returns the codec.
    pub fn get_codec(&self) -> &C {
        &self.codec
    }
}

/// The format of stored settings.
const FORMAT: u8 = 1;

/// What a recipe stores of itself when it is first opened: its settings and the names of its codecs.
///
/// The record begins with its format number, 1.
pub trait StoredSettings: Sized + Send + Sync {
    /// The name of the recipe, as a registry of ids records it.
    const RECIPE: &'static str;

    /// Returns the names of the recipe's codecs, as a registry of ids records them.
    fn codecs(&self) -> Vec<&str>;

    /// Appends the fields that come after the format number.
    fn write(&self, record: &mut Vec<u8>);

    /// Takes the fields that [`write`](Self::write) appends, and makes sure that nothing is left.
    ///
    /// # Errors
    /// A reason, if they do not decode.
    fn read(fields: &mut Fields<'_>) -> Result<Self, String>;

    /// Returns whether a handle with these settings may use a recipe whose stored record has other
    /// bytes. Not, unless the record holds more than what handles must agree on.
    fn agrees_with(&self, _stored: &Self) -> bool {
        false
    }

    /// Returns the record.
    fn encode(&self) -> Vec<u8> {
        let mut record = vec![FORMAT];
        self.write(&mut record);
        record
    }

    /// Reads the record under a key.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if it does not decode.
    fn decode(key: &[u8], record: &[u8]) -> Result<Self> {
        record::decode(key, record, FORMAT, Self::read)
    }
}

/// A recipe was created with settings that do not agree with those it was opened with. Nothing was
/// changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{subspace}` was created with {stored}, not with {given}: open it with those")]
#[non_exhaustive]
pub struct SettingsDiffer<S> {
    /// The recipe's subspace.
    pub subspace: Subspace,
    /// What it was created with.
    pub stored: S,
    /// What it was opened with.
    pub given: S,
}

/// Stages settings under a key that has none. Returns what is there now, if it agrees.
async fn agree<S: StoredSettings>(
    tr: &impl Transaction,
    subspace: &Subspace,
    key: &[u8],
    given: &S,
) -> Result<Result<S, SettingsDiffer<S>>> {
    let bytes = given.encode();
    // As it is stored: a time loses what is below a millisecond.
    let given = S::decode(key, &bytes)?;
    let Some(stored) = tr.get(key, Isolation::Serializable).await? else {
        tr.set(key, &bytes);
        return Ok(Ok(given));
    };
    let is_same = stored == bytes;
    let stored = S::decode(key, &stored)?;
    Ok(match is_same || given.agrees_with(&stored) {
        true => Ok(stored),
        false => Err(SettingsDiffer {
            subspace: subspace.clone(),
            stored,
            given,
        }),
    })
}

/// How long to wait for a watch before reading anyway: watches get lost.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Runs `find` until it returns `None`. In between it waits for a change of the key that `find`
/// returned, which is one that every step of a worker changes.
///
/// # Conflicts
/// Those of `find`, which may read by snapshot.
///
/// # Errors
/// Those of [`Runner::run`].
///
/// # Cancel safety
/// Reads only, if `find` does.
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
            Ok::<_, E>(found.map(|key| tr.watch(&key)))
        };
        let Some(changed) = runner.run(read).await? else {
            return Ok(());
        };
        // A watch that fails is as good as one that fires: the next read decides. It may fail at once,
        // again and again.
        let env = runner.environment();
        if let Some(Err(_)) = env.timeout(POLL_INTERVAL, changed).await {
            env.sleep(POLL_INTERVAL / 100).await;
        }
    }
}
