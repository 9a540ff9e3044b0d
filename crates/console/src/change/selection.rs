//! Changing all items that match a filter.

use std::time::{Duration, SystemTime};

use export_queue::hc_dequeue::{
    Cursor, ItemPage, ItemRef, ItemsOf, ListedItem, Listing, PlaceKind,
};
use export_queue::keyspace::{Bytes, Transaction, Tx};
use futures::future::try_join_all;
use futures::try_join;

use super::action::{Action, apply};
use crate::error::{Error, Result};
use crate::look::{Console, Dequeue, MAX_ROWS, count_of, decode};
use crate::report::Change;

/// How many rows one transaction of a bulk change looks at, if it does not conflict.
const ROWS_PER_STEP: usize = 128;

/// The unit of the times of grants, which are rounded down.
const GRANT_TIME_UNIT: Duration = Duration::from_millis(1);

/// Which items a bulk change is for. One without conditions is for all whose records decode: no action changes the
/// others.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Filter {
    /// They belong to this group, this batch or this kind.
    pub items: Option<ItemsOf>,
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
        self.items.is_none()
            && self.reason.is_none()
            && self.payload.is_none()
            && self.attempts == 0
            && self.enqueued_before.is_none()
    }

    /// Returns the listing of the items in a place among which those are that match.
    fn listing(&self, place: PlaceKind) -> Listing {
        let listing = Listing::new(place);
        match &self.items {
            Some(items) => listing.with_items_of(items.clone()),
            None => listing,
        }
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
        let listing = self.filter.listing(self.place).with_last(end.clone());
        let page: ItemPage<Bytes> = found.queue.list(tr, listing, after, limit).await?;
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
    /// Selects the items of a place that match a filter, for [`change_all`](Self::change_all), and counts them. Without
    /// conditions the count is that of the queue's counter; otherwise every record of the place is read.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], and those of the store.
    pub async fn select(&self, name: &str, place: PlaceKind, filter: &Filter) -> Result<Selection> {
        let found = &self.find_dequeue(name, "items").await?;
        let listing = &filter.listing(place);
        let read = |tr: Tx<_>| async move {
            let queue = &found.queue;
            Ok::<_, Error>(try_join!(queue.stats(&tr), queue.end(&tr, listing))?)
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
        selection.count = match count_of(place, &stats) {
            Some(count) if filter.is_empty() => count,
            _ => self.count(found, &selection).await?,
        };
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
    ) -> Result<Change> {
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
                return Ok(Change::new(
                    name,
                    action.name(),
                    count,
                    &selection.outcome(count),
                ));
            }
        }
    }
}
