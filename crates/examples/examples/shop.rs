//! The shop of the tutorial, `docs/tutorial.md`: orders are taken and handled, stock runs out and comes back, parcels
//! are sent or given up, sales are counted and leave for another database, and the console shows all of it.
//!
//! `cargo run -p examples --example shop` runs it in memory until everything is done. With a URL it runs there:
//! `embedded:shop.keyspace` or `fdb:`. With `--console 127.0.0.1:8080` it also serves the console, and goes on until
//! Ctrl-C.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use console::{Console, WebOptions};
use export_queue::combine::{Change, ChangeObserver, CombineQueue, Sum};
use export_queue::hc_dequeue::{
    Death, Delivery, End, Enqueue, Handler, ItemRef, Outcome, Place, Queue, Schedule, Settings,
    Status, TransactionHandler, WorkerOptions,
};
use export_queue::keyspace::codec::MessagePack;
use export_queue::keyspace::{
    self, Database, Isolation, OpenOptions, Runner, Store, Subspace, Transaction, Tx, typed,
};
use export_queue::{BoxError, ExportQueue, Exporter, SequencedExport, Start, async_trait};
use serde::{Deserialize, Serialize};

/// How long an order waits before it looks for stock again. This is no failed attempt, but each look is a delivery. An
/// item becomes a dead letter after 10,000 deliveries: here after a week, while the stock is refilled every night.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
enum Job {
    /// Sends a product to a customer.
    Order { customer: String, product: String },
    /// Fills up the stock of a product.
    Restock { product: String, count: u64 },
}

/// What a customer gets.
#[derive(Debug, Serialize, Deserialize)]
struct Parcel {
    customer: String,
    product: String,
}

/// The keys and queues of the shop. Clones share them.
#[derive(Clone)]
struct Shop {
    /// `stock / product` holds how many there are.
    stock: Subspace,
    /// `sent / customer` holds the reference of the customer's last parcel.
    sent: Subspace,
    /// The key with the number of the last label.
    label: Vec<u8>,
    jobs: Queue<Job>,
    parcels: Queue<Parcel>,
    /// The deaths of parcels.
    deaths: Queue<Death>,
    /// How many of each product were sold.
    sold: CombineQueue<String, i64>,
    /// What leaves for the database of the accountants.
    reports: ExportQueue<String, Option<i64>>,
}

impl Shop {
    async fn open<D: Database>(runner: &Runner<D>, root: &Subspace) -> Result<Self, BoxError> {
        let settings = Settings::new()
            .with_max_attempts(5)
            .with_keep_done(Duration::from_secs(3600));
        let deaths = Queue::<Death>::open(runner, root.subspace(&"deaths")).await?;
        let told = settings.clone().with_deaths(deaths.subspace().clone());
        let parcels = root.subspace(&"parcels");
        let parcels = Queue::open_with(runner, parcels, told, OpenOptions::default()).await?;
        Ok(Self {
            stock: root.subspace(&"stock"),
            sent: root.subspace(&"sent"),
            label: root.pack(&"label"),
            parcels,
            deaths,
            jobs: Queue::open_with(
                runner,
                root.subspace(&"jobs"),
                settings,
                OpenOptions::default(),
            )
            .await?,
            sold: CombineQueue::open(runner, root.subspace(&"sold"), Sum).await?,
            reports: ExportQueue::open(runner, root.subspace(&"reports")).await?,
        })
    }

    async fn in_stock(&self, tr: &impl Transaction, product: &str) -> Result<u64, BoxError> {
        let key = self.stock.pack(&product);
        let count = typed::get(tr, &MessagePack, &key, Isolation::Serializable).await?;
        Ok(count.unwrap_or_default())
    }

    fn set_stock(&self, tr: &impl Transaction, product: &str, count: u64) -> Result<(), BoxError> {
        Ok(typed::set(
            tr,
            &MessagePack,
            &self.stock.pack(&product),
            &count,
        )?)
    }

    async fn next_label(&self, tr: &impl Transaction) -> Result<u64, BoxError> {
        let last = typed::get(tr, &MessagePack, &self.label, Isolation::Serializable).await?;
        let next = last.unwrap_or(0) + 1;
        typed::set(tr, &MessagePack, &self.label, &next)?;
        Ok(next)
    }

