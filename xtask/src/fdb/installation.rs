//! Where FoundationDB is installed on this machine.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// How to get what is missing.
pub(crate) const HOW_TO_INSTALL: &str = "install the packages foundationdb-clients and \
    foundationdb-server of one release from https://github.com/apple/foundationdb/releases";

/// Folders that packages install into and that may be missing from the path.
const PROGRAM_FOLDERS: [&str; 6] = [
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/local/libexec",
    "/usr/local/foundationdb",
];

const LIBRARY_FOLDERS: [&str; 6] = [
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/lib",
    "/lib",
];

/// The variable that gives the build the folder of the client library.
const LIBRARY_VARIABLE: &str = "FDB_CLIENT_LIB_PATH";

/// A server, its command line and the client library.
#[derive(Debug)]
pub(crate) struct Installation {
    server: PathBuf,
    cli: PathBuf,
}

impl Installation {
    /// Finds a whole installation.
    pub(crate) fn find() -> anyhow::Result<Self> {
        Ok(Self {
            server: program("fdbserver")?,
            cli: program("fdbcli")?,
        })
    }

    /// Finds the client library, which linking with FoundationDB requires.
    pub(crate) fn find_library() -> anyhow::Result<PathBuf> {
        let own = env::var_os(LIBRARY_VARIABLE);
        let folders = own
            .iter()
            .map(OsString::as_os_str)
            .chain(LIBRARY_FOLDERS.iter().map(OsStr::new));
        let names = ["libfdb_c.so", "libfdb_c.dylib"];
        let mut candidates =
            folders.flat_map(|folder| names.map(|name| Path::new(folder).join(name)));
        candidates.find(|path| path.exists()).with_context(|| {
            format!(
                "found no libfdb_c in ${LIBRARY_VARIABLE} or the usual folders: {HOW_TO_INSTALL}"
            )
        })
    }

    /// Returns the feature of the API version that goes with what is installed.
    pub(crate) fn feature(&self) -> anyhow::Result<&'static str> {
        let output = Command::new(&self.cli)
            .arg("--version")
            .output()
            .with_context(|| format!("cannot run {}", self.cli.display()))?;
        feature_of(&String::from_utf8_lossy(&output.stdout))
    }

    /// Returns a call of the server.
    pub(crate) fn server(&self) -> Command {
        Command::new(&self.server)
    }

    /// Runs a command of `fdbcli` on the cluster of a file, and returns its output.
    pub(crate) fn exec(&self, cluster_file: &Path, command: &str) -> anyhow::Result<String> {
        let output = Command::new(&self.cli)
            .arg("-C")
            .arg(cluster_file)
            .args(["--timeout", "20", "--exec", command])
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", self.cli.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("fdbcli cannot `{command}`: {}", text.trim());
        }
        Ok(text)
    }

    /// Asks the cluster of a file whether it is available.
    pub(crate) fn is_available(&self, cluster_file: &Path) -> anyhow::Result<bool> {
        let status = self.exec(cluster_file, "status minimal")?;
        Ok(status.contains("The database is available"))
    }
}

/// Finds a program on the path or in the usual folders.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = PROGRAM_FOLDERS.iter().map(PathBuf::from);
    env::split_paths(&path)
        .chain(usual)
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
        .with_context(|| {
            format!("found no {name} on the path or in the usual folders: {HOW_TO_INSTALL}")
        })
}

/// Returns the feature for a version as `fdbcli --version` prints it.
fn feature_of(version: &str) -> anyhow::Result<&'static str> {
    let number = version
        .split_once("(v")
        .and_then(|(_, rest)| rest.split_once('.'))
        .and_then(|(major, rest)| Some((major, rest.split_once('.')?.0)))
        .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
    match number {
        Some((7, 1 | 2)) => Ok("fdb-7_1"),
        Some((7, 3)) => Ok("fdb-7_3"),
        Some(number) if number >= (7, 4) => Ok("fdb-7_4"),
        _ => bail!(
            "fdbcli is of no version that is supported, 7.1 or newer: {}",
            version.trim()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_supported_version_has_its_feature() {
        for (version, feature) in [
            (
                "FoundationDB CLI 7.1 (v7.1.67)\nsource version 1\n",
                Some("fdb-7_1"),
            ),
            ("FoundationDB CLI 7.3 (v7.3.79)\n", Some("fdb-7_3")),
            ("FoundationDB CLI 7.4 (v7.4.5)\n", Some("fdb-7_4")),
            ("FoundationDB CLI 6.3 (v6.3.25)\n", None),
            ("command not found", None),
        ] {
            assert_eq!(feature_of(version).ok(), feature, "{version}");
        }
    }

    #[test]
    fn what_is_not_installed_is_named_with_how_to_install_it() {
        let error = program("fdb-no-such-program").unwrap_err().to_string();
        assert!(error.contains("fdb-no-such-program"), "{error}");
        assert!(error.contains("foundationdb-server"), "{error}");
    }
}
