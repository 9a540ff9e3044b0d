//! Four processes share a store in a file. They are killed, stopped for a while and started again at random, and close
//! and open the store on their own. So its owner changes all the time. Every acknowledged transaction took effect
//! exactly once, and all of them are serializable in commit order: each one has read what those before it have written.

use std::collections::BTreeMap;
use std::time::Duration;

use conformance::process::{Herd, acknowledge, misaccounted, role};
use conformance::{HANG, let_pass, scale};
use futures::future::{try_join, try_join_all};
use keyspace::embedded::{Embedded, Options};
use keyspace::{
    Error, Isolation, KeyValue, MutationOp, RangeQuery, Result, Runner, Subspace, Transaction,
    read_all,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const NAME: &str =
    "processes::every_acknowledged_transaction_takes_effect_once_and_in_commit_order";

const PROCESSES: usize = 4;

/// The number of transactions of a process that are under way at once.
const IN_FLIGHT: usize = 4;

/// The number of counters that the transactions read and write.
pub(crate) const COUNTERS: u64 = 6;

fn counter(number: u64) -> Vec<u8> {
    Subspace::from("counters").pack(&number)
}

/// The keys of the records begin with this, and end with versionstamps.
const HISTORY: &[u8] = b"history/";

const HISTORY_END: &[u8] = b"history0";

/// What a transaction has read and written: its name, the counters that it has read with their values, and the counter
/// to which it has written their sum and one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) read: [(u64, u64); 2],
    pub(crate) written: u64,
}

impl Record {
    fn to_text(&self) -> String {
        let [(one, one_value), (other, other_value)] = self.read;
        let Self { name, written, .. } = self;
        format!("{name} {one} {one_value} {other} {other_value} {written}")
    }

    fn parse(text: &str) -> Self {
        let (name, numbers) = text.split_once(' ').unwrap();
        let numbers: Vec<u64> = numbers.split(' ').map(|it| it.parse().unwrap()).collect();
        let [one, one_value, other, other_value, written] = numbers[..] else {
            panic!("a record of {text}");
        };
        Self {
            name: name.to_owned(),
            read: [(one, one_value), (other, other_value)],
            written,
        }
    }

