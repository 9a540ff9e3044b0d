//! Indexes of maps that have rows already: they are built while others write, changed and removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use conformance::chaos::Chaos;
use conformance::plant::{Plant, Planted};
use conformance::scale;
use conformance::stores::TestStore;
use futures::future::{join_all, try_join_all};
use keyspace::env::ManualClock;
use keyspace::map::{Difference, Index, MapError, MapReport};
use keyspace::{Environment, Error, Map, RunOptions, Runner, Store, Transaction, Tx};

use super::bad_input::refusal;
use super::in_test;
use super::indexes::{Indexes, Part, Parts, draw, subspace};
use super::model::{Dice, faults};

conformance::on_every_store!(
    an_index_is_built_while_others_write,
    a_builder_that_misses_what_changes_behind_it_is_found,
    a_writer_that_misses_the_old_row_is_found,
    a_verification_finds_each_difference,
    a_row_that_does_not_decode_is_replaced_and_its_entries_go_with_a_new_build,
    an_index_is_refused_until_it_is_built_again,
    an_index_that_the_handle_does_not_know_is_refused,
    a_unique_index_names_the_rows_that_collide,
    names_of_indexes_have_a_length_and_differ,
);

/// More than one step builds.
const ROWS: u64 = 1_300;

fn part(code: Option<u64>) -> Part {
    let tags = vec!["a".to_owned()];
    Part { tags, code }
}

/// Fills a map that has no indexes.
async fn fill(runner: &Runner<Store>, store: &TestStore) -> Parts {
    let parts = Parts::open_with(runner, subspace(store), in_test(store));
    let parts = parts.await.unwrap();
    let plain = &parts;
    for begin in (0..ROWS).step_by(500) {
        let fill = async |tr| {
            for key in begin..ROWS.min(begin + 500) {
                plain.set(&tr, &key, &part(None)).await?;
            }
            Ok::<_, Error>(())
        };
        runner.run(fill).await.unwrap();
    }
    parts
}

type Faulty = Chaos<Planted<Store>>;

/// A process that writes or builds, on a store that may break a promise.
struct Process {
    chaos: Faulty,
    runner: Runner<Faulty>,
    dice: Dice,
}

impl Process {
    fn new(store: &TestStore, seed: u64, plant: Option<Plant>) -> Self {
        let env = Environment::seeded(seed, Arc::new(ManualClock::moved_by_sleepers()));
        // Nothing waits for a watch.
        let db = Planted::new(store.db.clone(), plant.unwrap_or(Plant::DeafWatches));
        let chaos = Chaos::new(db, env.clone(), faults());
        // So that the transactions of several processes meet.
        chaos.set_latency(Duration::from_millis(1));
        let options = RunOptions::default()
            .with_environment(env.clone())
            .with_ledger_subspace(store.root.subspace(&"ledgers"));
        Self {
            runner: Runner::with_options(chaos.clone(), options),
            chaos,
            dice: Dice(env),
        }
    }

    /// Sets and removes rows.
    async fn write(self, parts: &Parts, writes: &AtomicU64) {
        let Self {
            chaos,
            runner,
            dice,
        } = self;
        for _ in 0..scale(60, 300) {
            // Near each other, so that writers meet.
            let key = dice.below(40) * ROWS / 40;
            // A code of its own, so that no other row has it.
            let part = Part {
                code: Some(key + 100).filter(|_| dice.below(2) == 0),
                ..draw(&dice)
            };
            let removes = dice.below(5) == 0;
            let write = async |tr| {
                if removes {
                    parts.remove(&tr, &key).await
                } else {
                    parts.set(&tr, &key, &part).await
                }
            };
            runner.run(write).await.unwrap();
            writes.fetch_add(1, Ordering::Relaxed);
        }
        chaos.flush().await;
    }

