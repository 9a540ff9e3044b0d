//! `docs/schema.md` is generated: it has the section `# Layout` of each module whose documentation describes stored
//! bytes, and the list of conflicts.

use std::fmt::Write;

use super::Violation;
use super::conflicts;
use super::layers::LAYERS;
use super::tree::Tree;

/// The generated page.
pub(super) const PAGE: &str = "docs/schema.md";

/// The heading of a module's section about stored bytes.
const HEADING: &str = "# Layout";

const HEAD: &str = "\
# Schema

Every key and value of the layers, and the files of an embedded store. `cargo xtask tidy --write` generates this page
from the modules that write them.

Keys are tuples in the given subspace, packed by FoundationDB's tuple layer. `queue` is the prefix of a queue's
subspace, in which no other key is ever written. Integers in values and files are big-endian, unless said otherwise.
A value begins with a format number, unless it is empty, a number, a time, a versionstamp, an id, a pointer, tokens, a
heartbeat or an item in index order.
[Upgrading](guarantees.md#upgrading) says what an older version does with a newer format.
";

/// The heading of the list of conflicts, and what it says of all methods.
const CONFLICTS: &str = "\
### Conflicts of hc-dequeue

What the methods read, serializably unless it says by snapshot, and write. A transaction with writes fails if another
one has written meanwhile what it has read serializably. Methods that take a runner, and those of consumers, commit by
themselves and are retried.

";

/// The modules of a layer that describe stored bytes, in the order of the page.
type Layouts = (&'static str, &'static [&'static str]);

const LAYOUTS: [Layouts; 5] = [
    (
        "keyspace",
        &[
            "ledger/keys",
            "recipes/ids",
            "map/mod",
            "stores/embedded/runs/chunks",
            "stores/embedded/runs/manifest",
            "stores/embedded/runs/table",
            "stores/embedded/runs/block",
            "stores/embedded/runs/filter",
            "stores/embedded/log/files",
            "stores/embedded/log/segment",
            "stores/embedded/log/frame",
            "stores/embedded/log/effect",
        ],
    ),
    ("microqueue", &["keys", "blocks/mod"]),
    ("hc-dequeue", &["items/keys"]),
    ("combine", &["keys"]),
    ("export-queue", &["keys"]),
];

/// Returns the page as the modules describe it.
pub(super) fn generate(tree: &Tree) -> String {
    page(tree, &LAYOUTS)
}

/// Checks that the page is the generated one, and that no module with a layout is missing in it.
pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    check_layouts(tree, &LAYOUTS)
}

fn check_layouts(tree: &Tree, layouts: &[Layouts]) -> Vec<Violation> {
    let listed: Vec<_> = layouts.iter().flat_map(paths).collect();
    let mut violations = Vec::new();
    for (path, text) in tree.texts() {
        let is_listed = listed.iter().any(|listed| listed == path);
        let needs_layout = is_listed || is_source(path) && path.ends_with("/keys.rs");
        match layout(text) {
            None if needs_layout => {
                let message = format!("documents no layout: a title and a section `{HEADING}`");
                violations.push(Violation::new(path, message));
            }
            Some((_, section)) if section.contains("[`") => {
                let message = format!("a link of rustdoc under `{HEADING}`, which {PAGE} shows");
                violations.push(Violation::new(path, message));
            }
            Some(_) if is_source(path) && !is_listed => {
                let message = "has a layout, but xtask/src/tidy/schema.rs does not list it";
                violations.push(Violation::new(path, message));
            }
            _ => {}
        }
    }
    if tree.text(PAGE) != Some(&page(tree, layouts)) {
        let message = "is not what the modules say: run `cargo xtask tidy --write`";
        violations.push(Violation::new(PAGE, message));
    }
    violations
}

/// Returns whether a file is code of a layer.
fn is_source(path: &str) -> bool {
    let in_layer = |layer: &&str| path.starts_with(&format!("crates/{layer}/src/"));
    path.ends_with(".rs") && LAYERS.iter().any(in_layer)
}

fn paths((layer, modules): &Layouts) -> impl Iterator<Item = String> {
    let modules = modules.iter();
    modules.map(move |module| format!("crates/{layer}/src/{module}.rs"))
}

fn page(tree: &Tree, layouts: &[Layouts]) -> String {
    let mut page = HEAD.to_owned();
    for layouts in layouts {
        let _ = writeln!(page, "\n## {}", layouts.0);
        for path in paths(layouts) {
            if let Some((title, section)) = tree.text(&path).and_then(layout) {
                let _ = writeln!(page, "\n### [{title}](../{path})\n\n{section}");
            }
        }
        if layouts.0 == "hc-dequeue" {
            page += &format!("\n{CONFLICTS}{}", conflicts::list(tree));
        }
    }
    page
}

/// Returns the layout in the documentation of a module, with its title: the module's first line up to the first colon
/// or period.
fn layout(source: &str) -> Option<(&str, String)> {
    let mut lines = source.lines().map_while(|line| {
        let line = line.strip_prefix("//!")?;
        Some(line.strip_prefix(' ').unwrap_or(line))
    });
    let title = lines.next()?.split([':', '.']).next()?;
    let mut in_block = false;
    let mut section = String::new();
    for line in lines.skip_while(|line| *line != HEADING).skip(1) {
        if line.starts_with("```") {
            in_block = !in_block;
        }
        if !in_block && line.starts_with("# ") {
            break;
        }
        section.push_str(line);
        section.push('\n');
    }
    let section = section.trim();
    (!section.is_empty()).then(|| (title, section.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUTS: [Layouts; 1] = [("microqueue", &["keys"])];
    const KEYS: &str = "crates/microqueue/src/keys.rs";
    const SOURCE: &str = "\
//! The keys: all of them.
//!
//! # Layout
//!
//! ```text
//! # (queue, id) = item
//! ```
//!
//! Numbers are big-endian.
//!
//! # Safety
//!
//! None.

fn f() {}
";

    fn violations_of(files: &[(&str, &str)], page: &str) -> Vec<Violation> {
        let files = [files, &[(PAGE, page)]].concat();
        check_layouts(&Tree::of(&files), &LAYOUTS)
    }

    fn page_of(source: &str) -> String {
        page(&Tree::of(&[(KEYS, source)]), &LAYOUTS)
    }

    #[test]
    fn the_page_has_the_section_of_each_module() {
        let layout = "```text\n# (queue, id) = item\n```\n\nNumbers are big-endian.\n";
        let link = "### [The keys](../crates/microqueue/src/keys.rs)";
        let expected = format!("{HEAD}\n## microqueue\n\n{link}\n\n{layout}");
        assert_eq!(page_of(SOURCE), expected);
        assert_eq!(violations_of(&[(KEYS, SOURCE)], &expected), []);
    }

    #[test]
    fn a_page_that_differs_is_found() {
        let other = SOURCE.replace("(queue, id)", "(queue, index)");
        let message = "is not what the modules say: run `cargo xtask tidy --write`";
        let expected = [Violation::new(PAGE, message)];
        assert_eq!(violations_of(&[(KEYS, &other)], &page_of(SOURCE)), expected);
    }

    #[test]
    fn keys_without_a_layout_are_found() {
        let message = "documents no layout: a title and a section `# Layout`";
        for source in [
            "//! Keys.\n",
            "fn f() {}\n",
            "//! Keys.\n//!\n//! # Layout\n",
        ] {
            let expected = [Violation::new(KEYS, message)];
            let violations = violations_of(&[(KEYS, source)], &page_of(source));
            assert_eq!(violations, expected, "{source}");
        }
        let other = "crates/combine/src/pass/keys.rs";
        let files = [(KEYS, SOURCE), (other, "//! Keys.\n")];
        let expected = [Violation::new(other, message)];
        assert_eq!(violations_of(&files, &page_of(SOURCE)), expected);
    }

    #[test]
    fn a_layout_that_is_not_listed_is_found() {
        let path = "crates/keyspace/src/ledger/mod.rs";
        let message = "has a layout, but xtask/src/tidy/schema.rs does not list it";
        let files = [(KEYS, SOURCE), (path, SOURCE)];
        let expected = [Violation::new(path, message)];
        assert_eq!(violations_of(&files, &page_of(SOURCE)), expected);
    }

    #[test]
    fn a_link_of_rustdoc_in_a_layout_is_found() {
        let source = SOURCE.replace("Numbers", "[`Numbers`]");
        let message = "a link of rustdoc under `# Layout`, which docs/schema.md shows";
        let expected = [Violation::new(KEYS, message)];
        assert_eq!(
            violations_of(&[(KEYS, &source)], &page_of(&source)),
            expected
        );
    }
}
