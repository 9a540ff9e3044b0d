//! Items that belong together, wherever they are: those of a group, the members of a batch, or those of a kind.

use microqueue::keyspace::Bytes;

use crate::items::batch::BatchRef;
use crate::items::error::Result;
use crate::items::keys::{Keys, check_group};
use crate::items::part::Part;
use crate::items::record::Record;
use crate::queue::stage::kind_named;

/// Items that belong together, wherever they are: what listings show and what changes of many items change.
///
/// An item whose record does not decode belongs to nothing.
///
/// ```
/// use hc_dequeue::ItemsOf;
///
/// let of_tenant = ItemsOf::group("tenant 7");
/// # drop(of_tenant);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ItemsOf {
    /// The items of a [group](crate::Enqueue::with_group). Those that are queued have a range of their own; elsewhere,
    /// they are found among all items.
    Group(Bytes),
    /// The members of a [batch](crate::Enqueue::with_batch), also those that have ended while they were. They are found
    /// among all items. A batch in it is none of them, and neither are its members.
    Batch(BatchRef),
    /// The items of a [kind](crate::Enqueue::with_kind). They are found among all items. Those that were enqueued under
    /// another name of the same type of job are none of them.
    Kind(String),
}

impl ItemsOf {
    /// Returns the items of a group.
    #[must_use]
    pub fn group(group: impl AsRef<[u8]>) -> Self {
        Self::Group(Bytes::copy_from_slice(group.as_ref()))
    }

    /// Returns the members of a batch.
    #[must_use]
    pub const fn batch(batch: &BatchRef) -> Self {
        Self::Batch(*batch)
    }

    /// Returns the items of a kind.
    #[must_use]
    pub fn kind(kind: impl Into<String>) -> Self {
        Self::Kind(kind.into())
    }

    /// # Errors
    /// [`Error::Group`](crate::Error::Group), [`Error::ForeignRef`](crate::Error::ForeignRef),
    /// [`Error::Kind`](crate::Error::Kind).
    pub(crate) fn check(&self, keys: &Keys) -> Result<()> {
        match self {
            Self::Group(group) => check_group(group),
            Self::Batch(batch) => batch.id_in(keys).map(drop),
            Self::Kind(kind) => kind_named(kind).map(drop),
        }
    }

    /// Returns whether an item belongs to them that has this record.
    pub(crate) fn have(&self, record: &Record) -> bool {
        match self {
            Self::Group(group) => record.group == *group,
            Self::Batch(batch) => {
                let member = record.member;
                member.is_some_and(|member| member.batch == batch.id())
            }
            Self::Kind(kind) => record.kind.name() == *kind,
        }
    }

    /// Returns the range of a part of the queue in which they are, or `None` if none of them is in the part.
    pub(crate) fn range_in(&self, keys: &Keys, part: Part) -> Option<(Vec<u8>, Vec<u8>)> {
        match (self, part) {
            (Self::Group(group), Part::Lanes) => Some(keys.items_of_lane(group)),
            (Self::Group(_), Part::QueuedAbove | Part::Queued | Part::QueuedBelow) => None,
            _ => Some(keys.part(part)),
        }
    }
}
