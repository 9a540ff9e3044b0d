//! Steps of a handler, each of which takes effect once across the deliveries of its item.

use std::future::Future;
use std::time::Duration;

use microqueue::keyspace::codec::{self, MessagePack};
use microqueue::keyspace::error::RunError;
use microqueue::keyspace::limits::TRANSACTION_LIFE;
use microqueue::keyspace::store::StoreTransaction;
use microqueue::keyspace::{Bytes, Code, Tx};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::consume::delivery::Delivery;
use crate::consume::held_item::checkpoint::RunningStep;
use crate::items::error::{Error, Result};
use crate::items::refusal::StepRefusal;

impl<T> Delivery<T> {
    /// Runs a step of the work for the item in a transaction, which also records in the item that the step is done,
    /// with its result. If the step is done already, by this delivery or an earlier one, returns that result instead.
    ///
    /// So what a step writes in the store takes effect once, however often the item is delivered: handlers of
    /// [`work`](crate::Queue::work) divide long work into steps that each take less than five seconds, and go on where
    /// they were after a failure, a death of the process or a deployment. Do not call it within another transaction: if
    /// that one reads or writes the item, it fails, since the step writes the item's row. Handlers of
    /// [`process`](crate::Queue::process) have no steps.
    ///
    /// A step is known by its name, of 1 to [`MAX_STEP_NAME_BYTES`](crate::MAX_STEP_NAME_BYTES). Its result is encoded
    /// in MessagePack. An item has up to [`MAX_STEPS`](crate::MAX_STEPS), which share the
    /// [`MAX_CHECKPOINT_BYTES`](crate::MAX_CHECKPOINT_BYTES) with its [checkpoint](Self::set_checkpoint). For a loop,
    /// use the checkpoint, beside steps or in one.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use hc_dequeue::keyspace::{self, MutationOp, Runner, Transaction};
    /// use hc_dequeue::{Delivery, Error, Queue, WorkerOptions};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let orders = Queue::<u64>::open(&runner, "orders").await?;
    /// orders.submit(&runner, &30).await?;
    ///
    /// let ship = async |order: Delivery<u64>| {
    ///     let charge = async |tr: keyspace::Tx<_>| {
    ///         tr.atomic(MutationOp::Add, b"charged", &order.value().to_le_bytes());
    ///         Ok::<_, Error>(format!("payment of {}", order.value()))
    ///     };
    ///     let payment: String = order.step("charge", charge).await?;
    ///     // An error here does not charge again.
    ///     assert_eq!(payment, "payment of 30");
    ///     Ok::<_, Error>(())
    /// };
    /// let worker = orders.work(&runner, WorkerOptions::new(), ship).await?;
    /// orders.wait_idle(&runner).await?;
    /// worker.shut_down(Duration::from_secs(1)).await?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Conflicts
    /// Those of the step; also reads and writes the item's row, as [`set_checkpoint`](Self::set_checkpoint) does. Two
    /// steps of one delivery that run at the same time therefore conflict.
    ///
    /// # Retries
    /// The runner of the consumer calls the step again if its transaction fails with a conflict or another retryable
    /// error. After a commit with an unknown outcome, it is called again only if it is not recorded. If the commit
    /// happens later, one of the two transactions fails, since both read and write the item's row.
    ///
    /// # Errors
    /// Nothing of the step is committed, except after a commit with an unknown outcome, which may have happened, if the
    /// runner then gives up, or its next attempt finds that the delivery is lost or the item cancelled. A call of the
    /// step by the next delivery finds out: do not undo the effects of the step outside the store.
    ///
    /// - The step's own error.
    /// - [`Error::Step`]: the name is empty, too long, or that of another step of this delivery, also if a transaction
    ///   that calls the step is repeated; the handler is one of `process`; there are too many steps, or there is no
    ///   room for the result; the step takes longer than its transaction lives; or it is done, and its result does not
    ///   decode as an `R`.
    /// - [`Error::DeliveryLost`] if this delivery no longer holds the item, also because the step has acknowledged it:
    ///   return from the handler instead. [`Error::Cancelled`] if the item was cancelled.
    /// - Those of [`Runner::run`](microqueue::keyspace::Runner::run).
    ///
    /// # Cancel safety
    /// If the future is dropped before the commit, nothing of the step happens. If it is dropped during the commit, the
    /// step and its record both happen, or neither does.
    pub async fn step<R, E, F, Fut, Kind>(&self, name: &str, step: F) -> Result<R, E>
    where
        F: Fn(Tx<StoreTransaction>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<R, E>> + Send,
        R: Serialize + DeserializeOwned + Send,
        E: RunError<Kind> + From<Error>,
    {
        let shared = &self.item().shared;
        let begun = self.item().begin_step(name)?;
        let running = &begun;
        let call = &step;
        let last_took = &Mutex::new(Duration::ZERO);
        let run = |tr: Tx<StoreTransaction>| async move {
            if let Some(stored) = running.result(&tr).await? {
                return Ok::<R, E>(decode(running, stored)?);
            }
            let took = *last_took.lock();
            let is_too_old = tr.attempt().after == Some(Code::TRANSACTION_TOO_OLD);
            if is_too_old && took >= TRANSACTION_LIFE {
                return Err(running.refused(StepRefusal::TooSlow { took }).into());
            }
            let began = shared.env.now();
            let called = call(tr.clone()).await;
            *last_took.lock() = shared.env.now().saturating_sub(began);
            let result = called?;
            let mut bytes = Vec::new();
            codec::encode(&MessagePack, &result, &mut bytes)?;
            running.record(&tr, &bytes).await?;
            Ok(result)
        };
        let result = shared.runner.run(run).await?;
        begun.end();
        Ok(result)
    }
}

fn decode<R: Serialize + DeserializeOwned>(step: &RunningStep<'_>, stored: Bytes) -> Result<R> {
    codec::decode(&MessagePack, stored).map_err(|error| {
        let reason = error.to_string();
        step.refused(StepRefusal::OtherResult { reason })
    })
}
