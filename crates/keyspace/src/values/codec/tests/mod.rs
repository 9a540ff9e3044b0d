//! The bytes of every codec, and what the codecs refuse.

mod depth;
mod repeats;

use std::collections::BTreeMap;
use std::fmt::{self, Debug};

use foundationdb_tuple::Versionstamp;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serializer};

use super::*;
use crate::contract::limits;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Job {
    name: String,
    size: u64,
    tags: Vec<Option<i32>>,
}

fn job() -> Job {
    Job {
        name: "a\0b".to_owned(),
        size: 300,
        tags: vec![None, Some(-1)],
    }
}

#[track_caller]
fn golden<T: PartialEq + Debug, C: Codec<T> + Default>(value: &T, expected: &[u8]) {
    let mut bytes = b"before".to_vec();
    C::default().encode(value, &mut bytes).unwrap();
    let written = bytes.strip_prefix(b"before").unwrap();
    assert_eq!(
        written.escape_ascii().to_string(),
        expected.escape_ascii().to_string()
    );
    let decoded = C::default()
        .decode(Bytes::copy_from_slice(written))
        .unwrap();
    assert_eq!(&decoded, value);
}

#[track_caller]
fn refused<T: Debug, C: Codec<T> + Default>(bytes: &'static [u8], reason: &str) {
    let error = C::default().decode(Bytes::from_static(bytes)).unwrap_err();
    assert_eq!(error.codec, C::NAME);
    assert!(error.reason.contains(reason), "{error}");
}

#[test]
fn bincode_writes_these_bytes() {
    golden::<_, Bincode>(&job(), b"\x03a\0b\xfb\x2c\x01\x02\x00\x01\x01");
    golden::<_, Bincode>(&0_u64, b"\x00");
    golden::<_, Bincode>(&250_u64, b"\xfa");
    golden::<_, Bincode>(&-1_i64, b"\x01");
    golden::<_, Bincode>(&1.5_f64, b"\0\0\0\0\0\0\xf8\x3f");
    golden::<_, Bincode>(&(), b"");
}

#[test]
fn message_pack_writes_these_bytes() {
    golden::<_, MessagePack>(
        &job(),
        b"\x83\xa4name\xa3a\0b\xa4size\xcd\x01\x2c\xa4tags\x92\xc0\xff",
    );
    golden::<_, MessagePack>(&0_u64, b"\x00");
    golden::<_, MessagePack>(&250_u64, b"\xcc\xfa");
    golden::<_, MessagePack>(&-1_i64, b"\xff");
    golden::<_, MessagePack>(&1.5_f64, b"\xcb\x3f\xf8\0\0\0\0\0\0");
    golden::<_, MessagePack>(&(), b"\xc0");
    golden::<_, MessagePack>(&Change::Resize { to: 7 }, b"\x81\xa6Resize\x81\xa2to\x07");
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Change {
    Resize { to: u8 },
}

/// A later version of [`Job`]: without `size`, with `owner`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct NewerJob {
    tags: Vec<Option<i32>>,
    #[serde(default)]
    owner: Option<String>,
    name: String,
}

#[test]
fn message_pack_reads_a_type_that_gained_lost_and_moved_fields() {
    let newer = NewerJob {
        name: job().name,
        tags: job().tags,
        owner: Some("ada".to_owned()),
    };
    let mut bytes = Vec::new();
    MessagePack.encode(&job(), &mut bytes).unwrap();
    let read: NewerJob = MessagePack.decode(bytes.into()).unwrap();
    assert_eq!(
        read,
        NewerJob {
            owner: None,
            ..newer
        }
    );
    // In the other direction, the error names the field that is missing and has no default.
    let newer = NewerJob {
        owner: None,
        ..read
    };
    let mut bytes = Vec::new();
    MessagePack.encode(&newer, &mut bytes).unwrap();
    let missing = <MessagePack as Codec<Job>>::decode(&MessagePack, bytes.into()).unwrap_err();
    assert!(missing.reason.contains("missing field `size`"), "{missing}");
}

