//! Changing all items of a group, a batch or a kind.

use export_queue::hc_dequeue::{ItemsOf, PlaceKind};

use super::action::Action;
use super::selection::Filter;
use crate::error::Result;
use crate::look::Console;
use crate::report::Change;

/// What an operator does to all items of a group, a batch or a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ItemsAction {
    /// Removes those that no session holds, dead letters among them, and asks sessions to let go of the others.
    Cancel,
    /// Removes those that are queued or delayed.
    Clear,
    /// Puts their dead letters back into the queue.
    Redrive,
    /// Removes their dead letters.
    Purge,
}

impl ItemsAction {
    /// All actions.
    pub const ALL: [Self; 4] = [Self::Cancel, Self::Clear, Self::Redrive, Self::Purge];

    /// Returns the name of the action: `cancel`, `clear`, `redrive` or `purge`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Clear => "clear",
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
            Self::Cancel => {
                "Removes all for good, also delayed items and dead letters. Sessions are asked to let go of those that \
                 they hold."
            }
            Self::Clear => {
                "Removes queued and delayed items for good. Held items and dead letters stay."
            }
            Self::Redrive => {
                "Returns all dead letters to the queue, with their failed attempts reset to zero."
            }
            Self::Purge => "Removes all dead letters for good. This cannot be undone.",
        }
    }

    /// Returns the places whose items it changes.
    #[must_use]
    pub fn places(self) -> &'static [PlaceKind] {
        match self {
            Self::Cancel => &[
                PlaceKind::Queued,
                PlaceKind::Delayed,
                PlaceKind::Held,
                PlaceKind::Dead,
            ],
            Self::Clear => &[PlaceKind::Queued, PlaceKind::Delayed],
            Self::Redrive | Self::Purge => &[PlaceKind::Dead],
        }
    }
}

impl Console {
    /// Changes all items of a group, a batch or a kind, in every [place](ItemsAction::places) of the action and in as
    /// many transactions as necessary. Leaves out items that are enqueued after the call starts, and may leave out one
    /// that a session takes and gives back meanwhile. Dropping the future leaves those that were changed so far.
    ///
    /// # Errors
    /// [`Error::NoQueue`](crate::Error::NoQueue), [`Error::WrongRecipe`](crate::Error::WrongRecipe), a group name or a
    /// kind of an invalid length, a batch of another queue, and those of the store.
    pub async fn change_items_of(
        &self,
        name: &str,
        action: ItemsAction,
        items: &ItemsOf,
    ) -> Result<Change> {
        let queue = &self.find_dequeue(name, "items").await?.queue;
        let runner = &self.runner;
        let (changed, outcome) = match action {
            ItemsAction::Cancel => {
                let cancelled = queue.cancel_items(runner, items).await?;
                let changed = cancelled.removed + cancelled.requested;
                (changed, cancelled_text(cancelled.requested))
            }
            ItemsAction::Clear => {
                let removed = queue.clear_items(runner, items).await?;
                (removed, "removed from the queue".to_owned())
            }
            ItemsAction::Redrive => {
                let redriven = queue.redrive_items(runner, items).await?;
                (redriven, "back in the queue".to_owned())
            }
            ItemsAction::Purge => {
                let filter = Filter {
                    items: Some(items.clone()),
                    ..Filter::default()
                };
                let letters = self.select(name, PlaceKind::Dead, &filter).await?;
                return self.change_all(name, Action::Purge, &letters, |_| {}).await;
            }
        };
        Ok(Change::new(name, action.name(), changed, &outcome))
    }
}

/// Returns what a cancellation reports that has asked sessions to let go of this many items.
fn cancelled_text(requested: u64) -> String {
    match requested {
        0 => "removed from the queue".to_owned(),
        _ => format!(
            "removed from the queue, {requested} of them when their sessions let go of them"
        ),
    }
}
