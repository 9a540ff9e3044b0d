//! A store with a queue of each recipe, and items in every place.

pub(crate) mod program;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use conformance::stores::{TestStore, rows_between};
use console::Console;
use export_queue::combine::{CombineQueue, Combiner, Sum, Unobserved};
use export_queue::hc_dequeue::{
    Backoff, Consumer, Delivery, Enqueue, Enqueued, Error, ItemRef, Queue, Schedule, Settings,
    WorkerOptions,
};
use export_queue::keyspace::codec::{Codec, Json, MessagePack, Tuple};
use export_queue::keyspace::env::Clock;
use export_queue::keyspace::{
    self, Environment, Ids, KeyValue, OpenOptions, RunOptions, Runner, Store, Subspace,
    Transaction, Tx,
};
use export_queue::microqueue::MicroQueue;
use export_queue::{BoxError, ExportQueue, Exporter, SequencedExport, Start, async_trait};
use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// More time than anything takes that is not stuck.
pub(crate) const LONG: Duration = conformance::HANG;

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// How long ago the first dead letter was enqueued.
pub(crate) const AGE: Duration = Duration::from_secs(2 * 60 * 60);

/// The queues of the world in the order of their keys.
pub(crate) const QUEUES: [&str; 7] = [
    "counts", "events", "jobs", "mail", "newer", "orders", "sealed",
];

/// The value of the exports that the subscription `mirror` refuses.
const REFUSED: i64 = 13;

pub(crate) type Jobs<C = MessagePack> = Queue<Value, C>;
pub(crate) type Counts<U = i64> = CombineQueue<String, U, i64>;

/// What can be an update in these tests.
pub(crate) trait Update: Serialize + DeserializeOwned + Send + Sync + 'static {}

impl<U: Serialize + DeserializeOwned + Send + Sync + 'static> Update for U {}

/// Where the console's runner keeps its ledger, so that what it writes is seen.
const LEDGER: &str = "console ledger";

/// A store, or a part of one, with queues:
///
/// - `mail`, a microqueue of tuples with three items;
/// - `jobs`, a queue with consumers in MessagePack, with [items](JobItems) in every place and a schedule; `orders`,
///   one in JSON, paused, with two items;
/// - `counts`, a combine queue with a reported value, pending updates of another one, and one that is set aside;
/// - `events`, an export queue: `mirror` has exported all but a dead letter, `slow` holds the log back;
/// - `newer`, whose settings have a newer format; `sealed`, which is of an unknown recipe.
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) runner: Runner<Store>,
    pub(crate) root: Subspace,
    pub(crate) ids: Ids,
    pub(crate) jobs: Jobs,
    pub(crate) items: JobItems,
    pub(crate) consumer: Consumer<Value>,
    /// What the session holds.
    held: Vec<Delivery<Value>>,
}

/// The items of `jobs`, by where they are.
#[derive(Default)]
pub(crate) struct JobItems {
    pub(crate) queued: Vec<ItemRef>,
    pub(crate) delayed: Vec<ItemRef>,
    /// The first one is three quarters done, and at [this](PROGRESS); it has a checkpoint, and two steps are done. The
    /// second one is cancelled.
    pub(crate) held: Vec<ItemRef>,
    /// They were rejected for these [reasons](REASONS) after these [attempts](ATTEMPTS). The first one is [old](AGE).
    pub(crate) dead: Vec<ItemRef>,
    /// One with a result, and one that was cancelled.
    pub(crate) done: Vec<ItemRef>,
}

/// How often the dead letters of `jobs` failed before they were rejected.
pub(crate) const ATTEMPTS: [u64; 3] = [0, 2, 0];

/// Why they were rejected.
pub(crate) const REASONS: [&str; 3] = ["connection refused", "connection reset", "no such tenant"];

/// What the first held item of `jobs` is at.
pub(crate) const PROGRESS: &str = "greeting <b>";

/// The dedupe id of `jobs` that is retained.
pub(crate) const RETAINED: &str = "invoice 7";

impl World {
    /// A world in a test's part of a store, with a registry of its own.
    pub(crate) async fn new(store: &TestStore) -> Self {
        let store = store.fresh();
        let ids = Ids::new(store.root.subspace(&"ids"));
        Self::on(store.db, store.root, ids).await
    }

