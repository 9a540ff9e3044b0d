//! Enqueues items for due times of schedules.

use futures::future::try_join_all;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    Bytes, ConflictKind, Isolation, KeyValue, RangeQuery, StreamingMode, Transaction,
};

use super::operations::write;
use super::record::{ScheduleCodec, ScheduleRecord};
use super::times::Times;
use crate::items::changes::Changes;
use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::{MAX_STEP_BYTES, MAX_STEP_ITEMS};
use crate::queue::enqueue_options::Enqueued;
use crate::queue::stage::{NewItem, record_of, stage};
use crate::session::wall::wall_millis;

/// How many schedules one transaction reads.
pub(crate) const MAX_FIRED_SCHEDULES: usize = 32;

/// How many schedules that are not due are checked in one transaction.
const MAX_CHECKED_SCHEDULES: usize = 100;

/// The result of a firing.
#[derive(Debug, Default)]
pub(crate) struct Fired {
    /// How many items were enqueued, or replaced by ones with the same dedupe id.
    pub(crate) items: usize,
    /// The times for which nothing was enqueued, by schedule.
    pub(crate) skipped: Vec<SkippedTime>,
    /// When the first schedule fires that was read and is not due yet.
    pub(crate) next_millis: Option<u64>,
    /// Where the next firing continues, if there may be more due schedules.
    pub(crate) after: Option<Vec<u8>>,
    /// Whether schedules that were read are still due, since they have more times than fit in a transaction.
    pub(crate) has_left: bool,
    /// Schedules that do not decode, or whose expression or time zone this version does not understand, or whose times
    /// cannot be determined. They stay unchanged.
    pub(crate) refused: Vec<Error>,
}

/// A time for which a schedule has enqueued nothing.
#[derive(Debug)]
pub(crate) struct SkippedTime {
    pub(crate) schedule: String,
    pub(crate) time_millis: u64,
    /// Why: the queue was full. `None` if an item has the dedupe id.
    pub(crate) full: Option<Error>,
}

/// An entry of the index by next time.
struct Entry {
    time: u64,
    name: String,
    key: Vec<u8>,
}

/// Enqueues items for the due times of the next schedules after the key `after` of the index, or of the first ones.
/// Works while the queue is paused, too: the items wait.
///
/// # Conflicts
/// Reads and writes each schedule that fires. An item with options also as
/// [`enqueue_with`](crate::Queue::enqueue_with).
pub(crate) async fn fire_due(
    tr: &impl Transaction,
    keys: &Keys,
    after: Option<&[u8]>,
) -> Result<Fired> {
    let now = wall_millis(&keys.env);
    let (begin, end) = keys.part(Part::FireTimes);
    let query = RangeQuery::keys(after.map_or(begin, key_after), end)
        .limit(MAX_FIRED_SCHEDULES)
        .mode(StreamingMode::WantAll);
    // Safe as a snapshot read: each schedule that fires is read serializably.
    let page = tr.get_range(&query, Isolation::Snapshot).await?;
    let mut firing = Firing {
        now,
        bytes_left: MAX_STEP_BYTES,
        tried: 0,
        changes: Changes::default(),
        fired: Fired::default(),
    };
    let mut due = Vec::new();
    for row in &page.rows {
        match parse_entry(keys, row) {
            Ok(entry) if entry.time > now => {
                firing.fired.next_millis = Some(entry.time);
                break;
            }
            Ok(entry) => due.push(entry),
            Err(error) => firing.fired.refused.push(error),
        }
    }
    if firing.fired.next_millis.is_none() {
        firing.fired.after = page.next_after().map(<[u8]>::to_vec);
    }
    let rows = due.iter().map(|entry| {
        let key = keys.schedule(&entry.name);
        async move { tr.get(&key, Isolation::Serializable).await }
    });
    for (entry, row) in due.iter().zip(try_join_all(rows).await?) {
        Box::pin(firing.fire(tr, keys, entry, row)).await?;
    }
    firing.changes.stage(tr, keys);
    Ok(firing.fired)
}

fn parse_entry(keys: &Keys, row: &KeyValue) -> Result<Entry> {
    let (time, name) = keys.parse_fire_time(row.key())?;
    let key = row.key().to_vec();
    Ok(Entry { time, name, key })
}

/// The limits and results of one firing.
struct Firing {
    now: u64,
    bytes_left: usize,
    /// For how many times items were staged or skipped.
    tried: usize,
    changes: Changes,
    fired: Fired,
}

