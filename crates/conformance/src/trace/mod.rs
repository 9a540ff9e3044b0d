//! Traces: programs with FoundationDB's answers, one JSON object per line.
//!
//! ```text
//! {"id": "..", "init": [[key, value]..], "ops": [[transaction, name, {arguments}, result]..],
//!  "final": [[key, value]..]}
//! ```
//!
//! - Keys, values and params are lower-case hex, or `{"fill": [prefix, byte, count]}`: a prefix followed by
//!   `count` copies of a byte.
//! - In results, `<Sn>` inside the hex is the versionstamp of transaction n's commit. `{"len", "tail"}`
//!   states a long string by its length and its last four bytes.
//! - A result is `null`, hex, rows, `"ok"`, a number or `{"err": code}`, depending on the operation.
//!
//! Parsing is strict: any content that the format does not define is an error, which states the place and
//! the expected content. Writing a trace and reading it again gives the same trace.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use keyspace::{MutationOp, TransactionOption};

use super::program::{Answers, Program, Step};

mod read;
mod write;

/// The names of the atomic operations that carry no versionstamp.
const ATOMIC_NAMES: [(&str, MutationOp); 10] = [
    ("add", MutationOp::Add),
    ("bit_and", MutationOp::BitAnd),
    ("bit_or", MutationOp::BitOr),
    ("bit_xor", MutationOp::BitXor),
    ("append_if_fits", MutationOp::AppendIfFits),
    ("max", MutationOp::Max),
    ("min", MutationOp::Min),
    ("byte_min", MutationOp::ByteMin),
    ("byte_max", MutationOp::ByteMax),
    ("compare_and_clear", MutationOp::CompareAndClear),
];

/// The names of the options that take no value. They are operations of their own.
const PLAIN_OPTIONS: [(&str, TransactionOption); 5] = [
    ("snapshot_ryw_enable", TransactionOption::SnapshotRywEnable),
    (
        "snapshot_ryw_disable",
        TransactionOption::SnapshotRywDisable,
    ),
    (
        "next_write_no_write_conflict_range",
        TransactionOption::NextWriteNoWriteConflictRange,
    ),
    ("bypass_unreadable", TransactionOption::BypassUnreadable),
    ("causal_write_risky", TransactionOption::CausalWriteRisky),
];

/// A program and its expected answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The program's name.
    pub id: String,
    /// The program.
    pub program: Program,
    /// The answers.
    pub answers: Answers,
}

/// The reason why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        cause: io::Error,
    },
    /// A line is not JSON.
    #[error("line {line} is not a json object")]
    Json {
        /// The number of the line, from 1.
        line: usize,
        /// The error of the parser.
        #[source]
        cause: serde_json::Error,
    },
    /// A line is JSON but not a trace.
    #[error("line {line}: {place} is {found}, expected {expected}")]
    Unexpected {
        /// The number of the line, from 1.
        line: usize,
        /// The place in the line: a field, or the number of a step.
        place: String,
        /// The expected content.
        expected: &'static str,
        /// The content found.
        found: String,
    },
}

impl Trace {
    /// Reads the trace on one line of a file; `line` is its number, for errors.
    ///
    /// # Errors
    /// [`TraceError::Json`] and [`TraceError::Unexpected`].
    pub fn parse(text: &str, line: usize) -> Result<Self, TraceError> {
        read::trace(text, line)
    }

    /// Writes the trace as one line, without a line break.
    ///
    /// If there are several ways to write the same content, it chooses the shortest. The line may therefore
    /// differ from the one that was read.
    #[must_use]
    pub fn to_line(&self) -> String {
        write::trace(self).to_string()
    }

    /// Reads all traces of a file, gzipped if its name ends in `.gz`. Empty lines are skipped.
    ///
    /// # Errors
    /// [`TraceError`] for the first line that is not a trace.
    pub fn read_file(path: &Path) -> Result<Vec<Self>, TraceError> {
        let text = read_text(path).map_err(|cause| TraceError::Read {
            path: path.to_owned(),
            cause,
        })?;
        let lines = text.lines().enumerate();
        lines
            .filter(|(_, text)| !text.trim().is_empty())
            .map(|(index, text)| Self::parse(text, index + 1))
            .collect()
    }
}

