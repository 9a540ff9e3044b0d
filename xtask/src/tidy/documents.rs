//! Links between the documents lead somewhere, also from the pages of `cargo doc`.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{Event, Parser, Tag, TagEnd};

use super::Violation;
use super::tree::Tree;

/// What the checks need of a document.
#[derive(Debug, Default)]
struct Document {
    /// The headings, without markup.
    headings: Vec<String>,
    /// Where links lead, with their lines.
    links: Vec<(usize, String)>,
}

impl Document {
    fn parse(markdown: &str) -> Self {
        let mut document = Self::default();
        let mut heading: Option<String> = None;
        for (event, range) in Parser::new(markdown).into_offset_iter() {
            let line = 1 + markdown[..range.start].matches('\n').count();
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => document.headings.extend(heading.take()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push((line, dest_url.into_string()));
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
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
        let fragments = self.headings.iter().map(|heading| {
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
pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = check_links_of_crates(tree);
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

/// Checks that each crate defines the links of its README again: from the pages of `cargo doc`, they lead elsewhere.
fn check_links_of_crates(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, readme) in tree.texts() {
        let Some(folder) = path.strip_suffix("/README.md") else {
            continue;
        };
        let source = format!("{folder}/src/lib.rs");
        let Some(text) = tree.text(&source) else {
            continue;
        };
        let documentation = text.lines().filter_map(|line| line.strip_prefix("//! "));
        let documentation = documentation.collect::<Vec<_>>().join("\n");
        let of_readme = relative_links(readme);
        let of_crate = relative_links(&documentation);
        for link in of_readme.symmetric_difference(&of_crate) {
            let message = format!("`[{link}]`: is defined in only one of README.md and this file");
            violations.push(Violation::new(&source, message));
        }
    }
    violations
}

/// Returns the names of the links that a text defines, other than those to the web.
fn relative_links(markdown: &str) -> BTreeSet<String> {
    let parser = Parser::new(markdown);
    let definitions = parser.reference_definitions().iter();
    definitions
        .filter(|(_, definition)| !definition.dest.contains("://"))
        .map(|(name, _)| name.to_owned())
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn link_violations(link: &str) -> Vec<Violation> {
        check(&Tree::of(&[
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
    fn links_of_a_readme_without_a_definition_for_its_crate_are_found() {
        let violations = |documentation: &str| {
            check(&Tree::of(&[
                (
                    "crates/combine/README.md",
                    "[a], [b]\n\n[a]: ../../docs/a.md\n[b]: https://example.org\n",
                ),
                ("docs/a.md", "# A page\n"),
                ("crates/combine/src/lib.rs", documentation),
            ]))
        };
        assert_eq!(violations("//! [a]: ../../../docs/a.md\n"), []);
        let lib = "crates/combine/src/lib.rs";
        for (documentation, link) in [
            ("mod a;\n", "a"),
            (
                "//! [a]: ../../../docs/a.md\n//! [c]: ../../../docs/c.md\n",
                "c",
            ),
        ] {
            let message = format!("`[{link}]`: is defined in only one of README.md and this file");
            assert_eq!(violations(documentation), [Violation::new(lib, message)]);
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
