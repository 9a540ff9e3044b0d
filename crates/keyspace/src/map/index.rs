//! Indexes: what a map keeps beside its rows to find them by their values.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use foundationdb_tuple::{self as tuple, Element, PackResult, Subspace, TuplePack};

use super::MapPart;
use super::key::Key;
use crate::contract::error::{Error, MapError, Result};
use crate::contract::selector::{KeyValue, RangeQuery};
use crate::contract::transaction::{Isolation, Transaction, read_all};
use crate::values::record::{self, Fields};

/// The format of the record of an index.
const FORMAT: u8 = 1;

/// The longest name of an index, in bytes.
pub const MAX_INDEX_NAME_BYTES: usize = 100;

/// An index of a map: a name, and a function from a value to zero or more keys by which its row is found.
///
/// The function must return the same keys for the same value, in every process. A function that returns other keys
/// needs another [version](Self::with_version).
///
/// ```
/// use keyspace::map::{Index, MapOptions};
/// use keyspace::{Error, Map, Runner};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct User {
///     mail: String,
///     groups: Vec<String>,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let by_mail = &Index::new("mail", |user: &User| [user.mail.clone()]).unique();
/// let by_group = &Index::new("group", |user: &User| user.groups.clone());
/// let options = MapOptions::new().with_index(by_mail).with_index(by_group);
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let users = &Map::<u64, User>::open_with(&runner, "users", options).await?;
/// runner
///     .run(async |tr| {
///         let ann = User { mail: "ann@example.com".into(), groups: vec!["staff".into()] };
///         users.set(&tr, &1, &ann).await?;
///         let found = users.by(by_mail).equal_to("ann@example.com").first(&tr).await?;
///         assert_eq!(found.unwrap().0, 1);
///         assert_eq!(users.by(by_group).equal_to("guests").count(&tr, 10).await?.count, 0);
///         Ok::<_, Error>(())
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
pub struct Index<V, I> {
    definition: Arc<Definition<V>>,
    key: PhantomData<fn() -> I>,
}

/// An index, whatever the type of its keys.
pub(super) struct Definition<V> {
    name: String,
    version: u32,
    is_unique: bool,
    keys: KeysOf<V>,
    split: fn(&[u8]) -> PackResult<Element<'_>>,
}

/// Returns the packed keys of a value, each as an element of a tuple.
type KeysOf<V> = Arc<dyn Fn(&V) -> BTreeSet<Vec<u8>> + Send + Sync>;

impl<V, I> Clone for Index<V, I> {
    fn clone(&self) -> Self {
        Self {
            definition: self.definition.clone(),
            key: PhantomData,
        }
    }
}

impl<V, I> fmt::Debug for Index<V, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("name", &self.definition.name)
            .field("version", &self.definition.version)
            .field("is_unique", &self.definition.is_unique)
            .finish_non_exhaustive()
    }
}

impl<V: 'static, I: Key> Index<V, I> {
    /// Returns an index with a name and a function, of version 0, in which several rows may have the same key.
    #[must_use]
    pub fn new<Keys: IntoIterator<Item = I>>(
        name: impl Into<String>,
        keys: impl Fn(&V) -> Keys + Send + Sync + 'static,
    ) -> Self {
        let keys = move |value: &V| {
            let keys = keys(value).into_iter();
            keys.map(|key| (key,).pack_to_vec()).collect()
        };
        Self::of(Definition {
            name: name.into(),
            version: 0,
            is_unique: false,
            keys: Arc::new(keys),
            split: |entry| tuple::unpack(entry).map(|(_, row): (I, _)| row),
        })
    }

    /// Lets at most one row have a key.
    #[must_use]
    pub fn unique(self) -> Self {
        let definition = self.definition.clone_with();
        Self::of(Definition {
            is_unique: true,
            ..definition
        })
    }

    /// Sets the version of the function. If it is another one than that of the stored entries, the index must be built
    /// again.
    #[must_use]
    pub fn with_version(self, version: u32) -> Self {
        let definition = self.definition.clone_with();
        Self::of(Definition {
            version,
            ..definition
        })
    }

    fn of(definition: Definition<V>) -> Self {
        Self {
            definition: Arc::new(definition),
            key: PhantomData,
        }
    }
}

