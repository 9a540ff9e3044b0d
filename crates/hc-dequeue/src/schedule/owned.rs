//! The schedules of an owner: one call makes them exactly those that it is given.
//!
//! # Why two owners never touch each other's schedules
//!
//! 1. A schedule has one owner, which its row names, or none. The index has the names of each owner's schedules, and
//!    changes in the transactions that change the rows.
//! 2. A call reads the index of its owner, and the rows of all names that it finds there or is given, serializably. A
//!    given name whose row names another owner fails the call before anything is staged. It removes only schedules
//!    whose rows name its owner.
//! 3. If two calls of an owner have read the same index, one of them commits. The other one is retried, and reads what
//!    the first one has added.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use microqueue::keyspace::Transaction;
use microqueue::keyspace::codec::Codec;

use super::operations::{Given, owned_names, remove, stored_schedule, write};
use super::record::{MAX_SCHEDULE_OWNER_BYTES, ScheduleCodec, ScheduleRecord};
use super::{Schedule, ScheduleEntry};
use crate::items::error::{Error, Result};
use crate::queue::handle::Queue;
use crate::session::wall::wall_millis;

/// The largest number of schedules of an owner.
pub const MAX_OWNED_SCHEDULES: usize = 1_000;

/// The largest size of the records of the schedules that one call sets, in bytes. A record has the encoded value, the
/// expression and the options.
pub const MAX_SET_BYTES: usize = 4_000_000;

/// The largest size of the stored records that one call reads, in bytes. They have grown by the runs that have fired;
/// [`schedule`](Queue::schedule) and [`set_schedule_owner`](Queue::set_schedule_owner) may have let them grow more.
const MAX_STORED_SET_BYTES: usize = 2 * MAX_SET_BYTES;

/// How many schedules are read at the same time.
const MAX_CONCURRENT_READS: usize = 100;

/// What [`set_schedules`](Queue::set_schedules) changes, each by name.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ScheduleChanges<T> {
    /// The schedules that are new.
    pub added: Vec<String>,
    /// The schedules that are replaced, or whose next time is corrected.
    pub changed: Vec<ChangedSchedule<T>>,
    /// The schedules that are removed.
    pub removed: Vec<String>,
    /// The schedules that stay as they are.
    pub unchanged: Vec<String>,
}

/// A schedule that is replaced, or whose next time is corrected.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ChangedSchedule<T> {
    /// The name of the schedule.
    pub name: String,
    /// The stored schedule.
    pub from: ScheduleEntry<T>,
    /// The one that takes its place.
    pub to: ScheduleEntry<T>,
}

