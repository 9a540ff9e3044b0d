//! What the queue stores under its keys. The [schema](crate::keys) has the bytes.

use std::sync::Arc;
use std::time::SystemTime;

use microqueue::keyspace::codec::{Codec, DecodeError};
use microqueue::keyspace::record::{self, Fields};
use microqueue::keyspace::{self, Bytes, Result, Versionstamp, limits};
use microqueue::{Item, ItemId};

use crate::session::SessionId;
use crate::wall::unix_time;

/// The format number of all records.
const FORMAT: u8 = 1;

/// What a grant adds to the record of an item.
const PART_BYTES: usize = 23;

/// The longest dedupe id.
pub const MAX_DEDUPE_BYTES: usize = 255;

/// The longest text of a [`Failure`].
pub const MAX_FAILURE_BYTES: usize = 500;

/// The longest result of an item: larger ones belong to rows of the application's own.
pub const MAX_RESULT_BYTES: usize = 4_096;

/// The longest trace context: traceparent, newline and tracestate.
pub(crate) const MAX_TRACE_CONTEXT_BYTES: usize = 512;

/// How many bytes a token has.
pub(crate) const TOKEN_BYTES: usize = 16;

/// How many bytes a field has beside its own: its tag and its length.
const FIELD_BYTES: usize = 3;

/// How many bytes of a record are kept free for fields of versions to come.
const MAX_UNKNOWN_BYTES: usize = 1024;

/// The largest envelope: what a record has beside its payload.
const MAX_ENVELOPE_BYTES: usize = 2
    + 5 * (FIELD_BYTES + 8)
    + (FIELD_BYTES + 8 + MAX_FAILURE_BYTES)
    + (FIELD_BYTES + Limits::BYTES)
    + (FIELD_BYTES + MAX_DEDUPE_BYTES)
    + (FIELD_BYTES + TOKEN_BYTES)
    + (FIELD_BYTES + 17 + MAX_RESULT_BYTES)
    + (FIELD_BYTES + MAX_TRACE_CONTEXT_BYTES)
    + MAX_UNKNOWN_BYTES;

/// The largest payload: what a value may have, without what a grant adds to a record and without the
/// largest envelope. So an item that fails, dies and waits fits every place that it may come to, also with
/// the fields of versions to come.
pub const MAX_PAYLOAD_BYTES: usize = limits::VALUE_BYTES - PART_BYTES - MAX_ENVELOPE_BYTES;

/// The tags of the fields of a record.
mod tag {
    pub(super) const END: u8 = 0;
    pub(super) const ENQUEUED: u8 = 1;
    pub(super) const DELIVERIES: u8 = 2;
    pub(super) const ATTEMPTS: u8 = 3;
    pub(super) const DEATHS: u8 = 4;
    pub(super) const FAILURE: u8 = 5;
    pub(super) const LIMITS: u8 = 6;
    pub(super) const DEDUPE: u8 = 7;
    pub(super) const TOKEN: u8 = 8;
    pub(super) const CANCELLED: u8 = 9;
    pub(super) const DONE: u8 = 10;
    pub(super) const TRACE_CONTEXT: u8 = 11;
}

/// An item wherever it is: queued, delayed, held or dead.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Record {
    /// When it was enqueued first, by the wall clock.
    pub(crate) enqueued_millis: u64,
    /// How often it was granted. A delivery is known by this number.
    pub(crate) deliveries: u64,
    /// How often it has failed since it was enqueued or redriven.
    pub(crate) attempts: u64,
    /// How many sessions have died with it since then.
    pub(crate) deaths: u64,
    /// Why it failed, went back, or became a dead letter last.
    pub(crate) failure: Option<StoredFailure>,
    /// What it may cost, where that differs from the queue's settings.
    pub(crate) limits: Limits,
    /// Empty for none.
    pub(crate) dedupe: Bytes,
    /// Tells the item from others that have had the same dedupe id.
    pub(crate) token: Option<[u8; TOKEN_BYTES]>,
    /// When it was cancelled while a session held it. Zero: it was not.
    pub(crate) cancelled_millis: u64,
    /// What came of it, if it is done.
    pub(crate) end: Option<StoredEnd>,
    /// The trace context of what enqueued it, as it is stored: its form is not checked.
    pub(crate) trace_context: Option<Arc<str>>,
    /// Fields of versions to come, as they are stored. No other module can name it, so that a record keeps it
    /// wherever it goes.
    unknown: Bytes,
    pub(crate) payload: Bytes,
}