    pub(crate) async fn on(store: Store, root: Subspace, ids: Ids) -> Self {
        let runner = runner(&store, &root, "ledgers", Environment::system());
        let settings = Settings::new()
            .with_lease(MINUTE)
            .with_keep_done(MINUTE * 60)
            .with_dedupe_retention(MINUTE * 60);
        let place = (&runner, &root, &ids);
        let jobs: Jobs = open_jobs(place, "jobs", settings).await;
        let consumer = jobs.consumer(&runner, WorkerOptions::default());
        let mut world = Self {
            consumer: consumer.await.unwrap(),
            items: JobItems::default(),
            held: Vec::new(),
            jobs,
            store,
            runner,
            root,
            ids,
        };
        world.fill_jobs().await;
        world.fill_orders().await;
        world.fill_mail().await;
        world.fill_counts().await;
        world.fill_events().await;
        world.add_unreadable().await;
        world
    }

    pub(crate) fn console(&self) -> Console {
        let runner = runner(&self.store, &self.root, LEDGER, Environment::system());
        Console::new(&runner).with_ids(self.ids.clone())
    }

    /// Returns the name of a queue of this world.
    pub(crate) fn name(&self, queue: &str) -> String {
        let prefix = match self.root.bytes() {
            [] => String::new(),
            root => {
                let (text, bytes, number): (String, Vec<u8>, u64) =
                    keyspace::tuple::unpack(root).unwrap();
                format!("{text}/0x{}/{number}/", hex(&bytes))
            }
        };
        prefix + queue
    }

    async fn fill_jobs(&mut self) {
        let behind = Environment::seeded(1, Arc::new(Behind(AGE)));
        let ago = runner(&self.store, &self.root, "ledgers", behind);
        let place = (&ago, &self.root, &self.ids);
        let old: Jobs = open_jobs(place, "jobs", Settings::default()).await;
        for (tenant, reason) in (0..).zip(REASONS) {
            let queue = if tenant == 0 { &old } else { &self.jobs };
            let item = enqueue(&self.runner, queue, &job(tenant), &Enqueue::new()).await;
            for _ in 0..ATTEMPTS[self.items.dead.len()] {
                let delivery = self.next().await;
                let again = delivery.retry_after(Duration::ZERO, "not yet");
                again.await.unwrap();
            }
            self.next().await.discard(reason).await.unwrap();
            self.items.dead.push(item);
        }
        let once = Enqueue::new().with_dedupe(RETAINED);
        let item = enqueue(&self.runner, &self.jobs, &job(3), &once).await;
        self.items.done.push(item);
        let delivery = self.next().await;
        delivery.set_result("sent").unwrap();
        delivery.complete().await.unwrap();
        self.items.done.push(self.enqueue(4).await);
        self.cancel(&self.items.done[1]).await;
        for tenant in [5, 6] {
            self.items.held.push(self.enqueue(tenant).await);
            let delivery = self.next().await;
            self.held.push(delivery);
        }
        let first = &self.held[0];
        let progress = async |tr| first.set_progress(&tr, 3, 4, PROGRESS).await;
        self.runner.run(progress).await.unwrap();
        let checkpoint = async |tr| first.set_checkpoint(&tr, b"page 3").await;
        self.runner.run(checkpoint).await.unwrap();
        for step in ["greet", "wave"] {
            let done = async |_| Ok::<_, Error>(());
            first.step(step, done).await.unwrap();
        }
        self.cancel(&self.items.held[1]).await;
        for tenant in 10..15 {
            self.items.queued.push(self.enqueue(tenant).await);
        }
        let later = Enqueue::new().with_delay(AGE);
        for tenant in [20, 21] {
            let item = enqueue(&self.runner, &self.jobs, &job(tenant), &later).await;
            self.items.delayed.push(item);
        }
        let options = Enqueue::new().with_dedupe("greetings").with_max_attempts(3);
        let yearly = Schedule::new("0 0 1 1 *").with_enqueue_options(options);
        let jobs = &self.jobs;
        let schedule = &yearly;
        for name in ["new year", "new year again"] {
            let schedule =
                |tr| async move { jobs.schedule(&tr, name, schedule, &job(30)).await.map(drop) };
            self.runner.run(schedule).await.unwrap();
        }
        let own = async |tr| {
            let name = "new year again";
            jobs.set_schedule_owner(&tr, name, Some("calendar")).await
        };
        assert!(self.runner.run(own).await.unwrap());
    }

