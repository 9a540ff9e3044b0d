//! The bytes of a record: a list of fields, and the payload.

use std::sync::Arc;

use microqueue::keyspace::codec::{Codec, DecodeError};
use microqueue::keyspace::record::Fields;
use microqueue::keyspace::{self, Bytes, Result};

use super::{
    Burst, Checkpoint, End, FORMAT, Limits, MAX_DEDUPE_BYTES, MAX_FAILURE_BYTES, MAX_GROUP_BYTES,
    MAX_RESULT_BYTES, MAX_TRACE_CONTEXT_BYTES, Progress, Record, Reserve, Spent, StoredEnd,
    StoredFailure, Token, priority, tag, undecodable,
};
use crate::items::batch::{BatchMember, CallbackOf};
use crate::items::kind::Kind;
use crate::items::priority::Priority;

/// The codec of [`Record`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RecordCodec;

impl Codec<Record> for RecordCodec {
    const NAME: &'static str = "a record";

    fn encode(&self, record: &Record, buffer: &mut Vec<u8>) -> keyspace::Result<()> {
        /// Room for the format and the fields of most records, but for the payload.
        const USUAL_FIELDS_BYTES: usize = 64;
        buffer.reserve(USUAL_FIELDS_BYTES + record.payload.len());
        buffer.push(FORMAT);
        for (tag, number) in [
            (tag::ENQUEUED, record.enqueued_millis),
            (tag::DELIVERIES, record.deliveries),
            (tag::ATTEMPTS, record.attempts),
            (tag::DEATHS, record.deaths),
        ] {
            push_number(buffer, tag, number);
        }
        if let Some(StoredFailure { millis, text }) = &record.failure {
            let bytes = [&millis.to_be_bytes(), text.as_bytes()].concat();
            push_field(buffer, tag::FAILURE, &bytes);
        }
        if record.limits != Limits::default() {
            push_field(buffer, tag::LIMITS, &record.limits.to_bytes());
        }
        push_field(buffer, tag::DEDUPE, &record.dedupe);
        if let Some(token) = record.token {
            push_field(buffer, tag::TOKEN, &token.to_bytes());
        }
        push_number(buffer, tag::CANCELLED, record.cancelled_millis);
        if let Some(end) = &record.end {
            let times = [end.millis.to_be_bytes(), end.until_millis.to_be_bytes()].concat();
            let bytes = [&times, &[end.how as u8][..], &end.result].concat();
            push_field(buffer, tag::DONE, &bytes);
        }
        let trace_context = record.trace_context.as_deref().unwrap_or_default();
        push_field(buffer, tag::TRACE_CONTEXT, trace_context.as_bytes());
        push_number(buffer, tag::GRANTED, record.granted_millis);
        push_number(buffer, tag::READY, record.ready_millis);
        if let Some(burst) = record.burst {
            let numbers = [burst.began_millis, burst.deliveries];
            push_field(buffer, tag::BURST, &numbers.map(u64::to_be_bytes).concat());
        }
        push_number(buffer, tag::UNCOUNTED, record.uncounted_deliveries);
        push_number(buffer, tag::RESERVE, record.reserve as u64);
        push_priority(buffer, tag::PRIORITY, record.priority);
        push_field(buffer, tag::GROUP, &record.group);
        push_number(buffer, tag::SLOT, record.has_slot.into());
        if let Some(member) = record.member {
            push_field(buffer, tag::MEMBER, &member.to_bytes());
        }
        if let Some(of) = record.callback_of {
            push_field(buffer, tag::CALLBACK, &of.to_bytes());
        }
        if let Some(spent) = record.spent {
            push_field(buffer, tag::SPENT, &spent.to_bytes());
        }
        push_field(buffer, tag::KIND, record.kind.field());
        push_field(buffer, tag::CHECKPOINT, &record.checkpoint.to_bytes());
        if let Some(progress) = &record.progress {
            push_field(buffer, tag::PROGRESS, &progress.to_bytes());
        }
        buffer.extend_from_slice(&record.unknown);
        buffer.push(tag::END);
        buffer.extend_from_slice(&record.payload);
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<Record, DecodeError> {
        decode_record(&bytes).map_err(|reason| undecodable(Self::NAME, reason))
    }
}

/// Appends a number without leading zeros, unless it is zero.
fn push_number(buffer: &mut Vec<u8>, tag: u8, number: u64) {
    let bytes = number.to_be_bytes();
    push_field(buffer, tag, &bytes[number.leading_zeros() as usize / 8..]);
}

/// Appends a field, unless it is empty.
pub(crate) fn push_field(buffer: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        let length = u16::try_from(bytes.len()).expect("fields are shorter by far");
        buffer.push(tag);
        buffer.extend_from_slice(&length.to_be_bytes());
        buffer.extend_from_slice(bytes);
    }
}

