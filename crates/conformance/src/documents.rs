//! The commands that the documents of this repository show, so that tests run what readers type.
//!
//! A document is a page of Markdown, or the documentation in a file of Rust. It shows a command as a line of a block of
//! `sh`, as a line of a block of `console` after `$ `, or as code in a text.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Code of one line in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The path of the document from the root of the repository.
    pub document: String,
    /// The line on which the code begins.
    pub line: usize,
    /// The code, with single spaces in place of the ends of lines.
    pub code: String,
    /// Whether it is a command of a block, which readers copy, or code in a text.
    pub is_block: bool,
}

/// A call of a program of this repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The package of the program.
    pub package: String,
    /// The program or the example, if it is not the one that the package runs by default.
    pub target: Option<String>,
    /// Whether the program is built with features.
    pub has_features: bool,
    /// The arguments of the program.
    pub arguments: Vec<String>,
}

/// Returns the names of the parts that a `# Layout` in a file of Rust has, in their order: the second elements of the
/// keys that begin with `queue`.
#[must_use]
pub fn parts_of_layout(source: &str) -> BTreeSet<&str> {
    let keys = source
        .lines()
        .filter_map(|line| line.strip_prefix("//! (queue, \""));
    keys.filter_map(|rest| rest.split('"').next()).collect()
}

/// Returns the root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns what all documents show as code, in their order.
///
/// # Panics
/// If the repository cannot be read.
#[must_use]
pub fn shown() -> Vec<Shown> {
    let mut shown = Vec::new();
    read_folder(&root(), "", &mut shown);
    shown
}

/// Returns the calls of the programs of a package, with what shows them. `console`, which users install, is called by
/// its name.
#[must_use]
pub fn calls(package: &str) -> Vec<(Shown, Call)> {
    let shown = shown().into_iter();
    let calls = shown.filter_map(|shown| {
        let call = Call::parse(&shown.code)?;
        Some((shown, call))
    });
    calls.filter(|(_, call)| call.package == package).collect()
}

fn read_folder(root: &Path, prefix: &str, shown: &mut Vec<Shown>) {
    let entries = fs::read_dir(root.join(prefix)).expect("the repository can be read");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("a folder can be read").file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort();
    for name in names {
        let path = format!("{prefix}{name}");
        if name.starts_with('.') || name == "target" {
            continue;
        }
        if root.join(&path).is_dir() {
            read_folder(root, &format!("{path}/"), shown);
            continue;
        }
        let read = || fs::read_to_string(root.join(&path)).expect("a document is text");
        if name.ends_with(".md") {
            shown.extend(show(&path, &read()));
        } else if name.ends_with(".rs") {
            shown.extend(show(&path, &documentation(&read())));
        }
    }
}