#[test]
fn a_codec_may_hold_a_value() {
    /// Encrypts bytes with a key.
    #[derive(Clone)]
    struct Sealed {
        key: u8,
    }
    impl Codec<Bytes> for Sealed {
        const NAME: &'static str = "Sealed";

        fn encode(&self, value: &Bytes, buffer: &mut Vec<u8>) -> Result<()> {
            buffer.extend(value.iter().map(|byte| byte ^ self.key));
            Ok(())
        }

        fn decode(&self, bytes: Bytes) -> Result<Bytes, DecodeError> {
            Ok(bytes.iter().map(|byte| byte ^ self.key).collect())
        }
    }
    let codec = Sealed { key: 1 };
    let mut bytes = Vec::new();
    codec
        .encode(&Bytes::from_static(b"abc"), &mut bytes)
        .unwrap();
    assert_eq!(bytes, b"`cb");
    assert_eq!(codec.decode(bytes.into()).unwrap(), &b"abc"[..]);
}

#[test]
fn raw_writes_the_bytes_themselves() {
    golden::<_, Raw>(&Bytes::from_static(b"a\0\xff"), b"a\0\xff");
    golden::<_, Raw>(&b"a\0\xff".to_vec(), b"a\0\xff");
    golden::<_, Raw>(&Bytes::new(), b"");
}

#[test]
fn tuple_writes_these_bytes() {
    golden::<_, Tuple>(
        &(1_i64, "a\0".to_owned(), b"b".to_vec()),
        b"\x15\x01\x02a\0\xff\0\x01b\0",
    );
    golden::<_, Tuple>(&((-300_i64,), true), b"\x05\x12\xfe\xd3\0\x27");
    golden::<_, Tuple>(&"job".to_owned(), b"\x02job\0");
    golden::<_, Tuple>(&("job".to_owned(),), b"\x02job\0");
    golden::<_, Tuple>(
        &(Versionstamp::complete(*b"0123456789", 7),),
        b"\x330123456789\0\x07",
    );
}

#[test]
fn json_writes_these_bytes() {
    golden::<_, Json>(
        &job(),
        br#"{"name":"a\u0000b","size":300,"tags":[null,-1]}"#,
    );
}

#[test]
fn json_reads_the_number_that_was_written_to_its_last_bit() {
    golden::<_, Json>(&-2.100_000_000_000_000_2e301, b"-2.1000000000000002e+301");
}

#[test]
fn bytes_left_over_are_an_error() {
    refused::<u64, Bincode>(b"\x01\x02", "1 bytes left over");
    refused::<(), Bincode>(b"\x00", "1 bytes left over");
    refused::<u64, MessagePack>(b"\x01\x02", "1 bytes left over");
    refused::<i64, Tuple>(b"\x15\x01\x15\x02", "trailing bytes");
    refused::<(i64,), Tuple>(b"\x15\x01\x00", "trailing bytes");
    refused::<u64, Json>(b"1 2", "trailing characters");
}

#[test]
fn missing_and_foreign_bytes_are_an_error() {
    refused::<Job, Bincode>(b"\x03a", "");
    refused::<String, Bincode>(b"\x02\xff\xff", "");
    refused::<Job, MessagePack>(b"\x81\xa4name\xa1a", "missing field");
    refused::<Change, MessagePack>(b"\x81\xa3Lie\x07", "");
    refused::<String, MessagePack>(b"\xa2\xff\xff", "");
    refused::<u64, MessagePack>(b"", "");
    refused::<(i64, i64), Tuple>(b"\x15\x01", "missing bytes");
    refused::<i64, Tuple>(b"\x02job\0", "bad code");
    refused::<Job, Json>(b"{\"name\":\"a\"}", "size");
    refused::<u64, Json>(b"", "EOF");
}

#[test]
fn a_damaged_length_allocates_nothing_that_no_record_can_hold() {
    refused::<String, Bincode>(b"\xfd\xff\xff\xff\xff\xff\xff\xff\x7f", "LimitExceeded");
    refused::<Vec<u64>, Bincode>(b"\xfc\xff\xff\xff\x7f", "");
    refused::<String, MessagePack>(b"\xdb\xff\xff\xff\xff", "");
    refused::<Vec<u64>, MessagePack>(b"\xdd\xff\xff\xff\xff", "");
}

#[test]
fn the_largest_record_decodes_whatever_its_numbers() {
    let numbers = vec![1_u128; limits::MAX_VALUE_BYTES - 5];
    let mut bytes = Vec::new();
    Bincode.encode(&numbers, &mut bytes).unwrap();
    assert_eq!(bytes.len(), limits::MAX_VALUE_BYTES);
    let decoded: Vec<u128> = Bincode.decode(bytes.into()).unwrap();
    assert_eq!(decoded, numbers);
}

