//! Changing queues with consumers: single items, all items that match a filter, limits of keys, batches, and the queue
//! itself.

mod batches;
mod limits;

use std::time::{Duration, SystemTime};

use export_queue::hc_dequeue::{
    Cancelled, Cursor, Error as DequeueError, ItemPage, ItemRef, ListedItem, PlaceKind, Scheduled,
    Settings,
};
use export_queue::keyspace::names::parse_bytes;
use export_queue::keyspace::{Bytes, Transaction, Tx};
use futures::future::try_join_all;
use futures::try_join;

pub use self::limits::LimitChange;
use crate::error::{Error, Result};
use crate::look::{
    Combine, Console, Dequeue, Found, MAX_ROWS, count_of, decode, missing_item, parse_aside,
    parse_item, parse_sequence,
};
use crate::report;

/// How many rows one transaction of a bulk change looks at, if it does not conflict.
const ROWS_PER_STEP: usize = 128;

/// The unit of the times of grants, which are rounded down.
const GRANT_TIME_UNIT: Duration = Duration::from_millis(1);

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

/// The items that a bulk change is for: those of a place that match a filter, up to the last one that was there when
/// they were selected.
#[derive(Debug, Clone)]
pub struct Selection {
    place: PlaceKind,
    filter: Filter,
    /// When they were selected.
    begun: SystemTime,
    /// The last item of the place at that time, if it had any.
    end: Option<Cursor>,
    count: u64,
}

impl Selection {
    /// Returns how many items there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns what a bulk change reports that has changed this many items.
    fn outcome(&self, changed: u64) -> String {
        match self.count.saturating_sub(changed) {
            0 => "done".to_owned(),
            left => format!(
                "{left} of the {} that were selected had moved or ended: pause the queue and run it again to reach all",
                self.count
            ),
        }
    }

