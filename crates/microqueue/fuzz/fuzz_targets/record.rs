//! `cargo +nightly fuzz run record`: any row in a queue's subspace is an item or corrupt.

#![no_main]

#[path = "../../tests/record/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::record(input));
