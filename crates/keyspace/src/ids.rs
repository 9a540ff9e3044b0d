//! A registry of ids: which recipe has which subspace.
//!
//! # Key schema
//!
//! ```text
//! (ids, prefix) = name of the recipe, UTF-8
//!     prefix    tuple byte string: the prefix of the recipe's subspace
//! ```
//!
//! A recipe writes anywhere in the subspace that it was given. Two recipes in one, or one in a
//! subspace of the other, read each other's records as damaged ones, or clear them. Nothing keeps an
//! application from that but care, or a registry that all of its parts name.

use foundationdb_tuple::Subspace;

use crate::error::{Error, Result};
use crate::selector::{KeyValue, RangeQuery};
use crate::transaction::{Isolation, Transaction, key_after};

/// Knows which recipe has which subspace. See the [module documentation](self).
///
/// ```
/// use keyspace::ids::Ids;
/// use keyspace::{Error, Runner, Subspace};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let ids = &Ids::new(Subspace::from("ids"));
/// let (orders, open_orders) = (&Subspace::from("orders"), &Subspace::from(("orders", "open")));
/// runner.run(|tr| async move { ids.register(&tr, orders, "jobs").await }).await?;
/// let refused = runner.run(|tr| async move { ids.register(&tr, open_orders, "logs").await }).await;
/// assert!(matches!(refused, Err(Error::Overlap { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Ids {
    subspace: Subspace,
}

impl Ids {
    /// Returns the registry in a subspace, which must hold nothing else.
    #[must_use]
    pub fn new(subspace: Subspace) -> Self {
        Self { subspace }
    }

    /// Stages that a recipe has a subspace. Registering it again for the same recipe changes nothing.
    ///
    /// # Conflicts
    /// Reads the subspaces next to it, and writes its own: of two that overlap and are registered
    /// at the same time, one fails.
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
        for row in before.rows.iter().chain(&behind.rows) {
            let (registered, by) = self.decode(row)?;
            let is_own = registered.bytes() == subspace.bytes() && by == recipe;
            if !is_own && overlap(registered.bytes(), subspace.bytes()) {
                return Err(self.refusal(subspace, registered, by));
            }
        }
        tr.set(&key, recipe.as_bytes());
        Ok(())
    }

    /// Stages that a subspace is free.
    ///
    /// # Conflicts
    /// Writes it.
    pub fn unregister(&self, tr: &impl Transaction, subspace: &Subspace) {
        tr.clear(&self.key(subspace));
    }

    fn key(&self, subspace: &Subspace) -> Vec<u8> {
        self.subspace.pack(&subspace.bytes())
    }

    fn decode(&self, row: &KeyValue) -> Result<(Subspace, String)> {
        let expected = "expected the prefix of a subspace and the name of a recipe";
        let corrupt = || Error::corrupt(row.key(), expected);
        let prefix: Vec<u8> = self.subspace.unpack(row.key()).map_err(|_| corrupt())?;
        let recipe = String::from_utf8(row.value().to_vec()).map_err(|_| corrupt())?;
        Ok((Subspace::from_bytes(prefix), recipe))
    }

    fn refusal(&self, given: &Subspace, registered: Subspace, recipe: String) -> Error {
        Error::Overlap {
            given: Box::new(given.clone()),
            registered: Box::new(registered),
            recipe,
        }
    }
}

fn overlap(one: &[u8], other: &[u8]) -> bool {
    one.starts_with(other) || other.starts_with(one)
}