    async fn parcel_of(
        &self,
        tr: &impl Transaction,
        customer: &str,
    ) -> Result<Option<Status<Parcel>>, BoxError> {
        let Some(parcel) = self.parcels.ref_at(tr, &self.sent.pack(&customer)).await? else {
            return Ok(None);
        };
        Ok(self.parcels.status(tr, &parcel).await?)
    }
}

async fn place_order<D: Database>(
    shop: &Shop,
    runner: &Runner<D>,
    customer: &str,
    product: &str,
) -> Result<ItemRef, BoxError> {
    let job = &Job::Order {
        customer: customer.to_owned(),
        product: product.to_owned(),
    };
    Ok(shop.jobs.submit(runner, job).await?)
}

impl<Tr: Transaction> TransactionHandler<Job, Tr> for Shop {
    type Output = Result<Outcome, BoxError>;

    async fn handle(&self, tr: Tx<Tr>, job: Delivery<Job>) -> Self::Output {
        match job.value() {
            Job::Order { customer, product } => {
                let count = self.in_stock(&tr, product).await?;
                if count == 0 {
                    return Ok(Outcome::snooze(LOOK_AGAIN));
                }
                self.set_stock(&tr, product, count - 1)?;
                self.sold.add(&tr, product, &1).await?;
                let parcel = &Parcel {
                    customer: customer.clone(),
                    product: product.clone(),
                };
                let named = &Enqueue::new().with_ref_key(self.sent.pack(customer));
                let _ = self.parcels.enqueue_with(&tr, parcel, named).await?;
            }
            Job::Restock { product, count } => self.set_stock(&tr, product, *count)?,
        }
        Ok(Outcome::Done)
    }
}

/// Stands for a carrier, which takes the parcel of a label once, however often it is called.
async fn hand_over(_label: u64, parcel: &Parcel) -> Outcome {
    match parcel.customer.as_str() {
        "Nemo" => Outcome::discard("there is no such address"),
        _ => Outcome::Done,
    }
}

impl Handler<Parcel> for Shop {
    type Output = Result<Outcome, BoxError>;

    async fn handle(&self, parcel: Delivery<Parcel>) -> Self::Output {
        let label = async |tr: Tx<_>| {
            parcel.set_progress(&tr, 1, 2, "it has a label").await?;
            self.next_label(&tr).await
        };
        let label: u64 = parcel.step("label", label).await?;
        Ok(hand_over(label, parcel.value()).await)
    }
}

impl<Tr: Transaction> TransactionHandler<Death, Tr> for Shop {
    type Output = Result<(), BoxError>;

    async fn handle(&self, tr: Tx<Tr>, death: Delivery<Death>) -> Self::Output {
        // It may have been redriven.
        if !self.parcels.purge(&tr, &death.value().item).await? {
            return Ok(());
        }
        let payload = death.value().payload.clone().ok_or("a parcel is short")?;
        let Parcel { product, .. } = self.parcels.decode_payload(payload)?;
        let count = self.in_stock(&tr, &product).await?;
        self.set_stock(&tr, &product, count + 1)?;
        Ok(self.sold.add(&tr, &product, &-1).await?)
    }
}

async fn restock_nightly<D: Database>(shop: &Shop, runner: &Runner<D>) -> Result<(), BoxError> {
    let nightly = Schedule::new("0 3 * * *").with_time_zone("Europe/Berlin");
    let job = Job::Restock {
        product: "pan".to_owned(),
        count: 100,
    };
    let schedules = &[("restock pans", nightly, job)];
    let set = async |tr| shop.jobs.set_schedules(&tr, "shop", schedules).await;
    runner.run(set).await?;
    Ok(())
}

/// Hands each number that has changed to the export queue, in the transaction that changes it.
struct Report(ExportQueue<String, Option<i64>>);

impl ChangeObserver<String, i64> for Report {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        let changes = changes.iter().map(|change| (&change.key, &change.new));
        Ok(self.0.add_all(tr, changes).await?)
    }
}

/// Stands for the database of the accountants.
#[derive(Clone, Default)]
struct Accounts(Arc<Mutex<BTreeMap<String, i64>>>);

#[async_trait]
impl Exporter<String, Option<i64>> for Accounts {
    async fn export(&self, batch: &[SequencedExport<String, Option<i64>>]) -> Result<(), BoxError> {
        let mut accounts = self.0.lock().expect("no holder of the lock panics");
        for sold in batch {
            accounts.insert(sold.key.clone(), sold.value.unwrap_or_default());
        }
        Ok(())
    }
}

