//! Changing queues with consumers: single items, all items that match a filter, and the queue itself.

use std::time::SystemTime;

use export_queue::hc_dequeue::{
    Cancelled, Cursor, Error as DequeueError, ItemPage, ItemRef, ListedItem, PlaceKind, Settings,
};
use export_queue::keyspace::{Bytes, Database, Transaction, Tx};

use crate::error::{Error, Result};
use crate::look::{
    Combine, Console, Dequeue, Found, decode, missing_item, parse_aside, parse_sequence,
};
use crate::report;

/// How many rows one transaction of a bulk change looks at.
const ROWS_PER_STEP: usize = 200;

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

    /// Returns what a queue needs for the action, for errors.
    fn what(self) -> &'static str {
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
    /// [`Error::Malformed`].
    pub fn check_place(self, place: PlaceKind) -> Result<()> {
        if self.places().contains(&place) {
            return Ok(());
        }
        Err(Error::Malformed {
            what: "place",
            given: place.name().to_owned(),
            reason: format!("{} changes nothing there", self.name()),
        })
    }
}

/// Which items a bulk change is for. One without conditions is for all whose records decode: no action changes the
/// others.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Filter {
    /// The reason of their last failure contains this text.
    pub reason: Option<String>,
    /// Their payload, as JSON, contains this text.
    pub payload: Option<String>,
    /// They failed at least this often.
    pub attempts: u64,
    /// They were enqueued before this time.
    pub enqueued_before: Option<SystemTime>,
}

impl Filter {
    /// Returns whether it leaves nothing out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reason.is_none()
            && self.payload.is_none()
            && self.attempts == 0
            && self.enqueued_before.is_none()
    }

    fn matches(&self, codec: &str, listed: &ListedItem<Bytes>) -> bool {
        let Ok(status) = &listed.status else {
            return false;
        };
        let has_reason = |text: &String| {
            let failure = status.failure.as_ref();
            failure.is_some_and(|failure| failure.reason.contains(text))
        };
        let has_payload = |text: &String| {
            let bytes = status.value.as_ref();
            let value = bytes.ok().and_then(|bytes| decode(codec, bytes).value);
            value.is_some_and(|value| value.to_string().contains(text))
        };
        self.reason.as_ref().is_none_or(has_reason)
            && self.payload.as_ref().is_none_or(has_payload)
            && status.attempts >= self.attempts
            && (self.enqueued_before).is_none_or(|time| status.enqueued < time)
    }
}

impl<D: Database> Console<D> {
    /// Changes one item. Of a combine queue it redrives or purges what was set aside.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], a malformed reference or one of another queue;
    /// [`Error::Missing`] if the item is not where the action finds it; those of the store.
    pub async fn change(&self, name: &str, action: Action, item: &str) -> Result<report::Change> {
        let outcome = match self.find(name).await? {
            Found::Dequeue(found) => self.change_item(&found, action, item).await?,
            Found::Combine(found) if matches!(action, Action::Redrive | Action::Purge) => {
                self.change_aside(&found, action, item).await?
            }
            other => return Err(other.has_no(name, action.what())),
        };
        Ok(changed(name, action.name(), 1, outcome))
    }

