//! The prose of Markdown, without fenced code blocks, comments and the targets of links.
//!
//! Of [CommonMark](https://spec.commonmark.org/0.31.2/), it knows these and nothing else. The rest counts as prose,
//! even indented code blocks, which look like the paragraphs of a list, and the definitions of links.

use std::path::Path;

/// The least length of a code fence.
const MIN_FENCE_BYTES: usize = 3;

const COMMENT_BEGIN: &[u8] = b"<!--";
const COMMENT_END: &[u8] = b"-->";

/// Returns whether a file is Markdown, by the extension of its name in any letter case.
pub(crate) fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| {
        extension.eq_ignore_ascii_case("md") || extension.eq_ignore_ascii_case("markdown")
    })
}

/// Replaces what is not prose by spaces, part by part.
#[derive(Debug, Default)]
pub(crate) struct ProseFilter {
    inside: Inside,
    line: Line,
    /// How many bytes of the mark that begins or ends a comment were read.
    mark_bytes: usize,
    previous: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Inside {
    #[default]
    Prose,
    LinkTarget,
    Comment,
    CodeBlock(Fence),
}

/// A run of backticks or tildes at the beginning of a line, of a quote or of an item of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fence {
    byte: u8,
    bytes: usize,
}

/// The current line, as far as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Line {
    /// Spaces, and markers of quotes and lists.
    #[default]
    Blank,
    /// Digits, which may belong to the marker of an item.
    Number,
    /// The marker of an item, if a space follows.
    Marker,
    Fence(Fence),
    /// A fence and spaces.
    FenceAlone(Fence),
    /// The fence that has opened a code block, and more.
    Opening,
    Other,
}

impl ProseFilter {
    /// Appends the bytes, with spaces in place of what is not prose.
    pub(crate) fn feed(&mut self, bytes: &[u8], prose: &mut Vec<u8>) {
        for &byte in bytes {
            self.read_fence(byte);
            self.read_mark(byte);
            self.previous = byte;
            let is_prose = self.inside == Inside::Prose;
            prose.push(if is_prose { byte } else { b' ' });
        }
    }

    /// Opens and closes code blocks.
    fn read_fence(&mut self, byte: u8) {
        let is_end = byte == b'\n';
        let is_space = byte.is_ascii_whitespace();
        self.line = match self.line {
            Line::Fence(fence) if byte == fence.byte => Line::Fence(Fence {
                bytes: fence.bytes + 1,
                ..fence
            }),
            Line::Fence(fence) | Line::FenceAlone(fence) if is_space && !is_end => {
                Line::FenceAlone(fence)
            }
            Line::Fence(fence) | Line::FenceAlone(fence) => match self.inside {
                Inside::CodeBlock(opened) if is_end && fence.closes(opened) => {
                    self.inside = Inside::Prose;
                    Line::Blank
                }
                Inside::Prose | Inside::LinkTarget if fence.bytes >= MIN_FENCE_BYTES => {
                    self.inside = Inside::CodeBlock(fence);
                    if is_end { Line::Blank } else { Line::Opening }
                }
                _ if is_end => Line::Blank,
                _ => Line::Other,
            },
            // Code in a sentence, between as many backticks as a fence has.
            Line::Opening if byte == b'`' && self.is_in_backticks() => {
                self.inside = Inside::Prose;
                Line::Other
            }
            Line::Blank if byte == b'`' || byte == b'~' => Line::Fence(Fence { byte, bytes: 1 }),
            Line::Blank | Line::Marker if is_space => Line::Blank,
            _ if is_end => Line::Blank,
            Line::Opening => Line::Opening,
            Line::Blank if byte == b'>' => Line::Blank,
            // What looks like an item of a list in a code block is code.
            Line::Blank if self.is_in_code() => Line::Other,
            Line::Blank if b"-+*".contains(&byte) => Line::Marker,
            Line::Number if b".)".contains(&byte) => Line::Marker,
            Line::Blank | Line::Number if byte.is_ascii_digit() => Line::Number,
            Line::Blank | Line::Number | Line::Marker | Line::Other => Line::Other,
        };
    }

    fn is_in_code(&self) -> bool {
        matches!(self.inside, Inside::CodeBlock(_))
    }

    fn is_in_backticks(&self) -> bool {
        matches!(self.inside, Inside::CodeBlock(fence) if fence.byte == b'`')
    }

