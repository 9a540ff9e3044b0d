//! The queues of a shop, the same on every run: what the screenshots show.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use conformance::stores::TestStore;
use console::Console;
use export_queue::combine::{CombineQueue, Sum};
use export_queue::hc_dequeue::{Consumer, Delivery, Enqueue, Queue, Settings, WorkerOptions};
use export_queue::keyspace::codec::{Json, MessagePack};
use export_queue::keyspace::env::{Clock, ManualClock};
use export_queue::keyspace::{
    self, Environment, OpenOptions, RunOptions, Runner, Store, Subspace, Tx,
};
use export_queue::microqueue::MicroQueue;
use export_queue::{ExportQueue, Start};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::common::{LONG, MINUTE, enqueue};

type Mails = Queue<Value, Json>;

/// When the shop opens: 2026-03-02, 08:55 UTC.
const OPENS: Duration = Duration::from_secs(1_772_441_700);

/// How far apart the charts' points are.
const STEP: Duration = Duration::from_secs(5);

/// How many points there are.
pub(crate) const STEPS: usize = 60;

/// The steps in which few mails are sent, so that they pile up.
const SLOW: std::ops::Range<usize> = 22..34;

/// For how many steps some mails are held at the end.
const HELD_STEPS: usize = 4;

/// A shop with these queues:
///
/// - `shop/mails`, with a consumer, items in every place, and a flow that [`step`](Self::step) moves;
/// - `shop/invoices`, which is paused;
/// - `shop/revenue`, a combine queue in which nothing waits;
/// - `shop/search`, an export queue with a subscription that nothing exports;
/// - `shop/clicks`, a microqueue.
pub(crate) struct Shop {
    runner: Runner<Store>,
    clock: ManualClock,
    mails: Mails,
    consumer: Consumer<Value>,
    waiting: usize,
    /// What the consumer holds.
    held: Vec<Delivery<Value>>,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        let clock = ManualClock::new();
        let env = Environment::seeded(1, Arc::new(ShopClock(clock.clone())));
        let options = RunOptions::default().with_environment(env);
        let runner = Runner::with_options(TestStore::memory().db, options);
        let settings = Settings::new()
            .with_keep_done(MINUTE * 60)
            .with_lease(MINUTE);
        let mails = Mails::open_with(&runner, queue("mails"), settings, OpenOptions::default())
            .await
            .unwrap();
        let consumer = mails.consumer(&runner, WorkerOptions::default());
        let mut shop = Self {
            consumer: consumer.await.unwrap(),
            waiting: 0,
            held: Vec::new(),
            runner,
            clock,
            mails,
        };
        shop.fill_mails().await;
        shop.fill_invoices().await;
        shop.fill_rest().await;
        shop
    }

    pub(crate) fn console(&self) -> Console {
        Console::new(&self.runner)
    }

    async fn fill_mails(&mut self) {
        let reasons = [
            "550 5.1.1 no such user",
            "550 5.1.1 no such user",
            "connection to smtp.example.org timed out",
        ];
        for (number, reason) in (1..).zip(reasons) {
            self.add(&mail(number), Duration::ZERO).await;
            let delivery = self.next().await;
            let again = "connection to smtp.example.org timed out";
            delivery.retry_after(Duration::ZERO, again).await.unwrap();
            self.clock.advance(Duration::from_secs(7));
            self.next().await.discard(reason).await.unwrap();
        }
        for number in 4..8 {
            self.add(&mail(number), MINUTE * 30).await;
        }
    }

    async fn fill_invoices(&self) {
        let invoices = &Mails::open_with(
            &self.runner,
            queue("invoices"),
            Settings::new(),
            OpenOptions::default(),
        )
        .await
        .unwrap();
        for number in 1..=18 {
            let invoice = json!({ "invoice": number });
            enqueue(&self.runner, invoices, &invoice, &Enqueue::new()).await;
        }
        let pause = |tr: Tx<_>| async move {
            invoices.pause(&tr);
            Ok::<_, keyspace::Error>(())
        };
        self.runner.run(pause).await.unwrap();
    }

    async fn fill_rest(&self) {
        let settings = export_queue::combine::Settings::new().with_bucket_count(4);
        let revenue = CombineQueue::<String, i64, i64, MessagePack>::open_with(
            &self.runner,
            queue("revenue"),
            settings,
            Sum,
            OpenOptions::default(),
        );
        revenue.await.unwrap();
        let settings = export_queue::Settings::new().with_bucket_count(4);
        let search: ExportQueue<String, i64> = ExportQueue::open_with(
            &self.runner,
            queue("search"),
            settings,
            OpenOptions::default(),
        )
        .await
        .unwrap();
        let index = search.subscribe(&self.runner, "index", Start::Oldest);
        index.await.unwrap();
        let clicks: MicroQueue<(String, i64)> = MicroQueue::open(&self.runner, queue("clicks"))
            .await
            .unwrap();
        for number in 0..12 {
            let search = &search;
            let clicks = &clicks;
            let click = &("basket".to_owned(), number);
            let add = |tr: Tx<_>| async move {
                search.add(&tr, &click.0, &click.1).await?;
                clicks.enqueue(&tr, click).await?;
                Ok::<_, export_queue::Error>(())
            };
            self.runner.run(add).await.unwrap();
        }
    }

    /// Lets mails come in and leave, and moves the clock.
    pub(crate) async fn step(&mut self, step: usize) {
        let entering = 5 + (step % 20).abs_diff(10) / 2;
        for number in 0..entering {
            self.add(&mail(100 + 10 * step + number), Duration::ZERO)
                .await;
        }
        self.waiting += entering;
        let leaving = if SLOW.contains(&step) { 3 } else { 11 };
        for _ in 0..leaving.min(self.waiting - 4) {
            self.next().await.complete().await.unwrap();
            self.waiting -= 1;
        }
        if step + HELD_STEPS == STEPS {
            for _ in 0..2 {
                let delivery = self.next().await;
                self.held.push(delivery);
                self.waiting -= 1;
            }
        }
        self.clock.advance(STEP);
    }

    async fn add(&self, mail: &Value, delay: Duration) {
        let options = Enqueue::new().with_delay(delay);
        enqueue(&self.runner, &self.mails, mail, &options).await;
    }

    async fn next(&self) -> Delivery<Value> {
        let next = self.consumer.dequeue_within(LONG);
        conformance::timeout(LONG, next).await.unwrap().unwrap()
    }
}

fn queue(name: &str) -> Subspace {
    Subspace::from(("shop", name))
}

fn mail(number: usize) -> Value {
    json!({
        "to": format!("customer-{number}@example.org"),
        "template": "order-shipped",
        "order": 48_100 + number,
        "parcels": [{ "carrier": "post", "tracking": format!("RX{:07}", 7_919 * number) }],
    })
}

/// A clock that a test moves, at a date.
struct ShopClock(ManualClock);

impl Clock for ShopClock {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn wall(&self) -> SystemTime {
        self.0.wall() + OPENS
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
}
