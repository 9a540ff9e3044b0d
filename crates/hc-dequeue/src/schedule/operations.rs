//! Operations of applications on single schedules, and listings, each in the caller's transaction.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use microqueue::keyspace::codec::{self, Codec};
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
use crate::queue::enqueue_options::{Enqueue, ReadyTime};
use crate::queue::handle::Queue;
use crate::queue::stage::kind_named;
use crate::session::wall::{unix_time, wall_millis};

impl<T, C: Codec<T>> Queue<T, C> {
    /// Stages a schedule, which enqueues a value repeatedly, under a name of 1 to 255 bytes. Replaces any other
    /// schedule of this name; its owner stays, if it has one, and sets it back by the next
    /// [`set_schedules`](Self::set_schedules).
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
    /// a reference, [`Error::DedupeId`], [`Error::Kind`], [`Error::Priority`], [`Error::Group`],
    /// [`Error::PayloadTooLarge`] and the codec's [`Encode`]; [`Corrupt`] if the stored schedule of this name does not
    /// decode. In all cases nothing is staged.
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
        let given = Given::check(name, schedule, self.payload(payload)?)?;
        let stored = stored_schedule(tr, &self.keys, name).await?;
        let record = given.record(stored.as_ref(), wall_millis(&self.keys.env))?;
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
        match ScheduleCodec.decode(value) {
            Ok(record) => remove(tr, &self.keys, name, &record),
            // Its entries stay in the indexes: that by next time until a firing finds no schedule for it, and that by
            // owner until a repair.
            Err(_) => tr.clear(&key),
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

    /// Returns a page of the schedules of an owner, as [`schedules`](Self::schedules) does.
    ///
    /// # Conflicts
    /// Reads the names of the page and their schedules.
    ///
    /// # Errors
    /// As [`schedules`](Self::schedules).
    pub async fn schedules_of(
        &self,
        tr: &impl Transaction,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ListedSchedule<T>>> {
        let keys = &*self.keys;
        let mut after = after.map(str::to_owned);
        let mut listed = Vec::new();
        while listed.len() < limit {
            let left = limit - listed.len();
            let names = owned_names(tr, keys, owner, after.as_deref(), left).await?;
            let rows = names.iter().map(|name| async move {
                let key = keys.schedule(name);
                let value = tr.get(&key, Isolation::Serializable).await?;
                Ok::<_, Error>(value.map(|value| KeyValue::new(&key, &value)))
            });
            let rows = try_join_all(rows).await?;
            for row in rows.iter().flatten() {
                listed.push(self.parse_schedule(row)?);
            }
            if names.len() < left {
                break;
            }
            // A name without a schedule, which damage has left, takes no place on the page.
            after = names.into_iter().next_back();
        }
        Ok(listed)
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
        let name = self.keys.parse_schedule(row.key())?;
        let entry = match ScheduleCodec.decode(row.to_value()) {
            Ok(record) => Ok(self.schedule_entry(&name, record)),
            Err(error) => Err(Undecodable::new(row.key().to_vec(), row.to_value(), error)),
        };
        Ok(ListedSchedule { name, entry })
    }

    /// Returns what a record says, by the present wall clock.
    pub(super) fn schedule_entry(&self, name: &str, record: ScheduleRecord) -> ScheduleEntry<T> {
        let expected = expected(&record, wall_millis(&self.keys.env));
        let payload = codec::decode(&self.codec, record.payload.clone());
        ScheduleEntry {
            next: record.next_millis.map(unix_time),
            error: expected
                .as_ref()
                .err()
                .map(|error| chain(error).to_string()),
            expected: expected.unwrap_or(None).map(unix_time),
            last: record.fired.newest().map(unix_time),
            schedule: record.schedule,
            owner: record.owner,
            payload: payload
                .map_err(|error| Undecodable::new(self.keys.schedule(name), record.payload, error)),
        }
    }
}

/// A schedule that an application has given, and that can be stored.
pub(super) struct Given<'a> {
    schedule: &'a Schedule,
    times: Times,
    payload: Bytes,
}

impl<'a> Given<'a> {
    /// Checks a schedule.
    pub(super) fn check(name: &str, schedule: &'a Schedule, payload: Bytes) -> Result<Self> {
        check_name(name)?;
        check_options(&schedule.options)?;
        Ok(Self {
            schedule,
            times: Times::parse(schedule)?,
            payload,
        })
    }