    fn sum(&self) -> u64 {
        let [(_, one), (_, other)] = self.read;
        one.wrapping_add(other) + 1
    }
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

/// Reads two counters at once, and stages a write to one.
pub(crate) async fn update(tr: &impl Transaction, name: &str, counters: [u64; 3]) -> Result<()> {
    let [one, other, written] = counters;
    let first = tr.get(&counter(one), Isolation::Serializable);
    let second = tr.get(&counter(other), Isolation::Serializable);
    let (first, second) = try_join(first, second).await?;
    let record = Record {
        name: name.to_owned(),
        read: [
            (one, number(first.as_deref())),
            (other, number(second.as_deref())),
        ],
        written,
    };
    tr.set(&counter(written), &record.sum().to_le_bytes());
    let offset = u32::try_from(HISTORY.len()).unwrap();
    let key = [HISTORY, &[0; 10], &offset.to_le_bytes()].concat();
    tr.atomic(
        MutationOp::SetVersionstampedKey,
        &key,
        record.to_text().as_bytes(),
    );
    Ok(())
}

/// Does the work of a child process until it is killed. The role is its name and the path of the store.
async fn work(role: &str) {
    let (process, path) = role.split_once(' ').unwrap();
    let mut rng = StdRng::seed_from_u64(process.parse().unwrap());
    for opening in 0_u64.. {
        let options = Options::new().with_patience(HANG);
        let db = options.open(path).unwrap();
        let runner = &Runner::new(db.clone());
        let tasks = (0..IN_FLIGHT).map(|task| {
            let mut rng = StdRng::seed_from_u64(rng.random());
            async move {
                for number in 0..rng.random_range(1..400) {
                    let name = format!("{process}-{opening}-{task}-{number}");
                    let counters = [(); 3].map(|()| rng.random_range(0..COUNTERS));
                    let update = async |tr| update(&tr, &name, counters).await;
                    runner.run(update).await?;
                    acknowledge(&name);
                }
                Ok::<_, Error>(())
            }
        });
        try_join_all(tasks).await.unwrap();
        if rng.random() {
            db.close().unwrap();
        }
    }
}

/// Returns all records in commit order, and the counters.
pub(crate) async fn read(db: Embedded) -> (Vec<Record>, BTreeMap<u64, u64>) {
    let runner = Runner::new(db);
    let rows = async |(begin, end): (Vec<u8>, Vec<u8>)| {
        let query = &RangeQuery::keys(begin, end);
        let read = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
        runner.run(read).await.unwrap()
    };
    let record = |row: &KeyValue| Record::parse(str::from_utf8(row.value()).unwrap());
    let records = rows((HISTORY.to_vec(), HISTORY_END.to_vec())).await;
    let records = records.iter().map(record).collect();
    let counters = Subspace::from("counters");
    let counter = |row: &KeyValue| {
        let name: u64 = counters.unpack(row.key()).unwrap();
        (name, number(Some(row.value())))
    };
    let counters = rows(counters.range()).await.iter().map(counter).collect();
    (records, counters)
}

/// Returns the names of the transactions that have not read what those before them have written.
pub(crate) fn unserializable(records: &[Record], counters: &BTreeMap<u64, u64>) -> Vec<String> {
    let mut values: BTreeMap<u64, u64> = BTreeMap::new();
    let mut wrong = Vec::new();
    for record in records {
        let is_right = |(counter, value)| values.get(&counter).copied().unwrap_or(0) == value;
        if !record.read.into_iter().all(is_right) {
            wrong.push(record.name.clone());
        }
        values.insert(record.written, record.sum());
    }
    if values != *counters {
        wrong.push("the end".to_owned());
    }
    wrong
}

#[test]
fn the_check_finds_a_transaction_that_has_not_read_the_last_one() {
    let record = |name: &str, value, written| Record {
        name: name.to_owned(),
        read: [(0, value), (1, 0)],
        written,
    };
    let end = |value| BTreeMap::from([(0, value)]);
    let right = [record("a", 0, 0), record("b", 1, 0)];
    assert_eq!(unserializable(&right, &end(2)), [""; 0]);
    assert_eq!(unserializable(&right, &end(1)), ["the end"]);
    let lost = [record("a", 0, 0), record("b", 0, 0)];
    assert_eq!(unserializable(&lost, &end(1)), ["b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_acknowledged_transaction_takes_effect_once_and_in_commit_order() {
    if let Some(role) = role() {
        return work(&role).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let mut names = 0..;
    let store = path.clone();
    let role = move |_| format!("{} {}", names.next().unwrap(), store.display());
    let mut herd = Herd::start(NAME, PROCESSES, role);

    let mut rng = StdRng::seed_from_u64(6);
    for _ in 0..scale(60, 4_000) {
        herd.hear(rng.random_range(1..300));
        let place = rng.random_range(0..PROCESSES);
        if rng.random_range(0..4) > 0 {
            herd.replace(place);
            continue;
        }
        // Some stops are longer than the five seconds in which a transaction can commit.
        let is_long = rng.random_range(0..scale(usize::MAX, 8)) == 0;
        let millis = rng.random_range(0..if is_long { 8_000 } else { 200 });
        herd.pause(place);
        let_pass(Duration::from_millis(millis)).await;
        herd.resume(place);
    }
    let acknowledged = herd.end();

    let (records, counters) = read(Options::new().open(path).unwrap()).await;
    assert_eq!(unserializable(&records, &counters), [""; 0]);
    let mut effects = BTreeMap::new();
    for record in records {
        *effects.entry(record.name).or_default() += 1;
    }
    println!("{} acknowledged of {}", acknowledged.len(), effects.len());
    assert_eq!(misaccounted(&acknowledged, &effects), [""; 0]);
}