/// What becomes of a schedule: stored, and to be stored. At least one of them is there.
struct Planned {
    name: String,
    stored: Option<ScheduleRecord>,
    new: Option<ScheduleRecord>,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Stages that an owner has exactly the given schedules, each with its name and its value: adds and changes them,
    /// and removes its others. Call it at the start of a program, so that the schedules follow its code. An empty list
    /// removes all schedules of the owner.
    ///
    /// The owner is a name of 1 to 255 bytes, such as that of the program. Owners do not touch each other's schedules,
    /// nor those made by [`schedule`](Self::schedule), which have no owner: a name among these is refused. To hand a
    /// schedule over, call [`set_schedule_owner`](Self::set_schedule_owner), and give it to the new owner from then on.
    ///
    /// A schedule that is there keeps its next time, or gets another one, as by [`schedule`](Self::schedule). Items
    /// that a removed one has enqueued stay. While two versions of a program run, the one that has called last decides.
    ///
    /// ```
    /// use hc_dequeue::keyspace::{self, Runner};
    /// use hc_dequeue::{Queue, Schedule};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let jobs = &Queue::<String>::open(&runner, "jobs").await?;
    ///
    /// let schedules = &[
    ///     ("clean up", Schedule::new("30 2 * * *"), "clean up".to_owned()),
    ///     ("report", Schedule::new("0 8 * * MON"), "report".to_owned()),
    /// ];
    /// let set = async |tr| jobs.set_schedules(&tr, "shop", schedules).await;
    /// assert_eq!(runner.run(set).await?.added, ["clean up", "report"]);
    ///
    /// // The next version of the program has no report any more.
    /// let set = async |tr| jobs.set_schedules(&tr, "shop", &schedules[..1]).await;
    /// let changes = runner.run(set).await?;
    /// assert_eq!((changes.unchanged, changes.removed), (vec!["clean up".into()], vec!["report".into()]));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Conflicts
    /// Reads the names of the owner's schedules, these schedules and those of the given names, which each firing
    /// writes, and writes what changes. Schedules of other names cost nothing.
    ///
    /// # Errors
    /// [`Error::ScheduleOwner`], [`Error::ScheduleTwice`], [`Error::OtherOwner`]; [`Error::TooManySchedules`] for more
    /// than [`MAX_OWNED_SCHEDULES`]; [`Error::SchedulesTooLarge`] if the given ones have more than [`MAX_SET_BYTES`],
    /// or the stored ones more than twice as much; and those of [`schedule`](Self::schedule) for each of them. In all
    /// cases nothing is staged. To rename many hundreds whose names have hundreds of bytes may be too large for a
    /// transaction, which its commit says: remove some before.
    pub async fn set_schedules(
        &self,
        tr: &impl Transaction,
        owner: &str,
        schedules: &[(&str, Schedule, T)],
    ) -> Result<ScheduleChanges<T>> {
        let planned = self.planned(tr, owner, schedules).await?;
        let keys = &*self.keys;
        let mut has_new = false;
        for Planned { name, stored, new } in &planned {
            match (stored, new) {
                (_, Some(new)) if stored.as_ref() != Some(new) => {
                    write(tr, keys, name, stored.as_ref(), new)?;
                    has_new = true;
                }
                (Some(stored), None) => remove(tr, keys, name, stored),
                _ => {}
            }
        }
        if has_new {
            // Sessions that sleep must learn when the schedules fire.
            keys.wake_all(tr);
        }
        Ok(self.changes_of(planned))
    }

    /// Returns what [`set_schedules`](Self::set_schedules) would change, and stages nothing.
    ///
    /// # Conflicts
    /// Reads what [`set_schedules`](Self::set_schedules) reads.
    ///
    /// # Errors
    /// As [`set_schedules`](Self::set_schedules).
    pub async fn plan_schedules(
        &self,
        tr: &impl Transaction,
        owner: &str,
        schedules: &[(&str, Schedule, T)],
    ) -> Result<ScheduleChanges<T>> {
        let planned = self.planned(tr, owner, schedules).await?;
        Ok(self.changes_of(planned))
    }

    /// Stages that a schedule belongs to another owner, or to none. All else of it stays. Returns `false` if no
    /// schedule has this name.
    ///
    /// Unless the new owner names it, its next [`set_schedules`](Self::set_schedules) removes it.
    ///
    /// # Conflicts
    /// Reads the schedule, which each firing writes, and the names of the new owner's schedules. Writes the schedule,
    /// and its names in the index by owner.
    ///
    /// # Errors
    /// [`Error::ScheduleOwner`]; [`Error::TooManySchedules`] if the new owner has [`MAX_OWNED_SCHEDULES`] others;
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the schedule does not decode. In all cases nothing is
    /// staged.
    pub async fn set_schedule_owner(
        &self,
        tr: &impl Transaction,
        name: &str,
        owner: Option<&str>,
    ) -> Result<bool> {
        let keys = &*self.keys;
        owner.map_or(Ok(()), check_owner)?;
        let Some(stored) = stored_schedule(tr, keys, name).await? else {
            return Ok(false);
        };
        if stored.owner.as_deref() == owner {
            return Ok(true);
        }
        if let Some(owner) = owner {
            let others = owned_names(tr, keys, owner, None, MAX_OWNED_SCHEDULES).await?;
            check_number(others.len() + 1)?;
        }
        let record = ScheduleRecord {
            owner: owner.map(str::to_owned),
            ..stored.clone()
        };
        write(tr, keys, name, Some(&stored), &record)?;
        Ok(true)
    }

