//! Which of two concurrent operations makes the other fail, and what is lost on a store without conflicts.

use std::collections::BTreeMap;

use conformance::plant::{Plant, Planted};
use conformance::second_fails;
use hc_dequeue::keyspace::error::{chain, corrupt_key};
use hc_dequeue::keyspace::{
    self, Bytes, Database, Isolation, OpenOptions, OwnedTransaction, RangeQuery, Runner, Store,
    Transaction, read_all,
};
use hc_dequeue::microqueue::ItemId;

use crate::bucket::Bucket;
use crate::combiner::Sum;
use crate::error::Result;
use crate::pass::observer::Change;
use crate::pass::{Pass, Plan};
use crate::queue::CombineQueue;
use crate::queue::aside::AsideId;
use crate::queue::read::Exact;
use crate::settings::Settings;
use crate::tests::staging::TestPass;

/// Three keys of one bucket, in their order, and one key of the other bucket.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const ELSEWHERE: usize = 3;

/// The value that a bulk load gives a key.
const LOADED: i64 = 40;

/// More updates than the blocks of one batch of a range read contain.
const FLOOD: i64 = 60_000;

/// A budget that is large enough for everything.
const ALL: usize = 1 << 22;

/// A transaction with all its reads and writes. Each one must have work to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Add(usize),
    /// Adds more updates than one batch of a range read contains.
    Flood(usize),
    /// A pass over the bucket of a key, with a budget of bytes.
    Pass(usize, usize),
    /// Adds an update that does not decode.
    AddBroken(usize),
    /// Adds a block right after the first one, as a restored store may.
    AddBetween(usize),
    /// A pass that withholds the reports of a key.
    Withhold(usize),
    /// Redrives the first record that is set aside.
    Redrive,
    Purge,
    Initialize(usize),
    /// Reads a value serializably, and writes another key.
    Settled(usize),
    Exact(usize),
}

/// Operations that run one after the other, then two concurrent operations that both read the result. The first of
/// the two commits first.
#[derive(Debug, Clone, Copy)]
struct Meeting {
    before: &'static [Operation],
    first: Operation,
    second: Operation,
}

impl Meeting {
    const fn new(before: &'static [Operation], first: Operation, second: Operation) -> Self {
        Self {
            before,
            first,
            second,
        }
    }
}

/// The outcome of a meeting.
struct Outcome {
    /// Whether the second operation failed.
    has_conflicted: bool,
    /// The deviations found at the end.
    wrong: Vec<String>,
}

struct World<D> {
    db: D,
    queue: CombineQueue<String, i64>,
    keys: Vec<String>,
    expected: BTreeMap<usize, i64>,
}

impl<D: Database> World<D> {
    async fn new(db: D) -> Self {
        let runner = Runner::new(db.clone());
        let settings = Settings::new().with_bucket_count(2);
        let opening = CombineQueue::open_with(&runner, "queue", settings, Sum, OpenOptions::new());
        let queue: CombineQueue<String, i64> = opening.await.unwrap();
        let letters = ('a'..='z').map(String::from);
        let (mut keys, elsewhere): (Vec<_>, Vec<_>) =
            letters.partition(|letter| queue.bucket(letter).unwrap() == Bucket(0));
        keys.truncate(3);
        keys.extend(elsewhere.into_iter().next());
        Self {
            db,
            queue,
            keys,
            expected: BTreeMap::new(),
        }
    }

