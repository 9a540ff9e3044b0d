//! The stored form of a schedule. The [schema](crate::items::keys) specifies the bytes.

use std::time::Duration;

use microqueue::keyspace::codec::{Codec, DecodeError};
use microqueue::keyspace::record::{Fields, millis};
use microqueue::keyspace::{self, Bytes, limits};

use super::fired::{FiredTimes, MAX_RUNS, Run};
use super::times::MAX_MISSED;
use super::{Missed, Schedule};
use crate::items::kind::{Kind, MAX_KIND_BYTES};
use crate::items::priority::Priority;
use crate::items::record::{
    FIELD_BYTES, Limits, MAX_DEDUPE_BYTES, MAX_PAYLOAD_BYTES, MAX_UNKNOWN_BYTES, decode_fields,
    dedupe, group, priority_field, push_field, push_priority,
};
use crate::queue::enqueue_options::{OnRepeat, ReadyTime};

/// The format number of the record.
const FORMAT: u8 = 1;

/// The largest name of a schedule in bytes.
pub const MAX_SCHEDULE_NAME_BYTES: usize = 255;

/// The largest cron expression, and the largest name of a time zone, in bytes.
pub const MAX_SCHEDULE_TEXT_BYTES: usize = 255;

/// The largest name of an owner of schedules in bytes.
pub const MAX_SCHEDULE_OWNER_BYTES: usize = 255;

/// The length of the policy for missed times.
const MISSED_BYTES: usize = 5;

/// The length of a run of fired times.
const RUN_BYTES: usize = 16;

/// The largest length of a record without its payload.
const MAX_ENVELOPE_BYTES: usize = 2
    + 4 * (FIELD_BYTES + 8)
    + (FIELD_BYTES + MAX_RUNS * RUN_BYTES)
    + (FIELD_BYTES + MISSED_BYTES)
    + 2 * (FIELD_BYTES + MAX_SCHEDULE_TEXT_BYTES)
    + (FIELD_BYTES + MAX_DEDUPE_BYTES)
    + 2 * (FIELD_BYTES + 1)
    + (FIELD_BYTES + MAX_KIND_BYTES)
    + (FIELD_BYTES + Limits::BYTES)
    + (FIELD_BYTES + MAX_SCHEDULE_OWNER_BYTES)
    + MAX_UNKNOWN_BYTES;

// One check of a text serves them all.
const _: () = assert!(MAX_SCHEDULE_OWNER_BYTES == MAX_SCHEDULE_TEXT_BYTES);

// A schedule must be able to contain any payload that an item can.
const _: () = assert!(MAX_ENVELOPE_BYTES + MAX_PAYLOAD_BYTES <= limits::MAX_VALUE_BYTES);

/// The tags of the fields.
mod tag {
    pub(super) const END: u8 = 0;
    pub(super) const NEXT: u8 = 1;
    pub(super) const FIRED: u8 = 2;
    pub(super) const MISSED: u8 = 3;
    pub(super) const CRON: u8 = 4;
    pub(super) const TIME_ZONE: u8 = 5;
    pub(super) const DELAY: u8 = 6;
    pub(super) const MAX_WAIT: u8 = 7;
    pub(super) const DEDUPE: u8 = 8;
    pub(super) const ON_REPEAT: u8 = 9;
    pub(super) const LIMITS: u8 = 10;
    pub(super) const MAX_DEPTH: u8 = 11;
    pub(super) const PRIORITY: u8 = 12;
    pub(super) const GROUP: u8 = 13;
    pub(super) const OWNER: u8 = 14;
    pub(super) const KIND: u8 = 15;
}

/// A schedule as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScheduleRecord {
    /// The next time at which it fires.
    pub(crate) next_millis: Option<u64>,
    /// The times that have fired.
    pub(crate) fired: FiredTimes,
    pub(crate) schedule: Schedule,
    /// Whose it is; see [`owned`](super::owned).
    pub(crate) owner: Option<String>,
    /// Fields of later versions, as stored.
    pub(crate) unknown: Bytes,
    pub(crate) payload: Bytes,
}

