//! Examples in documents are compiled: each page with Rust code is the documentation of some module, so
//! that the tests of documentation compile it.

use std::collections::BTreeSet;

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag};

use super::Violation;
use super::documents::resolve;
use super::tree::Tree;

/// How a module takes a page as its documentation.
const INCLUDE: &str = "#[doc = include_str!(\"";

/// Checks that every document with a block of Rust is included by some module, and that no block asks to
/// be left out.
pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let included = included(tree);
    let mut violations = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".md")) {
        for (line, language) in rust_blocks(text) {
            if !included.contains(path) {
                let message = "an example that no test compiles: no module includes this page";
                violations.push(Violation::at(path, line, message));
            }
            if language.contains("ignore") {
                violations.push(Violation::at(path, line, "an example that is left out"));
            }
        }
    }
    violations
}

/// Returns the pages that are the documentation of some module.
fn included(tree: &Tree) -> BTreeSet<String> {
    let sources = tree.texts().filter(|(path, _)| path.ends_with(".rs"));
    let pages = sources.flat_map(|(path, text)| {
        let lines = text.lines().map(str::trim);
        let links = lines.filter_map(|line| line.strip_prefix(INCLUDE)?.strip_suffix("\")]"));
        links.map(move |link| resolve(path, link))
    });
    pages.collect()
}

/// Returns the blocks that rustdoc takes for Rust, by line and language. A block without a language is
/// one.
fn rust_blocks(markdown: &str) -> Vec<(usize, String)> {
    let events = Parser::new(markdown).into_offset_iter();
    let blocks = events.filter_map(|(event, range)| match event {
        Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
            let line = 1 + markdown[..range.start].matches('\n').count();
            let mut words = language.split([',', ' ']);
            let is_rust = words.any(|word| ["", "rust", "ignore", "no_run"].contains(&word));
            is_rust.then(|| (line, language.to_string()))
        }
        _ => None,
    });
    blocks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Page\n\n```text\na diagram\n```\n\n```rust\nfn main() {}\n```\n";
    const MODULE: &str =
        "#[cfg(doctest)]\n#[doc = include_str!(\"../../../docs/a.md\")]\nmod a {}\n";

    fn violations_of(page: &str, module: &str) -> Vec<Violation> {
        check(&Tree::of(&[
            ("docs/a.md", page),
            ("crates/keyspace/src/lib.rs", module),
        ]))
    }

    #[test]
    fn a_page_that_a_module_includes_passes() {
        assert_eq!(violations_of(PAGE, MODULE), []);
        assert_eq!(violations_of("```text\na diagram\n```\n", ""), []);
    }

    #[test]
    fn an_example_that_no_test_compiles_is_found() {
        let message = "an example that no test compiles: no module includes this page";
        let expected = [Violation::at("docs/a.md", 7, message)];
        assert_eq!(violations_of(PAGE, ""), expected);
        assert_eq!(
            violations_of(PAGE, &MODULE.replace("a.md", "b.md")),
            expected
        );
        for language in ["rust,no_run", ""] {
            let page = PAGE.replace("```rust", &format!("```{language}"));
            assert_eq!(violations_of(&page, ""), expected, "{language}");
        }
    }

    #[test]
    fn an_example_that_is_left_out_is_found() {
        let language = concat!("```rust,", "ignore");
        let page = PAGE.replace("```rust", language);
        let expected = [Violation::at("docs/a.md", 7, "an example that is left out")];
        assert_eq!(violations_of(&page, MODULE), expected);
    }
}