/// Why an item failed, went back, or became a dead letter last.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// When, by the wall clock of the process that found it.
    pub time: SystemTime,
    /// Why: the error of a handler with its causes, or what has happened to the delivery, up to 500 bytes.
    pub reason: String,
}

impl From<&StoredFailure> for Failure {
    fn from(failure: &StoredFailure) -> Self {
        Self {
            time: unix_time(failure.millis),
            reason: failure.text.as_ref().to_owned(),
        }
    }
}

/// A failure as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredFailure {
    pub(crate) millis: u64,
    pub(crate) text: Arc<str>,
}

impl StoredFailure {
    /// Returns a failure at a wall time. Of a long text the beginning is kept.
    pub(crate) fn new(millis: u64, text: &str) -> Self {
        let mut end = text.len().min(MAX_FAILURE_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = text[..end].into();
        Self { millis, text }
    }
}

/// How an item left the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// It was acknowledged, completed or popped.
    Completed,
    /// It was [cancelled](crate::HighContentionQueue::cancel).
    Cancelled,
    /// It was a dead letter that was [purged](crate::HighContentionQueue::purge), or its queue was
    /// [cleared](crate::HighContentionQueue::clear).
    Removed,
}

/// The end of an item as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredEnd {
    pub(crate) millis: u64,
    /// Until when the item is kept.
    pub(crate) until_millis: u64,
    pub(crate) how: End,
    pub(crate) result: Bytes,
}

/// What an item may cost, where that differs from the queue's settings. Zero: as in the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Limits {
    pub(crate) attempts: u32,
    pub(crate) deaths: u32,
    pub(crate) deliveries: u32,
}

impl Limits {
    const BYTES: usize = 12;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let limits = [self.attempts, self.deaths, self.deliveries];
        for (part, limit) in bytes.chunks_mut(4).zip(limits) {
            part.copy_from_slice(&limit.to_be_bytes());
        }
        bytes
    }
}

impl Record {
    /// Returns the record of an item that has never been granted.
    pub(crate) fn new(enqueued_millis: u64, payload: Bytes) -> Self {
        Self {
            enqueued_millis,
            payload,
            ..Self::default()
        }
    }

    /// Forgets what the item has cost, but for the number by which a delivery is known.
    pub(crate) fn begin_anew(&mut self) {
        (self.attempts, self.deaths) = (0, 0);
    }
}

/// The codec of [`Record`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RecordCodec;

impl Codec<Record> for RecordCodec {
    const NAME: &'static str = "a record";