    async fn stage(&self, tr: &D::Transaction, operation: Operation) -> Result<()> {
        let queue = &self.queue;
        let key = |key: usize| &self.keys[key];
        match operation {
            Operation::Add(place) => queue.add(tr, key(place), &1).await?,
            Operation::Flood(place) => {
                let flood = (0..FLOOD).map(|_| (key(place), &1));
                queue.add_all(tr, flood).await?;
            }
            Operation::Pass(place, budget) => {
                let bucket = queue.bucket(key(place))?;
                let staged = self.pass(tr, bucket, budget, None).await?;
                assert!(staged.pass().updates > 0);
            }
            Operation::AddBroken(place) => {
                let mut batch = queue.keys.logs.batch();
                queue.push(&mut batch, &queue.encode_key(key(place))?, b"\xc1")?;
                queue.stage(tr, &batch)?;
            }
            Operation::AddBetween(place) => {
                let key = queue.encode_key(key(place))?;
                let bucket = queue.keys.bucket(&key).0;
                let first = queue.keys.logs.first(tr, bucket, None).await?.unwrap();
                let id = ItemId::Commit {
                    versionstamp: first.versionstamp,
                    call: u64::MAX,
                };
                let log = queue.keys.logs.subspace(bucket);
                let length = u8::try_from(key.len()).unwrap();
                let block = [&[1, 1, 0, 1, length, 1], &key[..], &[1]].concat();
                tr.set(&id.key_in(&log), &block);
            }
            Operation::Withhold(place) => {
                let withheld = (
                    queue.encode_key(key(place))?.into(),
                    "on purpose".to_owned(),
                );
                let bucket = queue.bucket(key(place))?;
                let staged = self.pass(tr, bucket, ALL, Some(withheld)).await?;
                assert_eq!(staged.pass().set_aside, 1);
            }
            Operation::Redrive | Operation::Purge => {
                let aside = queue.set_aside(tr, None, 1).await?;
                assert!(match operation {
                    Operation::Redrive => queue.redrive(tr, &aside[0].id).await?,
                    _ => queue.purge(tr, &aside[0].id).await?,
                });
            }
            Operation::Initialize(place) => queue.initialize(tr, key(place), &LOADED).await?,
            Operation::Settled(place) => {
                queue
                    .settled(tr, key(place), Isolation::Serializable)
                    .await?;
                tr.set(b"elsewhere", b"");
            }
            Operation::Exact(place) => {
                let serializable = Exact::new().with_isolation(Isolation::Serializable);
                queue.exact(tr, key(place), &serializable).await?;
                tr.set(b"elsewhere", b"");
            }
        }
        Ok(())
    }

    async fn pass(
        &self,
        tr: &D::Transaction,
        bucket: Bucket,
        budget: usize,
        withheld: Option<(Bytes, String)>,
    ) -> Result<TestPass<String, i64>> {
        let plan = Plan {
            budget,
            max_changes: usize::MAX,
            withheld,
        };
        self.queue.stage_pass(tr, bucket, &plan).await
    }

    /// Records an operation that has committed.
    fn note(&mut self, operation: Operation) {
        let (key, change) = match operation {
            Operation::Add(key) | Operation::AddBetween(key) => (key, 1),
            Operation::Flood(key) => (key, FLOOD),
            Operation::Initialize(key) => (key, LOADED),
            _ => return,
        };
        *self.expected.entry(key).or_insert(0) += change;
    }

    async fn commit(&mut self, operation: Operation) {
        let mut tr = self.db.begin().unwrap();
        self.stage(&tr, operation).await.unwrap();
        tr.commit().await.unwrap();
        self.note(operation);
    }

    async fn get(&self, row: &[u8]) -> Option<Bytes> {
        let tr = self.db.begin().unwrap();
        tr.get(row, Isolation::Snapshot).await.unwrap()
    }

    async fn set(&self, row: &[u8], value: &[u8]) {
        let mut tr = self.db.begin().unwrap();
        tr.set(row, value);
        tr.commit().await.unwrap();
    }

