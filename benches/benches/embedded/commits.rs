//! Durable commits: their time and their rate.

use std::time::Duration;

use benches::arguments::Extent;
use benches::statistics::median;
use benches::{TempStore, cores, runtime};
use keyspace::Environment;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::disk::Flushed;
use crate::keys::{VALUE, random};
use crate::row::{self, Pairs, Row};
use crate::setter::{Setter, in_order, latency, no_limit, rate, work};

const TABLE: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("rows");

/// How long each side's turn is. It is short, because a shared disk can be slow for seconds at a time.
fn turn(extent: Extent) -> Duration {
    Duration::from_millis(extent.choose(10, 250, 500))
}

fn rounds(extent: Extent) -> usize {
    extent.choose(2, 21, 41)
}

/// A durable commit of 100 sets: straight into redb, and through the store.
pub(crate) fn hundred(extent: Extent) -> Vec<Row> {
    const SETS: u64 = 100;
    let folder = tempfile::tempdir().expect("the system has a temporary folder");
    let redb = redb::Database::create(folder.path().join("redb")).expect("a new file");
    let mut rng = StdRng::seed_from_u64(1);
    let into_redb = || commit_to_redb(&redb, SETS, &mut rng, turn(extent));

    let runtime = runtime(cores());
    let store = TempStore::new();
    let mut seed = 1;
    let into_store = || {
        seed += 1;
        let mut rng = StdRng::seed_from_u64(seed);
        let setter = Setter {
            db: store.db.clone(),
            next_key: move || random(&mut rng),
            rows_per_commit: SETS,
            rows_left: no_limit(),
        };
        latency(work(&runtime, [setter], turn(extent)), 50)
    };
    vec![Row {
        workload: "durable commit of 100 sets, random keys".to_owned(),
        yardstick: "the same straight into redb".to_owned(),
        pairs: Pairs::by_turns(rounds(extent), into_redb, into_store),
        unit: row::time,
        target: "at most 1.5",
    }]
}

/// Commits random rows straight into redb, `rows` in a commit; returns the seconds that the median commit
/// took.
fn commit_to_redb(db: &redb::Database, sets: u64, rng: &mut StdRng, time: Duration) -> f64 {
    let env = Environment::system();
    let deadline = env.now() + time;
    let mut took = Vec::new();
    while took.is_empty() || env.now() < deadline {
        let began = env.now();
        let write = db.begin_write().expect("redb serves");
        {
            let mut table = write.open_table(TABLE).expect("the table opens");
            for _ in 0..sets {
                let key = random(rng);
                table.insert(&key[..], &VALUE[..]).expect("redb takes it");
            }
        }
        write.commit().expect("the disk has room");
        took.push((env.now() - began).as_secs_f64());
    }
    median(took)
}

/// A durable commit of one set by one task, compared with the disk's own time.
pub(crate) fn lone(extent: Extent) -> Vec<Row> {
    let mut file = Flushed::new(extent.choose(4, 4_096, 4_096));
    let runtime = runtime(cores());
    let store = TempStore::new();
    let next_key = in_order(0);
    let commit = || {
        let setter = Setter {
            db: store.db.clone(),
            next_key: next_key.clone(),
            rows_per_commit: 1,
            rows_left: no_limit(),
        };
        latency(work(&runtime, [setter], turn(extent)), 50)
    };
    let flush = || file.median_seconds(turn(extent));
    vec![Row {
        workload: "durable commit of one set, 1 task, median".to_owned(),
        yardstick: "a bare write of 4 KiB and `fdatasync`, in a file of zeros".to_owned(),
        pairs: Pairs::by_turns(rounds(extent), flush, commit),
        unit: row::time,
        target: "at most 1.4",
    }]
}

/// Durable commits of one set each, by one task and by 64.
pub(crate) fn tasks(extent: Extent) -> Vec<Row> {
    let runtime = runtime(cores());
    let store = TempStore::new();
    let next_key = in_order(0);
    let commits = |tasks: usize| {
        let setters = (0..tasks).map(|_| Setter {
            db: store.db.clone(),
            next_key: next_key.clone(),
            rows_per_commit: 1,
            rows_left: no_limit(),
        });
        rate(&work(&runtime, setters, turn(extent)))
    };
    vec![Row {
        workload: "durable commits of one set per second, 64 tasks".to_owned(),
        yardstick: "1 task".to_owned(),
        pairs: Pairs::by_turns(rounds(extent), || commits(1), || commits(64)),
        unit: row::rate,
        target: "at least 10, and 150,000 on 4 cores",
    }]
}
