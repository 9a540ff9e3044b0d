//! Random programs of a map, beside a `BTreeMap`, on a store that hides outcomes of commits.

use std::collections::BTreeMap;
use std::sync::Arc;

use conformance::chaos::{Chaos, Faults};
use conformance::scale;
use conformance::stores::TestStore;
use futures::TryStreamExt;
use keyspace::env::ManualClock;
use keyspace::map::{Change, Rows};
use keyspace::{Environment, Error, Map, RunOptions, Runner, Transaction};

use super::in_test;

conformance::on_every_store!(a_map_does_what_a_btree_map_does);

type Key = (String, u64);
type Model = BTreeMap<Key, u64>;
type Numbers = Map<Key, u64>;

/// One call of a program.
#[derive(Debug, Clone)]
enum Call {
    Set(Key, u64),
    Remove(Key),
    /// Adds one, or removes the row if it then has this value.
    Update(Key, u64),
    Get(Vec<Key>),
    Read {
        between: (Key, Key),
        is_reversed: bool,
        limit: usize,
    },
    Clear(Key, Key),
}

/// Returns faults of commits, and a few of the many reads.
pub(super) fn faults() -> Faults {
    Faults {
        too_old_at_read: 0.001,
        future_version: 0.001,
        ..Faults::all(0.05)
    }
}

/// Draws what a program does.
pub(super) struct Dice(pub(super) Environment);

impl Dice {
    pub(super) fn below(&self, sides: u64) -> u64 {
        u64::from_be_bytes(self.0.random_bytes()) % sides
    }

    fn key(&self) -> Key {
        let names = ["", "a", "a\0", "ab", "b"];
        let name = names[self.below(names.len() as u64) as usize];
        // Integers of different lengths.
        let number = [0, 1, 2, 255, 256, 65_536][self.below(6) as usize];
        (name.to_owned(), number)
    }

    fn call(&self) -> Call {
        match self.below(10) {
            0..3 => Call::Set(self.key(), self.below(5)),
            3 => Call::Remove(self.key()),
            4..6 => Call::Update(self.key(), self.below(5)),
            6 => Call::Get((0..self.below(4)).map(|_| self.key()).collect()),
            7..9 => Call::Read {
                between: (self.key(), self.key()),
                is_reversed: self.below(2) == 0,
                limit: 1 + self.below(5) as usize,
            },
            _ => Call::Clear(self.key(), self.key()),
        }
    }
}

/// Performs a call on the map and on the model, and compares what they return.
async fn perform(
    tr: &impl Transaction,
    numbers: &Numbers,
    model: &mut Model,
    call: &Call,
) -> Result<(), Error> {
    match call {
        Call::Set(key, value) => {
            numbers.set(tr, key, value).await?;
            model.insert(key.clone(), *value);
        }
        Call::Remove(key) => {
            numbers.remove(tr, key).await?;
            model.remove(key);
        }
        Call::Update(key, last) => {
            let next = |value: Option<u64>| {
                let next = value.unwrap_or(0) + 1;
                Some(next).filter(|next| next != last)
            };
            let change = numbers.update(tr, key, next).await?;
            let old = model.get(key).copied();
            let new = next(old);
            let expected = match (old, new) {
                (None, None) => Change::None,
                (None, Some(_)) => Change::Added,
                (Some(_), None) => Change::Removed,
                (Some(_), Some(_)) => Change::Replaced,
            };
            assert_eq!(change, expected);
            match new {
                Some(new) => drop(model.insert(key.clone(), new)),
                None => drop(model.remove(key)),
            }
        }
        Call::Get(keys) => {
            let expected: Vec<_> = keys.iter().map(|key| model.get(key).copied()).collect();
            assert_eq!(numbers.get_many(tr, keys).await?, expected);
            for (key, expected) in keys.iter().zip(expected) {
                assert_eq!(numbers.get(tr, key).await?, expected);
                assert_eq!(numbers.contains(tr, key).await?, expected.is_some());
            }
        }
        Call::Read {
            between: (begin, end),
            is_reversed,
            limit,
        } => {
            let mut rows = numbers.range(begin..end);
            let within = model.iter().filter(|(key, _)| (begin..end).contains(key));
            let mut expected: Vec<_> = within.map(|(key, value)| (key.clone(), *value)).collect();
            if *is_reversed {
                rows = rows.reversed();
                expected.reverse();
            }
            compare(tr, &rows, &expected, *limit).await?;
        }
        Call::Clear(begin, end) => {
            numbers.range(begin..end).clear(tr).await?;
            model.retain(|key, _| !(begin..end).contains(&key));
        }
    }
    Ok(())
}

/// Reads rows in every way, and compares them with the expected ones.
async fn compare(
    tr: &impl Transaction,
    rows: &Rows<'_, Key, u64>,
    expected: &[(Key, u64)],
    limit: usize,
) -> Result<(), Error> {
    let streamed: Vec<_> = rows.stream(tr).try_collect().await?;
    assert_eq!(streamed, expected);
    assert_eq!(rows.first(tr).await?.as_ref(), expected.first());
    assert_eq!(rows.last(tr).await?.as_ref(), expected.last());
    let counted = rows.count(tr, limit).await?;
    assert_eq!(counted.count, expected.len().min(limit));
    assert_eq!(counted.has_more, expected.len() > limit);
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let page = rows.page(tr, after.as_ref(), limit).await?;
        assert!(page.next.is_none() || page.rows.len() == limit);
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

async fn a_map_does_what_a_btree_map_does(store: TestStore) {
    for seed in 0..scale(3, 200) as u64 {
        let store = store.fresh();
        let env = Environment::seeded(seed, Arc::new(ManualClock::moved_by_sleepers()));
        let dice = Dice(env.clone());
        let chaos = Chaos::new(store.db.clone(), env.clone(), faults());
        let options = RunOptions::default()
            .with_environment(env)
            .with_ledger_subspace(store.root.subspace(&"ledgers"));
        let runner = &Runner::with_options(chaos.clone(), options);
        let subspace = store.root.subspace(&"numbers");
        let numbers = Numbers::open_with(runner, subspace, in_test(&store));
        let numbers = &numbers.await.unwrap();
        let mut model = Model::new();
        for _ in 0..scale(30, 200) {
            let calls: Vec<_> = (0..1 + dice.below(6)).map(|_| dice.call()).collect();
            let before = &model;
            let program = async |tr| {
                let mut model = before.clone();
                for call in &calls {
                    perform(&tr, numbers, &mut model, call).await?;
                }
                Ok::<_, Error>(model)
            };
            model = runner.run(program).await.unwrap();
        }
        chaos.flush().await;
        let all: Vec<_> = model.into_iter().collect();
        let read = async |tr| compare(&tr, &numbers.rows(), &all, 7).await;
        runner.run(read).await.unwrap();
    }
}
