//! Export queues, and the whole pipeline of `phrasecount` on real text.
//!
//! `cargo xtask bench export_queue [-- <workload>...]`. The workloads are all of them unless named:
//!
//! - `text`: phrasecount, the program, on an `embedded:` store, compared with a hash map;
//! - `exports`: an exporter that only counts, compared with reading the entries.
//!
//! Prints tables in Markdown.
//!
//! The text is that of the files in the folder `$BENCH_TEXT`, in the order of their paths, as many as it
//! takes; unless it is set, of the sources that cargo has unpacked. `--db` is the URL of the store of `exports`.
//! All keys lie under a random prefix, which is cleared. `--long` measures more, and more often.
//!
//! In each round both ways take their turns. Figures are medians over the rounds, and ratios are medians of the
//! rounds' ratios.

mod corpus;
mod exports;
mod log;
mod phrases;
mod program;
mod text;

use std::io::{self, Write};

use benches::arguments::Arguments;
use benches::stage::Stage;

fn main() -> io::Result<()> {
    let arguments = Arguments::get();
    let stage = match Stage::open() {
        Ok(stage) => stage,
        Err(error) => return writeln!(io::stderr(), "skipped: export_queue: {error}"),
    };
    let mut out = io::stdout();
    writeln!(out, "{}", stage.description())?;
    if arguments.wants("text") {
        match text::measure() {
            Ok(told) => writeln!(out, "\n{told}")?,
            Err(reason) => writeln!(io::stderr(), "skipped: text: {reason}")?,
        }
    }
    if arguments.wants("exports") {
        writeln!(out, "\n{}", exports::measure(&stage))?;
    }
    Ok(())
}
