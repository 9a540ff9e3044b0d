//! Planted bugs, between the functions and the rows.

use std::sync::Arc;

use conformance::checker_store::{Bugs, RecordedAccess, Span, Write};
use microqueue::keyspace::{KeyValue, MutationOp, RangeQuery};

use super::rows::is_death;
use super::spec::{How, Op};
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::priority::RANK_OF_SLOT;
use crate::lanes::bucket::Level;

/// A rule of lanes that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// Starts of a limited group do not conflict.
    NoGate,
    NoNoticeAtEnqueue,
    /// A completion that frees a slot writes no notice.
    NoNoticeAtRelease,
    /// An item that comes back writes no notice.
    NoNoticeAtReturn,
    NoNoticeAtConfigure,
    NoNoticeAtResume,
    NoNoticeAtRedrive,
    /// A purge or a cancellation writes no notice.
    NoNoticeAtEnd,
    /// A take that gives an item back trusts what it has seen, and writes no notice.
    NoNoticeByTake,
    /// A take writes no notice of the next rank of a lane.
    NoNoticeOfTheRest,
    /// The notice of an item that has a slot has its own rank.
    NoticeAtOwnRank,
    /// A look removes notices whatever their values are.
    ClearInsteadOfCompare,
    /// As the last one, by a take that has read ahead.
    ClearedAhead,
    /// A grant does not conflict with a change of the limits, or a pause.
    LimitsNotInConflictOfGrants,
    /// A take does not see that a group is paused.
    PauseUnseen,
    LimitsNotInConflictOfReturns,
    SlotKeptAtTheEnd,
    SlotCountedTwice,
    SlotNotCounted,
    /// A change of the default limits writes no mark.
    NoMark,
    /// A sweep removes the mark whatever its value is.
    MarkCleared,
    /// A sweep writes no notice.
    SweepWithoutNotices,
    /// Takes do not read notices.
    NoticesUnseen,
    /// The clock of rates is the wall clock.
    WallClock,
    /// A start takes no token.
    StartForgotten,
    /// A look that starts nothing keeps the tokens that a slower rate has left.
    EmptierThanEmpty,
    /// A lane that is parked anew stays parked until the former version, too.
    ParkedTwice,
    /// A lane that was due is not parked again.
    NotParkedAgain,
    /// A lane that is no longer parked still counts as parked.
    ParkedForever,
    /// A lane that is parked for longer than an item needs stays so.
    ParkedTooLong,
    /// An item that no handler got gives no token back.
    TokenKept,
    /// An item that no handler got gives two tokens back.
    TokenBackTwice,
    /// An item that a handler got gives its token back.
    TokenOfAStartBack,
    /// A token comes back although the bucket was full since, for all that is known of it.
    LowsForgotten,
    /// A death has a commit of its own, after that of its dead letter.
    DeathLater,
    /// A death has a commit of its own, before that of its dead letter.
    DeathBefore,
    /// A dead letter enqueues two deaths.
    DeathTwice,
    /// `give_back` reads held items by snapshot.
    HeldNotInConflict,
}

impl Bug {
    /// Returns whether an operation writes no notice.
    fn writes_no_notice(self, op: Op) -> bool {
        match self {
            Self::NoNoticeAtEnqueue => matches!(op, Op::Enqueue(_)),
            Self::NoNoticeAtRelease => matches!(op, Op::Return(.., How::Complete)),
            Self::NoNoticeAtReturn => matches!(op, Op::Return(.., How::Release)),
            Self::NoNoticeAtConfigure => matches!(op, Op::Configure(..)),
            Self::NoNoticeAtResume => matches!(op, Op::Resume(_)),
            Self::NoNoticeAtRedrive => matches!(op, Op::Redrive(_)),
            Self::NoNoticeAtEnd => matches!(op, Op::Purge(_) | Op::Cancel(_)),
            Self::NoNoticeByTake => matches!(op, Op::Take(_, Some(_))),
            Self::NoNoticeOfTheRest => matches!(op, Op::Take(_, None)),
            Self::SweepWithoutNotices => op == Op::Sweep,
            _ => false,
        }
    }

