//! Decides which waiting items are granted next, without a store.
//!
//! A [`Walk`] knows the items that are in no lane, the notices, and the lanes that were read. [`Walk::next`] returns
//! the next item to grant, or which lanes must be read before that is known. Higher priorities come first. At the same
//! level, items that are in no lane alternate with items of lanes, and lanes have their turns by the [`Ring`].
//!
//! The items granted are a prefix of the items picked: what a pick takes depends only on the picks before it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use super::LaneId;
use super::bucket::Bucket;
use super::ring::{Ring, Turn};
use crate::items::group_limits::GroupLimits;
use crate::items::priority::RANK_OF_SLOT;

/// The largest number of lanes that are read at the same time. `try_join_all` needs no queue for this many.
const MAX_CONCURRENT_LANES: usize = 30;

/// A waiting item, as a walk sees it.
pub(crate) trait Waiting {
    /// Returns the rank of its priority.
    fn rank(&self) -> u8;

    fn has_slot(&self) -> bool;
}

/// A lane that was read.
#[derive(Debug, Clone)]
pub(crate) struct Lane<I> {
    pub(crate) limits: GroupLimits,
    /// How many slots are in use.
    pub(crate) slots: i64,
    /// The tokens that are left, if the group has a rate.
    pub(crate) bucket: Option<Bucket>,
    /// The items that were read and not picked.
    pub(crate) items: VecDeque<I>,
    /// Whether there are more.
    pub(crate) has_more: bool,
    /// The last item that was picked, or else the place before all items.
    pub(crate) last: Head,
}

/// What counts of the first item of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// The rank of its priority.
    pub(crate) rank: u8,
    /// The rank of its lane's notice of it.
    pub(crate) notice: u8,
}

impl Head {
    /// Before all items.
    pub(crate) const FIRST: Self = Self {
        rank: 1,
        notice: RANK_OF_SLOT,
    };

    pub(crate) fn of(item: &impl Waiting) -> Self {
        let rank = item.rank();
        Self {
            rank,
            notice: if item.has_slot() { RANK_OF_SLOT } else { rank },
        }
    }
}

impl<I: Waiting> Lane<I> {
    /// Returns the next item or, if it was not read, the one before it: the next one has the same rank or a higher one.
    pub(crate) fn next(&self) -> Option<Head> {
        match self.items.front() {
            Some(item) => Some(Head::of(item)),
            None if self.has_more => Some(self.last),
            None => None,
        }
    }

    /// Returns whether there is a slot for an item when this many are in use.
    pub(crate) fn has_slot_for(&self, item: Head, slots: i64) -> bool {
        match self.limits.limit() {
            None => true,
            Some(0) => false,
            Some(limit) => item.notice == RANK_OF_SLOT || slots < limit.into(),
        }
    }

    /// Returns the rank of the next item, if it may be granted.
    fn level(&self) -> Option<u8> {
        let next = self.next()?;
        if !self.has_slot_for(next, self.slots) {
            return None;
        }
        match &self.bucket {
            Some(bucket) if !bucket.may_start() => None,
            _ => Some(next.rank),
        }
    }

    fn pick(&mut self) -> Option<I> {
        let item = self.items.pop_front()?;
        self.last = Head::of(&item);
        self.slots += i64::from(!item.has_slot());
        if let Some(bucket) = &mut self.bucket {
            bucket.start();
        }
        Some(item)
    }
}

/// An item to grant.
#[derive(Debug, Clone)]
pub(crate) struct Pick<I> {
    pub(crate) item: I,
    pub(crate) turn: Turn,
}

/// What a walk needs or does next.
#[derive(Debug)]
pub(crate) enum Next<I> {
    Pick(Pick<I>),
    /// These lanes must be read.
    Read(Vec<LaneId>),
    /// More items of this lane must be read.
    ReadOn(LaneId),
    /// Nothing else may be granted. If the walk is not complete, there may be notices that it does not know.
    End {
        is_complete: bool,
    },
}

/// The state of a walk.
#[derive(Debug)]
pub(crate) struct Walk<I> {
    /// The items that are in no lane.
    outside: VecDeque<I>,
    lanes: BTreeMap<LaneId, Lane<I>>,
    /// The lanes that may have something to grant: those that were read at their levels, the others at the ranks of
    /// their notices.
    levels: BTreeSet<(u8, LaneId)>,
    /// The rank of the last notice, if there may be others after it.
    cut: Option<u8>,
    has_given_up: bool,
    ring: Ring,
}

