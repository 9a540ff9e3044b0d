//! `cargo +nightly fuzz run record`: any row in a queue's subspace decodes as an item or is refused as
//! corrupt.

#![no_main]

#[path = "../../tests/it/record/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::record(input));
