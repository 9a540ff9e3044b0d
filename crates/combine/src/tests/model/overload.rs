//! A bucket that receives fewer updates than a pass takes, and an observer that makes a pass of two
//! changes too large.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::pass::Plan;
use crate::pass::combining::{Attempted, Failure, RetryState};
use crate::tests::model::protocol::{BUCKET, Protocol};
use conformance::checker_store::{Rows, finish};

/// The number of times that updates arrive.
const ROUNDS: usize = 40;

/// The budget of a pass in bytes, much more than a block.
const BYTES_PER_PASS: usize = 1 << 12;

/// More attempts than a pass takes until it succeeds.
const MAX_ATTEMPTS: usize = 20;

/// Returns how many changes of each key are reported if an update of each of `keys` keys arrives before
/// every pass.
fn reported(keys: usize, has_one_budget: bool) -> BTreeMap<String, usize> {
    let protocol = Protocol::new(None);
    let mut rows = Arc::<Rows>::default();
    let mut version = 1;
    let mut retry = RetryState::default();
    let mut counts = BTreeMap::new();
    for _ in 0..ROUNDS {
        let tr = protocol.begin(&rows, version);
        protocol.add(&tr, &[(0, Some(1)), (1, Some(1)), (2, Some(1))][..keys]);
        version += 1;
        let added = tr.staged().expect("it adds a block");
        rows = Arc::new(added.applied(&rows, version));
        for attempt in 0.. {
            assert!(attempt < MAX_ATTEMPTS, "the pass never succeeds");
            let mut plan = retry.plan(BYTES_PER_PASS);
            if has_one_budget {
                plan = of_one_budget(&plan);
            }
            let tr = protocol.begin(&rows, version);
            let pass = finish(protocol.queue.stage_pass(&tr, BUCKET, &plan)).unwrap();
            if pass.changes.len() > 1 {
                let attempted = Attempted::of(&pass.staged);
                let failure = Failure::TooLarge("for the observer".to_owned());
                retry = retry.after_failure(attempted, &failure, BYTES_PER_PASS);
                continue;
            }
            let staged = tr.staged().expect("there is an update to fold");
            rows = Arc::new(staged.applied(&rows, version));
            for change in pass.changes {
                *counts.entry(change.key).or_default() += 1;
            }
            retry = retry.after_success(&Attempted::default(), BYTES_PER_PASS);
            break;
        }
    }
    counts
}

/// Returns a plan in which fewer changes also mean fewer updates taken.
fn of_one_budget(plan: &Plan) -> Plan {
    let all = usize::MAX;
    match plan.max_changes {
        changes if changes == all => plan.clone(),
        _ => Plan {
            budget: 1,
            max_changes: all,
            withheld: None,
        },
    }
}

#[test]
fn a_bucket_below_its_capacity_reports_while_its_observer_fails() {
    let counts = reported(2, false);
    let count: usize = counts.values().sum();
    assert!(count >= ROUNDS / 2, "{count} reports in {ROUNDS} rounds");
}

#[test]
fn each_key_has_its_turn_if_more_keys_change_than_a_pass_reports() {
    let counts = reported(3, false);
    let is_fair = counts.values().all(|count| *count >= ROUNDS / 8);
    assert!(counts.len() == 3 && is_fair, "{counts:?}");
}

#[test]
fn catches_a_failure_of_the_observer_that_shrinks_what_is_taken() {
    assert_eq!(reported(2, true), BTreeMap::new());
}
