//! `cargo +nightly fuzz run trace`: any line is a trace or an error.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| conformance::fuzz::trace(input));
