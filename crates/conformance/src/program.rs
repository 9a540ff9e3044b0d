//! Programs: the operations of a test, as data.
//!
//! A [`Program`] is a few initial rows and a list of [`Step`]s. Each step is one operation of one of
//! several interleaved transactions. Steps run strictly one after another, and each is awaited. A program
//! therefore has one answer on every store: a list of [`Outcome`]s and the rows at the end.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use keyspace::names::hex;
use keyspace::{
    Code, ConflictKind, Isolation, KeySelector, MutationOp, RangeQuery, TransactionOption,
    Versionstamp,
};

/// The range in which programs keep their rows: the keys from `t/` on.
pub const BEGIN: &[u8] = b"t/";

/// The end of the range in which programs keep their rows, exclusive.
pub const END: &[u8] = b"t0";

/// The rows and operations of a test.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    /// The rows the store holds when the first step runs.
    pub init: Vec<(Bytes, Bytes)>,
    /// The steps, in the order in which they run.
    pub steps: Vec<Step>,
}

/// One operation of one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The transaction's number. A number that appears for the first time begins a transaction.
    pub transaction: usize,
    /// The operation.
    pub op: Op,
}

/// An operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Reads a key.
    Get {
        /// The key.
        key: Bytes,
        /// Whether the read adds a conflict.
        isolation: Isolation,
    },
    /// Resolves a key selector.
    GetKey {
        /// The selector.
        selector: KeySelector,
        /// Whether the read adds a conflict.
        isolation: Isolation,
    },
    /// Reads a range to its end, batch after batch.
    GetRange {
        /// The range, its limit and its direction.
        query: RangeQuery,
        /// Whether the read adds a conflict.
        isolation: Isolation,
    },
    /// Obtains the read version.
    ReadVersion,
    /// Asks for the size of the transaction.
    ApproximateSize,
    /// Sets the read version.
    SetReadVersion(i64),
    /// Sets a key.
    Set {
        /// The key.
        key: Bytes,
        /// The value.
        value: Bytes,
    },
    /// Clears a key.
    Clear {
        /// The key.
        key: Bytes,
    },
    /// Clears a range.
    ClearRange {
        /// The first key.
        begin: Bytes,
        /// The end, exclusive.
        end: Bytes,
    },
    /// Stages an atomic operation.
    Atomic {
        /// The operation.
        op: MutationOp,
        /// The key, a template for `SetVersionstampedKey`.
        key: Bytes,
        /// The param, a template for `SetVersionstampedValue`.
        param: Bytes,
    },
    /// Adds a conflict range.
    AddConflict {
        /// Whether the range counts as read or as written.
        kind: ConflictKind,
        /// The first key.
        begin: Bytes,
        /// The end, exclusive.
        end: Bytes,
    },
    /// Sets an option.
    SetOption(TransactionOption),
    /// Watches a key.
    Watch {
        /// The key.
        key: Bytes,
        /// The watch's number.
        id: u64,
    },
    /// Asks whether a watch has fired.
    PollWatch {
        /// The watch's number.
        id: u64,
        /// How long to wait for it.
        wait: Duration,
    },
    /// Asks for the versionstamp of the coming commit.
    Versionstamp,
    /// Awaits the versionstamp that was asked for.
    AwaitVersionstamp,
    /// Commits.
    Commit,
    /// Returns the version of the last commit.
    CommittedVersion,
    /// Calls `on_error` with an error of this code.
    OnError(Code),
    /// Resets the transaction.
    Reset,
    /// Cancels the transaction.
    Cancel,
    /// Waits.
    Sleep(Duration),
}

impl Op {
    /// Returns whether the operation reads rows or writes, which it may do while others are under way.
    #[must_use]
    pub fn reads_or_writes(&self) -> bool {
        matches!(
            self,
            Self::Get { .. }
                | Self::GetKey { .. }
                | Self::GetRange { .. }
                | Self::Set { .. }
                | Self::Clear { .. }
                | Self::ClearRange { .. }
                | Self::Atomic { .. }
                | Self::AddConflict { .. }
        )
    }
}

impl Program {
    /// Returns the program with `prefix` before each of its keys.
    #[must_use]
    pub fn under(&self, prefix: &[u8]) -> Self {
        let rows = self.init.iter();
        let steps = self.steps.iter();
        Self {
            init: rows
                .map(|(key, value)| (prefixed(prefix, key), value.clone()))
                .collect(),
            steps: steps
                .map(|step| Step {
                    transaction: step.transaction,
                    op: step.op.under(prefix),
                })
                .collect(),
        }
    }
}

impl Op {
    fn under(&self, prefix: &[u8]) -> Self {
        let mut op = self.clone();
        match &mut op {
            Self::Get { key, .. }
            | Self::Set { key, .. }
            | Self::Clear { key }
            | Self::Watch { key, .. } => *key = prefixed(prefix, key),
            Self::Atomic { op, key, .. } => {
                *key = prefixed(prefix, key);
                if *op == MutationOp::SetVersionstampedKey {
                    *key = shifted(key, prefix.len());
                }
            }
            Self::GetKey { selector, .. } => selector.key = prefixed(prefix, &selector.key),
            Self::GetRange { query, .. } => {
                query.begin.key = prefixed(prefix, &query.begin.key);
                query.end.key = prefixed(prefix, &query.end.key);
            }
            Self::ClearRange { begin, end } | Self::AddConflict { begin, end, .. } => {
                *begin = prefixed(prefix, begin);
                *end = prefixed(prefix, end);
            }
            Self::ReadVersion
            | Self::ApproximateSize
            | Self::SetReadVersion(_)
            | Self::SetOption(_)
            | Self::PollWatch { .. }
            | Self::Versionstamp
            | Self::AwaitVersionstamp
            | Self::Commit
            | Self::CommittedVersion
            | Self::OnError(_)
            | Self::Reset
            | Self::Cancel
            | Self::Sleep(_) => {}
        }
        op
    }
}

