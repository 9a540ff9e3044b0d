//! Lanes: items that wait by group, under limits, in turns.
//!
//! - [`walk`]: decides, as pure code, which waiting items are granted, and which lanes must be read for that.
//! - [`ring`]: whose turn it is.
//! - [`bucket`]: when the items of a group with a rate may start.
//! - [`look`]: reads lanes for a walk; [`rows`], their rows.
//! - [`settle`]: stages what follows from a look.
//! - [`parked`]: lanes that wait for their rates.
//! - [`sweep`]: writes notices of all lanes after a change of the default limits.
//! - `operations`: limits and pauses of groups, and their states.
//! - `holders`: the items that have slots.
//! - `audit`: checks the rows of lanes.
//!
//! # Notices
//!
//! A session finds out by *notices* which lanes have something to grant. Whatever may make a lane grantable writes a
//! notice blindly: an enqueue, a return, a freed slot, a new limit. Its value is a versionstamp. A session that *looks*
//! at a lane removes the notices that it has seen if nothing is left to grant, each only if it still has the value that
//! was read. So no notice is lost that was written since.
//!
//! **Invariant:** if a lane has an item that may be granted, it has a notice of that item's rank or a lower one. An
//! item that has a slot has the rank 0 here.
//!
//! A rank of 0 also says that it is not known at which rank the lane has something to grant. Such a lane is read before
//! anything is granted.
//!
//! # Slots
//!
//! A *slot* is a flag in the record of an item. The number of flags of a group is stored beside its lane, and changes
//! in the commits that set and clear them. A transaction that starts an item of a limited group reads and writes the
//! group's *gate*. Two of them therefore conflict, and the number, which is read by snapshot, is never too low:
//! transactions that only free slots lower it.
//!
//! A look at the lane of a *paused* group sees a limit of zero, whatever its limits are. A transaction that starts an
//! item reads the pause and the limits of the group in one conflict range, and one that frees a slot only the limits.
//!
//! # Rates
//!
//! The items of a group with a rate start as its [`bucket`] allows, whose level is a row of the lane. A lane that
//! waits for its rate has no notice but is *parked*: a row names it, with the version at which its next item may start,
//! and another row of the lane contains that version. From this version on, a session looks at the lane as if it had a
//! notice, and replaces or removes both rows. No wall clock decides that: sessions with a wrong one do not delay
//! starts.
//!
//! **Invariant:** if only the rate keeps an item of a lane from being granted, the lane has a notice or is parked, no
//! longer than the rate needs. A transaction that starts an item of a group with a rate, gives a token back, or parks
//! its lane, ends that, or relies on it, reads and writes the gate.
//!
//! An item that takes a token is granted only for a handler that waits, and not for a [reserve](crate::consume): it
//! would not be known after the death of its session whether a handler got it. If no handler gets it, its return gives
//! the token back.
//!
//! A lane in which nothing waits is parked, too, until its bucket is full. Then the number is removed: an idle group
//! leaves nothing. Such a row may be later than an item needs that comes meanwhile, and is replaced.

pub(crate) mod audit;
pub(crate) mod bucket;
pub(crate) mod holders;
pub(crate) mod look;
pub(crate) mod operations;
pub(crate) mod parked;
pub(crate) mod ring;
pub(crate) mod rows;
pub(crate) mod settle;
pub(crate) mod sweep;
#[cfg(test)]
mod tests;
pub(crate) mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use microqueue::ItemId;
use microqueue::keyspace::limits::VERSIONS_PER_SECOND;
use microqueue::keyspace::{Bytes, Environment};
use parking_lot::Mutex;

use self::ring::{Ring, Turn};
use crate::items::front::Front;
use crate::items::keys::lane_hash;
use crate::items::kind::Kinds;

/// For how long a session passes over notices of a lane from which it may take nothing, because its rows do not decode
/// or are items of kinds that the session does not take.
const VAIN_FOR: Duration = Duration::from_secs(10);

/// From this number of such notices on, a session forgets them.
const MAX_VAIN: usize = 20_000;

