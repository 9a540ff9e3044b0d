//! Other systems as durable queues on this machine, compared with hc-dequeue on the embedded store.
//!
//! `cargo xtask bench peers [-- <workload>...]`. The workloads are `enqueue` and `pop`, both unless
//! named. SQLite is part of the benchmark, in a file on the same file system as the embedded store's.
//! The command starts the servers of the other peers and passes their addresses in
//! `$PEERS_POSTGRES` and `$PEERS_REDIS`; a server that is missing is left out. Clients enqueue and take
//! items of 100 bytes, one in a commit, each over a connection of its own. An item is on disk when its
//! enqueue is acknowledged, and a taken one never comes back.
//!
//! In each round every system takes its turn, and the order rotates. Figures are medians over the
//! rounds, and ratios are medians of the rounds' ratios; the best peer is found round by round.
//! `--long` measures for longer, and more often. `cargo test` runs all of it, as briefly as
//! possible.

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
use benches::load::{Action, Load};
use benches::meter::{Metered, Reading};
use benches::runtime_with_sockets;
use keyspace::Subspace;
use mimalloc::MiMalloc;

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
    Sqlite,
    Postgres(String),
    Redis(String),
}

fn main() -> io::Result<()> {
    let arguments = Arguments::get();
    let mut out = io::stdout();
    let extent = arguments.extent();
    let clients: &[usize] = extent.choose(&[1, 4], &[1, 16, 64], &[1, 16, 64]);
    let mut systems = vec![System::HcDequeue, System::Sqlite];
    systems.extend(env::var("PEERS_POSTGRES").ok().map(System::Postgres));
    systems.extend(env::var("PEERS_REDIS").ok().map(System::Redis));
    for (name, action, title) in [
        (
            "enqueue",
            Action::Enqueue,
            "Enqueue, durable, one item in a commit",
        ),
        ("pop", Action::Pop, "Pop, durable, one item for each call"),
    ] {
        if arguments.wants(name) {
            writeln!(
                out,
                "\n{title}\n\n\
                 | clients | queue | items per second | hc-dequeue as a multiple of it | median \
                 | 99th percentile |\n|---|---|---|---|---|---|"
            )?;
            for &clients in clients {
                let rounds = compare(&systems, action, clients, extent);
                show(&systems, &rounds, clients)?;
            }
        }
    }
    Ok(())
}

/// Prints a line for each system, and one for the best of the peers.
fn show(systems: &[System], rounds: &[Rounds], clients: usize) -> io::Result<()> {
    let (ours, peers) = rounds.split_first().expect("hc-dequeue is the first");
    let best = ("the best peer".to_owned(), Rounds::best_of(peers));
    let names = systems.iter().map(System::name);
    for (name, rounds) in names.zip(rounds.iter().cloned()).chain([best]) {
        writeln!(
            io::stdout(),
            "| {clients} | {name} | {:.0} | {:.2} | {:.2} ms | {:.2} ms |",
            rounds.median(|figures| figures.rate),
            ours.median_ratio(&rounds),
            rounds.median(|figures| figures.median_millis),
            rounds.median(|figures| figures.late_millis),
        )?;
    }
    Ok(())
}

/// Runs a load on all systems in turn, and returns the rounds of each.
fn compare(systems: &[System], action: Action, clients: usize, extent: Extent) -> Vec<Rounds> {
    let load = Load {
        action,
        sessions: clients,
        consumers_per_session: 1,
        backlog: extent.choose(100, 20_000, 20_000),
        time: Duration::from_millis(extent.choose(20, 1_000, 5_000)),
    };
    let mut rounds = vec![Rounds::default(); systems.len()];
    for (number, turn) in turns(systems.len(), extent.choose(1, 3, 7)).enumerate() {
        let queue = format!("{action:?}_{clients}_{number}").to_lowercase();
        rounds[turn].push(systems[turn].measure(load, queue));
    }
    rounds
}

impl System {
    fn name(&self) -> String {
        match self {
            Self::HcDequeue => "hc-dequeue, embedded".to_owned(),
            Self::Sqlite => sqlite::version(),
            Self::Postgres(address) => runtime_with_sockets().block_on(postgres::version(address)),
            Self::Redis(address) => runtime_with_sockets().block_on(redis::version(address)),
        }
    }

    /// Measures the system with a new queue.
    fn measure(&self, load: Load, queue: String) -> Figures {
        match self {
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
            Self::Sqlite => bear::<Sqlite>(&load, &File::new()),
            Self::Postgres(address) => bear::<Postgres>(&load, &Place::new(address, queue)),
            Self::Redis(address) => bear::<Redis>(&load, &Place::new(address, queue)),
        }
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

fn bear<C: Contender>(load: &Load, site: &C::Site) -> Figures {
    let sample = runtime_with_sockets().block_on(async {
        let sessions = load.prepare::<C>(site).await;
        load.run(&sessions, Reading::default).await
    });
    sample.into()
}
