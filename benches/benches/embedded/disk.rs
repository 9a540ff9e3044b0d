//! What the disk does without a store, in the folder for temporary files, where the stores are too.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::time::Duration;

use keyspace::Environment;

/// The size of a block, as which the store's log writes small commits.
const BLOCK: [u8; 4096] = [7; 4096];

/// A file of zeros, whose blocks are overwritten and flushed one after the other.
pub(crate) struct Flushed {
    file: File,
    blocks: u64,
    next: u64,
}

impl Flushed {
    /// Makes a file of `blocks` blocks.
    pub(crate) fn new(blocks: u64) -> Self {
        let mut file = tempfile::tempfile().expect("the system has a temporary folder");
        let zeros = vec![0; BLOCK.len() * blocks as usize];
        let written = file.write_all(&zeros).and_then(|()| file.sync_all());
        written.expect("the disk has room");
        Self {
            file,
            blocks,
            next: 0,
        }
    }

    /// Writes and flushes blocks for a time; returns the seconds that the median one took.
    pub(crate) fn median_seconds(&mut self, time: Duration) -> f64 {
        let env = Environment::system();
        let deadline = env.now() + time;
        let mut took = Vec::new();
        while took.is_empty() || env.now() < deadline {
            let began = env.now();
            self.flush_block();
            took.push((env.now() - began).as_secs_f64());
        }
        benches::statistics::median(took)
    }

    fn flush_block(&mut self) {
        let place = SeekFrom::Start(self.next % self.blocks * BLOCK.len() as u64);
        self.next += 1;
        self.file.seek(place).expect("the file is there");
        let written = self.file.write_all(&BLOCK);
        written
            .and_then(|()| self.file.sync_data())
            .expect("the disk works");
    }
}

/// Returns the bytes of this process's write calls. `None` if the system does not report them in `/proc`.
///
/// The other figure there, `write_bytes`, counts a whole page of the system's cache, which may have 2 MiB, for each
/// block written to it.
pub(crate) fn written_bytes() -> Option<u64> {
    let io = fs::read_to_string("/proc/self/io").ok()?;
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line?.parse().ok()
}