    /// Schedules anew what a schedule of `jobs` has, by a clock that is ten years ahead.
    pub(crate) async fn schedule_ahead(&self, name: &str) {
        let ahead = runner(
            &self.store,
            &self.root,
            "ledgers",
            Environment::seeded(2, Arc::new(Ahead(AGE * 24 * 365 * 10))),
        );
        let place = (&ahead, &self.root, &self.ids);
        let jobs: &Jobs = &open_jobs(place, "jobs", Settings::default()).await;
        let yearly = &Schedule::new("0 0 1 1 *");
        let again = |tr| async move {
            jobs.unschedule(&tr, name).await?;
            jobs.schedule(&tr, name, yearly, &job(30)).await.map(drop)
        };
        ahead.run(again).await.unwrap();
    }

    /// Opens the queue `orders`, which no session takes from.
    pub(crate) async fn orders(&self) -> Jobs<Json> {
        let place = (&self.runner, &self.root, &self.ids);
        open_jobs(place, "orders", Settings::default()).await
    }

    async fn fill_orders(&self) {
        let orders = &self.orders().await;
        for tenant in [0, 1] {
            enqueue(&self.runner, orders, &job(tenant), &Enqueue::new()).await;
        }
        let pause = |tr: Tx<_>| async move {
            orders.pause(&tr);
            Ok::<_, keyspace::Error>(())
        };
        self.runner.run(pause).await.unwrap();
    }

    async fn fill_mail(&self) {
        let options = self.options(Tuple);
        let mail: &MicroQueue<(String, i64), Tuple> =
            &MicroQueue::open_with(&self.runner, self.root.subspace(&"mail"), options)
                .await
                .unwrap();
        let items = &[1, 2, 3].map(|number| (format!("to {number}"), number));
        let enqueue = |tr| async move { mail.enqueue_all(&tr, items).await.map(drop) };
        self.runner.run(enqueue).await.unwrap();
    }

    async fn fill_counts(&self) {
        let counts = self.open_counts("counts", Sum).await;
        self.add(&counts, &[("ada", 1), ("ada", 2), ("big", i64::MAX)])
            .await;
        self.combine(&counts).await;
        // The sum does not fit.
        self.add(&counts, &[("big", 1)]).await;
        self.combine(&counts).await;
        self.add(&counts, &[("ada", 4), ("ada", 5), ("eve", 6)])
            .await;
    }

    pub(crate) async fn open_counts<U: Update>(
        &self,
        name: &str,
        combiner: impl Combiner<String, U, i64>,
    ) -> Counts<U> {
        let settings = export_queue::combine::Settings::new().with_bucket_count(2);
        let subspace = self.root.subspace(&name);
        let options = self.options(MessagePack);
        let counts = Counts::open_with(&self.runner, subspace, settings, combiner, options);
        counts.await.unwrap()
    }

    pub(crate) async fn add<U: Update>(&self, counts: &Counts<U>, updates: &[(&str, U)]) {
        for (key, update) in updates {
            let key = &(*key).to_owned();
            let add = |tr| async move { counts.add(&tr, key, update).await };
            self.runner.run(add).await.unwrap();
        }
    }

    /// Combines everything with a worker of its own.
    pub(crate) async fn combine<U: Update>(&self, counts: &Counts<U>) {
        let worker = counts
            .work(&self.runner, WorkerOptions::default(), Unobserved)
            .await
            .unwrap();
        let idle = counts.wait_idle(&self.runner);
        conformance::timeout(LONG, idle).await.unwrap();
        worker.shut_down(LONG).await.unwrap();
    }