    /// Makes passes as long as there is work, and then checks what has become of the updates.
    async fn wrong(&self) -> Vec<String> {
        let queue = &self.queue;
        let mut tr = self.db.begin().unwrap();
        for aside in queue.set_aside(&tr, None, usize::MAX).await.unwrap() {
            match aside.id {
                AsideId::Key(_) => queue.redrive(&tr, &aside.id).await.unwrap(),
                AsideId::Update { .. } => queue.purge(&tr, &aside.id).await.unwrap(),
            };
        }
        tr.commit().await.unwrap();
        let mut wrong = Vec::new();
        loop {
            let mut tr = self.db.begin().unwrap();
            let mut has_work = false;
            for bucket in queue.keys.buckets() {
                let staged = self.pass(&tr, bucket, ALL, None).await.unwrap();
                has_work |= staged.pass() != Pass::default();
                for Change { key, new, .. } in staged.changes {
                    let place = self.keys.iter().position(|known| *known == key).unwrap();
                    let expected = self.expected.get(&place).copied();
                    if new != expected {
                        wrong.push(format!("{key} is reported as {new:?}, not {expected:?}"));
                    }
                }
            }
            tr.commit().await.unwrap();
            if !has_work {
                break;
            }
        }
        let tr = self.db.begin().unwrap();
        for (place, key) in self.keys.iter().enumerate() {
            let settled = queue.settled(&tr, key, Isolation::Snapshot).await.unwrap();
            let expected = self.expected.get(&place).copied();
            if settled != expected.filter(|sum| *sum != 0) {
                wrong.push(format!("{key} is {settled:?}, expected {expected:?}"));
            }
        }
        for part in ["u", "c"] {
            let (begin, end) = queue.subspace().subspace(&part).range();
            let query = RangeQuery::keys(begin, end);
            let rows = read_all(&tr, query, Isolation::Snapshot).await.unwrap();
            if !rows.is_empty() {
                wrong.push(format!("{} keys are left under `{part}`", rows.len()));
            }
        }
        wrong
    }
}

async fn meet<D: Database>(db: D, meeting: Meeting) -> Outcome {
    let mut world = World::new(db).await;
    for operation in meeting.before {
        world.commit(*operation).await;
    }
    let second = world.db.begin().unwrap();
    world.stage(&second, meeting.second).await.unwrap();
    let first = world.db.begin().unwrap();
    world.stage(&first, meeting.first).await.unwrap();
    let has_conflicted = second_fails(&meeting, first, second).await;
    world.note(meeting.first);
    if !has_conflicted {
        world.note(meeting.second);
    }
    Outcome {
        has_conflicted,
        wrong: world.wrong().await,
    }
}

fn memory() -> Store {
    keyspace::open("memory:").unwrap()
}

/// A key with updates, another key of its bucket with one update, and a key of the other bucket.
const PENDING: &[Operation] = &[
    Operation::Add(A),
    Operation::Add(A),
    Operation::Add(C),
    Operation::Add(ELSEWHERE),
];

/// An update is set aside, and others are pending.
const UPDATE_ASIDE: &[Operation] = &[
    Operation::AddBroken(A),
    Operation::Pass(A, ALL),
    Operation::Add(A),
];

/// The reports of a key are withheld, and updates of this key and of another one are pending.
const KEY_ASIDE: &[Operation] = &[
    Operation::Add(A),
    Operation::Withhold(A),
    Operation::Add(A),
    Operation::Add(C),
];

const PASS: Operation = Operation::Pass(A, ALL);