    /// Returns the items among up to `limit` rows after a cursor, and where the next page begins.
    async fn page(
        &self,
        tr: &impl Transaction,
        found: &Dequeue,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<(Vec<ItemRef>, Option<Cursor>)> {
        let Some(end) = &self.end else {
            return Ok((Vec::new(), None));
        };
        let queue = &found.queue;
        let page: ItemPage<Bytes> = queue
            .list_until(tr, self.place, after, Some(end), limit)
            .await?;
        let items = page
            .items
            .iter()
            .filter(|listed| self.contains(&found.codec, listed));
        Ok((items.map(|listed| listed.item).collect(), page.next))
    }

    fn contains(&self, codec: &str, listed: &ListedItem<Bytes>) -> bool {
        self.filter.matches(codec, listed) && !self.has_come_back(listed)
    }

    /// Returns whether a delayed item failed after the selection. It is later in the order than it was, so that a bulk
    /// change would meet it again.
    fn has_come_back(&self, listed: &ListedItem<Bytes>) -> bool {
        let status = listed.status.as_ref();
        let granted = status.ok().and_then(|status| status.granted);
        let unit_before = self.begun.checked_sub(GRANT_TIME_UNIT);
        let may_be_later = |granted| unit_before.is_none_or(|before| granted > before);
        self.place == PlaceKind::Delayed && granted.is_some_and(may_be_later)
    }
}

impl Console {
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
        let reference = &parse_item(item)?;
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
        let queue = &found.queue;
        let aside = &parse_aside(id)?;
        let change = |tr: Tx<_>| async move {
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
        if self.runner.run(purge).await? {
            Ok(changed(name, "purge", 1, "removed for good"))
        } else {
            Err(missing("dead letter", sequence))
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
        let change = |tr: Tx<_>| async move {
            if paused {
                subscription.pause(&tr);
            } else {
                subscription.resume(&tr);
            }
            Ok::<_, Error>(())
        };
        self.runner.run(change).await?;
        Ok(if paused {
            changed(name, "pause", 0, "nothing is exported until it is resumed")
        } else {
            changed(name, "resume", 0, "entries are exported again")
        })
    }

    /// Selects the items of a place that match a filter, for [`change_all`](Self::change_all), and counts them. Without
    /// conditions the count is that of the queue's counter; otherwise every record of the place is read.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], and those of the store.
    pub async fn select(&self, name: &str, place: PlaceKind, filter: &Filter) -> Result<Selection> {
        let found = &self.find_dequeue(name, "items").await?;
        let read = |tr: Tx<_>| async move {
            let queue = &found.queue;
            Ok::<_, Error>(try_join!(queue.stats(&tr), queue.end(&tr, place))?)
        };
        let begun = self.runner.environment().wall();
        let (stats, end) = self.reader.run(read).await?;
        let mut selection = Selection {
            place,
            filter: filter.clone(),
            begun,
            end,
            count: 0,
        };
        match count_of(place, &stats).filter(|_| filter.is_empty()) {
            Some(count) => selection.count = count,
            None => selection.count = self.count(found, &selection).await?,
        }
        Ok(selection)
    }

    async fn count(&self, found: &Dequeue, selection: &Selection) -> Result<u64> {
        let mut count = 0;
        let mut after = None;
        loop {
            let cursor = &after;
            let read = |tr: Tx<_>| async move {
                let page = selection.page(&tr, found, cursor.as_ref(), MAX_ROWS);
                let (items, next) = page.await?;
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

    /// Changes the items that were selected and still match, some in each transaction, and calls `progress` with the
    /// number of items that were changed so far. Dropping the future leaves those.
    ///
    /// Items that come into the place after all that were there at the selection are left alone. An expedited item
    /// that comes back is not expedited again.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`]; [`Error::WrongPlace`] if the action changes nothing in that place;
    /// those of the store.
    pub async fn change_all(
        &self,
        name: &str,
        action: Action,
        selection: &Selection,
        mut progress: impl FnMut(u64),
    ) -> Result<report::Change> {
        let found = &self.find_dequeue(name, "items").await?;
        action.check_place(selection.place)?;
        let mut count = 0;
        let mut after = None;
        loop {
            let cursor = &after;
            let step = |tr: Tx<_>| async move {
                // Fewer rows conflict with fewer grants, so that a busy queue lets the step commit in the end.
                let failed = tr
                    .attempt()
                    .number
                    .saturating_sub(1)
                    .min(ROWS_PER_STEP.ilog2());
                let rows = ROWS_PER_STEP >> failed;
                let (items, next) = selection.page(&tr, found, cursor.as_ref(), rows).await?;
                let changes = items.iter().map(|item| apply(&tr, found, action, item));
                let changed = try_join_all(changes).await?;
                Ok::<_, Error>((changed.into_iter().flatten().count() as u64, next))
            };
            let (changed_here, next) = self.runner.run(step).await?;
            count += changed_here;
            progress(count);
            after = next;
            if after.is_none() {
                return Ok(changed(
                    name,
                    action.name(),
                    count,
                    &selection.outcome(count),
                ));
            }
        }
    }

    /// Pauses a queue, or lets it go on.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], and those of the store.
    pub async fn set_paused(&self, name: &str, paused: bool) -> Result<report::Change> {
        let found = &self.find_dequeue(name, "pause").await?;
        let change = |tr: Tx<_>| async move {
            if paused {
                found.queue.pause(&tr);
            } else {
                found.queue.resume(&tr);
            }
            Ok::<_, Error>(())
        };
        self.runner.run(change).await?;
        Ok(if paused {
            changed(
                name,
                "pause",
                0,
                "nothing is granted until the queue is resumed",
            )
        } else {
            changed(name, "resume", 0, "items are granted again")
        })
    }

    /// Gives an item that is queued, delayed or dead another priority.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], a priority out of range, a malformed reference or one of another
    /// queue; [`Error::Missing`] if no such item is queued, delayed or dead; those of the store.
    pub async fn prioritize(&self, name: &str, item: &str, priority: i8) -> Result<report::Change> {
        let found = &self.find_dequeue(name, "priorities").await?;
        let reference = &parse_item(item)?;
        let set = |tr| async move { found.queue.set_priority(&tr, reference, priority).await };
        if self.runner.run(set).await? {
            let outcome = &format!("it has priority {priority}");
            return Ok(changed(name, "prioritize", 1, outcome));
        }
        Err(Error::Missing {
            what: "item",
            given: item.to_owned(),
            hint: "a session holds it, or it is done or was cancelled",
        })
    }

    /// Lets a dedupe id be enqueued again that is retained after the completion of its item. The id is text, or `0x`
    /// and hexadecimal digits.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], an id of an invalid length, [`Error::Missing`] if the id is not
    /// retained, and those of the store.
    pub async fn release_dedupe(&self, name: &str, id: &str) -> Result<report::Change> {
        let found = &self.find_dequeue(name, "dedupe ids").await?;
        let bytes = &parse_bytes(id);
        let release = |tr| async move { found.queue.release_dedupe(&tr, bytes).await };
        if self.runner.run(release).await? {
            let outcome = "the id can be enqueued again";
            return Ok(changed(name, "release-dedupe", 0, outcome));
        }
        Err(Error::Missing {
            what: "retained dedupe id",
            given: id.to_owned(),
            hint: "it is free, or an item has it: cancel or purge that item",
        })
    }

    /// Sets the next time of a schedule right, if it is later than its expression allows because a wall clock was
    /// ahead.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Missing`], a schedule that does not decode, and those of
    /// the store.
    pub async fn reschedule(&self, name: &str, schedule: &str) -> Result<report::Change> {
        let found = &self.find_dequeue(name, "schedules").await?;
        let change = |tr: Tx<_>| async move {
            let queue = &found.queue;
            let Some(entry) = queue.find_schedule(&tr, schedule).await? else {
                return Ok(None);
            };
            let payload = entry.payload.unwrap_or_else(|error| error.bytes);
            let scheduled = queue
                .schedule(&tr, schedule, &entry.schedule, &payload)
                .await?;
            Ok::<_, Error>(Some(scheduled))
        };
        match self.runner.run(change).await? {
            None => Err(Error::Missing {
                what: "schedule",
                given: schedule.to_owned(),
                hint: "`console schedules` lists those that there are",
            }),
            Some(Scheduled::Unchanged) => {
                Ok(changed(name, "reschedule", 0, "its next time was right"))
            }
            Some(_) => Ok(changed(name, "reschedule", 0, "it fires at its next time")),
        }
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
        let change = |tr: Tx<_>| async move {
            let settings = edit(found.queue.settings(&tr).await?);
            found.queue.configure(&tr, &settings).await
        };
        self.runner.run::<_, DequeueError, _, _, _>(change).await?;
        self.settings(name).await
    }
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
        hint: "it was redriven or purged, or is elsewhere",
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
