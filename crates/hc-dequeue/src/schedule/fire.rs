//! Enqueues items for due times of schedules.

use std::collections::BTreeSet;
use std::time::SystemTime;

use futures::future::try_join_all;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    Bytes, ConflictKind, Isolation, KeyValue, RangeQuery, StreamingMode, Transaction,
};

use super::operations::write;
use super::record::{ScheduleCodec, ScheduleRecord};
use super::times::Times;
use crate::enqueue_options::Enqueued;
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::registry::{BYTES_PER_FULFILLMENT, ITEMS_PER_FULFILLMENT};
use crate::stage::{NewItem, Staged, record_of, stage};
use crate::wall::{unix_time, wall_millis};

/// How many schedules one transaction reads.
pub(crate) const SCHEDULES_PER_FIRING: usize = 32;

/// How many schedules that are not due are checked in one transaction.
const SCHEDULES_PER_CHECK: usize = 100;

/// The result of a firing.
#[derive(Debug, Default)]
pub(crate) struct Fired {
    /// How many items were enqueued, or replaced by ones with the same dedupe id.
    pub(crate) items: usize,
    /// The times for which nothing was enqueued, by schedule.
    pub(crate) skipped: Vec<Skipped>,
    /// When the first schedule fires that was read and is not due yet.
    pub(crate) next_millis: Option<u64>,
    /// Where the next firing continues, if there may be more due schedules.
    pub(crate) after: Option<Vec<u8>>,
    /// Whether schedules that were read are still due, since they have more times than fit in a transaction.
    pub(crate) has_left: bool,
    /// Schedules that do not decode, or whose expression or time zone this version does not understand. They stay
    /// unchanged.
    pub(crate) refused: Vec<Error>,
}

/// A time for which a schedule has enqueued nothing.
#[derive(Debug)]
pub(crate) struct Skipped {
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
/// [`enqueue_with`](crate::HighContentionQueue::enqueue_with).
pub(crate) async fn fire_due(
    tr: &impl Transaction,
    keys: &Keys,
    after: Option<&[u8]>,
) -> Result<Fired> {
    let now = wall_millis(&keys.env);
    let (begin, end) = keys.part("f");
    let query = RangeQuery::keys(after.map_or(begin, key_after), end)
        .limit(SCHEDULES_PER_FIRING)
        .mode(StreamingMode::WantAll);
    // Safe as a snapshot read: each schedule that fires is read serializably.
    let page = tr.get_range(&query, Isolation::Snapshot).await?;
    let mut firing = Firing {
        now,
        bytes_left: BYTES_PER_FULFILLMENT,
        tried: 0,
        staged: Staged::default(),
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
    firing.staged.finish(tr, keys);
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
    staged: Staged,
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
        let most = self.room(stored.payload.len());
        if most == 0 {
            self.fired.has_left = true;
            return Ok(());
        }
        let missed = stored.schedule.get_missed();
        let mut due = times.due(entry.time, self.now, missed, most, &stored.fired);
        let mut record = stored.clone();
        for (index, time) in due.times.iter().enumerate() {
            if !self.enqueue(tr, keys, &entry.name, &stored, *time).await? {
                // The next transaction tries this time again.
                due.next = Some(*time);
                self.fired.has_left = true;
                if index == 0 {
                    return Ok(());
                }
                break;
            }
            record.fired.add(*time, |time| times.after(time));
        }
        match due.next {
            Some(next) if next <= self.now => self.fired.has_left = true,
            Some(next) => {
                let first = self.fired.next_millis.map_or(next, |first| first.min(next));
                self.fired.next_millis = Some(first);
            }
            None => {}
        }
        record.next_millis = due.next;
        write(tr, keys, &entry.name, Some(&stored), &record)
    }

    /// Enqueues the item of a time. Returns `false` if this transaction cannot.
    async fn enqueue(
        &mut self,
        tr: &impl Transaction,
        keys: &Keys,
        name: &str,
        stored: &ScheduleRecord,
        time: u64,
    ) -> Result<bool> {
        let options = &stored.schedule.options;
        // The item counts as enqueued at its scheduled time, which its handler can then read.
        let item = NewItem {
            record: record_of(stored.payload.clone(), time, options),
            options,
        };
        let skipped = |full| Skipped {
            schedule: name.to_owned(),
            time_millis: time,
            full,
        };
        match stage(tr, keys, item, &mut self.staged).await {
            Ok(Enqueued::Repeated) => self.fired.skipped.push(skipped(None)),
            Ok(_) => {
                self.fired.items += 1;
                self.bytes_left = self.bytes_left.saturating_sub(stored.payload.len());
            }
            Err(full @ Error::Full { .. }) => self.fired.skipped.push(skipped(Some(full))),
            // Another item of this transaction has the dedupe id, with another time.
            Err(Error::ReadAfterWrite) => return Ok(false),
            Err(error) => return Err(error),
        }
        self.tried += 1;
        Ok(true)
    }

    /// Returns how many items of a size still fit in the transaction: at least one if it is empty.
    fn room(&self, payload_bytes: usize) -> usize {
        let least = usize::from(self.tried == 0);
        let by_bytes = self.bytes_left / payload_bytes.max(1);
        let by_count = ITEMS_PER_FULFILLMENT.saturating_sub(self.tried);
        by_bytes.max(least).min(by_count)
    }
}

fn decode(keys: &Keys, name: &str, row: Bytes) -> Result<(ScheduleRecord, Times)> {
    let record = ScheduleCodec.decode(row);
    let record = record.map_err(|error| error.at(keys.schedule(name)))?;
    let times = Times::parse(&record.schedule)?;
    Ok((record, times))
}

/// A schedule whose next time is later than its expression allows.
#[derive(Debug)]
pub(crate) struct Late {
    pub(crate) schedule: String,
    pub(crate) next: SystemTime,
    pub(crate) expected: SystemTime,
}

/// Finds schedules whose next time is later than their expression allows, among those that are not due, without the
/// known entries of the index. Adds the entries that it has checked to the known ones.
///
/// # Conflicts
/// Reads by snapshot, which is safe because the caller only reports them.
pub(crate) async fn find_late(
    tr: &impl Transaction,
    keys: &Keys,
    known: &BTreeSet<(u64, String)>,
) -> Result<(Vec<Late>, BTreeSet<(u64, String)>)> {
    let now = wall_millis(&keys.env);
    let (_, end) = keys.part("f");
    let query = RangeQuery::keys(keys.fire_time(now.saturating_add(1), ""), end)
        .limit(SCHEDULES_PER_CHECK)
        .mode(StreamingMode::WantAll);
    let page = tr.get_range(&query, Isolation::Snapshot).await?;
    let mut late = Vec::new();
    let mut checked = BTreeSet::new();
    for row in &page.rows {
        // The firing reports what does not decode.
        let Ok(entry) = keys.parse_fire_time(row.key()) else {
            continue;
        };
        if !known.contains(&entry) {
            let name = &entry.1;
            let row = tr.get(&keys.schedule(name), Isolation::Snapshot).await?;
            if let Some(Ok((record, times))) = row.map(|row| decode(keys, name, row))
                && let Some(expected) = times.expected(&record, now)
            {
                late.push(Late {
                    schedule: name.clone(),
                    next: unix_time(entry.0),
                    expected: unix_time(expected),
                });
            }
        }
        checked.insert(entry);
    }
    Ok((late, checked))
}