pub(super) fn prefixed(prefix: &[u8], key: &[u8]) -> Bytes {
    [prefix, key].concat().into()
}

/// Shifts the offset of the versionstamp in a template, which is in its last four bytes.
fn shifted(template: &[u8], by: usize) -> Bytes {
    let Some((key, offset)) = template.split_last_chunk::<4>() else {
        return Bytes::copy_from_slice(template);
    };
    let by = u32::try_from(by).unwrap_or(u32::MAX);
    let offset = u32::from_le_bytes(*offset).wrapping_add(by);
    prefixed(key, &offset.to_le_bytes())
}

/// The answers of a program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answers {
    /// The answer of each step.
    pub outcomes: Vec<Outcome>,
    /// The rows at the end.
    pub last: Vec<(Text, Text)>,
}

/// The answer of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The operation succeeded and returns nothing.
    Done,
    /// The value of a key, or none.
    Value(Option<Text>),
    /// The key a selector resolved to.
    Key(Text),
    /// The rows of a range.
    Rows(Vec<(Text, Text)>),
    /// Some positive version.
    Version,
    /// No version: -1.
    NoVersion,
    /// Some versionstamp.
    Versionstamp,
    /// The watch has fired.
    Fired,
    /// The watch has not fired.
    Pending,
    /// The operation failed.
    Failed(Code),
}

/// Bytes in an outcome, stated so that they are equal whichever versions a store assigned.
///
/// A versionstamp of one of the program's commits is replaced by the number of its transaction.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Text {
    /// All of the bytes.
    Whole(Vec<TextPart>),
    /// More than [`Text::MAX_WHOLE_BYTES`] bytes, stated by their number and the last four of them.
    Long {
        /// The number of bytes.
        len: usize,
        /// The last four bytes.
        tail: [u8; 4],
    },
}

/// A piece of a [`Text`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum TextPart {
    /// Bytes as they are.
    Bytes(Vec<u8>),
    /// The ten bytes of the versionstamp of this transaction's commit.
    Stamp(usize),
}

impl Text {
    /// The length of the longest text that is stated as a whole.
    pub const MAX_WHOLE_BYTES: usize = 64;

    /// States `bytes`, given the versionstamps of the program's transactions.
    #[must_use]
    pub fn new(bytes: &[u8], stamps: &[(Versionstamp, usize)]) -> Self {
        if bytes.len() > Self::MAX_WHOLE_BYTES {
            let tail = *bytes.last_chunk().expect("more than 64 bytes hold four");
            let len = bytes.len();
            return Self::Long { len, tail };
        }
        let mut parts = Vec::new();
        let mut plain = Vec::new();
        let mut rest = bytes;
        while let Some((&first, after)) = rest.split_first() {
            let stamp = stamps
                .iter()
                .find(|(stamp, _)| rest.starts_with(stamp.as_bytes()));
            if let Some((stamp, transaction)) = stamp {
                if !plain.is_empty() {
                    parts.push(TextPart::Bytes(std::mem::take(&mut plain)));
                }
                parts.push(TextPart::Stamp(*transaction));
                rest = &rest[stamp.as_bytes().len()..];
            } else {
                plain.push(first);
                rest = after;
            }
        }
        if !plain.is_empty() {
            parts.push(TextPart::Bytes(plain));
        }
        Self::Whole(parts)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(parts) => {
                for part in parts {
                    match part {
                        TextPart::Bytes(bytes) => write!(f, "{}", hex(bytes))?,
                        TextPart::Stamp(transaction) => write!(f, "<S{transaction}>")?,
                    }
                }
                Ok(())
            }
            Self::Long { len, tail } => {
                write!(f, "({len} bytes, ..{:08x})", u32::from_be_bytes(*tail))
            }
        }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_the_stamps_it_holds() {
        let stamp = Versionstamp::new(77, 1);
        let mut bytes = b"ab".to_vec();
        bytes.extend_from_slice(stamp.as_bytes());
        bytes.push(0xff);
        assert_eq!(
            Text::new(&bytes, &[(Versionstamp::new(76, 0), 0), (stamp, 3)]).to_string(),
            "6162<S3>ff"
        );
        assert_eq!(
            Text::new(&bytes, &[]).to_string(),
            "6162000000000000004d0001ff"
        );
    }

    #[test]
    fn a_program_under_a_prefix_puts_its_versionstamps_behind_it() {
        let op = MutationOp::SetVersionstampedKey;
        let param = Bytes::new();
        let template = |key: &[u8], offset: u32| Op::Atomic {
            op,
            key: [key, &[0; 10], &offset.to_le_bytes()].concat().into(),
            param: param.clone(),
        };
        let program = |op| Program {
            init: vec![(BEGIN.into(), param.clone())],
            steps: vec![Step { transaction: 0, op }],
        };
        let under = program(template(b"t/", 2)).under(b"abc");
        assert_eq!(under.steps[0].op, template(b"abct/", 5));
        assert_eq!(under.init[0].0, &b"abct/"[..]);
        assert_eq!(program(Op::Commit).under(b"abc").steps[0].op, Op::Commit);
    }

    #[test]
    fn a_long_text_is_its_length_and_its_tail() {
        assert_eq!(
            Text::new(&[7; 65], &[]),
            Text::Long {
                len: 65,
                tail: [7; 4]
            }
        );
        assert!(matches!(Text::new(&[7; 64], &[]), Text::Whole(_)));
    }
}
