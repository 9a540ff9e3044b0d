//! Many writers that add to the counts of keys, and a worker that combines the additions, on any store.
//!
//! `cargo xtask bench combine [-- [--plot] [<workload>...]]`. The workloads are
//! `writers`, `spread`, `batches`, `settled` and `backlog`, all of them unless named. Prints
//! tables in Markdown; with `--plot` draws curves into `docs/plots`.
//!
//! `--db` is the URL of the store. All keys lie under a random prefix, which is cleared. `--long`
//! measures for longer, more often, and with larger backlogs.
//!
//! In each round every way takes its turn on every setting, and the order rotates. Figures are medians over the
//! rounds, and ratios are medians of the rounds' ratios.

mod backlog;
mod spread;
mod table;
mod trial;
mod workload;

use std::io::{self, Write};

use benches::arguments::Arguments;
use benches::stage::Stage;

fn main() -> io::Result<()> {
    let arguments = Arguments::get();
    let stage = match Stage::open() {
        Ok(stage) => stage,
        Err(error) => return writeln!(io::stderr(), "skipped: combine: {error}"),
    };
    let mut out = io::stdout();
    writeln!(out, "{}", stage.description())?;
    for workload in workload::all() {
        if !arguments.wants(workload.name) {
            continue;
        }
        let results = workload::run(&workload, &stage);
        writeln!(out, "\n{}\n\n{}", workload.title, table::of(&results))?;
        if workload.is_curve && arguments.wants_plots() {
            let path = workload::draw(&workload, &stage, &results);
            writeln!(out, "\n{}", path.display())?;
        }
    }
    if arguments.wants("backlog") {
        let drained = backlog::measure(&stage);
        writeln!(out, "\n{}", backlog::table(&drained))?;
        if arguments.wants_plots() {
            writeln!(out, "\n{}", backlog::draw(&stage, &drained).display())?;
        }
    }
    Ok(())
}
