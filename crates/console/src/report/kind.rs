//! Kinds of items: which of them wait, and which sessions take.

use serde::Serialize;

/// The kinds of the first items of a queue that wait, and those that sessions take, in alphabetical order.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Kinds {
    /// The name of the queue.
    pub queue: String,
    /// The kinds.
    pub kinds: Vec<Kind>,
}

/// A kind of items: the name of a type of jobs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Kind {
    /// The kind.
    pub kind: String,
    /// How many sessions take items of this kind. One that has died counts until what it held is returned.
    pub sessions: u64,
    /// How many such items are among the first that wait, 1,000 with groups and 1,000 others, and the first 1,000
    /// delayed ones that are due. Fewer if they are large.
    pub waiting: u64,
}

impl Kind {
    /// Returns whether items of the kind wait and no session takes them.
    pub fn is_unknown(&self) -> bool {
        self.sessions == 0 && self.waiting > 0
    }
}

/// How many kinds a text names.
const MAX_NAMED: usize = 3;

/// Returns that no worker knows some kinds, or nothing if there are none.
pub(crate) fn unknown_text(kinds: &[String]) -> Option<String> {
    if kinds.is_empty() {
        return None;
    }
    let named = kinds.iter().take(MAX_NAMED);
    let named = named.map(|kind| format!("`{kind}`")).collect::<Vec<_>>();
    let more = match kinds.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("no worker knows {}{more}", named.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_some_kinds_that_no_worker_knows() {
        let kinds = ["a", "b", "c", "d", "e"].map(str::to_owned);
        for (count, text) in [
            (0, None),
            (1, Some("no worker knows `a`")),
            (3, Some("no worker knows `a`, `b`, `c`")),
            (5, Some("no worker knows `a`, `b`, `c` and 2 more")),
        ] {
            assert_eq!(unknown_text(&kinds[..count]).as_deref(), text);
        }
    }
}
