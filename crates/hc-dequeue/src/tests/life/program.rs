//! Programs: random sequences of steps.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::kinds::KINDS;
use super::model::{At, Model};
use super::turns::RATED;
use super::{BATCH_OF_STAYING, DEDUPE_IDS, SESSIONS, STEP_NAMES};
use crate::items::group_limits::GroupLimits;
use crate::protocol::Purpose;
use crate::queue::enqueue_options::OnRepeat;

/// The largest number of items that a program enqueues.
const ITEMS: usize = 8;

/// A step of a program. Items are numbered in the order of their enqueue, and delays are milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    Enqueue(ItemSpec),
    /// A session takes the first item and, for its reserve, up to `ahead` more.
    Take {
        session: usize,
        purpose: Purpose,
        ahead: usize,
    },
    /// A request of a session is answered with the first two items.
    Grant {
        session: usize,
    },
    /// A session collects its oldest grant. The purpose is that of the first item.
    Collect {
        session: usize,
        purpose: Purpose,
    },
    /// Resolves the outstanding delivery, or an earlier one.
    Resolve {
        item: usize,
        how: How,
        is_late: bool,
    },
    Acknowledge {
        item: usize,
        is_late: bool,
    },
    /// A handler leaves something in its item.
    Leave {
        item: usize,
        what: Left,
        is_late: bool,
    },
    Change(usize, Change),
    Clear,
    /// Releases a dedupe id that is retained.
    Release(u8),
    /// Changes how long dedupe ids are retained.
    Retain(u64),
    /// A session dies, and its items are returned.
    Die(usize),
    /// A session ends, and its items are returned.
    End(usize),
    Sweep,
    Pass(u64),
    /// The limits of a group are set or removed or, for the empty group, the default limits.
    Limit(&'static str, Option<GroupLimits>),
}

impl Op {
    /// Returns the kind of the step.
    pub(super) fn name(&self) -> String {
        let text = match self {
            Self::Change(_, change) => format!("{change:?}"),
            other => format!("{other:?}"),
        };
        text.chars()
            .take_while(|char| char.is_alphabetic())
            .collect()
    }
}

/// The value and options of an enqueue. Zero stands for no delay and no own limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct ItemSpec {
    pub(super) value: u64,
    pub(super) delay: u64,
    pub(super) priority: i8,
    /// Empty for an item without a group.
    pub(super) group: &'static str,
    /// Empty for an item without a kind.
    pub(super) kind: &'static str,
    pub(super) batch: Option<usize>,
    pub(super) dedupe: Option<u8>,
    pub(super) mode: OnRepeat,
    pub(super) max_attempts: u64,
}

/// What a handler leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// A checkpoint of this byte, or of none if it is zero.
    Checkpoint(u8),
    Progress(u64),
    /// A step whose name has this number, and which returns the value if it runs.
    Step(usize, u64),
}

/// An operation of an application on an item.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    Cancel,
    Expedite,
    Replace(u64),
    SetPriority(i8),
    Redrive,
    Purge,
}

/// How an item leaves a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Complete,
    /// It was not handed out.
    Unused,
    Release,
    Snooze(u64),
    Fail,
    FailLater(u64),
    /// It fails without a time of its own: it comes back after the backoff.
    FailAndWait,
    /// Its value does not decode, so that no handler gets it.
    Undecodable,
    Discard,
    Die,
}

