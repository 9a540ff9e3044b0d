//! Operations of applications on schedules, each in the caller's transaction.

use microqueue::keyspace::codec::{self, Codec, DecodeError};
use microqueue::keyspace::error::chain;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    self, Bytes, Isolation, KeyValue, RangeQuery, Transaction, Undecodable, read_all,
};

use super::fired::FiredTimes;
use super::record::{MAX_SCHEDULE_NAME_BYTES, ScheduleCodec, ScheduleRecord};
use super::times::Times;
use super::{ListedSchedule, Schedule, ScheduleEntry, Scheduled};
use crate::items::dedupe::check_dedupe;
use crate::items::error::{Error, Result};
use crate::items::keys::{Keys, check_group};
use crate::items::part::Part;
use crate::items::priority::Priority;
use crate::queue::enqueue_options::ReadyTime;
use crate::queue::handle::Queue;
use crate::session::wall::{unix_time, wall_millis};

impl<T, C: Codec<T>> Queue<T, C> {
    /// Stages a schedule, which enqueues a value repeatedly, under a name of 1 to 255 bytes. Replaces any other
    /// schedule of this name.
    ///
    /// The schedule first fires at its first time after the present, by the wall clock of the caller, that has not
    /// fired. A schedule whose cron expression and time zone are unchanged keeps its next time. A program can therefore
    /// create all of its schedules each time it starts.
    ///
    /// A next time that is more than a minute later than the expression allows is set right: a wall clock was ahead
    /// when it was determined. Times that were passed over then fire at their time, and those that have fired in
    /// advance do not fire again. A schedule remembers the eight newest runs of times that have fired.
    ///
    /// ```
    /// use hc_dequeue::keyspace::{self, Runner};
    /// use hc_dequeue::{Queue, Schedule, Scheduled};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let jobs = Queue::<String>::open(&runner, "jobs").await?;
    ///
    /// let nightly = &Schedule::new("30 2 * * *").with_time_zone("America/New_York");
    /// let queue = &jobs;
    /// let job = &"clean up".to_owned();
    /// let schedule = async |tr| queue.schedule(&tr, "nightly", nightly, job).await;
    /// assert_eq!(runner.run(schedule).await?, Scheduled::Created);
    /// assert_eq!(runner.run(schedule).await?, Scheduled::Unchanged);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Conflicts
    /// Reads the schedule, which each firing writes, and writes it if anything changes.
    ///
    /// # Errors
    /// [`Error::ScheduleName`], [`Error::CronExpression`], [`Error::CronNeverFires`], [`Error::CronTimes`],
    /// [`Error::TimeZone`], [`Error::FixedTime`], [`Error::EnqueueOptions`] if the options have a batch or the key of
    /// a reference, [`Error::DedupeId`], [`Error::Priority`], [`Error::Group`], [`Error::PayloadTooLarge`] and the
    /// codec's [`Encode`]; [`Corrupt`] if the stored schedule of this name does not decode. In all cases nothing is
    /// staged.
    ///
    /// [`Corrupt`]: microqueue::keyspace::Error::Corrupt
    /// [`Encode`]: microqueue::keyspace::Error::Encode
    pub async fn schedule(
        &self,
        tr: &impl Transaction,
        name: &str,
        schedule: &Schedule,
        payload: &T,
    ) -> Result<Scheduled> {
        check_name(name)?;
        if let Some(ReadyTime::At(_)) = schedule.options.ready {
            return Err(Error::FixedTime);
        }
        if schedule.options.batch.is_some() {
            let reason = "a schedule cannot add items to a batch, which is over one day";
            return Err(Error::EnqueueOptions { reason });
        }
        if schedule.options.ref_key.is_some() {
            let reason =
                "a schedule does not write the references of its items: set no key for them";
            return Err(Error::EnqueueOptions { reason });
        }
        if let Some(dedupe) = schedule.options.dedupe() {
            check_dedupe(dedupe)?;
        }
        let priority = schedule.options.priority();
        if Priority::new(priority).is_none() {
            return Err(Error::Priority { priority });
        }
        if let Some(group) = schedule.options.group() {
            check_group(group)?;
        }
        let times = Times::parse(schedule)?;
        let payload = self.payload(payload)?;
        let now = wall_millis(&self.keys.env);
        let stored = stored_schedule(tr, &self.keys, name).await?;
        let mut record = ScheduleRecord {
            next_millis: None,
            fired: FiredTimes::default(),
            schedule: schedule.clone(),
            unknown: Bytes::new(),
            payload,
        };
        if let Some(stored) = &stored {
            record.fired = if has_same_times(&stored.schedule, schedule) {
                stored.fired.clone()
            } else {
                stored.fired.ends()
            };
            record.unknown = stored.unknown.clone();
        }
        let same = stored
            .as_ref()
            .filter(|stored| has_same_times(&stored.schedule, schedule));
        record.next_millis = match same {
            Some(stored) if times.expected(stored, now)?.is_none() => stored.next_millis,
            _ => {
                let text = schedule.cron().to_owned();
                let next = times.next_after(now, &record.fired)?;
                Some(next.ok_or(Error::CronNeverFires { text })?)
            }
        };
        if stored.as_ref() == Some(&record) {
            return Ok(Scheduled::Unchanged);
        }
        write(tr, &self.keys, name, stored.as_ref(), &record)?;
        // Sessions that sleep must learn when the schedule fires.
        self.keys.wake_all(tr);
        Ok(match stored {
            None => Scheduled::Created,
            Some(_) => Scheduled::Changed,
        })
    }

