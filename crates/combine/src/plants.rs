//! Two steps that begin at the same time: which of them makes the other one fail, and what is lost on
//! a store that breaks the promise by which it does.

use std::collections::BTreeMap;
use std::time::Duration;

use conformance::plant::{Plant, Planted};
use hc_dequeue::keyspace::{
    self, Code, Database, Isolation, OwnedTransaction, RangeQuery, Runner, Store, Subspace,
    Transaction, error::code_of, read_all,
};

use crate::combiner::Sum;
use crate::error::Result;
use crate::keys::Bucket;
use crate::observer::Unobserved;
use crate::pass::{Pass, Plan};
use crate::queue::CombineQueue;
use crate::read::Exact;
use crate::settings::Settings;

/// Three keys of one bucket, in their order, and one of the other bucket.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const ELSEWHERE: usize = 3;

/// What a bulk load gives a key.
const LOADED: i64 = 40;

/// More updates than one batch of a range read has.
const FLOOD: i64 = 4_000;

/// A budget for everything.
const ALL: usize = 1 << 20;

/// A transaction, staged in full. Each must have something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Add(usize),
    /// Adds so many that one batch does not hold them.
    Flood(usize),
    /// A pass over the bucket of a key, with a budget of bytes.
    Pass(usize, usize),
    /// A pass over the first bucket that sets one update aside.
    SetAside,
    /// Puts the first update back that is aside.
    Redrive,
    Purge,
    Initialize(usize),
    /// Reads a value serializably, and writes something elsewhere.
    Settled(usize),
    Exact(usize),
}

/// Steps that are made one after the other, then two that both read what these have left, of which the
/// first one commits first.
#[derive(Debug, Clone, Copy)]
struct Meeting {
    before: &'static [Step],
    first: Step,
    second: Step,
}

impl Meeting {
    const fn new(before: &'static [Step], first: Step, second: Step) -> Self {
        Self {
            before,
            first,
            second,
        }
    }
}

/// What came of a meeting.
struct Outcome {
    /// Whether the second one failed.
    has_conflicted: bool,
    /// What is not as it should be in the end.
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
        let settings = Settings::new().bucket_count(2);
        let queue = CombineQueue::open(&runner, Subspace::from("queue"), settings, Sum);
        let queue: CombineQueue<String, i64> = queue.await.unwrap();
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

