//! What every file must contain, and what no file may contain.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::Violation;
use super::layers::LAYERS;
use super::tree::Tree;

/// The longest Rust file, in lines without the tests at its end. 400 is what to aim at.
const MAX_LINES: usize = 600;

/// The widest comment, but for rows of tables, which cannot be wrapped.
const MAX_COMMENT_COLUMNS: usize = 120;

/// The one place that asks the machine for time and randomness.
const ENVIRONMENT: &str = "crates/keyspace/src/contract/env.rs";

/// A test that simulates time, in which a sleep takes none.
const SIMULATION: &str = "crates/hc-dequeue/tests/it/slow_store/mod.rs";

/// The one place that may name FoundationDB's crate.
const FOUNDATIONDB: &str = "crates/keyspace/src/stores/fdb/";

/// How the documentation of a crate begins if its README is that documentation.
const PAGE_OF_CRATE: &str = "#![doc = include_str!(\"../README.md\")]";

/// Words that mark unfinished work. They are split, so that this file does not contain them.
const MARKS: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// Folders in which a path belongs to one machine.
const MACHINE_FOLDERS: [&str; 5] = ["/home/", "/root/", "/tmp/", "/Users/", "/work/"];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.texts() {
        check_text(path, text, &mut violations);
        if path.ends_with(".rs") {
            match text.parse() {
                Ok(stream) => check_rust(path, text, stream, &mut violations),
                Err(error) => violations.push(Violation::new(path, format!("is no Rust: {error}"))),
            }
        }
    }
    violations
}

fn check_text(path: &str, text: &str, violations: &mut Vec<Violation>) {
    for (index, line) in text.lines().enumerate() {
        let mut violated =
            |message: String| violations.push(Violation::at(path, index + 1, message));
        for mark in MARKS {
            let in_word = |c: char| c.is_alphanumeric() || c == '_';
            if holds(line, mark, in_word, in_word) {
                violated(format!("unfinished: {mark}"));
            }
        }
        for folder in MACHINE_FOLDERS {
            let in_path = |c: char| c.is_alphanumeric() || "._-}".contains(c);
            if holds(line, folder, in_path, |c| !c.is_alphanumeric()) {
                violated(format!("a path of one machine: {folder}"));
            }
        }
        let comment = line
            .trim_start()
            .trim_start_matches(['/', '!'])
            .trim_start();
        if comment.starts_with("```") && comment.contains("ignore") {
            violated("an example that does not run".to_owned());
        }
        let is_prose = line.trim_start().starts_with("//") && !comment.starts_with('|');
        if is_prose && line.chars().count() > MAX_COMMENT_COLUMNS {
            violated(format!(
                "a comment of more than {MAX_COMMENT_COLUMNS} columns"
            ));
        }
    }
}

/// Returns true if `part` occurs in `line` with neither neighbor as described.
fn holds(
    line: &str,
    part: &str,
    not_before: impl Fn(char) -> bool,
    not_after: impl Fn(char) -> bool,
) -> bool {
    line.match_indices(part).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + part.len()..].chars().next();
        !before.is_some_and(&not_before) && !after.is_some_and(&not_after)
    })
}

fn check_rust(path: &str, text: &str, stream: TokenStream, violations: &mut Vec<Violation>) {
    let has_page = path.ends_with("/src/lib.rs") && text.starts_with(PAGE_OF_CRATE);
    if !text.starts_with("//!") && !has_page {
        violations.push(Violation::at(
            path,
            1,
            "does not begin with its documentation",
        ));
    }
    let tokens: Vec<_> = stream.into_iter().collect();
    let lines = match line_of_tests(&tokens) {
        Some(line) => line - 1,
        None => text.lines().count(),
    };
    if lines > MAX_LINES {
        let message = format!("{lines} lines without its tests, more than {MAX_LINES}");
        violations.push(Violation::new(path, message));
    }
    check_siblings(path, &tokens, violations);
    if path.contains("/tests/") && path != SIMULATION {
        check_waits(path, &tokens, violations);
    }
}

