//! The result that phrasecount prints, as text or as JSON.

use std::fmt::Write as _;

use console::terminal::{self, line};
use export_queue::Pending;
use serde_json::{Value, json};

use crate::corpus::Count;
use crate::error::{Error, Result};
use crate::keyspace::Undecodable;
use crate::load::Loaded;
use crate::source::Skipped;

/// Records that were given up and wait for an operator.
#[derive(Debug, Default)]
pub(crate) struct GivenUp {
    pub(crate) count: u64,
    pub(crate) first_reason: Option<String>,
}

impl GivenUp {
    /// Counts a record, and keeps the reason of the first one: its own, or that it does not decode.
    pub(crate) fn note<T>(&mut self, record: &Result<T, Undecodable>, reason: impl Fn(&T) -> &str) {
        self.count += 1;
        self.first_reason.get_or_insert_with(|| match record {
            Ok(record) => reason(record).to_owned(),
            Err(error) => error.to_string(),
        });
    }
}

/// How many entries of a list the text shows.
const MAX_SHOWN: usize = 10;

/// A result, as text and as JSON.
#[derive(Default)]
pub(crate) struct Report {
    text: String,
    json: serde_json::Map<String, Value>,
}

impl Report {
    /// Adds a line to the text, and its value to the JSON.
    pub(crate) fn add(&mut self, name: &str, value: impl Into<Value>, line: &str) {
        self.json.insert(name.to_owned(), value.into());
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Adds a value to the JSON only.
    pub(crate) fn add_value(&mut self, name: &str, value: impl Into<Value>) {
        self.json.insert(name.to_owned(), value.into());
    }

    /// Adds a number of waiting records, or a lower bound of it.
    pub(crate) fn pending(&mut self, name: &str, pending: Pending, what: &str) {
        let count = pending.count;
        let has_more = pending.has_more;
        let at_least = if has_more { "at least " } else { "" };
        self.add(name, count, &format!("{at_least}{count} {what}"));
        self.add_value(&format!("{name}_has_more"), has_more);
    }

    /// Adds a number of records that were given up. The text shows it unless it is zero.
    pub(crate) fn given_up(&mut self, name: &str, given_up: &GivenUp, what: &str) {
        let GivenUp {
            count,
            first_reason,
        } = given_up;
        self.add_value(name, *count);
        if *count > 0 {
            let _ = writeln!(self.text, "{count} {what}");
        }
        if let Some(reason) = first_reason {
            let _ = writeln!(self.text, "  the first of them: {}", line(reason));
        }
    }

    pub(crate) fn count(&mut self, count: Count) {
        let Count {
            documents,
            occurrences,
        } = count;
        self.add("documents", documents, &format!("documents {documents}"));
        self.add(
            "occurrences",
            occurrences,
            &format!("occurrences {occurrences}"),
        );
    }

    pub(crate) fn phrases_counted(&mut self, phrases: u64) {
        self.add(
            "phrases_counted",
            phrases,
            &format!("{phrases} phrases counted"),
        );
    }

    pub(crate) fn counts_exported(&mut self, counts: u64) {
        self.add(
            "counts_exported",
            counts,
            &format!("{counts} counts exported"),
        );
    }

    pub(crate) fn rate(&mut self, bytes: u64, seconds: f64) {
        let megabytes = bytes as f64 / 1e6 / seconds;
        self.add(
            "seconds",
            seconds,
            &format!("{seconds:.2} seconds, {megabytes:.2} MB/s"),
        );
        self.add_value("megabytes_per_second", megabytes);
    }

    pub(crate) fn top(&mut self, top: &[(String, Count)]) {
        let list = top.iter().map(|(phrase, count)| {
            let Count {
                documents,
                occurrences,
            } = count;
            json!({"phrase": phrase, "documents": documents, "occurrences": occurrences})
        });
        self.json.insert("top".to_owned(), list.collect());
        if top.is_empty() {
            self.text.push_str("no phrases\n");
            return;
        }
        let _ = writeln!(
            self.text,
            "{:>12}{:>12}  phrase",
            "occurrences", "documents"
        );
        for (
            phrase,
            Count {
                documents,
                occurrences,
            },
        ) in top
        {
            let phrase = line(phrase);
            let _ = writeln!(self.text, "{occurrences:>12}{documents:>12}  {phrase}");
        }
    }

    pub(crate) fn loaded(&mut self, loaded: &Loaded) {
        let Loaded {
            files,
            bytes,
            stored,
            unchanged,
            removed,
            overlong,
            skipped,
            left_out,
        } = loaded;
        self.add(
            "files",
            *files,
            &format!(
                "{files} files with {bytes} bytes: {stored} new or changed, {unchanged} unchanged"
            ),
        );
        for (name, value) in [
            ("bytes", *bytes),
            ("stored", *stored),
            ("unchanged", *unchanged),
        ] {
            self.add_value(name, value);
        }
        self.add("removed", *removed, &format!("{removed} documents removed"));
        self.add_value("overlong", *overlong);
        if *overlong > 0 {
            let _ = writeln!(
                self.text,
                "{overlong} phrases were left out because they are too long"
            );
        }
        self.add_value("left_out", *left_out);
        if *left_out > 0 {
            let line = "files were left out because of their names: --all counts them";
            let _ = writeln!(self.text, "{left_out} {line}");
        }
        self.skipped(skipped);
    }

    fn skipped(&mut self, skipped: &[Skipped]) {
        let list = skipped
            .iter()
            .map(|skipped| json!({"uri": skipped.uri, "reason": skipped.reason}));
        self.json.insert("skipped".to_owned(), list.collect());
        if skipped.is_empty() {
            return;
        }
        let _ = writeln!(self.text, "skipped {} files:", skipped.len());
        for Skipped { uri, reason, .. } in skipped.iter().take(MAX_SHOWN) {
            let _ = writeln!(self.text, "  {}: {}", line(uri), line(reason));
        }
        if skipped.len() > MAX_SHOWN {
            let _ = writeln!(self.text, "  and {} more", skipped.len() - MAX_SHOWN);
        }
    }

    #[cfg(test)]
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// Prints the result. A reader that closes the pipe early is not a failure.
    pub(crate) fn print(self, as_json: bool) -> Result<()> {
        let text = if as_json {
            format!("{}\n", Value::Object(self.json))
        } else {
            self.text
        };
        terminal::print(text).map_err(Error::Print)
    }
}
