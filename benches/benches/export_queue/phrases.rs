//! What phrasecount counts, counted in memory.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// How many words a phrase has.
const WORDS: usize = 4;

/// The longest phrase that is counted.
const MAX_PHRASE_BYTES: usize = 1_000;

/// How often there is a phrase.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Count {
    /// In how many documents.
    pub(crate) documents: u64,
    /// How often in all of them.
    pub(crate) occurrences: u64,
}

impl Count {
    pub(crate) fn add(&mut self, other: Self) {
        self.documents += other.documents;
        self.occurrences += other.occurrences;
    }
}

/// The counts of all phrases.
pub(crate) type Counts = HashMap<String, Count>;

/// Returns the words of a text, in lower case, with one space between them.
pub(crate) fn normalize(text: &str) -> String {
    let mut normal = String::with_capacity(text.len());
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    for word in words.filter(|word| !word.is_empty()) {
        if !normal.is_empty() {
            normal.push(' ');
        }
        normal.push_str(word);
    }
    normal.make_ascii_lowercase();
    normal
}

/// Counts the phrases of all files in a folder: the plain way, and the yardstick.
pub(crate) fn of_folder(folder: &Path) -> Counts {
    let mut counts = Counts::new();
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let file = entry.and_then(|entry| fs::read_to_string(entry.path()));
        let text = normalize(&file.expect("its files are text"));
        add_document(&mut counts, &text);
    }
    counts
}

/// Adds the phrases of a normalized text.
fn add_document(counts: &mut Counts, text: &str) {
    let mut begins = vec![0];
    begins.extend(text.match_indices(' ').map(|(space, _)| space + 1));
    begins.push(text.len() + 1);
    let mut occurrences = HashMap::<_, u64>::new();
    for words in begins.windows(WORDS + 1) {
        let phrase = &text[words[0]..words[WORDS] - 1];
        if phrase.len() <= MAX_PHRASE_BYTES {
            *occurrences.entry(phrase).or_default() += 1;
        }
    }
    for (phrase, occurrences) in occurrences {
        let more = Count {
            documents: 1,
            occurrences,
        };
        match counts.get_mut(phrase) {
            Some(count) => count.add(more),
            None => {
                counts.insert(phrase.to_owned(), more);
            }
        }
    }
}
