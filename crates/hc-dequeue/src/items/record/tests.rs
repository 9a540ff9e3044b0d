//! Golden bytes of all records, and bytes that must not decode.

use conformance::scale;
use microqueue::keyspace::Versionstamp;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::recipe::StoredSettings;
use microqueue::{Item, ItemId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::codec::push_field;
use super::*;
use crate::items::batch::{BatchCounts, BatchId, CallbackOf};
use crate::items::settings::SettingsRecord;
use crate::session::SessionId;

/// How the members of a batch have ended: three numbers.
const COUNTS: [u8; 24] = *b"\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03";

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
        token: Some(Token {
            random: [8; 8],
            read_version: 9,
            staged_millis: 10,
            ready_millis: 11,
            priority: Priority::new(9).unwrap(),
            is_member: true,
        }),
        cancelled_millis: 0x010203,
        end: Some(StoredEnd {
            millis: 6,
            until_millis: 7,
            how: End::Cancelled,
            result: Bytes::from_static(b"yes"),
        }),
        trace_context: Some("00-a".into()),
        granted_millis: 0x05,
        ready_millis: 0x0607,
        burst: Some(Burst {
            began_millis: 4,
            deliveries: 2,
        }),
        uncounted_deliveries: 2,
        reserve: Reserve::Barred,
        priority: Priority::new(-9).unwrap(),
        group: Bytes::from_static(b"acme"),
        has_slot: true,
        member: Some(BatchMember {
            batch: BatchId([7; 16]),
            dead_letters_stay: true,
        }),
        callback_of: Some(CallbackOf {
            counts: BatchCounts::parse(&COUNTS).unwrap(),
            batch: Some(BatchId([8; 16])),
        }),
        spent: Some(Spent {
            version: 0x0102,
            interval: 3,
        }),
        kind: Kind::new("mail").unwrap(),
        checkpoint: checkpoint(b"row 7"),
        progress: Some(Box::new(progress("half"))),
        unknown: Bytes::from_static(b"\x63\0\x03new\xff\0\x01x"),
        payload: Bytes::from_static(b"payload"),
    }
}

/// Returns a checkpoint of two steps and these bytes.
fn checkpoint(own: &'static [u8]) -> Checkpoint {
    let mut checkpoint = Checkpoint::default();
    checkpoint.add_step("charge", b"ok");
    checkpoint.add_step("mail", b"");
    checkpoint.set_own(Bytes::from_static(own));
    checkpoint
}

/// Returns a checkpoint of these bytes alone.
fn only_own(own: &[u8]) -> Checkpoint {
    Checkpoint::parse([&[0][..], own].concat().into()).unwrap()
}

fn progress(text: &str) -> Progress {
    Progress {
        done: 1,
        total: 0x0203,
        text: text.to_owned(),
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
        &[&[8, 0, 33][..], &[8; 8], b"\0\0\0\0\0\0\0\x09"].concat(),
        b"\0\0\0\0\0\0\0\x0a\0\0\0\0\0\0\0\x0b\x81",
        &[9, 0, 3, 1, 2, 3],
        b"\x0a\0\x14\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x07\x01yes",
        b"\x0b\0\x0400-a",
        &[12, 0, 1, 5],
        &[13, 0, 2, 6, 7],
        b"\x0e\0\x10\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x02",
        &[15, 0, 1, 2],
        &[16, 0, 1, 2],
        &[17, 0, 1, 19],
        b"\x12\0\x04acme",
        &[19, 0, 1, 1],
        &[&[20, 0, 17][..], &[7; 16], &[1]].concat(),
        &[&[21, 0, 40][..], &COUNTS, &[8; 16]].concat(),
        b"\x16\0\x10\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\0\x03",
        b"\x17\0\x04mail",
        b"\x18\0\x18\x02\x06charge\0\x02ok\x04mail\0\0row 7",
        b"\x19\0\x14\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\x02\x03half",
        b"\x63\0\x03new\xff\0\x01x",
        b"\0payload",
    ]
    .concat();
    assert_eq!(encoded(&record()), expected);
    assert_eq!(RecordCodec.decode(expected.into()).unwrap(), record());

    // The first version did not name the batch.
    let first = [&b"\x01\x15\0\x18"[..], &COUNTS, b"\0payload"].concat();
    let of = CallbackOf {
        counts: BatchCounts::parse(&COUNTS).unwrap(),
        batch: None,
    };
    let decoded = RecordCodec.decode(first.clone().into()).unwrap();
    assert_eq!(decoded.callback_of, Some(of));
    assert_eq!(encoded(&decoded), first);

    let new = Record::new(4, Bytes::from_static(b"payload"));
    assert_eq!(encoded(&new), b"\x01\x01\0\x01\x04\0payload");
}

