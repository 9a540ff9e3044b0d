//! The embedded store against simpler ways to keep rows, and against itself under load.
//!
//! `cargo xtask bench embedded [-- <workload>...]`. The workloads are all of them unless named:
//!
//! - `hundred`: a durable commit of 100 sets, compared with redb;
//! - `lone`: a durable set by one task, compared with a bare write and flush;
//! - `tasks`: durable sets by 64 tasks, compared with one task;
//! - `scattered`: sets of random keys in a large store, and the time of a lone commit during them;
//! - `written`: bytes written to the store's files for short-lived items;
//! - `recovery`: opening a store whose process was killed;
//! - `takeover`: the first commit of a client whose owner has ended;
//! - `first-key`: the first key of a range whose head was cleared;
//! - `layers`: reads of rows that were just written, compared with rows in the file alone;
//! - `maps`: the processor time of maps beside the same by hand, in redb and in SQLite;
//! - `build`: building an index of a map that has rows.
//!
//! Prints a table in Markdown. Where it can be, the yardstick and the store take turns; figures are then
//! medians over the rounds, and ratios medians of the rounds' ratios. `--long` measures for longer,
//! more often, and with larger stores. `cargo test` runs all of it, as briefly as possible.

mod commits;
mod disk;
mod keys;
mod maps;
mod reads;
mod recovery;
mod row;
mod scattered;
mod setter;
mod written;

use std::io::{self, Write};

use benches::arguments::{Arguments, Extent};
use benches::cores;

use crate::row::Row;

/// A workload's name, and how it is measured.
type Workload = (&'static str, fn(Extent) -> Vec<Row>);

const WORKLOADS: [Workload; 11] = [
    ("hundred", commits::hundred),
    ("lone", commits::lone),
    ("tasks", commits::tasks),
    ("scattered", scattered::measure),
    ("written", written::measure),
    ("recovery", recovery::measure),
    ("takeover", recovery::takeover),
    ("first-key", reads::first_key),
    ("layers", reads::layers),
    ("maps", maps::maps),
    ("build", maps::build),
];

fn main() -> io::Result<()> {
    if recovery::play_part() {
        return Ok(());
    }
    let arguments = Arguments::get();
    let extent = arguments.extent();
    let mut out = io::stdout();
    if extent == Extent::Test {
        writeln!(out, "a test of the benchmark, whose figures mean nothing")?;
    }
    writeln!(
        out,
        "cores: {}\n\n\
         | workload | yardstick | measured | ratio | target |\n|---|---|---|---|---|",
        cores()
    )?;
    for (name, measure) in WORKLOADS {
        if arguments.wants(name) {
            for row in measure(extent) {
                writeln!(out, "{row}")?;
            }
        }
    }
    Ok(())
}
