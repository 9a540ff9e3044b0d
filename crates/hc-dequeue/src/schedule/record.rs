//! The stored form of a schedule. The [schema](crate::keys) specifies the bytes.

use microqueue::keyspace::codec::{Codec, DecodeError};
use microqueue::keyspace::record::{Fields, push_short};
use microqueue::keyspace::{self, Bytes, limits};

use super::times::MAX_MISSED;
use super::{Missed, Schedule};
use crate::record::MAX_PAYLOAD_BYTES;

/// The format number of the record.
const FORMAT: u8 = 1;

/// The length of a record without its texts and its payload.
const ENVELOPE_BYTES: usize = 24;

/// The largest name of a schedule in bytes.
pub const MAX_SCHEDULE_NAME_BYTES: usize = 255;

/// The largest cron expression, and the largest name of a time zone, in bytes.
pub const MAX_SCHEDULE_TEXT_BYTES: usize = 255;

// A schedule must be able to contain any payload that an item can.
const _: () = assert!(
    ENVELOPE_BYTES + 2 * MAX_SCHEDULE_TEXT_BYTES + MAX_PAYLOAD_BYTES <= limits::VALUE_BYTES
);

/// A schedule as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScheduleRecord {
    /// The next time at which it fires.
    pub(crate) next_millis: Option<u64>,
    /// The newest time for which it has enqueued an item.
    pub(crate) last_millis: Option<u64>,
    pub(crate) schedule: Schedule,
    pub(crate) payload: Bytes,
}

/// The codec of [`ScheduleRecord`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScheduleCodec;

impl Codec<ScheduleRecord> for ScheduleCodec {
    const NAME: &'static str = "a schedule";

    fn encode(&self, record: &ScheduleRecord, buffer: &mut Vec<u8>) -> keyspace::Result<()> {
        let Schedule {
            cron,
            time_zone,
            missed,
        } = &record.schedule;
        buffer.push(FORMAT);
        for time in [record.next_millis, record.last_millis] {
            buffer.extend_from_slice(&time.unwrap_or(0).to_be_bytes());
        }
        let (policy, cap) = match missed {
            Missed::Skip => (0, 0),
            Missed::Once => (1, 0),
            Missed::All { cap } => (2, *cap),
        };
        buffer.push(policy);
        buffer.extend_from_slice(&cap.to_be_bytes());
        for text in [cron, time_zone] {
            push_short(buffer, text.as_bytes()).map_err(|reason| keyspace::Error::Encode {
                codec: Self::NAME,
                reason,
            })?;
        }
        buffer.extend_from_slice(&record.payload);
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<ScheduleRecord, DecodeError> {
        let mut fields = Fields::new(&bytes);
        let record = (|| {
            fields.format(FORMAT)?;
            let mut time = || fields.u64().map(|millis| (millis > 0).then_some(millis));
            let (next_millis, last_millis) = (time()?, time()?);
            let missed = match (fields.array()?, fields.u32()?) {
                ([0], 0) => Missed::Skip,
                ([1], 0) => Missed::Once,
                ([2], cap) if (1..=MAX_MISSED).contains(&cap) => Missed::All { cap },
                ([policy], cap) => {
                    return Err(format!("there is no policy {policy} with {cap} times"));
                }
            };
            let schedule = Schedule {
                cron: fields.text()?.to_owned(),
                time_zone: fields.text()?.to_owned(),
                missed,
            };
            Ok(ScheduleRecord {
                next_millis,
                last_millis,
                schedule,
                payload: bytes.slice_ref(fields.rest()),
            })
        })();
        record.map_err(|reason| DecodeError {
            codec: Self::NAME,
            reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use conformance::scale;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn record(missed: Missed) -> ScheduleRecord {
        ScheduleRecord {
            next_millis: Some(0x0102),
            last_millis: None,
            schedule: Schedule::new("@daily").time_zone("UTC").missed(missed),
            payload: Bytes::from_static(b"payload"),
        }
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
            let mut expected = vec![1, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0];
            expected.extend(policy);
            expected.extend(b"\x06@daily\x03UTCpayload");
            assert_eq!(encoded(&record(missed)), expected);
            let decoded = ScheduleCodec.decode(expected.into()).unwrap();
            assert_eq!(decoded, record(missed));
        }
    }

    #[test]
    fn a_decoder_refuses_bytes_that_are_cut_off_or_have_another_format_or_policy() {
        let whole = encoded(&record(Missed::Once));
        for length in 0..whole.len() - b"payload".len() {
            let cut = Bytes::copy_from_slice(&whole[..length]);
            assert!(ScheduleCodec.decode(cut).is_err(), "{length} bytes");
        }
        for (place, byte) in [(0, 0), (0, 2), (17, 2), (17, 3), (21, 1), (23, 0xff)] {
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
        for seed in 0..scale(20_000, 2_000_000) as u64 {
            let mut rng = StdRng::seed_from_u64(seed);
            let length = rng.random_range(0..60);
            let byte = |_| match rng.random_range(0..4) {
                0 => rng.random(),
                1 => rng.random_range(0..4),
                _ => 0,
            };
            let mut bytes: Vec<u8> = (0..length).map(byte).collect();
            if let Some(format) = bytes.first_mut() {
                *format = 1;
            }
            if let Ok(record) = ScheduleCodec.decode(bytes.clone().into()) {
                assert_eq!(encoded(&record), bytes, "seed {seed}");
                decoded += 1;
            }
        }
        assert!(decoded > 100, "{decoded}");
    }

    #[test]
    fn the_largest_schedule_fits_a_value() {
        let text = || "x".repeat(MAX_SCHEDULE_TEXT_BYTES);
        let largest = ScheduleRecord {
            schedule: Schedule::new(text()).time_zone(text()),
            payload: vec![0; MAX_PAYLOAD_BYTES].into(),
            ..record(Missed::Once)
        };
        let bytes = ENVELOPE_BYTES + 2 * MAX_SCHEDULE_TEXT_BYTES + MAX_PAYLOAD_BYTES;
        assert_eq!(encoded(&largest).len(), bytes);
    }
}
