//! Where queued items stand.
//!
//! An item without a group stands among those of its priority, by its id, until it is handed out. If it comes back, it
//! waits in a *lane* with the others that have come back. An item with a group always waits in the lane of its group. A
//! lane has its items by rank and id; those that have a slot come first.

use microqueue::keyspace::{self, Bytes};

use crate::items::priority::{Priority, RANK_OF_SLOT};
use crate::items::record::Record;

/// Where a queued item stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spot {
    /// Among the items of a priority that are in no lane.
    Priority(Priority),
    Lane {
        /// Empty for the items without a group that have come back.
        group: Bytes,
        /// The rank of the item's priority, or [`RANK_OF_SLOT`].
        rank: u8,
    },
}

impl Spot {
    /// The spot of an item without a group, a priority or a delivery. Only these items have no pointer.
    pub(crate) const DEFAULT: Self = Self::Priority(Priority::DEFAULT);

    /// Returns where an item stands if it is queued.
    pub(crate) fn of(record: &Record) -> Self {
        if record.group.is_empty() && record.recent_deliveries() == 0 {
            return Self::Priority(record.priority);
        }
        Self::Lane {
            group: record.group.clone(),
            rank: if record.has_slot {
                RANK_OF_SLOT
            } else {
                record.priority.rank()
            },
        }
    }

    /// Applies to a record what the key of its row says.
    ///
    /// # Errors
    /// [`Corrupt`](keyspace::Error::Corrupt) if the record contradicts the key of a lane.
    pub(crate) fn apply(&self, row: &[u8], record: &mut Record) -> keyspace::Result<()> {
        match self {
            Self::Priority(priority) => {
                record.priority = *priority;
                // An item with a group came here while its record did not decode.
                record.group = Bytes::new();
                record.has_slot = false;
                Ok(())
            }
            Self::Lane { group, rank } => {
                if let Some(priority) = Priority::of_rank(*rank) {
                    record.priority = priority;
                }
                if record.group == group && record.has_slot == (*rank == RANK_OF_SLOT) {
                    return Ok(());
                }
                let reason = "expected an item that stands there";
                Err(keyspace::Error::corrupt(row, reason))
            }
        }
    }
}
