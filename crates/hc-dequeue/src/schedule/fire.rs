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
use crate::error::{Error, Result};
use crate::keys::{Counter, Keys};
use crate::record::Record;
use crate::registry::{BYTES_PER_FULFILLMENT, ITEMS_PER_FULFILLMENT};
use crate::wall::wall_millis;

/// How many schedules one transaction reads.
pub(crate) const SCHEDULES_PER_FIRING: usize = 32;

/// The result of a firing.
#[derive(Debug, Default)]
pub(crate) struct Fired {
    /// How many items were enqueued.
    pub(crate) items: usize,
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
/// Reads and writes each schedule that fires.
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
        firing.fire(tr, keys, entry, row).await?;
    }
    if firing.fired.items > 0 {
        keys.count(tr, Counter::Queued, firing.fired.items as i64);
        keys.wake_all(tr);
    }
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
        let stored = match row.map(|row| decode(keys, entry, row)).transpose() {
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
        let ScheduleRecord {
            schedule, payload, ..
        } = &stored;
        let most = self.room(payload.len());
        if most == 0 {
            self.fired.has_left = true;
            return Ok(());
        }
        let due = times.due(entry.time, self.now, schedule.get_missed(), most);
        // The item counts as enqueued at its scheduled time, which its handler can then read.
        let item = |time: &u64| Record::new(*time, payload.clone());
        let items: Vec<_> = due.times.iter().map(item).collect();
        keys.items.enqueue_all(tr, &items).await?;
        self.fired.items += items.len();
        self.bytes_left = self.bytes_left.saturating_sub(items.len() * payload.len());
        match due.next {
            Some(next) if next <= self.now => self.fired.has_left = true,
            Some(next) => {
                let first = self.fired.next_millis.map_or(next, |first| first.min(next));
                self.fired.next_millis = Some(first);
            }
            None => {}
        }
        let record = ScheduleRecord {
            next_millis: due.next,
            last_millis: due.times.last().copied().or(stored.last_millis),
            ..stored.clone()
        };
        write(tr, keys, &entry.name, Some(&stored), &record)
    }

    /// Returns how many items of a size still fit in the transaction: at least one if it is empty.
    fn room(&self, payload_bytes: usize) -> usize {
        let least = usize::from(self.fired.items == 0);
        let by_bytes = self.bytes_left / payload_bytes.max(1);
        let by_count = ITEMS_PER_FULFILLMENT - self.fired.items;
        by_bytes.max(least).min(by_count)
    }
}

fn decode(keys: &Keys, entry: &Entry, row: Bytes) -> Result<(ScheduleRecord, Times)> {
    let record = ScheduleCodec.decode(row);
    let record = record.map_err(|error| error.at(keys.schedule(&entry.name)))?;
    let times = Times::parse(&record.schedule)?;
    Ok((record, times))
}
