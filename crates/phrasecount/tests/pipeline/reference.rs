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
            let text = String::from_utf8_lossy(&bytes);
            let is_markdown = path.extension().is_some_and(|extension| extension == "md");
            documents.insert(if is_markdown {
                words(&prose(&text))
            } else {
                words(&text)
            });
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

/// Returns the prose of Markdown whose fences are of backticks and whose marks are all closed.
fn prose(markdown: &str) -> String {
    let mut is_code = false;
    let mut prose = String::new();
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    let without_comments = without(&prose, "<!--", "-->");
    without(&without_comments, "](", ")")
}

/// Returns a text without what stands between two marks.
fn without(text: &str, begin: &str, end: &str) -> String {
    let mut parts = text.split(begin);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, rest) = part.split_once(end).expect("the mark is closed");
        kept.push(' ');
        kept.push_str(rest);
    }
    kept
}

fn words(text: &str) -> Vec<String> {
    text.to_ascii_lowercase()
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}
