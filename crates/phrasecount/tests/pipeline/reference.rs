//! The independent count: everything in memory, by plain comparison of what was read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// For each phrase, in how many documents it occurs, and how often.
pub(crate) type Counts = BTreeMap<String, (i64, i64)>;

/// The longest phrase that is counted.
const MAX_PHRASE_BYTES: usize = 1_000;

/// Counts the files below a directory.
pub(crate) fn count(directory: &Path) -> Counts {
    let mut documents = BTreeSet::new();
    collect(directory, &mut documents);
    count_all(&documents)
}

pub(crate) fn count_all(documents: &BTreeSet<Vec<String>>) -> Counts {
    let mut counts = Counts::new();
    for words in documents {
        let mut phrases = BTreeMap::<_, i64>::new();
        for phrase in words.windows(4) {
            *phrases.entry(phrase.join(" ")).or_default() += 1;
        }
        phrases.retain(|phrase, _| phrase.len() <= MAX_PHRASE_BYTES);
        for (phrase, occurrences) in phrases {
            let count = counts.entry(phrase).or_default();
            count.0 += 1;
            count.1 += occurrences;
        }
    }
    counts
}

fn collect(directory: &Path, documents: &mut BTreeSet<Vec<String>>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, documents);
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let is_binary = bytes.iter().take(8_192).any(|byte| *byte == 0);
        if !is_binary && is_text(&path, &bytes) {
            documents.insert(words(&String::from_utf8_lossy(&bytes)));
        }
    }
}

/// Judges by the extensions that the tests use.
fn is_text(path: &Path, bytes: &[u8]) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    match name.rsplit_once('.') {
        None => std::str::from_utf8(bytes).is_ok(),
        Some((_, extension)) => ["md", "txt", "rs"].contains(&extension),
    }
}

fn words(text: &str) -> Vec<String> {
    text.to_ascii_lowercase()
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}
