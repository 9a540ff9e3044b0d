//! Handlers that take longer than their transactions live.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::still::Still;
use crate::common::{DeadLetter, LONG, World};
use conformance::stores::TestStore;
use futures::future::BoxFuture;
use hc_dequeue::testing::drain_process;
use hc_dequeue::{Delivery, Outcome, Settings, WorkerOptions};
use keyspace::{Code, Error, Store, Transaction, Tx};

conformance::on_every_store!(
    a_handler_that_takes_too_long_twice_in_a_row_has_failed,
    a_handler_that_is_drained_and_takes_too_long_has_failed,
    a_transaction_that_is_too_old_is_not_blamed_on_a_quick_handler,
    a_handler_that_takes_long_in_other_calls_has_not_failed,
    a_handler_that_takes_long_and_fails_keeps_its_own_reason,
);

/// What a call of the handler does: how long it takes, and the code with which its transaction fails, if it does.
type HandlerCall = (u64, Option<Code>);

/// A call that takes six seconds, so that a read at its end fails.
const SLOW: HandlerCall = (6_000, Some(Code::TRANSACTION_TOO_OLD));
/// A call in which a slow store makes the transaction too old.
const OUTPACED: HandlerCall = (4_999, Some(Code::TRANSACTION_TOO_OLD));
const CONFLICT: HandlerCall = (6_000, Some(Code::NOT_COMMITTED));
const DONE: HandlerCall = (6_000, None);

struct Slow {
    world: World,
    clock: Still,
    calls: Arc<AtomicUsize>,
}

impl Slow {
    /// Returns a queue whose only item has one attempt.
    async fn new(store: &TestStore) -> Self {
        // Handlers set the clock forward instead of taking time.
        let clock = Still::new();
        let settings = Settings::new().with_max_attempts(1).with_lease(LONG * 60);
        let world = clock.world(store, settings).await;
        world.enqueue([7]).await;
        Self {
            world,
            clock,
            calls: Arc::default(),
        }
    }

    /// Returns a handler whose calls do this, one after another.
    fn handler(
        &self,
        calls: &'static [HandlerCall],
    ) -> impl Fn(Tx<TransactionOf>, Delivery<u64>) -> BoxFuture<'static, Result<Outcome, Error>>
    + Send
    + Sync
    + 'static {
        let clock = self.clock.clone();
        let counted = self.calls.clone();
        let key = self.world.store.root.pack(&"calls");
        move |tr, _| {
            let (took, code) = calls[counted.fetch_add(1, Ordering::Relaxed)];
            clock.advance(Duration::from_millis(took));
            tr.set(&key, &took.to_be_bytes());
            Box::pin(async move {
                match code {
                    Some(code) => Err(Error::from(code)),
                    None => Ok(Outcome::Done),
                }
            })
        }
    }

    /// Lets a worker handle the item. Returns how often the handler was called, and the dead letter.
    async fn work(&self, calls: &'static [HandlerCall]) -> (usize, Option<DeadLetter<u64>>) {
        let queue = &self.world.queue;
        let runner = &self.world.runner;
        let options = WorkerOptions::new();
        let worker = queue.process(runner, options, self.handler(calls)).await;
        queue.wait_idle(runner).await.unwrap();
        worker.unwrap().shut_down(LONG).await.unwrap();
        self.end().await
    }

    async fn end(&self) -> (usize, Option<DeadLetter<u64>>) {
        let mut letters = self.world.dead_letters().await;
        self.world.check().await;
        (self.calls.load(Ordering::Relaxed), letters.pop())
    }
}

type TransactionOf = <Store as keyspace::Database>::Transaction;

fn assert_blamed(letter: Option<DeadLetter<u64>>) {
    let letter = letter.expect("a dead letter");
    let reason = &letter.failure.as_ref().unwrap().reason;
    assert_eq!(letter.attempts, 1);
    assert_eq!(
        reason,
        "the handler took 6.0s, longer than the 5s of its transaction: handle such items with `work`"
    );
}

async fn a_handler_that_takes_too_long_twice_in_a_row_has_failed(store: TestStore) {
    let slow = Slow::new(&store).await;
    let (calls, letter) = slow.work(&[SLOW, SLOW, DONE]).await;
    assert_eq!(calls, 2);
    assert_blamed(letter);
}

async fn a_handler_that_is_drained_and_takes_too_long_has_failed(store: TestStore) {
    let slow = Slow::new(&store).await;
    let queue = &slow.world.queue;
    let runner = &slow.world.runner;
    let handler = slow.handler(&[SLOW, SLOW, DONE]);
    let drained = drain_process(runner, queue, handler).await.unwrap();
    assert_eq!(drained.dead, 1);
    let (calls, letter) = slow.end().await;
    assert_eq!(calls, 2);
    assert_blamed(letter);
}

async fn a_transaction_that_is_too_old_is_not_blamed_on_a_quick_handler(store: TestStore) {
    let slow = Slow::new(&store).await;
    let calls = &[OUTPACED, OUTPACED, OUTPACED, SLOW, OUTPACED, SLOW, DONE];
    let (calls, letter) = slow.work(calls).await;
    assert_eq!((calls, letter), (7, None));
    assert_eq!(slow.world.stats().await.completed, 1);
}

async fn a_handler_that_takes_long_in_other_calls_has_not_failed(store: TestStore) {
    let slow = Slow::new(&store).await;
    let (calls, letter) = slow.work(&[SLOW, CONFLICT, CONFLICT, SLOW, DONE]).await;
    assert_eq!((calls, letter), (5, None));
    assert_eq!(slow.world.stats().await.completed, 1);
}

async fn a_handler_that_takes_long_and_fails_keeps_its_own_reason(store: TestStore) {
    const FAILED: HandlerCall = (6_000, Some(Code::TRANSACTION_CANCELLED));
    let slow = Slow::new(&store).await;
    let (calls, letter) = slow.work(&[SLOW, FAILED, DONE]).await;
    let reason = letter.unwrap().status.failure.unwrap().reason;
    assert_eq!(calls, 2);
    assert!(!reason.contains("`work`"), "{reason}");
}