impl<I: Waiting> Walk<I> {
    pub(crate) fn new(
        outside: Vec<I>,
        notices: impl IntoIterator<Item = (u8, LaneId)>,
        cut: Option<u8>,
        ring: Ring,
    ) -> Self {
        Self {
            outside: outside.into(),
            lanes: BTreeMap::new(),
            levels: notices.into_iter().collect(),
            cut,
            has_given_up: false,
            ring,
        }
    }

    /// Adds a lane that was read, and that has notices of these ranks.
    pub(crate) fn add(&mut self, id: LaneId, lane: Lane<I>, notices: impl Iterator<Item = u8>) {
        for rank in notices.chain([RANK_OF_SLOT]) {
            self.levels.remove(&(rank, id.clone()));
        }
        self.lanes.insert(id.clone(), lane);
        self.change(id, |_| ());
    }

    /// Changes a lane that was read.
    pub(crate) fn change<R>(&mut self, id: LaneId, change: impl FnOnce(&mut Lane<I>) -> R) -> R {
        let lane = self.lanes.get_mut(&id).expect("the lane was read");
        let before = lane.level();
        let changed = change(lane);
        let after = lane.level();
        if let Some(level) = before
            && after != before
        {
            self.levels.remove(&(level, id.clone()));
        }
        if let Some(level) = after {
            self.levels.insert((level, id));
        }
        changed
    }

    /// Returns the notices of lanes that were not read.
    fn unread(&self) -> impl Iterator<Item = &(u8, LaneId)> {
        let is_unread = |(_, id): &&(u8, LaneId)| !self.lanes.contains_key(id);
        self.levels.iter().filter(is_unread)
    }

    /// Returns how many notices there are of lanes that were not read.
    pub(crate) fn count_unread(&self) -> usize {
        self.unread().count()
    }

    /// Gives up on lanes that were not read. They may have items of the level of their notices, so nothing of a lower
    /// priority is granted. Only lanes of an unknown level are passed over: others might never be granted otherwise.
    pub(crate) fn give_up(&mut self) {
        self.has_given_up = true;
        let Some(first) = self.unread().next().map(|(rank, _)| *rank) else {
            return;
        };
        if first != RANK_OF_SLOT {
            self.cut = Some(first);
        }
        let Self { levels, lanes, .. } = self;
        let stays = |rank: u8| first == RANK_OF_SLOT && rank != RANK_OF_SLOT;
        levels.retain(|(rank, id)| lanes.contains_key(id) || stays(*rank));
    }

    /// Returns the lanes that were read, with what is left of them.
    pub(crate) fn into_lanes(self) -> BTreeMap<LaneId, Lane<I>> {
        self.lanes
    }

    pub(crate) fn next(&mut self) -> Next<I> {
        let of_outside = self.outside.front().map(Waiting::rank);
        let of_lanes = self.levels.first().map(|(rank, _)| *rank);
        let level = of_outside.into_iter().chain(of_lanes).min();
        let Some(level) = level.filter(|level| self.cut.is_none_or(|cut| *level <= cut)) else {
            return Next::End {
                is_complete: self.cut.is_none() && !self.has_given_up,
            };
        };
        let is_alone = of_lanes != Some(level);
        if of_outside == Some(level) && (is_alone || self.ring.is_outside_next(level)) {
            let item = self.outside.pop_front();
            return self.pick(item, Turn::Outside { rank: level });
        }
        let lane = self.turns(level).next();
        let lane = lane.expect("the level has a lane").clone();
        let Some(known) = self.lanes.get(&lane) else {
            let unread = self.turns(level);
            let unread = unread.filter(|id| !self.lanes.contains_key(id));
            return Next::Read(unread.take(MAX_CONCURRENT_LANES).cloned().collect());
        };
        let left = self.ring.left_after(level, &lane, known.limits.weight());
        match self.change(lane.clone(), Lane::pick) {
            None => Next::ReadOn(lane),
            Some(item) => {
                let rank = level;
                self.pick(Some(item), Turn::Lane { rank, lane, left })
            }
        }
    }

    fn pick(&mut self, item: Option<I>, turn: Turn) -> Next<I> {
        let item = item.expect("there is an item");
        self.ring.apply(turn.clone());
        Next::Pick(Pick { item, turn })
    }