    fn encode(&self, record: &Record, buffer: &mut Vec<u8>) -> keyspace::Result<()> {
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
        push_field(
            buffer,
            tag::TOKEN,
            record.token.as_ref().map_or(&[], |token| token),
        );
        push_number(buffer, tag::CANCELLED, record.cancelled_millis);
        if let Some(end) = &record.end {
            let times = [end.millis.to_be_bytes(), end.until_millis.to_be_bytes()].concat();
            let bytes = [&times, &[end.how as u8][..], &end.result].concat();
            push_field(buffer, tag::DONE, &bytes);
        }
        let trace_context = record.trace_context.as_deref().unwrap_or_default();
        push_field(buffer, tag::TRACE_CONTEXT, trace_context.as_bytes());
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
fn push_field(buffer: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        let length = u16::try_from(bytes.len()).expect("fields are shorter by far");
        buffer.push(tag);
        buffer.extend_from_slice(&length.to_be_bytes());
        buffer.extend_from_slice(bytes);
    }
}

fn decode_record(bytes: &Bytes) -> Result<Record, String> {
    let mut fields = Fields::new(bytes);
    fields.format(FORMAT)?;
    let mut record = Record::default();
    let (mut last, mut unknown_from) = (tag::END, None);
    loop {
        let begin = fields.rest();
        let [tag] = fields.array()?;
        if tag == tag::END {
            if let Some(from) = unknown_from {
                record.unknown = bytes.slice(from..bytes.len() - begin.len());
            }
            record.payload = bytes.slice_ref(fields.rest());
            return Ok(record);
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
        match tag {
            tag::ENQUEUED => record.enqueued_millis = number(field)?,
            tag::DELIVERIES => record.deliveries = number(field)?,
            tag::ATTEMPTS => record.attempts = number(field)?,
            tag::DEATHS => record.deaths = number(field)?,
            tag::FAILURE => record.failure = Some(failure(field)?),
            tag::LIMITS => record.limits = item_limits(field)?,
            tag::DEDUPE if field.len() > MAX_DEDUPE_BYTES => {
                return Err(format!("a dedupe id of {} bytes", field.len()));
            }
            tag::DEDUPE => record.dedupe = bytes.slice_ref(field),
            tag::TOKEN => {
                let token = field.try_into();
                record.token = Some(token.map_err(|_| "a token of another length".to_owned())?);
            }
            tag::CANCELLED => record.cancelled_millis = number(field)?,
            tag::DONE => record.end = Some(stored_end(bytes.slice_ref(field))?),
            tag::TRACE_CONTEXT => record.trace_context = Some(trace_context(field)?),
            _ => {
                unknown_from.get_or_insert(bytes.len() - begin.len());
            }
        }
    }
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

/// The form is not checked, so that a malformed context never keeps an item from being handled.
fn trace_context(field: &[u8]) -> Result<Arc<str>, String> {
    text("a trace context", field, MAX_TRACE_CONTEXT_BYTES)
}

/// Reads a text of limited length.
fn text(what: &str, bytes: &[u8], limit: usize) -> Result<Arc<str>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    match text.len() > limit {
        true => Err(format!("{what} of {} bytes", text.len())),
        false => Ok(text.into()),
    }
}

fn stored_end(field: Bytes) -> Result<StoredEnd, String> {
    let mut fields = Fields::new(&field);
    let (millis, until_millis, [how]) = (fields.u64()?, fields.u64()?, fields.array()?);
    let how = [End::Completed, End::Cancelled, End::Removed]
        .into_iter()
        .find(|end| *end as u8 == how)
        .ok_or_else(|| format!("end {how} is unknown"))?;
    let result = field.slice_ref(fields.rest());
    match result.len() > MAX_RESULT_BYTES {
        true => Err(format!("a result of {} bytes", result.len())),
        false => Ok(StoredEnd {
            millis,
            until_millis,
            how,
            result,
        }),
    }
}

fn item_limits(field: &[u8]) -> Result<Limits, String> {
    let mut fields = Fields::new(field);
    let limits = Limits {
        attempts: fields.u32()?,
        deaths: fields.u32()?,
        deliveries: fields.u32()?,
    };
    fields.end()?;
    match limits == Limits::default() {
        true => Err("expected limits that differ from the queue's".to_owned()),
        false => Ok(limits),
    }
}

/// What a session wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) session: SessionId,
    pub(crate) wanted: u32,
}

/// The codec of [`Request`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestCodec;

impl Codec<Request> for RequestCodec {
    const NAME: &'static str = "a request";

