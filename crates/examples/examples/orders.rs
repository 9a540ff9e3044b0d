//! An order is reserved, charged and shipped. If a step fails for good, what the steps before it have done is undone.
//!
//! A batch waits for the steps. Each one enqueues the next as a member, in the transaction that completes it, and its
//! result says what it has done. When the last step has ended, the callback reads the results, and enqueues what
//! undoes them. Every step is one transaction, so each effect, and each compensation, comes exactly once, whatever is
//! killed on the way. A step that becomes a dead letter leaves the batch, and the order is undone. If the step is
//! redriven, at any time, it does nothing: it is a member no more.
//!
//! A step that calls another system belongs into `work`, with its item's reference as the idempotency key.
//!
//! `cargo run -p examples --example orders` runs it in memory. With a URL it runs there: `embedded:orders.keyspace` or
//! `fdb:`.

use std::time::Duration;

use hc_dequeue::keyspace::codec::{Codec, MessagePack};
use hc_dequeue::keyspace::{
    self, Database, Isolation, MutationOp, OpenOptions, Runner, Subspace, Transaction, Tx,
};
use hc_dequeue::{
    Batch, BoxError, Delivery, End, Enqueue, Outcome, Place, PlaceKind, Queue, Settings,
    TransactionHandler, WorkerOptions,
};
use serde::{Deserialize, Serialize};

const ORDERS: u64 = 20;

const STOCK: i64 = 15;

const PRICE: i64 = 100;

/// Nothing can be shipped to every fifth address, until it is corrected.
const NOWHERE: u64 = 5;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Job {
    Reserve(u64),
    Charge(u64),
    Ship(u64),
    /// The callback: all steps of an order have ended.
    Settle(u64),
    Undo(u64, Effect),
}

/// What a step has done: its result.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Effect {
    Reserved { pieces: i64 },
    Charged { cents: i64 },
    Shipped,
}

/// The queue, and numbers that stand for a stock, for the accounts of customers, and for what was shipped. Clones share
/// them.
#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) jobs: Queue<Job>,
    rows: Subspace,
}

impl Shop {
    pub(crate) async fn open<D: Database>(
        runner: &Runner<D>,
        root: &Subspace,
    ) -> Result<Self, BoxError> {
        // The results of the steps are read when all have ended.
        let settings = Settings::new().with_keep_done(Duration::from_secs(24 * 3600));
        let jobs = root.subspace(&"jobs");
        let jobs = Queue::open_with(runner, jobs, settings, OpenOptions::new()).await?;
        let rows = root.subspace(&"rows");
        Ok(Self { jobs, rows })
    }

    /// Places an order, in the transaction of the caller.
    pub(crate) async fn place(&self, tr: &impl Transaction, order: u64) -> Result<(), BoxError> {
        let then = Batch::new().with_callback(Job::Settle(order), Enqueue::new());
        let batch = self.jobs.open_batch(tr, &then).await?;
        let member = Enqueue::new().with_batch(&batch);
        let _ = self
            .jobs
            .enqueue_with(tr, &Job::Reserve(order), &member)
            .await?;
        // From now on, only the steps themselves add others.
        self.jobs.close_batch(tr, &batch)?;
        Ok(())
    }

    /// Ends an order: if one of its steps has failed, enqueues what undoes the others, the last one first.
    async fn settle(
        &self,
        tr: &impl Transaction,
        callback: &Delivery<Job>,
        order: u64,
    ) -> Result<(), BoxError> {
        let batch = callback.ended_batch().ok_or("it is a callback")?;
        // There are three at most.
        let steps = self.jobs.members(tr, &batch, None, 10).await?;
        let steps = steps.ok_or("the batch is kept for a day")?.members;
        let mut effects: Vec<Effect> = Vec::new();
        let mut has_failed = false;
        for step in steps {
            let step = step.status?.ok_or("its members are, too")?;
            if let Place::Done { end, .. } = step.place
                && end == End::Completed
            {
                effects.push(MessagePack.decode(step.result)?);
            } else {
                has_failed = true;
            }
        }
        if has_failed {
            self.add(tr, "undone", order, 1);
            for effect in effects.into_iter().rev() {
                self.jobs.enqueue(tr, &Job::Undo(order, effect)).await?;
            }
        }
        Ok(())
    }

    /// Adds pieces, corrects all addresses, and redrives the steps that have failed. Returns how many.
    async fn repair(&self, tr: &impl Transaction) -> Result<usize, BoxError> {
        self.add(tr, "stock", 0, STOCK);
        for order in 0..ORDERS {
            self.add(tr, "corrected", order, 1);
        }
        let dead = self.jobs.list(tr, PlaceKind::Dead, None, 100).await?.items;
        for step in &dead {
            self.jobs.redrive(tr, &step.item).await?;
        }
        Ok(dead.len())
    }

    pub(crate) fn add(&self, tr: &impl Transaction, name: &str, order: u64, number: i64) {
        let key = self.rows.pack(&(name, order));
        tr.atomic(MutationOp::Add, &key, &number.to_le_bytes());
    }