/// A lane, in the order in which lanes have their turns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneId {
    pub(crate) hash: u16,
    pub(crate) group: Bytes,
}

impl LaneId {
    /// Before all lanes.
    pub(crate) const FIRST: Self = Self {
        hash: 0,
        group: Bytes::new(),
    };

    pub(crate) fn of(group: &Bytes) -> Self {
        Self {
            hash: lane_hash(group),
            group: group.clone(),
        }
    }
}

/// What a transaction has taken.
#[derive(Debug, Default)]
pub(crate) struct Gone {
    pub(crate) items: BTreeSet<ItemId>,
    pub(crate) groups: BTreeSet<Bytes>,
}

/// Returns how many versions a store counts in a time.
pub(crate) fn versions_in(time: Duration) -> i64 {
    const { assert!(VERSIONS_PER_SECOND == 1_000_000) };
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// What a session knows of lanes.
#[derive(Debug)]
pub(crate) struct LaneMemory {
    /// Which items it takes.
    kinds: Arc<Kinds>,
    /// The first notices.
    notices: Front,
    /// Whether there were notices when the session last looked for them.
    saw_notices: AtomicBool,
    /// Whether there were parked lanes when the session last looked for them.
    saw_parked: AtomicBool,
    /// The newest read version of a look for parked lanes, and when the session learned of it.
    newest: Mutex<Option<(i64, Duration)>>,
    /// The rank at which there were more notices than the last read has returned.
    crowded: Mutex<Option<u8>>,
    /// Whether the turn of an item that is in no lane may be next.
    owes_outside: AtomicBool,
    ring: Mutex<Ring>,
    /// Notices of lanes from which the session may take nothing.
    vain: Mutex<Vain>,
    /// What the looks since the last report have met.
    met: Mutex<Met>,
}

/// Notices that a session passes over.
#[derive(Debug, Default)]
struct Vain {
    /// The value of each, and until when.
    notices: BTreeMap<(u8, LaneId), (Bytes, Duration)>,
    /// The latest of these times.
    until: Duration,
}

/// What looks at lanes have met. A transaction that is retried counts again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Met {
    /// How many lanes were read.
    pub(crate) lanes: u64,
    /// How many of them had an item that needed a slot while all were in use.
    pub(crate) at_limit: u64,
    /// How many of them had an item that waited for the rate of its group.
    pub(crate) rate_waits: u64,
    /// How many looks granted nothing.
    pub(crate) fruitless: u64,
}

impl LaneMemory {
    pub(crate) fn new(ring: Ring) -> Self {
        Self {
            kinds: Arc::new(Kinds::all()),
            notices: Front::new(Duration::ZERO),
            saw_notices: AtomicBool::new(false),
            saw_parked: AtomicBool::new(false),
            newest: Mutex::default(),
            crowded: Mutex::default(),
            vain: Mutex::default(),
            owes_outside: AtomicBool::new(false),
            ring: Mutex::new(ring),
            met: Mutex::default(),
        }
    }

    /// Returns the memory of a session that takes items of these kinds.
    #[cfg(test)]
    pub(crate) fn taking(kinds: Kinds, ring: Ring) -> Self {
        Self {
            kinds: Arc::new(kinds),
            ..Self::new(ring)
        }
    }

    /// Returns the memory of a new session that takes items of these kinds, and begins anywhere in the ring.
    /// It searches the first notices again at most once per `interval`.
    pub(crate) fn of_session(kinds: Arc<Kinds>, interval: Duration, env: &Environment) -> Self {
        let ring = Ring::beginning_at(u16::from_be_bytes(env.random_bytes()));
        Self {
            kinds,
            notices: Front::new(interval),
            ..Self::new(ring)
        }
    }

    /// Returns which items the session takes.
    pub(crate) fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// Returns a copy of the ring.
    pub(crate) fn ring(&self) -> Ring {
        self.ring.lock().clone()
    }

    /// Returns the place of a level in the ring, as [`Ring::place`] does.
    pub(crate) fn place(&self, rank: u8) -> (LaneId, bool) {
        self.ring.lock().place(rank)
    }