/// Writes a step as a trace does, but without its result.
pub(super) fn step_text(step: &Step) -> String {
    write::step_text(step)
}

fn read_text(path: &Path) -> io::Result<String> {
    let file = fs::File::open(path)?;
    let mut text = String::new();
    if path.extension().is_some_and(|extension| extension == "gz") {
        GzDecoder::new(file).read_to_string(&mut text)?;
    } else {
        io::BufReader::new(file).read_to_string(&mut text)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trace with one step.
    fn line(step: &str) -> String {
        format!(r#"{{"id":"x","init":[],"ops":[{step}],"final":[]}}"#)
    }

    #[test]
    fn content_outside_the_format_is_an_error_that_says_where() {
        let cases = [
            ("{}", "id is missing, expected a value"),
            (
                r#"{"id":1,"init":[],"ops":[],"final":[]}"#,
                "id is 1, expected a string",
            ),
            (
                r#"{"id":"x","init":[],"ops":[],"final":[],"more":0}"#,
                "more is 0",
            ),
            (
                r#"{"id":"x","init":[["1"]],"ops":[],"final":[]}"#,
                "init.0 is [\"1\"]",
            ),
            (
                r#"{"id":"x","init":[["AA","00"]],"ops":[],"final":[]}"#,
                "init.0.key is \"AA\"",
            ),
            (
                &line("[]"),
                "ops.0 is [], expected [transaction, name, {arguments}, result]",
            ),
            (&line(r#"[-1,"commit",{},"ok"]"#), "ops.0.transaction is -1"),
            (&line(r#"[0,"drop",{},"ok"]"#), "ops.0.name is drop"),
            (
                &line(r#"[0,"commit",{"x":1},"ok"]"#),
                "ops.0.x is 1, expected no field",
            ),
            (
                &line(r#"[0,"commit",{},"fine"]"#),
                "ops.0.result is \"fine\"",
            ),
            (
                &line(r#"[0,"commit",{},{"err":"x"}]"#),
                "ops.0.result.err is \"x\"",
            ),
            (&line(r#"[0,"get",{"key":"0"},null]"#), "ops.0.key is \"0\""),
            (
                &line(r#"[0,"get",{"key":"00"},"<S>"]"#),
                "ops.0.result is \"<S>\"",
            ),
            (
                &line(r#"[0,"get",{"key":"00"},"<x"]"#),
                "ops.0.result is \"<x\"",
            ),
            (
                &line(r#"[0,"get",{"key":{"fill":["","00",200001]}},null]"#),
                "ops.0.key.fill is [\"\",\"00\",200001]",
            ),
            (
                &line(r#"[0,"get",{"key":"00"},{"len":64,"tail":"00000000"}]"#),
                "ops.0.result is {\"len\":64,\"tail\":\"00000000\"}",
            ),
            (
                &line(r#"[0,"option",{"name":"warp","value":1},"ok"]"#),
                "ops.0.name is warp",
            ),
            (
                &line(r#"[0,"atomic",{"op":"div","key":"","param":""},"ok"]"#),
                "ops.0.op is div",
            ),
        ];
        for (text, expected) in cases {
            let error = Trace::parse(text, 7).unwrap_err().to_string();
            assert!(error.starts_with("line 7: "), "{text}: {error}");
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_line_that_is_not_json_is_an_error() {
        let error = Trace::parse("{", 3).unwrap_err();
        assert!(matches!(error, TraceError::Json { line: 3, .. }), "{error}");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Trace::read_file(Path::new("no/such/file")).unwrap_err();
        assert_eq!(error.to_string(), "no/such/file cannot be read");
    }

    #[test]
    fn fills_and_stamps_are_written_as_they_are_read() {
        let filled = line(
            r#"[0,"set",{"key":{"fill":["742f","6b",9998]},"value":"01"},"ok"],[0,"get",{"key":"742f","snapshot":true},"742f<S0>0001"]"#,
        );
        assert_eq!(Trace::parse(&filled, 1).unwrap().to_line(), sorted(&filled));
    }

    /// The same JSON with its fields in the order in which they are written.
    fn sorted(text: &str) -> String {
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        value.to_string()
    }
}