    fn encode(&self, request: &Request, buffer: &mut Vec<u8>) -> keyspace::Result<()> {
        buffer.push(FORMAT);
        buffer.extend_from_slice(&request.session.0);
        buffer.extend_from_slice(&request.wanted.to_be_bytes());
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<Request, DecodeError> {
        let mut fields = Fields::new(&bytes);
        let request = (|| {
            fields.format(FORMAT)?;
            let session = SessionId(fields.array()?);
            let wanted = u32::from_be_bytes(fields.array()?);
            fields.end()?;
            Ok(Request { session, wanted })
        })();
        request.map_err(|reason| undecodable(Self::NAME, reason))
    }
}

/// What a request is told that has become the first, in the place of an answer.
pub(crate) const TURN: [u8; 1] = [FORMAT];

/// Returns whether the first row of a grant is no answer, but tells its request that it has become the
/// first.
pub(crate) fn is_turn(value: &[u8]) -> bool {
    value == TURN
}

/// A row of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// How many rows the grant has.
    pub(crate) parts: u32,
    pub(crate) item: Item<Record>,
}

impl Part {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut value = vec![FORMAT];
        value.extend_from_slice(&self.parts.to_be_bytes());
        if let ItemId::Commit { versionstamp, call } = self.item.id {
            value.extend_from_slice(versionstamp.as_bytes());
            value.extend_from_slice(&call.to_be_bytes());
        }
        RecordCodec.encode(&self.item.value, &mut value)?;
        Ok(value)
    }

    pub(crate) fn decode(key: &[u8], value: Bytes) -> Result<Self> {
        record::decode(key, &value, FORMAT, |fields| {
            let parts = fields.u32()?;
            let id = ItemId::Commit {
                versionstamp: Versionstamp::from_bytes(fields.array()?),
                call: fields.u64()?,
            };
            let record = RecordCodec.decode(value.slice_ref(fields.rest()));
            let value = record.map_err(|error| error.reason)?;
            let item = Item { id, value };
            Ok(Self { parts, item })
        })
    }
}

fn undecodable(codec: &'static str, reason: String) -> DecodeError {
    DecodeError { codec, reason }
}

#[cfg(test)]
mod tests {
    use conformance::scale;
    use microqueue::keyspace::recipe::StoredSettings;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::settings::SettingsRecord;

    fn record() -> Record {
        Record {
            enqueued_millis: 0x0104,
            deliveries: 3,
            attempts: 2,
            deaths: 1,
            failure: Some(StoredFailure::new(9, "no")),
            limits: Limits {
                attempts: 5,
                deaths: 6,
                deliveries: 7,
            },
            dedupe: Bytes::from_static(b"id"),
            token: Some([8; TOKEN_BYTES]),
            cancelled_millis: 0x010203,
            end: Some(StoredEnd {
                millis: 6,
                until_millis: 7,
                how: End::Cancelled,
                result: Bytes::from_static(b"yes"),
            }),
            trace_context: Some("00-a".into()),
            unknown: Bytes::from_static(b"\x63\0\x03new\xff\0\x01x"),
            payload: Bytes::from_static(b"payload"),
        }
    }

