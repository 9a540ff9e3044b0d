//! `cargo +nightly fuzz run codec`: any bytes are a value or an error, in every codec.

#![no_main]

use conformance::fuzz::{self, Everything};
use keyspace::codec::Bincode;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fuzz::codec(input);
    fuzz::reads_what_it_writes::<Everything, Bincode>(input);
});
