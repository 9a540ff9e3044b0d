//! What other systems do as durable queues on this machine, beside hc-dequeue on the embedded store.
//!
//! `cargo xtask bench peers` starts the servers and says where they are, in `$PEERS_POSTGRES` and
//! `$PEERS_REDIS`; a peer that is not there is left out. Clients enqueue and take items of 100 bytes,
//! one in a commit, each of a server over a connection of its own. An item is on disk when its
//! enqueue is acknowledged, and a taken one never comes back.
//!
//! In each round every system takes its turn, and who begins changes. Figures are medians over the
//! rounds, ratios are medians of the rounds' ratios. `TEST_RUN=long` measures for longer, and more
//! often.

mod postgres;
mod redis;

use std::env;
use std::io::{self, Write};
use std::time::Duration;

use benches::TempStore;
use benches::contender::{Contender, Popped, Site};
use benches::figures::{Figures, Rounds};
use benches::load::{Action, Load};
use benches::meter::{Metered, Reading};
use conformance::scale;
use keyspace::Subspace;
use tokio::runtime::Runtime;

use crate::postgres::Postgres;
use crate::redis::Redis;

const CLIENTS: [usize; 3] = [1, 16, 64];
const BACKLOG: u64 = 20_000;

/// A queue of a server.
pub(crate) struct Place {
    address: String,
    queue: String,
}

/// What is measured, with the address of its server.
enum System {
    HcDequeue,
    Postgres(String),
    Redis(String),
}

fn main() -> io::Result<()> {
    let mut out = io::stdout();
    let mut systems = vec![System::HcDequeue];
    systems.extend(env::var("PEERS_POSTGRES").ok().map(System::Postgres));
    systems.extend(env::var("PEERS_REDIS").ok().map(System::Redis));
    if systems.len() == 1 {
        let reason = "no server: `cargo xtask bench peers` starts them";
        return writeln!(io::stderr(), "skipped: peers: {reason}");
    }
    for (action, title) in [
        (Action::Enqueue, "Enqueue, durable, one item in a commit"),
        (Action::Pop, "Pop, durable, one item for each call"),
    ] {
        writeln!(
            out,
            "\n{title}\n\n\
             | clients | queue | items a second | hc-dequeue is so many times that | median \
             | 99th percentile |\n|---|---|---|---|---|---|"
        )?;
        for clients in CLIENTS {
            let rounds = compare(&systems, action, clients);
            for (system, own) in systems.iter().zip(&rounds) {
                writeln!(
                    out,
                    "| {clients} | {} | {:.0} | {:.2} | {:.2} ms | {:.2} ms |",
                    system.name(),
                    own.median(|figures| figures.rate),
                    rounds[0].median_ratio(own),
                    own.median(|figures| figures.median_millis),
                    own.median(|figures| figures.late_millis),
                )?;
            }
        }
    }
    Ok(())
}

/// Has all systems bear a load in turn; returns the rounds of each.
fn compare(systems: &[System], action: Action, clients: usize) -> Vec<Rounds> {
    let mut rounds = vec![Rounds::default(); systems.len()];
    for round in 0..scale(3, 7) {
        for turn in 0..systems.len() {
            let index = (turn + round) % systems.len();
            let queue = format!("{action:?}_{clients}_{round}").to_lowercase();
            let figures = systems[index].measure(action, clients, queue);
            rounds[index].push(figures);
        }
    }
    rounds
}

impl System {
    fn name(&self) -> String {
        match self {
            Self::HcDequeue => "hc-dequeue, embedded".to_owned(),
            Self::Postgres(address) => runtime().block_on(postgres::version(address)),
            Self::Redis(address) => runtime().block_on(redis::version(address)),
        }
    }

    /// Measures the system with a new queue.
    fn measure(&self, action: Action, clients: usize, queue: String) -> Figures {
        let load = Load {
            action,
            sessions: clients,
            consumers_per_session: 1,
            backlog: BACKLOG,
            time: Duration::from_millis(scale(1_000, 5_000) as u64),
        };
        match self {
            Self::HcDequeue => {
                let store = TempStore::new();
                let site = Site {
                    db: Metered::new(store.db.clone().into()),
                    root: Subspace::from(queue),
                };
                // As an application has it: one process, one session.
                let load = Load {
                    sessions: 1,
                    consumers_per_session: clients,
                    ..load
                };
                bear::<Popped>(&load, &site)
            }
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
    let sample = runtime().block_on(async {
        let sessions = load.prepare::<C>(site).await;
        load.run(&sessions, Reading::default).await
    });
    sample.into()
}

/// Returns a runtime whose tasks can use sockets.
fn runtime() -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.expect("the system can start threads")
}