    /// Stages the removal of a schedule. Items that it has enqueued stay. Returns `false` if no schedule has this
    /// name.
    ///
    /// # Conflicts
    /// Reads and writes the schedule, as each firing does.
    ///
    /// # Errors
    /// Those of the read.
    pub async fn unschedule(&self, tr: &impl Transaction, name: &str) -> Result<bool> {
        let key = self.keys.schedule(name);
        let Some(value) = tr.get(&key, Isolation::Serializable).await? else {
            return Ok(false);
        };
        tr.clear(&key);
        // If the schedule does not decode, its entry stays in the index until a firing finds no schedule for it.
        let next = ScheduleCodec
            .decode(value)
            .ok()
            .and_then(|record| record.next_millis);
        if let Some(next) = next {
            tr.clear(&self.keys.fire_time(next, name));
        }
        Ok(true)
    }

    /// Returns a page of up to `limit` schedules in the order of their names: those after the name `after`, or the
    /// first ones. A schedule that does not decode is listed with the reason.
    ///
    /// # Conflicts
    /// Reads the page.
    ///
    /// # Errors
    /// Those of the read, and [`Corrupt`](microqueue::keyspace::Error::Corrupt) if a key does not name a schedule.
    pub async fn schedules(
        &self,
        tr: &impl Transaction,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ListedSchedule<T>>> {
        let (begin, end) = self.keys.part(Part::Schedules);
        let begin = after.map_or(begin, |name| key_after(&self.keys.schedule(name)));
        let query = RangeQuery::keys(begin, end).limit(limit);
        let rows = read_all(tr, query, Isolation::Serializable).await?;
        rows.iter().map(|row| self.parse_schedule(row)).collect()
    }

    /// Returns a schedule, or `None` if no schedule has this name.
    ///
    /// # Conflicts
    /// Reads the schedule.
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if it does not decode. Its payload may not decode.
    pub async fn find_schedule(
        &self,
        tr: &impl Transaction,
        name: &str,
    ) -> Result<Option<ScheduleEntry<T>>> {
        let key = self.keys.schedule(name);
        let Some(value) = tr.get(&key, Isolation::Serializable).await? else {
            return Ok(None);
        };
        let listed = self.parse_schedule(&KeyValue::new(&key, &value))?;
        match listed.entry {
            Ok(entry) => Ok(Some(entry)),
            Err(error) => Err(keyspace::Error::corrupt(&key, error.reason).into()),
        }
    }

    fn parse_schedule(&self, row: &KeyValue) -> Result<ListedSchedule<T>> {
        let undecodable =
            |bytes: Bytes, error: DecodeError| Undecodable::new(row.key().to_vec(), bytes, error);
        let record = ScheduleCodec.decode(row.to_value());
        let now = wall_millis(&self.keys.env);
        let entry = record.map(|record| {
            let expected = expected(&record, now);
            ScheduleEntry {
                next: record.next_millis.map(unix_time),
                error: expected
                    .as_ref()
                    .err()
                    .map(|error| chain(error).to_string()),
                expected: expected.unwrap_or(None).map(unix_time),
                last: record.fired.newest().map(unix_time),
                schedule: record.schedule,
                payload: (codec::decode(&self.codec, record.payload.clone()))
                    .map_err(|error| undecodable(record.payload, error)),
            }
        });
        Ok(ListedSchedule {
            name: self.keys.parse_schedule(row.key())?,
            entry: entry.map_err(|error| undecodable(row.to_value(), error)),
        })
    }
}

/// Returns the next time that a schedule should have, if its next time is too late, or if it has none.
fn expected(record: &ScheduleRecord, now: u64) -> Result<Option<u64>> {
    Times::parse(&record.schedule)?.expected(record, now)
}

/// Returns why a schedule fires no more although it should, or `None` if it fires, or if its times are over.
pub(crate) fn why_stopped(record: &ScheduleRecord, now: u64) -> Option<String> {
    match expected(record, now) {
        Err(error) => Some(chain(&error).to_string()),
        Ok(Some(_)) if record.next_millis.is_none() => {
            Some("it has no next time, although its expression has one".to_owned())
        }
        Ok(_) => None,
    }
}

/// Reads a schedule. Returns `None` if there is no schedule of this name.
///
/// # Conflicts
/// Reads the schedule.
pub(crate) async fn stored_schedule(
    tr: &impl Transaction,
    keys: &Keys,
    name: &str,
) -> Result<Option<ScheduleRecord>> {
    let key = keys.schedule(name);
    let Some(value) = tr.get(&key, Isolation::Serializable).await? else {
        return Ok(None);
    };
    let record = ScheduleCodec.decode(value).map_err(|error| error.at(key))?;
    Ok(Some(record))
}

/// Stages a schedule in place of the stored one.
pub(super) fn write(
    tr: &impl Transaction,
    keys: &Keys,
    name: &str,
    stored: Option<&ScheduleRecord>,
    record: &ScheduleRecord,
) -> Result<()> {
    let mut value = Vec::new();
    ScheduleCodec.encode(record, &mut value)?;
    tr.set(&keys.schedule(name), &value);
    let indexed = stored.and_then(|stored| stored.next_millis);
    if indexed != record.next_millis {
        indexed.inspect(|time| tr.clear(&keys.fire_time(*time, name)));
        let next = record.next_millis;
        next.inspect(|time| tr.set(&keys.fire_time(*time, name), b""));
    }
    Ok(())
}

fn check_name(name: &str) -> Result<()> {
    match name.len() {
        1..=MAX_SCHEDULE_NAME_BYTES => Ok(()),
        bytes => Err(Error::ScheduleName {
            bytes,
            limit: MAX_SCHEDULE_NAME_BYTES,
        }),
    }
}

fn has_same_times(one: &Schedule, other: &Schedule) -> bool {
    (&one.cron, &one.time_zone) == (&other.cron, &other.time_zone)
}