    fn encoded(record: &Record) -> Vec<u8> {
        let mut bytes = Vec::new();
        RecordCodec.encode(record, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_record_has_the_bytes_of_the_schema() {
        let expected = [
            &[1][..],
            &[1, 0, 2, 1, 4],
            &[2, 0, 1, 3],
            &[3, 0, 1, 2],
            &[4, 0, 1, 1],
            b"\x05\0\x0a\0\0\0\0\0\0\0\x09no",
            &[6, 0, 12, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 7],
            b"\x07\0\x02id",
            &[&[8, 0, 16][..], &[8; 16], &[9, 0, 3, 1, 2, 3]].concat(),
            b"\x0a\0\x14\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x07\x01yes",
            b"\x0b\0\x0400-a",
            b"\x63\0\x03new\xff\0\x01x",
            b"\0payload",
        ]
        .concat();
        assert_eq!(encoded(&record()), expected);
        assert_eq!(RecordCodec.decode(expected.into()).unwrap(), record());

        let new = Record::new(4, Bytes::from_static(b"payload"));
        assert_eq!(encoded(&new), b"\x01\x01\0\x01\x04\0payload");
    }

    #[test]
    fn a_record_that_is_not_as_it_is_written_is_refused() {
        let reasons: [(&[u8], &str); 12] = [
            (&[1, 2, 0, 1, 1, 1, 0, 1, 1, 0], "comes after"),
            (&[1, 2, 0, 1, 1, 2, 0, 1, 1, 0], "comes after"),
            (&[1, 2, 0, 0, 0], "is empty"),
            (&[1, 2, 0, 2, 0, 1, 0], "leading zeros"),
            (&[1, 2, 0, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0], "leading zeros"),
            (&[1, 5, 0, 1, 0, 0], "early"),
            (&[1, 5, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0], "utf-8"),
            (
                &[1, 6, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                "differ",
            ),
            (
                &[1, 6, 0, 13, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                "left over",
            ),
            (&[1, 10, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0], "early"),
            (
                &[&[1, 10, 0, 17][..], &[0; 16], &[3, 0]].concat(),
                "unknown",
            ),
            (&[1, 11, 0, 1, 0xff, 0], "utf-8"),
        ];
        for (bytes, reason) in reasons {
            let error = RecordCodec
                .decode(Bytes::copy_from_slice(bytes))
                .unwrap_err();
            assert!(error.reason.contains(reason), "{error}: not {reason}");
        }
        let long = [&[1, 10, 16, 18][..], &[0; 4_114], &[0]].concat();
        assert!(RecordCodec.decode(long.into()).is_err());
        for (tag, longest) in [
            (tag::FAILURE, 8 + MAX_FAILURE_BYTES),
            (tag::TRACE_CONTEXT, MAX_TRACE_CONTEXT_BYTES),
        ] {
            for (length, is_refused) in [(longest, false), (longest + 1, true)] {
                let mut bytes = vec![FORMAT];
                push_field(&mut bytes, tag, &vec![b'a'; length]);
                bytes.push(tag::END);
                let decoded = RecordCodec.decode(bytes.into());
                assert_eq!(
                    decoded.is_err(),
                    is_refused,
                    "field {tag} of {length} bytes"
                );
            }
        }
    }

    #[test]
    fn of_a_long_failure_the_beginning_is_kept() {
        let text = format!("a{}", "\u{e4}".repeat(MAX_FAILURE_BYTES));
        let failure = StoredFailure::new(1, &text);
        assert_eq!(failure.text.len(), MAX_FAILURE_BYTES - 1);
        assert!(text.starts_with(&*failure.text));
    }

    #[test]
    fn a_request_a_grant_and_a_state_have_the_bytes_of_the_schema() {
        let request = Request {
            session: SessionId([7; 16]),
            wanted: 5,
        };
        let mut bytes = Vec::new();
        RequestCodec.encode(&request, &mut bytes).unwrap();
        assert_eq!(bytes, [&[1][..], &[7; 16], &[0, 0, 0, 5]].concat());
        assert_eq!(RequestCodec.decode(bytes.into()).unwrap(), request);

        let item = ItemId::Commit {
            versionstamp: Versionstamp::from_bytes([8; 10]),
            call: 9,
        };
        let part = Part {
            parts: 2,
            item: Item {
                id: item,
                value: record(),
            },
        };
        let bytes = part.encode().unwrap();
        let expected = [&[1, 0, 0, 0, 2][..], &[8; 10], &[0, 0, 0, 0, 0, 0, 0, 9]].concat();
        assert_eq!(bytes, [expected, encoded(&record())].concat());
        assert!(is_turn(&[1]) && !is_turn(&bytes));
        assert_eq!(Part::decode(b"key", bytes.into()).unwrap(), part);
    }

    #[test]
    fn what_is_cut_off_or_of_another_format_is_refused() {
        let whole = encoded(&record());
        for length in 0..whole.len() - record().payload.len() {
            let cut = Bytes::copy_from_slice(&whole[..length]);
            assert!(RecordCodec.decode(cut).is_err(), "{length} bytes");
        }
        for format in [0, 2, 255] {
            let mut other = whole.clone();
            other[0] = format;
            let error = RecordCodec.decode(other.into()).unwrap_err();
            let says_newer = error.reason.contains("newer");
            assert_eq!(says_newer, format > FORMAT, "{error}");
        }
        for part in [&b""[..], &[2; 60], &[1; 22], &[1; 23]] {
            assert!(Part::decode(b"key", Bytes::copy_from_slice(part)).is_err());
        }
        for request in [&b""[..], &[1; 20], &[1; 22]] {
            assert!(
                RequestCodec
                    .decode(Bytes::copy_from_slice(request))
                    .is_err()
            );
        }
    }

    /// Random bytes, every other one small, so that formats and lengths are right now and then.
    fn noise(seed: u64) -> Bytes {
        let mut rng = StdRng::seed_from_u64(seed);
        let length = rng.random_range(0..80);
        let byte = |_| match rng.random() {
            true => rng.random_range(0..4),
            false => rng.random(),
        };
        (0..length).map(byte).collect()
    }

    /// Decodes, and encodes what came of it. `None`: nothing did.
    fn encoded_again<T, C: Codec<T> + Default>(bytes: &Bytes) -> Option<Vec<u8>> {
        let value = C::default().decode(bytes.clone()).ok()?;
        let mut again = Vec::new();
        C::default().encode(&value, &mut again).unwrap();
        Some(again)
    }

    #[test]
    fn whatever_decodes_encodes_to_the_same_bytes() {
        let mut decoded = [0; 4];
        for seed in 0..scale(20_000, 2_000_000) as u64 {
            let bytes = noise(seed);
            let encodings = [
                encoded_again::<Record, RecordCodec>(&bytes),
                encoded_again::<Request, RequestCodec>(&bytes),
                Part::decode(b"key", bytes.clone())
                    .ok()
                    .map(|part| part.encode().unwrap()),
                SettingsRecord::decode(b"key", &bytes)
                    .ok()
                    .map(|stored| stored.encode()),
            ];
            for (encoding, decoded) in encodings.into_iter().zip(&mut decoded) {
                if let Some(encoding) = encoding {
                    assert_eq!(encoding, bytes, "seed {seed}");
                    *decoded += 1;
                }
            }
        }
        // Else there was nothing to compare.
        assert!(decoded.iter().all(|count| *count > 10), "{decoded:?}");
    }

    #[test]
    fn the_largest_item_fills_a_value() {
        let unknown = MAX_UNKNOWN_BYTES - FIELD_BYTES;
        let unknown = [&[200, 3, 253][..], &vec![0; unknown]].concat();
        let record = Record {
            enqueued_millis: u64::MAX,
            deliveries: u64::MAX,
            attempts: u64::MAX,
            deaths: u64::MAX,
            cancelled_millis: u64::MAX,
            failure: Some(StoredFailure::new(1, &"a".repeat(MAX_FAILURE_BYTES))),
            dedupe: vec![0; MAX_DEDUPE_BYTES].into(),
            end: Some(StoredEnd {
                millis: u64::MAX,
                until_millis: u64::MAX,
                how: End::Removed,
                result: vec![0; MAX_RESULT_BYTES].into(),
            }),
            trace_context: Some("a".repeat(MAX_TRACE_CONTEXT_BYTES).into()),
            unknown: unknown.into(),
            payload: vec![0; MAX_PAYLOAD_BYTES].into(),
            ..record()
        };
        assert_eq!(RecordCodec.decode(encoded(&record).into()).unwrap(), record);
        let id = ItemId::Commit {
            versionstamp: Versionstamp::INCOMPLETE,
            call: 0,
        };
        let item = Item { id, value: record };
        let part = Part { parts: 1, item };
        assert_eq!(part.encode().unwrap().len(), limits::VALUE_BYTES);
    }
}
