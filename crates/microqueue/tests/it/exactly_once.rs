//! Transactions of one operation, and closures that compose calls, under each way in which the result of a commit
//! can be lost. The queue is checked item by item: an answer means that the effect is there once, an
//! error that it is not there.

use std::sync::Arc;

use crate::common::{Committing, committing, items, jobs_of};
use conformance::chaos::{Chaos, CommitFault, Fate, Faults, Landing, LandingPoint};
use conformance::stores::TestStore;
use microqueue::keyspace::env::ManualClock;
use microqueue::keyspace::run::{RunOptions, Runner};
use microqueue::keyspace::{self, Code, Database, Environment, OwnedTransaction, Transaction};
use microqueue::{Error, Order, Result};

conformance::on_every_store!(
    an_answer_means_one_effect_and_an_error_none,
    a_ledger_swept_in_between_makes_the_outcome_unknown_and_repeats_nothing,
);

/// The subspace of the ledgers, below the root of a test.
const LEDGERS: &str = "ledgers";

/// The items in the queue before each call.
const BEFORE: [u64; 3] = [1, 2, 3];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Call {
    Enqueue,
    EnqueueAll,
    Dequeue,
    DequeueBatch,
    Clear,
    /// Takes an item and enqueues another one in one transaction.
    Move,
    /// The same, but every attempt after the first fails.
    MoveThenFail,
    /// The same, but every attempt after the first leaves the queue alone.
    MoveThenNothing,
}

const CALLS: [Call; 8] = [
    Call::Enqueue,
    Call::EnqueueAll,
    Call::Dequeue,
    Call::DequeueBatch,
    Call::Clear,
    Call::Move,
    Call::MoveThenFail,
    Call::MoveThenNothing,
];

/// The answer of a call.
#[derive(Debug, PartialEq)]
enum Answer {
    Values(Vec<u64>),
    /// The closure left the queue unchanged and reported it.
    LeftAlone,
    /// The closure's own error.
    Failed,
    /// The runner's error: the outcome is unknown.
    Unknown,
}

type Store = Chaos<keyspace::Store>;

async fn call(call: Call, queue: &Committing<u64, Store>, runner: &Runner<Store>) -> Answer {
    let answer = match call {
        Call::Enqueue => queue.enqueue(&8).await.map(|_| Vec::new()),
        Call::EnqueueAll => queue.enqueue_all(&[8, 9]).await.map(|_| Vec::new()),
        Call::Dequeue => queue
            .dequeue()
            .await
            .map(|item| item.into_iter().map(|item| item.value).collect()),
        Call::DequeueBatch => queue
            .dequeue_batch(2)
            .await
            .map(|items| items.into_iter().map(|item| item.value).collect()),
        Call::Clear => queue.clear().await.map(|()| Vec::new()),
        Call::Move | Call::MoveThenFail | Call::MoveThenNothing => {
            match move_one(call, queue, runner).await {
                Ok(None) => return Answer::LeftAlone,
                Ok(Some(value)) => Ok(vec![value]),
                Err(error) => Err(error),
            }
        }
    };
    match answer {
        Ok(values) => Answer::Values(values),
        Err(Error::Keyspace(keyspace::Error::OutcomeUnknown { .. })) => Answer::Unknown,
        Err(Error::Keyspace(keyspace::Error::Store(Code::CLIENT_INVALID_OPERATION))) => {
            Answer::Failed
        }
        Err(error) => panic!("{call:?}: {error:?}"),
    }
}

async fn move_one(
    call: Call,
    queue: &Committing<u64, Store>,
    runner: &Runner<Store>,
) -> Result<Option<u64>> {
    let queue = queue.queue();
    runner
        .run(|tr| async move {
            let attempt = tr.attempt();
            if attempt.number > 1 && call == Call::MoveThenNothing {
                return Ok(None);
            }
            let item = queue.dequeue(&tr).await?.unwrap();
            queue.enqueue(&tr, &(item.value + 10)).await?;
            if attempt.number > 1 && call == Call::MoveThenFail {
                let refusal = keyspace::Error::Store(Code::CLIENT_INVALID_OPERATION);
                return Err(refusal.into());
            }
            Ok(Some(item.value))
        })
        .await
}

