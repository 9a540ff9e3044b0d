//! The registry of ids: which recipe owns which subspace. Opening a recipe registers it, so that tools can find all
//! queues of a store.
//!
//! A recipe writes anywhere in the subspace that it was given. If two recipes shared a subspace, or one had a subspace
//! inside the other's, each could read the other's records as damaged ones, or clear them. The registry therefore
//! refuses a subspace that overlaps a registered one.
//!
//! # Layout
//!
//! ```text
//! ids = the subspace of the registry, by default the tuple ("keyspace.ids",)
//!
//! (ids, prefix) = recipe, written when it is opened
//!     prefix    tuple byte string: the prefix of its subspace
//!
//! recipe
//!     0       format, 01
//!     next    length of its name in a byte, then the name, UTF-8
//!     rest    the names of its codecs, each after its length in a byte
//! ```

use foundationdb_tuple::Subspace;

use crate::contract::error::{Error, Result};
use crate::contract::selector::{KeyValue, RangeQuery};
use crate::contract::transaction::{Isolation, Transaction, key_after, read_all};
use crate::values::codec::DecodeError;
use crate::values::listed::{Listed, Undecodable};
use crate::values::record::{self, push_text};

/// The format of a record.
const FORMAT: u8 = 1;

/// Records which recipe owns which subspace. See the [module documentation](self).
///
/// ```
/// use keyspace::ids::Ids;
/// use keyspace::{Error, Runner, Subspace};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let ids = &Ids::default();
/// let orders = &Subspace::from("orders");
/// let open_orders = &Subspace::from(("orders", "open"));
/// runner.run(async |tr| ids.register(&tr, orders, "jobs", &["JSON"]).await).await?;
/// let refused = runner.run(async |tr| ids.register(&tr, open_orders, "logs", &[]).await).await;
/// assert!(matches!(refused, Err(Error::Overlap { .. })));
///
/// let recipes = runner.run(async |tr| ids.recipes(&tr, None, 10).await).await?;
/// assert_eq!(&recipes[0].id, orders);
/// let recipe = runner.run(async |tr| ids.recipe(&tr, orders).await).await?.unwrap();
/// assert_eq!((&recipe.subspace, &*recipe.name), (orders, "jobs"));
/// assert_eq!(recipes[0].value, Ok(recipe));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Ids {
    subspace: Subspace,
}

/// A registered recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegisteredRecipe {
    /// Its subspace.
    pub subspace: Subspace,
    /// Its name: `hc-dequeue`, for example.
    pub name: String,
    /// The names of the codecs that it was last opened with.
    pub codecs: Vec<String>,
}

impl Default for Ids {
    /// Returns the registry that recipes use unless they are opened with another one.
    fn default() -> Self {
        Self::new(Subspace::from(("keyspace.ids",)))
    }
}

impl Ids {
    /// Returns the registry in a subspace. No other keys may be written there.
    #[must_use]
    pub fn new(subspace: Subspace) -> Self {
        Self { subspace }
    }