    /// Changes what a take has recorded of the rate of a lane.
    fn change_rate(self, keys: &Keys, recorded: &mut RecordedAccess) {
        let is_state = |key: &[u8], row: fn(&Keys, &[u8]) -> Vec<u8>| {
            let lane = keys.parse_lane(key);
            lane.is_ok_and(|lane| *key == *row(keys, &lane.group))
        };
        let is_parked = |key: &[u8]| keys.parse_parked(key).is_some();
        let is_until = |key: &[u8]| is_state(key, Keys::parked_until);
        let sets = |write: &Write, of: &dyn Fn(&[u8]) -> bool| matches!(write, Write::Set(key, _) if of(key));
        let clears = |write: &Write, of: &dyn Fn(&[u8]) -> bool| matches!(write, Write::Clear(span) if of(&span.begin));
        let writes = &mut recorded.writes;
        match self {
            Self::StartForgotten => {
                writes.retain(|write| !sets(write, &|key| is_state(key, Keys::level)));
            }
            Self::EmptierThanEmpty => {
                let is_item = |key: &[u8]| keys.parse_queued(key).is_ok();
                if !writes.iter().any(|write| clears(write, &is_item)) {
                    writes.retain(|write| !sets(write, &|key| is_state(key, Keys::level)));
                }
            }
            Self::ParkedTwice => writes.retain(|write| !clears(write, &is_parked)),
            Self::NotParkedAgain if writes.iter().any(|write| clears(write, &is_parked)) => {
                for write in writes {
                    if let Write::Set(key, _) = write
                        && (is_until(key) || is_parked(key))
                    {
                        *write = Write::Clear(Span::key(key));
                    }
                }
            }
            Self::ParkedForever => writes.retain(|write| !clears(write, &is_until)),
            Self::ParkedTooLong if writes.iter().any(|write| clears(write, &is_parked)) => {
                let is_row = |key: &[u8]| is_parked(key) || is_until(key);
                writes.retain(|write| !sets(write, &is_row) && !clears(write, &is_parked));
            }
            _ => {}
        }
    }

    /// Changes the tokens that an operation has recorded.
    fn change_level(self, op: Op, keys: &Keys, recorded: &mut RecordedAccess) {
        let is_level = |key: &[u8]| {
            let lane = keys.parse_lane(key);
            lane.is_ok_and(|lane| *key == *keys.level(&lane.group))
        };
        let gives_back = matches!(op, Op::Return(.., How::Unused));
        recorded.writes.retain(|write| match write {
            Write::Set(key, _) => self != Self::TokenKept || !gives_back || !is_level(key),
            Write::Clear(span) => self != Self::TokenKept || !gives_back || !is_level(&span.begin),
            Write::Append(..) => true,
        });
        for write in &mut recorded.writes {
            let Write::Set(key, value) = write else {
                continue;
            };
            if !is_level(key) {
                continue;
            }
            let level = Level::parse(value).expect("it was just written");
            match self {
                Self::TokenBackTwice if gives_back => {
                    *value = Level::new(level.full_at - super::RATE.interval()).to_bytes();
                }
                Self::LowsForgotten => *value = Level::new(level.full_at).to_bytes(),
                _ => {}
            }
        }
    }

    /// Changes the deaths that an operation has recorded. Of two commits for a dead letter, the first one is left.
    fn change_deaths(self, keys: &Keys, recorded: &mut RecordedAccess) {
        let writes = &mut recorded.writes;
        let is_death =
            |write: &Write| matches!(write, Write::Append(prefix, _) if is_death(keys, prefix));
        let Some(death) = writes.iter().find(|write| is_death(write)).cloned() else {
            return;
        };
        match self {
            Self::DeathLater => writes.retain(|write| !is_death(write)),
            Self::DeathBefore => {
                *writes = vec![death];
                recorded.atomics.clear();
            }
            Self::DeathTwice => writes.push(death),
            _ => {}
        }
    }

