//! Reads the trace format, strictly.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use keyspace::{
    Code, ConflictKind, Isolation, KeySelector, MutationOp, RangeQuery, TransactionOption,
    key_after,
};
use serde_json::Value;

use super::{ATOMIC_NAMES, PLAIN_OPTIONS, Trace, TraceError};
use crate::program::{Answers, Op, Outcome, Program, Step, Text, TextPart};

/// The longest fill: twice the longest value of a store, so that a line cannot fill the memory.
const MAX_FILL_BYTES: usize = 200_000;

/// A content that the format does not define there.
struct Mismatch {
    place: String,
    expected: &'static str,
    found: String,
}

type Parsed<T> = Result<T, Mismatch>;

fn mismatch<T>(expected: &'static str, found: impl Display) -> Parsed<T> {
    let mut found = found.to_string();
    if let Some((end, _)) = found.char_indices().nth(60) {
        found.truncate(end);
        found.push_str("..");
    }
    Err(Mismatch {
        place: String::new(),
        expected,
        found,
    })
}

trait At {
    /// Adds the place of a mismatch, from the inside out.
    fn at(self, place: impl Display) -> Self;
}

impl<T> At for Parsed<T> {
    fn at(self, place: impl Display) -> Self {
        self.map_err(|mismatch| Mismatch {
            place: match mismatch.place.as_str() {
                "" => place.to_string(),
                inner => format!("{place}.{inner}"),
            },
            ..mismatch
        })
    }
}

pub(super) fn trace(text: &str, line: usize) -> Result<Trace, TraceError> {
    let value = serde_json::from_str(text).map_err(|cause| TraceError::Json { line, cause })?;
    whole(&value).map_err(|mismatch| TraceError::Unexpected {
        line,
        place: mismatch.place,
        expected: mismatch.expected,
        found: mismatch.found,
    })
}

fn whole(value: &Value) -> Parsed<Trace> {
    let mut fields = Fields::of(value).at("trace")?;
    let id = fields.take("id", string)?;
    let init = fields.take("init", |rows| list(rows, |row| pair(row, bytes)))?;
    let steps = fields.take("ops", |steps| list(steps, step))?;
    let last = fields.take("final", |rows| list(rows, |row| pair(row, text)))?;
    fields.end()?;
    let (steps, outcomes) = steps.into_iter().unzip();
    Ok(Trace {
        id: id.to_owned(),
        program: Program { init, steps },
        answers: Answers { outcomes, last },
    })
}

fn step(value: &Value) -> Parsed<(Step, Outcome)> {
    let Some([transaction, name, arguments, result]) = value.as_array().map(Vec::as_slice) else {
        return mismatch("[transaction, name, {arguments}, result]", value);
    };
    let transaction = number(transaction).at("transaction")?;
    let mut fields = Fields::of(arguments).at("arguments")?;
    let op = op(string(name).at("name")?, &mut fields)?;
    fields.end()?;
    let outcome = outcome(&op, result).at("result")?;
    Ok((Step { transaction, op }, outcome))
}