#[test]
fn a_record_keeps_what_it_says_of_a_reserve() {
    for (reserve, field) in [
        (Reserve::Out, &b""[..]),
        (Reserve::In, b"\x10\0\x01\x01"),
        (Reserve::Barred, b"\x10\0\x01\x02"),
    ] {
        let record = Record {
            reserve,
            ..Record::new(4, Bytes::from_static(b"payload"))
        };
        let expected = [b"\x01\x01\0\x01\x04", field, b"\0payload"].concat();
        assert_eq!(encoded(&record), expected);
        assert_eq!(RecordCodec.decode(expected.into()).unwrap(), record);
    }
}

#[test]
fn an_item_that_is_ready_at_its_enqueue_stores_no_other_time() {
    let mut record = Record::new(4, Bytes::from_static(b"payload"));
    assert_eq!(record.ready_millis(), 4);
    record.become_ready(4);
    assert_eq!(encoded(&record), b"\x01\x01\0\x01\x04\0payload");
    // The clock of the process that returned the item was slow.
    for ready in [3, 5, u64::MAX] {
        record.become_ready(ready);
        let again = RecordCodec.decode(encoded(&record).into()).unwrap();
        assert_eq!(again.ready_millis(), ready);
    }
}

#[test]
fn a_record_that_is_not_as_it_is_written_is_refused() {
    let reasons: [(&[u8], &str); 25] = [
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
        (&[1, 16, 0, 1, 0, 0], "leading zeros"),
        (&[1, 16, 0, 1, 3, 0], "of a reserve"),
        (&[1, 16, 0, 1, 0xff, 0], "of a reserve"),
        (&[1, 16, 0, 2, 1, 1, 0], "of a reserve"),
        (&[1, 16, 0, 0, 0], "is empty"),
        (&[1, 24, 0, 1, 0, 0], "without anything"),
        (&[1, 24, 0, 1, 1, 0], "early"),
        (&[1, 24, 0, 4, 1, 0, 0, 0, 0], "no name of its own"),
        (&[1, 24, 0, 5, 1, 1, 0xff, 0, 0, 0], "utf-8"),
        (&[1, 24, 0, 5, 1, 1, b'a', 0, 1, 0], "early"),
        (
            &[1, 24, 0, 9, 2, 1, b'a', 0, 0, 1, b'a', 0, 0, 0],
            "no name of its own",
        ),
        (&[1, 25, 0, 1, 0, 0], "early"),
        (
            &[&[1, 25, 0, 17][..], &[0; 16], &[0xff, 0]].concat(),
            "utf-8",
        ),
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
        (tag::PROGRESS, 16 + MAX_PROGRESS_TEXT_BYTES),
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
        for_reserve: 2,
    };
    let mut bytes = Vec::new();
    RequestCodec.encode(&request, &mut bytes).unwrap();
    assert_eq!(
        bytes,
        [&[1][..], &[7; 16], &[0, 0, 0, 5, 0, 0, 0, 2]].concat()
    );
    assert_eq!(RequestCodec.decode(bytes.into()).unwrap(), request);

    let item = ItemId::Commit {
        versionstamp: Versionstamp::from_bytes([8; 10]),
        call: 9,
    };
    let part = GrantPart {
        parts: 2,
        item: Item {
            id: item,
            value: record(),
        },
    };
    let bytes = part.encode().unwrap();
    let expected = [&[1, 0, 0, 0, 2][..], &[8; 10], &[0, 0, 0, 0, 0, 0, 0, 9]].concat();
    assert_eq!(bytes, [expected, encoded(&record())].concat());
    assert!(is_signal(&[1]) && !is_signal(&bytes));
    assert_eq!(GrantPart::decode(b"key", bytes.into()).unwrap(), part);
}

#[test]
fn a_decoder_refuses_bytes_that_are_cut_off_or_have_another_format() {
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
        assert!(GrantPart::decode(b"key", Bytes::copy_from_slice(part)).is_err());
    }
    for request in [&b""[..], &[1; 24], &[1; 26]] {
        assert!(
            RequestCodec
                .decode(Bytes::copy_from_slice(request))
                .is_err()
        );
    }
}

/// Returns random bytes, of which every other one is small, so that formats and lengths are sometimes valid.
fn noise(seed: u64) -> Bytes {
    let mut rng = StdRng::seed_from_u64(seed);
    let length = rng.random_range(0..80);
    let byte = |_| {
        if rng.random() {
            rng.random_range(0..4)
        } else {
            rng.random()
        }
    };
    (0..length).map(byte).collect()
}

