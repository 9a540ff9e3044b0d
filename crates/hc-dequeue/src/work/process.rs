//! Handles items in the transactions that complete them.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::error::chain;
use microqueue::keyspace::limits::TRANSACTION_LIFE;
use microqueue::keyspace::store::StoreTransaction;
use microqueue::keyspace::{self, Code, Database, Runner, Store, Transaction, Tx};
use parking_lot::Mutex;

use crate::consume::delivery::Delivery;
use crate::consume::held_item::HeldItem;
use crate::consume::holdings::outstanding::Repeats;
use crate::items::error::{BoxError, Error, Result};
use crate::items::item_ref::ItemRef;
use crate::options::WorkerOptions;
use crate::queue::handle::Queue;
use crate::work::handler::{Handler, TransactionHandler};
use crate::work::outcome::{IntoOutcome, Outcome};
use crate::work::worker::Worker;

/// Why a transaction is not committed.
#[derive(Debug, thiserror::Error)]
enum Unfinished {
    #[error(transparent)]
    Queue(#[from] Error),

    #[error(transparent)]
    Keyspace(#[from] keyspace::Error),

    /// Kept as the source, so that the runner finds the store's error in it and retries.
    #[error("the handler failed")]
    Handler(#[source] BoxError),

    #[error("the item is not done")]
    NotDone(Outcome),
}

impl From<Unfinished> for Outcome {
    fn from(unfinished: Unfinished) -> Self {
        match unfinished {
            Unfinished::NotDone(outcome) => outcome,
            Unfinished::Handler(error) => Self::failed(&*error),
            Unfinished::Queue(error) => Self::failed(&error),
            Unfinished::Keyspace(error) => Self::failed(&error),
        }
    }
}

impl<T, C> Queue<T, C>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
{
    /// Opens a session and runs the handler for each item in the transaction that completes the item. Most
    /// applications want this.
    ///
    /// The handler gets a transaction and a delivery. If it returns `Ok(())` or [`Outcome::Done`], the worker
    /// acknowledges the item in the same transaction and commits it. What the handler has staged therefore takes
    /// effect exactly once, if and only if the item is completed. With an `Err` or any other outcome, nothing of the
    /// transaction is committed, and the item is snoozed, retried or becomes a dead letter, as with
    /// [`work`](Self::work).
    ///
    /// The handler may itself end its item in its transaction. If it [acknowledges](Delivery::ack) the item and returns
    /// `Ok(())`, nothing else happens to it. If it [cancels](Self::cancel) the item and returns `Ok(())`, the item ends
    /// as cancelled, together with what the handler has staged. If another transaction cancels the item, nothing of the
    /// handler's is committed.
    ///
    /// The handler must finish within the five seconds of a transaction. Use [`work`](Self::work) for handlers that
    /// take longer, or whose effects are outside the store. If a handler takes longer, it is called again, and the
    /// worker logs a warning. After the second time in a row, the item has failed an attempt, with a reason that names
    /// the time that the handler took.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use hc_dequeue::keyspace::codec::MessagePack;
    /// use hc_dequeue::keyspace::{self, Isolation, Runner, Subspace, Tx, typed};
    /// use hc_dequeue::{Delivery, Queue, WorkerOptions};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let subspace = Subspace::from("payments");
    /// let queue = Queue::<u64>::open(&runner, subspace).await?;
    /// let payments = &queue;
    /// runner.run(async |tr| payments.enqueue_all(&tr, &[30, 12]).await).await?;
    ///
    /// let pay = async |tr: Tx<_>, payment: Delivery<u64>| {
    ///     let paid = typed::get(&tr, &MessagePack, b"paid", Isolation::Serializable).await?;
    ///     let paid: u64 = paid.unwrap_or_default();
    ///     typed::set(&tr, &MessagePack, b"paid", &(paid + payment.value()))
    /// };
    /// let worker = queue.process(&runner, WorkerOptions::new(), pay).await?;
    /// queue.wait_idle(&runner).await?;
    /// worker.shut_down(Duration::from_secs(1)).await?;
    ///
    /// let read = async |tr| typed::get(&tr, &MessagePack, b"paid", Isolation::Snapshot).await;
    /// assert_eq!(runner.run(read).await?, Some(42_u64));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Conflicts
    /// As [`Delivery::ack`], and those of the handler.
    ///
    /// # Retries
    /// The runner calls the handler again if its transaction fails with a conflict or another retryable error. This
    /// includes the case that the handler returns such an error, wrapped in an error of its own or not. A retry by
    /// the runner does not count as another attempt of the item.
    ///
    /// After a commit with an unknown outcome, the handler is called again only if the session still holds the item. If
    /// the commit happens later, one of the two transactions fails, since both read and clear the row of the item.
    ///
    /// # Errors
    /// Those of [`consumer`](Self::consumer), and [`Error::TooHigh`](crate::Error::TooHigh) if the concurrency is more
    /// than [`MAX_CONCURRENCY`](crate::MAX_CONCURRENCY).
    ///
    /// # Cancel safety
    /// Dropping the future may leave a session without heartbeats, which other sessions remove.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub async fn process<D, F, Fut, R>(
        &self,
        runner: &Runner<D>,
        options: WorkerOptions,
        handler: F,
    ) -> Result<Worker<T>>
    where
        D: Database,
        F: Fn(Tx<D::Transaction>, Delivery<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome + Send + 'static,
    {
        self.process_by(runner, options, handler).await
    }

    /// Opens a session and calls a [`TransactionHandler`] for each item, as [`process`](Self::process) calls a closure.
    /// Such a handler borrows its state, instead of a clone in each call.
    ///
    /// # Conflicts
    /// As [`process`](Self::process).
    ///
    /// # Errors
    /// As [`process`](Self::process).
    ///
    /// # Cancel safety
    /// As [`process`](Self::process).
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub async fn process_by<D: Database>(
        &self,
        runner: &Runner<D>,
        options: WorkerOptions,
        handler: impl TransactionHandler<T, D::Transaction>,
    ) -> Result<Worker<T>> {
        let handler = InTransaction::new(runner, handler);
        self.work_by(runner, options, handler).await
    }
}

/// Calls a handler in the transaction that completes the item.
pub(crate) struct InTransaction<H, Tr> {
    runner: Runner<Store>,
    handler: H,
    transaction: PhantomData<fn(Tr)>,
}

impl<H, Tr> InTransaction<H, Tr> {
    pub(crate) fn new<D: Database>(runner: &Runner<D>, handler: H) -> Self {
        Self {
            runner: runner.on_store().idempotent(),
            handler,
            transaction: PhantomData,
        }
    }
}

impl<T, H, Tr> Handler<T> for InTransaction<H, Tr>
where
    T: Send + Sync + 'static,
    Tr: Transaction + 'static,
    H: TransactionHandler<T, Tr>,
{
    type Output = Outcome;

    async fn handle(&self, delivery: Delivery<T>) -> Outcome {
        let handle = |tr: Tx<Tr>, delivery| self.handler.handle(tr, delivery);
        in_transaction(&self.runner, &handle, &delivery).await
    }
}

/// A handler for one item, which calls it in a transaction.
type HandleIn<'a> =
    dyn Fn(Tx<StoreTransaction>) -> BoxFuture<'a, Result<Outcome, BoxError>> + Sync + 'a;

/// Runs a handler in a transaction, acknowledges the item in it if the handler is done, and commits.
///
/// The runner is [idempotent](Runner::idempotent), which saves a write: the row of the held item does what a ledger
/// would do. Each attempt that commits has read this row and clears it, so that no two attempts commit.
pub(crate) async fn in_transaction<T, Tr, F, Fut, R>(
    runner: &Runner<Store>,
    handler: &F,
    delivery: &Delivery<T>,
) -> Outcome
where
    T: Send + Sync,
    Tr: Transaction,
    F: Fn(Tx<Tr>, Delivery<T>) -> Fut + Sync,
    Fut: Future<Output = R> + Send,
    R: IntoOutcome + Send,
{
    let handle = |tr: Tx<StoreTransaction>| -> BoxFuture<'_, _> {
        let handled = handler(tr.typed(), delivery.clone());
        Box::pin(async move { handled.await.into_outcome() })
    };
    commit_handled(runner, &handle, delivery.item()).await
}

/// Calls a handler for an item in a transaction, acknowledges the item in it if the handler is done, and commits.
fn commit_handled<'a>(
    runner: &'a Runner<Store>,
    handle: &'a HandleIn<'_>,
    item: &'a HeldItem,
) -> BoxFuture<'a, Outcome> {
    item.is_in_transaction.store(true, Ordering::Relaxed);
    Box::pin(async move {
        let called = &Mutex::new(Called::default());
        // Whether an earlier attempt may have committed.
        let is_in_doubt = &AtomicBool::new(false);
        let env = runner.environment();
        let done = |tr: Tx<_>| async move {
            let after = tr.attempt().after;
            if let Some(code) = after {
                called.lock().repeat(item, code);
            }
            if after.is_some_and(Code::leaves_commit_unknown) {
                is_in_doubt.store(true, Ordering::Relaxed);
            }
            if is_in_doubt.load(Ordering::Relaxed) && !item.is_there(&tr).await? {
                // That attempt has committed, or else the delivery is lost, and there is nothing to do either.
                return Ok(());
            }
            let is_too_old = after == Some(Code::TRANSACTION_TOO_OLD);
            let too_slow = called.lock().overruns.judge(is_too_old, &item.item_ref());
            if let Some(reason) = too_slow {
                return Err(Unfinished::NotDone(Outcome::retry(reason)));
            }
            let began = env.now();
            let handled = handle(tr.clone()).await;
            called.lock().end(&handled, env.now().saturating_sub(began));
            match handled.map_err(Unfinished::Handler)? {
                Outcome::Done => Ok(acknowledge(runner, &tr, item).await?),
                outcome => Err(Unfinished::NotDone(outcome)),
            }
        };
        match runner.run(done).await {
            Ok(()) => Outcome::Done,
            Err(unfinished) => unfinished.into(),
        }
    })
}