    /// Returns the record that is stored at the wall time `now` in place of another one.
    ///
    /// # Errors
    /// [`Error::CronNeverFires`], [`Error::CronTimes`].
    pub(super) fn record(
        &self,
        stored: Option<&ScheduleRecord>,
        now: u64,
    ) -> Result<ScheduleRecord> {
        let same = stored.filter(|stored| has_same_times(&stored.schedule, self.schedule));
        let fired = match (same, stored) {
            (Some(same), _) => same.fired.clone(),
            (None, Some(other)) => other.fired.ends(),
            (None, None) => FiredTimes::default(),
        };
        let next_millis = match same {
            Some(same) if self.times.expected(same, now)?.is_none() => same.next_millis,
            _ => {
                let text = self.schedule.cron().to_owned();
                let next = self.times.next_after(now, &fired)?;
                Some(next.ok_or(Error::CronNeverFires { text })?)
            }
        };
        Ok(ScheduleRecord {
            next_millis,
            fired,
            schedule: self.schedule.clone(),
            owner: stored.and_then(|stored| stored.owner.clone()),
            unknown: stored.map_or_else(Bytes::new, |stored| stored.unknown.clone()),
            payload: self.payload.clone(),
        })
    }
}

/// Checks the options of the items of a schedule.
fn check_options(options: &Enqueue) -> Result<()> {
    if let Some(ReadyTime::At(_)) = options.ready {
        return Err(Error::FixedTime);
    }
    if options.batch.is_some() {
        let reason = "a schedule cannot add items to a batch, which is over one day";
        return Err(Error::EnqueueOptions { reason });
    }
    if let Some(dedupe) = options.dedupe() {
        check_dedupe(dedupe)?;
    }
    if options.ref_key.is_some() {
        let reason = "a schedule does not write the references of its items: set no key for them";
        return Err(Error::EnqueueOptions { reason });
    }
    if let Some(kind) = options.kind() {
        kind_named(kind)?;
    }
    let priority = options.priority();
    if Priority::new(priority).is_none() {
        return Err(Error::Priority { priority });
    }
    if let Some(group) = options.group() {
        check_group(group)?;
    }
    Ok(())
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
    let owner = stored.and_then(|stored| stored.owner.as_ref());
    if owner != record.owner.as_ref() {
        owner.inspect(|owner| tr.clear(&keys.schedules_of(owner).pack(&name)));
        let owner = record.owner.as_ref();
        owner.inspect(|owner| tr.set(&keys.schedules_of(owner).pack(&name), b""));
    }
    Ok(())
}

/// Stages the removal of a schedule.
pub(super) fn remove(tr: &impl Transaction, keys: &Keys, name: &str, stored: &ScheduleRecord) {
    tr.clear(&keys.schedule(name));
    if let Some(next) = stored.next_millis {
        tr.clear(&keys.fire_time(next, name));
    }
    if let Some(owner) = &stored.owner {
        tr.clear(&keys.schedules_of(owner).pack(&name));
    }
}

/// Returns names of the schedules of an owner, up to `limit` after the name `after`.
///
/// # Conflicts
/// Reads these names.
pub(super) async fn owned_names(
    tr: &impl Transaction,
    keys: &Keys,
    owner: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<BTreeSet<String>> {
    let names = keys.schedules_of(owner);
    let (begin, end) = names.range();
    let begin = after.map_or(begin, |name| key_after(&names.pack(&name)));
    let query = RangeQuery::keys(begin, end).limit(limit);
    let rows = read_all(tr, query, Isolation::Serializable).await?;
    let name = |row: &KeyValue| Ok(keys.parse_owned_schedule(row.key())?.1);
    rows.iter().map(name).collect()
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
