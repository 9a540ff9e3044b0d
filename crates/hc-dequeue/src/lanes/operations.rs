//! Limits of groups, and the state of groups.

use std::ops::ControlFlow;
use std::time::SystemTime;

use futures::{TryFutureExt, try_join};
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{
    Bytes, Isolation, KeyValue, RangeQuery, StreamingMode, Transaction, visit_rows,
};

use crate::items::changes::Changes;
use crate::items::counters::parse_count;
use crate::items::error::{Error, Result};
use crate::items::group_limits::GroupLimits;
use crate::items::keys::{Keys, check_group};
use crate::items::priority::RANK_OF_SLOT;
use crate::lanes::bucket::Bucket;
use crate::lanes::rows::level_in;
use crate::queue::handle::Queue;
use crate::session::wall::{unix_time, wall_millis};

/// How many waiting items of a group are counted.
const MAX_COUNTED_ITEMS: usize = 1_000;

/// How many bytes of keys and values are read to count these items.
const MAX_COUNTED_BYTES: usize = 200_000;

/// The largest number of groups on a page.
const MAX_PAGE_GROUPS: usize = 1_000;

/// The state of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStatus {
    /// The group.
    pub group: Bytes,
    /// How many items have a slot, dead letters among them; zero if the number does not decode.
    pub slots: u64,
    /// The limits that apply to the group.
    pub limits: GroupLimits,
    /// Whether these are its own. Otherwise, they are the default ones.
    pub has_own_limits: bool,
    /// How many items wait in the queue: counted up to a thousand items, or 200,000 bytes of them. Delayed items do not
    /// count.
    pub waiting: usize,
    /// Whether more items wait than were counted.
    pub waits_more: bool,
    /// Whether the group was [paused](Queue::pause_group).
    pub is_paused: bool,
    /// What the next waiting item waits for.
    pub state: GroupState,
}

/// What the next waiting item of a group waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupState {
    /// No item waits in the queue.
    Idle,
    /// The item waits for a consumer, or for the turn of its group.
    Ready,
    /// All slots are in use: by items that are held or, depending on the limits, wait, are delayed, or are dead
    /// letters. [`slot_holders`](Queue::slot_holders) names them.
    AtLimit,
    /// The rate lets it start at about this time, by the wall clock of this process.
    UntilRate(SystemTime),
    /// The group was [paused](Queue::pause_group), or its limit is zero.
    Paused,
    /// Its limits or its number of slots do not decode: it starts no items.
    Unreadable,
}