    /// Returns the lanes of a level in the order of their turns, from the one on whose turn it is.
    fn turns(&self, level: u8) -> impl Iterator<Item = &LaneId> {
        let (place, is_included) = self.ring.place(level);
        let place = (level, place);
        let first = (level, LaneId::FIRST);
        let (after, before) = if is_included {
            (Bound::Included(&place), Bound::Excluded(&place))
        } else {
            (Bound::Excluded(&place), Bound::Included(&place))
        };
        let after = self.levels.range((after, Bound::Unbounded));
        let before = self.levels.range((Bound::Included(&first), before));
        let after = after.take_while(move |(rank, _)| *rank == level);
        after.chain(before).map(|(_, id)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An item of a rank that has no slot.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Plain(u8);

    impl Waiting for Plain {
        fn rank(&self) -> u8 {
            self.0
        }

        fn has_slot(&self) -> bool {
            false
        }
    }

    fn id(hash: u16) -> LaneId {
        LaneId {
            hash,
            group: hash.to_be_bytes().to_vec().into(),
        }
    }

    fn lane(ranks: &[u8], has_more: bool) -> Lane<Plain> {
        Lane {
            limits: GroupLimits::new(),
            slots: 0,
            bucket: None,
            items: ranks.iter().copied().map(Plain).collect(),
            has_more,
            last: Head::FIRST,
        }
    }

    fn ring() -> Ring {
        Ring::beginning_at(0)
    }

    fn picked(walk: &mut Walk<Plain>) -> u8 {
        match walk.next() {
            Next::Pick(pick) => pick.item.0,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_level_is_not_decided_while_there_may_be_unread_notices_of_a_higher_one() {
        let mut walk = Walk::new(vec![Plain(10), Plain(12)], [(9, id(1))], Some(10), ring());
        assert!(matches!(&walk.next(), Next::Read(lanes) if *lanes == [id(1)]));
        walk.add(id(1), lane(&[9], false), [9].into_iter());
        assert_eq!(picked(&mut walk), 9);
        assert_eq!(picked(&mut walk), 10);
        // There may be a notice of rank 11.
        assert!(matches!(walk.next(), Next::End { is_complete: false }));
        let mut walk = Walk::new(vec![Plain(12)], [], None, ring());
        assert_eq!(picked(&mut walk), 12);
        assert!(matches!(walk.next(), Next::End { is_complete: true }));
    }

    #[test]
    fn lanes_of_which_the_level_is_not_known_are_read_first() {
        let notices = [(0, id(7)), (0, id(3)), (5, id(1))];
        let mut walk = Walk::new(vec![Plain(1)], notices, None, ring());
        assert!(matches!(&walk.next(), Next::Read(lanes) if *lanes == [id(3), id(7)]));
        walk.add(id(3), lane(&[], false), [0].into_iter());
        walk.add(id(7), lane(&[8], false), [0].into_iter());
        assert_eq!(picked(&mut walk), 1);
        assert!(matches!(&walk.next(), Next::Read(lanes) if *lanes == [id(1)]));
        // Without that lane, the walk does not go on to lower priorities.
        walk.give_up();
        assert!(matches!(walk.next(), Next::End { is_complete: false }));
        // It goes on without lanes of which the level is not known.
        let mut walk = Walk::new(vec![Plain(4)], [(0, id(1))], None, ring());
        walk.give_up();
        assert_eq!(picked(&mut walk), 4);
        assert!(matches!(walk.next(), Next::End { is_complete: false }));
    }

    #[test]
    fn a_lane_is_read_on_when_its_turn_comes() {
        let mut walk = Walk::new(vec![Plain(4), Plain(4)], [], None, ring());
        walk.add(id(1), lane(&[4], true), [].into_iter());
        assert_eq!(picked(&mut walk), 4);
        assert_eq!(picked(&mut walk), 4);
        assert!(matches!(&walk.next(), Next::ReadOn(lane) if *lane == id(1)));
        walk.change(id(1), |lane| {
            lane.items.push_back(Plain(6));
            lane.has_more = false;
        });
        // Its next item has a lower priority than the one that is in no lane.
        assert_eq!(picked(&mut walk), 4);
        assert_eq!(picked(&mut walk), 6);
        assert!(matches!(walk.next(), Next::End { is_complete: true }));
    }
}
