//! Many consumers of one queue, in several ways, on any store.
//!
//! `cargo xtask bench hc_dequeue [-- [--plot] [<workload>...]]`. The workloads are `consumers`, `processes`,
//! `sessions`, `backlog`, `enqueue`, `idle`, `items`, `groups`, `batches` and `console`, all of them unless named.
//! Prints tables in Markdown; with `--plot` draws curves into `docs/plots`.
//!
//! `--db` is the URL of the store. All keys lie under a random prefix, which is cleared. `--long`
//! measures for longer, more often, and with a backlog of a million.
//!
//! In each round every way takes its turn on every setting, and the order rotates. Figures are medians over the
//! rounds, and ratios are medians of the rounds' ratios.

mod batches;
mod console;
mod groups;
mod idle;
mod items;
mod plot;
mod rates;
mod slots;
mod table;
mod trial;
mod workload;

use std::io::{self, Write};

use benches::arguments::Arguments;
use benches::process::play_part;
use benches::stage::Stage;

use crate::trial::Part;

fn main() -> io::Result<()> {
    if play_part::<Part>() {
        return Ok(());
    }
    let arguments = Arguments::get();
    let stage = match Stage::open() {
        Ok(stage) => stage,
        Err(error) => return writeln!(io::stderr(), "skipped: hc_dequeue: {error}"),
    };
    let mut out = io::stdout();
    writeln!(out, "{}", stage.description())?;
    for workload in workload::all() {
        if !arguments.wants(workload.name) {
            continue;
        }
        if workload::takes_processes(&workload) && !stage.is_shared() {
            writeln!(
                io::stderr(),
                "skipped: {}: one process at a time can open {}",
                workload.name,
                stage.url()
            )?;
            continue;
        }
        let results = workload::run(&workload, &stage);
        writeln!(out, "\n{}\n\n{}", workload.title, table::of(&results))?;
        if workload.is_curve && arguments.wants_plots() {
            let path = plot::draw(workload.name, &stage, &results);
            writeln!(out, "{}", path.display())?;
        }
    }
    if arguments.wants("idle") {
        writeln!(out, "\n{}\n\n{}", idle::latency(&stage), idle::cost(&stage))?;
    }
    if arguments.wants("items") {
        for table in [
            items::writes,
            items::finding,
            items::processing,
            items::coming_back,
        ] {
            writeln!(out, "\n{}", table(&stage))?;
        }
    }
    if arguments.wants("groups") {
        writeln!(out, "\nItems of groups\n\n{}", groups::table(&stage))?;
        for table in [slots::latency, rates::reached] {
            writeln!(out, "\n{}", table(&stage))?;
        }
    }
    if arguments.wants("batches") {
        writeln!(out, "\nMembers of a batch\n\n{}", batches::members(&stage))?;
        writeln!(out, "\n{}", batches::latency(&stage))?;
        writeln!(out, "\nA large batch\n\n{}", batches::large(&stage))?;
    }
    if arguments.wants("console") {
        writeln!(
            out,
            "\n{}\n{}",
            console::tabs(&stage),
            console::pages(&stage)
        )?;
    }
    Ok(())
}