/// Takes orders, two of which can be sent, and waits until all is done for them.
async fn sell<D: Database>(shop: &Shop, runner: &Runner<D>) -> Result<(), BoxError> {
    let mut orders = Vec::new();
    for customer in ["Ada", "Grace", "Nemo"] {
        orders.push(place_order(shop, runner, customer, "pan").await?);
    }

    // Nothing is in stock yet: an order that is handled before this is snoozed.
    let restock = &Job::Restock {
        product: "pan".to_owned(),
        count: 10,
    };
    let soon = &Enqueue::new().with_delay(Duration::from_millis(100));
    let restock = shop.jobs.submit_with(runner, restock, soon).await?;
    let restock = restock.expect("an item without a dedupe id is always enqueued");

    // The orders need not wait any longer than the stock.
    shop.jobs.await_done(runner, &restock).await?;
    for order in &orders {
        let expedite = async |tr| shop.jobs.expedite(&tr, order).await;
        runner.run(expedite).await?;
    }

    let done = shop.jobs.await_done(runner, &orders[0]).await?;
    assert!(matches!(
        done.map(|done| done.place),
        Some(Place::Done { .. })
    ));
    shop.jobs.wait_idle(runner).await?;
    shop.parcels.wait_idle(runner).await?;
    shop.deaths.wait_idle(runner).await?;
    for (customer, expected) in [("Ada", End::Completed), ("Nemo", End::Removed)] {
        let look = async |tr: Tx<_>| shop.parcel_of(&tr, customer).await;
        let parcel = runner.run(look).await?.ok_or("parcels are kept")?;
        assert!(matches!(parcel.place, Place::Done { end, .. } if end == expected));
        assert_eq!(parcel.progress.map(|progress| progress.done), Some(1));
    }
    Ok(())
}

pub(crate) async fn run<D: Database>(runner: &Runner<D>, root: &Subspace) -> Result<(), BoxError> {
    let shop = &Shop::open(runner, root).await?;
    restock_nightly(shop, runner).await?;

    let options = WorkerOptions::new();
    let jobs = shop
        .jobs
        .process_by(runner, options.clone(), shop.clone())
        .await?;
    let parcels = shop
        .parcels
        .work_by(runner, options.clone(), shop.clone())
        .await?;
    let deaths = shop
        .deaths
        .process_by(runner, options, shop.clone())
        .await?;
    let report = Report(shop.reports.clone());
    let sums = shop.sold.work(runner, WorkerOptions::new(), report).await?;
    let accounts = Accounts::default();
    let table = shop
        .reports
        .subscribe(runner, "accounts", Start::Oldest)
        .await?;
    let exports = table
        .work(runner, WorkerOptions::new(), accounts.clone())
        .await?;

    sell(shop, runner).await?;
    shop.sold.wait_idle(runner).await?;
    table.wait_idle(runner).await?;
    let sold = accounts
        .0
        .lock()
        .expect("no holder of the lock panics")
        .clone();
    println!("sold: {sold:?}");

    let grace = Duration::from_secs(5);
    jobs.shut_down(grace).await?;
    parcels.shut_down(grace).await?;
    deaths.shut_down(grace).await?;
    sums.shut_down(grace).await?;
    exports.shut_down(grace).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut arguments = std::env::args().skip(1).peekable();
    let url = arguments.next_if(|argument| !argument.starts_with("--"));
    let address = match (arguments.next().as_deref(), arguments.next()) {
        (Some("--console"), Some(address)) => Some(address.parse()?),
        (None, _) => None,
        _ => return Err("expected [<url>] [--console <address>]".into()),
    };
    let store: Store = keyspace::open(url.as_deref().unwrap_or("memory:"))?;
    let runner = Runner::new(store.clone());
    run(&runner, &Subspace::from("shop")).await?;
    if let Some(address) = address {
        let console = Console::new(&runner);
        let pages = console::mount(console, address, WebOptions::new()).await?;
        let address = pages.address();
        println!("the console is at http://{address}; stop with Ctrl-C");
        tokio::signal::ctrl_c().await?;
    }
    runner.close().await?;
    Ok(store.close()?)
}