    /// Stages the registration of a recipe's subspace and codecs. Registering the same recipe again changes
    /// only its codecs.
    ///
    /// # Conflicts
    /// Reads the adjacent registrations, and writes the recipe's own if it changes. If two transactions
    /// register overlapping subspaces at the same time, one of them fails.
    ///
    /// # Errors
    /// - [`Error::Overlap`] if the subspace overlaps the registry itself or a subspace of another recipe
    /// - [`Error::Corrupt`] if the subspace's own record, or that of an overlapping subspace, does not decode, or
    ///   if an adjacent key is not that of a registration
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
        if overlap(self.subspace.bytes(), subspace.bytes()) {
            return Err(self.refusal(
                subspace,
                self.subspace.clone(),
                "the registry of ids".into(),
            ));
        }
        let key = self.key(subspace);
        let (begin, end) = self.subspace.range();
        // Registered subspaces never overlap each other. So of all registrations before this prefix, only
        // the last can be a prefix of it: any registration in between would begin with that prefix, too.
        let before = RangeQuery::keys(begin, key_after(&key)).limit(1).reversed();
        let behind = RangeQuery::keys(key_after(&key), end).limit(1);
        let before = tr.get_range(&before, Isolation::Serializable);
        let behind = tr.get_range(&behind, Isolation::Serializable);
        let (before, behind) = futures::try_join!(before, behind)?;
        let value = encode(recipe, codecs);
        for row in before.rows.iter().chain(&behind.rows) {
            if row.key() == key && row.value() == value {
                return Ok(());
            }
            let prefix = self.prefix(row)?;
            if !overlap(prefix.bytes(), subspace.bytes()) {
                // Whether its record decodes concerns only its owner.
                continue;
            }
            let registered = self.decode(row)?;
            let is_own = registered.subspace == *subspace && registered.name == recipe;
            if !is_own {
                return Err(self.refusal(subspace, registered.subspace, registered.name));
            }
        }
        tr.set(&key, &value);
        Ok(())
    }

    /// Returns up to `limit` recipes in the order of their prefixes: those after the subspace `after`, or
    /// the first ones if `after` is `None`. Each has its subspace, and its registration or the reason why it does
    /// not decode.
    ///
    /// # Conflicts
    /// Reads the registrations of the page.
    ///
    /// # Errors
    /// Those of the reads, and [`Error::Corrupt`] if a key there is not that of a registration.
    pub async fn recipes(
        &self,
        tr: &impl Transaction,
        after: Option<&Subspace>,
        limit: usize,
    ) -> Result<Vec<Listed<Subspace, RegisteredRecipe>>> {
        let (begin, end) = self.subspace.range();
        let begin = after.map_or(begin, |after| key_after(&self.key(after)));
        let query = RangeQuery::keys(begin, end).limit(limit);
        let rows = read_all(tr, query, Isolation::Serializable).await?;
        let listed = rows.iter().map(|row| {
            let id = self.prefix(row)?;
            let value = match self.decode(row) {
                Ok(recipe) => Ok(recipe),
                Err(Error::Corrupt { key, reason }) => {
                    let codec = "a registration";
                    let error = DecodeError { codec, reason };
                    Err(Undecodable::new(key, row.to_value(), error))
                }
                Err(error) => return Err(error),
            };
            Ok(Listed { id, value })
        });
        listed.collect()
    }

    /// Returns the recipe that owns exactly this subspace, or `None` if there is none.
    ///
    /// # Conflicts
    /// Reads the subspace's registration.
    ///
    /// # Errors
    /// Those of the read, and [`Error::Corrupt`] if the registration does not decode.
    pub async fn recipe(
        &self,
        tr: &impl Transaction,
        subspace: &Subspace,
    ) -> Result<Option<RegisteredRecipe>> {
        let key = self.key(subspace);
        let value = tr.get(&key, Isolation::Serializable).await?;
        let row = value.map(|value| KeyValue::new(&key, &value));
        row.map(|row| self.decode(&row)).transpose()
    }

    /// Stages the removal of the registrations of a subspace and of all subspaces inside it. An application
    /// that clears a subspace calls this in the same transaction.
    ///
    /// # Conflicts
    /// Writes the registrations of the subspace and of all subspaces inside it.
    pub fn unregister(&self, tr: &impl Transaction, subspace: &Subspace) {
        let key = self.key(subspace);
        // Without its terminator, the packed byte string is also a prefix of the keys of all longer
        // subspaces.
        let begin = &key[..key.len() - 1];
        tr.clear_range(begin, &after_all_with(begin));
    }

    fn key(&self, subspace: &Subspace) -> Vec<u8> {
        self.subspace.pack(&subspace.bytes())
    }

    /// Returns the subspace whose registration has this key.
    fn prefix(&self, row: &KeyValue) -> Result<Subspace> {
        let corrupt = |_| Error::corrupt(row.key(), "expected the prefix of a subspace");
        let prefix: Vec<u8> = self.subspace.unpack(row.key()).map_err(corrupt)?;
        Ok(Subspace::from_bytes(prefix))
    }

    fn decode(&self, row: &KeyValue) -> Result<RegisteredRecipe> {
        let subspace = self.prefix(row)?;
        record::decode(row.key(), row.value(), FORMAT, |fields| {
            let name = fields.text()?.to_owned();
            let mut codecs = Vec::new();
            while !fields.rest().is_empty() {
                codecs.push(fields.text()?.to_owned());
            }
            Ok(RegisteredRecipe {
                subspace,
                name,
                codecs,
            })
        })
    }

    fn refusal(&self, given: &Subspace, registered: Subspace, recipe: String) -> Error {
        Error::Overlap {
            given: Box::new(given.clone()),
            registered: Box::new(registered),
            recipe,
        }
    }
}

fn encode(recipe: &str, codecs: &[&str]) -> Vec<u8> {
    let mut value = vec![FORMAT];
    push_text(&mut value, recipe);
    for codec in codecs {
        push_text(&mut value, codec);
    }
    value
}

/// Returns the first key after all keys with a prefix. The prefix must not consist of `ff` bytes alone.
fn after_all_with(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while end.pop_if(|last| *last == u8::MAX).is_some() {}
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn overlap(one: &[u8], other: &[u8]) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_has_the_bytes_of_the_schema() {
        let ids = Ids::default();
        let key = ids.key(&Subspace::from_bytes(b"Q"));
        assert_eq!(key, b"\x02keyspace.ids\0\x01Q\0");
        let value = encode("jobs", &["JSON", ""]);
        assert_eq!(value, b"\x01\x04jobs\x04JSON\0");
        let row = KeyValue::new(&key, &value);
        let recipe = ids.decode(&row).unwrap();
        assert_eq!(recipe.subspace.bytes(), b"Q");
        assert_eq!(
            (&*recipe.name, recipe.codecs),
            ("jobs", vec!["JSON".to_owned(), String::new()])
        );
        for damaged in [
            &b""[..],
            b"\x02\x04jobs",
            b"\x01\x05jobs",
            b"\x01\x04jobs\x02J",
        ] {
            let row = KeyValue::new(&key, damaged);
            assert!(ids.decode(&row).is_err());
        }
    }
}
