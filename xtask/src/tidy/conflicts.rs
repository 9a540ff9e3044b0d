//! The list of conflicts in `docs/schema.md`: the section `# Conflicts` of each public function of hc-dequeue.

use std::collections::BTreeMap;
use std::fmt::Write;

use pulldown_cmark::{Event, Parser, Tag};

use super::tree::Tree;

/// Where the functions are.
const SOURCES: &str = "crates/hc-dequeue/src/";

const HEADING: &str = "# Conflicts";

/// The widest line.
const MAX_COLUMNS: usize = 120;

/// Returns the list, with one line for all functions of which the same is true.
pub(super) fn list(tree: &Tree) -> String {
    let mut functions = BTreeMap::new();
    for (path, text) in tree.texts() {
        if let Some(file) = path.strip_prefix(SOURCES)
            && let Some(module) = file.split(['/', '.']).next()
            && path.ends_with(".rs")
        {
            read(text, module, &mut functions);
        }
    }
    let mut rows: Vec<(String, String)> = Vec::new();
    for (function, conflicts) in functions {
        match rows.iter_mut().find(|(_, same)| *same == conflicts) {
            Some((names, _)) => {
                let _ = write!(names, ", `{function}`");
            }
            None => rows.push((format!("`{function}`"), conflicts)),
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

/// Adds the public functions of a file, each with its section. A method is named by its type, and another function by
/// its module.
fn read(source: &str, module: &str, functions: &mut BTreeMap<String, String>) {
    let mut owner = module;
    let mut section: Option<String> = None;
    let mut is_inside = false;
    let mut in_attribute = false;
    for line in source.lines() {
        let item = line.trim_start();
        if line.starts_with("impl") {
            owner = type_of(line);
        } else if line == "}" {
            owner = module;
        } else if let Some(text) = item.strip_prefix("///") {
            let text = text.strip_prefix(' ').unwrap_or(text);
            if text.starts_with("# ") {
                is_inside = text == HEADING;
            } else if is_inside {
                let section = section.get_or_insert_default();
                section.push_str(text);
                section.push('\n');
            }
        } else if item == "#[doc(hidden)]" {
            section = None;
        } else if in_attribute || item.starts_with("#[") {
            in_attribute = !item.ends_with(']');
        } else {
            if let (Some(name), Some(section)) = (public_function(item), &section) {
                functions.insert(format!("{owner}::{name}"), plain(section));
            }
            section = None;
            is_inside = false;
        }
    }
}

/// Returns the name of the type whose methods a line begins.
fn type_of(line: &str) -> &str {
    let mut depth = 0;
    let begin = line.find(|c| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        c == ' ' && depth == 0
    });
    let name = line[begin.unwrap_or_default()..].trim_start();
    name.split(['<', ' ']).next().unwrap_or_default()
}

/// Returns the name of the public function that a line begins.
fn public_function(line: &str) -> Option<&str> {
    let (qualifiers, name) = line.strip_prefix("pub ")?.split_once("fn ")?;
    let known = ["async", "const", "unsafe"];
    if !qualifiers
        .split_whitespace()
        .all(|word| known.contains(&word))
    {
        return None;
    }
    name.split(['(', '<']).next()
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
    #[expect(
        dead_code,
        reason = \"none\"
    )]
    pub const fn len(&self) {}

    /// # Conflicts
    /// Reads by snapshot.
    pub(crate) fn private(&self) {}

    /// Has no section.
    pub fn other(&self) {}
}

impl Clone for Queue<T> {
    /// # Conflicts
    /// None.
    fn clone(&self) {}
}

impl Delivery {
    /// # Conflicts
    /// Reads by snapshot.
    pub fn id(&self) {}
}

/// # Conflicts
/// As `add`.
pub async fn drain<T>() {}
";

    #[test]
    fn the_list_has_the_sections_of_public_functions() {
        let path = format!("{SOURCES}queue/mod.rs");
        let list = list(&Tree::of(&[
            (&path, SOURCE),
            ("crates/combine/src/a.rs", SOURCE),
        ]));
        let expected = "- `Delivery::id`, `Queue::len`: Reads by snapshot.\n\
                        - `Queue::add`: As `take`, and: reads `nothing`\n\
                        - `queue::drain`: As `add`.\n";
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
