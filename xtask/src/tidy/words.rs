//! The English of comments, documentation and texts: phrases that a native engineer would not write, and British
//! spellings.
//!
//! Of Rust files the comments and the string literals are read, of Markdown everything but code blocks. A quotation
//! of someone else's text is a Markdown quotation (`>`), which is left as it is.

use super::Violation;
use super::tree::Tree;

/// Words that are never right, with what to write in their place.
const WORDS: [(&[&str], &str); 10] = [
    (&["whoever"], "use a subject: a session, a caller, a worker"),
    (
        &["somebody", "someone", "anybody", "nobody"],
        "use a subject: no session, another process",
    ),
    (
        &["told", "tells", "tell"],
        "say, report, show, return, signal",
    ),
    (&["mend", "mends", "mended", "mending"], "repair, fix"),
    (&["whilst", "amongst"], "while, among"),
    (&["behaviour", "behaviours"], "behavior"),
    (&["neighbour", "neighbours", "neighbouring"], "neighbor"),
    (
        &[
            "colour", "colours", "honour", "honours", "favour", "favours",
        ],
        "color, honor, favor",
    ),
    (
        &["fulfil", "fulfils", "fulfilment", "fulfilments"],
        "fulfill, fulfillment",
    ),
    (
        &[
            "serialise",
            "serialised",
            "organise",
            "organised",
            "recognise",
            "recognised",
            "normalise",
            "initialise",
            "initialised",
            "optimise",
            "optimised",
            "synchronise",
            "synchronised",
            "minimise",
            "maximise",
            "centre",
            "licence",
            "labelled",
            "modelled",
            "travelled",
        ],
        "American spelling",
    ),
];

/// Sequences of words that are never right.
const PHRASES: [(&[&str], &str); 5] = [
    (&["so", "many"], "the number, or as many"),
    (&["for", "so", "long"], "for that long, until"),
    (&["so", "long", "as"], "while, as long as"),
    (&["for", "ever"], "forever, for good"),
    (&["by", "and", "by"], "later"),
];

/// What may come before `behind`. Elsewhere it stands in for `after`.
const BEFORE_BEHIND: [&str; 14] = [
    "leave", "leaves", "leaving", "left", "far", "fall", "falls", "falling", "lag", "lags",
    "lagging", "nothing", "it", "them",
];

/// What shows, before `who`, that it has no noun to refer to.
const NOT_BEFORE_WHO: [&str; 25] = [
    "a", "and", "as", "at", "because", "but", "by", "for", "from", "if", "in", "know", "knows",
    "of", "on", "or", "say", "says", "since", "show", "shows", "than", "that", "to", "when",
];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.texts() {
        // These words are what this file is about.
        if path == "xtask/src/tidy/words.rs" {
            continue;
        }
        let prose: fn(&str) -> Vec<(usize, String)> = match path.rsplit_once('.') {
            Some((_, "rs")) => rust_prose,
            Some((_, "md")) => markdown_prose,
            Some((_, "toml")) => comments,
            _ => continue,
        };
        for (line, prose) in prose(text) {
            let found = wrong(&prose).into_iter();
            violations.extend(found.map(|message| Violation::at(path, line, message)));
        }
    }
    violations
}

/// Returns what is wrong with a line.
fn wrong(line: &str) -> Vec<String> {
    let words = words(line);
    let mut found = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let before = index
            .checked_sub(1)
            .map_or("", |before| &*words[before].text);
        let text = &*word.text;
        if let Some((_, instead)) = WORDS.iter().find(|(all, _)| all.contains(&text)) {
            found.push(format!("`{text}`: {instead}"));
        }
        if text == "behind" && !BEFORE_BEHIND.contains(&before) {
            found.push("`behind`: after, below, or how far behind".to_owned());
        }
        let begins = word.begins_clause && !line.trim_end().ends_with('?');
        if text == "who" && (begins || NOT_BEFORE_WHO.contains(&before)) {
            found.push("`who` as a subject: write a session, a caller, a worker".to_owned());
        }
    }
    for (phrase, instead) in PHRASES {
        let is_there = |window: &[Word]| {
            window
                .iter()
                .zip(phrase)
                .all(|(word, part)| word.text == *part)
        };
        if words.windows(phrase.len()).any(is_there) {
            found.push(format!("`{}`: {instead}", phrase.join(" ")));
        }
    }
    found
}

