//! Export queues, and the whole pipeline of `phrasecount` on real text.
//!
//! `cargo xtask bench export_queue [-- [--plot] [<workload>...]]`. The workloads are all of them unless
//! named:
//!
//! - `text`: phrasecount, the program, on an `embedded:` store, compared with a hash map;
//! - `workers`: counting through `combine`, compared with read-modify-write, by 1, 4 and 16 workers;
//! - `exports`: an exporter that only counts, compared with reading the entries;
//! - `concurrency`: an exporter that takes a while, called for several buckets at once;
//! - `scale-out`: processes of phrasecount that share the work on a cluster of its own.
//!
//! Prints tables in Markdown; with `--plot` draws a curve of `concurrency` into `docs/plots`.
//!
//! The text is that of the files in the folder `$BENCH_TEXT`, in the order of their paths, as many as it
//! takes; unless it is set, of the sources that cargo has unpacked. `--db` is the URL of the store of the
//! other workloads. All keys lie under a random prefix, which is cleared. `--long` measures more, and
//! more often.
//!
//! In each round every way takes its turn in every setting, and the order rotates. Figures are medians over the
//! rounds, and ratios are medians of the rounds' ratios.

mod concurrency;
mod corpus;
mod counting;
mod exports;
mod log;
mod phrases;
mod program;
mod scale_out;
mod text;
mod workers;

use std::io::{self, Write};

use benches::arguments::Arguments;
use benches::stage::Stage;

/// What a workload prints, or why there is nothing to print.
type Told = Result<String, String>;

fn main() -> io::Result<()> {
    let arguments = Arguments::get();
    let stage = match Stage::open() {
        Ok(stage) => stage,
        Err(error) => return writeln!(io::stderr(), "skipped: export_queue: {error}"),
    };
    let mut out = io::stdout();
    writeln!(out, "{}", stage.description())?;
    let workloads: [(&str, &dyn Fn() -> Told); 5] = [
        ("text", &text::measure),
        ("workers", &|| workers::measure(&stage)),
        ("exports", &|| Ok(exports::measure(&stage))),
        ("concurrency", &|| {
            Ok(concurrency::measure(&stage, arguments.wants_plots()))
        }),
        ("scale-out", &scale_out::measure),
    ];
    for (name, measure) in workloads {
        if !arguments.wants(name) {
            continue;
        }
        match measure() {
            Ok(told) => writeln!(out, "\n{told}")?,
            Err(reason) => writeln!(io::stderr(), "skipped: {name}: {reason}")?,
        }
    }
    Ok(())
}
