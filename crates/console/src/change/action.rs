//! What an operator does to an item.

use export_queue::hc_dequeue::{Cancelled, ItemRef, PlaceKind};
use export_queue::keyspace::Transaction;

use crate::error::{Error, Result};
use crate::look::Dequeue;

/// What an operator does to an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Removes an item that is queued or delayed, and asks the session that holds one to let go of it.
    Cancel,
    /// Makes a delayed item ready.
    Expedite,
    /// Puts a dead letter back into the queue.
    Redrive,
    /// Removes a dead letter.
    Purge,
}

impl Action {
    /// All actions.
    pub const ALL: [Self; 4] = [Self::Cancel, Self::Expedite, Self::Redrive, Self::Purge];

    /// Returns the name of the action: `cancel`, `expedite`, `redrive` or `purge`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Expedite => "expedite",
            Self::Redrive => "redrive",
            Self::Purge => "purge",
        }
    }

    /// Returns the action of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }

    /// Returns what the action does, in words.
    pub(crate) fn explanation(self) -> &'static str {
        match self {
            Self::Cancel => "Removes the item. A session that holds it is asked to let go of it.",
            Self::Expedite => "Makes the item ready at once.",
            Self::Redrive => {
                "Returns the item to the queue, with its failed attempts reset to zero."
            }
            Self::Purge => "Removes the item for good. This cannot be undone.",
        }
    }

    /// Returns what a queue needs for the action, for errors.
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::Cancel | Self::Expedite => "items by reference",
            Self::Redrive | Self::Purge => "dead letters without a subscription",
        }
    }

    /// Returns the places whose items it changes. The first one is that of a bulk change that names none.
    #[must_use]
    pub fn places(self) -> &'static [PlaceKind] {
        match self {
            Self::Cancel => &[PlaceKind::Queued, PlaceKind::Delayed, PlaceKind::Held],
            Self::Expedite => &[PlaceKind::Delayed],
            Self::Redrive | Self::Purge => &[PlaceKind::Dead],
        }
    }

    /// Refuses a place whose items the action does not change.
    ///
    /// # Errors
    /// [`Error::WrongPlace`].
    pub fn check_place(self, place: PlaceKind) -> Result<()> {
        if self.places().contains(&place) {
            return Ok(());
        }
        let places: Vec<_> = self.places().iter().map(|place| place.name()).collect();
        Err(Error::WrongPlace {
            action: self.name(),
            place: place.name(),
            places: places.join(", "),
        })
    }
}

/// Stages an action on an item. Returns what it does, or `None` if the item is not where the action finds it.
pub(super) async fn apply(
    tr: &impl Transaction,
    found: &Dequeue,
    action: Action,
    item: &ItemRef,
) -> Result<Option<&'static str>> {
    let queue = &found.queue;
    let (is_there, done) = match action {
        Action::Cancel => {
            return Ok(match queue.cancel(tr, item).await? {
                Cancelled::Removed => Some("removed from the queue"),
                Cancelled::Requested => Some("its session is asked to let go of it"),
                _ => None,
            });
        }
        Action::Expedite => (queue.expedite(tr, item).await?, "ready at once"),
        Action::Redrive => (queue.redrive(tr, item).await?, "back in the queue"),
        Action::Purge => (queue.purge(tr, item).await?, "removed for good"),
    };
    Ok(if is_there { Some(done) } else { None })
}
