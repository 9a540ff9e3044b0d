//! Indexes of maps: what they find is what the rows say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use conformance::chaos::Chaos;
use conformance::scale;
use conformance::stores::TestStore;
use futures::TryStreamExt;
use keyspace::env::ManualClock;
use keyspace::map::{Index, MapError, MapOptions, Rows};
use keyspace::{Database, Environment, Error, Map, RunOptions, Runner, Subspace, Transaction};
use serde::{Deserialize, Serialize};

use super::in_test;
use super::model::{Dice, faults};

conformance::on_every_store!(
    indexes_find_what_the_rows_say,
    entries_have_the_documented_bytes,
);

/// A value with several keys in one index, and at most one in a unique one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) tags: Vec<String>,
    pub(super) code: Option<u64>,
}

pub(super) type Parts = Map<u64, Part>;
type Model = BTreeMap<u64, Part>;

/// The indexes of parts.
#[derive(Clone)]
pub(super) struct Indexes {
    pub(super) by_tag: Index<Part, String>,
    pub(super) by_code: Index<Part, (u64, bool)>,
}

impl Indexes {
    pub(super) fn new() -> Self {
        let by_code = |part: &Part| part.code.map(|code| (code, code % 2 == 0));
        Self {
            by_tag: Index::new("tag", |part: &Part| part.tags.clone()),
            by_code: Index::new("code", by_code).unique(),
        }
    }

    pub(super) fn options(&self, store: &TestStore) -> MapOptions<Part> {
        let options = in_test(store).with_index(&self.by_tag);
        options.with_index(&self.by_code)
    }

    /// Opens the map of a test.
    pub(super) async fn open<D: Database>(
        &self,
        runner: &Runner<D>,
        store: &TestStore,
    ) -> Result<Parts, Error> {
        Map::open_with(runner, subspace(store), self.options(store)).await
    }
}

pub(super) fn subspace(store: &TestStore) -> Subspace {
    store.root.subspace(&"parts")
}

pub(super) fn draw(dice: &Dice) -> Part {
    let tags = ["", "a", "a\0", "b"].map(str::to_owned);
    let tags = (0..dice.below(4)).map(|_| tags[dice.below(4) as usize].clone());
    Part {
        // Also the same one twice.
        tags: tags.collect(),
        code: Some(dice.below(12)).filter(|code| *code > 2),
    }
}

/// Returns the rows that an index finds, in its order.
fn found<I: Ord>(
    model: &Model,
    keys_of: impl Fn(&Part) -> Vec<I>,
    is_within: impl Fn(&I) -> bool,
) -> Vec<(u64, Part)> {
    let entries = model.iter().flat_map(|(key, part)| {
        let keys: BTreeSet<_> = keys_of(part).into_iter().collect();
        keys.into_iter().map(|of_index| (of_index, *key))
    });
    let entries: BTreeSet<_> = entries
        .filter(|(of_index, _)| is_within(of_index))
        .collect();
    entries
        .iter()
        .map(|(_, key)| (*key, model[key].clone()))
        .collect()
}

async fn compare(
    tr: &impl Transaction,
    rows: Rows<'_, u64, Part>,
    mut expected: Vec<(u64, Part)>,
    dice: (bool, usize),
) -> Result<(), Error> {
    let (is_reversed, limit) = dice;
    let rows = if is_reversed {
        expected.reverse();
        rows.reversed()
    } else {
        rows
    };
    let streamed: Vec<_> = rows.stream(tr).try_collect().await?;
    assert_eq!(streamed, expected);
    assert_eq!(rows.first(tr).await?.as_ref(), expected.first());
    assert_eq!(rows.count(tr, 100).await?.count, expected.len());
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let page = rows.page(tr, after.as_ref(), limit).await?;
        pages.extend(
            page.rows
                .into_iter()
                .map(|row| (row.id, row.value.unwrap())),
        );
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(pages, expected);
    Ok(())
}

/// Writes a row, unless another row has its code.
async fn write(
    tr: &impl Transaction,
    parts: &Parts,
    model: &mut Model,
    (key, part): (u64, Option<Part>),
    updates: bool,
) -> Result<(), Error> {
    let code = part.as_ref().and_then(|part| part.code);
    let mut others = model.iter().filter(|(other, _)| **other != key);
    let taken = others.find(|(_, other)| code.is_some() && other.code == code);
    let written = match &part {
        _ if updates => {
            let new = part.clone();
            parts.update(tr, &key, |_| new).await.map(drop)
        }
        Some(part) => parts.set(tr, &key, part).await,
        None => parts.remove(tr, &key).await,
    };
    if let Some((other, _)) = taken {
        let refusal = match written {
            Err(Error::Map(refusal)) => refusal,
            Err(error) => return Err(error),
            Ok(()) => panic!("two rows have the code {code:?}"),
        };
        let code = code.unwrap();
        let expected = MapError::Taken {
            index: "code".to_owned(),
            key: format!("(({code}, {}))", code % 2 == 0),
            row: format!("({other})"),
        };
        assert_eq!(*refusal, expected);
        return Ok(());
    }
    written?;
    match part {
        Some(part) => drop(model.insert(key, part)),
        None => drop(model.remove(&key)),
    }
    Ok(())
}

