//! Damaged traces: the body of the fuzz target, driven by seeded damage to whole lines.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use conformance::fuzz;

#[test]
fn damaged_traces_are_traces_or_an_error() {
    let lines = include_str!("../traces/limits.jsonl").lines();
    let whole: Vec<_> = lines.map(|line| line.as_bytes().to_vec()).collect();
    fuzz::drive(fuzz::trace, &whole);
}
