//! Drives the tests, the checks and the recorded traces.

fn main() {}
