//! What may happen in a world.

use crate::items::group_limits::GroupLimits;
use crate::protocol::Purpose;

/// Two sessions that take items.
pub(super) const SESSIONS: usize = 2;

/// How time passes where groups have rates. The unit is a millisecond of wall time, or a thousand versions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time {
    /// When it ends.
    pub(super) end: u8,
    /// By how much the wall clock of each session is ahead, or `None` if the session does not trust it.
    pub(super) ahead: [Option<u8>; SESSIONS],
    /// By how much a read version may lag behind, unless a commit is newer.
    pub(super) lag: u8,
}

/// No time passes.
pub(super) const TIMELESS: Time = Time {
    end: 0,
    ahead: [Some(0); SESSIONS],
    lag: 0,
};

/// The versions of a unit of time.
pub(super) const UNIT: i64 = 1_000;

/// What an item has from its enqueue on.
#[derive(Debug, Clone, Copy)]
pub(super) struct ItemSpec {
    /// Empty for an item without a group.
    pub(super) group: &'static [u8],
    pub(super) priority: i8,
}

/// What may happen.
#[derive(Debug, Clone)]
pub(super) struct World {
    /// Each of these is enqueued once, at any time.
    pub(super) items: Vec<ItemSpec>,
    /// The limits at the beginning.
    pub(super) limits: Vec<(&'static [u8], GroupLimits)>,
    /// What each session does with its items.
    pub(super) purposes: [Purpose; SESSIONS],
    /// How held items go back, in transactions of their own and in takes.
    pub(super) returns: Vec<How>,
    /// What else happens.
    pub(super) ops: Vec<Op>,
    /// How often limits change, and groups are paused or resumed.
    pub(super) changes: u8,
    /// How often a session goes on without the outcome of a take, which may commit at any later time.
    pub(super) doubts: u8,
    /// Whether the first death of its session makes an item a dead letter.
    pub(super) is_mortal: bool,
    pub(super) time: Time,
}

/// How a held item goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum How {
    Complete,
    Release,
    /// No handler got it.
    Unused,
    /// It is due at once, and must be promoted.
    Delay,
    Discard,
}

/// A transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Op {
    Enqueue(usize),
    /// A session takes an item and, before that, may give one back.
    Take(usize, Option<(usize, How)>),
    /// The first session takes an item with a view that it has read while its last take commits.
    TakeAhead,
    /// A session gives an item back.
    Return(usize, usize, How),
    Cancel(usize),
    Redrive(usize),
    Purge(usize),
    /// Limits of a group, or default limits, are set or removed.
    Configure(&'static [u8], Option<GroupLimits>),
    /// A group is paused.
    Pause(&'static [u8]),
    /// The pause of a group ends.
    Resume(&'static [u8]),
    Sweep,
    /// Time passes.
    Tick,
    /// The second session registers a request.
    Register,
    /// The first session answers it.
    Fulfill,
    /// The second session collects the answer.
    Collect,
    /// The second session is declared dead.
    Die,
    /// The first session returns its items.
    Reclaim,
}