/// Returns the documentation in a file of Rust, on the same lines.
fn documentation(source: &str) -> String {
    let lines = source.lines().map(|line| {
        let line = line.trim_start();
        let comment = line
            .strip_prefix("//!")
            .or_else(|| line.strip_prefix("///"));
        comment.map_or("", |comment| comment.strip_prefix(' ').unwrap_or(comment))
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns what a page shows as code.
fn show(document: &str, page: &str) -> Vec<Shown> {
    let mut shown = Vec::new();
    let mut show = |line: usize, code: &str, is_block: bool| {
        shown.push(Shown {
            document: document.to_owned(),
            line: line + 1,
            code: code.split_whitespace().collect::<Vec<_>>().join(" "),
            is_block,
        });
    };
    let mut language = None;
    // A text up to an empty line or a block, and a command of a block that continues on the next line.
    let mut paragraph = String::new();
    let mut begin = 0;
    for (number, line) in page.lines().chain([""]).enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        if fence.is_some() || (language.is_none() && line.trim().is_empty()) {
            for (offset, code) in spans(&paragraph) {
                show(begin + offset, code, false);
            }
            paragraph.clear();
            if let Some(fence) = fence {
                language = match language {
                    None => Some(fence),
                    Some(_) => None,
                };
            }
            continue;
        }
        if paragraph.is_empty() {
            begin = number;
        }
        let command = match language {
            None => {
                paragraph += line;
                paragraph.push('\n');
                continue;
            }
            Some("sh") => line.trim(),
            Some("console") if !paragraph.is_empty() => line.trim(),
            Some("console") => line.trim().strip_prefix("$ ").unwrap_or_default(),
            Some(_) => continue,
        };
        let command = command.split(" #").next().unwrap_or_default().trim();
        paragraph += command;
        match paragraph.strip_suffix('\\') {
            Some(continued) => paragraph = continued.to_owned(),
            None => {
                if !paragraph.is_empty() && !paragraph.starts_with('#') {
                    show(begin, &paragraph, true);
                }
                paragraph.clear();
            }
        }
    }
    shown
}

/// Returns the spans of code in a paragraph, with the numbers of their lines in it.
fn spans(paragraph: &str) -> Vec<(usize, &str)> {
    let mut spans = Vec::new();
    let mut at = 0;
    while let Some(begin) = paragraph[at..].find('`').map(|found| at + found) {
        let ticks = paragraph[begin..].bytes().take_while(|byte| *byte == b'`');
        let fence = &paragraph[begin..][..ticks.count()];
        let from = begin + fence.len();
        let Some(len) = paragraph[from..].find(fence) else {
            break;
        };
        let line = paragraph[..begin].matches('\n').count();
        spans.push((line, &paragraph[from..from + len]));
        at = from + len + fence.len();
    }
    spans
}

/// Splits a command into words as a shell does, up to a pipe.
///
/// ```
/// use conformance::documents::words;
///
/// let words = words("LONG=1 console limit jobs 'tenant 7' --pause | head");
/// assert_eq!(words, ["LONG=1", "console", "limit", "jobs", "tenant 7", "--pause"]);
/// ```
#[must_use]
pub fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for char in command.chars() {
        match quote {
            Some(end) if char == end => quote = None,
            Some(_) => word.get_or_insert_default().push(char),
            None if "'\"".contains(char) => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            None if char.is_whitespace() => words.extend(word.take()),
            None => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    let end = words.iter().position(|word| word == "|");
    words.truncate(end.unwrap_or(words.len()));
    words
}

impl Call {
    /// Parses a call that cargo runs, or one of the console by its name. `None`: it is something else.
    #[must_use]
    pub fn parse(command: &str) -> Option<Self> {
        let words = words(command);
        let mut call = Self {
            package: "fdbq-console".to_owned(),
            target: None,
            has_features: false,
            arguments: Vec::new(),
        };
        let program = words.first()?;
        if program == "console" && words.len() > 1 {
            call.arguments = words[1..].to_vec();
            return Some(call);
        }
        if program != "cargo" || words.get(1)? != "run" {
            return None;
        }
        let mut of_cargo = words[2..].iter();
        call.package.clear();
        while let Some(word) = of_cargo.next().filter(|word| *word != "--") {
            match word.as_str() {
                "-p" | "--package" => call.package.clone_from(of_cargo.next()?),
                "--bin" | "--example" => call.target = of_cargo.next().cloned(),
                "--features" => call.has_features = of_cargo.next().is_some(),
                _ => {}
            }
        }
        call.arguments = of_cargo.cloned().collect();
        Some(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_blocks_and_code_of_texts_are_shown_with_their_lines() {
        let page = "# Page\n\nRun `cargo\n  test` or ``a`b``.\n\n```sh\ncargo run   # first\n# no command\n\
                    cargo x \\\n  -p y\n```\n\n```console\n$ console queues\njobs\n```\n\n```rust\nf();\n```\n`z`";
        let shown: Vec<_> = show("a.md", page)
            .into_iter()
            .map(|shown| (shown.line, shown.code, shown.is_block))
            .collect();
        let expected = [
            (3, "cargo test", false),
            (4, "a`b", false),
            (7, "cargo run", true),
            (9, "cargo x -p y", true),
            (14, "console queues", true),
            (21, "z", false),
        ];
        assert_eq!(
            shown,
            expected.map(|(line, code, block)| (line, code.to_owned(), block))
        );
    }

    #[test]
    fn documentation_of_rust_keeps_its_lines() {
        let source =
            "//! Runs.\n//!\n//! ```sh\n//! cargo run\n//! ```\nfn f() {}\n    /// `b c`\n";
        let shown = show("a.rs", &documentation(source));
        let lines: Vec<_> = shown
            .iter()
            .map(|shown| (shown.line, &*shown.code))
            .collect();
        assert_eq!(lines, [(4, "cargo run"), (7, "b c")]);
    }

    #[test]
    fn calls_name_their_package_their_program_and_their_arguments() {
        let call = |package: &str, target: Option<&str>, arguments: &[&str]| {
            Some(Call {
                package: package.to_owned(),
                target: target.map(str::to_owned),
                has_features: false,
                arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            })
        };
        for (command, expected) in [
            ("console own", call("fdbq-console", None, &["own"])),
            ("console", None),
            ("cargo test -p examples", None),
            (
                "cargo run --release -p phrasecount -- get \"a b\" --json",
                call("phrasecount", None, &["get", "a b", "--json"]),
            ),
            (
                "cargo run -p examples --example shop",
                call("examples", Some("shop"), &[]),
            ),
        ] {
            assert_eq!(Call::parse(command), expected, "{command}");
        }
        let built = Call::parse("cargo run -p examples --features fdb-7_3 --example own");
        assert!(built.is_some_and(|call| call.has_features));
    }
}