/// The codec of [`ScheduleRecord`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScheduleCodec;

impl Codec<ScheduleRecord> for ScheduleCodec {
    const NAME: &'static str = "a schedule";

    fn encode(&self, record: &ScheduleRecord, buffer: &mut Vec<u8>) -> keyspace::Result<()> {
        let schedule = &record.schedule;
        let options = &schedule.options;
        buffer.push(FORMAT);
        push_millis(buffer, tag::NEXT, record.next_millis);
        let runs: Vec<_> = record
            .fired
            .runs()
            .iter()
            .flat_map(|run| [run.first, run.last].map(u64::to_be_bytes))
            .collect();
        push_field(buffer, tag::FIRED, &runs.concat());
        let (policy, cap) = match schedule.missed {
            Missed::Skip => (0, 0),
            Missed::Once => (1, 0),
            Missed::All { cap } => (2, cap),
        };
        push_field(
            buffer,
            tag::MISSED,
            &[&[policy][..], &cap.to_be_bytes()].concat(),
        );
        push_field(buffer, tag::CRON, schedule.cron.as_bytes());
        push_field(buffer, tag::TIME_ZONE, schedule.time_zone.as_bytes());
        if let Some(ReadyTime::After(delay)) = options.ready {
            push_millis(buffer, tag::DELAY, Some(millis(delay)));
        }
        push_millis(buffer, tag::MAX_WAIT, options.max_wait.map(millis));
        push_field(buffer, tag::DEDUPE, options.dedupe().map_or(&[], |id| id));
        let on_repeat: &[u8] = match options.on_repeat {
            OnRepeat::Keep => &[],
            OnRepeat::Replace => &[1],
            OnRepeat::Debounce => &[2],
        };
        push_field(buffer, tag::ON_REPEAT, on_repeat);
        if options.limits != Limits::default() {
            push_field(buffer, tag::LIMITS, &options.limits.to_bytes());
        }
        push_millis(buffer, tag::MAX_DEPTH, options.max_depth);
        let priority = Priority::new(options.priority()).expect("`schedule` has checked it");
        push_priority(buffer, tag::PRIORITY, priority);
        push_field(
            buffer,
            tag::GROUP,
            options.group().map_or(&[], |group| group),
        );
        let owner = record.owner.as_deref().unwrap_or_default();
        push_field(buffer, tag::OWNER, owner.as_bytes());
        let kind = options.kind().unwrap_or_default();
        push_field(buffer, tag::KIND, kind.as_bytes());
        buffer.extend_from_slice(&record.unknown);
        buffer.push(tag::END);
        buffer.extend_from_slice(&record.payload);
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<ScheduleRecord, DecodeError> {
        decode_schedule(&bytes).map_err(|reason| DecodeError {
            codec: Self::NAME,
            reason,
        })
    }
}

/// Appends a number of eight bytes, if there is one.
fn push_millis(buffer: &mut Vec<u8>, tag: u8, number: Option<u64>) {
    if let Some(number) = number {
        push_field(buffer, tag, &number.to_be_bytes());
    }
}

fn decode_schedule(bytes: &Bytes) -> Result<ScheduleRecord, String> {
    let mut record = ScheduleRecord {
        next_millis: None,
        fired: FiredTimes::default(),
        schedule: Schedule::new(""),
        owner: None,
        unknown: Bytes::new(),
        payload: Bytes::new(),
    };
    record.schedule.time_zone.clear();
    let mut has_missed = false;
    let rest = decode_fields(bytes, FORMAT, tag::KIND, |tag, field| {
        has_missed |= tag == tag::MISSED;
        decode_field(&mut record, tag, bytes.slice_ref(field))
    })?;
    if !has_missed || record.schedule.cron.is_empty() || record.schedule.time_zone.is_empty() {
        return Err("expected a cron expression, a time zone and a policy".to_owned());
    }
    record.unknown = rest.unknown;
    record.payload = rest.payload;
    Ok(record)
}

fn decode_field(record: &mut ScheduleRecord, tag: u8, field: Bytes) -> Result<(), String> {
    let schedule = &mut record.schedule;
    let options = &mut schedule.options;
    match tag {
        tag::NEXT => record.next_millis = Some(number(&field)?),
        tag::FIRED => record.fired = fired(&field)?,
        tag::MISSED => schedule.missed = missed(&field)?,
        tag::CRON => schedule.cron = text(&field)?,
        tag::TIME_ZONE => schedule.time_zone = text(&field)?,
        tag::DELAY => {
            let delay = Duration::from_millis(number(&field)?);
            options.ready = Some(ReadyTime::After(delay));
        }
        tag::MAX_WAIT => options.max_wait = Some(Duration::from_millis(number(&field)?)),
        tag::DEDUPE => options.dedupe = Some(dedupe(field)?),
        tag::ON_REPEAT => {
            options.on_repeat = match field[..] {
                [1] => OnRepeat::Replace,
                [2] => OnRepeat::Debounce,
                _ => return Err("there is no such mode".to_owned()),
            };
        }
        tag::LIMITS => options.limits = Limits::parse(&field)?,
        tag::MAX_DEPTH => options.max_depth = Some(number(&field)?),
        tag::PRIORITY => options.priority = Some(priority_field(&field)?.get()),
        tag::GROUP => options.group = Some(group(field)?),
        tag::KIND => options.kind = Some(Kind::parse(&field)?.name().to_owned()),
        tag::OWNER => record.owner = Some(text(&field)?),
        other => return Err(format!("field {other} is unknown")),
    }
    Ok(())
}

fn number(field: &[u8]) -> Result<u64, String> {
    let mut fields = Fields::new(field);
    let number = fields.u64()?;
    fields.end()?;
    Ok(number)
}

fn text(field: &[u8]) -> Result<String, String> {
    if field.len() > MAX_SCHEDULE_TEXT_BYTES {
        return Err(format!("a text of {} bytes", field.len()));
    }
    let text = std::str::from_utf8(field).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

fn fired(field: &[u8]) -> Result<FiredTimes, String> {
    let (runs, rest) = field.as_chunks::<RUN_BYTES>();
    let mut fired = Vec::with_capacity(runs.len());
    for run in runs {
        let mut fields = Fields::new(run);
        fired.push(Run {
            first: fields.u64()?,
            last: fields.u64()?,
        });
    }
    match FiredTimes::of_runs(fired) {
        Some(fired) if rest.is_empty() => Ok(fired),
        _ => Err("expected up to eight runs of times, ascending".to_owned()),
    }
}

fn missed(field: &[u8]) -> Result<Missed, String> {
    let mut fields = Fields::new(field);
    let [policy] = fields.array()?;
    let cap = fields.u32()?;
    fields.end()?;
    match (policy, cap) {
        (0, 0) => Ok(Missed::Skip),
        (1, 0) => Ok(Missed::Once),
        (2, cap) if (1..=MAX_MISSED).contains(&cap) => Ok(Missed::All { cap }),
        _ => Err(format!("there is no policy {policy} with {cap} times")),
    }
}

#[cfg(test)]
mod tests {
    use conformance::scale;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::queue::enqueue_options::Enqueue;

    fn record(missed: Missed) -> ScheduleRecord {
        ScheduleRecord {
            next_millis: Some(0x0102),
            fired: FiredTimes::default(),
            schedule: Schedule::new("@daily")
                .with_time_zone("UTC")
                .with_missed(missed),
            owner: None,
            unknown: Bytes::new(),
            payload: Bytes::from_static(b"payload"),
        }
    }

    fn full() -> ScheduleRecord {
        let options = Enqueue::new()
            .with_delay(Duration::from_millis(3))
            .with_max_wait(Duration::from_millis(4))
            .with_dedupe("id")
            .with_on_repeat(OnRepeat::Debounce)
            .with_max_attempts(5)
            .with_max_deaths(6)
            .with_max_deliveries(7)
            .with_max_depth(8)
            .with_priority(-2)
            .with_group("acme")
            .with_kind("report");
        let runs = [(1, 2), (4, 4)].map(|(first, last)| Run { first, last });
        let mut full = record(Missed::All { cap: 258 });
        full.fired = FiredTimes::of_runs(runs.into()).unwrap();
        full.schedule = full.schedule.with_enqueue_options(options);
        full.owner = Some("shop".to_owned());
        full.unknown = Bytes::from_static(b"\x63\0\x03new");
        full
    }

    fn encoded(record: &ScheduleRecord) -> Vec<u8> {
        let mut bytes = Vec::new();
        ScheduleCodec.encode(record, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_schedule_has_the_bytes_of_the_schema() {
        for (missed, policy) in [
            (Missed::Skip, [0, 0, 0, 0, 0]),
            (Missed::Once, [1, 0, 0, 0, 0]),
            (Missed::All { cap: 258 }, [2, 0, 0, 1, 2]),
        ] {
            let mut expected = b"\x01\x01\0\x08\0\0\0\0\0\0\x01\x02\x03\0\x05".to_vec();
            expected.extend(policy);
            expected.extend(b"\x04\0\x06@daily\x05\0\x03UTC\0payload");
            assert_eq!(encoded(&record(missed)), expected);
            let decoded = ScheduleCodec.decode(expected.into()).unwrap();
            assert_eq!(decoded, record(missed));
        }
        let number = |tag, number| [tag, 0, 8, 0, 0, 0, 0, 0, 0, 0, number];
        let expected = [
            &b"\x01\x01\0\x08\0\0\0\0\0\0\x01\x02\x02\0\x20"[..],
            &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2],
            &[0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4],
            b"\x03\0\x05\x02\0\0\x01\x02\x04\0\x06@daily\x05\0\x03UTC",
            &number(6, 3),
            &number(7, 4),
            b"\x08\0\x02id\x09\0\x01\x02",
            &[10, 0, 12, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 7],
            &number(11, 8),
            &[12, 0, 1, 12],
            b"\x0d\0\x04acme\x0e\0\x04shop",
            b"\x0f\0\x06report",
            b"\x63\0\x03new\0payload",
        ];
        assert_eq!(encoded(&full()), expected.concat());
        let decoded = ScheduleCodec.decode(expected.concat().into()).unwrap();
        assert_eq!(decoded, full());
    }

    #[test]
    fn a_decoder_refuses_bytes_that_are_cut_off_or_are_no_schedule() {
        let whole = encoded(&full());
        for length in 0..whole.len() - b"payload".len() {
            let cut = Bytes::copy_from_slice(&whole[..length]);
            assert!(ScheduleCodec.decode(cut).is_err(), "{length} bytes");
        }
        // The format, a tag, the first run, and the policy.
        for (place, byte) in [(0, 0), (0, 2), (1, 3), (22, 9), (30, 5), (50, 3)] {
            let mut other = whole.clone();
            other[place] = byte;
            assert!(
                ScheduleCodec.decode(other.into()).is_err(),
                "{place} {byte}"
            );
        }
    }

    #[test]
    fn whatever_decodes_encodes_to_the_same_bytes() {
        let mut decoded = 0;
        let whole = encoded(&full());
        for seed in 0..scale(20_000, 2_000_000) as u64 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut bytes = whole.clone();
            for _ in 0..rng.random_range(1..4) {
                let place = rng.random_range(0..bytes.len());
                bytes[place] = rng.random();
            }
            if let Ok(record) = ScheduleCodec.decode(bytes.clone().into()) {
                assert_eq!(encoded(&record), bytes, "seed {seed}");
                decoded += 1;
            }
        }
        assert!(decoded > 100, "{decoded}");
    }
}