    pub(crate) async fn number(
        &self,
        tr: &impl Transaction,
        name: &str,
        order: u64,
    ) -> Result<i64, BoxError> {
        let key = self.rows.pack(&(name, order));
        let bytes = tr.get(&key, Isolation::Serializable).await?;
        let bytes = bytes.map(|bytes| bytes[..].try_into()).transpose()?;
        Ok(bytes.map_or(0, i64::from_le_bytes))
    }
}

impl<Tr: Transaction> TransactionHandler<Job, Tr> for Shop {
    type Output = Result<Outcome, BoxError>;

    /// Handles a job in the transaction that completes it.
    async fn handle(&self, tr: Tx<Tr>, job: Delivery<Job>) -> Self::Output {
        let is_step = matches!(job.value(), Job::Reserve(_) | Job::Charge(_) | Job::Ship(_));
        if is_step && job.batch().is_none() {
            // It was a dead letter. Its order is undone, or will be.
            return Ok(Outcome::discard("its order has failed"));
        }
        let next = Enqueue::new().with_batch_of(&job);
        let effect = match job.value() {
            Job::Reserve(order) => {
                if self.number(&tr, "stock", 0).await? == 0 {
                    return Ok(Outcome::discard("out of stock"));
                }
                self.add(&tr, "stock", 0, -1);
                let _ = self
                    .jobs
                    .enqueue_with(&tr, &Job::Charge(*order), &next)
                    .await?;
                Effect::Reserved { pieces: 1 }
            }
            Job::Charge(order) => {
                self.add(&tr, "account", *order, -PRICE);
                let _ = self
                    .jobs
                    .enqueue_with(&tr, &Job::Ship(*order), &next)
                    .await?;
                Effect::Charged { cents: PRICE }
            }
            Job::Ship(order) => {
                let is_corrected = self.number(&tr, "corrected", *order).await? > 0;
                if order % NOWHERE == 0 && !is_corrected {
                    return Ok(Outcome::discard("there is no such address"));
                }
                self.add(&tr, "shipped", *order, 1);
                Effect::Shipped
            }
            Job::Settle(order) => {
                self.settle(&tr, &job, *order).await?;
                return Ok(Outcome::Done);
            }
            Job::Undo(order, effect) => {
                match effect {
                    Effect::Reserved { pieces } => self.add(&tr, "stock", 0, *pieces),
                    Effect::Charged { cents } => self.add(&tr, "account", *order, *cents),
                    Effect::Shipped => return Ok(Outcome::discard("a parcel does not come back")),
                }
                return Ok(Outcome::Done);
            }
        };
        let mut result = Vec::new();
        MessagePack.encode(&effect, &mut result)?;
        job.set_result(result)?;
        Ok(Outcome::Done)
    }
}

/// Places orders by a runner, lets another one work, and checks that each is done or undone.
pub(crate) async fn run<D: Database>(runner: &Runner<D>, root: &Subspace) -> Result<(), BoxError> {
    let shop = &Shop::open(runner, root).await?;
    let options = WorkerOptions::new().with_concurrency(4);
    let fill = async |tr: Tx<D::Transaction>| {
        shop.add(&tr, "stock", 0, STOCK);
        Ok::<_, BoxError>(())
    };
    runner.run(fill).await?;
    let worker = shop.jobs.process_by(runner, options, shop.clone()).await?;
    for order in 0..ORDERS {
        let place = async |tr| shop.place(&tr, order).await;
        runner.run(place).await?;
    }
    shop.jobs.wait_idle(runner).await?;
    // It comes too late for the orders that were undone.
    let repair = async |tr| shop.repair(&tr).await;
    assert!(runner.run(repair).await? > 0);
    shop.jobs.wait_idle(runner).await?;
    worker.shut_down(Duration::from_secs(5)).await?;

    let count = async |tr| {
        let mut shipped = 0;
        for order in 0..ORDERS {
            let [paid, sent, undone] = [
                -shop.number(&tr, "account", order).await?,
                shop.number(&tr, "shipped", order).await?,
                shop.number(&tr, "undone", order).await?,
            ];
            // It is paid and shipped once, or undone once.
            assert!(
                matches!((paid, sent, undone), (PRICE, 1, 0) | (0, 0, 1)),
                "{order}"
            );
            shipped += sent;
        }
        Ok::<_, BoxError>((shipped, shop.number(&tr, "stock", 0).await?))
    };
    let (shipped, stock) = runner.run(count).await?;
    println!("{shipped} of {ORDERS} orders were shipped, {stock} pieces are left");
    assert_eq!(shipped + stock, 2 * STOCK);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::args().nth(1);
    let store = keyspace::open(url.as_deref().unwrap_or("memory:"))?;
    let runner = Runner::new(store.clone());
    run(&runner, &Subspace::from("orders")).await?;
    runner.close().await?;
    Ok(store.close()?)
}
