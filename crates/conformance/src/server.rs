//! A cluster for a single test, which can be paused, killed and locked.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs, io};

use keyspace::store::FDB_API_VERSION;
use tempfile::TempDir;

use crate::process::signal;

/// A cluster of one process, which ends when the value is dropped.
#[derive(Debug)]
pub struct Server {
    folder: TempDir,
    port: u16,
    process: Child,
}

impl Server {
    /// Starts a server with a new database, or returns the reason why there is none.
    ///
    /// # Panics
    /// If the server is installed but does not start.
    pub fn start() -> Result<Self, &'static str> {
        if FDB_API_VERSION.is_none() {
            return Err("built without FoundationDB: see `cargo xtask test`");
        }
        if installed("fdbserver").is_none() || installed("fdbcli").is_none() {
            return Err("fdbserver and fdbcli are not installed");
        }
        let started = Self::new().expect("a server that is installed can be started");
        started.cli("configure new single memory");
        Ok(started)
    }

    fn new() -> io::Result<Self> {
        let folder = TempDir::new()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let file = folder.path().join("fdb.cluster");
        fs::write(file, format!("test:server@127.0.0.1:{port}\n"))?;
        let process = spawn(folder.path(), port)?;
        Ok(Self {
            folder,
            port,
            process,
        })
    }

    /// Returns the URL of the store.
    #[must_use]
    pub fn url(&self) -> String {
        format!("fdb:{}", self.cluster_file().display())
    }

    /// Returns the path of the cluster file.
    #[must_use]
    pub fn cluster_file(&self) -> PathBuf {
        self.folder.path().join("fdb.cluster")
    }

    /// Runs a command of `fdbcli` and returns what it printed.
    ///
    /// # Panics
    /// If the command fails.
    pub fn cli(&self, command: &str) -> String {
        let mut cli = installed("fdbcli").expect("there is one beside the server");
        let output = cli
            .arg("-C")
            .arg(self.cluster_file())
            .args(["--timeout", "60", "--exec", command])
            .output()
            .expect("what is installed can be run");
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Pauses the process: it answers no requests and loses no data.
    pub fn pause(&self) {
        signal(self.process.id(), "-STOP");
    }

    /// Resumes a paused process.
    pub fn resume(&self) {
        signal(self.process.id(), "-CONT");
    }

    /// Kills the process and starts another one on its files.
    ///
    /// # Panics
    /// If the new process cannot be started.
    pub fn restart(&mut self) {
        self.end();
        self.process = spawn(self.folder.path(), self.port).expect("it could be started before");
    }

    fn end(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(folder: &Path, port: u16) -> io::Result<Child> {
    let mut command = installed("fdbserver").ok_or(io::ErrorKind::NotFound)?;
    command
        .args(["--public-address", &format!("127.0.0.1:{port}")])
        .arg("--cluster-file")
        .arg(folder.join("fdb.cluster"))
        .arg("--datadir")
        .arg(folder.join("data"))
        .arg("--logdir")
        .arg(folder)
        .stdout(Stdio::null())
        .spawn()
}

/// Returns a command for a program of FoundationDB, found in the path or where packages install it.
fn installed(program: &str) -> Option<Command> {
    let path = env::var_os("PATH").unwrap_or_default();
    let packages = [PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")];
    let mut candidates = env::split_paths(&path).chain(packages);
    let folder = candidates.find(|folder| folder.join(program).is_file())?;
    Some(Command::new(folder.join(program)))
}
