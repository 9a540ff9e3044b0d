//! The exact bytes of a manifest, and that no others are taken for one.

use xxhash_rust::xxh3::xxh3_64;

use super::super::block::sign;
use super::super::manifest::{
    HEAD_BYTES, LogStart, Manifest, ManifestError, Meta, RunRecord, TableRecord, length,
};
use crate::stores::embedded::log::recover::Start;

const LOG: LogStart = LogStart {
    id: [0xdd; 16],
    start: Start {
        segment: 0x03,
        frame: 0x0405,
    },
};

/// Returns a manifest with a run that is being merged into the other one.
fn manifest(log: Option<LogStart>) -> Manifest {
    let input = RunRecord {
        id: 9,
        into: 10,
        hidden_bytes: 0x0b0c,
        begins: b"mid".to_vec(),
        tables: vec![TableRecord {
            id: 0x1111_1111_1111_1111,
            bytes: 0x0030_0000,
            root_bytes: 0x64,
            first_chunk: 1,
            chunks: vec![5, 0x0102],
        }],
    };
    let output = RunRecord {
        id: 10,
        into: 0,
        hidden_bytes: 0,
        begins: Vec::new(),
        tables: Vec::new(),
    };
    Manifest {
        sequence: 0x0d,
        meta: Meta {
            last_version: 0x0102,
            id: [0xee; 16],
            log,
        },
        chunk_bytes: 1 << 20,
        runs: vec![input, output],
    }
}

/// Returns the same without its checksum.
fn golden(log: Option<LogStart>) -> Vec<u8> {
    let log: Vec<u8> = match log {
        Some(_) => {
            let start = b"\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\x04\x05";
            [&[1][..], &[0xdd; 16], start].concat()
        }
        None => vec![0],
    };
    let rest = [
        &b"\0\0\0\0\0\0\0\x0d"[..],
        b"\0\0\0\0\0\0\x01\x02",
        &[0xee; 16],
        b"\0\x10\0\0",
        &log,
        b"\0\0\0\x02",
        b"\0\0\0\0\0\0\0\x09",
        b"\0\0\0\0\0\0\0\x0a",
        b"\0\0\0\0\0\0\x0b\x0c",
        b"\0\x03mid",
        b"\0\0\0\x01",
        &[0x11; 8],
        b"\0\0\0\0\0\x30\0\0",
        b"\0\0\0\x64",
        b"\0\0\0\x01",
        b"\0\0\0\x02",
        b"\0\0\0\x05",
        b"\0\0\x01\x02",
        b"\0\0\0\0\0\0\0\x0a",
        b"\0\0\0\0\0\0\0\0",
        b"\0\0\0\0\0\0\0\0",
        b"\0\0",
        b"\0\0\0\0",
    ];
    let rest = rest.concat();
    let length = u32::try_from(HEAD_BYTES + rest.len() + 8).unwrap();
    [
        b"fdbq-keyspace-s\n\0\0\0\x01",
        &length.to_be_bytes()[..],
        &rest,
    ]
    .concat()
}

fn signed(mut bytes: Vec<u8>) -> Vec<u8> {
    sign(&mut bytes, 0);
    bytes
}

#[test]
fn a_manifest_has_these_bytes() {
    for (log, len, checksum) in [
        (Some(LOG), 204, *b"\xdd\xdb\x36\xc1\xb4\xef\x7b\x6c"),
        (None, 172, *b"\xe4\xc0\x36\xbb\x00\x3c\x8f\x1a"),
    ] {
        let bytes = manifest(log).encode();
        assert_eq!(bytes, signed(golden(log)));
        let (content, found) = bytes.split_last_chunk::<8>().unwrap();
        assert_eq!((bytes.len(), *found), (len, checksum), "{found:02x?}");
        assert_eq!(*found, xxh3_64(content).to_be_bytes());
        assert_eq!(length(bytes.first_chunk().unwrap()), Some(len as u32));
        assert_eq!(Manifest::decode(&bytes), Ok(manifest(log)));
    }
    let empty = Manifest {
        runs: Vec::new(),
        ..manifest(None)
    };
    assert_eq!(Manifest::decode(&empty.encode()), Ok(empty));
}

/// Returns bytes whose length is right, with a right checksum.
fn of_length(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(bytes.len() + 8).unwrap();
    if let Some(field) = bytes.get_mut(20..24) {
        field.copy_from_slice(&length.to_be_bytes());
    }
    signed(bytes)
}

#[test]
fn a_manifest_of_any_other_shape_is_damage() {
    for log in [Some(LOG), None] {
        let good = golden(log);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            signed(bytes)
        };
        // The magic, the format, the length, the version twice, the flag of the log.
        let mut bad = vec![
            with(15, 0),
            with(19, 0),
            with(23, 0),
            with(32, 0x80),
            with(32, 0x7f),
            with(60, 2),
        ];
        if log.is_some() {
            // The numbers of the log's first segment and frame.
            bad.extend([with(77, 0x80), with(84, 0), with(85, 0xff)]);
            let mut no_frame = good.clone();
            no_frame[85..93].fill(0);
            bad.push(signed(no_frame));
        }
        bad.push(of_length([&good[..], &[0]].concat()));
        bad.extend((0..good.len()).map(|len| of_length(good[..len].to_vec())));
        bad.extend((0..good.len()).map(|len| signed(good[..len].to_vec())));
        bad.extend((0..good.len() + 8).map(|len| signed(good.clone())[..len].to_vec()));
        for at in 0..8 * (good.len() + 8) {
            let mut flipped = signed(good.clone());
            flipped[at / 8] ^= 1 << (at % 8);
            bad.push(flipped);
        }
        for bytes in bad {
            let found = Manifest::decode(&bytes);
            assert_eq!(found, Err(ManifestError::Damaged), "{bytes:02x?}");
        }
    }
}

#[test]
fn a_newer_format_is_named_whatever_follows_it() {
    for format in [2, 0x0100_0000] {
        let mut newer = golden(Some(LOG));
        newer[16..20].copy_from_slice(&u32::to_be_bytes(format));
        let named = Err(ManifestError::NewerFormat(format));
        assert_eq!(Manifest::decode(&signed(newer.clone())), named);
        newer.truncate(HEAD_BYTES);
        newer.push(99);
        assert_eq!(Manifest::decode(&signed(newer.clone())), named);
        // A damaged format is not taken for a newer one.
        let damaged = Manifest::decode(&newer);
        assert_eq!(damaged, Err(ManifestError::Damaged));
    }
}

#[test]
fn the_length_of_a_manifest_is_known_from_its_head_only() {
    let good = manifest(None).encode();
    let mut head = *good.first_chunk().unwrap();
    assert_eq!(length(&head), Some(good.len() as u32));
    head[20..].copy_from_slice(&24u32.to_be_bytes());
    assert_eq!(length(&head), None);
    head = *good.first_chunk().unwrap();
    head[3] = 0;
    assert_eq!(length(&head), None);
}
