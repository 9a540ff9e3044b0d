//! Cluster files: which file to use, and whether its content is valid.
//!
//! The client library would also notice a bad file, but later and without naming it.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::contract::error::OpenError;

/// The path of an installation's cluster file.
const INSTALLED: &str = if cfg!(windows) {
    r"C:\ProgramData\foundationdb\fdb.cluster"
} else if cfg!(target_os = "macos") {
    "/usr/local/etc/foundationdb/fdb.cluster"
} else {
    "/etc/foundationdb/fdb.cluster"
};

/// The environment variable that names a cluster file.
const VARIABLE: &str = "FDB_CLUSTER_FILE";

/// Returns the given file, or else the first default file that exists, as the client does.
pub(super) fn find(file: Option<&Path>) -> Result<PathBuf, OpenError> {
    if let Some(file) = file {
        return Ok(file.to_owned());
    }
    if let Some(file) = env::var_os(VARIABLE) {
        return Ok(file.into());
    }
    let here = Path::new("fdb.cluster");
    let file = if here.exists() {
        here
    } else {
        INSTALLED.as_ref()
    };
    if file.exists() {
        return Ok(file.to_owned());
    }
    let reason = format!(
        "the file does not exist, there is no `fdb.cluster` here, and ${VARIABLE} is not set: copy \
         the cluster's file to one of these places or name it, as in `fdb:<cluster file>`"
    );
    Err(refused(file, reason))
}

/// Returns the path for the client library if the content of the file is valid.
pub(super) fn check(file: &Path) -> Result<&str, OpenError> {
    let text = fs::read_to_string(file).map_err(|error| {
        refused(
            file,
            format!("it cannot be read: {error}; copy the cluster's file there"),
        )
    })?;
    let is_text = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let mut lines = text.lines().map(str::trim).filter(is_text);
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return Err(refused(file, "expected one line that is not a comment"));
    };
    check_line(line).map_err(|reason| refused(file, reason))?;
    file.to_str()
        .filter(|path| !path.contains('\0'))
        .ok_or_else(|| refused(file, "its path is not valid UTF-8"))
}

/// Checks a connection string: `description:id@address:port,address:port`.
fn check_line(line: &str) -> Result<(), String> {
    let expected = "expected `description:id@address:port,...`";
    let (name, coordinators) = line
        .split_once('@')
        .ok_or_else(|| format!("{expected}, found no `@`"))?;
    let (description, id) = name
        .split_once(':')
        .ok_or_else(|| format!("{expected}, found no `:` before the `@`"))?;
    let is_word = |word: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        !word.is_empty() && word.chars().all(is_part)
    };
    if !is_word(description) || !is_word(id) {
        return Err(format!(
            "{expected}, and only letters, digits and `_` before the `@`"
        ));
    }
    for coordinator in coordinators.split(',') {
        let address = coordinator.trim().trim_end_matches(":tls");
        let port = address
            .rsplit_once(':')
            .map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(1..))) {
            return Err(format!("{expected}, found the address `{coordinator}`"));
        }
    }
    Ok(())
}

pub(super) fn refused(file: &Path, reason: impl Into<String>) -> OpenError {
    OpenError::ClusterFile {
        path: file.to_owned(),
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<(), String> {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = folder.path().join("fdb.cluster");
        fs::write(&file, text).expect("a file can be written");
        check(&file).map(|_| ()).map_err(|error| {
            assert!(matches!(&error, OpenError::ClusterFile { path, .. } if *path == file));
            error.to_string()
        })
    }

    #[test]
    fn a_cluster_file_names_coordinators() {
        for text in [
            "test:a1B2@127.0.0.1:4500",
            "# a comment\n\ntest_1:x@10.0.0.1:4500:tls,10.0.0.2:4500:tls\n",
            "d:i@[::1]:4500,host.example.org:4501",
        ] {
            assert_eq!(checked(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_malformed_cluster_file_is_refused_with_the_expected_form() {
        for (text, expected) in [
            ("", "expected one line"),
            ("# only a comment", "expected one line"),
            (
                "a:b@127.0.0.1:4500\na:b@127.0.0.1:4500",
                "expected one line",
            ),
            ("127.0.0.1:4500", "found no `@`"),
            ("test@127.0.0.1:4500", "found no `:`"),
            ("te st:a@127.0.0.1:4500", "only letters, digits"),
            (":a@127.0.0.1:4500", "only letters, digits"),
            ("a:b@", "found the address ``"),
            ("a:b@127.0.0.1", "found the address `127.0.0.1`"),
            ("a:b@127.0.0.1:0", "found the address"),
            ("a:b@127.0.0.1:99999", "found the address"),
        ] {
            let error = checked(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_missing_cluster_file_is_named() {
        let missing = Path::new("no/such/fdb.cluster");
        let found = find(Some(missing)).expect("a file given is not looked for");
        let error = check(&found).expect_err("it is missing").to_string();
        assert!(error.contains("no/such/fdb.cluster"), "{error}");
    }
}