    async fn fill_events(&self) {
        let settings = export_queue::Settings::new().with_bucket_count(2);
        let subspace = self.root.subspace(&"events");
        let options = self.options(MessagePack);
        let events: ExportQueue<String, i64> =
            ExportQueue::open_with(&self.runner, subspace, settings, options)
                .await
                .unwrap();
        let mirror = events
            .subscribe(&self.runner, "mirror", Start::Oldest)
            .await
            .unwrap();
        let slow = events.subscribe(&self.runner, "slow", Start::Oldest);
        slow.await.unwrap();
        for value in [11, 12, REFUSED, REFUSED] {
            let events = &events;
            let key = &format!("key {value}");
            let add = |tr| async move { events.add(&tr, key, &value).await };
            self.runner.run(add).await.unwrap();
        }
        let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
        let options = WorkerOptions::new()
            .with_backoff(backoff)
            .with_dead_letter_after(1);
        let worker = mirror.work(&self.runner, options, Picky).await.unwrap();
        let idle = mirror.wait_idle(&self.runner);
        conformance::timeout(LONG, idle).await.unwrap();
        worker.shut_down(LONG).await.unwrap();
    }

    async fn add_unreadable(&self) {
        let place = (&self.runner, &self.root, &self.ids);
        let newer: Jobs = open_jobs(place, "newer", Settings::default()).await;
        self.set(&newer.subspace().pack(&"m"), b"\x63newer").await;
        let ids = &self.ids;
        let sealed = &self.root.subspace(&"sealed");
        let register = |tr| async move { ids.register(&tr, sealed, "vault", &["Sealed"]).await };
        self.runner.run(register).await.unwrap();
        self.set(&sealed.pack(&"secret"), b"\xff").await;
    }

    fn options<C>(&self, codec: C) -> OpenOptions<C> {
        OpenOptions::new()
            .with_codec(codec)
            .with_ids(self.ids.clone())
    }

    /// Enqueues a job that is ready at once.
    pub(crate) async fn enqueue(&self, tenant: u64) -> ItemRef {
        enqueue(&self.runner, &self.jobs, &job(tenant), &Enqueue::new()).await
    }

    async fn cancel(&self, item: &ItemRef) {
        let jobs = &self.jobs;
        let cancel = |tr| async move { jobs.cancel(&tr, item).await.map(drop) };
        self.runner.run(cancel).await.unwrap();
    }

    async fn next(&self) -> Delivery<Value> {
        self.consumer.dequeue_within(LONG).await.unwrap().unwrap()
    }

    /// Sets a row of the store.
    pub(crate) async fn set(&self, key: &[u8], value: &[u8]) {
        let set = |tr: Tx<_>| async move {
            tr.set(key, value);
            Ok::<_, keyspace::Error>(())
        };
        self.runner.run(set).await.unwrap();
    }

    /// Returns the rows of a part of the world.
    pub(crate) async fn rows(&self, part: &Subspace) -> Vec<KeyValue> {
        let (begin, end) = part.range();
        rows_between(self.runner.database(), begin, end).await
    }

    /// Returns every row but for those that the session of `jobs` and its runner write whenever they like.
    pub(crate) async fn written(&self) -> Vec<KeyValue> {
        let beats = self.jobs.subspace().subspace(&"b");
        let ledgers = self.root.subspace(&"ledgers");
        let mut rows = self.rows(&self.root).await;
        rows.retain(|row| {
            !(row.key().starts_with(beats.bytes()) || row.key().starts_with(ledgers.bytes()))
        });
        rows
    }
}

/// Panics if rows of the world's queues were set, changed or cleared, but for the heartbeat of its session.
#[track_caller]
pub(crate) fn assert_queues_unchanged(world: &World, before: &[KeyValue], after: &[KeyValue]) {
    let ledger = world.root.subspace(&LEDGER);
    let [before, after] = [before, after].map(|rows| {
        let rows = rows
            .iter()
            .filter(|row| !row.key().starts_with(ledger.bytes()));
        rows.cloned().collect::<Vec<_>>()
    });
    assert_unchanged(&before, &after);
}

/// Panics if rows were set, changed or cleared.
#[track_caller]
pub(crate) fn assert_unchanged(before: &[KeyValue], after: &[KeyValue]) {
    let new = after.iter().filter(|row| !before.contains(row));
    let gone = before.iter().filter(|row| !after.contains(row));
    let differing: Vec<_> = new.chain(gone).collect();
    assert!(differing.is_empty(), "{differing:?}");
}

/// A process whose wall clock is somewhere else, with its own handles.
pub(crate) struct Elsewhen {
    pub(crate) runner: Runner<Store>,
    pub(crate) jobs: Jobs,
    pub(crate) consumer: Consumer<Value>,
}

