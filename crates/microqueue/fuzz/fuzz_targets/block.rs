//! `cargo +nightly fuzz run block`: any bytes are a block or refused, and a block has one form.

#![no_main]

#[path = "../../tests/block/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::block(input));