async fn indexes_find_what_the_rows_say(store: TestStore) {
    for seed in 0..scale(2, 200) as u64 {
        let store = store.fresh();
        let env = Environment::seeded(seed, Arc::new(ManualClock::moved_by_sleepers()));
        let dice = &Dice(env.clone());
        let chaos = Chaos::new(store.db.clone(), env.clone(), faults());
        let options = RunOptions::default()
            .with_environment(env)
            .with_ledger_subspace(store.root.subspace(&"ledgers"));
        let runner = &Runner::with_options(chaos.clone(), options);
        let indexes = &Indexes::new();
        let parts = &indexes.open(runner, &store).await.unwrap();
        let mut model = Model::new();
        for _ in 0..scale(20, 100) {
            let count = 1 + dice.below(4);
            let rows = (0..count).map(|_| {
                let part = Some(draw(dice)).filter(|_| dice.below(4) > 0);
                ((dice.below(8), part), dice.below(2) == 0)
            });
            let rows: Vec<_> = rows.collect();
            let (tag, end, low) = (dice.below(3), dice.below(3), dice.below(12));
            let how = (dice.below(2) == 0, 1 + dice.below(3) as usize);
            let before = &model;
            let program = async |tr| {
                let mut model = before.clone();
                for (row, updates) in rows.clone() {
                    write(&tr, parts, &mut model, row, updates).await?;
                }
                let tags = ["a", "a\0", "b"].map(str::to_owned);
                let tag = &tags[tag as usize];
                let end = &tags[end as usize];
                let tags_of = |part: &Part| part.tags.clone();
                let codes_of = |part: &Part| part.code.into_iter().collect();
                let by_tag = parts.by(&indexes.by_tag);
                let equal = by_tag.equal_to(&**tag);
                compare(&tr, equal, found(&model, tags_of, |key| key == tag), how).await?;
                let within = by_tag.range(tag.clone()..=end.clone());
                let is_within = |key: &String| tag <= key && key <= end;
                compare(&tr, within, found(&model, tags_of, is_within), how).await?;
                compare(&tr, by_tag.rows(), found(&model, tags_of, |_| true), how).await?;
                let from = parts.by(&indexes.by_code).range((low, false)..);
                let is_above = |code: &u64| *code >= low;
                compare(&tr, from, found(&model, codes_of, is_above), how).await?;
                Ok::<_, Error>(model)
            };
            model = runner.run(program).await.unwrap();
            let report = parts.verify(runner).await.unwrap();
            assert_eq!(report.differences, []);
            assert_eq!(report.rows, model.len() as u64);
        }
        let clear = async |tr| parts.rows().clear(&tr).await;
        runner.run(clear).await.unwrap();
        chaos.flush().await;
        let report = parts.verify(runner).await.unwrap();
        assert_eq!((report.rows, report.entries), (0, 0));
    }
}

async fn entries_have_the_documented_bytes(store: TestStore) {
    let store = store.fresh();
    let runner = &store.runner();
    let subspace = subspace(&store);
    let parts = &Indexes::new().open(runner, &store).await.unwrap();
    let part = Part {
        tags: vec!["a".to_owned()],
        code: Some(7),
    };
    let set = async |tr| parts.set(&tr, &5, &part).await;
    runner.run(set).await.unwrap();
    let rows = store.rows().await;
    let rows = rows.iter().filter_map(|row| {
        let key = row.key().strip_prefix(subspace.bytes())?;
        Some((key, row.value()))
    });
    let rows: Vec<_> = rows.filter(|(key, _)| !key.starts_with(b"\x02r")).collect();
    let expected: [(&[u8], &[u8]); 5] = [
        (b"\x02i\0\x02code\0", b"\x01\0\0\0\0\x01\x01"),
        (b"\x02i\0\x02tag\0", b"\x01\0\0\0\0\0\x01"),
        (b"\x02m\0", b"\x01\x0bMessagePack"),
        (b"\x02x\0\x02code\0\x05\x15\x07\x26\0\x15\x05", b""),
        (b"\x02x\0\x02tag\0\x02a\0\x15\x05", b""),
    ];
    assert_eq!(rows, expected);
}
