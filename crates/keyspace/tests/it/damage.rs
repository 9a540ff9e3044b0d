//! Runs the bodies of the fuzz targets on valid inputs that are damaged at random, from a seed.

use std::collections::BTreeMap;

use conformance::fuzz::{self, Choice, Elements, Everything};
use keyspace::codec::{Bincode, Codec, Json, MessagePack, Tuple};
use keyspace::tuple::Versionstamp;
use keyspace::{Database, Error, Isolation, RangeQuery, Runner, Subspace, Transaction, read_all};

#[test]
fn damaged_values_are_values_or_an_error() {
    fn encode<T, C: Codec<T> + Default>(value: &T) -> Vec<u8> {
        let mut bytes = Vec::new();
        C::default().encode(value, &mut bytes).unwrap();
        bytes
    }
    let nested = Choice::Pair(true, Box::new(Choice::Nothing));
    let bytes = Choice::Named {
        bytes: vec![0, 255],
    };
    let everything = Everything {
        text: "a\0\u{1f600}".to_owned(),
        numbers: (1, -300, 1 << 20, i64::MIN, u128::MAX, 1.5, -1e300),
        list: vec![None, Some('\u{e9}')],
        map: BTreeMap::from([("x".to_owned(), nested), ("y".to_owned(), bytes)]),
    };
    let elements: Elements = (
        vec![0, 255],
        "a\0".to_owned(),
        (i64::MIN, u64::MAX, None),
        (1.5, -1e300),
        Versionstamp::complete([7; 10], 1),
    );
    let whole = [
        encode::<_, Bincode>(&everything),
        encode::<_, MessagePack>(&everything),
        encode::<_, Json>(&everything),
        encode::<_, Tuple>(&elements),
    ];
    let body = |input: &[u8]| {
        fuzz::codec(input);
        fuzz::reads_what_it_writes::<Everything, Bincode>(input);
    };
    fuzz::drive(body, &whole);
}

/// Returns rows of a ledger as inputs.
#[tokio::main(flavor = "current_thread")]
async fn slots() -> Vec<Vec<u8>> {
    let db = keyspace::open("memory:").unwrap();
    let runner = Runner::new(db.clone());
    for _ in 0..3 {
        let set = |tr| async move {
            Transaction::set(&tr, b"key", b"");
            Ok::<_, Error>(())
        };
        runner.run(set).await.unwrap();
    }
    let ledgers = Subspace::from("keyspace.ledger");
    let (begin, end) = ledgers.range();
    let tr = db.begin().unwrap();
    let rows = read_all(&tr, RangeQuery::keys(begin, end), Isolation::Snapshot);
    let prefix_bytes = ledgers.bytes().len();
    let inputs = rows.await.unwrap().into_iter().map(|row| {
        let key = &row.key()[prefix_bytes..];
        [&[key.len() as u8], key, row.value()].concat()
    });
    inputs.collect()
}

// Runs outside of a runtime, because the body blocks.
#[test]
fn damaged_slots_are_slots_or_corrupt() {
    let whole = slots();
    fuzz::drive(fuzz::slot, &whole);
}
