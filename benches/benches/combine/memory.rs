//! The memory of a process whose worker drains a backlog.
//!
//! Memory that a process has had once stays with it. So one child of this process puts updates into
//! the queue, and another one, which has done nothing else before, drains it.

use std::env;
use std::io::{self, Write};
use std::process::Command;

use benches::adder::{Added, Adder};
use benches::contender::Site;
use benches::memory_bytes;
use benches::meter::Metered;
use benches::stage::{Stage, runtime};
use benches::table::Table;
use conformance::scale;
use keyspace::Subspace;
use keyspace::url::StoreUrl;
use serde::{Deserialize, Serialize};

use crate::backlog::fill;

/// Set for a child: its part, as JSON.
const PART: &str = "COMBINE_PART";

const MIB: usize = 1 << 20;

/// What a child does.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    url: String,
    /// The prefix under which the queue lies.
    place: Vec<u8>,
    act: PartAct,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum PartAct {
    Fill {
        updates: u64,
    },
    /// Drains the queue, and prints the growth of memory in bytes.
    Drain {
        bytes_per_pass: usize,
    },
}

/// Plays the part that this process was started for. Returns false if it was started for none.
pub(crate) fn play_part() -> bool {
    let Ok(part) = env::var(PART) else {
        return false;
    };
    let part: Part = serde_json::from_str(&part).expect("the parent wrote it");
    let db = keyspace::open(&part.url).expect("the parent can open it");
    let site = Site {
        db: Metered::new(db),
        root: Subspace::from_bytes(part.place),
    };
    match part.act {
        PartAct::Fill { updates } => runtime().block_on(fill(&site, updates)),
        PartAct::Drain { bytes_per_pass } => {
            let growth = runtime().block_on(growth(&site, bytes_per_pass));
            writeln!(io::stdout(), "{growth}").expect("the parent lives");
        }
    }
    true
}

async fn growth(site: &Site, bytes_per_pass: usize) -> u64 {
    let queue = Added::open(site).await;
    let memory = |figure| memory_bytes(figure).expect("the system reports it");
    let before = memory("VmRSS");
    let worker = queue.work(bytes_per_pass).await;
    queue.settle().await;
    worker.stop().await;
    memory("VmHWM").saturating_sub(before)
}

/// Returns a table of the growth by budget.
pub(crate) fn measure(stage: &Stage) -> String {
    let updates = scale(500_000, 2_000_000) as u64;
    let mut table = Table::new(["bytes per pass", "growth of resident memory"]);
    for mebibytes in [1, 4] {
        let bytes_per_pass = mebibytes * MIB;
        let growth = stage.on_a_clean_place(|place| {
            let folder = tempfile::tempdir().expect("the system has a temporary folder");
            let url = match stage.url() {
                // A store that one process has open is none for a child.
                StoreUrl::Memory | StoreUrl::Embedded { .. } => StoreUrl::Embedded {
                    path: folder.path().join("store"),
                },
                shared @ StoreUrl::Fdb { .. } => shared.clone(),
            };
            let play = |act| {
                play_in_a_child(&Part {
                    url: url.to_string(),
                    place: place.bytes().to_vec(),
                    act,
                })
            };
            play(PartAct::Fill { updates });
            let growth: f64 = play(PartAct::Drain { bytes_per_pass })
                .trim()
                .parse()
                .expect("the child prints a number");
            growth / MIB as f64
        });
        table.push([format!("{mebibytes} MiB"), format!("{growth:.1} MiB")]);
    }
    format!("Memory of a process that drains {updates} updates, four passes at once\n\n{table}")
}

/// Has a child play a part, and returns what it says.
fn play_in_a_child(part: &Part) -> String {
    let program = env::current_exe().expect("the system knows this program");
    let part = serde_json::to_string(part).expect("a part is plain");
    let child = Command::new(program)
        .env(PART, part)
        .output()
        .expect("the system starts processes");
    assert!(child.status.success(), "{child:?}");
    String::from_utf8(child.stdout).expect("the child writes text")
}
