//! A cluster's processes and its folder.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail, ensure};
use clap::{Arg, ArgMatches, value_parser};

use super::Installation;

/// How often to ask the cluster whether it is available. While it is not, each request takes more than a second.
const MAX_ASKINGS: usize = 60;

const CLUSTER_FILE: &str = "fdb.cluster";
const PIDS: &str = "pids";

/// What a cluster consists of.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// The number of server processes.
    processes: u16,
    /// The storage engine.
    engine: String,
}

impl Layout {
    /// Describes the arguments that a layout is read from.
    pub(super) fn arguments() -> [Arg; 2] {
        [
            Arg::new("processes")
                .long("processes")
                .default_value("1")
                .value_parser(value_parser!(u16).range(1..=64))
                .help("The number of server processes"),
            Arg::new("engine")
                .long("engine")
                .default_value("memory")
                .value_parser(["memory", "ssd"])
                .help("The storage engine"),
        ]
    }
}

impl From<&ArgMatches> for Layout {
    fn from(parsed: &ArgMatches) -> Self {
        let default = Self::default();
        Self {
            processes: parsed
                .get_one("processes")
                .copied()
                .unwrap_or(default.processes),
            engine: parsed.get_one("engine").cloned().unwrap_or(default.engine),
        }
    }
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            processes: 1,
            engine: "memory".to_owned(),
        }
    }
}

/// A cluster of this process. Dropping it stops the cluster and removes its data.
#[derive(Debug)]
pub(crate) struct Cluster {
    folder: PathBuf,
    servers: Vec<Child>,
}

impl Cluster {
    /// Starts a cluster on loopback in a folder of its own and waits until it is available.
    pub(crate) fn start(
        installation: &Installation,
        folder: &Path,
        layout: &Layout,
    ) -> anyhow::Result<Self> {
        let mut cluster = Self {
            folder: folder.to_owned(),
            servers: Vec::new(),
        };
        let ports = free_ports(layout.processes)?;
        let coordinator = ports.first().context("a cluster has a process")?;
        fs::write(
            cluster.cluster_file(),
            format!("private:cluster@127.0.0.1:{coordinator}\n"),
        )
        .with_context(|| format!("cannot write into {}", folder.display()))?;
        for port in ports {
            cluster.start_server(installation, port)?;
        }
        cluster.configure(installation, &layout.engine)?;
        Ok(cluster)
    }

    pub(crate) fn cluster_file(&self) -> PathBuf {
        self.folder.join(CLUSTER_FILE)
    }

    /// Leaves the cluster running after this process and returns its cluster file. [`Kept`] finds
    /// it again.
    pub(crate) fn keep(mut self) -> anyhow::Result<PathBuf> {
        let pids: String = (self.servers.iter())
            .map(|server| format!("{}\n", server.id()))
            .collect();
        fs::write(self.folder.join(PIDS), pids).context("cannot note what was started")?;
        let file = self.cluster_file();
        self.servers.clear();
        self.folder = PathBuf::new();
        Ok(file)
    }

    fn start_server(&mut self, installation: &Installation, port: u16) -> anyhow::Result<()> {
        let own = |name: &str| self.folder.join(format!("{name}-{port}"));
        let rows = own("data");
        let logs = own("logs");
        fs::create_dir_all(&rows)?;
        fs::create_dir_all(&logs)?;
        let output = fs::File::create(own("output"))?;
        let server = installation
            .server()
            .args(["--public-address", &format!("127.0.0.1:{port}")])
            .arg("--cluster-file")
            .arg(self.cluster_file())
            .arg("--datadir")
            .arg(rows)
            .arg("--logdir")
            .arg(logs)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("cannot start fdbserver")?;
        self.servers.push(server);
        Ok(())
    }

    fn configure(&mut self, installation: &Installation, engine: &str) -> anyhow::Result<()> {
        let file = self.cluster_file();
        let mut answer = String::new();
        for _ in 0..MAX_ASKINGS {
            for server in &mut self.servers {
                if let Some(status) = server.try_wait()? {
                    bail!("fdbserver ended with {status}:\n{}", self.output());
                }
            }
            // A cluster that is already configured refuses this, which is fine.
            let command = format!("configure new single {engine}");
            answer = installation
                .exec(&file, &command)
                .unwrap_or_else(|error| error.to_string());
            if installation.is_available(&file).unwrap_or(false) {
                return Ok(());
            }
        }
        bail!("the cluster is not available: {answer}\n{}", self.output())
    }

    /// Returns what the servers have printed.
    fn output(&self) -> String {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return String::new();
        };
        entries
            .filter_map(|entry| entry.ok())
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("output-"))
            .filter_map(|entry| fs::read_to_string(entry.path()).ok())
            .collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for server in &mut self.servers {
            // If it has ended already, there is nothing to do.
            let _ = server.kill();
            let _ = server.wait();
        }
        if !self.servers.is_empty() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// A cluster that an earlier process left running in a folder.
#[derive(Debug)]
pub(crate) struct Kept {
    folder: PathBuf,
}

impl Kept {
    pub(crate) fn in_folder(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn cluster_file(&self) -> PathBuf {
        self.folder.join(CLUSTER_FILE)
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.servers().is_empty()
    }

    /// Stops its processes and removes its folder.
    pub(crate) fn remove(&self) -> anyhow::Result<()> {
        for pid in self.servers() {
            let status = Command::new("kill")
                .args(["-KILL", &pid])
                .status()
                .context("cannot run kill")?;
            ensure!(status.success(), "cannot stop process {pid}: {status}");
        }
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)
                .with_context(|| format!("cannot remove {}", self.folder.display()))?;
        }
        Ok(())
    }

    /// Returns the processes noted that are still servers of this folder. A number may have been
    /// given to another process since.
    fn servers(&self) -> Vec<String> {
        let pids = fs::read_to_string(self.folder.join(PIDS)).unwrap_or_default();
        let file = self.cluster_file().display().to_string();
        pids.lines()
            .filter(|pid| command_line(pid).contains(&file))
            .map(str::to_owned)
            .collect()
    }
}

fn command_line(pid: &str) -> String {
    let output = Command::new("ps").args(["-o", "args=", "-p", pid]).output();
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// Returns free ports. Holds each of them until the last one is found, so that they differ.
fn free_ports(count: u16) -> anyhow::Result<Vec<u16>> {
    let listeners: Vec<_> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()
        .context("no free port")?;
    let ports = listeners
        .iter()
        .map(|listener| Ok(listener.local_addr()?.port()));
    ports.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ() {
        let mut ports = free_ports(8).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
    }

    #[test]
    fn a_process_that_is_no_server_of_the_folder_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::process::id().to_string();
        fs::write(folder.path().join(PIDS), format!("{own}\n")).unwrap();
        let kept = Kept::in_folder(folder.path().to_owned());
        assert!(!kept.is_running());
        kept.remove().unwrap();
        assert!(!folder.path().exists());
    }
}
