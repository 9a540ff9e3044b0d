//! The bytes of the messages.

use std::iter;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::read;
use crate::contract::mutation::MutationOp;
use crate::contract::selector::KeyValue;
use crate::stores::embedded::Durability;
use crate::stores::embedded::backend::place::FileId;
use crate::stores::embedded::collections::direction::Direction;
use crate::stores::embedded::collections::ranges::{KeyRange, RangeSet};
use crate::stores::embedded::collections::read_limits::ReadLimits;
use crate::stores::embedded::disk::verify::Verified;
use crate::stores::embedded::engine::CommitRequest;
use crate::stores::embedded::engine::queue::Mutation;
use crate::stores::embedded::processes::Process;
use crate::stores::embedded::wire::{
    self, Ask, Found, Greeting, Hello, Malformed, Refusal, Reply, Request, RequestError, Welcome,
    WireRow,
};

const MAX: usize = wire::MAX_FRAME_BYTES;

fn process() -> Process {
    Process {
        program: "program".to_owned(),
        pid: 300,
    }
}

fn hello() -> Hello {
    Hello {
        protocol: "keyspace".to_owned(),
        versions: (1, 1),
        client: [7; 16],
        durability: Some(Durability::Relaxed {
            interval: Duration::from_millis(1),
        }),
        is_viewer: true,
        process: process(),
    }
}

pub(super) fn greetings() -> Vec<Greeting> {
    let refused = [
        Refusal::Protocol((1, 2)),
        Refusal::Durability(Durability::Immediate),
        Refusal::Full(128),
        Refusal::Leaving,
        Refusal::Yields,
        Refusal::Short,
    ];
    let welcome = Greeting::Welcome(Welcome {
        version: 1,
        store: [9; 16],
        file: Some(FileId {
            device: 7,
            inode: 300,
        }),
        alone_since: Some(5),
        durability: Durability::Immediate,
    });
    let refused = refused.map(Greeting::Refused);
    iter::once(welcome).chain(refused).collect()
}

fn requests() -> Vec<Request> {
    let mut conflicts = RangeSet::default();
    conflicts.insert(KeyRange::key("c".into()));
    conflicts.insert(KeyRange::new("f".into(), "k".into()));
    vec![
        read(7, Ask::Version),
        Request::Read {
            transaction: 7,
            at: Some(1 << 40),
            ask: Ask::Key("k".into()),
        },
        read(
            7,
            Ask::Rows {
                begin: "a".into(),
                end: "b".into(),
                limits: ReadLimits::rows(9),
                direction: Direction::Backward,
            },
        ),
        Request::Commit {
            transaction: 7,
            request: CommitRequest {
                read_version: Some(3),
                read_conflicts: conflicts.clone(),
                write_conflicts: conflicts,
                mutations: vec![
                    Mutation::Set {
                        key: "k".into(),
                        value: "v".into(),
                    },
                    Mutation::Clear { key: "k".into() },
                    Mutation::ClearRange {
                        begin: "k".into(),
                        end: "l".into(),
                    },
                    Mutation::Atomic {
                        op: MutationOp::CompareAndClear,
                        key: "k".into(),
                        param: "p".into(),
                    },
                ],
            },
        },
        Request::Watch {
            key: "k".into(),
            baseline: None,
        },
        Request::Unwatch { watch: 300 },
        Request::End { transaction: 7 },
        Request::Copy {
            copy: 7,
            begin: "k".into(),
        },
        Request::Verify,
        Request::Processes,
    ]
}

fn replies() -> Vec<Reply> {
    vec![
        Reply::Found {
            version: 5,
            found: Found::Version,
        },
        Reply::Found {
            version: 5,
            found: Found::Value(Some("v".into())),
        },
        Reply::Found {
            version: 5,
            found: Found::Rows {
                rows: vec![WireRow::from(KeyValue::new(b"key", b"value"))],
                more: true,
            },
        },
        Reply::Committed {
            read_version: 5,
            versionstamp: [9; 10],
        },
        Reply::Changed,
        Reply::Progress { read: 1, of: 2 },
        Reply::Verified(Verified {
            rows: 1,
            bytes: 2,
            log_batches: 0,
        }),
        Reply::Processes(vec![process()]),
        Reply::Leaving,
        Reply::Ended(RequestError::Code(1510)),
        Reply::Failed(RequestError::Code(1020)),
        Reply::Failed(RequestError::Poisoned {
            cause: "no".to_owned(),
        }),
        Reply::Failed(RequestError::Damaged {
            path: "p".to_owned(),
            reason: "r".to_owned(),
        }),
        Reply::Left,
    ]
}

/// The frames of all kinds of messages, as hexadecimal digits.
fn frames() -> Vec<String> {
    let mut frames = Vec::new();
    let mut buffer = BytesMut::new();
    wire::put(&mut buffer, 0, &hello());
    frames.push(hex(&buffer.split()));
    for greeting in greetings() {
        wire::put(&mut buffer, 0, &greeting);
        frames.push(hex(&buffer.split()));
    }
    for (number, request) in (0..).zip(requests()) {
        wire::put(&mut buffer, number, &request);
        frames.push(hex(&buffer.split()));
    }
    for (number, reply) in (0..).zip(replies()) {
        wire::put(&mut buffer, number, &reply);
        frames.push(hex(&buffer.split()));
    }
    frames
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_bytes_of_each_message_stay_what_they_are() {
    let golden = include_str!("frames.txt");
    assert!(golden.lines().eq(frames()), "{}", frames().join("\n"));
}

#[test]
fn a_message_that_was_sent_is_received_whole() {
    for request in requests() {
        let mut buffer = BytesMut::new();
        wire::put(&mut buffer, 300, &request);
        let sent = buffer.clone();
        for cut in 0..sent.len() {
            let mut part = BytesMut::from(&sent[..cut]);
            assert!(wire::take::<Request>(&mut part, MAX).unwrap().is_none());
        }
        let (number, received) = wire::take::<Request>(&mut buffer, MAX).unwrap().unwrap();
        let mut again = BytesMut::new();
        wire::put(&mut again, number, &received);
        assert_eq!(again, sent, "{request:?}");
        assert!(buffer.is_empty());
    }
}

#[test]
fn mutated_frames_are_messages_or_an_error() {
    let mut rng = StdRng::seed_from_u64(0);
    let mut refused = 0;
    for _ in 0..conformance::scale(20_000, 2_000_000) {
        let mut buffer = BytesMut::new();
        match rng.random_range(0..2) {
            0 => wire::put(&mut buffer, 1, &requests()[rng.random_range(0..10)]),
            _ => wire::put(&mut buffer, 1, &replies()[rng.random_range(0..13)]),
        }
        for _ in 0..rng.random_range(1..4) {
            let place = rng.random_range(4..buffer.len());
            buffer[place] = rng.random();
        }
        let mut same = buffer.clone();
        refused += usize::from(wire::take::<Request>(&mut buffer, MAX).is_err());
        refused += usize::from(wire::take::<Reply>(&mut same, MAX).is_err());
    }
    assert!(refused > 0);
}

#[test]
fn a_frame_over_the_limit_is_refused_before_it_is_there() {
    for length in [u32::MAX, (16 << 20) + 1] {
        let mut buffer = BytesMut::new();
        buffer.put_u32_le(length);
        let refused = wire::take::<Request>(&mut buffer, MAX);
        assert!(matches!(refused, Err(Malformed::Long(_))), "{refused:?}");
    }
}
