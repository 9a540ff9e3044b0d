//! What applications do with schedules, each operation in the caller's transaction.

use std::time::{Duration, SystemTime};

use microqueue::keyspace::codec::{Codec, DecodeError};
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    Bytes, Isolation, KeyValue, RangeQuery, Transaction, Undecodable, read_all,
};

use super::record::{MAX_SCHEDULE_NAME_BYTES, ScheduleCodec, ScheduleRecord};
use super::times::Times;
use super::{ListedSchedule, Schedule, ScheduleEntry, Scheduled};
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::queue::HighContentionQueue;
use crate::wall::wall_millis;

impl<T, C: Codec<T>> HighContentionQueue<T, C> {
    /// Stages that a value is enqueued again and again, at the times of a schedule, under a name of 1 to
    /// 255 bytes. Another schedule of this name is replaced.
    ///
    /// The next time at which it fires is the first one after now, by the wall clock of the caller, and
    /// after the last one that has fired. A schedule whose cron text and time zone stay as they were keeps
    /// its next time, so that a program may schedule all that it needs each time it starts.
    ///
    /// ```
    /// use hc_dequeue::keyspace::{self, Runner, Subspace};
    /// use hc_dequeue::{HighContentionQueue, Schedule, Scheduled, Settings};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let subspace = Subspace::from("jobs");
    /// let jobs = HighContentionQueue::<String>::open(&runner, subspace, Settings::default()).await?;
    ///
    /// let nightly = &Schedule::new("30 2 * * *").time_zone("America/New_York");
    /// let (queue, job) = (&jobs, &"clean up".to_owned());
    /// let schedule = |tr| async move { queue.schedule(&tr, "nightly", nightly, job).await };
    /// assert_eq!(runner.run(schedule).await?, Scheduled::Created);
    /// assert_eq!(runner.run(schedule).await?, Scheduled::Unchanged);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Conflicts
    /// Reads the schedule, which each firing of it writes. Writes it if anything changes.
    ///
    /// # Errors
    /// [`Error::ScheduleName`], [`Error::CronText`], [`Error::CronNeverFires`], [`Error::TimeZone`],
    /// [`Error::PayloadTooLarge`] and the codec's [`Encode`], before anything is staged;
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the schedule of this name does not decode.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    ///
    /// [`Encode`]: microqueue::keyspace::Error::Encode
    pub async fn schedule(
        &self,
        tr: &impl Transaction,
        name: &str,
        schedule: &Schedule,
        payload: &T,
    ) -> Result<Scheduled> {
        check_name(name)?;
        let times = Times::parse(schedule)?;
        let payload = self.payload(payload)?;
        let now = wall_millis(&self.keys.env);
        let next_after = |millis| {
            let text = schedule.get_cron().to_owned();
            times.after(millis).ok_or(Error::CronNeverFires { text })
        };
        let key = self.keys.schedule(name);
        let stored = tr.get(&key, Isolation::Serializable).await?;
        let stored = stored.map(|value| ScheduleCodec.decode(value));
        let stored = stored.transpose().map_err(|error| error.at(key))?;
        let last_millis = stored.as_ref().and_then(|stored| stored.last_millis);
        let next_millis = match &stored {
            Some(stored) if has_same_times(&stored.schedule, schedule) => stored.next_millis,
            // The caller's clock may be behind the one by which the last time has fired.
            _ => Some(next_after(now.max(last_millis.unwrap_or(0)))?),
        };
        let record = ScheduleRecord {
            next_millis,
            last_millis,
            schedule: schedule.clone(),
            payload,
        };
        if stored.as_ref() == Some(&record) {
            return Ok(Scheduled::Unchanged);
        }
        write(tr, &self.keys, name, stored.as_ref(), &record)?;
        // A session that sleeps has to learn when the schedule fires.
        self.keys.wake_all(tr);
        Ok(match stored {
            None => Scheduled::Created,
            Some(_) => Scheduled::Changed,
        })
    }

    /// Stages that a schedule is no more. Items that it has enqueued stay. False: there is none of this
    /// name.
    ///
    /// # Conflicts
    /// Reads and writes the schedule, as each firing of it does.
    ///
    /// # Errors
    /// Those of the read.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn unschedule(&self, tr: &impl Transaction, name: &str) -> Result<bool> {
        let key = self.keys.schedule(name);
        let Some(value) = tr.get(&key, Isolation::Serializable).await? else {
            return Ok(false);
        };
        tr.clear(&key);
        // Of one that does not decode the entry stays in the index, until a firing finds nothing there.
        let next = ScheduleCodec
            .decode(value)
            .ok()
            .and_then(|record| record.next_millis);
        if let Some(next) = next {
            tr.clear(&self.keys.fire_time(next, name));
        }
        Ok(true)
    }

    /// Returns a page of the schedules in the order of their names: up to `limit` after the name `after`,
    /// or from the first one on. One that does not decode is listed with the reason.
    ///
    /// # Conflicts
    /// Reads the page.
    ///
    /// # Errors
    /// Those of the read, and [`Corrupt`](microqueue::keyspace::Error::Corrupt) for a key that names no
    /// schedule.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn schedules(
        &self,
        tr: &impl Transaction,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ListedSchedule<T>>> {
        let (begin, end) = self.keys.part("e");
        let begin = after.map_or(begin, |name| key_after(&self.keys.schedule(name)));
        let query = RangeQuery::keys(begin, end).limit(limit);
        let rows = read_all(tr, query, Isolation::Serializable).await?;
        rows.iter().map(|row| self.parse_schedule(row)).collect()
    }

    fn parse_schedule(&self, row: &KeyValue) -> Result<ListedSchedule<T>> {
        let undecodable =
            |bytes: Bytes, error: DecodeError| Undecodable::new(row.key().to_vec(), bytes, error);
        let record = ScheduleCodec.decode(row.to_value());
        let entry = record.map(|record| ScheduleEntry {
            next: record.next_millis.map(time_of),
            last: record.last_millis.map(time_of),
            schedule: record.schedule,
            payload: (self.codec.decode(record.payload.clone()))
                .map_err(|error| undecodable(record.payload, error)),
        });
        Ok(ListedSchedule {
            name: self.keys.parse_schedule(row.key())?,
            entry: entry.map_err(|error| undecodable(row.to_value(), error)),
        })
    }
}

/// Stages a schedule, in place of the one that was stored.
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

fn time_of(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}