/// Checks that a test does not sleep. A clock does, in its function `sleep`.
fn check_waits(path: &str, tokens: &[TokenTree], violations: &mut Vec<Violation>) {
    let mut in_clock = false;
    for (index, token) in tokens.iter().enumerate() {
        if let [keyword, name, ..] = &tokens[index..]
            && is(name, "sleep")
        {
            in_clock |= is(keyword, "fn");
            if is(keyword, ".") {
                let message = "a test waits for a condition: conformance::until";
                let line = name.span().start().line;
                violations.push(Violation::at(path, line, message));
            }
        }
        if let TokenTree::Group(group) = token {
            let is_body = group.delimiter() == Delimiter::Brace;
            if !(in_clock && is_body) {
                let inside: Vec<_> = group.stream().into_iter().collect();
                check_waits(path, &inside, violations);
            }
            in_clock &= !is_body;
        }
    }
}

/// Returns the line at which the tests at the end of a file begin.
fn line_of_tests(tokens: &[TokenTree]) -> Option<usize> {
    let [
        ..,
        pound,
        TokenTree::Group(attribute),
        module,
        _,
        TokenTree::Group(_),
    ] = tokens
    else {
        return None;
    };
    let of_tests = names(attribute, "cfg") && names(attribute, "test") && is(module, "mod");
    of_tests.then(|| pound.span().start().line)
}

/// Checks tokens that stand beside each other, then what is inside of them.
fn check_siblings(path: &str, tokens: &[TokenTree], violations: &mut Vec<Violation>) {
    for (index, token) in tokens.iter().enumerate() {
        let mut violated = |message: &str| {
            violations.push(Violation::at(path, token.span().start().line, message));
        };
        if let Some(name) = test_module(&tokens[index..])
            && name != "tests"
            && !in_tests(path)
        {
            violated("a module of tests that is not called `tests` and lies in no such folder");
        }
        if let Some(attribute) = attribute(&tokens[index..]) {
            if names(attribute, "ignore") {
                violated("a test that does not run");
            }
            if names(attribute, "disallowed_methods") && path != ENVIRONMENT {
                violated("time, randomness and waiting come from keyspace::env");
            }
        }
        // An example may be an application that uses that crate.
        let in_layer = path.starts_with("crates/")
            && !path.starts_with(FOUNDATIONDB)
            && !path.contains("/examples/");
        if in_library(path) && (is(token, "HashMap") || is(token, "HashSet")) {
            violated("a map whose order no seed repeats");
        }
        if in_layer && is(token, "foundationdb") {
            violated("only keyspace::fdb may name FoundationDB's crate");
        }
        if let TokenTree::Group(group) = token {
            let inside: Vec<_> = group.stream().into_iter().collect();
            check_siblings(path, &inside, violations);
        }
    }
}

/// Returns the name of the module that the first token begins if only tests compile it.
fn test_module(tokens: &[TokenTree]) -> Option<String> {
    let condition = attribute(tokens)?;
    let has_else = names(condition, "any") || names(condition, "not");
    if !names(condition, "cfg") || !names(condition, "test") || has_else {
        return None;
    }
    // Other attributes and a visibility may follow.
    let mut rest = tokens[2..].iter();
    loop {
        match rest.next()? {
            TokenTree::Ident(word) if word == "mod" => return Some(rest.next()?.to_string()),
            TokenTree::Ident(word) if word == "pub" => {}
            TokenTree::Punct(mark) if mark.as_char() == '#' => {}
            TokenTree::Group(_) => {}
            _ => return None,
        }
    }
}

/// Returns true for a file that its place marks as one of tests.
fn in_tests(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs")
}

/// Returns true for the code of a layer, and of what judges stores.
fn in_library(path: &str) -> bool {
    let rest = path
        .strip_prefix("crates/")
        .and_then(|path| path.split_once('/'));
    rest.is_some_and(|(name, path)| {
        path.starts_with("src/") && (LAYERS.contains(&name) || name == "conformance")
    })
}