impl<V, I> Index<V, I> {
    pub(super) fn definition(&self) -> &Arc<Definition<V>> {
        &self.definition
    }
}

impl<V> Definition<V> {
    fn clone_with(&self) -> Self {
        Self {
            name: self.name.clone(),
            version: self.version,
            is_unique: self.is_unique,
            keys: self.keys.clone(),
            split: self.split,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_unique(&self) -> bool {
        self.is_unique
    }

    /// Returns the packed keys of a value.
    pub(super) fn keys_of(&self, value: &V) -> BTreeSet<Vec<u8>> {
        (self.keys)(value)
    }

    /// Returns the key of the row of an entry, as one packed element. The entry is without the prefix of the entries.
    pub(super) fn row_of(&self, entry: &[u8]) -> PackResult<Vec<u8>> {
        (self.split)(entry).map(|row| (row,).pack_to_vec())
    }

    /// Returns where the entries of the index are.
    pub(super) fn entries(&self, map: &Subspace) -> Subspace {
        map.subspace(&(MapPart::Entries, &*self.name))
    }

    /// Returns the record of the index in this state.
    pub(super) fn record(&self, is_ready: bool) -> IndexRecord {
        IndexRecord {
            version: self.version,
            is_unique: self.is_unique,
            is_ready,
        }
    }

    /// Checks that the stored record is of this index and, if it `must_be_ready`, that it was built.
    pub(super) fn check(&self, stored: Option<IndexRecord>, must_be_ready: bool) -> Result<()> {
        let index = self.name.clone();
        let Some(stored) = stored else {
            return Err(MapError::IndexRemoved { index }.into());
        };
        if stored.version != self.version || stored.is_unique != self.is_unique {
            return Err(MapError::IndexChanged {
                index,
                stored: stored.version,
                given: self.version,
            }
            .into());
        }
        if must_be_ready && !stored.is_ready {
            return Err(MapError::IndexNotBuilt { index }.into());
        }
        Ok(())
    }
}

/// What is stored of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexRecord {
    pub(super) version: u32,
    pub(super) is_unique: bool,
    pub(super) is_ready: bool,
}

impl IndexRecord {
    pub(super) fn key(map: &Subspace, name: &str) -> Vec<u8> {
        map.pack(&(MapPart::Indexes, name))
    }

    pub(super) fn encode(self) -> [u8; 7] {
        let mut record = [0; 7];
        record[0] = FORMAT;
        record[1..5].copy_from_slice(&self.version.to_be_bytes());
        record[5] = self.is_unique.into();
        record[6] = self.is_ready.into();
        record
    }

    fn decode(row: &KeyValue) -> Result<Self> {
        let read = |fields: &mut Fields<'_>| {
            let flag = |[byte]: [u8; 1]| match byte {
                0 => Ok(false),
                1 => Ok(true),
                other => Err(format!("expected 0 or 1, found {other}")),
            };
            let record = Self {
                version: u32::from_be_bytes(fields.array()?),
                is_unique: flag(fields.array()?)?,
                is_ready: flag(fields.array()?)?,
            };
            fields.end()?;
            Ok(record)
        };
        record::decode(row.key(), row.value(), FORMAT, read)
    }
}

/// Reads the records of all indexes of a map, by their names.
///
/// # Conflicts
/// Reads the records.
pub(super) async fn records(
    tr: &impl Transaction,
    map: &Subspace,
    isolation: Isolation,
) -> Result<Vec<(String, IndexRecord)>> {
    let part = map.subspace(&MapPart::Indexes);
    let (begin, end) = part.range();
    let rows = read_all(tr, RangeQuery::keys(begin, end), isolation).await?;
    let records = rows.iter().map(|row| {
        let name = part.unpack::<String>(row.key());
        let name = name.map_err(|error| Error::corrupt(row.key(), error.to_string()))?;
        Ok((name, IndexRecord::decode(row)?))
    });
    records.collect()
}
