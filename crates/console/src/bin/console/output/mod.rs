//! What is printed: JSON, or tables that fit the terminal.
//!
//! - Here: how tables and values are shown.
//! - `queues`: queues and how they stand; `items`: items; `work`: all other reports.

mod items;
mod queues;
mod work;

use std::env;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use comfy_table::{ColumnConstraint, ContentArrangement, Table, TableStyle};
use console::report::Payload;
use serde::Serialize;

use crate::failure::{Failure, Result};

/// How many characters of a value a table shows.
const VALUE_CHARS: usize = 60;

/// What can be shown to a reader.
pub(crate) trait Show: Serialize {
    /// Returns the text, with a line feed at its end.
    fn show(&self) -> String;
}

/// Prints a report.
pub(crate) fn print(report: &impl Show, json: bool) -> Result<()> {
    let text = match json {
        true => {
            let text = serde_json::to_string_pretty(report);
            text.expect("reports have names for keys") + "\n"
        }
        false => report.show(),
    };
    print_text(&text)
}

/// Prints a line.
pub(crate) fn print_line(text: &str) -> Result<()> {
    print_text(&format!("{text}\n"))
}

/// Prints a text. A reader that has seen enough, as `head` has, does not make a command fail.
fn print_text(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Print(error)),
        _ => Ok(()),
    }
}

/// Returns an empty table without lines. Its first column, which has what commands take, is never broken.
fn new_table() -> Table {
    let mut table = Table::new();
    table
        .load_style(TableStyle::new())
        .set_content_arrangement(ContentArrangement::Dynamic);
    // Where the width is not given, it is that of the terminal. What is no terminal has any width.
    if let Some(columns) = columns() {
        table.set_width(columns);
    }
    table
}

/// Returns the width that the environment asks for.
fn columns() -> Option<u16> {
    env::var("COLUMNS").ok()?.parse().ok()
}

fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = new_table();
    table.set_header(header.iter().copied()).add_rows(rows);
    render(table)
}

/// Returns a table without a header, for the fields of one thing. A field without a value is left out.
fn fields(rows: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let rows = rows.into_iter().filter(|(_, value)| !value.is_empty());
    let mut table = new_table();
    table.add_rows(rows.map(|(name, value)| vec![name.to_owned(), value]));
    render(table)
}

fn render(mut table: Table) -> String {
    table.set_constraints([ColumnConstraint::ContentWidth]);
    format!("{}\n", table.trim_fmt())
}

fn next_page(text: &mut String, next: Option<&str>) {
    if let Some(next) = next {
        let _ = writeln!(text, "\nmore: --after {next}");
    }
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

fn text(value: Option<&String>) -> String {
    value.cloned().unwrap_or_default()
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
    let text = whole(payload);
    match text.char_indices().nth(VALUE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
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
    let value = payload.value.as_ref();
    let value = value.and_then(|value| serde_json::to_string_pretty(value).ok());
    let value = value.unwrap_or_else(|| whole(payload));
    let problem = payload.problem.iter().map(|problem| format!(": {problem}"));
    let problem: String = problem.collect();
    format!(
        "{value}\n({}, {} bytes{problem})",
        payload.codec, payload.bytes
    )
}
