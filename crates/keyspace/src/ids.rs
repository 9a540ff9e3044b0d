//! A registry of ids: which recipe has which subspace. Every recipe that is opened is in it, so that tools find
//! all queues of a store.
//!
//! # Key schema
//!
//! ```text
//! ids = the subspace of the registry, by default the tuple ("keyspace.ids",)
//!
//! (ids, prefix) = recipe
//!     prefix    tuple byte string: the prefix of the recipe's subspace
//!
//! recipe
//!     0       format, 01
//!     next    length of the recipe's name in a byte, then the name, UTF-8
//!     rest    the names of its codecs, each with its length in a byte before it
//! ```
//!
//! A recipe writes anywhere in the subspace that it was given. Two recipes in one, or one in a
//! subspace of the other, would read each other's records as damaged ones, or clear them. The registry
//! refuses the second of them.

use foundationdb_tuple::Subspace;

use crate::error::{Error, Result};
use crate::record::{self, push_text};
use crate::selector::{KeyValue, RangeQuery};
use crate::transaction::{Isolation, Transaction, key_after, read_all};

/// The format of a record.
const FORMAT: u8 = 1;

/// Knows which recipe has which subspace. See the [module documentation](self).
///
/// ```
/// use keyspace::ids::Ids;
/// use keyspace::{Error, Runner, Subspace};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let ids = &Ids::default();
/// let (orders, open_orders) = (&Subspace::from("orders"), &Subspace::from(("orders", "open")));
/// runner.run(|tr| async move { ids.register(&tr, orders, "jobs", &["JSON"]).await }).await?;
/// let refused = runner.run(|tr| async move { ids.register(&tr, open_orders, "logs", &[]).await }).await;
/// assert!(matches!(refused, Err(Error::Overlap { .. })));
///
/// let recipes = runner.run(|tr| async move { ids.recipes(&tr, None, 10).await }).await?;
/// assert_eq!((&recipes[0].subspace, &*recipes[0].name), (orders, "jobs"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Ids {
    subspace: Subspace,
}

/// A recipe that is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegisteredRecipe {
    /// Its subspace.
    pub subspace: Subspace,
    /// Its name: `hc-dequeue`, for example.
    pub name: String,
    /// The names of the codecs with which it was opened last.
    pub codecs: Vec<String>,
}

impl Default for Ids {
    /// Returns the registry that recipes are in unless they are opened with another one.
    fn default() -> Self {
        Self::new(Subspace::from(("keyspace.ids",)))
    }
}

impl Ids {
    /// Returns the registry in a subspace, which must hold nothing else.
    #[must_use]
    pub fn new(subspace: Subspace) -> Self {
        Self { subspace }
    }

    /// Stages that a recipe has a subspace, and which codecs. Registering it again for the same recipe changes
    /// nothing but the codecs.
    ///
    /// # Conflicts
    /// Reads the subspaces next to it, and writes its own if that changes: of two that overlap and are
    /// registered at the same time, one fails.
    ///
    /// # Errors
    /// [`Error::Overlap`] if another recipe has this subspace, one inside of it, or one that it is
    /// inside of; or if it overlaps the registry itself. [`Error::Corrupt`] if a record there is none
    /// of a registry.
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
        // What is there overlaps nothing else that is there. So of all that lie before, only the last
        // can be a prefix of this one: what is between the two would begin with that prefix, too.
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
            let registered = self.decode(row)?;
            let is_own = registered.subspace == *subspace && registered.name == recipe;
            if !is_own && overlap(registered.subspace.bytes(), subspace.bytes()) {
                return Err(self.refusal(subspace, registered.subspace, registered.name));
            }
        }
        tr.set(&key, &value);
        Ok(())
    }

    /// Returns a page of the recipes in the order of their prefixes: up to `limit` after the subspace `after`, or
    /// from the first one on.
    ///
    /// # Conflicts
    /// Reads the page.
    ///
    /// # Errors
    /// Those of the reads, and [`Error::Corrupt`] if a record there is none of a registry.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn recipes(
        &self,
        tr: &impl Transaction,
        after: Option<&Subspace>,
        limit: usize,
    ) -> Result<Vec<RegisteredRecipe>> {
        let (begin, end) = self.subspace.range();
        let begin = after.map_or(begin, |after| key_after(&self.key(after)));
        let query = RangeQuery::keys(begin, end).limit(limit);
        let rows = read_all(tr, query, Isolation::Serializable).await?;
        rows.iter().map(|row| self.decode(row)).collect()
    }

    /// Stages that a subspace is free, with all that is inside of it. An application that clears a subspace calls
    /// this in the same transaction.
    ///
    /// # Conflicts
    /// Writes the subspace and all those inside of it.
    pub fn unregister(&self, tr: &impl Transaction, subspace: &Subspace) {
        let key = self.key(subspace);
        // Without what ends the byte string, the packed prefix is what the longer ones begin with, too.
        let begin = &key[..key.len() - 1];
        tr.clear_range(begin, &after_all_with(begin));
    }

    fn key(&self, subspace: &Subspace) -> Vec<u8> {
        self.subspace.pack(&subspace.bytes())
    }

    fn decode(&self, row: &KeyValue) -> Result<RegisteredRecipe> {
        let corrupt = |_| Error::corrupt(row.key(), "expected the prefix of a subspace");
        let prefix: Vec<u8> = self.subspace.unpack(row.key()).map_err(corrupt)?;
        record::decode(row.key(), row.value(), FORMAT, |fields| {
            let name = fields.text()?.to_owned();
            let mut codecs = Vec::new();
            while !fields.rest().is_empty() {
                codecs.push(fields.text()?.to_owned());
            }
            Ok(RegisteredRecipe {
                subspace: Subspace::from_bytes(prefix),
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
    codecs.iter().for_each(|codec| push_text(&mut value, codec));
    value
}

/// Returns the key that comes after all keys with a prefix that is not all `ff`.
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