const CONFLICTS: [Meeting; 21] = [
    // Passes over the same bucket follow one another, whatever updates they take.
    Meeting::new(PENDING, PASS, PASS),
    Meeting::new(PENDING, Operation::Pass(A, 1), PASS),
    Meeting::new(PENDING, PASS, Operation::Pass(A, 1)),
    Meeting::new(PENDING, PASS, Operation::Withhold(A)),
    // No value that was loaded or combined is overwritten.
    Meeting::new(PENDING, Operation::Initialize(A), PASS),
    Meeting::new(PENDING, PASS, Operation::Initialize(A)),
    Meeting::new(PENDING, Operation::Initialize(B), PASS),
    Meeting::new(PENDING, Operation::Initialize(B), Operation::Initialize(B)),
    Meeting::new(PENDING, Operation::Withhold(A), Operation::Initialize(A)),
    // A pass clears the range from the first to the last update that it takes.
    Meeting::new(PENDING, Operation::AddBetween(B), PASS),
    // A record that is set aside is redriven or purged only once.
    Meeting::new(UPDATE_ASIDE, Operation::Redrive, Operation::Redrive),
    Meeting::new(UPDATE_ASIDE, Operation::Redrive, Operation::Purge),
    Meeting::new(UPDATE_ASIDE, Operation::Purge, Operation::Redrive),
    Meeting::new(KEY_ASIDE, Operation::Redrive, Operation::Redrive),
    Meeting::new(KEY_ASIDE, Operation::Redrive, PASS),
    Meeting::new(KEY_ASIDE, PASS, Operation::Redrive),
    // A serializable read of a value conflicts with a change of its key. A serializable read of an exact
    // value conflicts with any change of its bucket.
    Meeting::new(PENDING, PASS, Operation::Settled(A)),
    Meeting::new(PENDING, PASS, Operation::Exact(A)),
    Meeting::new(PENDING, PASS, Operation::Exact(B)),
    Meeting::new(PENDING, Operation::Add(A), Operation::Exact(A)),
    Meeting::new(PENDING, Operation::Add(C), Operation::Exact(A)),
];

const FREE: [Meeting; 13] = [
    Meeting::new(PENDING, Operation::Add(A), Operation::Add(A)),
    Meeting::new(PENDING, Operation::Add(A), PASS),
    Meeting::new(PENDING, PASS, Operation::Add(A)),
    Meeting::new(PENDING, Operation::Pass(A, 1), Operation::Add(A)),
    Meeting::new(PENDING, PASS, Operation::Pass(ELSEWHERE, ALL)),
    Meeting::new(PENDING, PASS, Operation::Initialize(B)),
    Meeting::new(PENDING, Operation::Initialize(ELSEWHERE), PASS),
    Meeting::new(PENDING, Operation::Add(A), Operation::Initialize(A)),
    Meeting::new(PENDING, Operation::Add(A), Operation::Settled(A)),
    Meeting::new(PENDING, Operation::Add(ELSEWHERE), Operation::Exact(A)),
    Meeting::new(UPDATE_ASIDE, PASS, Operation::Redrive),
    Meeting::new(UPDATE_ASIDE, Operation::Redrive, PASS),
    Meeting::new(UPDATE_ASIDE, Operation::Add(A), Operation::Redrive),
];

/// For each broken promise, the meeting that detects it.
const PLANTS: [(Plant, Meeting); 6] = [
    // A bulk load and a pass do not overwrite each other.
    (
        Plant::AddedConflictsWithoutEffect,
        Meeting::new(&[Operation::Add(A)], Operation::Initialize(A), PASS),
    ),
    (
        Plant::ReadsWithoutConflicts,
        Meeting::new(&[Operation::Add(A)], PASS, Operation::Initialize(A)),
    ),
    // A block that lands between the updates taken is not cleared with them.
    (
        Plant::AddedConflictsWithoutEffect,
        Meeting::new(PENDING, Operation::AddBetween(B), PASS),
    ),
    // The end of a batch is not the end of the log.
    (
        Plant::FirstBatchesOnly,
        Meeting::new(
            &[Operation::Flood(A)],
            Operation::Add(ELSEWHERE),
            Operation::Add(ELSEWHERE),
        ),
    ),
    // Two passes do not fold the same updates.
    (
        Plant::NoReadConflicts,
        Meeting::new(PENDING, PASS, Operation::Pass(A, 1)),
    ),
    (
        Plant::NoReadConflicts,
        Meeting::new(PENDING, Operation::Pass(A, 1), PASS),
    ),
];

#[tokio::test]
async fn of_two_conflicting_operations_one_fails() {
    for meeting in CONFLICTS {
        let outcome = meet(memory(), meeting).await;
        assert!(outcome.has_conflicted, "{meeting:?}");
        assert_eq!(outcome.wrong, [""; 0], "{meeting:?}");
    }
}

