//! Writes the trace format.

use keyspace::names::hex;
use keyspace::{ConflictKind, Isolation, KeySelector, MutationOp, TransactionOption, key_after};
use serde_json::{Value, json};

use super::{ATOMIC_NAMES, PLAIN_OPTIONS, Trace};
use crate::program::{Op, Outcome, Step, Text};

/// The shortest run of one byte at the end of a string that is written as a fill.
const FILL_BYTES: usize = 64;

pub(super) fn trace(trace: &Trace) -> Value {
    let init = trace.program.init.iter();
    let steps = trace.program.steps.iter().zip(&trace.answers.outcomes);
    json!({
        "id": trace.id,
        "init": init.map(|(key, value)| json!([bytes(key), bytes(value)])).collect::<Value>(),
        "ops": steps.map(|(step, outcome)| self::step(step, outcome)).collect::<Value>(),
        "final": rows(&trace.answers.last),
    })
}

fn step(step: &Step, outcome: &Outcome) -> Value {
    let (name, arguments) = op(&step.op);
    json!([
        step.transaction,
        name,
        arguments,
        self::outcome(&step.op, outcome)
    ])
}

pub(super) fn step_text(step: &Step) -> String {
    let (name, arguments) = op(&step.op);
    json!([step.transaction, name, arguments]).to_string()
}

fn op(op: &Op) -> (&'static str, Value) {
    match op {
        Op::Get { key, isolation } => (
            "get",
            json!({"key": bytes(key), "snapshot": snapshot(*isolation)}),
        ),
        Op::GetKey {
            selector,
            isolation,
        } => (
            "get_key",
            json!({"selector": self::selector(selector), "snapshot": snapshot(*isolation)}),
        ),
        Op::GetRange { query, isolation } => (
            "get_range",
            json!({
                "begin": selector(&query.begin),
                "end": selector(&query.end),
                "limit": query.limit,
                "reverse": query.reverse,
                "snapshot": snapshot(*isolation),
            }),
        ),
        Op::ReadVersion => ("get_read_version", json!({})),
        Op::ApproximateSize => ("approximate_size", json!({})),
        Op::SetReadVersion(version) => ("set_read_version", json!({"version": version})),
        Op::Set { key, value } => ("set", json!({"key": bytes(key), "value": bytes(value)})),
        Op::Clear { key } => ("clear", json!({"key": bytes(key)})),
        Op::ClearRange { begin, end } => (
            "clear_range",
            json!({"begin": bytes(begin), "end": bytes(end)}),
        ),
        Op::Atomic { op, key, param } => atomic(*op, bytes(key), bytes(param)),
        Op::AddConflict { kind, begin, end } => conflict(*kind, begin, end),
        Op::SetOption(option) => self::option(option),
        Op::Watch { key, id } => ("watch", json!({"key": bytes(key), "id": id})),
        Op::PollWatch { id, wait } => ("watch_poll", json!({"id": id, "ms": milliseconds(*wait)})),
        Op::Versionstamp => ("versionstamp", json!({})),
        Op::AwaitVersionstamp => ("versionstamp_read", json!({})),
        Op::Commit => ("commit", json!({})),
        Op::CommittedVersion => ("committed_version", json!({})),
        Op::OnError(code) => ("on_error", json!({"code": code.number()})),
        Op::Reset => ("reset", json!({})),
        Op::Cancel => ("cancel", json!({})),
        Op::Sleep(wait) => ("sleep", json!({"ms": milliseconds(*wait)})),
    }
}

fn atomic(op: MutationOp, key: Value, param: Value) -> (&'static str, Value) {
    match op {
        MutationOp::SetVersionstampedKey => (
            "set_versionstamped_key",
            json!({"key": key, "value": param}),
        ),
        MutationOp::SetVersionstampedValue => (
            "set_versionstamped_value",
            json!({"key": key, "value": param}),
        ),
        op => {
            let name = ATOMIC_NAMES.iter().find(|(_, known)| *known == op);
            let (name, _) = name.expect("every operation without a versionstamp has a name");
            ("atomic", json!({"op": name, "key": key, "param": param}))
        }
    }
}

fn conflict(kind: ConflictKind, begin: &[u8], end: &[u8]) -> (&'static str, Value) {
    let key = end == key_after(begin);
    let name = match (kind, key) {
        (ConflictKind::Read, true) => "add_read_conflict_key",
        (ConflictKind::Read, false) => "add_read_conflict_range",
        (ConflictKind::Write, true) => "add_write_conflict_key",
        (ConflictKind::Write, false) => "add_write_conflict_range",
    };
    let arguments = if key {
        json!({"key": bytes(begin)})
    } else {
        json!({"begin": bytes(begin), "end": bytes(end)})
    };
    (name, arguments)
}

fn option(option: &TransactionOption) -> (&'static str, Value) {
    let (name, value) = match option {
        TransactionOption::Timeout(wait) => ("timeout", json!(milliseconds(*wait))),
        TransactionOption::MaxRetryDelay(wait) => ("max_retry_delay", json!(milliseconds(*wait))),
        TransactionOption::SizeLimit(bytes) => ("size_limit", json!(bytes)),
        TransactionOption::RetryLimit(Some(limit)) => ("retry_limit", json!(limit)),
        TransactionOption::RetryLimit(None) => ("retry_limit", json!(-1)),
        plain => {
            let name = PLAIN_OPTIONS.iter().find(|(_, known)| known == plain);
            let (name, _) = name.expect("every option without a value has a name");
            return (name, json!({}));
        }
    };
    ("option", json!({"name": name, "value": value}))
}

fn outcome(op: &Op, outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Done => json!("ok"),
        Outcome::Value(value) => value.as_ref().map_or(Value::Null, text),
        Outcome::Key(key) => text(key),
        Outcome::Rows(rows) => self::rows(rows),
        Outcome::Version if *op == Op::ReadVersion => json!("ok"),
        Outcome::Version => json!("version"),
        Outcome::NoVersion => json!(-1),
        Outcome::Versionstamp => json!({"len": 10}),
        Outcome::Fired => json!("fired"),
        Outcome::Pending => json!("pending"),
        Outcome::Failed(code) => json!({"err": code.number()}),
    }
}

fn rows(rows: &[(Text, Text)]) -> Value {
    let rows = rows.iter();
    rows.map(|(key, value)| json!([text(key), text(value)]))
        .collect()
}

fn selector(selector: &KeySelector) -> Value {
    json!([bytes(&selector.key), selector.or_equal, selector.offset])
}

fn snapshot(isolation: Isolation) -> bool {
    isolation == Isolation::Snapshot
}

fn milliseconds(wait: std::time::Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

fn bytes(bytes: &[u8]) -> Value {
    if let Some(&last) = bytes.last() {
        let run = bytes.iter().rev().take_while(|byte| **byte == last).count();
        if run >= FILL_BYTES {
            let prefix = &bytes[..bytes.len() - run];
            return json!({"fill": [hex(prefix), hex(&[last]), run]});
        }
    }
    json!(hex(bytes))
}

fn text(text: &Text) -> Value {
    match text {
        Text::Whole(_) => json!(text.to_string()),
        Text::Long { len, tail } => json!({"len": len, "tail": hex(tail)}),
    }
}