/// A handler that was called this often for an item is logged, and then at each doubling. A few conflicts are nothing
/// unusual.
const CALLS_TO_LOG: u32 = 8;

/// The calls of a handler for an item, none of which was committed.
#[derive(Debug, Default)]
struct Called {
    calls: u32,
    /// The error that the last of them has returned.
    error: Option<String>,
    overruns: Overruns,
}

impl Called {
    /// Records a call that has ended.
    fn end(&mut self, handled: &Result<Outcome, BoxError>, took: Duration) {
        self.calls += 1;
        self.error = handled
            .as_ref()
            .err()
            .map(|error| chain(&**error).to_string());
        self.overruns.took = took;
    }

    /// Records that the handler is called again after this code.
    fn repeat(&self, item: &HeldItem, code: Code) {
        let calls = self.calls;
        if calls == 0 {
            return;
        }
        let of_store = || keyspace::Error::from(code).to_string();
        let error = self.error.clone().unwrap_or_else(of_store);
        if calls >= CALLS_TO_LOG && calls.is_power_of_two() {
            let item = item.item_ref();
            tracing::warn!(
                %item,
                calls,
                error,
                "a handler is called again and again, since its transaction does not commit"
            );
        }
        item.out.note_repeats(Repeats { calls, error });
    }
}

