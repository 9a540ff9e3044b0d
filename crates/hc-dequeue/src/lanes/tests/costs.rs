//! What each step costs: the ranges that it reads, the conflict ranges of these reads, and the rows that it changes. An
//! item without a group costs what it did before there were groups.

use std::collections::BTreeSet;
use std::sync::Arc;

use conformance::checker_store::{RecordedAccess, Span, Write};
use microqueue::keyspace::Bytes;
use stateright::Model;

use super::spec::{How, Op};
use super::world::{LaneModel, LaneState, LaneStep, Moment};
use super::{A, ONE, World, item, pair};
use crate::items::part::Part;
use crate::lanes::Gone;
use crate::protocol::Purpose;

/// The costs of a step.
#[derive(Debug, PartialEq, Eq)]
struct Costs {
    /// Ranges of keys that are read. A range that is read in several batches counts once.
    reads: usize,
    /// Read conflict ranges.
    conflicts: usize,
    /// Keys that are written, and ranges that are cleared, without counters and the wake stamp.
    writes: usize,
}

const fn costs(reads: usize, conflicts: usize, writes: usize) -> Costs {
    Costs {
        reads,
        conflicts,
        writes,
    }
}

/// Returns how many ranges there are if those that touch are one.
fn count_ranges(spans: &[Span]) -> usize {
    let ends: BTreeSet<_> = spans.iter().map(|span| &span.end).collect();
    let begins: BTreeSet<_> = spans.iter().map(|span| &span.begin).collect();
    begins.iter().filter(|begin| !ends.contains(*begin)).count()
}

impl Costs {
    fn of(model: &LaneModel, recorded: &RecordedAccess) -> Self {
        let of_lanes = |key: &[u8]| {
            let part = |(begin, end): (Vec<u8>, Vec<u8>)| *begin <= *key && *key < *end;
            part(model.keys.part(Part::Lanes)) || part(model.keys.part(Part::Notices))
        };
        let written = recorded.writes.iter().map(|write| match write {
            Write::Set(key, _) | Write::Append(key, _) => key.clone(),
            Write::Clear(span) => span.begin.clone(),
        });
        let atomics = recorded.atomics.iter().map(|(_, key, _)| key.clone());
        let written: BTreeSet<_> = written.chain(atomics.filter(|key| of_lanes(key))).collect();
        Self {
            reads: count_ranges(&recorded.reads),
            conflicts: count_ranges(&recorded.conflicts),
            writes: written.len(),
        }
    }
}

/// Does an operation. Returns its costs.
fn perform(model: &LaneModel, state: &mut LaneState, op: Op) -> Costs {
    let rows = Arc::new(state.rows.clone());
    let moment = Moment {
        now: state.now,
        read_at: state.now,
        gone: &Gone::default(),
    };
    let recorded = model.run(&rows, op, moment, &mut None);
    let recorded = recorded.expect("there is something to do");
    *state = model.next_state(state, LaneStep::Begin(op, 0)).unwrap();
    if !state.flights.is_empty() {
        *state = model.next_state(state, LaneStep::Commit(0)).unwrap();
    }
    Costs::of(model, &recorded)
}

/// Returns the costs of an enqueue, of the grant of the item and of its completion, or of its pop.
fn costs_of(world: World) -> Vec<Costs> {
    let pops = world.purposes[0] == Purpose::Pop;
    let model = LaneModel::new(world, None);
    let mut state = model.init_states().remove(0);
    let mut ops = vec![Op::Enqueue(0), Op::Take(0, None)];
    if !pops {
        ops.push(Op::Return(0, 0, How::Complete));
    }
    let costs = ops.into_iter().map(|op| perform(&model, &mut state, op));
    costs.collect()
}

#[test]
fn steps_cost_what_the_docs_say() {
    let ungrouped = World {
        items: vec![item(b"", 0)],
        limits: vec![],
        ..pair()
    };
    let grouped = World {
        items: vec![item(A, 0)],
        limits: vec![],
        ..pair()
    };
    let limited = World {
        limits: vec![(A, ONE)],
        ..grouped.clone()
    };
    let pops = |world| World {
        purposes: [Purpose::Pop; 2],
        ..world
    };
    // An enqueue, a grant, a completion.
    let expected = [costs(0, 0, 1), costs(5, 4, 2), costs(1, 1, 1)];
    assert_eq!(costs_of(ungrouped.clone()), expected);
    // An enqueue, a pop.
    assert_eq!(costs_of(pops(ungrouped)), [costs(0, 0, 1), costs(5, 4, 1)]);
    // The notices, the default limits and the lane are read besides, and the items again, since the first read, which
    // begins at the parked lanes, has met a notice. The pointer and the notice are written, and the number of slots by
    // a grant and a completion.
    let expected = [costs(0, 0, 3), costs(9, 6, 5), costs(3, 3, 2)];
    assert_eq!(costs_of(grouped.clone()), expected);
    assert_eq!(costs_of(pops(grouped)), [costs(0, 0, 3), costs(9, 6, 3)]);
    // The gate is in conflict instead of the default limits. The completion writes a notice of the lane.
    let expected = [costs(0, 0, 3), costs(9, 6, 5), costs(3, 3, 3)];
    assert_eq!(costs_of(limited.clone()), expected);
    assert_eq!(costs_of(pops(limited)), [costs(0, 0, 3), costs(9, 6, 3)]);
}

#[test]
fn river_1145_a_limit_takes_no_transaction_of_its_own() {
    let model = LaneModel::new(pair(), None);
    let mut state = model.init_states().remove(0);
    // One of the two items at a time, in as many transactions as without a limit.
    for op in [
        Op::Enqueue(0),
        Op::Enqueue(1),
        Op::Take(0, None),
        Op::Take(0, Some((0, How::Complete))),
        Op::Return(0, 1, How::Complete),
    ] {
        perform(&model, &mut state, op);
    }
    let (begin, end) = model.keys.part(Part::Lanes);
    let is_item = |key: &[u8]| {
        model
            .keys
            .parse_lane(key)
            .is_ok_and(|row| row.rank.is_some())
    };
    let left = state.rows.range(Bytes::from(begin)..Bytes::from(end));
    assert!(!left.map(|(key, _)| key).any(|key| is_item(key)));
    assert!(!state.rows.contains_key(&*model.keys.slots(A)));
}
