//! `cargo xtask fdb`: a private FoundationDB cluster on this machine.

mod cluster;
mod installation;

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{ArgMatches, Command};
use tempfile::TempDir;

pub(crate) use self::cluster::Cluster;
pub(crate) use self::installation::Installation;

use self::cluster::{Kept, Layout};
use crate::folder;
use crate::workspace::root;

/// The variable that names the cluster to use.
pub(crate) const CLUSTER_FILE: &str = "FDB_CLUSTER_FILE";

/// Describes the commands.
pub(crate) fn command() -> Command {
    let up =
        "Starts a cluster in `target/fdb`, waits until it is available and prints its cluster file";
    let down = "Stops the cluster that `up` started, and removes its data";
    let status =
        "Says whether the cluster that `up` started is available, and prints its cluster file";
    Command::new("fdb")
        .about("Starts and stops a private FoundationDB cluster on this machine")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            Command::new("up").about(up).args(Layout::arguments()),
            Command::new("down").about(down),
            Command::new("status").about(status),
        ])
}

/// Carries out a command.
pub(crate) fn run(arguments: &ArgMatches) -> anyhow::Result<ExitCode> {
    let kept = Kept::in_folder(kept_folder()?);
    match arguments.subcommand() {
        Some(("up", arguments)) => {
            if kept.is_running() {
                bail!("a cluster runs already: `cargo xtask fdb down` stops it");
            }
            kept.remove()?;
            let installation = Installation::find()?;
            fs::create_dir_all(kept.folder())
                .with_context(|| format!("cannot make {}", kept.folder().display()))?;
            let cluster = Cluster::start(&installation, kept.folder(), &Layout::from(arguments))?;
            println!("{}", cluster.keep()?.display());
        }
        Some(("down", _)) => {
            let outcome = if kept.is_running() {
                "stopped"
            } else {
                "no cluster runs"
            };
            kept.remove()?;
            println!("{outcome}");
        }
        _ => {
            if !kept.is_running() {
                println!("no cluster runs: `cargo xtask fdb up` starts one");
                return Ok(ExitCode::FAILURE);
            }
            let file = kept.cluster_file();
            let available = Installation::find()?.is_available(&file)?;
            let state = if available {
                "available"
            } else {
                "unavailable"
            };
            println!("{state}: {}", file.display());
            return Ok(ExitCode::from(u8::from(!available)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A cluster for the duration of a command: a private one, or none if the environment names another one.
#[derive(Debug)]
pub(crate) struct Served {
    // The processes end before their folder is removed.
    cluster: Option<Cluster>,
    _folder: Option<TempDir>,
}

impl Served {
    /// Starts a private cluster unless the environment names one.
    pub(crate) fn start() -> anyhow::Result<Self> {
        if env::var_os(CLUSTER_FILE).is_some() {
            return Ok(Self::elsewhere());
        }
        let folder = folder::create("cluster")?;
        let layout = Layout::default();
        let cluster = Cluster::start(&Installation::find()?, folder.path(), &layout)?;
        Ok(Self {
            cluster: Some(cluster),
            _folder: Some(folder),
        })
    }

    /// Starts a private cluster if one of the URLs is `fdb:` and the environment names no cluster.
    pub(crate) fn for_urls(urls: &[&str]) -> anyhow::Result<Self> {
        if urls.contains(&"fdb:") {
            Self::start()
        } else {
            Ok(Self::elsewhere())
        }
    }

    fn elsewhere() -> Self {
        Self {
            cluster: None,
            _folder: None,
        }
    }

    /// The cluster file of the private cluster.
    pub(crate) fn cluster_file(&self) -> Option<PathBuf> {
        self.cluster.as_ref().map(Cluster::cluster_file)
    }

    /// Replaces `fdb:` with the URL of the private cluster.
    pub(crate) fn resolve(&self, url: &str) -> String {
        match self.cluster_file() {
            Some(file) if url == "fdb:" => format!("fdb:{}", file.display()),
            _ => url.to_owned(),
        }
    }
}

fn kept_folder() -> anyhow::Result<PathBuf> {
    Ok(root()?.join("target/fdb"))
}
