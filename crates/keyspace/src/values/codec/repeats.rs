//! Which keys a map or struct has written: decoders of types refuse a second one with the same name, or lose a value.
//!
//! Keys repeat where serde writes several types into one map: the fields of a struct and those of a type that it
//! flattens, or a tag and the content of the variant.

use std::collections::BTreeSet;

use serde::Serialize;

/// How many names of fields are remembered. The fields of a struct differ from each other; only tags, which serde
/// writes before the fields, one for each enum around the struct, may equal one of them.
const MAX_TAGS: usize = 4;

/// The names of the first fields of a struct.
#[derive(Default)]
pub(super) struct FirstNames {
    names: [&'static str; MAX_TAGS],
    count: usize,
}

impl FirstNames {
    /// Returns whether there was a field of this name, and remembers it otherwise.
    #[inline]
    pub(super) fn has(&mut self, name: &'static str) -> bool {
        if self.names[..self.count].contains(&name) {
            return true;
        }
        if self.count < MAX_TAGS {
            self.names[self.count] = name;
            self.count += 1;
        }
        false
    }
}

/// The keys of a map, as JSON.
#[derive(Default)]
pub(super) struct MapKeys(BTreeSet<String>);

impl MapKeys {
    /// Remembers a key.
    ///
    /// # Errors
    /// Returns the key if the map has it already.
    pub(super) fn add(
        &mut self,
        key: &(impl Serialize + ?Sized),
        keys_are_text: bool,
    ) -> Result<(), String> {
        // What JSON does not have is no key of a struct or a tag.
        let Ok(mut text) = serde_json::to_string(key) else {
            return Ok(());
        };
        if keys_are_text && !text.starts_with('"') {
            text = format!("\"{text}\"");
        }
        match self.0.replace(text) {
            None => Ok(()),
            Some(text) => Err(text.trim_matches('"').to_owned()),
        }
    }
}

#[cold]
pub(super) fn repeated<E: serde::ser::Error>(key: &str) -> E {
    E::custom(format_args!(
        "key `{key}` is written twice, as with `#[serde(flatten)]` or `#[serde(tag)]` over a map that has it: rename \
         one of the two"
    ))
}
