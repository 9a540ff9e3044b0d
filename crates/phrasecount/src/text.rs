//! Tokens, phrases and contents: the parts of a file that count.
//!
//! A *token* is a maximal run of ASCII letters and digits, in lower case. A *text* is the tokens of a
//! file, joined by one space: files with the same text have the same content. A *phrase* is four
//! consecutive tokens, and so a slice of the text.

use std::array::TryFromSliceError;
use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3Default;

/// How many tokens a phrase has.
pub(crate) const PHRASE_TOKENS: usize = 4;

/// The longest phrase that is counted. A longer one contains data rather than words, and could exceed the size of a key
/// of the store.
pub(crate) const MAX_PHRASE_BYTES: usize = 1_000;

/// The id of a content: the hash of its text.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContentId([u8; 16]);

impl ContentId {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&[u8]> for ContentId {
    type Error = TryFromSliceError;

    fn try_from(bytes: &[u8]) -> Result<Self, TryFromSliceError> {
        Ok(Self(bytes.try_into()?))
    }
}

impl fmt::Display for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentId({self})")
    }
}

/// Hashes a text, part by part.
#[derive(Default)]
pub(crate) struct ContentHasher(Xxh3Default);

impl ContentHasher {
    pub(crate) fn feed(&mut self, text: &[u8]) {
        self.0.update(text);
    }

    pub(crate) fn finish(&self) -> ContentId {
        ContentId(self.0.digest128().to_be_bytes())
    }
}

/// Turns bytes into text, part by part.
#[derive(Default)]
pub(crate) struct Tokenizer {
    is_in_token: bool,
    has_tokens: bool,
}

impl Tokenizer {
    /// Appends the tokens of the bytes to the text.
    pub(crate) fn feed(&mut self, bytes: &[u8], text: &mut Vec<u8>) {
        for byte in bytes {
            if byte.is_ascii_alphanumeric() {
                if !self.is_in_token && self.has_tokens {
                    text.push(b' ');
                }
                text.push(byte.to_ascii_lowercase());
                self.has_tokens = true;
                self.is_in_token = true;
            } else {
                self.is_in_token = false;
            }
        }
    }
}

/// Finds the phrases of a text, part by part, and holds one phrase in memory.
pub(crate) struct Phrases {
    /// The last tokens of the text, four at most. A token that is too long for any phrase is cut to a length that
    /// still makes its phrases too long.
    recent: Vec<u8>,
    /// Where each of these tokens begins in `recent`.
    starts: VecDeque<usize>,
    /// The number of phrases that were too long.
    overlong: u64,
}

impl Phrases {
    pub(crate) fn new() -> Self {
        Self {
            recent: Vec::new(),
            starts: VecDeque::from([0]),
            overlong: 0,
        }
    }

    /// Reads the next part of the text, and calls `each` for every phrase that it completes.
    pub(crate) fn feed(&mut self, text: &[u8], each: &mut impl FnMut(&str)) {
        for (index, piece) in text.split(|byte| *byte == b' ').enumerate() {
            if index > 0 {
                self.end_token(each);
            }
            let begin = self.starts.back().copied().unwrap_or(0);
            let room = (begin + MAX_PHRASE_BYTES + 1).saturating_sub(self.recent.len());
            self.recent
                .extend_from_slice(&piece[..piece.len().min(room)]);
        }
    }

    /// Ends the text, and returns how many of its phrases were too long.
    pub(crate) fn finish(mut self, each: &mut impl FnMut(&str)) -> u64 {
        self.end_token(each);
        self.overlong
    }

    fn end_token(&mut self, each: &mut impl FnMut(&str)) {
        if self.starts.len() == PHRASE_TOKENS {
            if self.recent.len() <= MAX_PHRASE_BYTES {
                each(std::str::from_utf8(&self.recent).expect("tokens are ASCII"));
            } else {
                self.overlong += 1;
            }
            self.starts.pop_front();
            let second = self.starts[0];
            self.recent.drain(..second);
            for start in &mut self.starts {
                *start -= second;
            }
        }
        self.recent.push(b' ');
        self.starts.push_back(self.recent.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text of bytes that are fed in parts of a given size.
    fn text(bytes: &[u8], part: usize) -> String {
        let mut tokenizer = Tokenizer::default();
        let mut text = Vec::new();
        for part in bytes.chunks(part) {
            tokenizer.feed(part, &mut text);
        }
        String::from_utf8(text).unwrap()
    }

    fn phrases(text: &str, part: usize) -> (Vec<String>, u64) {
        let mut phrases = Phrases::new();
        let mut found = Vec::new();
        let mut each = |phrase: &str| found.push(phrase.to_owned());
        for part in text.as_bytes().chunks(part) {
            phrases.feed(part, &mut each);
        }
        let overlong = phrases.finish(&mut each);
        (found, overlong)
    }

    #[test]
    fn a_text_is_its_tokens_however_they_come() {
        for part in 1..9 {
            assert_eq!(text(b"  Don't\npanic: x86-64!", part), "don t panic x86 64");
            assert_eq!(text("na\u{ef}ve".as_bytes(), part), "na ve");
            assert_eq!(text(b" .\n", part), "");
        }
    }

    #[test]
    fn a_phrase_is_four_tokens_in_a_row_however_they_come() {
        for part in 1..9 {
            let (found, _) = phrases("this is only a test", part);
            assert_eq!(found, ["this is only a", "is only a test"]);
            assert!(phrases("do not panic", part).0.is_empty());
            assert!(phrases("", part).0.is_empty());
        }
    }

    #[test]
    fn a_phrase_that_is_too_long_is_left_out_and_the_next_ones_are_found() {
        let fits = "x".repeat(MAX_PHRASE_BYTES - 6);
        for (token, overlong) in [(fits.clone(), 0), (fits + "x", 4), ("x".repeat(100_000), 4)] {
            for part in [1, 999, 100_000] {
                let text = format!("a b c {token} d e f g h");
                let (found, left_out) = phrases(&text, part);
                assert_eq!(left_out, overlong, "{} in {part}", token.len());
                let last: Vec<_> = found.iter().rev().take(2).collect();
                assert_eq!(last, ["e f g h", "d e f g"]);
                assert_eq!(found.len() as u64, 6 - overlong);
            }
        }
    }
}
