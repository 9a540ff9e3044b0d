//! The worlds of the model: what items, sessions and limits there are.

use super::spec::{How, Op, Time, World};
use super::{A, BLOCKED, ONE, ORDERED, RATE, RATED, SLOW, TWO, item, pair};
use crate::items::group_limits::GroupLimits;
use crate::protocol::Purpose;

pub(super) const TIME: Time = Time {
    end: 5,
    ahead: [Some(0), Some(2)],
    lag: 1,
};

pub(super) const BRIEF: Time = Time {
    end: 2,
    ahead: [Some(0), Some(1)],
    lag: 0,
};

/// A world in which a group has a rate.
pub(super) fn rated() -> World {
    World {
        limits: vec![(A, RATED)],
        purposes: [Purpose::Pop; 2],
        time: TIME,
        ..pair()
    }
}

/// A world in which items go back that no handler got.
pub(super) fn unused() -> World {
    World {
        purposes: [Purpose::Deliver; 2],
        returns: vec![How::Unused, How::Release],
        time: Time { end: 3, ..TIME },
        ..rated()
    }
}

/// A world in which two items start at once, and go back.
pub(super) fn unused_of_a_burst() -> World {
    World {
        limits: vec![(A, GroupLimits::new().with_rate(RATE.with_burst(2)))],
        ..unused()
    }
}

/// A world in which two of three items start at once.
pub(super) fn bursts() -> World {
    World {
        items: vec![item(A, 0), item(A, 0), item(A, 0)],
        limits: vec![(A, GroupLimits::new().with_rate(RATE.with_burst(2)))],
        time: BRIEF,
        ..rated()
    }
}

/// A world in which three items start one after the other.
pub(super) fn one_by_one() -> World {
    World {
        limits: vec![(A, RATED)],
        ..bursts()
    }
}

/// A world in which a group had a slower rate.
pub(super) fn slow_before() -> World {
    World {
        limits: vec![(A, SLOW)],
        ops: vec![Op::Configure(A, Some(RATED))],
        changes: 1,
        time: BRIEF,
        ..rated()
    }
}

pub(super) fn returns() -> World {
    World {
        returns: vec![How::Complete, How::Release],
        ..pair()
    }
}

pub(super) fn ordered() -> World {
    World {
        limits: vec![(A, ORDERED)],
        returns: vec![How::Complete, How::Release, How::Discard],
        ops: vec![Op::Redrive(0), Op::Purge(0), Op::Cancel(0)],
        ..pair()
    }
}

pub(super) fn blocked() -> World {
    World {
        limits: vec![(A, BLOCKED)],
        ..ordered()
    }
}

/// A world in which sessions discard items, and go on without the outcome.
pub(super) fn dying() -> World {
    World {
        limits: vec![(A, GroupLimits::new())],
        returns: vec![How::Discard],
        ops: vec![Op::Redrive(0), Op::Cancel(0), Op::Purge(0)],
        doubts: 2,
        ..pair()
    }
}

/// A world in which items die with their session.
pub(super) fn dying_with_sessions() -> World {
    World {
        ops: vec![Op::Redrive(0), Op::Die, Op::Reclaim],
        doubts: 1,
        is_mortal: true,
        ..dying()
    }
}

/// A world in which items die in no other way.
pub(super) fn dead_by_sessions_alone() -> World {
    World {
        returns: vec![],
        ..dying_with_sessions()
    }
}

pub(super) fn configured() -> World {
    World {
        limits: vec![(A, GroupLimits::new().with_limit(0))],
        ops: vec![Op::Configure(A, Some(ONE)), Op::Configure(A, Some(ORDERED))],
        changes: 2,
        ..returns()
    }
}

pub(super) fn unlimited() -> World {
    World {
        limits: vec![],
        ..configured()
    }
}

pub(super) fn swept() -> World {
    World {
        limits: vec![(b"", GroupLimits::new().with_limit(0))],
        ops: vec![Op::Configure(b"", Some(ONE)), Op::Sweep],
        changes: 1,
        ..pair()
    }
}

pub(super) fn granted() -> World {
    World {
        ops: vec![Op::Register, Op::Fulfill, Op::Collect, Op::Die, Op::Reclaim],
        ..pair()
    }
}

pub(super) fn pops() -> World {
    World {
        purposes: [Purpose::Deliver, Purpose::Pop],
        ..pair()
    }
}

/// A world in which the first session reads ahead.
pub(super) fn ahead() -> World {
    World {
        items: vec![item(A, 0), item(A, 0), item(b"", 0)],
        limits: vec![],
        ops: vec![Op::TakeAhead],
        ..pair()
    }
}

/// A world in which a group without limits is paused by its flag, and resumed.
pub(super) fn resumed() -> World {
    World {
        limits: vec![],
        ops: vec![Op::Pause(A), Op::Resume(A)],
        changes: 2,
        ..pair()
    }
}

/// A world in which a group is paused by its limit.
pub(super) fn paused() -> World {
    World {
        ops: vec![Op::Configure(A, Some(GroupLimits::new().with_limit(0)))],
        changes: 1,
        ..pair()
    }
}

/// A world in which the limit of a group is zero, is set to zero again, and is raised.
pub(super) fn paused_again() -> World {
    World {
        limits: vec![(A, GroupLimits::new().with_limit(0))],
        ops: vec![
            Op::Configure(A, Some(GroupLimits::new().with_limit(0))),
            Op::Configure(A, Some(ONE)),
        ],
        changes: 2,
        ..pair()
    }
}

/// A world in which a group is let go with two items.
pub(super) fn let_go() -> World {
    World {
        limits: vec![(A, GroupLimits::new().with_limit(0))],
        ops: vec![Op::Configure(A, Some(TWO))],
        changes: 1,
        ..pair()
    }
}

/// A world in which an item keeps its slot, and another one of a higher priority comes.
pub(super) fn levels_with_slots() -> World {
    World {
        items: vec![item(A, 0), item(A, 1)],
        limits: vec![(A, ORDERED)],
        returns: vec![How::Release],
        ..pair()
    }
}

/// A world in which the default limits change while lanes are swept.
pub(super) fn swept_twice() -> World {
    World {
        limits: vec![(b"", GroupLimits::new().with_limit(0))],
        ops: vec![
            Op::Configure(b"", Some(GroupLimits::new().with_limit(0))),
            Op::Configure(b"", Some(ONE)),
            Op::Sweep,
        ],
        changes: 2,
        ..pair()
    }
}
