//! The paragraphs of prose in a file, with the lines that they stand on.

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

/// A string literal that is being read: the number of `#` after its end, if it is a raw one, and its lines.
struct Literal {
    hashes: Option<usize>,
    lines: Paragraph,
}

impl Literal {
    /// Returns the length of the part of a line before the end of the literal, and with the end.
    fn end(&self, rest: &str) -> Option<(usize, usize)> {
        match self.hashes {
            Some(hashes) => {
                let end = format!("\"{}", "#".repeat(hashes));
                rest.find(&end).map(|at| (at, at + end.len()))
            }
            None => {
                let mut is_escaped = false;
                let at = rest.bytes().position(|byte| {
                    let ends = byte == b'"' && !is_escaped;
                    is_escaped = byte == b'\\' && !is_escaped;
                    ends
                });
                at.map(|at| (at, at + 1))
            }
        }
    }
}

/// Returns the comments and the string literals of a Rust file.
pub(super) fn of_rust(text: &str) -> Vec<Paragraph> {
    let mut paragraphs = Paragraphs::default();
    let (mut in_block, mut literal) = (false, None);
    for (index, line) in text.lines().enumerate() {
        let comment = line.trim_start().strip_prefix("//");
        let comment = comment.filter(|_| literal.is_none());
        let comment = comment.map(|comment| comment.trim_start_matches(['/', '!']).trim());
        match comment {
            Some(comment) if comment.starts_with("```") => {
                in_block = !in_block;
                paragraphs.end();
            }
            Some(_) if in_block => {}
            Some(comment) => paragraphs.push(index + 1, comment),
            None => {
                in_block = false;
                paragraphs.end();
                read_code(index + 1, line, &mut literal, &mut paragraphs.done);
            }
        }
    }
    paragraphs.into_done()
}

/// Reads the literals of a line of code, and the comment at its end. A literal may be open at the begin of the line
/// and at its end.
fn read_code(number: usize, line: &str, open: &mut Option<Literal>, done: &mut Vec<Paragraph>) {
    let mut rest = line;
    loop {
        if let Some(mut literal) = open.take() {
            let Some((text, end)) = literal.end(rest) else {
                literal.lines.push((number, prose(rest)));
                *open = Some(literal);
                return;
            };
            literal.lines.push((number, prose(&rest[..text])));
            rest = &rest[end..];
            // A text of one word is a name.
            if literal
                .lines
                .iter()
                .any(|(_, text)| text.trim().contains(' '))
            {
                done.push(literal.lines);
            }
        }
        let Some(at) = rest.find(['"', '\'', '/']) else {
            return;
        };
        let (before, from) = rest.split_at(at);
        if let Some(comment) = from.strip_prefix("//") {
            done.push(vec![(number, comment.trim().to_owned())]);
            return;
        }
        let mut length = 1;
        if from.starts_with('"') {
            let hashes = before.len() - before.trim_end_matches('#').len();
            let is_raw = before[..before.len() - hashes].ends_with('r');
            *open = Some(Literal {
                hashes: is_raw.then_some(hashes),
                lines: Vec::new(),
            });
        } else if from.starts_with('\'') {
            length = char_length(from);
        }
        rest = &from[length..];
    }
}

/// Returns the length of a literal of a character, or of the mark that begins a lifetime.
fn char_length(from: &str) -> usize {
    let mut chars = from.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            // The character after the backslash may be a quotation mark.
            let end = chars.skip(1).find(|(_, char)| *char == '\'');
            end.map_or(1, |(at, _)| at + 1)
        }
        _ => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
    }
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