fn op(name: &str, fields: &mut Fields<'_>) -> Parsed<Op> {
    Ok(match name {
        "get" => Op::Get {
            key: fields.take("key", bytes)?,
            isolation: fields.take_or("snapshot", isolation, Isolation::Serializable)?,
        },
        "get_key" => Op::GetKey {
            selector: fields.take("selector", selector)?,
            isolation: fields.take("snapshot", isolation)?,
        },
        "get_range" => Op::GetRange {
            query: {
                let begin = fields.take("begin", selector)?;
                let end = fields.take("end", selector)?;
                let mut query = RangeQuery::selectors(begin, end);
                query.limit = fields.take("limit", number)?;
                query.reverse = fields.take("reverse", boolean)?;
                query
            },
            isolation: fields.take("snapshot", isolation)?,
        },
        // Versions differ from run to run. Both names mean the same: a positive version.
        "get_read_version" | "read_version_sign" => Op::ReadVersion,
        "approximate_size" => Op::ApproximateSize,
        "set_read_version" => Op::SetReadVersion(fields.take("version", number)?),
        "set" => Op::Set {
            key: fields.take("key", bytes)?,
            value: fields.take("value", bytes)?,
        },
        "clear" => Op::Clear {
            key: fields.take("key", bytes)?,
        },
        "clear_range" => Op::ClearRange {
            begin: fields.take("begin", bytes)?,
            end: fields.take("end", bytes)?,
        },
        "atomic" => Op::Atomic {
            op: fields.take("op", atomic)?,
            key: fields.take("key", bytes)?,
            param: fields.take("param", bytes)?,
        },
        "set_versionstamped_key" => parse_stamped(MutationOp::SetVersionstampedKey, fields)?,
        "set_versionstamped_value" => parse_stamped(MutationOp::SetVersionstampedValue, fields)?,
        "add_read_conflict_range" => conflict_range(ConflictKind::Read, fields)?,
        "add_write_conflict_range" => conflict_range(ConflictKind::Write, fields)?,
        "add_read_conflict_key" => conflict_key(ConflictKind::Read, fields)?,
        "add_write_conflict_key" => conflict_key(ConflictKind::Write, fields)?,
        "option" => Op::SetOption(option(fields)?),
        "watch" => Op::Watch {
            key: fields.take("key", bytes)?,
            id: fields.take("id", number)?,
        },
        "watch_poll" => Op::PollWatch {
            id: fields.take("id", number)?,
            wait: fields.take("ms", milliseconds)?,
        },
        "versionstamp" => Op::Versionstamp,
        "versionstamp_read" => Op::AwaitVersionstamp,
        "commit" => Op::Commit,
        "committed_version" => Op::CommittedVersion,
        "on_error" => Op::OnError(fields.take("code", code)?),
        "reset" => Op::Reset,
        "cancel" => Op::Cancel,
        "sleep" => Op::Sleep(fields.take("ms", milliseconds)?),
        name => match PLAIN_OPTIONS.iter().find(|(option, _)| *option == name) {
            Some((_, option)) => Op::SetOption(*option),
            None => return mismatch("the name of an operation", name).at("name"),
        },
    })
}

fn parse_stamped(op: MutationOp, fields: &mut Fields<'_>) -> Parsed<Op> {
    Ok(Op::Atomic {
        op,
        key: fields.take("key", bytes)?,
        param: fields.take("value", bytes)?,
    })
}

fn conflict_range(kind: ConflictKind, fields: &mut Fields<'_>) -> Parsed<Op> {
    Ok(Op::AddConflict {
        kind,
        begin: fields.take("begin", bytes)?,
        end: fields.take("end", bytes)?,
    })
}

fn conflict_key(kind: ConflictKind, fields: &mut Fields<'_>) -> Parsed<Op> {
    let begin = fields.take("key", bytes)?;
    let end = key_after(&begin).into();
    Ok(Op::AddConflict { kind, begin, end })
}

fn option(fields: &mut Fields<'_>) -> Parsed<TransactionOption> {
    Ok(match fields.take("name", string)? {
        "timeout" => TransactionOption::Timeout(fields.take("value", milliseconds)?),
        "max_retry_delay" => TransactionOption::MaxRetryDelay(fields.take("value", milliseconds)?),
        "size_limit" => TransactionOption::SizeLimit(fields.take("value", number)?),
        "retry_limit" => {
            TransactionOption::RetryLimit(fields.take("value", |value| match value.as_i64() {
                Some(-1) => Ok(None),
                _ => number(value).map(Some),
            })?)
        }
        name => return mismatch("the name of an option with a value", name).at("name"),
    })
}

