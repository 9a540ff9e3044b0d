//! The names of the files of a store.

use std::fs;
use std::path::{Path, PathBuf};

/// What follows the name of the store's file in those of the files beside it, but for the segments of the log.
const BESIDE: [&str; 3] = [".lock", ".apps", ".socket"];

/// What comes before the number of a segment, which has [`LOG_DIGITS`] hexadecimal digits.
const LOG: &str = ".log.";

const LOG_DIGITS: usize = 16;

/// What begins the name of a store, a copy or a socket that is being made.
const BEING_MADE: &str = ".keyspace-";

/// How many symbolic links lead to a file, at most.
const MAX_LINKS: usize = 40;

/// Returns whether a path is that of a file of the embedded store at `store`: the store's file, its log and what else
/// is [beside](crate::embedded#files) it, whether it is there now or not. A program that writes files next to a store
/// should refuse such a path: the store would take the file for its own.
///
/// Symbolic links are followed, and hard links of the files that are there are found.
///
/// ```
/// use keyspace::embedded::is_file_of;
///
/// let folder = std::env::temp_dir();
/// let store = folder.join("jobs.keyspace");
/// assert!(is_file_of(&folder.join("jobs.keyspace.lock"), &store));
/// assert!(!is_file_of(&folder.join("jobs.keyspace.sqlite"), &store));
/// ```
#[must_use]
pub fn is_file_of(path: &Path, store: &Path) -> bool {
    let (Some(path), Some(store)) = (place(path), place(store)) else {
        return false;
    };
    is_name_of(&path, &store) || is_link_of(&path, &store)
}

/// Returns where a file is or would be made, without symbolic links. `None`: it is in no folder.
fn place(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let folder = fs::canonicalize(folder).ok()?;
        let place = folder.join(path.file_name()?);
        match fs::read_link(&place) {
            // It may lead to a file that is not there yet.
            Ok(target) => path = folder.join(target),
            Err(_) => return Some(place),
        }
    }
    None
}

/// Returns whether a place has the name of a file of the store.
fn is_name_of(place: &Path, store: &Path) -> bool {
    let name = place.file_name().unwrap_or_default().as_encoded_bytes();
    if place.parent() == store.parent() && name.starts_with(BEING_MADE.as_bytes()) {
        return true;
    }
    let place = place.as_os_str().as_encoded_bytes();
    let Some(end) = place.strip_prefix(store.as_os_str().as_encoded_bytes()) else {
        return false;
    };
    let is_beside = |name: &str| end == name.as_bytes();
    let is_log = end.strip_prefix(LOG.as_bytes()).is_some_and(|digits| {
        digits.len() == LOG_DIGITS && digits.iter().all(u8::is_ascii_hexdigit)
    });
    end.is_empty() || BESIDE.into_iter().any(is_beside) || is_log
}

/// Returns whether a place is another name of a file of the store.
#[cfg(unix)]
fn is_link_of(place: &Path, store: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    let Some(wanted) = id(place) else {
        return false;
    };
    let entries = store.parent().and_then(|folder| fs::read_dir(folder).ok());
    let mut files = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    files.any(|file| is_name_of(&file, store) && id(&file) == Some(wanted))
}

#[cfg(not(unix))]
fn is_link_of(_place: &Path, _store: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn with_end(path: &Path, end: &str) -> PathBuf {
        let mut path = OsString::from(path);
        path.push(end);
        path.into()
    }

    #[test]
    fn every_file_of_a_store_is_known_by_its_name_whether_it_is_there_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        for is_there in [false, true] {
            if is_there {
                fs::write(&store, "").unwrap();
            }
            for end in ["", ".lock", ".apps", ".socket", ".log.00000000000000fF"] {
                assert!(is_file_of(&with_end(&store, end), &store), "{end}");
            }
            for end in [
                ".",
                ".log",
                ".log.1",
                ".log.00000000000000fg",
                ".lock2",
                ".sqlite",
                "2",
            ] {
                assert!(!is_file_of(&with_end(&store, end), &store), "{end}");
            }
            assert!(is_file_of(&folder.path().join(".keyspace-Ab3"), &store));
            assert!(!is_file_of(&folder.path().join("keyspace-Ab3"), &store));
            assert!(!is_file_of(&folder.path().join("no/store"), &store));
        }
    }

    #[test]
    fn the_files_that_a_store_makes_are_files_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let store = crate::stores::embedded::Options::new().open(&path).unwrap();
        let entries = fs::read_dir(folder.path()).unwrap();
        let files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        assert!(files.len() > 2, "{files:?}");
        assert!(
            files.iter().all(|file| is_file_of(file, &path)),
            "{files:?}"
        );
        store.close().unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn links_to_files_of_a_store_are_files_of_it() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        let lock = with_end(&store, ".lock");
        let log = with_end(&store, ".log.0000000000000001");
        fs::write(&store, "").unwrap();
        fs::write(&log, "").unwrap();
        let link = |name: &str| elsewhere.path().join(name);
        // The lock is not there.
        symlink(&lock, link("lock")).unwrap();
        symlink("lock", link("twice")).unwrap();
        symlink(folder.path(), link("folder")).unwrap();
        symlink("circle", link("circle")).unwrap();
        fs::hard_link(&log, link("log")).unwrap();
        fs::hard_link(&store, link("hard")).unwrap();
        for name in ["lock", "twice", "folder/store.socket", "log", "hard"] {
            assert!(is_file_of(&link(name), &store), "{name}");
        }
        for name in ["circle", "folder/other", "new"] {
            assert!(!is_file_of(&link(name), &store), "{name}");
        }
        symlink(&store, link("store")).unwrap();
        assert!(is_file_of(&lock, &link("store")));
    }
}
