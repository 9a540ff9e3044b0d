//! Links lead somewhere, and `docs/schema.md` shows the key layouts that the code documents.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

use super::Violation;
use super::layers::LAYERS;
use super::tree::Tree;

/// The page that shows every key layout.
const SCHEMA: &str = "docs/schema.md";

/// The heading of the key layout in the documentation of a module that is about more than keys.
const SCHEMA_HEADING: &str = "Key schema";

/// What the checks need of a document.
#[derive(Debug, Default)]
struct Document {
    /// The headings with their lines, without markup.
    headings: Vec<(usize, String)>,
    /// Where links lead, with their lines.
    links: Vec<(usize, String)>,
    /// The `text` blocks: line, the heading above, content.
    diagrams: Vec<(usize, String, String)>,
}

impl Document {
    fn parse(markdown: &str) -> Self {
        let mut document = Self::default();
        let mut heading: Option<String> = None;
        let mut diagram: Option<String> = None;
        for (event, range) in Parser::new(markdown).into_offset_iter() {
            let line = 1 + markdown[..range.start].matches('\n').count();
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    document
                        .headings
                        .extend(heading.take().map(|text| (line, text)));
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                    diagram = (&*language == "text").then(String::new);
                }
                Event::End(TagEnd::CodeBlock) => {
                    let above = document
                        .headings
                        .last()
                        .map(|(_, text)| text.clone())
                        .unwrap_or_default();
                    document
                        .diagrams
                        .extend(diagram.take().map(|text| (line, above, text)));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push((line, dest_url.into_string()));
                }
                Event::Text(text) | Event::Code(text) => {
                    for open in [&mut heading, &mut diagram].into_iter().flatten() {
                        open.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        document
    }

    /// Returns the fragments by which links reach the headings, as GitHub makes them.
    fn fragments(&self) -> BTreeSet<String> {
        let mut seen = BTreeMap::new();
        let fragments = self.headings.iter().map(|(_, heading)| {
            let kept = heading
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            let fragment = kept.collect::<String>().to_lowercase().replace(' ', "-");
            let before = seen.entry(fragment.clone()).or_insert(0);
            *before += 1;
            match *before {
                1 => fragment,
                more => format!("{fragment}-{}", more - 1),
            }
        });
        fragments.collect()
    }
}

/// Checks that every link between the documents leads to a file, and to a heading of it.
pub(super) fn check_links(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".md")) {
        for (line, link) in Document::parse(text).links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target = resolve(path, file);
            if !tree.contains(&target) {
                violations.push(Violation::at(path, line, format!("`{link}`: no such file")));
            } else if !fragment.is_empty() {
                let target = Document::parse(tree.text(&target).unwrap_or_default());
                if !target.fragments().contains(fragment) {
                    let message = format!("`{link}`: no such heading");
                    violations.push(Violation::at(path, line, message));
                }
            }
        }
    }
    violations
}