fn outcome(op: &Op, result: &Value) -> Parsed<Outcome> {
    if result.get("err").is_some() {
        let mut fields = Fields::of(result)?;
        let code = fields.take("err", code)?;
        fields.end()?;
        return Ok(Outcome::Failed(code));
    }
    match op {
        Op::Get { .. } if result.is_null() => Ok(Outcome::Value(None)),
        Op::Get { .. } => Ok(Outcome::Value(Some(text(result)?))),
        Op::GetKey { .. } => Ok(Outcome::Key(text(result)?)),
        Op::GetRange { .. } => list(result, |row| pair(row, text)).map(Outcome::Rows),
        Op::ReadVersion => match result.as_str() {
            Some("ok") => Ok(Outcome::Version),
            None if result.as_i64() == Some(1) => Ok(Outcome::Version),
            _ => mismatch("\"ok\" or 1", result),
        },
        Op::CommittedVersion => match result.as_str() {
            Some("version") => Ok(Outcome::Version),
            None if result.as_i64() == Some(-1) => Ok(Outcome::NoVersion),
            _ => mismatch("\"version\" or -1", result),
        },
        Op::AwaitVersionstamp => {
            let mut fields = Fields::of(result)?;
            let len: usize = fields.take("len", number)?;
            fields.end()?;
            if len != 10 {
                return mismatch("{\"len\": 10}", result);
            }
            Ok(Outcome::Versionstamp)
        }
        Op::PollWatch { .. } => match result.as_str() {
            Some("fired") => Ok(Outcome::Fired),
            Some("pending") => Ok(Outcome::Pending),
            _ => mismatch("\"fired\", \"pending\" or {\"err\": code}", result),
        },
        _ if result == "ok" => Ok(Outcome::Done),
        _ => mismatch("\"ok\" or {\"err\": code}", result),
    }
}

/// The fields of an object, taken one by one.
struct Fields<'a>(BTreeMap<&'a str, &'a Value>);

impl<'a> Fields<'a> {
    fn of(value: &'a Value) -> Parsed<Self> {
        match value.as_object() {
            Some(object) => Ok(Self(
                object
                    .iter()
                    .map(|(name, value)| (name.as_str(), value))
                    .collect(),
            )),
            None => mismatch("an object", value),
        }
    }

    fn take<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&'a Value) -> Parsed<T>,
    ) -> Parsed<T> {
        match self.0.remove(name) {
            Some(value) => read(value).at(name),
            None => mismatch("a value", "missing").at(name),
        }
    }

    fn take_or<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&'a Value) -> Parsed<T>,
        default: T,
    ) -> Parsed<T> {
        match self.0.remove(name) {
            Some(value) => read(value).at(name),
            None => Ok(default),
        }
    }

    fn end(self) -> Parsed<()> {
        match self.0.first_key_value() {
            Some((name, value)) => mismatch("no field of that name", value).at(name),
            None => Ok(()),
        }
    }
}

fn list<'a, T>(value: &'a Value, read: impl Fn(&'a Value) -> Parsed<T>) -> Parsed<Vec<T>> {
    match value.as_array() {
        Some(items) => items
            .iter()
            .enumerate()
            .map(|(index, item)| read(item).at(index))
            .collect(),
        None => mismatch("a list", value),
    }
}

fn pair<'a, T>(value: &'a Value, read: impl Fn(&'a Value) -> Parsed<T>) -> Parsed<(T, T)> {
    match value.as_array().map(Vec::as_slice) {
        Some([key, value]) => Ok((read(key).at("key")?, read(value).at("value")?)),
        _ => mismatch("[key, value]", value),
    }
}

fn string(value: &Value) -> Parsed<&str> {
    match value.as_str() {
        Some(string) => Ok(string),
        None => mismatch("a string", value),
    }
}

fn boolean(value: &Value) -> Parsed<bool> {
    match value.as_bool() {
        Some(boolean) => Ok(boolean),
        None => mismatch("true or false", value),
    }
}

fn isolation(value: &Value) -> Parsed<Isolation> {
    Ok(if boolean(value)? {
        Isolation::Snapshot
    } else {
        Isolation::Serializable
    })
}

fn number<T: TryFrom<i64>>(value: &Value) -> Parsed<T> {
    match value.as_i64().map(T::try_from) {
        Some(Ok(number)) => Ok(number),
        _ => mismatch("a whole number in range", value),
    }
}