impl Firing {
    /// Fires the due times of the schedule of an entry, whose row was read.
    async fn fire(
        &mut self,
        tr: &impl Transaction,
        keys: &Keys,
        entry: &Entry,
        row: Option<Bytes>,
    ) -> Result<()> {
        let stored = match row.map(|row| decode(keys, &entry.name, row)).transpose() {
            Ok(stored) => stored,
            Err(error) => {
                self.fired.refused.push(error);
                return Ok(());
            }
        };
        let stored = stored.filter(|(stored, _)| stored.next_millis == Some(entry.time));
        let Some((stored, times)) = stored else {
            // The index and the rows were read at the same version, so that this entry belongs to no schedule.
            tr.add_conflict_key(ConflictKind::Read, &entry.key)?;
            tr.clear(&entry.key);
            return Ok(());
        };
        let max = self.room(stored.payload.len());
        if max == 0 {
            self.fired.has_left = true;
            return Ok(());
        }
        let missed = stored.schedule.missed();
        let due = times.due(entry.time, self.now, missed, max, &stored.fired);
        let mut due = match due {
            Ok(due) => due,
            Err(error) => {
                self.fired.refused.push(error);
                return Ok(());
            }
        };
        let mut record = stored.clone();
        let mut is_refused = false;
        for (index, time) in due.times.iter().enumerate() {
            match self.enqueue(tr, keys, &entry.name, &stored, *time).await {
                Ok(()) => {
                    // A time whose next one cannot be determined ends its run.
                    record
                        .fired
                        .add(*time, |time| times.after(time).ok().flatten());
                    continue;
                }
                // Another item of this transaction has the dedupe id. The next transaction tries this time again.
                Err(Error::EnqueuedWithOtherPlace) => self.fired.has_left = true,
                // A row of the dedupe id keeps this schedule from firing, and no other.
                Err(error) if error.corrupt_key().is_some() => {
                    self.fired.refused.push(error);
                    is_refused = true;
                }
                Err(error) => return Err(error),
            }
            due.next = Some(*time);
            if index == 0 {
                return Ok(());
            }
            break;
        }
        match due.next {
            Some(next) if next <= self.now => self.fired.has_left |= !is_refused,
            Some(next) => {
                let first = self.fired.next_millis.map_or(next, |first| first.min(next));
                self.fired.next_millis = Some(first);
            }
            None => {}
        }
        record.next_millis = due.next;
        write(tr, keys, &entry.name, Some(&stored), &record)
    }

    /// Enqueues the item of a time.
    async fn enqueue(
        &mut self,
        tr: &impl Transaction,
        keys: &Keys,
        name: &str,
        stored: &ScheduleRecord,
        time: u64,
    ) -> Result<()> {
        let options = &stored.schedule.options;
        // The item counts as enqueued at its scheduled time, which its handler can then read.
        let item = NewItem {
            record: record_of(stored.payload.clone(), time, options)?,
            options,
        };
        let skipped = |full| SkippedTime {
            schedule: name.to_owned(),
            time_millis: time,
            full,
        };
        match stage(tr, keys, item, &mut self.changes).await {
            Ok(Enqueued::Repeated) => self.fired.skipped.push(skipped(None)),
            Ok(_) => {
                self.fired.items += 1;
                self.bytes_left = self.bytes_left.saturating_sub(stored.payload.len());
            }
            Err(full @ Error::Full { .. }) => self.fired.skipped.push(skipped(Some(full))),
            Err(error) => return Err(error),
        }
        self.tried += 1;
        Ok(())
    }

    /// Returns how many items of a size still fit in the transaction: at least one if it is empty.
    fn room(&self, payload_bytes: usize) -> usize {
        let least = usize::from(self.tried == 0);
        let by_bytes = self.bytes_left / payload_bytes.max(1);
        let by_count = MAX_STEP_ITEMS.saturating_sub(self.tried);
        by_bytes.max(least).min(by_count)
    }
}

fn decode(keys: &Keys, name: &str, row: Bytes) -> Result<(ScheduleRecord, Times)> {
    let record = ScheduleCodec
        .decode(row)
        .map_err(|error| error.at(keys.schedule(name)))?;
    let times = Times::parse(&record.schedule)?;
    Ok((record, times))
}

/// A schedule whose next time is later than its expression allows.
#[derive(Debug)]
pub(crate) struct Late {
    pub(crate) schedule: String,
    pub(crate) next_millis: u64,
    pub(crate) expected_millis: u64,
}

/// Finds schedules whose next time is later than their expression allows, among the next ones after the key `after` of
/// the index that are not due. Also returns where the next search continues, or `None` at the end.
///
/// # Conflicts
/// Reads by snapshot, which is safe because the caller only reports them.
pub(crate) async fn find_late(
    tr: &impl Transaction,
    keys: &Keys,
    after: Option<&[u8]>,
) -> Result<(Vec<Late>, Option<Vec<u8>>)> {
    let now = wall_millis(&keys.env);
    let (_, end) = keys.part(Part::FireTimes);
    let not_due = keys.fire_time(now.saturating_add(1), "");
    let begin = after.map_or_else(Vec::new, key_after).max(not_due);
    let query = RangeQuery::keys(begin, end)
        .limit(MAX_CHECKED_SCHEDULES)
        .mode(StreamingMode::WantAll);
    let page = tr.get_range(&query, Isolation::Snapshot).await?;
    // The firing reports what does not decode.
    let entries = page
        .rows
        .iter()
        .filter_map(|row| keys.parse_fire_time(row.key()).ok());
    let checks = entries.map(|(next_millis, schedule)| async move {
        let row = tr
            .get(&keys.schedule(&schedule), Isolation::Snapshot)
            .await?;
        let stored = row.map(|row| decode(keys, &schedule, row));
        let Some(Ok((record, times))) = stored else {
            return Ok(None);
        };
        let late = |expected_millis| Late {
            schedule,
            next_millis,
            expected_millis,
        };
        // The firing reports an error, too.
        let expected = times.expected(&record, now).ok().flatten();
        Ok::<_, Error>(expected.map(late))
    });
    let late = try_join_all(checks).await?.into_iter().flatten().collect();
    Ok((late, page.next_after().map(<[u8]>::to_vec)))
}