/// A word in lower case.
struct Word {
    text: String,
    /// Whether it comes after a mark that ends a sentence or a clause.
    begins_clause: bool,
}

/// Returns the words of a line. What stands between backticks is code, and none.
fn words(line: &str) -> Vec<Word> {
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" _ ");
    let mut words = Vec::new();
    let mut begins_clause = true;
    for part in prose.split_whitespace() {
        let text = part.trim_matches(|char: char| !char.is_alphanumeric() && char != '_');
        words.push(Word {
            text: text.to_lowercase(),
            begins_clause,
        });
        begins_clause = part.ends_with(['.', ':', ';']);
    }
    words
}

/// Returns the comments and string literals of a Rust file, by line.
fn rust_prose(text: &str) -> Vec<(usize, String)> {
    let mut in_code = false;
    let mut prose = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let comment = trimmed
            .strip_prefix("//")
            .map(|comment| comment.trim_start_matches(['/', '!']).trim());
        match comment {
            Some(comment) if comment.starts_with("```") => in_code = !in_code,
            Some(comment) if comment.starts_with('>') => {}
            Some(_) if in_code => {}
            Some(comment) => prose.push((index + 1, comment.to_owned())),
            None => {
                in_code = false;
                let literals = trimmed.split('"').skip(1).step_by(2);
                let literals: Vec<_> = literals.filter(|literal| literal.contains(' ')).collect();
                let end = trimmed.split_once(" // ").map(|(_, comment)| comment);
                let texts = literals.into_iter().chain(end);
                prose.extend(texts.map(|text| (index + 1, text.to_owned())));
            }
        }
    }
    prose
}

/// Returns the lines of a Markdown file without code blocks and quotations.
fn markdown_prose(text: &str) -> Vec<(usize, String)> {
    let mut in_code = false;
    let mut prose = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        match trimmed.starts_with("```") {
            true => in_code = !in_code,
            false if in_code || trimmed.starts_with('>') => {}
            false => prose.push((index + 1, line.to_owned())),
        }
    }
    prose
}

/// Returns the comments of a file whose comments begin with `#`.
fn comments(text: &str) -> Vec<(usize, String)> {
    let lines = text.lines().enumerate();
    let comments =
        lines.filter_map(|(index, line)| Some((index + 1, line.trim_start().strip_prefix('#')?)));
    comments
        .map(|(line, comment)| (line, comment.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let violations = check(&Tree::of(&[(path, text)]));
        violations.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn phrases_are_found_in_comments_texts_and_documents() {
        let rust =
            "//! Nobody waits.\nlet so_many = 1; // for ever\nlet text = \"so many items\";\n";
        let found_lines = found("crates/a/src/lib.rs", rust);
        assert_eq!(found_lines.len(), 3, "{found_lines:?}");
        assert!(found_lines[0].starts_with("crates/a/src/lib.rs:1: `nobody`"));
        let table = [
            ("Who writes it reads it.", 1),
            ("A session leaves: who comes next leads.", 1),
            ("The one who does it knows of who did it.", 1),
            ("Sessions who live, and a caller who waits.", 0),
            ("Who holds what?", 0),
            ("the items behind it", 1),
            ("It leaves nothing behind, and how far behind it is.", 0),
            ("`behind` is code.", 0),
            ("> Whoever wrote this is quoted.", 0),
            ("the behaviour of a fulfilment", 2),
        ];
        for (line, count) in table {
            assert_eq!(found("a.md", line).len(), count, "{line}");
        }
        assert_eq!(found("a.md", "```\nwhoever\n```\n"), [""; 0]);
        assert_eq!(
            found("Cargo.toml", "# so many\nname = 'so many'\n").len(),
            1
        );
    }
}