/// Returns the answer of a call that happens once, and the items that it leaves.
fn once(call: Call) -> (Answer, Vec<u64>) {
    let (values, left) = match call {
        Call::Enqueue => (vec![], vec![1, 2, 3, 8]),
        Call::EnqueueAll => (vec![], vec![1, 2, 3, 8, 9]),
        Call::Dequeue => (vec![1], vec![2, 3]),
        Call::DequeueBatch => (vec![1, 2], vec![3]),
        Call::Clear => (vec![], vec![]),
        Call::Move | Call::MoveThenFail | Call::MoveThenNothing => (vec![1], vec![2, 3, 11]),
    };
    (Answer::Values(values), left)
}

/// Every fate of a commit without a result, and what happens to the attempt after it.
fn scripts() -> Vec<[CommitFault; 2]> {
    let late = |attempts, before| Fate::Late(Landing { attempts, before });
    let fates = [
        Fate::Applied,
        Fate::Lost,
        late(1, LandingPoint::ReadVersion),
        late(1, LandingPoint::Commit),
        late(2, LandingPoint::ReadVersion),
        late(2, LandingPoint::Commit),
        late(9, LandingPoint::Commit),
    ];
    let mut scripts = Vec::new();
    for fate in fates {
        for next in [
            CommitFault::None,
            CommitFault::NotCommitted,
            CommitFault::Unknown(Fate::Lost),
            CommitFault::Unknown(Fate::Applied),
        ] {
            scripts.push([CommitFault::Unknown(fate), next]);
        }
    }
    scripts
}

/// A queue with the items of [`BEFORE`], on a store whose commits can be scripted.
async fn setup(store: &TestStore, order: Order) -> (Store, Runner<Store>, Committing<u64, Store>) {
    let env = Environment::seeded(7, Arc::new(ManualClock::moved_by_sleepers()));
    let chaos = Chaos::new(store.db.clone(), env.clone(), Faults::default());
    let options = RunOptions::default()
        .with_environment(env.clone())
        .with_ledger_subspace(store.root.subspace(&LEDGERS));
    let runner = Runner::with_options(chaos.clone(), options);
    let queue = committing(&jobs_of(store, order).with_environment(env), &runner);
    queue.enqueue_all(&BEFORE).await.unwrap();
    (chaos, runner, queue)
}

async fn values(queue: &Committing<u64, Store>) -> Vec<u64> {
    let listed = queue.items(None, 100).await.unwrap();
    items(listed).into_iter().map(|item| item.value).collect()
}

async fn an_answer_means_one_effect_and_an_error_none(store: TestStore) {
    for order in [Order::Commit, Order::Index] {
        for operation in CALLS {
            for script in scripts() {
                let (chaos, runner, queue) = setup(&store.fresh(), order).await;
                chaos.script(script);
                let answer = call(operation, &queue, &runner).await;
                chaos.flush().await;
                let left = values(&queue).await;
                let case = format!("{operation:?} in {order:?} order, {script:?}: {answer:?}");
                match answer {
                    Answer::Values(_) => assert_eq!((answer, left), once(operation), "{case}"),
                    Answer::LeftAlone | Answer::Failed => assert_eq!(left, BEFORE, "{case}"),
                    Answer::Unknown => panic!("{case}"),
                }
            }
        }
    }
}

async fn a_ledger_swept_in_between_makes_the_outcome_unknown_and_repeats_nothing(store: TestStore) {
    let late = |before| {
        Fate::Late(Landing {
            attempts: 2,
            before,
        })
    };
    for operation in CALLS {
        for (fate, happened) in [
            (Fate::Applied, true),
            (Fate::Lost, false),
            // The sweep makes it fail.
            (late(LandingPoint::Commit), false),
        ] {
            let store = store.fresh();
            let (chaos, runner, queue) = setup(&store, Order::Commit).await;
            // A sweep that lands before the second attempt of the call.
            chaos.script([late(LandingPoint::ReadVersion), fate].map(CommitFault::Unknown));
            let (begin, end) = store.root.subspace(&LEDGERS).range();
            let mut sweep = chaos.begin().unwrap();
            sweep.clear_range(&begin, &end);
            sweep.commit().await.unwrap_err();

            let answer = call(operation, &queue, &runner).await;
            chaos.flush().await;
            let left = if happened {
                once(operation).1
            } else {
                BEFORE.to_vec()
            };
            let case = format!("{operation:?}, {fate:?}");
            assert_eq!(answer, Answer::Unknown, "{case}");
            assert_eq!(values(&queue).await, left, "{case}");
        }
    }
}
