//! How deep values nest: bytes that nest deeper are refused, and values that do so are not encoded.

use super::*;

#[track_caller]
fn too_deep<T: Debug, C: Codec<T> + Default>(bytes: Vec<u8>) {
    let error = C::default().decode(bytes.into()).unwrap_err();
    // The decoder of JSON has the same limit.
    let reasons = ["nests more than 127 levels", "recursion limit exceeded"];
    let is_expected = reasons.iter().any(|reason| error.reason.contains(reason));
    assert!(is_expected, "{error}");
}

#[test]
fn bytes_that_nest_too_deep_are_refused_before_the_stack_is_full() {
    #[derive(Debug, Deserialize, Serialize)]
    struct Nested(Vec<Nested>);
    #[derive(Debug, Deserialize, Serialize)]
    enum Boxes {
        B(Box<Boxes>),
        P(u8, Box<Boxes>),
        S { s: Box<Boxes> },
        E,
    }
    #[derive(Debug, Deserialize, Serialize)]
    struct Rest(Option<Box<Rest>>);

    let max_bytes = limits::MAX_VALUE_BYTES;
    too_deep::<Nested, MessagePack>(vec![0x91; max_bytes]);
    too_deep::<Nested, Json>(vec![b'['; max_bytes]);
    too_deep::<Nested, Bincode>(vec![1; max_bytes]);
    too_deep::<Boxes, MessagePack>(b"\x81\xa1B".repeat(max_bytes / 3));
    too_deep::<Boxes, MessagePack>(b"\x81\xa1P\x92\x07".repeat(max_bytes / 5));
    too_deep::<Boxes, MessagePack>(b"\x81\xa1S\x81\xa1s".repeat(max_bytes / 6));
    too_deep::<Boxes, Json>(br#"{"B":"#.repeat(max_bytes / 5));
    too_deep::<Boxes, Json>(br#"{"S":{"s":"#.repeat(max_bytes / 10));
    too_deep::<Boxes, Bincode>(vec![0; max_bytes]);
    too_deep::<Boxes, Bincode>(b"\x01\x07".repeat(max_bytes / 2));
    too_deep::<Rest, Bincode>(vec![1; max_bytes]);
    // These bytes are read again and again.
    too_deep::<Rest, MessagePack>(vec![1]);
    too_deep::<Rest, Json>(vec![b'1']);
    too_deep::<serde_json::Value, MessagePack>(vec![0x91; max_bytes]);
}

#[test]
fn what_is_decoded_nests_no_deeper_than_what_is_encoded() {
    let chain = |levels| b"\x81\xa6Branch".repeat(levels);
    let decoded = |levels| {
        let bytes = [chain(levels), b"\xa4Leaf".to_vec()].concat();
        <MessagePack as Codec<ValueTree>>::decode(&MessagePack, bytes.into())
    };
    survives::<_, MessagePack>(&decoded(127).unwrap());
    assert!(decoded(128).is_err());
    let maybe = |levels| {
        let inner = (0..levels).fold(ValueTree::Leaf, |inner, _| {
            ValueTree::Maybe(Some(Box::new(inner)))
        });
        ValueTree::List(vec![inner])
    };
    // A variant and an array, and then a variant and a `Some` for each level.
    survives::<_, MessagePack>(&maybe(62));
    survives::<_, Json>(&maybe(62));
    survives::<_, Bincode>(&maybe(62));
    reason::<_, MessagePack>(&maybe(63));
    reason::<_, Json>(&maybe(63));
    reason::<_, Bincode>(&maybe(63));
}

#[test]
fn bytes_are_a_level_where_they_are_an_array() {
    let blob = |levels| {
        (0..levels).fold(ValueTree::Blob(Blob(vec![7])), |inner, _| {
            ValueTree::Branch(Box::new(inner))
        })
    };
    survives::<_, Json>(&blob(125));
    reason::<_, Json>(&blob(126));
    survives::<_, MessagePack>(&blob(126));
    survives::<_, Bincode>(&blob(126));
    reason::<_, MessagePack>(&blob(127));
}

#[test]
fn a_value_nests_as_deep_as_it_can_be_read() {
    // Each level is a struct and an array; the last array is empty.
    for levels in [2, 126] {
        survives::<_, MessagePack>(&Kids::nested(levels));
        survives::<_, Json>(&Kids::nested(levels));
        survives::<_, Bincode>(&Kids::nested(levels));
    }
    for levels in [128, 130, 10_000] {
        let nested = Kids::nested(levels);
        for reason in [
            reason::<_, MessagePack>(&nested),
            reason::<_, Json>(&nested),
            reason::<_, Bincode>(&nested),
        ] {
            assert!(reason.contains("store a flatter value"), "{reason}");
        }
    }
    // The odd limit itself.
    let list = |levels| {
        (0..levels).fold(ValueTree::Leaf, |inner, _| {
            ValueTree::Branch(Box::new(inner))
        })
    };
    survives::<_, MessagePack>(&list(127));
    survives::<_, Json>(&list(127));
    reason::<_, MessagePack>(&list(128));
    reason::<_, Json>(&list(128));
}
