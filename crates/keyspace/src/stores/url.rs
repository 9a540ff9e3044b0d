//! Store URLs: `memory:`, `embedded:<path>`, `fdb:` and `fdb:<cluster file>`.
//!
//! The text after the first colon is an operating system path, not percent-encoded: `embedded:jobs.keyspace`,
//! `embedded:/var/lib/app/jobs.keyspace`, `fdb:/etc/foundationdb/fdb.cluster`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::contract::error::OpenError;

/// A parsed store URL.
///
/// ```
/// use keyspace::url::StoreUrl;
///
/// let url: StoreUrl = "embedded:jobs.keyspace".parse()?;
/// assert_eq!(url, StoreUrl::Embedded { path: "jobs.keyspace".into() });
/// assert_eq!(url.to_string(), "embedded:jobs.keyspace");
/// # Ok::<(), keyspace::OpenError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StoreUrl {
    /// `memory:`, a new store that ends with its last handle.
    Memory,
    /// `embedded:<path>`, the embedded store in a file.
    Embedded {
        /// The store's file.
        path: PathBuf,
    },
    /// `fdb:` or `fdb:<cluster file>`, a FoundationDB cluster.
    Fdb {
        /// The cluster file, or `None` for the client's default.
        cluster_file: Option<PathBuf>,
    },
}

impl FromStr for StoreUrl {
    type Err = OpenError;

    /// Parses a URL.
    ///
    /// # Errors
    /// [`OpenError::Url`], with a reason that says what was expected.
    fn from_str(url: &str) -> Result<Self, OpenError> {
        let refused = |reason: &str| OpenError::Url {
            url: url.to_owned(),
            reason: reason.to_owned(),
        };
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("memory", _)) => Err(refused("nothing may follow `memory:`")),
            Some(("embedded", "")) => Err(refused("`embedded:` needs the path of its file")),
            Some(("embedded", path)) => Ok(Self::Embedded { path: path.into() }),
            Some(("fdb", "")) => Ok(Self::Fdb { cluster_file: None }),
            Some(("fdb", path)) => Ok(Self::Fdb {
                cluster_file: Some(path.into()),
            }),
            _ => Err(refused(
                "expected `memory:`, `embedded:<path>`, `fdb:` or `fdb:<cluster file>`",
            )),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Embedded { path } => write!(f, "embedded:{}", path.display()),
            Self::Fdb { cluster_file: None } => f.write_str("fdb:"),
            Self::Fdb {
                cluster_file: Some(path),
            } => write!(f, "fdb:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_parses_and_prints_as_it_was() {
        let embedded = |path: &str| StoreUrl::Embedded { path: path.into() };
        let fdb = |path: Option<&str>| StoreUrl::Fdb {
            cluster_file: path.map(PathBuf::from),
        };
        for (url, expected) in [
            ("memory:", StoreUrl::Memory),
            ("embedded:jobs.keyspace", embedded("jobs.keyspace")),
            ("embedded:/var/a b/q%20", embedded("/var/a b/q%20")),
            ("embedded:C:\\queue", embedded("C:\\queue")),
            ("fdb:", fdb(None)),
            ("fdb:/etc/fdb.cluster", fdb(Some("/etc/fdb.cluster"))),
        ] {
            assert_eq!(url.parse::<StoreUrl>().unwrap(), expected, "{url}");
            assert_eq!(expected.to_string(), url);
        }
    }

    #[test]
    fn a_malformed_url_is_refused_with_the_expected_forms() {
        for (url, expected) in [
            ("", "expected `memory:`"),
            ("memory", "expected `memory:`"),
            ("Memory:", "expected `memory:`"),
            ("redis://localhost", "expected `memory:`"),
            ("jobs.keyspace", "expected `memory:`"),
            ("memory:queue", "nothing may follow"),
            ("embedded:", "needs the path"),
        ] {
            let error = url.parse::<StoreUrl>().unwrap_err();
            assert!(matches!(&error, OpenError::Url { url: named, .. } if named == url));
            let text = error.to_string();
            assert!(text.starts_with(&format!("`{url}` names no store: ")));
            assert!(text.contains(expected), "{text}");
        }
    }
}
