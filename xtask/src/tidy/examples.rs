//! Examples in documents are compiled: each page with Rust code is the documentation of some module, so
//! that the tests of documentation compile it, or it names the file that a block is part of, in a comment on the line
//! before the block: `<!-- crates/examples/examples/shop.rs -->`.

use std::collections::BTreeSet;

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag};

use super::Violation;
use super::documents::resolve;
use super::tree::Tree;

/// How a module takes a page as its documentation, from outside and from inside.
const INCLUDES: [&str; 2] = ["#[doc = include_str!(\"", "#![doc = include_str!(\""];

/// Checks that every document with a block of Rust is included by some module or that the block is part of the file
/// that it names, and that no block asks to be left out.
pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let included = included(tree);
    let mut violations = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".md")) {
        for block in rust_blocks(text) {
            let mut violated =
                |message: &str| violations.push(Violation::at(path, block.line, message));
            match block.source {
                Some(source)
                    if !tree
                        .text(source)
                        .is_some_and(|file| holds(file, block.code)) =>
                {
                    violated(&format!("an example that is not part of {source}"));
                }
                None if !included.contains(path) => {
                    violated("an example that no test compiles: no module includes this page");
                }
                _ => {}
            }
            if block.language.contains("ignore") {
                violated("an example that is left out");
            }
        }
    }
    violations
}

/// Returns whether the lines of a block follow one another in a file, whatever their indentation. A file holds no empty
/// block.
fn holds(file: &str, block: &str) -> bool {
    let file: Vec<_> = file.lines().map(str::trim).collect();
    let block: Vec<_> = block.lines().map(str::trim).collect();
    !block.is_empty() && file.windows(block.len()).any(|window| window == block)
}

/// Returns the pages that are the documentation of some module.
fn included(tree: &Tree) -> BTreeSet<String> {
    let sources = tree.texts().filter(|(path, _)| path.ends_with(".rs"));
    let pages = sources.flat_map(|(path, text)| {
        let links = text.lines().filter_map(|line| {
            let mut starts = INCLUDES.iter();
            let link = starts.find_map(|start| line.trim().strip_prefix(start))?;
            link.strip_suffix("\")]")
        });
        links.map(move |link| resolve(path, link))
    });
    pages.collect()
}

/// A block of Rust in a document.
struct Block<'a> {
    line: usize,
    language: String,
    code: &'a str,
    /// The file that it is part of, if the page says so.
    source: Option<&'a str>,
}

/// Returns the blocks that rustdoc takes for Rust. A block without a language is one.
fn rust_blocks(markdown: &str) -> Vec<Block<'_>> {
    let events = Parser::new(markdown).into_offset_iter();
    let blocks = events.filter_map(|(event, range)| match event {
        Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
            let before = &markdown[..range.start];
            let mut words = language.split([',', ' ']);
            let is_rust = words.any(|word| ["", "rust", "ignore", "no_run"].contains(&word));
            let code = markdown[range]
                .split_once('\n')
                .map_or("", |(_, code)| code);
            is_rust.then(|| Block {
                line: 1 + before.matches('\n').count(),
                language: language.to_string(),
                code: code.trim_end().trim_end_matches('`').trim_end(),
                source: before.lines().last().and_then(source),
            })
        }
        _ => None,
    });
    blocks.collect()
}

/// Returns the path that a comment names.
fn source(line: &str) -> Option<&str> {
    let path = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    path.ends_with(".rs").then_some(path)
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
        let inner = "#![doc = include_str!(\"../../../docs/a.md\")]\n";
        assert_eq!(violations_of(PAGE, inner), []);
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
    fn an_example_that_names_its_file_is_part_of_it() {
        let page = "<!-- crates/keyspace/src/lib.rs -->\n```rust\na();\nb();\n```\n";
        assert_eq!(violations_of(page, "fn f() {\n    a();\n    b();\n}\n"), []);
        for module in ["", "a();\n", "a();\nc();\nb();\n"] {
            let message = "an example that is not part of crates/keyspace/src/lib.rs";
            assert_eq!(
                violations_of(page, module),
                [Violation::at("docs/a.md", 2, message)]
            );
        }
    }

    #[test]
    fn an_empty_example_is_part_of_no_file() {
        let page = "<!-- crates/keyspace/src/lib.rs -->\n```rust\n```\n";
        assert_eq!(violations_of(page, "a();\n").len(), 1);
    }

    #[test]
    fn an_example_that_is_left_out_is_found() {
        let language = concat!("```rust,", "ignore");
        let page = PAGE.replace("```rust", language);
        let expected = [Violation::at("docs/a.md", 7, "an example that is left out")];
        assert_eq!(violations_of(&page, MODULE), expected);
    }
}