    /// Builds the indexes. The builder is dropped after some writes, and another one goes on.
    async fn build(self, parts: &Parts, writes: &AtomicU64) {
        for last in [10, 30, 50] {
            let until = async {
                while writes.load(Ordering::Relaxed) < last {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                built = parts.build(&self.runner) => built.unwrap(),
                () = until => {}
            }
        }
        parts.build(&self.runner).await.unwrap();
        self.chaos.flush().await;
    }
}

/// Lets processes build indexes while others write, and compares rows and entries then.
async fn race(
    store: &TestStore,
    seed: u64,
    builders: Option<Plant>,
    writers: Option<Plant>,
) -> MapReport {
    let store = store.fresh();
    let plain = &store.runner();
    fill(plain, &store).await;
    let indexes = &Indexes::new();
    let parts = &indexes.open(plain, &store).await.unwrap();
    let find = async |tr| parts.by(&indexes.by_tag).rows().first(&tr).await;
    let index = "tag".to_owned();
    let expected = MapError::IndexNotBuilt { index };
    assert_eq!(refusal(plain.run(find).await), expected);

    let writes = &AtomicU64::new(0);
    let process = |number, plant| Process::new(&store, seed * 10 + number, plant);
    let write = (0..3).map(|number| process(number, writers).write(parts, writes));
    let build = (3..5).map(|number| process(number, builders).build(parts, writes));
    futures::join!(join_all(write), join_all(build));

    let status = async |tr| parts.index_statuses(&tr).await;
    let statuses = plain.run(status).await.unwrap();
    let statuses = statuses.iter().map(|index| (&*index.name, index.building));
    assert!(statuses.eq([("code", None), ("tag", None)]));
    parts.verify(plain).await.unwrap()
}

async fn an_index_is_built_while_others_write(store: TestStore) {
    for seed in 0..scale(1, 30) as u64 {
        let report = race(&store, seed, None, None).await;
        assert_eq!(report.differences, []);
        assert!(report.rows > ROWS / 2 && report.entries > ROWS / 2);
    }
}

async fn a_builder_that_misses_what_changes_behind_it_is_found(store: TestStore) {
    let plant = Some(Plant::ReadsWithoutConflicts);
    for seed in 0..20 {
        let report = race(&store, seed, plant, None).await;
        if !report.differences.is_empty() {
            return;
        }
    }
    panic!("nothing was found");
}

async fn a_writer_that_misses_the_old_row_is_found(store: TestStore) {
    let plant = Some(Plant::ReadsWithoutConflicts);
    for seed in 0..20 {
        let report = race(&store, seed, None, plant).await;
        if !report.differences.is_empty() {
            return;
        }
    }
    panic!("nothing was found");
}

async fn a_verification_finds_each_difference(store: TestStore) {
    let runner = &store.runner();
    let indexes = &Indexes::new();
    let subspace = subspace(&store);
    let parts = &indexes.open(runner, &store).await.unwrap();
    let set = async |tr| {
        for key in 0..5 {
            parts.set(&tr, &key, &part(Some(key))).await?;
        }
        Ok::<_, Error>(())
    };
    runner.run(set).await.unwrap();
    assert_eq!(parts.verify(runner).await.unwrap().differences, []);

    let entry = |key: u64| subspace.pack(&("x", "tag", "a", key));
    let (missing, stray, of_no_row) = (&entry(1), &subspace.pack(&("x", "tag", "b", 2)), &entry(9));
    let undecodable = &subspace.pack(&("r", 3));
    let damage = async |tr: Tx<_>| {
        tr.clear(missing);
        tr.set(stray, b"");
        tr.set(of_no_row, b"");
        tr.set(undecodable, b"\xc1");
        Ok::<_, Error>(())
    };
    runner.run(damage).await.unwrap();
    let report = parts.verify(runner).await.unwrap();
    let expected = [
        Difference::MissingEntry {
            entry: missing.clone().into(),
        },
        Difference::Undecodable {
            row: undecodable.clone().into(),
        },
        Difference::StrayEntry {
            entry: of_no_row.clone().into(),
        },
        Difference::StrayEntry {
            entry: stray.clone().into(),
        },
    ];
    assert_eq!(report.differences, expected);
    // A row that is missing hides no other.
    let read = async |tr| {
        let found = parts
            .by(&indexes.by_tag)
            .equal_to("a")
            .page(&tr, None, 10)
            .await?;
        let found: Vec<_> = found
            .rows
            .iter()
            .map(|row| (row.id, row.value.is_ok()))
            .collect();
        assert_eq!(
            found,
            [(0, true), (2, true), (3, false), (4, true), (9, false)]
        );
        Ok::<_, Error>(())
    };
    runner.run(read).await.unwrap();
}

async fn a_row_that_does_not_decode_is_replaced_and_its_entries_go_with_a_new_build(
    store: TestStore,
) {
    let runner = &store.runner();
    let indexes = &Indexes::new();
    let subspace = subspace(&store);
    let parts = &indexes.open(runner, &store).await.unwrap();
    let undecodable = &subspace.pack(&("r", 3));
    let set = async |tr: Tx<_>| {
        parts.set(&tr, &3, &part(Some(3))).await?;
        tr.set(undecodable, b"\xc1");
        Ok::<_, Error>(())
    };
    runner.run(set).await.unwrap();
    let replace = async |tr| {
        let refused = parts.update(&tr, &3, |_| None).await;
        assert!(matches!(refused, Err(Error::Corrupt { .. })));
        parts.remove(&tr, &3).await
    };
    runner.run(replace).await.unwrap();
    let stray = parts.verify(runner).await.unwrap().differences;
    assert!(matches!(
        stray[..],
        [Difference::StrayEntry { .. }, Difference::StrayEntry { .. }]
    ));
    let by_tag = &indexes.by_tag.clone().with_version(1);
    let by_code = &indexes.by_code.clone().with_version(1);
    let given = in_test(&store).with_index(by_tag).with_index(by_code);
    let given = given.with_changed_indexes();
    let parts = &Parts::open_with(runner, subspace, given).await.unwrap();
    parts.build(runner).await.unwrap();
    assert_eq!(parts.verify(runner).await.unwrap().differences, []);
}

async fn an_index_is_refused_until_it_is_built_again(store: TestStore) {
    let runner = &store.runner();
    fill(runner, &store).await;
    let subspace = || subspace(&store);
    let by_tag = &Index::new("tag", |part: &Part| part.tags.clone());
    let given = in_test(&store).with_index(by_tag);
    let old = &Parts::open_with(runner, subspace(), given).await.unwrap();
    old.build(runner).await.unwrap();

    let tags = |part: &Part| {
        part.tags
            .iter()
            .map(|tag| tag.to_uppercase())
            .collect::<Vec<_>>()
    };
    let changed = &Index::new("tag", tags).with_version(1);
    let given = || in_test(&store).with_index(changed);
    let refused = |stored, given| MapError::IndexChanged {
        index: "tag".to_owned(),
        stored,
        given,
    };
    let opened = Parts::open_with(runner, subspace(), given()).await;
    assert_eq!(refusal(opened), refused(0, 1));
    let given = given().with_changed_indexes();
    let new = &Parts::open_with(runner, subspace(), given).await.unwrap();
    // The process with the older function neither writes nor finds.
    let set = async |tr| old.set(&tr, &0, &part(None)).await;
    assert_eq!(refusal(runner.run(set).await), refused(1, 0));
    let find = async |tr| old.by(by_tag).equal_to("a").count(&tr, 9).await;
    assert_eq!(refusal(runner.run(find).await), refused(1, 0));
    let build = old.build(runner).await;
    assert_eq!(refusal(build), refused(1, 0));

    new.build(runner).await.unwrap();
    let find = async |tr| {
        assert_eq!(new.by(changed).equal_to("a").count(&tr, 9).await?.count, 0);
        let found = new.by(changed).equal_to("A").count(&tr, 9).await?;
        assert!(found.has_more);
        Ok::<_, Error>(())
    };
    runner.run(find).await.unwrap();
    assert_eq!(new.verify(runner).await.unwrap().differences, []);
}

async fn an_index_that_the_handle_does_not_know_is_refused(store: TestStore) {
    let runner = &store.runner();
    let indexes = &Indexes::new();
    let subspace = || subspace(&store);
    let both = &indexes.open(runner, &store).await.unwrap();
    let unknown = |index: &str| MapError::IndexUnknown {
        index: index.to_owned(),
    };
    let opened = Parts::open_with(runner, subspace(), in_test(&store)).await;
    assert_eq!(refusal(opened), unknown("code"));
    both.remove_index(runner, &indexes.by_code).await.unwrap();
    let removed = || MapError::IndexRemoved {
        index: "code".to_owned(),
    };
    let set = async |tr| both.set(&tr, &1, &part(None)).await;
    assert_eq!(refusal(runner.run(set).await), removed());
    let find = async |tr| both.by(&indexes.by_code).rows().first(&tr).await;
    assert_eq!(refusal(runner.run(find).await), removed());

    let given = in_test(&store).with_index(&indexes.by_tag);
    let one = &Parts::open_with(runner, subspace(), given).await.unwrap();
    let set = async |tr| one.set(&tr, &1, &part(None)).await;
    runner.run(set).await.unwrap();
    // Another process adds one again.
    indexes.open(runner, &store).await.unwrap();
    assert_eq!(refusal(runner.run(set).await), unknown("code"));
}

async fn a_unique_index_names_the_rows_that_collide(store: TestStore) {
    let runner = &store.runner();
    let plain = Parts::open_with(runner, subspace(&store), in_test(&store));
    let plain = &plain.await.unwrap();
    let set = async |tr| {
        for (key, code) in [(1, 7), (2, 8), (3, 7)] {
            plain.set(&tr, &key, &part(Some(code))).await?;
        }
        Ok::<_, Error>(())
    };
    runner.run(set).await.unwrap();
    let parts = &Indexes::new().open(runner, &store).await.unwrap();
    let taken = MapError::Taken {
        index: "code".to_owned(),
        key: "((7, false))".to_owned(),
        row: "(1)".to_owned(),
    };
    assert_eq!(refusal(parts.build(runner).await), taken);
    let repair = async |tr| parts.set(&tr, &3, &part(Some(9))).await;
    runner.run(repair).await.unwrap();
    parts.build(runner).await.unwrap();
    assert_eq!(parts.verify(runner).await.unwrap().differences, []);

    // Of two transactions that give the same key to two rows, one fails.
    let take = |key: u64| {
        let take = move |tr| async move { parts.set(&tr, &key, &part(Some(20))).await };
        runner.run(take)
    };
    let refused = try_join_all([take(4), take(5)]).await;
    assert!(matches!(refusal(refused), MapError::Taken { .. }));
}

async fn names_of_indexes_have_a_length_and_differ(store: TestStore) {
    let runner = &store.runner();
    let open = async |names: &[&str]| {
        let mut given = in_test(&store);
        for name in names {
            given = given.with_index(&Index::new(*name, |part: &Part| part.code));
        }
        let subspace = store.root.subspace(&names);
        Map::<u64, Part>::open_with(runner, subspace, given).await
    };
    let long = &*"x".repeat(101);
    assert_eq!(refusal(open(&[""]).await), MapError::IndexName { bytes: 0 });
    assert_eq!(
        refusal(open(&[long]).await),
        MapError::IndexName { bytes: 101 }
    );
    let index = "a".to_owned();
    assert_eq!(
        refusal(open(&["a", "b", "a"]).await),
        MapError::IndexTwice { index }
    );
    open(&[&long[1..], "b"]).await.unwrap();
}