    async fn stage(&self, tr: &D::Transaction, step: Step) -> Result<()> {
        let queue = &self.queue;
        let key = |key: usize| &self.keys[key];
        match step {
            Step::Add(place) => queue.add(tr, key(place), &1).await?,
            Step::Flood(place) => {
                let updates: Vec<_> = (0..FLOOD).map(|_| (key(place).clone(), 1)).collect();
                let updates = updates.iter().map(|(key, update)| (key, update));
                queue.add_all(tr, updates).await?;
            }
            Step::Pass(place, budget) => {
                let pass = self
                    .pass(tr, queue.bucket(key(place))?, budget, None)
                    .await?;
                assert!(pass.updates > 0);
            }
            Step::SetAside => {
                let reason = Some("on purpose".to_owned());
                let pass = self.pass(tr, Bucket(0), 1, reason).await?;
                assert_eq!(pass.set_aside, 1);
            }
            Step::Redrive | Step::Purge => {
                let aside = queue.set_aside(tr, None, 1).await?;
                assert!(match step {
                    Step::Redrive => queue.redrive(tr, &aside[0].id).await?,
                    _ => queue.purge(tr, &aside[0].id).await?,
                });
            }
            Step::Initialize(place) => queue.initialize(tr, key(place), &LOADED).await?,
            Step::Settled(place) => {
                queue
                    .settled(tr, key(place), Isolation::Serializable)
                    .await?;
                tr.set(b"elsewhere", b"");
            }
            Step::Exact(place) => {
                let serializable = Exact::new().isolation(Isolation::Serializable);
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
        set_aside: Option<String>,
    ) -> Result<Pass> {
        let plan = Plan {
            budget,
            observer_time_limit: Duration::from_secs(60),
            set_aside,
        };
        self.queue.pass(tr, bucket, &plan, &Unobserved).await
    }

    /// Takes note of a step that has committed.
    fn note(&mut self, step: Step) {
        let (key, change) = match step {
            Step::Add(key) => (key, 1),
            Step::Flood(key) => (key, FLOOD),
            Step::Initialize(key) => (key, LOADED),
            // All that is ever aside is of this key.
            Step::Purge => (A, -1),
            _ => return,
        };
        *self.expected.entry(key).or_insert(0) += change;
    }

    async fn commit(&mut self, step: Step) {
        let mut tr = self.db.begin().unwrap();
        self.stage(&tr, step).await.unwrap();
        tr.commit().await.unwrap();
        self.note(step);
    }

    /// Makes passes for as long as there is a notification, and looks what has become of the updates.
    async fn wrong(&self) -> Vec<String> {
        let queue = &self.queue;
        loop {
            let mut tr = self.db.begin().unwrap();
            for aside in queue.set_aside(&tr, None, usize::MAX).await.unwrap() {
                queue.redrive(&tr, &aside.id).await.unwrap();
            }
            tr.commit().await.unwrap();
            let mut tr = self.db.begin().unwrap();
            let mut passes = Vec::new();
            for bucket in queue.keys.buckets() {
                passes.push(self.pass(&tr, bucket, ALL, None).await.unwrap());
            }
            tr.commit().await.unwrap();
            if passes == [Pass::default(); 2] {
                break;
            }
        }
        let mut wrong = Vec::new();
        let tr = self.db.begin().unwrap();
        for (place, key) in self.keys.iter().enumerate() {
            let settled = queue.settled(&tr, key, Isolation::Snapshot).await.unwrap();
            let expected = self.expected.get(&place).copied();
            if settled != expected.filter(|sum| *sum != 0) {
                wrong.push(format!("{key} is {settled:?}, expected {expected:?}"));
            }
        }
        for part in ["u", "n", "c", "q"] {
            let (begin, end) = queue.subspace().subspace(&part).range();
            let left = read_all(&tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await;
            let left = left.unwrap().len();
            if left > 0 {
                wrong.push(format!("{left} keys are left under `{part}`"));
            }
        }
        wrong
    }
}

async fn meet<D: Database>(db: D, meeting: Meeting) -> Outcome {
    let mut world = World::new(db).await;
    for step in meeting.before {
        world.commit(*step).await;
    }
    let mut second = world.db.begin().unwrap();
    world.stage(&second, meeting.second).await.unwrap();
    world.commit(meeting.first).await;
    let committed = second.commit().await;
    match &committed {
        Ok(_) => world.note(meeting.second),
        Err(error) => assert_eq!(code_of(error), Some(Code::NOT_COMMITTED)),
    }
    Outcome {
        has_conflicted: committed.is_err(),
        wrong: world.wrong().await,
    }
}

fn memory() -> Store {
    keyspace::open("memory:").unwrap()
}

/// A key with updates, another key of its bucket with one, and one of the other bucket.
const PENDING: &[Step] = &[
    Step::Add(A),
    Step::Add(A),
    Step::Add(C),
    Step::Add(ELSEWHERE),
];

/// Of three updates of a key the second one is aside.
const MIDDLE_ASIDE: &[Step] = &[
    Step::Add(A),
    Step::Add(A),
    Step::Add(A),
    Step::SetAside,
    Step::SetAside,
    Step::Redrive,
];

/// Of three updates of a key the first one is aside.
const FIRST_ASIDE: &[Step] = &[Step::Add(A), Step::Add(A), Step::Add(A), Step::SetAside];

const PASS: Step = Step::Pass(A, ALL);

const CONFLICTS: [Meeting; 13] = [
    // A bucket is swept by one pass after the other, whatever they take.
    Meeting::new(PENDING, PASS, PASS),
    Meeting::new(PENDING, Step::Pass(A, 1), PASS),
    Meeting::new(PENDING, PASS, Step::SetAside),
    // Nothing that was loaded or combined is overwritten.
    Meeting::new(PENDING, Step::Initialize(A), PASS),
    Meeting::new(PENDING, PASS, Step::Initialize(A)),
    Meeting::new(PENDING, Step::Initialize(B), Step::Initialize(B)),
    // A pass clears all from the first to the last update that it takes.
    Meeting::new(MIDDLE_ASIDE, Step::Redrive, PASS),
    // What is aside goes one way.
    Meeting::new(MIDDLE_ASIDE, Step::Redrive, Step::Redrive),
    Meeting::new(MIDDLE_ASIDE, Step::Redrive, Step::Purge),
    Meeting::new(MIDDLE_ASIDE, Step::Purge, Step::Redrive),
    // Who reads serializably learns of changes.
    Meeting::new(PENDING, PASS, Step::Settled(A)),
    Meeting::new(PENDING, PASS, Step::Exact(A)),
    Meeting::new(PENDING, Step::Add(A), Step::Exact(A)),
];

const FREE: [Meeting; 13] = [
    Meeting::new(PENDING, Step::Add(A), Step::Add(A)),
    Meeting::new(PENDING, Step::Add(A), PASS),
    Meeting::new(PENDING, PASS, Step::Add(A)),
    Meeting::new(PENDING, Step::Pass(A, 1), Step::Add(A)),
    Meeting::new(PENDING, PASS, Step::Pass(ELSEWHERE, ALL)),
    Meeting::new(PENDING, Step::Initialize(B), PASS),
    Meeting::new(PENDING, PASS, Step::Initialize(B)),
    Meeting::new(PENDING, Step::Add(A), Step::Initialize(A)),
    Meeting::new(PENDING, Step::Add(A), Step::Settled(A)),
    Meeting::new(PENDING, PASS, Step::Exact(B)),
    Meeting::new(MIDDLE_ASIDE, PASS, Step::Redrive),
    Meeting::new(MIDDLE_ASIDE, Step::Add(A), Step::Redrive),
    Meeting::new(FIRST_ASIDE, Step::Redrive, PASS),
];

/// Which broken promise is seen by what.
const PLANTS: [(Plant, Meeting); 7] = [
    // What is added while a pass is made keeps the notification.
    (
        Plant::ClearsWithoutComparison,
        Meeting::new(&[Step::Add(A)], Step::Add(B), PASS),
    ),
    // And so does what is added to a key that the sweep has passed.
    (
        Plant::ComparisonsWithReads,
        Meeting::new(
            &[Step::Add(B), Step::Add(C), Step::Pass(B, 1), Step::Add(A)],
            Step::Add(ELSEWHERE),
            PASS,
        ),
    ),
    // What comes back between the updates taken is not cleared with them.
    (
        Plant::AddedConflictsWithoutEffect,
        Meeting::new(MIDDLE_ASIDE, Step::Redrive, PASS),
    ),
    // The end of a batch is not the end of a key.
    (
        Plant::FirstBatchesOnly,
        Meeting::new(&[Step::Flood(A)], Step::Add(ELSEWHERE), PASS),
    ),
    // Of a bulk load and a pass neither overwrites the other.
    (
        Plant::ReadsWithoutConflicts,
        Meeting::new(&[Step::Add(A)], Step::Initialize(A), PASS),
    ),
    (
        Plant::ReadsWithoutConflicts,
        Meeting::new(&[Step::Add(A)], PASS, Step::Initialize(A)),
    ),
    // Two passes do not fold the same updates.
    (
        Plant::NoReadConflicts,
        Meeting::new(PENDING, PASS, Step::Pass(A, 1)),
    ),
];

#[tokio::test]
async fn what_must_not_happen_together_does_not() {
    for meeting in CONFLICTS {
        let outcome = meet(memory(), meeting).await;
        assert!(outcome.has_conflicted, "{meeting:?}");
        assert_eq!(outcome.wrong, [""; 0], "{meeting:?}");
    }
}

#[tokio::test]
async fn without_read_conflicts_all_of_that_happens() {
    for meeting in CONFLICTS {
        let outcome = meet(Planted::new(memory(), Plant::NoReadConflicts), meeting).await;
        assert!(!outcome.has_conflicted, "{meeting:?}");
    }
}

#[tokio::test]
async fn what_may_happen_together_does() {
    for meeting in FREE {
        let outcome = meet(memory(), meeting).await;
        assert!(!outcome.has_conflicted, "{meeting:?}");
        assert_eq!(outcome.wrong, [""; 0], "{meeting:?}");
    }
}

#[tokio::test]
async fn each_broken_promise_is_seen() {
    for (plant, meeting) in PLANTS {
        let sound = meet(memory(), meeting).await;
        assert_eq!(sound.wrong, [""; 0], "{meeting:?}");
        let broken = meet(Planted::new(memory(), plant), meeting).await;
        assert_ne!(broken.wrong, [""; 0], "{plant:?}: {meeting:?}");
    }
}

#[tokio::test]
async fn a_pass_has_more_if_somebody_has_added_since_its_sweep_began() {
    for is_added_to in [false, true] {
        let mut world = World::new(memory()).await;
        for step in [Step::Add(B), Step::Add(C), Step::Pass(B, 1)] {
            world.commit(step).await;
        }
        if is_added_to {
            world.commit(Step::Add(A)).await;
        }
        let tr = world.db.begin().unwrap();
        let last = world.pass(&tr, Bucket(0), ALL, None).await.unwrap();
        assert_eq!((last.updates, last.has_more), (1, is_added_to));
    }
}