    async fn change_item(
        &self,
        found: &Dequeue,
        action: Action,
        item: &str,
    ) -> Result<&'static str> {
        let reference = &item.parse::<ItemRef>()?;
        let change = |tr| async move { apply(&tr, found, action, reference).await };
        let outcome = self.runner.run(change).await?;
        outcome.ok_or_else(|| match action {
            Action::Cancel | Action::Expedite => missing_item(item),
            Action::Redrive | Action::Purge => missing("dead letter", item),
        })
    }

    async fn change_aside(
        &self,
        found: &Combine,
        action: Action,
        id: &str,
    ) -> Result<&'static str> {
        let (queue, aside) = (&found.queue, &parse_aside(id)?);
        let change = |tr: Tx<D::Transaction>| async move {
            match action {
                Action::Redrive => queue.redrive(&tr, aside).await,
                _ => queue.purge(&tr, aside).await,
            }
        };
        match (self.runner.run(change).await?, action) {
            (false, _) => Err(missing("record that was set aside", id)),
            (true, Action::Redrive) => Ok("it is tried again"),
            (true, _) => Ok("removed for good"),
        }
    }

    /// Removes a dead letter of a subscription. To redrive one takes its exporter, which the application has.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Malformed`] for a sequence that is none,
    /// [`Error::Missing`], and those of the store.
    pub async fn purge_letter(
        &self,
        name: &str,
        subscription: &str,
        sequence: &str,
    ) -> Result<report::Change> {
        let found = self.find_export(name, "subscriptions").await?;
        let subscription = &self.subscription(&found, subscription).await?;
        let parsed = &parse_sequence(sequence)?;
        let purge = |tr| async move { subscription.purge(&tr, parsed).await };
        match self.runner.run(purge).await? {
            true => Ok(changed(name, "purge", 1, "removed for good")),
            false => Err(missing("dead letter", sequence)),
        }
    }

    /// Pauses a subscription of an export queue, or lets it go on.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Missing`], and those of the store.
    pub async fn set_subscription_paused(
        &self,
        name: &str,
        subscription: &str,
        paused: bool,
    ) -> Result<report::Change> {
        let found = self.find_export(name, "subscriptions").await?;
        let subscription = &self.subscription(&found, subscription).await?;
        let change = |tr: Tx<D::Transaction>| async move {
            match paused {
                true => subscription.pause(&tr),
                false => subscription.resume(&tr),
            }
            Ok::<_, Error>(())
        };
        self.runner.run(change).await?;
        Ok(match paused {
            true => changed(name, "pause", 0, "nothing is exported until it is resumed"),
            false => changed(name, "resume", 0, "entries are exported again"),
        })
    }

    /// Counts the items in a place that match a filter.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], and those of the store.
    pub async fn count(&self, name: &str, place: PlaceKind, filter: &Filter) -> Result<u64> {
        let found = &self.find_dequeue(name, "items").await?;
        let (mut count, mut after) = (0, None);
        loop {
            let cursor = &after;
            let read = |tr: Tx<D::Transaction>| async move {
                let (items, next) = matching(&tr, found, place, cursor.as_ref(), filter).await?;
                Ok::<_, Error>((items.len() as u64, next))
            };
            let (matched, next) = self.reader.run(read).await?;
            count += matched;
            after = next;
            if after.is_none() {
                return Ok(count);
            }
        }
    }

    /// Changes all items in a place that match a filter, some in each transaction, and calls `progress` with the
    /// number of items that were changed so far. Dropping the future leaves those.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`]; [`Error::Malformed`] if the action changes nothing in that place;
    /// those of the store.
    pub async fn change_all(
        &self,
        name: &str,
        action: Action,
        place: PlaceKind,
        filter: &Filter,
        mut progress: impl FnMut(u64),
    ) -> Result<report::Change> {
        let found = &self.find_dequeue(name, "items").await?;
        action.check_place(place)?;
        let (mut count, mut after) = (0, None);
        loop {
            let cursor = &after;
            let step = |tr: Tx<D::Transaction>| async move {
                let (items, next) = matching(&tr, found, place, cursor.as_ref(), filter).await?;
                let mut changed = 0;
                for item in items {
                    changed += u64::from(apply(&tr, found, action, &item).await?.is_some());
                }
                Ok::<_, Error>((changed, next))
            };
            let (matched, next) = self.runner.run(step).await?;
            count += matched;
            progress(count);
            after = next;
            if after.is_none() {
                return Ok(changed(name, action.name(), count, "done"));
            }
        }
    }

    /// Pauses a queue, or lets it go on.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], and those of the store.
    pub async fn set_paused(&self, name: &str, paused: bool) -> Result<report::Change> {
        let found = &self.find_dequeue(name, "pause").await?;
        let change = |tr: Tx<D::Transaction>| async move {
            match paused {
                true => found.queue.pause(&tr),
                false => found.queue.resume(&tr),
            }
            Ok::<_, Error>(())
        };
        self.runner.run(change).await?;
        Ok(match paused {
            true => changed(
                name,
                "pause",
                0,
                "nothing is granted until the queue is resumed",
            ),
            false => changed(name, "resume", 0, "items are granted again"),
        })
    }

    /// Changes the settings of a queue: `edit` gets those that are stored, and returns those that it shall have.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], settings that no session can follow, and those of the store.
    pub async fn configure(
        &self,
        name: &str,
        edit: impl Fn(Settings) -> Settings + Send + Sync,
    ) -> Result<report::Settings> {
        let found = &self.find_dequeue(name, "settings").await?;
        let edit = &edit;
        let change = |tr: Tx<D::Transaction>| async move {
            let settings = edit(found.queue.settings(&tr).await?);
            found.queue.configure(&tr, &settings).await
        };
        self.runner.run::<_, DequeueError, _, _, _>(change).await?;
        self.settings(name).await
    }
}

/// Returns the items of a page that match a filter, and where the next page begins.
async fn matching(
    tr: &impl Transaction,
    found: &Dequeue,
    place: PlaceKind,
    after: Option<&Cursor>,
    filter: &Filter,
) -> Result<(Vec<ItemRef>, Option<Cursor>)> {
    let page: ItemPage<Bytes> = found.queue.list(tr, place, after, ROWS_PER_STEP).await?;
    let matching = page.items.iter();
    let matching = matching.filter(|listed| filter.matches(&found.codec, listed));
    Ok((matching.map(|listed| listed.item).collect(), page.next))
}

/// Stages an action on an item. Returns what it does, or `None` if the item is not where the action finds it.
async fn apply(
    tr: &impl Transaction,
    found: &Dequeue,
    action: Action,
    item: &ItemRef,
) -> Result<Option<&'static str>> {
    let queue = &found.queue;
    Ok(match action {
        Action::Cancel => match queue.cancel(tr, item).await? {
            Cancelled::Removed => Some("removed from the queue"),
            Cancelled::Requested => Some("its session is asked to let go of it"),
            _ => None,
        },
        Action::Expedite => (queue.expedite(tr, item).await?).then_some("ready at once"),
        Action::Redrive => (queue.redrive(tr, item).await?).then_some("back in the queue"),
        Action::Purge => (queue.purge(tr, item).await?).then_some("removed for good"),
    })
}

fn missing(what: &'static str, given: &str) -> Error {
    Error::Missing {
        what,
        given: given.to_owned(),
        hint: ": it was redriven or purged, or is elsewhere",
    }
}

fn changed(queue: &str, action: &str, changed: u64, outcome: &str) -> report::Change {
    report::Change {
        queue: queue.to_owned(),
        action: action.to_owned(),
        changed,
        outcome: outcome.to_owned(),
    }
}