/// Appends the rank of a priority, unless it is the default.
pub(crate) fn push_priority(buffer: &mut Vec<u8>, tag: u8, priority: Priority) {
    if priority != Priority::DEFAULT {
        push_field(buffer, tag, &[priority.rank()]);
    }
}

/// What follows the fields of a record that this version knows.
pub(crate) struct Rest {
    /// Fields of later versions, as stored.
    pub(crate) unknown: Bytes,
    pub(crate) payload: Bytes,
}

/// Reads a record: its format, its fields in ascending order of their tags, and the payload. Calls `decode` with each
/// field whose tag is at most `newest`.
///
/// # Errors
/// What is wrong with the record, or the error of `decode`.
pub(crate) fn decode_fields<'a>(
    bytes: &'a Bytes,
    format: u8,
    newest: u8,
    mut decode: impl FnMut(u8, &'a [u8]) -> Result<(), String>,
) -> Result<Rest, String> {
    let mut fields = Fields::new(bytes);
    fields.format(format)?;
    let mut last = tag::END;
    let mut unknown_from = None;
    loop {
        let begin = bytes.len() - fields.rest().len();
        let [tag] = fields.array()?;
        if tag == tag::END {
            return Ok(Rest {
                unknown: bytes.slice(unknown_from.unwrap_or(begin)..begin),
                payload: bytes.slice_ref(fields.rest()),
            });
        }
        if tag <= last {
            return Err(format!("field {tag} comes after field {last}"));
        }
        last = tag;
        let length = u16::from_be_bytes(fields.array()?);
        let field = fields.take(length.into())?;
        if field.is_empty() {
            return Err(format!("field {tag} is empty"));
        }
        if tag > newest {
            unknown_from.get_or_insert(begin);
        } else {
            decode(tag, field)?;
        }
    }
}

fn decode_record(bytes: &Bytes) -> Result<Record, String> {
    let mut record = Record::default();
    let decode = |tag, field: &[u8]| decode_field(&mut record, tag, field, bytes);
    let rest = decode_fields(bytes, FORMAT, tag::PROGRESS, decode)?;
    if record.has_slot && record.group.is_empty() {
        return Err("an item without a group has a slot".to_owned());
    }
    record.unknown = rest.unknown;
    record.payload = rest.payload;
    Ok(record)
}

fn decode_field(record: &mut Record, tag: u8, field: &[u8], bytes: &Bytes) -> Result<(), String> {
    match tag {
        tag::ENQUEUED => record.enqueued_millis = number(field)?,
        tag::DELIVERIES => record.deliveries = number(field)?,
        tag::ATTEMPTS => record.attempts = number(field)?,
        tag::DEATHS => record.deaths = number(field)?,
        tag::FAILURE => record.failure = Some(failure(field)?),
        tag::LIMITS => record.limits = Limits::parse(field)?,
        tag::DEDUPE => record.dedupe = dedupe(bytes.slice_ref(field))?,
        tag::TOKEN => record.token = Some(token(field)?),
        tag::CANCELLED => record.cancelled_millis = number(field)?,
        tag::DONE => record.end = Some(stored_end(bytes.slice_ref(field))?),
        tag::TRACE_CONTEXT => record.trace_context = Some(trace_context(field)?),
        tag::GRANTED => record.granted_millis = number(field)?,
        tag::READY => record.ready_millis = number(field)?,
        tag::BURST => record.burst = Some(burst(field)?),
        tag::UNCOUNTED => record.uncounted_deliveries = number(field)?,
        tag::RESERVE => record.reserve = reserve(field)?,
        tag::PRIORITY => record.priority = priority_field(field)?,
        tag::GROUP => record.group = group(bytes.slice_ref(field))?,
        tag::SLOT => record.has_slot = slot(field)?,
        tag::MEMBER => record.member = Some(BatchMember::parse(field)?),
        tag::CALLBACK => record.callback_of = Some(CallbackOf::parse(field)?),
        tag::SPENT => record.spent = Some(Spent::parse(field)?),
        tag::KIND => record.kind = Kind::parse(field)?,
        tag::CHECKPOINT => record.checkpoint = Checkpoint::parse(bytes.slice_ref(field))?,
        tag::PROGRESS => record.progress = Some(Box::new(Progress::parse(field)?)),
        _ => return Err(format!("field {tag} is unknown")),
    }
    Ok(())
}

