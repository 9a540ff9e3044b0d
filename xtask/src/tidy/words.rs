//! The English of comments, documentation and texts: phrases that a native engineer would not write, and British
//! spellings.
//!
//! Of Rust files the comments and the string literals are read, of Markdown everything but code blocks, and of
//! templates the text outside of tags and expressions. The lines of a paragraph are read together. A quotation of
//! someone else's text is a Markdown quotation (`>`), which is left as it is.

use super::Violation;
use super::prose::{Paragraph, of_comments, of_markdown, of_rust, of_template};
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
        let prose: fn(&str) -> Vec<Paragraph> = match path.rsplit_once('.') {
            Some((_, "rs")) => of_rust,
            Some((_, "md")) => of_markdown,
            Some((_, "toml")) => of_comments,
            Some((_, "html")) => of_template,
            _ => continue,
        };
        for paragraph in prose(text) {
            let found = wrong(&paragraph).into_iter();
            violations.extend(found.map(|(line, message)| Violation::at(path, line, message)));
        }
    }
    violations
}

/// Returns what is wrong with a paragraph, by line.
fn wrong(paragraph: &Paragraph) -> Vec<(usize, String)> {
    let words = words(paragraph);
    let mut found = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| &words[before]);
        let before_text = before.map_or("", |before| &*before.text);
        let mut violated = |message: String| found.push((word.line, message));
        let text = &*word.text;
        if let Some((_, instead)) = WORDS.iter().find(|(all, _)| all.contains(&text)) {
            violated(format!("`{text}`: {instead}"));
        }
        if text == "behind" && !BEFORE_BEHIND.contains(&before_text) {
            violated("`behind`: after, below, or how far behind".to_owned());
        }
        let begins_clause = before.is_none_or(|before| before.mark.is_some());
        let is_question = || {
            let mut marks = words[index..].iter().filter_map(|word| word.mark);
            marks.find(|mark| !matches!(mark, ':' | ';')) == Some('?')
        };
        let has_no_noun = begins_clause && !is_question() || NOT_BEFORE_WHO.contains(&before_text);
        if text == "who" && has_no_noun {
            violated("`who` as a subject: write a session, a caller, a worker".to_owned());
        }
        for (phrase, instead) in PHRASES {
            let there = words[index..].iter().map(|word| &*word.text);
            if there.take(phrase.len()).eq(phrase.iter().copied()) {
                violated(format!("`{}`: {instead}", phrase.join(" ")));
            }
        }
    }
    found
}

/// A word in lower case.
struct Word {
    text: String,
    line: usize,
    /// The mark after it that ends a sentence or a clause.
    mark: Option<char>,
}

/// Returns the words of a paragraph. What stands between backticks is code, and one word without letters.
fn words(paragraph: &Paragraph) -> Vec<Word> {
    let mut words = Vec::new();
    let mut is_code = false;
    for (line, text) in paragraph {
        for (index, span) in text.split('`').enumerate() {
            // A backtick begins or ends code, which may continue on the next line.
            is_code ^= index > 0;
            let span = if is_code { "_" } else { span };
            for part in span.split_whitespace() {
                let text = part.trim_matches(|char: char| !char.is_alphanumeric() && char != '_');
                let mark = part
                    .trim_end_matches(['"', '\'', ')', '*'])
                    .chars()
                    .next_back();
                words.push(Word {
                    text: text.to_lowercase(),
                    line: *line,
                    mark: mark.filter(|mark| ['.', ':', ';', '?', '!'].contains(mark)),
                });
            }
        }
    }
    words
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
            ("It waits for\never.", 1),
            ("It waits for\n\never since.", 0),
            ("It is left to a caller\nwho waits, and falls\nbehind.", 0),
            ("Knows\nwho waits?", 1),
            ("It holds. Who holds\nwhat? A session.", 0),
            ("A span of `code that\nwraps` and so many words.", 1),
            ("A span of `so many\nso many` words.", 0),
            ("- it waits for\n- ever more", 0),
            ("| for |\n| ever |", 0),
        ];
        for (line, count) in table {
            assert_eq!(found("a.md", line).len(), count, "{line}");
        }
        assert_eq!(found("a.md", "```\nwhoever\n```\n"), [""; 0]);
        assert_eq!(found("a.md", "```\nfor\n```\never\n"), [""; 0]);
        assert_eq!(
            found("Cargo.toml", "# so many\nname = 'so many'\n").len(),
            1
        );
    }
    #[test]
    fn phrases_across_lines_are_found_with_their_line() {
        let table = [
            ("/// It waits for\n/// ever.\n", &[1][..]),
            ("/// It waits for\n\n// ever.\n", &[]),
            ("/// It waits for\n///\n/// ever.\n", &[]),
            ("/// Waits for a caller\n/// who waits.\n", &[]),
            ("let a = \"it waits for \\\n    ever\";\n", &[1]),
            (
                "let a = \"first\n    nobody waits\n\"; // so many\n",
                &[2, 3],
            ),
            (
                "let a = r#\"a \"quoted\" word and so many\"#; let so_many = 1;\n",
                &[1],
            ),
            ("let a = ['\"', 'b']; let so = many; // for ever\n", &[1]),
            ("let a = '\\''; fn f<'a>() {} \"nobody waits\";\n", &[1]),
            ("let a = \"an \\\" escape\"; let nobody = waits;\n", &[]),
        ];
        for (rust, expected) in table {
            let violations = check(&Tree::of(&[("a.rs", rust)]));
            let lines: Vec<_> = violations.iter().filter_map(|found| found.line).collect();
            assert_eq!(lines, expected, "{rust}");
        }
    }

    #[test]
    fn templates_are_read_outside_of_tags_and_expressions() {
        let table = [
            ("<p>so many</p>", 1),
            ("<p>it waits for\n  ever</p>", 1),
            ("<p>it waits for</p>\n<p>ever</p>", 0),
            ("<p class=\"so many\">items</p>", 0),
            (
                "<p>so {{ nobody }} many {% if nobody %}x{% endif %}{# nobody #}</p>",
                0,
            ),
            ("<script>nobody()</script><style>nobody {}</style>", 0),
        ];
        for (html, count) in table {
            assert_eq!(found("templates/a.html", html).len(), count, "{html}");
        }
    }
}