#[tokio::test]
async fn without_read_conflicts_both_conflicting_operations_commit() {
    for meeting in CONFLICTS {
        let outcome = meet(Planted::new(memory(), Plant::NoReadConflicts), meeting).await;
        assert!(!outcome.has_conflicted, "{meeting:?}");
    }
}

#[tokio::test]
async fn two_independent_operations_both_commit() {
    for meeting in FREE {
        let outcome = meet(memory(), meeting).await;
        assert!(!outcome.has_conflicted, "{meeting:?}");
        assert_eq!(outcome.wrong, [""; 0], "{meeting:?}");
    }
}

#[tokio::test]
async fn each_broken_promise_is_detected() {
    for (plant, meeting) in PLANTS {
        let sound = meet(memory(), meeting).await;
        assert_eq!(sound.wrong, [""; 0], "{meeting:?}");
        let broken = meet(Planted::new(memory(), plant), meeting).await;
        assert_ne!(broken.wrong, [""; 0], "{plant:?}: {meeting:?}");
    }
}

#[tokio::test]
async fn a_pass_has_more_if_it_leaves_updates_or_values() {
    let mut world = World::new(memory()).await;
    let state = world.queue.keys.pass(Bucket(0));
    for operation in [Operation::Add(B), Operation::Add(C)] {
        world.commit(operation).await;
    }
    for (updates, changes, has_more) in [(1, 0, true), (1, 1, true), (0, 1, false)] {
        let mut tr = world.db.begin().unwrap();
        let plan = Plan {
            budget: 1,
            max_changes: 1,
            withheld: None,
        };
        let staged = world.queue.stage_pass(&tr, Bucket(0), &plan).await.unwrap();
        let before = world.get(&state).await;
        let Pass {
            updates: taken,
            changes: reported,
            has_more: has,
            ..
        } = staged.pass();
        assert_eq!((taken, reported, has), (updates, changes, has_more));
        tr.commit().await.unwrap();
        // Other sessions see from this that the bucket makes progress.
        assert_ne!(world.get(&state).await, before);
    }
    assert_eq!(world.wrong().await, [""; 0]);
}

#[tokio::test]
async fn a_damaged_state_with_values_to_report_keeps_no_other_bucket_from_being_found() {
    let mut world = World::new(memory()).await;
    for operation in [PENDING, &[Operation::Pass(A, 1)]].concat() {
        world.commit(operation).await;
    }
    world
        .set(&world.queue.keys.pass(Bucket(0)), b"no state")
        .await;
    let tr = world.db.begin().unwrap();
    let pending = world.queue.pending_buckets(&tr).await.unwrap();
    assert_eq!(pending, [Bucket(0), Bucket(1)]);
}

#[tokio::test]
async fn a_current_value_that_does_not_decode_is_withheld_and_comes_back() {
    for damaged in [&b""[..], b"\0\x01", b"\x01\x01\xc1"] {
        let mut world = World::new(memory()).await;
        // The value of A is folded but not reported yet.
        for operation in [PENDING, &[Operation::Pass(A, 1)]].concat() {
            world.commit(operation).await;
        }
        let queue = world.queue.clone();
        let key = queue.encode_key(&world.keys[A]).unwrap();
        let row = queue.keys.current(&key);
        let whole = world.get(&row).await.unwrap();
        world.set(&row, damaged).await;

        let tr = world.db.begin().unwrap();
        let exact = queue.exact(&tr, &world.keys[A], &Exact::default()).await;
        let refused = exact.unwrap_err();
        assert!(refused.is_corrupt(), "{refused}");

        // The other keys are reported. The remaining updates of A are set aside, with the reason why A is
        // not reported.
        let mut changed = Vec::new();
        for _ in 0..3 {
            let mut tr = world.db.begin().unwrap();
            let staged = world.pass(&tr, Bucket(0), ALL, None).await.unwrap();
            changed.extend(staged.changes.into_iter().map(|change| change.key));
            tr.commit().await.unwrap();
        }
        assert_eq!(changed, [&*world.keys[C]]);
        let tr = world.db.begin().unwrap();
        let aside = queue.set_aside(&tr, None, 10).await.unwrap();
        let (keys, updates): (Vec<_>, Vec<_>) = (aside.iter().map(|aside| &aside.id))
            .partition(|aside| matches!(aside, AsideId::Key(_)));
        assert_eq!(keys, [&AsideId::Key(key.into())]);
        assert_eq!(updates.len(), 1);
        for aside in &aside {
            assert_ne!(aside.value.as_ref().unwrap().reason, "");
        }

        // The value is repaired.
        world.set(&row, &whole).await;
        let mut tr = world.db.begin().unwrap();
        for aside in &aside {
            assert!(queue.redrive(&tr, &aside.id).await.unwrap());
        }
        tr.commit().await.unwrap();
        assert_eq!(world.wrong().await, [""; 0], "{damaged:?}");
    }
}

