//! Other systems as durable queues on this machine, compared with hc-dequeue on the embedded store.
//!
//! `cargo xtask bench peers [-- <workload>...]`. The workloads are `enqueue`, `pop` and `handle`, all unless
//! some are named. SQLite is part of the benchmark, in a file on the same file system as the embedded store's.
//! The command starts the servers of the other peers and passes their addresses in
//! `$PEERS_POSTGRES` and `$PEERS_REDIS`; a server that is missing is left out. Clients enqueue and take
//! items of 100 bytes, one in a commit, each over a connection of its own. An item is on disk when its
//! enqueue is acknowledged, and a taken one never comes back. Clients of Postgres and Redis reach the
//! server by a local socket; SQLite and hc-dequeue run in this process, hc-dequeue with one session for
//! all clients. Where processes are named, the clients of hc-dequeue are in that many other processes, each with one
//! session, which reach the store through this one.
//!
//! # `handle`
//!
//! A client takes an item, writes one row, and completes the item. All of it is on disk before the client takes another
//! item. The row has the item's value; its key is the item's number, with which the value begins:
//!
//! | system | a client | isolation |
//! |---|---|---|
//! | hc-dequeue | a handler of one worker's `Queue::process`, which sets the row in the transaction that completes the item | serializable |
//! | SQLite | one transaction: `BEGIN IMMEDIATE`, `DELETE`, `INSERT`, `COMMIT` | serializable: one transaction at a time |
//! | Postgres | one transaction in two round trips: `BEGIN` and a `DELETE` that skips locked rows, then `INSERT` and `COMMIT` | read committed |
//! | Redis | two round trips: `LMOVE` to a list of the client, then `MULTI`, `SET`, `LREM`, `EXEC` | commands run one at a time, those of the second round trip together |
//!
//! A crash of a client or of the server, at any moment, loses no item and repeats no row. An item that the client had
//! taken and not completed goes back to the queue:
//!
//! - hc-dequeue: if the process crashed, another session gives it back after the lease of the session that held it.
//! - SQLite and Postgres: at once, when the transaction is rolled back. No commit has taken the item.
//! - Redis: never by itself. The item stays in the list of its client until something moves it back, which a user would
//!   have to add, and the benchmark does not do.
//!
//! All systems are measured while the queue has items; it is filled again outside the measured time. The clock of
//! hc-dequeue includes the end of a pause, by which its worker starts; a take or a completion has no time of its own
//! there, so it has no percentiles. The processor time is that of this process, which has the store, the worker and its
//! handlers, during the measured time. After each measurement, the number of rows must be that of the completed items.
//!
//! # Rounds
//!
//! In each round every system takes its turn, and the order rotates. Figures are medians over the
//! rounds, and ratios are medians of the rounds' ratios; the best peer is found round by round.
//! `--long` measures for longer, and more often. `cargo test` runs all of it, as briefly as
//! possible.

mod handle;
mod postgres;
mod redis;
mod sqlite;

use std::env;
use std::io::{self, Write};
use std::time::Duration;

use benches::TempStore;
use benches::arguments::{Arguments, Extent};
use benches::contender::{Contender, Popped, Site};
use benches::figures::{Figures, Rounds, turns};
use benches::load::{Action, Load, Sample};
use benches::meter::{Metered, Reading};
use benches::process::{Part, play_in_children, play_part};
use benches::runtime_with_sockets;
use keyspace::{Store, Subspace};
use mimalloc::MiMalloc;
use serde::{Deserialize, Serialize};

use crate::handle::Peer;
use crate::postgres::Postgres;
use crate::redis::Redis;
use crate::sqlite::{File, Sqlite};

/// As in a server with many threads: memory that one thread allocates, another one often frees.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// A queue of a server.
pub(crate) struct Place {
    address: String,
    queue: String,
}

/// What is measured, with the address of its server if it has one.
enum System {
    HcDequeue,
    /// The same, whose clients are in this number of other processes.
    Processes(usize),
    Sqlite,
    Postgres(String),
    Redis(String),
}

