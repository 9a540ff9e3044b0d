//! The paragraphs of prose in a file, with the lines that they stand on.

use ra_ap_rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};

/// The lines of a paragraph, or of a text in code, each with its number from 1.
pub(super) type Paragraph = Vec<(usize, String)>;

/// Paragraphs that are being read.
#[derive(Default)]
struct Paragraphs {
    done: Vec<Paragraph>,
    open: Paragraph,
}

impl Paragraphs {
    /// Ends the paragraph.
    fn end(&mut self) {
        if !self.open.is_empty() {
            self.done.push(std::mem::take(&mut self.open));
        }
    }

    /// Adds a line of Markdown, which may begin a paragraph or be one of its own.
    fn push(&mut self, line: usize, text: &str) {
        let begins = text.is_empty() || is_item(text) || text.starts_with(['#', '|', '>']);
        if begins {
            self.end();
        }
        // A quotation is left as it is.
        if !text.is_empty() && !text.starts_with('>') {
            self.open.push((line, text.to_owned()));
        }
        if text.starts_with(['#', '|']) {
            self.end();
        }
    }

    fn into_done(mut self) -> Vec<Paragraph> {
        self.end();
        self.done
    }
}

/// Returns whether a line of Markdown begins an item of a list.
fn is_item(text: &str) -> bool {
    let numbered = text.trim_start_matches(|char: char| char.is_ascii_digit());
    let is_numbered = numbered.len() < text.len() && numbered.starts_with(". ");
    is_numbered || text.starts_with("- ") || text.starts_with("* ")
}

/// Returns the paragraphs of a Markdown file without code blocks and quotations.
pub(super) fn of_markdown(text: &str) -> Vec<Paragraph> {
    let mut in_code = false;
    let mut paragraphs = Paragraphs::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("```") {
            in_code = !in_code;
            paragraphs.end();
        } else if !in_code {
            paragraphs.push(index + 1, line);
        }
    }
    paragraphs.into_done()
}

/// Returns the comments of a file whose comments begin with `#`.
pub(super) fn of_comments(text: &str) -> Vec<Paragraph> {
    let mut paragraphs = Paragraphs::default();
    for (index, line) in text.lines().enumerate() {
        match line.trim_start().strip_prefix('#') {
            Some(comment) => paragraphs.push(index + 1, comment.trim()),
            None => paragraphs.end(),
        }
    }
    paragraphs.into_done()
}

/// Returns the comments and the string literals of a Rust file.
pub(super) fn of_rust(text: &str) -> Vec<Paragraph> {
    let mut paragraphs = Paragraphs::default();
    let (mut rest, mut number) = (text, 1);
    let (mut is_after_code, mut in_block) = (false, false);
    for token in tokenize(text, FrontmatterAllowed::No) {
        let (token_text, after) = rest.split_at(token.len as usize);
        let breaks = token_text.matches('\n').count();
        match token.kind {
            TokenKind::Whitespace => {
                is_after_code &= breaks == 0;
                if breaks > 1 {
                    in_block = false;
                    paragraphs.end();
                }
            }
            TokenKind::LineComment { .. } => {
                let comment = token_text.trim_start_matches(['/', '!']).trim();
                if is_after_code {
                    paragraphs.done.push(vec![(number, comment.to_owned())]);
                } else if comment.starts_with("```") {
                    in_block = !in_block;
                    paragraphs.end();
                } else if !in_block {
                    paragraphs.push(number, comment);
                }
            }
            _ => {
                (is_after_code, in_block) = (true, false);
                paragraphs.end();
                if matches!(token.kind, TokenKind::Literal { .. })
                    && let Some(lines) = string(number, token_text)
                    // A text of one word is a name.
                    && lines.iter().any(|(_, text)| text.trim().contains(' '))
                {
                    paragraphs.done.push(lines);
                }
            }
        }
        number += breaks;
        rest = after;
    }
    paragraphs.into_done()
}

/// Returns the lines of a literal that is a string.
fn string(number: usize, literal: &str) -> Option<Paragraph> {
    let begin = literal.find('"')?;
    let end = literal.rfind('"').filter(|end| *end > begin)?;
    let lines = literal[begin + 1..end].split('\n').enumerate();
    Some(
        lines
            .map(|(index, line)| (number + index, prose(line)))
            .collect(),
    )
}

/// Returns the text of a part of a literal without its escapes.
fn prose(text: &str) -> String {
    let mut chars = text.chars();
    let mut prose = String::new();
    while let Some(char) = chars.next() {
        match char {
            '\\' => {
                chars.next();
                prose.push(' ');
            }
            _ => prose.push(char),
        }
    }
    prose
}

/// The tags that stand inside of a sentence.
const INLINE_TAGS: [&str; 8] = ["a", "b", "em", "i", "kbd", "small", "span", "strong"];

/// What a template has besides text: where it begins, where it ends, and whether it ends a paragraph.
const NO_TEXT: [(&str, &str, bool); 8] = [
    ("{{", "}}", false),
    ("{%", "%}", false),
    ("{#", "#}", false),
    ("<!--", "-->", true),
    ("<script", "</script>", true),
    ("<style", "</style>", true),
    ("<code", "</code>", false),
    ("<", ">", true),
];

/// Returns the paragraphs of an HTML template: its text outside of tags, scripts and expressions.
pub(super) fn of_template(text: &str) -> Vec<Paragraph> {
    let mut paragraphs = Paragraphs::default();
    let (mut rest, mut number) = (text, 1);
    while !rest.is_empty() {
        let special = NO_TEXT.iter().find(|(begin, ..)| rest.starts_with(begin));
        let Some((_, end, ends_paragraph)) = special else {
            let mut chars = rest.char_indices().skip(1);
            let next = chars.find(|(_, char)| ['{', '<'].contains(char));
            let next = next.map_or(rest.len(), |(at, _)| at);
            for (index, line) in rest[..next].split('\n').enumerate() {
                number += usize::from(index > 0);
                if !line.trim().is_empty() {
                    paragraphs.open.push((number, line.to_owned()));
                }
            }
            rest = &rest[next..];
            continue;
        };
        let length = rest.find(end).map_or(rest.len(), |at| at + end.len());
        let name = rest[1..length].trim_start_matches('/');
        let name = name
            .split(|char: char| !char.is_ascii_alphanumeric())
            .next();
        match *ends_paragraph && !name.is_some_and(|name| INLINE_TAGS.contains(&name)) {
            true => paragraphs.end(),
            // It stands for a word.
            false => paragraphs.open.push((number, "_".to_owned())),
        }
        number += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    paragraphs.into_done()
}