/// Acknowledges an item in the transaction of its handler, unless the handler has already ended the item there.
async fn acknowledge(
    runner: &Runner<Store>,
    tr: &Tx<StoreTransaction>,
    item: &HeldItem,
) -> Result<()> {
    let refused = match item.ack(tr).await {
        Err(refused @ (Error::Cancelled { .. } | Error::DeliveryLost { .. })) => refused,
        acknowledged => return acknowledged,
    };
    // This transaction has read the item, and the new one reads a version that is not older. If the item is still held
    // there, the handler itself has cancelled or acknowledged it. If another transaction does so later, this one fails.
    let stored = runner.database().begin()?;
    if !item.is_held(&stored).await? {
        return Err(refused);
    }
    match refused {
        Error::Cancelled { .. } => item.end_cancelled(tr).await,
        _ => Ok(()),
    }
}

/// How often in a row a handler may take longer than a transaction lives.
const MAX_OVERRUNS: u32 = 2;

/// Calls of a handler that have taken longer than their transactions live.
#[derive(Debug, Default)]
struct Overruns {
    in_a_row: u32,
    /// How long the last call took.
    took: Duration,
}

impl Overruns {
    /// Judges the last call, whose transaction was too old or not. The first call that took too long is logged; after
    /// the second one in a row, returns the reason why the item has failed.
    fn judge(&mut self, was_too_old: bool, item: &ItemRef) -> Option<String> {
        // The transaction of a quick handler may be too old because the store is slow. It is repeated.
        let took = std::mem::take(&mut self.took);
        if !was_too_old || took < TRANSACTION_LIFE {
            self.in_a_row = 0;
            return None;
        }
        self.in_a_row += 1;
        let life = TRANSACTION_LIFE;
        if self.in_a_row < MAX_OVERRUNS {
            tracing::warn!(
                %item,
                ?took,
                "a handler took longer than the {life:?} of its transaction and is called again: handle such items \
                 with `work`"
            );
            return None;
        }
        Some(format!(
            "the handler took {took:.1?}, longer than the {life:?} of its transaction: handle such items with `work`"
        ))
    }
}