/// Returns a random step, which usually makes sense in the present state.
pub(super) fn random_op(rng: &mut StdRng, model: &Model) -> Op {
    let session = rng.random_range(0..SESSIONS);
    let purpose = match rng.random_range(0..6) {
        0 => Purpose::Pop,
        1..4 => Purpose::Reserve,
        _ => Purpose::Deliver,
    };
    let is_late = rng.random_range(0..8) == 0;
    let value = rng.random_range(0..100);
    let draw = rng.random_range(0..110);
    if model.items.is_empty() || draw < 12 && model.items.len() < ITEMS {
        return enqueue(rng, value);
    }
    match draw {
        0..34 => Op::Take {
            session,
            purpose,
            ahead: rng.random_range(0..3),
        },
        34..42 => Op::Grant { session },
        42..50 => Op::Collect { session, purpose },
        50..66 => Op::Resolve {
            item: item(rng, model, |place| matches!(place, At::Held(_))),
            how: how(rng),
            is_late,
        },
        66..69 => Op::Acknowledge {
            item: item(rng, model, |place| matches!(place, At::Held(_))),
            is_late,
        },
        69..74 => Op::Change(item(rng, model, |_| true), Change::Cancel),
        74..77 => {
            let delayed = |place| matches!(place, At::Delayed(_));
            Op::Change(item(rng, model, delayed), Change::Expedite)
        }
        77..79 => Op::Change(item(rng, model, |_| true), Change::Replace(value)),
        79 => {
            let change = Change::SetPriority(priority(rng));
            Op::Change(item(rng, model, |_| true), change)
        }
        80..84 => {
            let change = [Change::Redrive, Change::Purge][usize::from(draw == 83)];
            Op::Change(item(rng, model, |place| place == At::Dead), change)
        }
        84 if rng.random_range(0..4) == 0 => Op::Clear,
        84..89 => Op::Die(session),
        89..91 => Op::End(session),
        91 => Op::Sweep,
        92 => {
            let group = ["", "a", "b"][rng.random_range(0..3)];
            Op::Limit(group, limits(rng))
        }
        93 => Op::Release(rng.random_range(0..DEDUPE_IDS)),
        100.. => Op::Leave {
            item: item(rng, model, |place| matches!(place, At::Held(_))),
            what: left(rng, value),
            is_late,
        },
        94 => Op::Retain([0, 10, 40, 100][rng.random_range(0..4)]),
        _ => Op::Pass(rng.random_range(1..30)),
    }
}

fn enqueue(rng: &mut StdRng, value: u64) -> Op {
    Op::Enqueue(ItemSpec {
        value,
        delay: [0, 0, 5, 20][rng.random_range(0..4)],
        priority: priority(rng),
        group: ["", "a", "a", "b", RATED][rng.random_range(0..5)],
        kind: KINDS[rng.random_range(0..12_usize).saturating_sub(8)],
        batch: [None, Some(0), Some(BATCH_OF_STAYING)][rng.random_range(0..3)],
        dedupe: [None, Some(rng.random_range(0..DEDUPE_IDS))][rng.random_range(0..2)],
        mode: [OnRepeat::Keep, OnRepeat::Replace, OnRepeat::Debounce][rng.random_range(0..3)],
        max_attempts: [0, 0, 1, 3][rng.random_range(0..4)],
    })
}

fn left(rng: &mut StdRng, value: u64) -> Left {
    match rng.random_range(0..4) {
        0 => Left::Checkpoint(rng.random_range(0..3)),
        1 => Left::Progress(value),
        _ => Left::Step(rng.random_range(0..STEP_NAMES.len()), value),
    }
}

fn limits(rng: &mut StdRng) -> Option<GroupLimits> {
    let limit = GroupLimits::new().with_limit(rng.random_range(0..3));
    let limits = match rng.random_range(0..6) {
        0 => return None,
        1 => GroupLimits::new(),
        2 => limit,
        3 => limit.with_until_end(),
        _ => limit.with_until_end().with_dead_letters_blocking(),
    };
    Some(limits.with_weight(rng.random_range(1..3)))
}

fn priority(rng: &mut StdRng) -> i8 {
    [0, 0, 0, 9, 1, -1, -9][rng.random_range(0..7)]
}

/// Returns an item, usually one in a wanted place.
fn item(rng: &mut StdRng, model: &Model, is_wanted: impl Fn(At) -> bool) -> usize {
    let all = 0..model.items.len();
    let wanted: Vec<_> = all
        .clone()
        .filter(|item| is_wanted(model.items[*item].place))
        .collect();
    match wanted.choose(rng) {
        Some(item) if rng.random_range(0..6) != 0 => *item,
        _ => rng.random_range(all),
    }
}

fn how(rng: &mut StdRng) -> How {
    let delay = rng.random_range(1..20);
    let ways = [
        How::Complete,
        How::Unused,
        How::Release,
        How::Snooze(delay),
        How::Fail,
        How::FailLater(delay),
        How::FailAndWait,
        How::Undecodable,
        How::Discard,
    ];
    ways[rng.random_range(0..ways.len())]
}

/// Returns the purpose of an item, by its number among those that a session is granted together.
pub(super) fn purpose_of(number: usize, first: Purpose) -> Purpose {
    match number {
        0 => first,
        _ => Purpose::Reserve,
    }
}
