//! A nightly run bills all customers, and its report starts when the last one is billed.
//!
//! A batch waits for the customers, an update adds each bill to the sum of its region, and an entry takes it to another
//! system: all in the transaction that completes the job. So the report is exact, whatever is killed on the way.
//!
//! `cargo run -p examples --example nightly` runs it in memory. With a URL it runs there: `embedded:nightly.keyspace`
//! or `fdb:`.

use std::sync::Arc;
use std::time::Duration;

use export_queue::combine::{CombineQueue, Exact, Sum};
use export_queue::hc_dequeue::{Batch, Delivery, Enqueue, Outcome, Queue};
use export_queue::keyspace::{self, Database, Runner, Subspace, Transaction, Tx};
use export_queue::{BoxError, ExportQueue, Exporter, SequencedExport, Start, WorkerOptions};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

const CUSTOMERS: u64 = 100;

const REGIONS: [&str; 2] = ["north", "south"];

/// The customer whose first bill fails.
const FAILS: u64 = 42;

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Job {
    Begin,
    Bill(u64),
    Report,
}

/// The queues of the run.
struct Nightly {
    jobs: Queue<Job>,
    sums: CombineQueue<String, i64>,
    documents: ExportQueue<String, String>,
}

impl Nightly {
    async fn open<D: Database>(runner: &Runner<D>, root: &Subspace) -> Result<Self, BoxError> {
        Ok(Self {
            jobs: Queue::open(runner, root.subspace(&"jobs")).await?,
            sums: CombineQueue::open(runner, root.subspace(&"sums"), Sum).await?,
            documents: ExportQueue::open(runner, root.subspace(&"documents")).await?,
        })
    }

    /// Handles a job in the transaction that completes it.
    async fn handle(
        &self,
        tr: &impl Transaction,
        job: &Delivery<Job>,
    ) -> Result<Outcome, BoxError> {
        match job.value() {
            Job::Begin => {
                let then = Batch::new().with_callback(Job::Report, Enqueue::new());
                let batch = self.jobs.open_batch(tr, &then).await?;
                let member = Enqueue::new().with_batch(&batch);
                let bills = (0..CUSTOMERS).map(|customer| (Job::Bill(customer), member.clone()));
                let bills: Vec<_> = bills.collect();
                self.jobs.enqueue_all_with(tr, &bills).await?;
                self.jobs.close_batch(tr, &batch)?;
            }
            Job::Bill(FAILS) if job.attempt() == 1 => {
                let reason = "the tax service does not answer";
                return Ok(Outcome::retry_after(Duration::ZERO, reason));
            }
            Job::Bill(customer) => {
                let region = REGIONS[*customer as usize % REGIONS.len()].to_owned();
                let cents = 100 + *customer as i64;
                self.sums.add(tr, &region, &cents).await?;
                let bill = format!("{cents} cents");
                let name = format!("customer {customer}");
                self.documents.add(tr, &name, &bill).await?;
            }
            Job::Report => {
                let counts = job.batch_counts().unwrap_or_default();
                let mut report = format!("{} customers", counts.completed);
                let regions = REGIONS.map(str::to_owned);
                let sums = self.sums.exact_many(tr, &regions, &Exact::new()).await?;
                for (region, sum) in regions.iter().zip(sums) {
                    report += &format!(", {region} {} cents", sum.unwrap_or(0));
                }
                let name = "report".to_owned();
                self.documents.add(tr, &name, &report).await?;
            }
        }
        Ok(Outcome::Done)
    }
}

/// Stands for another system, such as a document store.
#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<Vec<(String, String)>>>);

#[export_queue::async_trait]
impl Exporter<String, String> for Receiver {
    async fn export(&self, batch: &[SequencedExport<String, String>]) -> Result<(), BoxError> {
        let documents = batch
            .iter()
            .map(|entry| (entry.key.clone(), entry.value.clone()));
        self.0.lock().extend(documents);
        Ok(())
    }
}

pub(crate) async fn run<D: Database>(runner: &Runner<D>, root: &Subspace) -> Result<(), BoxError> {
    let nightly = Arc::new(Nightly::open(runner, root).await?);
    let documents = &nightly.documents;
    let receiver = Receiver::default();
    let subscription = documents
        .subscribe(runner, "documents", Start::Oldest)
        .await?;
    let options = WorkerOptions::new();
    let exports = subscription.work(runner, options, receiver.clone()).await?;

    let of_handler = nightly.clone();
    let handler = move |tr: Tx<D::Transaction>, job: Delivery<Job>| {
        let nightly = of_handler.clone();
        async move { nightly.handle(&tr, &job).await }
    };
    let options = export_queue::hc_dequeue::WorkerOptions::new();
    let worker = nightly.jobs.process(runner, options, handler).await?;
    nightly.jobs.submit(runner, &Job::Begin).await?;
    nightly.jobs.wait_idle(runner).await?;
    subscription.wait_idle(runner).await?;
    worker.shut_down(Duration::from_secs(5)).await?;
    exports.shut_down(Duration::from_secs(5)).await?;

    // The exporter may get an entry again.
    let mut received = receiver.0.lock().clone();
    received.sort();
    received.dedup();
    let report = received.iter().find(|(name, _)| name == "report");
    let report = report.map_or("none", |(_, report)| report);
    println!("{report}");
    assert_eq!(received.len() as u64, CUSTOMERS + 1);
    assert_eq!(report, "100 customers, north 7450 cents, south 7500 cents");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::args().nth(1);
    let store = keyspace::open(url.as_deref().unwrap_or("memory:"))?;
    let runner = Runner::new(store.clone());
    run(&runner, &Subspace::from("nightly")).await?;
    runner.close().await?;
    Ok(store.close()?)
}
