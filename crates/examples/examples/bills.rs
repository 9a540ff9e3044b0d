//! A shop that tells customers where their order's bill is, and a test of it: the kits of the three queues do all work
//! without a worker.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use export_queue::combine::{self, Change, ChangeObserver, CombineQueue, Sum};
use export_queue::hc_dequeue::testing::drain_process;
use export_queue::hc_dequeue::{Delivery, Enqueue, Place, Queue, Settings};
use export_queue::keyspace::{self, Database, OpenOptions, Runner, Subspace, Transaction, Tx};
use export_queue::{
    BoxError, ExportQueue, Exporter, SequencedExport, Start, Subscription, async_trait,
};

/// The queues of the shop.
struct Shop {
    /// The rows of orders.
    orders: Subspace,
    /// Bills to write.
    bills: Queue<u64>,
    /// How many pieces of each product were sold.
    sold: CombineQueue<String, i64>,
    /// These numbers, for another database.
    reports: ExportQueue<String, i64>,
}

impl Shop {
    async fn open<D: Database>(runner: &Runner<D>, root: &Subspace) -> Result<Self, BoxError> {
        let kept = Settings::new().with_keep_done(Duration::from_secs(3600));
        let bills = root.subspace(&"bills");
        Ok(Self {
            orders: root.subspace(&"orders"),
            bills: Queue::open_with(runner, bills, kept, OpenOptions::new()).await?,
            sold: CombineQueue::open(runner, root.subspace(&"sold"), Sum).await?,
            reports: ExportQueue::open(runner, root.subspace(&"reports")).await?,
        })
    }

    /// Stages an order and its bill, whose reference is stored with the order.
    async fn place(&self, tr: &impl Transaction, order: u64) -> Result<(), BoxError> {
        tr.set(&self.orders.pack(&order), b"a pan");
        let named = Enqueue::new().with_ref_key(self.orders.pack(&(order, "bill")));
        let _ = self.bills.enqueue_with(tr, &order, &named).await?;
        Ok(())
    }

    /// Returns where the bill of an order is. `None` if there is no such order.
    async fn bill_of(&self, tr: &impl Transaction, order: u64) -> Result<Option<Place>, BoxError> {
        let key = self.orders.pack(&(order, "bill"));
        let Some(bill) = self.bills.ref_at(tr, &key).await? else {
            return Ok(None);
        };
        let status = self.bills.status(tr, &bill).await?;
        Ok(status.map(|status| status.place))
    }
}

/// Hands the numbers over to the export.
struct Report(ExportQueue<String, i64>);

impl ChangeObserver<String, i64> for Report {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        for change in changes {
            self.0
                .add(tr, &change.key, &change.new.unwrap_or_default())
                .await?;
        }
        Ok(())
    }
}

/// The table of the other database.
#[derive(Default)]
struct Table(Mutex<BTreeMap<String, i64>>);

impl Table {
    fn pans(&self) -> Option<i64> {
        let rows = self.0.lock().expect("no holder of the lock panics");
        rows.get("pan").copied()
    }
}

#[async_trait]
impl Exporter<String, i64> for Table {
    async fn export(&self, batch: &[SequencedExport<String, i64>]) -> Result<(), BoxError> {
        let mut rows = self.0.lock().expect("no holder of the lock panics");
        rows.extend(batch.iter().map(|entry| (entry.key.clone(), entry.value)));
        Ok(())
    }
}

/// Does all work of the shop, and returns how many bills, updates and entries it has handled.
async fn drain_all<D: Database>(
    runner: &Runner<D>,
    shop: &Shop,
    accounts: &Subscription<String, i64>,
    table: Arc<Table>,
) -> Result<[u64; 3], BoxError> {
    let sold = &shop.sold;
    let bill = async |tr: Tx<_>, _order: Delivery<u64>| sold.add(&tr, &"pan".to_owned(), &1).await;
    let billed = drain_process(runner, &shop.bills, bill).await?;
    let report = Report(shop.reports.clone());
    let combined = combine::testing::drain(runner, &shop.sold, report).await?;
    let exported = export_queue::testing::drain(runner, accounts, table).await?;
    Ok([billed.completed, combined.updates, exported.exported])
}

/// Runs the test.
pub(crate) async fn run<D: Database>(runner: &Runner<D>, root: &Subspace) -> Result<(), BoxError> {
    let shop = &Shop::open(runner, root).await?;
    let accounts = &shop
        .reports
        .subscribe(runner, "accounts", Start::Oldest)
        .await?;
    let table = &Arc::new(Table::default());
    for order in [17, 18] {
        runner.run(async |tr| shop.place(&tr, order).await).await?;
    }
    let bill_of = async |order| runner.run(async |tr| shop.bill_of(&tr, order).await).await;
    assert_eq!(bill_of(17).await?, Some(Place::Queued));
    assert_eq!(bill_of(19).await?, None);
    let done = drain_all(runner, shop, accounts, table.clone()).await?;
    // Both bills are one change, and one entry.
    assert_eq!(done, [2, 2, 1]);
    assert!(matches!(bill_of(17).await?, Some(Place::Done { .. })));
    assert_eq!(table.pans(), Some(2));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let runner = Runner::new(keyspace::open("memory:")?);
    run(&runner, &Subspace::from("shop")).await?;
    println!("both orders were billed, counted and exported");
    Ok(())
}
