//! `cargo +nightly fuzz run codec`: any bytes are a value or an error, in every codec.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| conformance::fuzz::codec(input));
