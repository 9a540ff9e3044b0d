//! The list of conflicts in `docs/schema.md`: the section `# Conflicts` of each public method of hc-dequeue.

use std::collections::BTreeMap;
use std::fmt::Write;

use pulldown_cmark::{Event, Parser, Tag};

use super::tree::Tree;

/// Where the methods are.
const SOURCES: &str = "crates/hc-dequeue/src/";

/// The types whose methods the list has.
const TYPES: [&str; 3] = ["Queue", "Consumer", "Delivery"];

const HEADING: &str = "# Conflicts";

/// The widest line.
const MAX_COLUMNS: usize = 120;

/// Returns the list, with one line for all methods of which the same is true.
pub(super) fn list(tree: &Tree) -> String {
    let mut methods = BTreeMap::new();
    for (path, text) in tree.texts() {
        if path.starts_with(SOURCES) && path.ends_with(".rs") {
            read(text, &mut methods);
        }
    }
    let mut rows: Vec<(String, String)> = Vec::new();
    for (method, conflicts) in methods {
        match rows.iter_mut().find(|(_, same)| *same == conflicts) {
            Some((names, _)) => {
                let _ = write!(names, ", `{method}`");
            }
            None => rows.push((format!("`{method}`"), conflicts)),
        }
    }
    let mut list = String::new();
    for (names, conflicts) in rows {
        push_wrapped(&mut list, &format!("- {names}: {conflicts}"));
    }
    list
}

/// Adds an entry of the list, in lines that are not too wide.
fn push_wrapped(list: &mut String, entry: &str) {
    let mut columns = 0;
    for word in entry.split(' ') {
        let width = word.chars().count();
        if columns == 0 {
            columns = width;
        } else if columns + 1 + width <= MAX_COLUMNS {
            list.push(' ');
            columns += 1 + width;
        } else {
            list.push_str("\n  ");
            columns = 2 + width;
        }
        list.push_str(word);
    }
    list.push('\n');
}

/// Adds the public methods of a file, each with its section.
fn read(source: &str, methods: &mut BTreeMap<String, String>) {
    let mut owner = None;
    let mut section: Option<String> = None;
    let mut is_inside = false;
    for line in source.lines() {
        if line.starts_with("impl") {
            owner = TYPES.into_iter().find(|name| implements(line, name));
        } else if let Some(text) = line.strip_prefix("    ///") {
            let text = text.strip_prefix(' ').unwrap_or(text);
            if text.starts_with("# ") {
                is_inside = text == HEADING;
            } else if is_inside {
                let section = section.get_or_insert_default();
                section.push_str(text);
                section.push('\n');
            }
        } else if line == "    #[doc(hidden)]" {
            section = None;
        } else if !line.starts_with("    #[") {
            let begins = ["    pub fn ", "    pub async fn "];
            let method = begins.iter().find_map(|begin| line.strip_prefix(begin));
            if let (Some(owner), Some(method), Some(section)) = (owner, method, &section) {
                let name = method.split(['(', '<']).next().unwrap_or_default();
                methods.insert(format!("{owner}::{name}"), plain(section));
            }
            section = None;
            is_inside = false;
        }
    }
}

/// Returns whether a line begins the methods of a type, and not those of a trait.
fn implements(line: &str, name: &str) -> bool {
    let line = line.trim_end_matches('{').trim_end();
    let begins = line.contains(&format!(" {name}<")) || line.ends_with(&format!(" {name}"));
    begins && !line.contains(" for ")
}

/// Returns a section in one line, without links.
fn plain(section: &str) -> String {
    let mut text = String::new();
    for event in Parser::new(section) {
        match event {
            // The brackets of a link that only rustdoc resolves.
            Event::Text(piece) if &*piece == "[" || &*piece == "]" => {}
            Event::Text(piece) => text.push_str(&piece),
            Event::Code(code) => {
                let _ = write!(text, "`{code}`");
            }
            Event::Start(Tag::Item | Tag::Paragraph) | Event::SoftBreak if !text.is_empty() => {
                text.push(' ');
            }
            _ => {}
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
impl<T, C> Queue<T, C>
where
    T: Send,
{
    /// Adds.
    ///
    /// # Conflicts
    /// As [`take`](Self::take), and:
    ///
    /// - reads [`nothing`]
    ///
    /// # Errors
    /// None.
    #[must_use]
    pub async fn add<V>(&self) {}

    /// # Conflicts
    /// Reads by snapshot.
    pub fn len(&self) {}

    /// # Conflicts
    /// Reads by snapshot.
    pub(crate) fn private(&self) {}

    /// Has no section.
    pub fn other(&self) {}
}

impl Clone for Queue<T> {
    /// # Conflicts
    /// None.
    pub fn clone(&self) {}
}

impl<T> Delivery<T> {
    /// # Conflicts
    /// Reads by snapshot.
    pub fn id(&self) {}
}
";

    #[test]
    fn the_list_has_the_sections_of_public_methods() {
        let path = format!("{SOURCES}queue/mod.rs");
        let list = list(&Tree::of(&[
            (&path, SOURCE),
            ("crates/combine/src/a.rs", SOURCE),
        ]));
        let expected = "- `Delivery::id`, `Queue::len`: Reads by snapshot.\n\
                        - `Queue::add`: As `take`, and: reads `nothing`\n";
        assert_eq!(list, expected);
    }

    #[test]
    fn a_long_entry_is_wrapped() {
        let long = "a".repeat(MAX_COLUMNS - 3);
        let mut list = String::new();
        push_wrapped(&mut list, &format!("- {long} b c"));
        assert_eq!(list, format!("- {long}\n  b c\n"));
    }
}