    /// Opens and closes comments and the targets of links.
    fn read_mark(&mut self, byte: u8) {
        match self.inside {
            Inside::Prose => {
                if self.previous == b']' && byte == b'(' {
                    self.inside = Inside::LinkTarget;
                } else if self.completes(COMMENT_BEGIN, byte) {
                    self.inside = Inside::Comment;
                    // The hyphens of the mark may already be those of the end, as in `<!-->`.
                    self.mark_bytes = COMMENT_END.len() - 1;
                }
            }
            Inside::LinkTarget if byte == b')' || byte == b'\n' => self.inside = Inside::Prose,
            Inside::Comment => {
                if self.completes(COMMENT_END, byte) {
                    self.inside = Inside::Prose;
                }
            }
            Inside::LinkTarget | Inside::CodeBlock(_) => {}
        }
    }

    /// Returns whether a byte is the last one of a mark.
    fn completes(&mut self, mark: &[u8], byte: u8) -> bool {
        if byte == mark[self.mark_bytes] {
            self.mark_bytes += 1;
        } else if !(byte == b'-' && self.mark_bytes == mark.len() - 1 && mark == COMMENT_END) {
            self.mark_bytes = usize::from(byte == mark[0]);
        }
        let is_complete = self.mark_bytes == mark.len();
        if is_complete {
            self.mark_bytes = 0;
        }
        is_complete
    }
}

impl Fence {
    fn closes(self, opened: Self) -> bool {
        self.byte == opened.byte && self.bytes >= opened.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words of the prose of Markdown that is fed in parts of a given size.
    fn words(markdown: &str, part: usize) -> String {
        let mut filter = ProseFilter::default();
        let mut prose = Vec::new();
        for part in markdown.as_bytes().chunks(part) {
            filter.feed(part, &mut prose);
        }
        let prose = String::from_utf8(prose).unwrap();
        let words: Vec<_> = prose
            .split(|char: char| !char.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect();
        words.join(" ")
    }

    #[test]
    fn prose_is_what_is_neither_code_block_nor_comment_nor_target_of_a_link() {
        let cases = [
            (
                "# A title\n\n- `code` in *a* list",
                "A title code in a list",
            ),
            ("one\n```rust\nlet a = 1;\n```\ntwo", "one two"),
            ("one\n~~~\n```\na\n~~~~  \ntwo", "one two"),
            ("one\n````\n```\na\n```\n````\ntwo", "one two"),
            ("one\n   ```\n   a\n   ```\ntwo", "one two"),
            ("one\n- ```\n  a\n  ```\n- two", "one two"),
            ("one\n12. ~~~\n    a\n    ~~~\ntwo", "one 12 two"),
            ("one\n> ```\n> a\n> ```\n> two", "one two"),
            ("one\n> 1) ```\n>    a\n>    ```\n> two", "one 1 two"),
            ("one\n```\n- ```\n1. ```\na\n```\ntwo", "one two"),
            ("1.```\n*a* -```\n**```** two", "1 a two"),
            ("one\n```\nnever closed", "one"),
            ("one\n```\na\n``` b\nc\n```\ntwo", "one two"),
            ("```code``` in a line\ntwo", "in a line two"),
            (
                "a [link](docs/page.md#there) and\n[b] (c)",
                "a link and b c",
            ),
            ("an open [link](docs\nand more", "an open link and more"),
            (
                "one <!-- docs/page.md --> two <!--- a --- --> three",
                "one two three",
            ),
            ("one <!--> two --> three <!---> four", "one two three four"),
            ("a <- b <! c", "a b c"),
            (
                "<!-- a --> one two\n\n- item\n  <!-- c --> tail words",
                "one two item tail words",
            ),
            ("<!-- one\ntwo -->\nthree", "three"),
            ("<div>\n<!-- hidden -->\n</div>", "div div"),
            ("[foo ![a](b.png) more][ref]", "foo a more ref"),
            (
                "[![a picture](a.png)](b.md) [a](u \"t ](v\") b",
                "a picture a b",
            ),
        ];
        for (markdown, expected) in cases {
            for part in 1..markdown.len() + 1 {
                assert_eq!(words(markdown, part), expected, "{markdown:?} in {part}");
            }
        }
    }

    #[test]
    fn markdown_is_known_by_its_extension() {
        let is = |path| is_markdown(Path::new(path));
        assert!(is("a.md") && is("docs/A.MD") && is("a.markdown"));
        assert!(!is("a.rs") && !is("md") && !is("a.md.txt"));
    }
}
