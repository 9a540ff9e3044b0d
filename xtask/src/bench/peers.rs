//! Private servers of other systems, each in a temporary folder, reached by a socket there.
//!
//! Installs nothing. Names the package of a missing server, and leaves the server out.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

use crate::folder;

/// A server, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct Peer {
    /// The variable that passes the address to the benchmark.
    pub(super) variable: &'static str,
    /// Where the server is reached, as its clients write it.
    pub(super) address: String,
    server: Child,
    // The server ends before its folder is removed.
    _folder: TempDir,
}

/// Starts what is installed, and says what is missing.
pub(super) fn start() -> Vec<Peer> {
    let mut peers = Vec::new();
    for (name, start) in [
        ("Postgres", postgres as fn() -> anyhow::Result<Peer>),
        ("Redis", redis),
    ] {
        match start() {
            Ok(peer) => peers.push(peer),
            Err(error) => println!("skipped: {name}: {error:#}"),
        }
    }
    peers
}

/// Starts Postgres as its package configures it: a commit is on disk when it is acknowledged.
fn postgres() -> anyhow::Result<Peer> {
    let folders = postgres_folders();
    let initdb = program("initdb", "postgresql", &folders)?;
    let postgres = program("postgres", "postgresql", &folders)?;
    let folder = folder::create("postgres")?;
    let rows = folder.path().join("rows");
    let account = Account::for_postgres(folder.path())?;
    let output = account
        .command(&initdb)
        .args(["--username=postgres", "--auth=trust", "--locale=C", "-D"])
        .arg(&rows)
        .output()
        .context("cannot run initdb")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "initdb failed: {complaint}");
    let mut server = account.command(&postgres);
    server.arg("-D").arg(&rows).arg("-k").arg(folder.path());
    server.args(["-c", "listen_addresses="]);
    server.stderr(Stdio::piped());
    let mut server = server.spawn().context("cannot start postgres")?;
    let log = server.stderr.take().context("it is piped")?;
    let peer = Peer {
        variable: "PEERS_POSTGRES",
        address: format!("host={} user=postgres", folder.path().display()),
        server,
        _folder: folder,
    };
    await_line(log, "ready to accept connections")?;
    Ok(peer)
}

/// Starts Redis with a log that is on disk before a command is acknowledged.
fn redis() -> anyhow::Result<Peer> {
    let server = program("redis-server", "redis-server", &[])?;
    let folder = folder::create("redis")?;
    let socket = folder.path().join("socket");
    let mut server = Command::new(server);
    server.args(["--port", "0", "--unixsocket"]).arg(&socket);
    server.arg("--dir").arg(folder.path());
    server.args(["--appendonly", "yes", "--appendfsync", "always"]);
    server.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = server.spawn().context("cannot start redis-server")?;
    let log = server.stdout.take().context("it is piped")?;
    let peer = Peer {
        variable: "PEERS_REDIS",
        address: format!("redis+unix://{}", socket.display()),
        server,
        _folder: folder,
    };
    await_line(log, "eady to accept connections")?;
    Ok(peer)
}

impl Drop for Peer {
    fn drop(&mut self) {
        // If Postgres is asked to end, it also removes its shared memory, which would otherwise remain.
        let pid = self.server.id().to_string();
        let asked = Command::new("kill").args(["-INT", &pid]).status();
        if !asked.is_ok_and(|status| status.success()) {
            // It may have ended already.
            let _ = self.server.kill();
        }
        let _ = self.server.wait();
    }
}

/// The user that runs a server.
#[derive(Debug)]
struct Account {
    /// Its name, if it is not the user of this process.
    name: Option<&'static str>,
}

impl Account {
    /// Finds a user who may run Postgres, which root may not, and gives the folder to them.
    fn for_postgres(folder: &Path) -> anyhow::Result<Self> {
        if output("id", &["-u"])? != "0" {
            return Ok(Self { name: None });
        }
        let Some(name) = ["postgres", "nobody"]
            .into_iter()
            .find(|name| output("id", &["-u", name]).is_ok())
        else {
            bail!("it does not run as root, and there is no other user to run it as");
        };
        output("setpriv", &["--version"])
            .context("it takes setpriv to start it as another user")?;
        output("chown", &[name, &folder.to_string_lossy()])?;
        Ok(Self { name: Some(name) })
    }

    /// Returns a call of a program by this user, with messages in English.
    fn command(&self, program: &Path) -> Command {
        let mut command = match self.name {
            Some(name) => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", name, "--clear-groups", "--"]);
                command.arg(program);
                command
            }
            None => Command::new(program),
        };
        command.env("LC_ALL", "C").current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

/// Runs a small program and returns what it prints.
fn output(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program} {arguments:?} failed");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Waits for a line of a log. A thread continues to read, so that a full pipe never blocks the server.
fn await_line(log: impl Read + Send + 'static, text: &str) -> anyhow::Result<()> {
    let mut lines = BufReader::new(log).lines();
    let mut seen = String::new();
    for line in &mut lines {
        let line = line.context("cannot read the log")?;
        if line.contains(text) {
            thread::spawn(move || lines.for_each(drop));
            return Ok(());
        }
        seen += &line;
        seen += "\n";
    }
    bail!("it ended:\n{seen}")
}

/// Returns the folders in which Debian keeps the programs of each version of Postgres, the newest
/// first.
fn postgres_folders() -> Vec<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut folders: Vec<_> = versions
        .filter_map(|version| Some(version.ok()?.path().join("bin")))
        .collect();
    folders.sort();
    folders.reverse();
    folders
}

/// Finds a program in folders or on the path.
fn program(name: &str, package: &str, folders: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    folders
        .iter()
        .cloned()
        .chain(env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("found no {name}: the Debian package {package} has it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_up_to_the_line_that_says_that_the_server_is_ready() {
        assert!(await_line(&b"starting\nready now\nmore\n"[..], "ready").is_ok());
        let error = await_line(&b"starting\nno such disk\n"[..], "ready").unwrap_err();
        assert!(error.to_string().contains("no such disk"), "{error}");
    }

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        let error = program("no-such-server", "some-package", &[]).unwrap_err();
        assert!(error.to_string().contains("some-package"), "{error}");
    }
}
