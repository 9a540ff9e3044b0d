//! `cargo xtask bench`: a benchmark of the crate `benches`, with the servers that it needs.

mod peers;

use std::process::ExitCode;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::fdb;
use crate::workspace::{cargo, exit_code};

/// What to measure, and on which store.
#[derive(Debug)]
pub(crate) struct BenchOptions {
    name: String,
    db: Option<String>,
    long: bool,
    arguments: Vec<String>,
}

/// Describes the command.
pub(crate) fn command() -> Command {
    Command::new("bench")
        .about("Runs a benchmark, with the servers that it needs")
        .arg(Arg::new("name").required(true).help(
            "A benchmark of the crate `benches`: `embedded`, `hc_dequeue`, `foundationdb`, `peers` (SQLite, Postgres \
             and Redis) and others",
        ))
        .arg(Arg::new("db").long("db").help(
            "The URL of the store, for a benchmark of any store. `fdb:` is the cluster that `FDB_CLUSTER_FILE` names, \
             or else a private one. It is the default if a server is installed. `embedded:` is a store in a temporary \
             folder",
        ))
        .arg(
            Arg::new("long")
                .long("long")
                .action(ArgAction::SetTrue)
                .help("Measures for longer and with more data, as published figures need"),
        )
        .arg(
            Arg::new("arguments")
                .last(true)
                .num_args(0..)
                .help("The arguments of the benchmark: workloads, `--plot`"),
        )
}

impl From<&ArgMatches> for BenchOptions {
    fn from(parsed: &ArgMatches) -> Self {
        Self {
            name: parsed
                .get_one::<String>("name")
                .cloned()
                .unwrap_or_default(),
            db: parsed.get_one("db").cloned(),
            long: parsed.get_flag("long"),
            arguments: parsed
                .get_many("arguments")
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
        }
    }
}

/// The benchmark of other systems, which needs the servers of those that have one.
const PEERS: &str = "peers";

/// The benchmarks that make their own stores, and need no cluster.
const WITHOUT_CLUSTER: [&str; 4] = ["embedded", "microqueue", PEERS, "soak"];

/// Runs the benchmark. The servers that were started for it end with it.
pub(crate) fn run(options: &BenchOptions) -> anyhow::Result<ExitCode> {
    let url = match &options.db {
        Some(url) => url.clone(),
        None if WITHOUT_CLUSTER.contains(&&*options.name) => "embedded:".to_owned(),
        None => usual_url(),
    };
    let served = fdb::Served::for_urls(&[&url])?;
    let mut command = cargo(&["bench", "--profile", "dist"])?;
    command.args(["--package", "benches", "--bench", &options.name]);
    if url.starts_with("fdb:") {
        command.args(["--features", feature()?]);
    }
    command.env("BENCH_DB", served.resolve(&url));
    if let Some(file) = served.cluster_file() {
        command.env(fdb::CLUSTER_FILE, file);
    }
    if options.long {
        command.env("TEST_RUN", "long");
    }
    let peers = if options.name == PEERS {
        peers::start()
    } else {
        Vec::new()
    };
    for peer in &peers {
        command.env(peer.variable, &peer.address);
    }
    command.arg("--").args(&options.arguments);
    let status = command.status().context("cannot run cargo")?;
    Ok(exit_code(status))
}

/// Returns the URL of a cluster if FoundationDB is installed on this machine.
fn usual_url() -> String {
    match feature() {
        Ok(_) => "fdb:".to_owned(),
        Err(error) => {
            println!("on the embedded store: {error:#}");
            "embedded:".to_owned()
        }
    }
}

fn feature() -> anyhow::Result<&'static str> {
    fdb::Installation::find_library()?;
    fdb::Installation::find()?.feature()
}