    /// Changes what an operation has recorded.
    pub(super) fn change(self, op: Op, keys: &Keys, recorded: &mut RecordedAccess) {
        let is_notice = |key: &[u8]| keys.parse_notice(key).is_some();
        let is_slots = |key: &[u8]| {
            let lane = keys.parse_lane(key);
            lane.is_ok_and(|lane| *key == *keys.slots(&lane.group))
        };
        let is_ahead = op == Op::TakeAhead;
        let clears =
            is_ahead || self != Self::ClearedAhead && matches!(op, Op::Take(..) | Op::Fulfill);
        let atomics = &mut recorded.atomics;
        if self.writes_no_notice(op) {
            let stamps = MutationOp::SetVersionstampedValue;
            atomics.retain(|(op, key, _)| *op != stamps || !is_notice(key));
        }
        if matches!(op, Op::Take(..)) {
            self.change_rate(keys, recorded);
        }
        self.change_level(op, keys, recorded);
        self.change_deaths(keys, recorded);
        let atomics = &mut recorded.atomics;
        match self {
            Self::NoticeAtOwnRank => {
                for (op, key, _) in atomics {
                    if *op == MutationOp::SetVersionstampedValue
                        && let Some((RANK_OF_SLOT, lane)) = keys.parse_notice(key)
                    {
                        *key = keys.notice(10, &lane);
                    }
                }
            }
            Self::ClearInsteadOfCompare | Self::ClearedAhead if clears => {
                let compares = MutationOp::CompareAndClear;
                for (_, key, _) in atomics
                    .iter()
                    .filter(|(op, key, _)| *op == compares && is_notice(key))
                {
                    recorded.writes.push(Write::Clear(Span::key(key)));
                }
            }
            Self::SlotKeptAtTheEnd => {
                let is_free = |param: &[u8]| param == (-1_i64).to_le_bytes();
                atomics.retain(|(op, key, param)| {
                    *op != MutationOp::Add || !is_slots(key) || !is_free(param)
                });
            }
            Self::SlotCountedTwice => {
                let again = atomics.iter().position(|(op, key, param)| {
                    *op == MutationOp::Add && is_slots(key) && *param == 1_i64.to_le_bytes()
                });
                if let Some(again) = again {
                    atomics.insert(again, atomics[again].clone());
                }
            }
            Self::SlotNotCounted => {
                atomics.retain(|(op, key, param)| {
                    *op != MutationOp::Add || !is_slots(key) || *param != 1_i64.to_le_bytes()
                });
            }
            Self::NoMark if matches!(op, Op::Configure(..)) => {
                atomics.retain(|(_, key, _)| *key != keys.mark());
            }
            Self::MarkCleared if op == Op::Sweep => {
                atomics.retain(|(_, key, _)| *key != keys.mark());
                recorded.writes.push(Write::Clear(Span::key(&keys.mark())));
            }
            _ => {}
        }
    }
}

/// A transaction with a planted bug.
#[derive(Debug, Clone)]
pub(super) struct PlantedBug {
    pub(super) bug: Option<Bug>,
    pub(super) op: Op,
    pub(super) keys: Arc<Keys>,
}

impl PlantedBug {
    fn is_limits(&self, key: &[u8]) -> bool {
        let lane = self.keys.parse_lane(key);
        lane.is_ok_and(|lane| *key == *self.keys.group_limits(&lane.group))
    }

    fn is_pause(&self, key: &[u8]) -> bool {
        let lane = self.keys.parse_lane(key);
        lane.is_ok_and(|lane| *key == *self.keys.group_pause(&lane.group))
    }

    fn is_gate(&self, key: &[u8]) -> bool {
        let lane = self.keys.parse_lane(key);
        lane.is_ok_and(|lane| *key == *self.keys.gate(&lane.group))
    }
}

impl Bugs for PlantedBug {
    fn hides_read(&self, key: &[u8]) -> bool {
        match self.bug {
            Some(Bug::LimitsNotInConflictOfReturns) => self.is_limits(key),
            Some(Bug::HeldNotInConflict) => self.keys.parse_holder(key).is_ok(),
            _ => false,
        }
    }

    fn hides_range(&self, begin: &[u8]) -> bool {
        match self.bug {
            Some(Bug::NoGate) => self.is_gate(begin),
            Some(Bug::LimitsNotInConflictOfGrants) => self.is_limits(begin),
            _ => false,
        }
    }

    fn has_short_batches(&self, begin: &[u8]) -> bool {
        // A lane is read in several batches, of which the first one lacks the limits.
        let (lanes, end) = self.keys.part(Part::Lanes);
        (lanes..end).contains(&begin.to_vec())
    }

    fn rearrange(&self, query: &RangeQuery, rows: &mut Vec<KeyValue>) {
        if self.bug == Some(Bug::PauseUnseen) && matches!(self.op, Op::Take(..)) {
            rows.retain(|row| !self.is_pause(row.key()));
        }
        let begin = &query.begin.key;
        let (notices, _) = self.keys.part(Part::Notices);
        if self.bug == Some(Bug::NoticesUnseen)
            && matches!(self.op, Op::Take(..))
            && *begin == notices
        {
            rows.retain(|row| self.keys.parse_notice(row.key()).is_none());
        }
    }
}
