//! Priorities of items, and the ranks by which their keys sort.

/// The highest priority of an item. The lowest one is its negative.
pub const MAX_PRIORITY: i8 = 9;

/// The rank in a lane of the items that have a slot: before all priorities.
pub(crate) const RANK_OF_SLOT: u8 = 0;

/// The rank of the highest priority is 1.
const RANK_OF_ZERO: i8 = MAX_PRIORITY + 1;

/// The priority of an item: items of a higher one are granted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Priority(i8);

impl Priority {
    pub(crate) const DEFAULT: Self = Self(0);

    /// The number of priorities.
    pub(crate) const COUNT: usize = 2 * MAX_PRIORITY as usize + 1;

    /// Returns a priority, unless it is too high or too low.
    pub(crate) fn new(priority: i8) -> Option<Self> {
        if (-MAX_PRIORITY..=MAX_PRIORITY).contains(&priority) {
            Some(Self(priority))
        } else {
            None
        }
    }

    /// Returns all priorities, the highest one first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (-MAX_PRIORITY..=MAX_PRIORITY).rev().map(Self)
    }

    /// Returns the priority of a rank.
    pub(crate) fn of_rank(rank: u8) -> Option<Self> {
        if !(1..=Self::COUNT).contains(&usize::from(rank)) {
            return None;
        }
        Some(Self(RANK_OF_ZERO - rank as i8))
    }

    /// Returns the rank: 1 for the highest priority, 19 for the lowest.
    pub(crate) fn rank(self) -> u8 {
        (RANK_OF_ZERO - self.0).unsigned_abs()
    }

    pub(crate) fn get(self) -> i8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_priorities_have_smaller_ranks() {
        let ranks = (-MAX_PRIORITY..=MAX_PRIORITY).map(|priority| {
            let priority = Priority::new(priority).unwrap();
            assert_eq!(Priority::of_rank(priority.rank()), Some(priority));
            priority.rank()
        });
        assert!(ranks.eq((1..=19).rev()));
        for no_rank in [0, 20, u8::MAX] {
            assert_eq!(Priority::of_rank(no_rank), None);
        }
        for priority in [-10, 10, i8::MIN, i8::MAX] {
            assert_eq!(Priority::new(priority), None);
        }
    }
}