/// Starts a process whose wall clock stands still at a time after the Unix epoch.
pub(crate) async fn at_wall(world: &World, ledger: &str, wall: Duration) -> Elsewhen {
    let env = Environment::seeded(1, Arc::new(Still(wall)));
    let runner = runner(&world.store, &world.root, ledger, env);
    let place = (&runner, &world.root, &world.ids);
    let jobs: Jobs = open_jobs(place, "jobs", Settings::default()).await;
    let consumer = jobs.consumer(&runner, WorkerOptions::default()).await;
    Elsewhen {
        consumer: consumer.unwrap(),
        jobs,
        runner,
    }
}

/// Returns the payload of a job.
pub(crate) fn job(tenant: u64) -> Value {
    json!({ "tenant": tenant, "text": "<b>" })
}

fn runner(store: &Store, root: &Subspace, ledger: &str, env: Environment) -> Runner<Store> {
    let options = RunOptions::default()
        .with_ledger_subspace(root.subspace(&ledger))
        .with_environment(env);
    Runner::with_options(store.clone(), options)
}

async fn open_jobs<C: Codec<Value> + Default>(
    (runner, root, ids): (&Runner<Store>, &Subspace, &Ids),
    name: &str,
    settings: Settings,
) -> Jobs<C> {
    let options = OpenOptions::new()
        .with_codec(C::default())
        .with_ids(ids.clone());
    let jobs = Jobs::open_with(runner, root.subspace(&name), settings, options);
    jobs.await.unwrap()
}

pub(crate) async fn enqueue<C: Codec<Value>>(
    runner: &Runner<Store>,
    queue: &Jobs<C>,
    value: &Value,
    options: &Enqueue,
) -> ItemRef {
    let enqueue = |tr| async move { queue.enqueue_with(&tr, value, options).await };
    match runner.run_committed(enqueue).await.unwrap() {
        (Enqueued::Staged(staged), commit) => staged.at(commit.versionstamp.unwrap()),
        (other, _) => panic!("{other:?}"),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a report that the schema allows.
#[track_caller]
pub(crate) fn valid<T: Serialize>(report: T) -> T {
    let name = std::any::type_name::<T>().rsplit("::").next().unwrap();
    assert_valid(name, &serde_json::to_value(&report).unwrap());
    report
}

/// Panics if a report is not as its definition in the schema says, or has a field that it does not name.
#[track_caller]
pub(crate) fn assert_valid(definition: &str, report: &Value) {
    let mut schema: Value = serde_json::from_str(include_str!("../../../schema.json")).unwrap();
    assert!(schema["$defs"].get(definition).is_some(), "{definition}");
    schema["$ref"] = format!("#/$defs/{definition}").into();
    schema["unevaluatedProperties"] = false.into();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let problems: Vec<_> = schema
        .iter_errors(report)
        .map(|error| error.to_string())
        .collect();
    assert!(problems.is_empty(), "{definition}: {problems:?}: {report}");
}

/// The system's clock with its wall set back.
struct Behind(Duration);

impl Clock for Behind {
    fn now(&self) -> Duration {
        Environment::system().now()
    }

    fn wall(&self) -> SystemTime {
        Environment::system().wall() - self.0
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Environment::system().sleep(duration)
    }
}

/// The system's clock with a wall that shows the same time always.
struct Still(Duration);

impl Clock for Still {
    fn now(&self) -> Duration {
        Environment::system().now()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.0
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Environment::system().sleep(duration)
    }
}

/// The system's clock with its wall set forward.
struct Ahead(Duration);

impl Clock for Ahead {
    fn now(&self) -> Duration {
        Environment::system().now()
    }

    fn wall(&self) -> SystemTime {
        Environment::system().wall() + self.0
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Environment::system().sleep(duration)
    }
}

/// An exporter that takes all values but one.
struct Picky;

#[async_trait]
impl Exporter<String, i64> for Picky {
    async fn export(&self, batch: &[SequencedExport<String, i64>]) -> Result<(), BoxError> {
        if batch.iter().any(|export| export.value == REFUSED) {
            Err("unlucky number".into())
        } else {
            Ok(())
        }
    }
}