    /// Notes that items were granted that are in no lane, while there were no others.
    pub(crate) fn note_outside(&self) {
        if self.owes_outside.swap(false, Ordering::Relaxed) {
            self.ring.lock().forget_outside();
        }
    }

    /// Notes that items were granted.
    pub(crate) fn apply(&self, turns: impl Iterator<Item = Turn>) {
        let mut ring = self.ring.lock();
        turns.for_each(|turn| ring.apply(turn));
        self.owes_outside.store(true, Ordering::Relaxed);
    }

    /// Forgets all turns.
    #[cfg(test)]
    pub(crate) fn begin_again(&self) {
        *self.ring.lock() = Ring::beginning_at(0);
    }

    /// Notes what a look has met.
    fn note(&self, met: Met) {
        let mut all = self.met.lock();
        all.lanes += met.lanes;
        all.at_limit += met.at_limit;
        all.rate_waits += met.rate_waits;
        all.fruitless += met.fruitless;
    }

    /// Returns what looks have met since the last call.
    pub(crate) fn take_met(&self) -> Met {
        std::mem::take(&mut self.met.lock())
    }

    /// Notes that the session may take nothing from a lane with these notices.
    fn note_vain(&self, now: Duration, lane: &LaneId, notices: &[(u8, Bytes)]) {
        let mut vain = self.vain.lock();
        if vain.notices.len() >= MAX_VAIN {
            vain.notices.clear();
        }
        let until = now.saturating_add(VAIN_FOR);
        vain.until = until;
        for (rank, value) in notices {
            vain.notices
                .insert((*rank, lane.clone()), (value.clone(), until));
        }
    }

    /// Returns whether the session passes over a notice with this value.
    fn is_vain(&self, now: Duration, rank: u8, lane: &LaneId, value: &Bytes) -> bool {
        let vain = &mut self.vain.lock().notices;
        if vain.is_empty() {
            return false;
        }
        let notice = (rank, lane.clone());
        let is_over = |(known, until): &(Bytes, Duration)| known != value || *until <= now;
        if vain.get(&notice).is_some_and(is_over) {
            vain.remove(&notice);
        }
        vain.contains_key(&notice)
    }

    /// Returns in which time the session must search the first notices again, as [`Front::owed_in`] does.
    pub(crate) fn owed_in(&self, now: Duration) -> Option<Duration> {
        self.notices.owed_in(now)
    }

    pub(crate) fn crowded(&self) -> Option<u8> {
        *self.crowded.lock()
    }

    pub(crate) fn note_crowded(&self, rank: Option<u8>) {
        *self.crowded.lock() = rank;
    }

    pub(crate) fn saw_parked(&self) -> bool {
        self.saw_parked.load(Ordering::Relaxed)
    }

    pub(crate) fn note_parked(&self, are_there: bool) {
        self.saw_parked.store(are_there, Ordering::Relaxed);
    }

    /// Returns the version that the store has reached, as far as a read version and the time since newer ones tell. A
    /// store in which nothing is committed returns an old read version again. If the store is behind what this returns,
    /// a look is too early, and its commit makes the next read version a new one.
    fn version_at(&self, read_version: i64, now: Duration) -> i64 {
        let mut newest = self.newest.lock();
        match *newest {
            Some((version, since)) if read_version <= version => {
                version.saturating_add(versions_in(now.saturating_sub(since)))
            }
            _ => {
                *newest = Some((read_version, now));
                read_version
            }
        }
    }

    pub(crate) fn saw_notices(&self) -> bool {
        self.saw_notices.load(Ordering::Relaxed)
    }

    /// Notes whether there are notices that the session does not pass over. It forgets the others once it would look at
    /// all of them again.
    pub(crate) fn note_notices(&self, now: Duration, are_there: bool) {
        let mut vain = self.vain.lock();
        if vain.until <= now {
            vain.notices.clear();
        }
        let are_there = are_there || !vain.notices.is_empty();
        self.saw_notices.store(are_there, Ordering::Relaxed);
    }
}