/// What the clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Workload {
    Enqueue,
    Pop,
    Handle,
}

fn main() -> io::Result<()> {
    if play_part::<Clients>() {
        return Ok(());
    }
    let arguments = Arguments::get();
    let mut out = io::stdout();
    let extent = arguments.extent();
    let clients: &[usize] = extent.choose(&[1, 4], &[1, 16, 64], &[1, 16, 64]);
    let mut systems = vec![
        System::HcDequeue,
        System::Processes(1),
        System::Processes(4),
        System::Sqlite,
    ];
    systems.extend(env::var("PEERS_POSTGRES").ok().map(System::Postgres));
    systems.extend(env::var("PEERS_REDIS").ok().map(System::Redis));
    for workload in [Workload::Enqueue, Workload::Pop, Workload::Handle] {
        if arguments.wants(workload.name()) {
            writeln!(out, "\n{}\n", workload.title())?;
            writeln!(out, "| {} |", workload.columns().join(" | "))?;
            writeln!(out, "|{}", "---|".repeat(workload.columns().len()))?;
            for &clients in clients {
                let takes_part = |system: &&System| system.takes_part(workload, clients);
                let systems: Vec<_> = systems.iter().filter(takes_part).collect();
                let rounds = compare(&systems, workload, clients, extent);
                show(&systems, workload, &rounds, clients)?;
            }
        }
    }
    Ok(())
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Pop => "pop",
            Self::Handle => "handle",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Enqueue => "Enqueue, durable, one item in a commit",
            Self::Pop => "Pop, durable, one item for each call",
            Self::Handle => "Handle, durable: take an item, write a row, complete the item",
        }
    }

    /// Returns the titles of the columns. The last ones may be missing.
    fn columns(self) -> &'static [&'static str] {
        let columns = &[
            "clients",
            "queue",
            "items per second",
            "hc-dequeue as a multiple of it",
            "median",
            "99th percentile",
            "processor time per item",
        ];
        match self {
            Self::Enqueue | Self::Pop => &columns[..6],
            Self::Handle => columns,
        }
    }

    /// Returns the action of a client of a queue. A client that handles items takes them.
    fn action(self) -> Action {
        match self {
            Self::Enqueue => Action::Enqueue,
            Self::Pop | Self::Handle => Action::Pop,
        }
    }
}

/// Prints a line for each system, and one for the best of the peers.
fn show(
    systems: &[&System],
    workload: Workload,
    rounds: &[Rounds],
    clients: usize,
) -> io::Result<()> {
    let ours = &rounds[0];
    let is_ours = |system: &&&System| matches!(system, System::HcDequeue | System::Processes(_));
    let first_peer = systems.iter().take_while(is_ours).count();
    let best = Rounds::best_of(&rounds[first_peer..]);
    let best = ("the best peer".to_owned(), best);
    let names = systems.iter().map(|system| system.name());
    for (name, rounds) in names.zip(rounds.iter().cloned()).chain([best]) {
        let median = rounds.median(|figures| figures.median_millis);
        let late = rounds.median(|figures| figures.late_millis);
        let processor = rounds.median(|figures| figures.processor_micros);
        let mut cells = vec![
            clients.to_string(),
            name,
            format!("{:.0}", rounds.median(|figures| figures.rate)),
            format!("{:.2}", ours.median_ratio(&rounds)),
            cell(median, 2, "ms"),
            cell(late, 2, "ms"),
            cell(processor, 1, "µs"),
        ];
        cells.truncate(workload.columns().len());
        writeln!(io::stdout(), "| {} |", cells.join(" | "))?;
    }
    Ok(())
}

/// Returns the text of a figure, which may not have been measured.
fn cell(figure: f64, decimals: usize, unit: &str) -> String {
    if figure.is_nan() {
        "-".to_owned()
    } else {
        format!("{figure:.decimals$} {unit}")
    }
}

