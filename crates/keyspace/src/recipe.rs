//! Opening a recipe: what the `open` of every recipe has in common.
//!
//! A recipe that has settings stores them under a key of its subspace when it is first opened, and
//! every later opening compares its own with them. All of that happens in one transaction.

use bytes::Bytes;
use foundationdb_tuple::Subspace;

use crate::codec::MessagePack;
use crate::error::Result;
use crate::ids::Ids;
use crate::transaction::{Isolation, Transaction};

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
    ids: Option<Ids>,
}

impl OpenOptions {
    /// Begins with [`MessagePack`] and without a registry.
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

    /// Takes the subspace in a registry of ids, in the transaction that opens the recipe.
    /// [`Error::Overlap`](crate::Error::Overlap) if another recipe has it, a part of it, or a subspace
    /// around it.
    #[must_use]
    pub fn ids(mut self, ids: Ids) -> Self {
        self.ids = Some(ids);
        self
    }

    /// Takes the subspace in the registry, if there is one, for a recipe of this name.
    ///
    /// # Conflicts
    /// As [`Ids::take`].
    ///
    /// # Errors
    /// As [`Ids::take`].
    ///
    /// # Cancel safety
    /// Dropping the future stages nothing.
    pub async fn take_id(
        &self,
        tr: &impl Transaction,
        subspace: &Subspace,
        recipe: &str,
    ) -> Result<()> {
        match &self.ids {
            Some(ids) => ids.take(tr, subspace, recipe).await,
            None => Ok(()),
        }
    }

    /// Returns the codec.
    pub fn get_codec(&self) -> &C {
        &self.codec
    }
}

/// Stages settings under a key that has none, or returns those that are stored there if they are
/// other ones: `None` means that the two agree.
///
/// # Conflicts
/// Reads the key, and writes it if there are no settings.
///
/// # Errors
/// Those of the read.
///
/// # Cancel safety
/// Dropping the future stages nothing.
pub async fn agree(tr: &impl Transaction, key: &[u8], given: &[u8]) -> Result<Option<Bytes>> {
    let Some(stored) = tr.get(key, Isolation::Serializable).await? else {
        tr.set(key, given);
        return Ok(None);
    };
    Ok((stored != given).then_some(stored))
}