/// Returns the path from the root that `link` means in the document at `from`.
pub(super) fn resolve(from: &str, link: &str) -> String {
    if link.is_empty() {
        return from.to_owned();
    }
    let mut parts: Vec<_> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Checks that `docs/schema.md` shows exactly the key layouts that modules document, each below a
/// heading that names the crate, and that every `keys.rs` documents one.
pub(super) fn check_schema(tree: &Tree) -> Vec<Violation> {
    let schema = Document::parse(tree.text(SCHEMA).unwrap_or_default());
    let mut violations = Vec::new();
    let mut documented = BTreeSet::new();
    for layer in LAYERS {
        let folder = format!("crates/{layer}/src/");
        for (path, text) in tree.texts().filter(|(path, _)| path.starts_with(&folder)) {
            let only_keys = path.ends_with("/keys.rs");
            let layouts = key_layouts(text, only_keys);
            if only_keys && layouts.is_empty() {
                let message = "shows no key layout in a `text` block on top";
                violations.push(Violation::new(path, message));
            }
            for (line, diagram) in layouts {
                let shown = schema
                    .diagrams
                    .iter()
                    .any(|(_, heading, text)| names_crate(heading, layer) && *text == diagram);
                if !shown {
                    let message = format!("{SCHEMA} does not show this under `{layer}`");
                    violations.push(Violation::at(path, line, message));
                }
                documented.insert(diagram);
            }
        }
    }
    for (line, _, diagram) in schema.diagrams {
        if !documented.contains(&diagram) {
            violations.push(Violation::at(SCHEMA, line, "no module documents this"));
        }
    }
    violations
}

fn names_crate(heading: &str, layer: &str) -> bool {
    heading.split([' ', ':', ',']).any(|word| word == layer)
}

/// Returns the key layouts, with their lines, that a module documents: all its diagrams, or those
/// under their own heading.
fn key_layouts(source: &str, only_keys: bool) -> Vec<(usize, String)> {
    let comment = source.lines().map_while(|line| line.strip_prefix("//!"));
    let markdown: String = comment
        .flat_map(|line| [line.strip_prefix(' ').unwrap_or(line), "\n"])
        .collect();
    let diagrams = Document::parse(&markdown).diagrams.into_iter();
    diagrams
        .filter(|(_, heading, _)| only_keys || heading == SCHEMA_HEADING)
        .map(|(line, _, diagram)| (line, diagram))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str =
        "//! Keys.\n//!\n//! # Key schema\n//! ```text\n//! (queue, id) = item\n//! ```\n";
    const PAGE: &str =
        "# Schema\n## `microqueue`: commit order\n```text\n(queue, id) = item\n```\n";

    fn schema_violations(keys: &str, page: &str) -> Vec<Violation> {
        check_schema(&Tree::of(&[
            ("crates/microqueue/src/keys.rs", keys),
            (SCHEMA, page),
        ]))
    }

    #[test]
    fn a_schema_that_shows_every_diagram_passes() {
        assert_eq!(schema_violations(KEYS, PAGE), []);
    }

    #[test]
    fn a_diagram_that_differs_is_found_on_both_sides() {
        let path = "crates/microqueue/src/keys.rs";
        let missing = Violation::at(
            path,
            4,
            "docs/schema.md does not show this under `microqueue`",
        );
        let stale = Violation::at(SCHEMA, 3, "no module documents this");
        let other = PAGE.replace("(queue, id)", "(queue, index)");
        assert_eq!(schema_violations(KEYS, &other), [missing, stale]);
    }

    #[test]
    fn a_diagram_under_another_crate_is_found() {
        let other = PAGE.replace("microqueue", "combine");
        assert_eq!(schema_violations(KEYS, &other).len(), 1);
    }

    #[test]
    fn keys_without_a_diagram_are_found() {
        let path = "crates/microqueue/src/keys.rs";
        assert_eq!(
            schema_violations("//! Keys.\n", "# Schema\n"),
            [Violation::new(
                path,
                "shows no key layout in a `text` block on top"
            )]
        );
    }

    #[test]
    fn other_modules_show_their_keys_under_a_heading() {
        let module = "//! A ledger.\n//! ```text\n//! a race\n//! ```\n//! # Key schema\n//! ```text\n//! (ledger, slot)\n//! ```\n";
        let violations = check_schema(&Tree::of(&[("crates/keyspace/src/ledger.rs", module)]));
        let message = "docs/schema.md does not show this under `keyspace`";
        let path = "crates/keyspace/src/ledger.rs";
        assert_eq!(violations, [Violation::at(path, 6, message)]);
    }

    fn link_violations(link: &str) -> Vec<Violation> {
        check_links(&Tree::of(&[
            ("docs/a.md", &format!("# A page\n\n[link]({link})\n")),
            ("docs/b.md", "# First, `one` half\n# Again\n# Again\n"),
            ("README.md", "# Read\n"),
        ]))
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        for link in [
            "b.md",
            "../README.md#read",
            "./b.md#first-one-half",
            "b.md#again-1",
            "#a-page",
            "../docs",
            "https://example.org/no/such/page",
        ] {
            assert_eq!(link_violations(link), [], "{link}");
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        for (link, message) in [
            ("c.md", "`c.md`: no such file"),
            ("README.md", "`README.md`: no such file"),
            ("b.md#second", "`b.md#second`: no such heading"),
            ("b.md#again-2", "`b.md#again-2`: no such heading"),
        ] {
            assert_eq!(
                link_violations(link),
                [Violation::at("docs/a.md", 3, message)]
            );
        }
    }
}
