//! What is printed: JSON, or tables that fit the terminal.
//!
//! - Here: how tables and values are shown.
//! - `queues`: queues and how they stand; `items`: items; `groups`: their groups; `batches`: batches; `kinds`: kinds
//!   of items; `maps`: maps; `work`: all other reports.

mod batches;
mod groups;
mod items;
mod kinds;
mod maps;
mod queues;
mod work;

use std::env;
use std::fmt::Write as _;
use std::time::Duration;

use comfy_table::{ColumnConstraint, ContentArrangement, Table, TableStyle};
use console::report::Payload;
use console::terminal::{self, line, lines, short};
use serde::Serialize;

use crate::failure::{CommandFailure, Result};

/// How many characters of a value a table shows.
const MAX_VALUE_CHARS: usize = 60;

/// How many characters of a reason a table shows.
const MAX_REASON_CHARS: usize = 160;

/// What can be shown to a reader.
pub(crate) trait Show: Serialize {
    /// Returns the text, with a line feed at its end.
    fn show(&self) -> String;
}

/// Prints a report.
pub(crate) fn print(report: &impl Show, json: bool) -> Result<()> {
    let text = if json {
        let text = serde_json::to_string_pretty(report);
        text.expect("reports have names for keys") + "\n"
    } else {
        report.show()
    };
    print_text(&text)
}

/// Prints a line.
pub(crate) fn print_line(text: &str) -> Result<()> {
    print_text(&format!("{text}\n"))
}

fn print_text(text: &str) -> Result<()> {
    terminal::print(text).map_err(CommandFailure::Print)
}

/// Returns an empty table without lines. Its first column, which has what commands take, is never broken.
fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    if let Some(columns) = columns(&table) {
        table
            .set_width(columns)
            .set_content_arrangement(ContentArrangement::Dynamic);
    }
    table
}

/// Returns the width that the environment asks for, or that of the terminal. `None`: nothing is broken. Some terminals
/// say that they have no columns, which means that they do not know.
fn columns(table: &Table) -> Option<u16> {
    let asked = env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok());
    let is_known = |columns: &u16| *columns > 0;
    asked
        .filter(is_known)
        .or_else(|| table.width().filter(is_known))
}

/// Returns a table. Each cell is one line, so that no stored text can look like a row.
fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = new_table();
    let rows = rows.into_iter().map(|cells| cells.into_iter().map(line));
    table.set_header(header.iter().copied()).add_rows(rows);
    render(table)
}

/// Returns a table without a header, for the fields of one thing. A field without a value is left out. The lines of a
/// value stay in its column.
fn fields(rows: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let rows = rows.into_iter().filter(|(_, value)| !value.is_empty());
    let mut table = new_table();
    table.add_rows(rows.map(|(name, value)| vec![name.to_owned(), lines(value)]));
    render(table)
}

fn render(mut table: Table) -> String {
    table.set_constraints([ColumnConstraint::ContentWidth]);
    format!("{}\n", table.trim_fmt())
}

fn next_page(text: &mut String, next: Option<&str>) {
    if let Some(next) = next {
        // A name may begin with a hyphen, and would then be taken for an option of its own.
        let _ = writeln!(text, "\nmore: --after={}", shell_word(next));
    }
}

/// Returns a text as a shell takes it for one word. Hidden characters need the quotes of bash and zsh.
fn shell_word(text: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "_-./:=@%+,".contains(char);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if line(text) == text {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let mut word = String::from("$'");
    for char in text.chars() {
        match char {
            '\'' | '\\' => word.extend(['\\', char]),
            char if line(char) != char.to_string() => {
                let bytes = char.encode_utf8(&mut [0; 4]).bytes().collect::<Vec<_>>();
                word.extend(bytes.iter().map(|byte| format!("\\x{byte:02x}")));
            }
            char => word.push(char),
        }
    }
    word + "'"
}

/// Returns a span of time as a reader takes it in: milliseconds below ten seconds, else seconds.
fn span(seconds: f64) -> String {
    let millis = (seconds * 1000.0).max(0.0) as u64;
    let shown = if millis < 10_000 {
        millis
    } else {
        millis / 1000 * 1000
    };
    humantime::format_duration(Duration::from_millis(shown)).to_string()
}

fn optional_span(seconds: Option<f64>) -> String {
    seconds.map(span).unwrap_or_default()
}

fn text(value: Option<&impl ToString>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

/// Returns a number, with a plus sign if there are more than were counted.
fn at_least(count: usize, has_more: bool) -> String {
    format!("{count}{}", if has_more { "+" } else { "" })
}

/// Says yes, or nothing.
fn yes(is: bool) -> String {
    if is { "yes" } else { "" }.to_owned()
}

/// Returns a value on one line.
fn brief(payload: Option<&Payload>) -> String {
    let Some(payload) = payload else {
        return String::new();
    };
    short(&whole(payload), MAX_VALUE_CHARS)
}

fn whole(payload: &Payload) -> String {
    match (&payload.value, &payload.hex) {
        (Some(value), _) => value.to_string(),
        (None, Some(hex)) => format!("0x{hex}"),
        (None, None) => String::new(),
    }
}

/// Returns a value over several lines, with what keeps it from being decoded.
fn pretty(payload: Option<&Payload>) -> String {
    let Some(payload) = payload else {
        return String::new();
    };
    let value = payload
        .value
        .as_ref()
        .and_then(|value| serde_json::to_string_pretty(value).ok())
        .unwrap_or_else(|| whole(payload));
    let problem: String = payload
        .problem
        .iter()
        .map(|problem| format!(": {problem}"))
        .collect();
    format!(
        "{value}\n({}, {} bytes{problem})",
        payload.codec, payload.bytes
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_continues_a_listing_is_one_word_of_a_shell() {
        let table = [
            ("01f4a0", "01f4a0"),
            ("orders/open", "orders/open"),
            ("new year", "'new year'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
            ("a;rm -rf *", "'a;rm -rf *'"),
            (r#""a b""#, r#"'"a b"'"#),
            ("a\u{1b}'\\\u{9b}", r"$'a\x1b\'\\\xc2\x9b'"),
        ];
        for (text, word) in table {
            assert_eq!(shell_word(text), word);
        }
    }

    #[test]
    fn spans_of_any_length_are_shown() {
        let table = [
            (0.0, "0s"),
            (-1.0, "0s"),
            (f64::NAN, "0s"),
            (0.25, "250ms"),
            (90.5, "1m 30s"),
            (86_400.0, "1day"),
        ];
        for (seconds, shown) in table {
            assert_eq!(span(seconds), shown);
        }
        for seconds in [Duration::MAX.as_secs_f64(), u64::MAX as f64, f64::INFINITY] {
            assert!(span(seconds).contains("years"), "{seconds}");
        }
    }
}