/// A page of the groups of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupPage {
    /// The groups, in the order of their bytes.
    pub groups: Vec<GroupStatus>,
    /// The group after which the next page begins. `None` if this is the last page.
    pub next: Option<Bytes>,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Stages the limits of a group, or that the default limits apply to it again. They take effect at the commit: a
    /// lower limit takes no slot from an item that has one, and all items that have slots count, whenever they got
    /// them. Dead letters that have slots keep them, also if dead letters do not block any more: redrive or purge them.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{GroupLimits, Queue, Result};
    /// /// Lets at most four jobs of a tenant run at a time.
    /// async fn tame(tr: &impl Transaction, jobs: &Queue<String>, tenant: &str) -> Result<()> {
    ///     let four = GroupLimits::new().with_limit(4);
    ///     jobs.configure_group(tr, tenant.as_bytes(), Some(&four)).await
    /// }
    /// ```
    /// # Conflicts
    /// Reads nothing. Writes the limits of the group, the same in a retry, which transactions read that start an item
    /// of the group, or end or give back one with a slot.
    ///
    /// # Errors
    /// [`Error::Group`] and [`Error::GroupLimits`]. Nothing is staged then.
    pub async fn configure_group(
        &self,
        tr: &impl Transaction,
        group: &[u8],
        limits: Option<&GroupLimits>,
    ) -> Result<()> {
        check_group(group)?;
        let keys = &*self.keys;
        let row = keys.group_limits(group);
        match limits {
            None => tr.clear(&row),
            Some(limits) => {
                limits.check()?;
                tr.set(&row, &limits.to_bytes());
            }
        }
        look_again(tr, keys, group);
        Ok(())
    }

    /// Stages a pause of a group: none of its items is granted until [`resume_group`](Self::resume_group). Its limits,
    /// its rate, and the slots and the order of its items stay as they are. Items that sessions already hold are not
    /// affected.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::{Database, Runner, Tx};
    /// # use hc_dequeue::{Queue, Result};
    /// /// Pauses a tenant, and returns whether none of its items has a slot any more.
    /// async fn drain<D: Database>(runner: &Runner<D>, jobs: &Queue<String>, tenant: &str) -> Result<bool> {
    ///     let pause = async |tr: Tx<_>| jobs.pause_group(&tr, tenant.as_bytes());
    ///     runner.run(pause).await?;
    ///     // Only a transaction that begins after the pause sees all items that were granted before it.
    ///     let look = async |tr: Tx<_>| jobs.group(&tr, tenant.as_bytes()).await;
    ///     Ok(runner.run(look).await?.slots == 0)
    /// }
    /// ```
    /// # Conflicts
    /// Reads nothing. Writes a key of the group, the same in a retry, which each grant of one of its items reads.
    ///
    /// # Errors
    /// [`Error::Group`]. Nothing is staged then.
    pub fn pause_group(&self, tr: &impl Transaction, group: &[u8]) -> Result<()> {
        check_group(group)?;
        tr.set(&self.keys.group_pause(group), b"");
        Ok(())
    }

    /// Stages the end of a [pause](Self::pause_group): items of the group are granted again, as its limits allow.
    ///
    /// # Conflicts
    /// As [`pause_group`](Self::pause_group). Also writes a notice and the wake stamp.
    ///
    /// # Errors
    /// As [`pause_group`](Self::pause_group).
    pub fn resume_group(&self, tr: &impl Transaction, group: &[u8]) -> Result<()> {
        check_group(group)?;
        let keys = &*self.keys;
        tr.clear(&keys.group_pause(group));
        look_again(tr, keys, group);
        Ok(())
    }

    /// Stages the default limits of all groups that have none of their own.
    ///
    /// They take effect at the commit. If they let items start that have waited, these start when a session has found
    /// the groups: it looks at its next heartbeat, and needs about a minute for 100,000 groups.
    ///
    /// # Conflicts
    /// Reads nothing. Writes the default limits, the same in a retry, which transactions read that start an item of a
    /// group without limits of its own, or end or give back one with a slot.
    ///
    /// # Errors
    /// [`Error::GroupLimits`]. Nothing is staged then.
    pub async fn configure_groups(
        &self,
        tr: &impl Transaction,
        limits: &GroupLimits,
    ) -> Result<()> {
        limits.check()?;
        let keys = &*self.keys;
        tr.set(&keys.group_limits(b""), &limits.to_bytes());
        tr.set_to_versionstamp(&keys.mark());
        keys.wake_all(tr);
        Ok(())
    }

    /// Returns the default limits of groups.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if they do not decode: then all groups without limits of their
    /// own are paused.
    pub async fn default_group_limits(&self, tr: &impl Transaction) -> Result<GroupLimits> {
        let row = default_row(tr, &self.keys).await?;
        let key = self.keys.group_limits(b"");
        let limits = row.map(|row| GroupLimits::parse(&key, &row)).transpose()?;
        Ok(limits.unwrap_or_default())
    }

    /// Returns the state of a group, of which no item need exist.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Error::Group`];
    /// [`Error::ReadAfterWrite`] after an enqueue with this group in the same transaction.
    pub async fn group(&self, tr: &impl Transaction, group: &[u8]) -> Result<GroupStatus> {
        check_group(group)?;
        let default = default_row(tr, &self.keys).await?;
        let group = Bytes::copy_from_slice(group);
        status_of(tr, &self.keys, group, default.as_deref()).await
    }

    /// Returns a page of the groups that have limits of their own, are paused, or have items that wait or have slots,
    /// or tokens missing: up to `limit` groups, at most 1,000, after the group `after`, or the first ones. Each group
    /// takes a few reads.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// As [`group`](Self::group).
    pub async fn groups(
        &self,
        tr: &impl Transaction,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<GroupPage> {
        let keys = &*self.keys;
        let limit = limit.min(MAX_PAGE_GROUPS);
        let default = default_row(tr, keys).await?;
        // The lane without a group has the default limits and the items that have come back.
        let mut last = Bytes::copy_from_slice(after.unwrap_or_default());
        let mut page = GroupPage {
            groups: Vec::new(),
            next: None,
        };
        while page.groups.len() < limit {
            let Some(group) = keys.next_lane(tr, Some(&last)).await? else {
                return Ok(page);
            };
            let status = status_of(tr, keys, group.clone(), default.as_deref()).await?;
            page.groups.push(status);
            last = group;
        }
        page.next = Some(last);
        Ok(page)
    }
}