/// Runs a load on all systems in turn, and returns the rounds of each.
fn compare(systems: &[&System], workload: Workload, clients: usize, extent: Extent) -> Vec<Rounds> {
    let load = Load {
        action: workload.action(),
        sessions: clients,
        consumers_per_session: 1,
        backlog: extent.choose(100, 20_000, 20_000),
        time: Duration::from_millis(extent.choose(20, 1_000, 5_000)),
    };
    let mut rounds = vec![Rounds::default(); systems.len()];
    for (number, turn) in turns(systems.len(), extent.choose(1, 3, 7)).enumerate() {
        let queue = format!("{workload:?}_{clients}_{number}").to_lowercase();
        rounds[turn].push(systems[turn].measure(workload, load, queue));
    }
    rounds
}

impl System {
    fn name(&self) -> String {
        match self {
            Self::HcDequeue => "hc-dequeue, embedded".to_owned(),
            Self::Processes(1) => "hc-dequeue, 1 other process".to_owned(),
            Self::Processes(count) => format!("hc-dequeue, {count} other processes"),
            Self::Sqlite => sqlite::version(),
            Self::Postgres(address) => runtime_with_sockets().block_on(postgres::version(address)),
            Self::Redis(address) => runtime_with_sockets().block_on(redis::version(address)),
        }
    }

    /// Returns whether the system is measured. Each process has at least one client.
    fn takes_part(&self, workload: Workload, clients: usize) -> bool {
        match self {
            Self::Processes(count) => workload != Workload::Handle && *count <= clients,
            _ => true,
        }
    }

    /// Measures the system with a new queue.
    fn measure(&self, workload: Workload, load: Load, queue: String) -> Figures {
        match self {
            Self::HcDequeue if workload == Workload::Handle => handle::bear_worker(&load),
            Self::HcDequeue => {
                let store = TempStore::new();
                let site = Site {
                    db: Metered::new(store.db.clone().into()),
                    root: Subspace::from(queue),
                };
                // One session per process, as in an application.
                let load = Load {
                    sessions: 1,
                    consumers_per_session: load.sessions,
                    ..load
                };
                bear::<Popped>(&load, &site)
            }
            Self::Processes(count) => {
                let store = TempStore::new();
                let clients = Clients {
                    load: Load {
                        sessions: 1,
                        consumers_per_session: load.sessions / count,
                        backlog: load.backlog / *count as u64,
                        ..load
                    },
                    queue,
                };
                play_in_children(&clients, *count, &store.url()).into()
            }
            Self::Sqlite => bear_peer::<Sqlite>(workload, &load, &File::new()),
            Self::Postgres(address) => {
                bear_peer::<Postgres>(workload, &load, &Place::new(address, queue))
            }
            Self::Redis(address) => {
                bear_peer::<Redis>(workload, &load, &Place::new(address, queue))
            }
        }
    }
}

/// What the clients of one process do.
#[derive(Serialize, Deserialize)]
struct Clients {
    load: Load,
    queue: String,
}

impl Part for Clients {
    fn play(&self, db: Store, meet: impl FnOnce()) -> Sample {
        let site = Site {
            db: Metered::new(db),
            root: Subspace::from(&*self.queue),
        };
        let runtime = runtime_with_sockets();
        let sessions = runtime.block_on(self.load.prepare::<Popped>(&site));
        meet();
        runtime.block_on(self.load.run(&sessions, Reading::default))
    }
}

impl Place {
    fn new(address: &str, queue: String) -> Self {
        Self {
            address: address.to_owned(),
            queue,
        }
    }
}

fn bear_peer<P: Peer>(workload: Workload, load: &Load, site: &P::Site) -> Figures {
    match workload {
        Workload::Enqueue | Workload::Pop => bear::<P>(load, site),
        Workload::Handle => handle::bear::<P>(load, site).into(),
    }
}

fn bear<C: Contender>(load: &Load, site: &C::Site) -> Figures {
    let sample = runtime_with_sockets().block_on(async {
        let sessions = load.prepare::<C>(site).await;
        load.run(&sessions, Reading::default).await
    });
    sample.into()
}