    /// Returns what becomes of each schedule of an owner, in the order of their names.
    async fn planned(
        &self,
        tr: &impl Transaction,
        owner: &str,
        schedules: &[(&str, Schedule, T)],
    ) -> Result<Vec<Planned>> {
        check_owner(owner)?;
        let keys = &*self.keys;
        let mut by_name: BTreeMap<String, Option<Given<'_>>> = BTreeMap::new();
        for (name, schedule, value) in schedules {
            let given = Given::check(name, schedule, self.payload(value)?)?;
            if by_name.insert((*name).to_owned(), Some(given)).is_some() {
                let name = (*name).to_owned();
                return Err(Error::ScheduleTwice { name });
            }
        }
        check_number(by_name.len())?;
        let owned = owned_names(tr, keys, owner, None, MAX_OWNED_SCHEDULES + 1).await?;
        // Only damage leaves more.
        check_number(owned.len())?;
        for name in owned {
            by_name.entry(name).or_default();
        }
        let now = wall_millis(&keys.env);
        let by_name: Vec<_> = by_name.into_iter().collect();
        let mut planned = Vec::with_capacity(by_name.len());
        let mut stored_bytes = 0;
        for some in by_name.chunks(MAX_CONCURRENT_READS) {
            let reads = some.iter().map(|(name, _)| stored_schedule(tr, keys, name));
            for ((name, given), stored) in some.iter().zip(try_join_all(reads).await?) {
                stored_bytes += stored.as_ref().map_or(Ok(0), record_bytes)?;
                planned.extend(plan(owner, name, given.as_ref(), stored, now)?);
            }
            check_size(stored_bytes, MAX_STORED_SET_BYTES)?;
        }
        let mut new_bytes = 0;
        for new in planned.iter().filter_map(|planned| planned.new.as_ref()) {
            new_bytes += record_bytes(new)?;
        }
        check_size(new_bytes, MAX_SET_BYTES)?;
        Ok(planned)
    }

    fn changes_of(&self, planned: Vec<Planned>) -> ScheduleChanges<T> {
        let mut changes = ScheduleChanges {
            added: Vec::new(),
            changed: Vec::new(),
            removed: Vec::new(),
            unchanged: Vec::new(),
        };
        for Planned { name, stored, new } in planned {
            match (stored, new) {
                (None, _) => changes.added.push(name),
                (Some(_), None) => changes.removed.push(name),
                (Some(stored), Some(new)) if stored == new => changes.unchanged.push(name),
                (Some(stored), Some(new)) => changes.changed.push(ChangedSchedule {
                    from: self.schedule_entry(&name, stored),
                    to: self.schedule_entry(&name, new),
                    name,
                }),
            }
        }
        changes
    }
}

/// Returns what becomes of a schedule that is given, or that the index has. Returns `None` for a name that the index
/// has by mistake, which a repair removes.
fn plan(
    owner: &str,
    name: &str,
    given: Option<&Given<'_>>,
    stored: Option<ScheduleRecord>,
    now: u64,
) -> Result<Option<Planned>> {
    let is_own = |stored: &ScheduleRecord| stored.owner.as_deref() == Some(owner);
    let new = match (given, &stored) {
        (Some(_), Some(other)) if !is_own(other) => {
            return Err(Error::OtherOwner {
                name: name.to_owned(),
                owner: other.owner.clone(),
            });
        }
        (Some(given), _) => {
            let mut new = given.record(stored.as_ref(), now)?;
            new.owner = Some(owner.to_owned());
            Some(new)
        }
        (None, Some(stored)) if is_own(stored) => None,
        (None, _) => return Ok(None),
    };
    Ok(Some(Planned {
        name: name.to_owned(),
        stored,
        new,
    }))
}

fn check_number(given: usize) -> Result<()> {
    match given {
        ..=MAX_OWNED_SCHEDULES => Ok(()),
        given => Err(Error::TooManySchedules {
            given,
            limit: MAX_OWNED_SCHEDULES,
        }),
    }
}

fn record_bytes(record: &ScheduleRecord) -> Result<usize> {
    let mut encoded = Vec::new();
    ScheduleCodec.encode(record, &mut encoded)?;
    Ok(encoded.len())
}

fn check_size(bytes: usize, limit: usize) -> Result<()> {
    if bytes > limit {
        return Err(Error::SchedulesTooLarge { bytes, limit });
    }
    Ok(())
}

fn check_owner(owner: &str) -> Result<()> {
    match owner.len() {
        1..=MAX_SCHEDULE_OWNER_BYTES => Ok(()),
        bytes => Err(Error::ScheduleOwner {
            bytes,
            limit: MAX_SCHEDULE_OWNER_BYTES,
        }),
    }
}
