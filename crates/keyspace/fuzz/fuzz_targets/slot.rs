//! `cargo +nightly fuzz run slot`: any row among the ledgers is either a slot or corrupt.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| conformance::fuzz::slot(input));