/// Decodes bytes and encodes the result again. Returns `None` if they do not decode.
fn encoded_again<T, C: Codec<T> + Default>(bytes: &Bytes) -> Option<Vec<u8>> {
    let value = C::default().decode(bytes.clone()).ok()?;
    let mut again = Vec::new();
    C::default().encode(&value, &mut again).unwrap();
    Some(again)
}

#[test]
fn whatever_decodes_encodes_to_the_same_bytes() {
    let mut decoded = [0; 4];
    for seed in 0..scale(40_000, 2_000_000) as u64 {
        let bytes = noise(seed);
        let encodings = [
            encoded_again::<Record, RecordCodec>(&bytes),
            encoded_again::<Request, RequestCodec>(&bytes),
            GrantPart::decode(b"key", bytes.clone())
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
    // Otherwise the test would have compared nothing.
    assert!(decoded.iter().all(|count| *count > 10), "{decoded:?}");
}

#[test]
fn of_what_handlers_leave_each_part_may_be_missing() {
    let own = b"\x18\0\x06\0row 7";
    let steps = b"\x18\0\x13\x02\x06charge\0\x02ok\x04mail\0\0";
    let numbers = b"\x19\0\x10\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\x02\x03";
    for (left, progress, field) in [
        (only_own(b"row 7"), None, &own[..]),
        (checkpoint(b""), None, &steps[..]),
        (Checkpoint::default(), Some(progress("")), &numbers[..]),
    ] {
        let record = Record {
            checkpoint: left,
            progress: progress.map(Box::new),
            ..Record::new(4, Bytes::from_static(b"payload"))
        };
        let expected = [b"\x01\x01\0\x01\x04", field, b"\0payload"].concat();
        assert_eq!(encoded(&record), expected);
        assert_eq!(RecordCodec.decode(expected.into()).unwrap(), record);
    }
}

#[test]
fn a_checkpoint_has_room_for_as_many_bytes_as_its_limit_says() {
    for (more, is_refused) in [(0, false), (1, true)] {
        let mut left = checkpoint(b"");
        left.set_own(vec![7; MAX_CHECKPOINT_BYTES - left.size() + more].into());
        let record = Record {
            checkpoint: left,
            ..Record::default()
        };
        let decoded = RecordCodec.decode(encoded(&record).into());
        assert_eq!(decoded.is_err(), is_refused);
    }
}

#[test]
fn the_largest_item_fills_a_value() {
    let unknown = MAX_UNKNOWN_BYTES - FIELD_BYTES;
    let unknown = [&[200, 1, 90][..], &vec![0; unknown]].concat();
    let record = Record {
        enqueued_millis: u64::MAX,
        deliveries: u64::MAX,
        attempts: u64::MAX,
        deaths: u64::MAX,
        cancelled_millis: u64::MAX,
        granted_millis: u64::MAX,
        ready_millis: u64::MAX,
        uncounted_deliveries: u64::MAX,
        failure: Some(StoredFailure::new(1, &"a".repeat(MAX_FAILURE_BYTES))),
        dedupe: vec![0; MAX_DEDUPE_BYTES].into(),
        group: vec![0; MAX_GROUP_BYTES].into(),
        kind: Kind::new(&"a".repeat(MAX_KIND_BYTES)).unwrap(),
        end: Some(StoredEnd {
            millis: u64::MAX,
            until_millis: u64::MAX,
            how: End::Removed,
            result: vec![0; MAX_RESULT_BYTES].into(),
        }),
        trace_context: Some("a".repeat(MAX_TRACE_CONTEXT_BYTES).into()),
        checkpoint: Checkpoint::default(),
        progress: Some(Box::new(progress(&"a".repeat(MAX_PROGRESS_TEXT_BYTES)))),
        unknown: unknown.into(),
        payload: vec![0; MAX_PAYLOAD_BYTES].into(),
        ..record()
    };
    assert_eq!(RecordCodec.decode(encoded(&record).into()).unwrap(), record);
    let id = ItemId::Commit {
        versionstamp: Versionstamp::INCOMPLETE,
        call: 0,
    };
    let waiting = Record {
        end: None,
        checkpoint: only_own(&[0; MAX_CHECKPOINT_BYTES]),
        ..record.clone()
    };
    let length = |value| {
        let item = Item { id, value };
        let part = GrantPart { parts: 1, item };
        part.encode().unwrap().len()
    };
    assert_eq!(length(record), limits::MAX_VALUE_BYTES);
    assert!(length(waiting) < limits::MAX_VALUE_BYTES);
}