/// Checks the length of a dedupe id.
pub(crate) fn dedupe(field: Bytes) -> Result<Bytes, String> {
    if field.len() > MAX_DEDUPE_BYTES {
        return Err(format!("a dedupe id of {} bytes", field.len()));
    }
    Ok(field)
}

/// Checks the length of the name of a group.
pub(crate) fn group(field: Bytes) -> Result<Bytes, String> {
    if field.len() > MAX_GROUP_BYTES {
        return Err(format!("a group name of {} bytes", field.len()));
    }
    Ok(field)
}

fn slot(field: &[u8]) -> Result<bool, String> {
    match number(field)? {
        1 => Ok(true),
        other => Err(format!("{other} says nothing of a slot")),
    }
}

fn token(field: &[u8]) -> Result<Token, String> {
    let mut fields = Fields::new(field);
    let token = Token::parse(&mut fields)?;
    fields.end()?;
    Ok(token)
}

fn burst(field: &[u8]) -> Result<Burst, String> {
    let mut fields = Fields::new(field);
    let burst = Burst {
        began_millis: fields.u64()?,
        deliveries: fields.u64()?,
    };
    fields.end()?;
    Ok(burst)
}

fn reserve(field: &[u8]) -> Result<Reserve, String> {
    match number(field)? {
        1 => Ok(Reserve::In),
        2 => Ok(Reserve::Barred),
        other => Err(format!("{other} says nothing of a reserve")),
    }
}

/// Reads a priority that is not the default.
pub(crate) fn priority_field(field: &[u8]) -> Result<Priority, String> {
    let mut fields = Fields::new(field);
    let priority = priority(fields.array()?)?;
    fields.end()?;
    if priority == Priority::DEFAULT {
        return Err("expected another priority than the default".to_owned());
    }
    Ok(priority)
}

/// Reads a number without leading zeros.
fn number(field: &[u8]) -> Result<u64, String> {
    let mut bytes = [0; 8];
    match bytes.len().checked_sub(field.len()) {
        Some(zeros) if field[0] != 0 => bytes[zeros..].copy_from_slice(field),
        _ => return Err("expected a number of 1 to 8 bytes without leading zeros".to_owned()),
    }
    Ok(u64::from_be_bytes(bytes))
}

fn failure(field: &[u8]) -> Result<StoredFailure, String> {
    let mut fields = Fields::new(field);
    let millis = fields.u64()?;
    let text = text("a failure", fields.rest(), MAX_FAILURE_BYTES)?;
    Ok(StoredFailure { millis, text })
}

/// Its form is not checked, so that a malformed trace context does not keep an item from being handled.
fn trace_context(field: &[u8]) -> Result<Arc<str>, String> {
    text("a trace context", field, MAX_TRACE_CONTEXT_BYTES)
}

/// Reads a text of limited length.
fn text(what: &str, bytes: &[u8], limit: usize) -> Result<Arc<str>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    if text.len() > limit {
        Err(format!("{what} of {} bytes", text.len()))
    } else {
        Ok(text.into())
    }
}

fn stored_end(field: Bytes) -> Result<StoredEnd, String> {
    let mut fields = Fields::new(&field);
    let millis = fields.u64()?;
    let until_millis = fields.u64()?;
    let [how] = fields.array()?;
    let how = [End::Completed, End::Cancelled, End::Removed]
        .into_iter()
        .find(|end| *end as u8 == how)
        .ok_or_else(|| format!("end {how} is unknown"))?;
    let result = field.slice_ref(fields.rest());
    if result.len() > MAX_RESULT_BYTES {
        Err(format!("a result of {} bytes", result.len()))
    } else {
        Ok(StoredEnd {
            millis,
            until_millis,
            how,
            result,
        })
    }
}