/// Returns the brackets of the attribute that begins at the first token.
fn attribute(tokens: &[TokenTree]) -> Option<&Group> {
    let (pound, rest) = tokens.split_first()?;
    let group = match rest {
        [TokenTree::Group(group), ..] => group,
        [bang, TokenTree::Group(group), ..] if is(bang, "!") => group,
        _ => return None,
    };
    (is(pound, "#") && group.delimiter() == Delimiter::Bracket).then_some(group)
}

/// Returns true if the group holds the identifier, at any depth.
fn names(group: &Group, identifier: &str) -> bool {
    group.stream().into_iter().any(|token| match token {
        TokenTree::Group(group) => names(&group, identifier),
        token => is(&token, identifier),
    })
}

fn is(token: &TokenTree, text: &str) -> bool {
    match token {
        TokenTree::Ident(ident) => ident == text,
        TokenTree::Punct(punct) => text.len() == 1 && text.starts_with(punct.as_char()),
        TokenTree::Group(_) | TokenTree::Literal(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations_of(path: &str, text: &str) -> Vec<Violation> {
        check(&Tree::of(&[(path, text)]))
    }

    /// Asserts that the second line of a file, and nothing else, breaks a rule.
    #[track_caller]
    fn assert_caught(path: &str, line: &str, message: &str) {
        let text = format!("//! Documented.\n{line}\n");
        let expected = [Violation::at(path, 2, message)];
        assert_eq!(violations_of(path, &text), expected, "{line}");
    }

    #[test]
    fn wide_comments_are_found() {
        let path = "crates/combine/src/lib.rs";
        let wide = |start: &str| format!("{start}{}", "é".repeat(MAX_COMMENT_COLUMNS - 2));
        assert_caught(path, &wide("/// "), "a comment of more than 120 columns");
        assert_eq!(violations_of(path, &format!("//! D.\n{}", wide("//"))), []);
        assert_eq!(
            violations_of(path, &format!("//! D.\n{}", wide("/// | "))),
            []
        );
    }

    #[test]
    fn unfinished_work_is_found() {
        let path = "crates/combine/src/lib.rs";
        for mark in MARKS {
            assert_caught(
                path,
                &format!("// {mark}: more"),
                &format!("unfinished: {mark}"),
            );
        }
        assert_eq!(violations_of("docs/a.md", &format!("a{}s", MARKS[0])), []);
    }

    #[test]
    fn tests_that_do_not_run_are_found() {
        let path = "crates/combine/tests/a.rs";
        assert_caught(path, "#[ignore]", "a test that does not run");
        assert_caught(path, "#[ignore = \"slow\"]", "a test that does not run");
        assert_caught(
            path,
            "mod a { #[cfg_attr(unix, ignore)] fn f() {} }",
            "a test that does not run",
        );
        assert_caught(path, "/// ```ignore", "an example that does not run");
    }

    #[test]
    fn a_module_of_tests_with_another_name_is_found() {
        let path = "crates/combine/src/lib.rs";
        let message = "a module of tests that is not called `tests` and lies in no such folder";
        for line in [
            "#[cfg(test)] mod plants;",
            "#[cfg(test)] #[path = \"a.rs\"] pub(crate) mod plants {}",
            "mod a { #[cfg(all(test, unix))] mod plants; }",
        ] {
            assert_caught(path, line, message);
        }
        let tidy = [
            (path, "#[cfg(test)] mod tests;"),
            (
                path,
                "#[cfg(any(test, feature = \"testing\"))] mod testing;",
            ),
            (path, "#[cfg(not(test))] mod real;"),
            (path, "#[cfg(test)] use plants::Plant; mod queue;"),
            (
                "crates/combine/src/tests/mod.rs",
                "#[cfg(test)] mod plants;",
            ),
        ];
        for (path, line) in tidy {
            assert_eq!(violations_of(path, &format!("//! Documented.\n{line}")), []);
        }
    }

    #[test]
    fn sleeping_is_found() {
        let message = "time, randomness and waiting come from keyspace::env";
        let line = "#![allow(clippy::disallowed_methods)]";
        assert_caught("crates/combine/tests/a.rs", line, message);
        assert_eq!(
            violations_of(ENVIRONMENT, &format!("//! Documented.\n{line}")),
            []
        );
        let message = "a test waits for a condition: conformance::until";
        let path = "crates/combine/tests/it/a.rs";
        let line = "async fn f() { if is_slow { env.sleep(moment).await; } }";
        assert_caught(path, line, message);
        assert_caught("crates/combine/src/tests/a.rs", line, message);
        let line =
            "impl Clock for A { fn sleep(&self) { self.0.sleep(moment) } fn f() { a.sleep() } }";
        assert_caught(path, line, message);
        for (path, line) in [
            (
                path,
                "impl Clock for A { fn sleep(&self) { self.0.sleep(moment) } }",
            ),
            ("crates/combine/src/work.rs", "fn f() { env.sleep(moment) }"),
            (SIMULATION, "fn f() { env.sleep(moment) }"),
        ] {
            assert_eq!(violations_of(path, &format!("//! Documented.\n{line}")), []);
        }
    }

    #[test]
    fn a_foundationdb_outside_its_module_is_found() {
        let line = "use foundationdb::Database;";
        let message = "only keyspace::fdb may name FoundationDB's crate";
        assert_caught("crates/keyspace/src/lib.rs", line, message);
        let text = format!("//! Beside `foundationdb::Database`.\n{line}");
        assert_eq!(
            violations_of("crates/keyspace/src/stores/fdb/mod.rs", &text),
            []
        );
        assert_eq!(violations_of("benches/src/lib.rs", &text), []);
        let other = "//! Documented.\nuse foundationdb_tuple::Subspace;";
        assert_eq!(violations_of("crates/keyspace/src/lib.rs", other), []);
    }

    #[test]
    fn a_map_without_order_is_found_in_libraries() {
        let line = "use std::collections::HashMap;";
        let message = "a map whose order no seed repeats";
        assert_caught("crates/combine/src/queue.rs", line, message);
        assert_caught("crates/conformance/src/model/mod.rs", line, message);
        let text = format!("//! Documented.\n{line}\n");
        assert_eq!(violations_of("crates/phrasecount/src/count.rs", &text), []);
        assert_eq!(violations_of("crates/combine/tests/model.rs", &text), []);
    }

    #[test]
    fn a_path_of_one_machine_is_found() {
        for folder in MACHINE_FOLDERS {
            let text = format!("see {folder}someone and docs{folder}");
            let message = format!("a path of one machine: {folder}");
            assert_eq!(
                violations_of("docs/a.md", &text),
                [Violation::at("docs/a.md", 1, message)]
            );
        }
        assert_eq!(
            violations_of("docs/a.md", "see https://example.org/home/page"),
            []
        );
    }

    #[test]
    fn a_file_without_documentation_is_found() {
        let path = "crates/combine/src/queue.rs";
        let expected = [Violation::at(
            path,
            1,
            "does not begin with its documentation",
        )];
        assert_eq!(violations_of(path, "fn f() {}\n"), expected);

        let page = format!("{PAGE_OF_CRATE}\n\nfn f() {{}}\n");
        assert_eq!(violations_of(path, &page), expected);
        assert_eq!(violations_of("crates/combine/src/lib.rs", &page), []);
    }

    #[test]
    fn a_file_is_measured_without_its_tests() {
        let path = "crates/combine/src/queue.rs";
        let code = format!("//! Documented.\n{}", "fn f() {}\n".repeat(MAX_LINES - 1));
        let tests = "#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n";
        assert_eq!(violations_of(path, &format!("{code}{tests}")), []);

        let message = "601 lines without its tests, more than 600";
        let longer = format!("{code}\n{tests}");
        assert_eq!(
            violations_of(path, &longer),
            [Violation::new(path, message)]
        );
        let no_tests_at_its_end = format!("{longer}fn f() {{}}\n");
        assert_eq!(violations_of(path, &no_tests_at_its_end).len(), 1);
    }
}
