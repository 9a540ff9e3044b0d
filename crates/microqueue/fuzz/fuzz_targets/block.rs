//! `cargo +nightly fuzz run block`: any bytes are a valid block or refused, and a block has only one
//! encoding.

#![no_main]

#[path = "../../tests/it/block/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::block(input));