/// Asserts that the next pass refuses a row of a newer version, and changes nothing.
async fn assert_refused(world: &World<Store>, row: &[u8]) {
    let tr = world.db.begin().unwrap();
    let refused = world.pass(&tr, Bucket(0), ALL, None).await.unwrap_err();
    assert_eq!(corrupt_key(&refused), Some(row), "{refused}");
    let reason = chain(&refused).to_string();
    assert!(reason.ends_with("upgrade the library"), "{reason}");
    let aside = world.queue.set_aside(&tr, None, 10).await.unwrap();
    assert_eq!(aside, []);
}

#[tokio::test]
async fn passes_stop_at_a_block_of_a_newer_version_until_the_upgrade() {
    for newer in [&b"\x02"[..], b"\x01\x02"] {
        let mut world = World::new(memory()).await;
        for operation in [Operation::Add(A), Operation::Add(B), Operation::Add(C)] {
            world.commit(operation).await;
        }
        let (begin, end) = world.queue.keys.logs.subspace(0).range();
        let tr = world.db.begin().unwrap();
        let blocks = read_all(&tr, RangeQuery::keys(begin, end), Isolation::Snapshot);
        let row = blocks.await.unwrap()[1].to_key();
        let whole = world.get(&row).await.unwrap();
        let newer = [newer, &whole[newer.len()..]].concat();
        world.set(&row, &newer).await;

        // The update before the block is folded, and not reported: the end of the log is not reached.
        let mut tr = world.db.begin().unwrap();
        let pass = world.pass(&tr, Bucket(0), ALL, None).await.unwrap().pass();
        assert_eq!((pass.updates, pass.changes, pass.has_more), (1, 0, true));
        tr.commit().await.unwrap();
        assert_refused(&world, &row).await;
        let tr = world.db.begin().unwrap();
        let exact = world
            .queue
            .exact(&tr, &world.keys[C], &Exact::default())
            .await;
        assert_eq!(corrupt_key(&exact.unwrap_err()), Some(&row[..]));
        assert_eq!(world.get(&row).await.unwrap(), newer);

        world.set(&row, &whole).await;
        assert_eq!(world.wrong().await, [""; 0], "{newer:?}");
    }
}

#[tokio::test]
async fn updates_of_a_key_with_a_value_of_a_newer_version_wait_for_the_upgrade() {
    let mut world = World::new(memory()).await;
    world.commit(Operation::Add(A)).await;
    assert_eq!(world.wrong().await, [""; 0]);
    // A has a value as last reported, and a current value.
    for operation in [PENDING, &[Operation::Pass(A, 1)]].concat() {
        world.commit(operation).await;
    }
    let key = world.queue.encode_key(&world.keys[A]).unwrap();
    let keys = &world.queue.keys;
    for row in [keys.value(&key), keys.current(&key)] {
        let whole = world.get(&row).await.unwrap();
        world.set(&row, &[b"\x02", &whole[1..]].concat()).await;
        assert_refused(&world, &row).await;
        world.set(&row, &whole).await;
    }
    assert_eq!(world.wrong().await, [""; 0]);
}
