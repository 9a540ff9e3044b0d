//! Real text: files, no two of which have the same one.

use std::collections::HashSet;
use std::path::PathBuf;
use std::{env, fs};

use tempfile::TempDir;
use walkdir::WalkDir;

use crate::phrases::normalize;

/// The folder of the text, if not that of cargo.
const FOLDER: &str = "BENCH_TEXT";

/// The contents of files.
pub(crate) struct Corpus(Vec<String>);

impl Corpus {
    /// Reads files in the order of their paths until they have this number of megabytes. Skips files that are not
    /// text, and copies, even if letter case or spacing differs.
    pub(crate) fn read(megabytes: usize) -> Result<Self, String> {
        let folder = folder().ok_or_else(|| format!("{FOLDER} is not set, nor is a home"))?;
        let mut files = Vec::new();
        let mut bytes = 0;
        let mut seen = HashSet::new();
        let entries = WalkDir::new(&folder).sort_by_file_name().into_iter();
        for entry in entries.filter_map(Result::ok) {
            if bytes >= megabytes * 1_000_000 {
                return Ok(Self(files));
            }
            if !entry.file_type().is_file() {
                continue;
            }
            let Ok(file) = fs::read_to_string(entry.path()) else {
                continue;
            };
            let text = normalize(&file);
            if !file.contains('\0') && !text.is_empty() && seen.insert(text) {
                bytes += file.len();
                files.push(file);
            }
        }
        let folder = folder.display();
        Err(format!(
            "{folder} has {bytes} bytes of distinct text, not {megabytes} MB: name another with {FOLDER}"
        ))
    }

    /// Returns how many bytes there are, in megabytes.
    pub(crate) fn megabytes(&self) -> f64 {
        self.0.iter().map(String::len).sum::<usize>() as f64 / 1e6
    }

    /// Returns how many files there are.
    pub(crate) fn files(&self) -> usize {
        self.0.len()
    }

    /// Writes the files into a temporary folder.
    pub(crate) fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("the system has a temporary folder");
        for (number, file) in self.0.iter().enumerate() {
            let path = folder.path().join(format!("{number:06}"));
            fs::write(path, file).expect("the temporary folder can hold them");
        }
        folder
    }
}

fn folder() -> Option<PathBuf> {
    let in_home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cargo"));
    let of_cargo = || {
        let cargo = env::var_os("CARGO_HOME").map(PathBuf::from);
        Some(cargo.or_else(in_home)?.join("registry/src"))
    };
    env::var_os(FOLDER).map(PathBuf::from).or_else(of_cargo)
}