fn milliseconds(value: &Value) -> Parsed<Duration> {
    number(value).map(Duration::from_millis)
}

fn code(value: &Value) -> Parsed<Code> {
    number(value).map(Code::from_number)
}

fn atomic(value: &Value) -> Parsed<MutationOp> {
    let name = string(value)?;
    match ATOMIC_NAMES.iter().find(|(known, _)| *known == name) {
        Some((_, op)) => Ok(*op),
        None => mismatch("the name of an atomic operation", name),
    }
}

fn selector(value: &Value) -> Parsed<KeySelector> {
    let Some([key, or_equal, offset]) = value.as_array().map(Vec::as_slice) else {
        return mismatch("[key, or_equal, offset]", value);
    };
    Ok(KeySelector {
        key: bytes(key)?,
        or_equal: boolean(or_equal)?,
        offset: number(offset)?,
    })
}

fn bytes(value: &Value) -> Parsed<Bytes> {
    if value.is_object() {
        let mut fields = Fields::of(value)?;
        let filled = fields.take("fill", fill)?;
        fields.end()?;
        return Ok(filled);
    }
    match value.as_str().and_then(unhex) {
        Some(bytes) => Ok(bytes.into()),
        None => mismatch("lower-case hex or {\"fill\": [prefix, byte, count]}", value),
    }
}

fn fill(value: &Value) -> Parsed<Bytes> {
    const EXPECTED: &str = "[prefix, byte, count], up to 200,000 bytes";
    let Some([prefix, byte, count]) = value.as_array().map(Vec::as_slice) else {
        return mismatch(EXPECTED, value);
    };
    let prefix = prefix.as_str().and_then(unhex);
    let byte = byte.as_str().and_then(unhex);
    let count = count.as_u64().and_then(|count| usize::try_from(count).ok());
    match (prefix, byte.as_deref(), count) {
        (Some(mut filled), Some([byte]), Some(count)) if count <= MAX_FILL_BYTES => {
            filled.resize(filled.len() + count, *byte);
            Ok(filled.into())
        }
        _ => mismatch(EXPECTED, value),
    }
}

fn text(value: &Value) -> Parsed<Text> {
    const EXPECTED: &str = "lower-case hex with <Sn>, or {\"len\", \"tail\"} of over 64 bytes";
    if value.is_object() {
        let mut fields = Fields::of(value)?;
        let len = fields.take("len", number)?;
        let tail = fields.take("tail", |tail| match tail.as_str().and_then(unhex) {
            Some(bytes) => <[u8; 4]>::try_from(bytes).or_else(|_| mismatch("four bytes", tail)),
            None => mismatch("four bytes", tail),
        })?;
        fields.end()?;
        if len <= Text::MAX_WHOLE_BYTES {
            return mismatch(EXPECTED, value);
        }
        return Ok(Text::Long { len, tail });
    }
    match value.as_str().and_then(parts) {
        Some(parts) => Ok(Text::Whole(parts)),
        None => mismatch(EXPECTED, value),
    }
}

fn parts(mut rest: &str) -> Option<Vec<TextPart>> {
    let mut parts = Vec::new();
    let mut len = 0;
    while !rest.is_empty() {
        if let Some(stamp) = rest.strip_prefix("<S") {
            let (number, after) = stamp.split_once('>')?;
            if !number.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            parts.push(TextPart::Stamp(number.parse().ok()?));
            len += 10;
            rest = after;
        } else {
            let (hex, after) = rest.split_at(rest.find('<').unwrap_or(rest.len()));
            let bytes = unhex(hex).filter(|bytes| !bytes.is_empty())?;
            len += bytes.len();
            parts.push(TextPart::Bytes(bytes));
            rest = after;
        }
    }
    if len > Text::MAX_WHOLE_BYTES {
        return None;
    }
    Some(parts)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs
        .iter()
        .map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?))
        .collect()
}
