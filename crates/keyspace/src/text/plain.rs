//! Foreign text that can be shown: stored text, names, paths, arguments and reasons, none of which may act on what
//! shows it.
//!
//! A character that a terminal or a browser would act on, or show nothing for, is written as JSON writes it: `\n`,
//! `\u001b`, `\u202e`. What is JSON stays JSON with the same meaning, and so do names of queues, whose strings are
//! those of JSON.

use std::fmt::{self, Display, Write};

/// Returns whether a character does not simply show itself: controls, the controls of bidirectional text, the
/// separators of lines and paragraphs, and characters without any width or shape.
#[must_use]
pub fn is_hidden(char: char) -> bool {
    let has_no_shape = |char| {
        matches!(
            char,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
    };
    char.is_control() || (!char.is_ascii() && has_no_shape(char))
}

/// Writes a character as a string of JSON can have it.
///
/// # Errors
/// Those of `out`.
pub fn write_escaped(out: &mut impl Write, char: char) -> fmt::Result {
    match char {
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        char => {
            let mut buffer = [0; 2];
            let mut units = char.encode_utf16(&mut buffer).iter();
            units.try_for_each(|unit| write!(out, "\\u{unit:04x}"))
        }
    }
}

/// Returns a text on one line, with every hidden character escaped.
#[must_use]
pub fn line(text: impl Display) -> String {
    escaped(&text.to_string(), is_hidden)
}

/// Returns a text that may have several lines, with every hidden character but the line feed escaped.
#[must_use]
pub fn lines(text: impl Display) -> String {
    escaped(&text.to_string(), |char| char != '\n' && is_hidden(char))
}

/// Returns the first `chars` characters of a text on one line, with every hidden character escaped, and an ellipsis if
/// there are more.
#[must_use]
pub fn short(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => line(&text[..end]) + "…",
        None => line(text),
    }
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if is_escaped(char) {
            write_escaped(&mut shown, char).expect("a string takes everything");
        } else {
            shown.push(char);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_shown_as_a_code() {
        let table = [
            ("plain äöü 漢字 🙂 שלום", "plain äöü 漢字 🙂 שלום"),
            ("\u{1b}[2J\u{7}\u{8}\0", r"\u001b[2J\u0007\u0008\u0000"),
            ("a\r\nb\tc\u{b}\u{c}", r"a\r\nb\tc\u000b\u000c"),
            ("\u{7f}\u{9b}31m\u{85}", r"\u007f\u009b31m\u0085"),
            (
                "\u{202e}gpj\u{2066}\u{61c}\u{200f}",
                r"\u202egpj\u2066\u061c\u200f",
            ),
            (
                "a\u{200b}b\u{feff}c\u{ad}d\u{3164}",
                r"a\u200bb\ufeffc\u00add\u3164",
            ),
            ("\u{2028}\u{2029}\u{fe0f}", r"\u2028\u2029\ufe0f"),
            ("\u{e0041}", r"\udb40\udc41"),
        ];
        for (text, shown) in table {
            assert_eq!(line(text), shown);
            assert_eq!(lines(text), shown.replace("\\n", "\n"));
            // Nothing is escaped twice.
            assert_eq!(line(line(text)), shown);
        }
    }

    #[test]
    fn an_escaped_text_has_the_same_meaning_as_a_string_of_json() {
        let all: String = (0..=0x1_1000)
            .chain(0xe_0000..0xe_1000)
            .filter_map(char::from_u32)
            .collect();
        let json = serde_json::to_string(&all).unwrap();
        let shown = line(&json);
        assert!(!shown.chars().any(is_hidden));
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), all);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(short("äöü", 3), "äöü");
        assert_eq!(short("äöü", 2), "äö…");
        assert_eq!(short("\u{1b}b", 1), "\\u001b…");
    }
}