#[test]
fn a_value_that_a_codec_cannot_hold_is_refused_by_name() {
    let mut buffer = Vec::new();
    let error = Json
        .encode(&BTreeMap::from([((1, 2), 3)]), &mut buffer)
        .unwrap_err();
    assert!(matches!(error, Error::Encode { codec: "Json", .. }));

    assert!(reason::<_, Tuple>(&Some((None::<i64>, 1_i64))).contains("begins with `None`"));
    survives::<_, Tuple>(&(None::<i64>, 1_i64));
    survives::<_, Tuple>(&None::<(i64, i64)>);
    survives::<_, Tuple>(&Some((1_i64, None::<i64>)));

    let incomplete = (Versionstamp::incomplete(0),);
    let error = Tuple.encode(&incomplete, &mut buffer).unwrap_err();
    assert_eq!(
        error.to_string(),
        "value cannot be encoded as Tuple: a versionstamp is incomplete"
    );
}

#[test]
fn a_decode_error_becomes_the_corrupt_record_under_its_key() {
    let error = <Bincode as Codec<u64>>::decode(&Bincode, Bytes::new())
        .unwrap_err()
        .at(&b"q\x15"[..]);
    let Error::Corrupt { key, reason } = error else {
        panic!("expected a corrupt record, got {error}");
    };
    assert_eq!(key, &b"q\x15"[..]);
    assert!(reason.starts_with("expected Bincode: "), "{reason}");
}

/// A value whose parts nest, and of which each codec refuses some.
#[derive(Debug, Serialize, Deserialize)]
enum ValueTree {
    Leaf,
    Unit(()),
    Number(i64),
    Large(u128),
    Small(i128),
    Float(f64),
    Single(f32),
    Text(String),
    Letter(char),
    Empty(Empty),
    Branch(Box<ValueTree>),
    Pair(Box<ValueTree>, Box<ValueTree>),
    List(Vec<ValueTree>),
    Named(BTreeMap<String, ValueTree>),
    Numbered(BTreeMap<i128, ValueTree>),
    Switched(BTreeMap<bool, ValueTree>),
    Optional(BTreeMap<Option<u8>, ValueTree>),
    Maybe(Option<Box<ValueTree>>),
    MaybeTwice(Option<Option<Box<ValueTree>>>),
    MaybeUnit(Option<()>),
    MaybeEmpty(Option<Empty>),
    MaybeNew(Option<New>),
    Kids { kids: Vec<Kids> },
    Partial(Partial),
    Blob(Blob),
}

