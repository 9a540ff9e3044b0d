//! Keys that a map or struct writes twice.

use super::*;

#[derive(Debug, Serialize, Deserialize)]
struct Flat {
    a: u8,
    #[serde(flatten)]
    rest: BTreeMap<String, u8>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Named {
    a: u8,
    t: u8,
}

#[derive(Debug, Serialize, Deserialize)]
struct TwoFlat {
    #[serde(flatten)]
    one: Named,
    #[serde(flatten)]
    two: BTreeMap<String, u8>,
}

/// Its tag may be a key of its content.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "t")]
enum Tagged {
    Map(BTreeMap<String, u8>),
    Struct(Named),
    Other(Other),
    Own { b: u8 },
    Nothing,
}

#[derive(Debug, Serialize, Deserialize)]
struct Other {
    b: u8,
}

/// A tag around another one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "b")]
enum Outer {
    Inner(Tagged),
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u8),
    Text(String),
}

#[derive(Debug, Serialize, Deserialize)]
enum Keyed {
    Flat(Flat),
    Two(TwoFlat),
    Tagged(Tagged),
    Outer(Outer),
    List(Vec<Flat>),
}

fn map(rng: &mut StdRng) -> BTreeMap<String, u8> {
    let mut map = BTreeMap::new();
    for _ in 0..rng.random_range(0..3) {
        let key = ["a", "b", "t", "x", "a\"\\", ""].choose(rng).unwrap();
        map.insert((*key).to_owned(), rng.random());
    }
    map
}

fn tagged(rng: &mut StdRng) -> Tagged {
    match rng.random_range(0..5) {
        0 => Tagged::Map(map(rng)),
        1 => Tagged::Struct(Named { a: 1, t: 2 }),
        2 => Tagged::Other(Other { b: 3 }),
        3 => Tagged::Own { b: 4 },
        _ => Tagged::Nothing,
    }
}

fn keyed(rng: &mut StdRng) -> Keyed {
    let flat = |rng: &mut StdRng| Flat {
        a: 7,
        rest: map(rng),
    };
    match rng.random_range(0..5) {
        0 => Keyed::Flat(flat(rng)),
        1 => Keyed::Two(TwoFlat {
            one: Named { a: 1, t: 2 },
            two: map(rng),
        }),
        2 => Keyed::Tagged(tagged(rng)),
        3 => Keyed::Outer(Outer::Inner(tagged(rng))),
        _ => Keyed::List(vec![flat(rng), flat(rng)]),
    }
}

/// Returns how many values are refused, how many are read as they were, and how many are not.
fn fates<C: Codec<Keyed>>(codec: &C, encode: impl Fn(&Keyed, &mut Vec<u8>) -> bool) -> [usize; 3] {
    let mut fates = [0; 3];
    for seed in 0..conformance::scale(4_000, 400_000) as u64 {
        let value = keyed(&mut StdRng::seed_from_u64(seed));
        let mut bytes = Vec::new();
        if !encode(&value, &mut bytes) {
            fates[0] += 1;
            continue;
        }
        let again = codec.decode(bytes.into());
        let is_same = again.is_ok_and(|again| format!("{again:?}") == format!("{value:?}"));
        fates[if is_same { 1 } else { 2 }] += 1;
    }
    fates
}

#[test]
fn a_value_of_types_that_share_a_map_is_read_as_it_was_encoded() {
    let message_pack = fates(&MessagePack, |value, buffer| {
        MessagePack.encode(value, buffer).is_ok()
    });
    let json = fates(&Json, |value, buffer| Json.encode(value, buffer).is_ok());
    let careless = fates(&MessagePack, |value, buffer| {
        rmp_serde::encode::write_named(buffer, value).is_ok()
    });
    for [refused, read, lost] in [message_pack, json] {
        assert_eq!(lost, 0);
        assert!(refused > 400 && read > 1_000, "{refused} {read}");
    }
    // The libraries themselves lose exactly what is refused.
    assert_eq!(careless, [0, message_pack[1], message_pack[0]]);
    assert_eq!(json, message_pack);
}

#[test]
fn a_key_that_is_written_twice_is_refused_by_name() {
    let of = |key: &str| BTreeMap::from([("x".to_owned(), 0), (key.to_owned(), 1)]);
    let flat = |key| Flat {
        a: 1,
        rest: of(key),
    };
    let expected = "key `a` is written twice, as with `#[serde(flatten)]` or `#[serde(tag)]` over a map that has it: \
                    rename one of the two";
    assert_eq!(reason::<_, MessagePack>(&flat("a")), expected);
    assert!(reason::<_, Json>(&vec![flat("b"), flat("a")]).starts_with(expected));
    survives::<_, MessagePack>(&flat("b"));
    survives::<_, Json>(&vec![flat("b"), flat("c")]);
    for value in [Tagged::Map(of("t")), Tagged::Struct(Named { a: 1, t: 2 })] {
        assert!(reason::<_, MessagePack>(&value).contains("key `t`"));
        assert!(reason::<_, Json>(&value).contains("key `t`"));
    }
    for value in [Tagged::Map(of("b")), Tagged::Other(Other { b: 2 })] {
        survives::<_, MessagePack>(&value);
        survives::<_, Json>(&value);
        assert!(reason::<_, Json>(&Outer::Inner(value)).contains("key `b`"));
    }
    // JSON has one key for a number and its text.
    let one = [
        (NumberOrText::Number(1), 0),
        (NumberOrText::Text("1".to_owned()), 1),
    ];
    let one = BTreeMap::from(one);
    assert!(reason::<_, Json>(&one).contains("key `1`"));
    survives::<_, MessagePack>(&one);
    // Each map has its own keys.
    let nested = BTreeMap::from([("a", of("a")), ("b", of("a"))]);
    let mut bytes = Vec::new();
    MessagePack
        .encode(&serde_json::to_value(&nested).unwrap(), &mut bytes)
        .unwrap();
    survives::<_, MessagePack>(&BTreeMap::from([((1_u8, true), 1), ((1, false), 2)]));
}
