//! Which writes make a pass in flight fail, whichever transaction makes them: writes to the state of the
//! passes, to the log up to the last block taken, and to the values and the current values of the bucket.

use std::sync::Arc;

use crate::tests::model::bug::Bug;
use crate::tests::model::protocol::{Action, BUCKET, Extent, Protocol};
use conformance::checker_store::{Rows, rows_of};

/// A part of the queue, and the bug that removes it from the conflict ranges of a pass.
const PARTS: [(&str, Option<Bug>); 7] = [
    ("state", Some(Bug::StateNotInConflict)),
    ("log", Some(Bug::LogNotInConflict)),
    ("values", Some(Bug::ValuesNotInConflict)),
    ("currents", Some(Bug::CurrentsNotInConflict)),
    ("log after the blocks taken", None),
    ("what is aside", None),
    ("wake stamp", None),
];

/// Returns the parts in which a write makes a pass over two blocks fail.
fn parts_that_conflict(bug: Option<Bug>) -> Vec<&'static str> {
    let protocol = Protocol::new(bug);
    let mut rows = Arc::<Rows>::default();
    for version in [10, 20] {
        let add = Action::Add(vec![(0, Some(1))]);
        let (added, _) = protocol.stage(&rows, version, &add).unwrap();
        rows = Arc::new(added.applied(&rows, version));
    }
    let pass = Action::Pass(Extent::All, false);
    let (pass, _) = protocol.stage(&rows, 20, &pass).unwrap();

    let keys = &protocol.queue.keys;
    let last_block = rows_of(&rows, &keys.logs.after(BUCKET.0, None)).last();
    let (last_block, _) = last_block.expect("two were added");
    // A key that the pass has not seen.
    let other = &protocol.encoded[2];
    let written = [
        keys.pass(BUCKET),
        keys.logs.after(BUCKET.0, None).0,
        keys.value(other),
        keys.current(other),
        [&last_block[..], b"\x01"].concat(),
        keys.withheld(other),
        keys.wake(),
    ];
    let conflicts = PARTS.iter().zip(written).filter(|(_, row)| {
        let tr = protocol.begin(&rows, 20);
        hc_dequeue::keyspace::Transaction::set(&tr, row, b"");
        tr.staged().expect("it writes").dooms(21, &pass)
    });
    conflicts.map(|((part, _), _)| *part).collect()
}

#[test]
fn a_pass_conflicts_on_its_state_the_log_the_values_and_the_current_values() {
    let all = ["state", "log", "values", "currents"];
    assert_eq!(parts_that_conflict(None), all);
    for (part, bug) in PARTS {
        let Some(bug) = bug else { continue };
        let left: Vec<_> = all.into_iter().filter(|other| *other != part).collect();
        assert_eq!(parts_that_conflict(Some(bug)), left, "{bug:?}");
    }
}