/// Bytes that are encoded as such.
#[derive(Debug)]
struct Blob(Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl<'de> Visitor<'de> for Bytes {
            type Value = Blob;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob(bytes.to_vec()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<Blob, A::Error> {
                let mut read = Vec::new();
                while let Some(byte) = bytes.next_element()? {
                    read.push(byte);
                }
                Ok(Blob(read))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Empty;

#[derive(Debug, Serialize, Deserialize)]
struct New(Option<u8>);

#[derive(Debug, Serialize, Deserialize)]
struct Kids {
    kids: Vec<Kids>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Partial {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    count: Option<u8>,
    last: bool,
}

impl Kids {
    /// Returns a value of this many structs and arrays inside each other.
    fn nested(levels: usize) -> Self {
        let mut nested = Self { kids: Vec::new() };
        for _ in 1..levels / 2 {
            nested = Self { kids: vec![nested] };
        }
        nested
    }
}

/// Returns a random value with at most this many levels of variants.
fn tree(rng: &mut StdRng, levels: usize) -> ValueTree {
    let floats = [
        f64::NAN,
        f64::INFINITY,
        f64::MIN_POSITIVE,
        -0.0,
        1.5,
        -2.100_000_000_000_000_2e301,
    ];
    let float = *floats.choose(rng).unwrap();
    let ends = levels == 0;
    match rng.random_range(if ends { 0..17 } else { 0..25 }) {
        0 => ValueTree::Leaf,
        1 => ValueTree::Unit(()),
        2 => ValueTree::Number(rng.random()),
        3 => ValueTree::Large(rng.random()),
        4 => ValueTree::Small(rng.random()),
        5 => ValueTree::Float(float),
        6 => ValueTree::Single(if rng.random() {
            float as f32
        } else {
            f32::from_bits(rng.random())
        }),
        7 => ValueTree::Text("a\0\u{e4}\u{10ffff}\"".repeat(rng.random_range(0..3))),
        8 => ValueTree::Letter(rng.random()),
        9 => ValueTree::Empty(Empty),
        10 => ValueTree::MaybeUnit([None, Some(())].choose(rng).copied().unwrap()),
        11 => ValueTree::MaybeEmpty(rng.random::<bool>().then_some(Empty)),
        12 => ValueTree::MaybeNew(
            rng.random::<bool>()
                .then(|| New(rng.random::<bool>().then_some(7))),
        ),
        13 => ValueTree::Kids {
            kids: vec![Kids::nested(
                *[2, 60, 122, 124, 126, 400].choose(rng).unwrap(),
            )],
        },
        14 => ValueTree::Partial(Partial {
            count: rng.random::<bool>().then_some(1),
            last: true,
        }),
        15 => ValueTree::Maybe(None),
        16 => ValueTree::Blob(Blob(vec![0xa7; rng.random_range(0..3)])),
        17 => ValueTree::Branch(Box::new(tree(rng, levels - 1))),
        18 => ValueTree::Pair(Box::new(tree(rng, 0)), Box::new(tree(rng, levels - 1))),
        19 => ValueTree::List(
            (0..rng.random_range(0..3))
                .map(|_| tree(rng, levels / 2))
                .collect(),
        ),
        20 => ValueTree::Named([("a".to_owned(), tree(rng, levels - 1))].into()),
        21 => ValueTree::Numbered([(rng.random(), tree(rng, levels - 1))].into()),
        22 => ValueTree::Switched([(rng.random(), tree(rng, levels - 1))].into()),
        23 => {
            ValueTree::Optional([(rng.random::<bool>().then_some(1), tree(rng, levels - 1))].into())
        }
        _ => ValueTree::MaybeTwice(match rng.random_range(0..3) {
            0 => None,
            1 => Some(None),
            _ => Some(Some(Box::new(tree(rng, levels - 1)))),
        }),
    }
}

/// Returns the first value that a codec encodes and does not read again as it was. It must also have refused
/// and encoded some.
fn first_lost<C: Codec<ValueTree>>(codec: &C, seeds: u64) -> Option<String> {
    let mut refused = 0;
    let mut read = 0;
    for seed in 0..seeds {
        let mut rng = StdRng::seed_from_u64(seed);
        let levels = if rng.random_ratio(1, 4) { 140 } else { 6 };
        let value = tree(&mut rng, levels);
        let mut bytes = Vec::new();
        if codec.encode(&value, &mut bytes).is_err() {
            refused += 1;
            continue;
        }
        let lost = match codec.decode(bytes.into()) {
            // Not equality: NaN is not equal to itself, and zero is equal to negative zero.
            Ok(again) if format!("{again:?}") == format!("{value:?}") => None,
            Ok(again) => Some(format!("read as {again:?}")),
            Err(error) => Some(error.to_string()),
        };
        if let Some(lost) = lost {
            return Some(format!("{} with seed {seed}: {value:?}: {lost}", C::NAME));
        }
        read += 1;
    }
    assert!(
        refused > seeds / 100 && read > seeds / 4,
        "{refused} refused, {read} read"
    );
    None
}

#[test]
fn a_value_that_is_encoded_is_read_as_it_was() {
    let seeds = conformance::scale(4_000, 400_000) as u64;
    assert_eq!(first_lost(&MessagePack, seeds), None);
    assert_eq!(first_lost(&Json, seeds), None);
    assert_eq!(first_lost(&Bincode, seeds), None);
}

/// Codecs that encode whatever their libraries encode: the planted bug.
macro_rules! careless {
    ($codec:ident, $encode:expr) => {{
        #[derive(Clone)]
        struct Careless;

        impl Codec<ValueTree> for Careless {
            const NAME: &'static str = "careless";

            fn encode(&self, value: &ValueTree, buffer: &mut Vec<u8>) -> Result<()> {
                let encode: fn(&ValueTree, &mut Vec<u8>) -> bool = $encode;
                if encode(value, buffer) {
                    Ok(())
                } else {
                    Err(unencodable("careless", "refused"))
                }
            }

            fn decode(&self, bytes: Bytes) -> Result<ValueTree, DecodeError> {
                $codec.decode(bytes)
            }
        }
        first_lost(&Careless, 4_000)
    }};
}

#[test]
fn the_comparison_finds_what_the_libraries_lose() {
    let message_pack = careless!(MessagePack, |value, buffer| {
        rmp_serde::encode::write_named(buffer, value).is_ok()
    });
    let json = careless!(Json, |value, buffer| serde_json::to_writer(buffer, value)
        .is_ok());
    let bincode = careless!(Bincode, |value, buffer| {
        let config = bincode::config::standard();
        bincode::serde::encode_into_std_write(value, buffer, config).is_ok()
    });
    for lost in [message_pack, json, bincode] {
        assert!(lost.is_some());
    }
}

#[track_caller]
fn reason<T: Debug, C: Codec<T> + Default>(value: &T) -> String {
    match C::default().encode(value, &mut Vec::new()) {
        Err(Error::Encode { codec, reason }) => {
            assert_eq!(codec, C::NAME);
            reason
        }
        other => panic!("{value:?}: {other:?}"),
    }
}

#[track_caller]
fn survives<T: Debug, C: Codec<T> + Default>(value: &T) {
    let mut bytes = Vec::new();
    C::default().encode(value, &mut bytes).unwrap();
    let again = C::default().decode(bytes.into()).unwrap();
    assert_eq!(format!("{again:?}"), format!("{value:?}"));
}

#[test]
fn what_would_be_read_as_another_value_is_refused_by_name() {
    for reason in [
        reason::<_, Json>(&Some(None::<u8>)),
        reason::<_, Json>(&Some(())),
        reason::<_, Json>(&Some(Empty)),
        reason::<_, Json>(&Some(New(None))),
        reason::<_, Json>(&Some(serde_json::Value::Null)),
        reason::<_, MessagePack>(&Some(None::<u8>)),
        reason::<_, MessagePack>(&Some(())),
        reason::<_, MessagePack>(&BTreeMap::from([(Some(None::<u8>), 1)])),
    ] {
        assert!(reason.contains("read as `None`"), "{reason}");
    }
    survives::<_, MessagePack>(&Some(Empty));
    survives::<_, Bincode>(&Some(None::<u8>));
    survives::<_, Bincode>(&Some(()));
    survives::<_, Json>(&Some(vec![None::<u8>]));
    survives::<_, MessagePack>(&vec![None, Some(Box::new(vec![None, Some(1)]))]);
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(reason::<_, Json>(&vec![Some(number)]).contains("not JSON numbers"));
        reason::<_, Json>(&(number as f32));
        survives::<_, MessagePack>(&number);
        survives::<_, Bincode>(&number);
        survives::<_, Tuple>(&number);
    }
}

#[test]
fn what_bincode_cannot_find_again_is_refused_by_name() {
    #[derive(Debug, Serialize, Deserialize)]
    struct Flat {
        #[serde(flatten)]
        rest: BTreeMap<String, u8>,
    }
    let flat = Flat {
        rest: [("a".to_owned(), 1)].into(),
    };
    assert!(reason::<_, Bincode>(&flat).contains("flatten"));
    survives::<_, MessagePack>(&flat);
    survives::<_, Json>(&flat);

    let partial = |count| Partial { count, last: true };
    assert!(reason::<_, Bincode>(&partial(None)).contains("`count` is left out"));
    survives::<_, Bincode>(&partial(Some(1)));
    survives::<_, MessagePack>(&partial(None));
    survives::<_, Json>(&partial(None));

    survives::<_, Bincode>(&vec![u128::MAX; limits::MAX_VALUE_BYTES / 17 - 1]);
    assert!(reason::<_, Bincode>(&vec![0_u8; limits::MAX_VALUE_BYTES]).contains("too many"));
}

#[test]
fn numbers_and_texts_of_every_size_survive() {
    survives::<_, Json>(&(u128::MAX, i128::MIN, u64::MAX, f32::MIN_POSITIVE, f64::MAX));
    survives::<_, MessagePack>(&(u128::MAX, i128::MIN, Some(u128::MAX), i64::MIN));
    survives::<_, Bincode>(&(u128::MAX, i128::MIN, 'a', "\0".to_owned()));
    survives::<_, Tuple>(&(u64::MAX, i64::MIN, -0.0_f64, "\0\u{10ffff}".to_owned()));
    survives::<_, Tuple>(&(None::<i64>, (Some(vec![1_u8]), None::<i64>), ((),)));
    survives::<_, Json>(&std::path::PathBuf::from("a b"));
    survives::<_, Json>(&BTreeMap::from([(i128::MIN, '\0'), (-1, '\u{ffff}')]));
}

#[cfg(unix)]
#[test]
fn a_path_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStringExt;

    let foreign = std::path::PathBuf::from(std::ffi::OsString::from_vec(vec![0xff]));
    reason::<_, Json>(&foreign);
    reason::<_, MessagePack>(&foreign);
    reason::<_, Bincode>(&foreign);
}