/// Stages that sessions look at the lane of a group.
fn look_again(tr: &impl Transaction, keys: &Keys, group: &[u8]) {
    let mut changes = Changes::default();
    changes.add_notice(&Bytes::copy_from_slice(group), RANK_OF_SLOT);
    changes.wake();
    changes.stage(tr, keys);
}

async fn default_row(tr: &impl Transaction, keys: &Keys) -> Result<Option<Bytes>> {
    // Safe as a snapshot read: nothing is written.
    Ok(tr.get(&keys.group_limits(b""), Isolation::Snapshot).await?)
}

/// Reads the state of a group.
async fn status_of(
    tr: &impl Transaction,
    keys: &Keys,
    group: Bytes,
    default: Option<&[u8]>,
) -> Result<GroupStatus> {
    let limits_row = keys.group_limits(&group);
    let pause_row = keys.group_pause(&group);
    let slots_row = keys.slots(&group);
    let level_row = keys.level(&group);
    // Safe as snapshot reads, as above.
    let get = |row| tr.get(row, Isolation::Snapshot).map_err(Error::from);
    let (own, pause, slots, level, waiting) = try_join!(
        get(&limits_row),
        get(&pause_row),
        get(&slots_row),
        get(&level_row),
        count_waiting(tr, keys, &group)
    )?;
    let limits = own.as_deref().or(default);
    let is_readable = limits.is_none_or(|row| GroupLimits::parse(&limits_row, row).is_ok());
    let limits = limits.map(GroupLimits::parse_or_pause).unwrap_or_default();
    let slots = match slots {
        None => Some(0),
        Some(row) => parse_count(&slots_row, &row)
            .ok()
            .and_then(|slots| u64::try_from(slots).ok()),
    };
    let state = match (limits.limit(), slots) {
        _ if !is_readable => GroupState::Unreadable,
        (_, None) => GroupState::Unreadable,
        (Some(0), _) => GroupState::Paused,
        _ if pause.is_some() => GroupState::Paused,
        _ if waiting.count == 0 => GroupState::Idle,
        (Some(limit), Some(slots)) if slots >= limit.into() && !waiting.first_has_slot => {
            GroupState::AtLimit
        }
        _ => {
            let level = level.map(|row| level_in(&KeyValue::new(&level_row, &row)));
            match limits.rate() {
                None => GroupState::Ready,
                Some(rate) => {
                    let bucket = Bucket::new(rate, tr.read_version().await?, level);
                    state_of_rate(bucket, wall_millis(&keys.env))
                }
            }
        }
    };
    Ok(GroupStatus {
        group,
        slots: slots.unwrap_or(0),
        limits,
        has_own_limits: own.is_some(),
        waiting: waiting.count,
        waits_more: waiting.has_more,
        is_paused: pause.is_some(),
        state,
    })
}

fn state_of_rate(bucket: Bucket, wall_millis: u64) -> GroupState {
    if bucket.may_start() {
        return GroupState::Ready;
    }
    let wait = bucket.millis_until(bucket.next());
    GroupState::UntilRate(unix_time(wall_millis.saturating_add(wait)))
}

/// The items of a group that wait in the queue.
#[derive(Default)]
struct WaitingItems {
    count: usize,
    has_more: bool,
    first_has_slot: bool,
}

async fn count_waiting(tr: &impl Transaction, keys: &Keys, group: &[u8]) -> Result<WaitingItems> {
    let (begin, end) = keys.items_of_lane(group);
    let query = RangeQuery::keys(begin, end).mode(StreamingMode::WantAll);
    let mut waiting = WaitingItems::default();
    let mut bytes = 0;
    let visited = visit_rows(tr, query, Isolation::Snapshot, |row| {
        if waiting.count == MAX_COUNTED_ITEMS || bytes >= MAX_COUNTED_BYTES {
            waiting.has_more = true;
            return Ok(ControlFlow::Break(()));
        }
        if waiting.count == 0 {
            waiting.first_has_slot = keys.parse_lane(row.key())?.rank == Some(RANK_OF_SLOT);
        }
        waiting.count += 1;
        bytes += row.key().len() + row.value().len();
        Ok::<_, Error>(ControlFlow::Continue(()))
    });
    visited.await?;
    Ok(waiting)
}
