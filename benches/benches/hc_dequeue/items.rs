//! What the steps of an item cost, one at a time: writes, transactions, and the time to find it.

use std::time::Duration;

use benches::contender::ITEM;
use benches::meter::{Metered, Reading};
use benches::stage::{Stage, runtime};
use benches::statistics::{median, percentile};
use benches::table::Table;
use conformance::scale;
use hc_dequeue::{
    Consumer, Delivery, Enqueue, Error, Handlers, ItemRef, Job, Jobs, Outcome, Queue, Result,
    Settings, WorkerOptions,
};
use keyspace::codec::Raw;
use keyspace::{Bytes, Environment, OpenOptions, RunOptions, Runner, Store, Subspace, Tx};
use serde::{Deserialize, Serialize};

/// How many items take each step.
const ITEMS: usize = 500;

/// Longer than any step takes here.
const LATER: Duration = Duration::from_secs(3_600);

type Items = Queue<Bytes, Raw>;

/// A queue, and a consumer of it that beats its heart rarely.
struct World {
    db: Metered<Store>,
    runner: Runner<Metered<Store>>,
    queue: Items,
    consumer: Consumer<Bytes>,
}

impl World {
    async fn open(stage: &Stage, place: &Subspace, settings: Settings) -> Self {
        let db = Metered::new(stage.db().clone());
        let options = RunOptions::default().with_ledger_subspace(place.subspace(&"ledger"));
        let runner = Runner::with_options(db.clone(), options);
        let settings = settings.with_lease(LATER);
        let queue = Items::open_with(
            &runner,
            place.subspace(&"queue"),
            settings,
            OpenOptions::default(),
        )
        .await
        .expect("nothing conflicts");
        let consumer = queue.consumer(&runner, WorkerOptions::default()).await;
        Self {
            consumer: consumer.expect("nothing conflicts"),
            db,
            runner,
            queue,
        }
    }

    /// Enqueues an item in a commit of its own.
    async fn enqueue(&self, options: &Enqueue) -> Result<()> {
        let queue = &self.queue;
        let enqueue = |tr| async move { queue.enqueue_with(&tr, &ITEM, options).await.map(drop) };
        self.runner.run(enqueue).await
    }

    async fn enqueue_many(&self, items: usize, options: &Enqueue) -> Result<()> {
        let queue = &self.queue;
        for begin in (0..items).step_by(ITEMS) {
            let count = ITEMS.min(items - begin);
            let enqueue = |tr: Tx<_>| async move {
                for _ in 0..count {
                    let _ = queue.enqueue_with(&tr, &ITEM, options).await?;
                }
                Ok::<_, Error>(())
            };
            self.runner.run(enqueue).await?;
        }
        Ok(())
    }

    async fn take(&self) -> Result<Delivery<Bytes>> {
        Ok(self.consumer.dequeue().await?.expect("there are enough"))
    }

    async fn take_all(&self) -> Result<Vec<Delivery<Bytes>>> {
        self.enqueue_many(ITEMS, &Enqueue::new()).await?;
        let mut taken = Vec::new();
        while taken.len() < ITEMS {
            taken.extend(self.consumer.dequeue_batch(ITEMS - taken.len()).await?);
        }
        Ok(taken)
    }

    async fn set_checkpoint(&self, delivery: &Delivery<Bytes>) -> Result<()> {
        let set = |tr| async move { delivery.set_checkpoint(&tr, &[7; 8]).await };
        self.runner.run(set).await
    }

    async fn acknowledge(&self, delivery: &Delivery<Bytes>) -> Result<()> {
        let acknowledge = |tr| async move { delivery.ack(&tr).await };
        self.runner.run(acknowledge).await
    }
}

/// Returns a table of what each step of an item writes, with a transaction for each item.
pub(crate) fn writes(stage: &Stage) -> String {
    let mut table = Table::new(["step", "commits", "writes", "bytes"]);
    for (name, settings) in [
        ("", Settings::new()),
        (", done items kept", Settings::new().with_keep_done(LATER)),
    ] {
        let steps = stage.on_a_clean_place(|place| {
            let steps = async {
                let world = World::open(stage, place, settings).await;
                measure_steps(&world).await
            };
            runtime().block_on(steps).expect("the store serves")
        });
        for (step, reading) in steps {
            let per_item = |count: u64| format!("{:.2}", count as f64 / ITEMS as f64);
            table.push([
                format!("{step}{name}"),
                per_item(reading.commits),
                per_item(reading.mutations),
                per_item(reading.bytes_written),
            ]);
        }
    }
    format!("Writes of an item of 100 bytes, one at a time\n\n{table}")
}

/// What was written in each step.
struct Writes<'a> {
    world: &'a World,
    before: Reading,
    steps: Vec<(&'static str, Reading)>,
}

impl<'a> Writes<'a> {
    fn of(world: &'a World) -> Self {
        Self {
            world,
            before: world.db.reading(),
            steps: Vec::new(),
        }
    }

    fn begin(&mut self) {
        self.before = self.world.db.reading();
    }

    /// Notes what was written since the step began.
    fn note(&mut self, step: &'static str) {
        self.steps
            .push((step, self.world.db.reading() - self.before));
    }
}

async fn measure_steps(world: &World) -> Result<Vec<(&'static str, Reading)>> {
    let mut writes = Writes::of(world);
    world.enqueue_many(ITEMS, &Enqueue::new()).await?;
    writes.begin();
    let options = WorkerOptions::new().with_concurrency(1);
    let done = |_: Tx<_>, _: Delivery<Bytes>| async { Ok::<_, Error>(()) };
    let worker = world.queue.process(&world.runner, options, done).await?;
    world.queue.wait_idle(&world.runner).await?;
    writes.note("taken and completed by `process`");
    worker.shut_down(LATER).await?;

    for (step, options) in [
        ("enqueue", Enqueue::new()),
        ("enqueue, delayed", Enqueue::new().with_delay(LATER)),
    ] {
        writes.begin();
        for _ in 0..ITEMS {
            world.enqueue(&options).await?;
        }
        writes.note(step);
    }
    writes.begin();
    let mut taken = Vec::new();
    for _ in 0..ITEMS {
        taken.push(world.take().await?);
    }
    writes.note("take");
    writes.begin();
    for delivery in &taken {
        world.set_checkpoint(delivery).await?;
    }
    writes.note("set a checkpoint of 8 bytes");
    writes.begin();
    for delivery in &taken {
        world.acknowledge(delivery).await?;
    }
    writes.note("acknowledge");

    world.enqueue_many(ITEMS, &Enqueue::new()).await?;
    writes.begin();
    for _ in 0..ITEMS {
        world.consumer.pop().await?;
    }
    writes.note("pop");

    taken = world.take_all().await?;
    writes.begin();
    for delivery in &taken {
        delivery.retry_after(LATER, "no connection").await?;
    }
    writes.note("fail, and be delayed");

    taken = world.take_all().await?;
    writes.begin();
    for delivery in &taken {
        delivery.discard("no connection").await?;
    }
    writes.note("become a dead letter");
    Ok(writes.steps)
}

/// Returns a table of the times that a look for an item by its reference takes, after it was retried, beside
/// few and many delayed items.
pub(crate) fn finding(stage: &Stage) -> String {
    let mut table = Table::new(["delayed items", "median", "99th percentile"]);
    for delayed in [100, 100_000] {
        let mut micros = stage.on_a_clean_place(|place| {
            let look = async {
                let world = World::open(stage, place, Settings::new()).await;
                measure_finding(&world, delayed).await
            };
            runtime().block_on(look).expect("the store serves")
        });
        micros.sort_unstable();
        let [median, late] = [50, 99].map(|percent| {
            let micros = percentile(&micros, percent).expect("it was measured");
            format!("{micros} µs")
        });
        table.push([delayed.to_string(), median, late]);
    }
    format!("From a reference to the status of an item that was retried\n\n{table}")
}

async fn measure_finding(world: &World, delayed: usize) -> Result<Vec<u32>> {
    let later = Enqueue::new().with_delay(LATER);
    world.enqueue_many(delayed / 2, &later).await?;
    let mut items: Vec<ItemRef> = Vec::new();
    for delivery in world.take_all().await? {
        delivery.retry_after(LATER, "no connection").await?;
        items.push(delivery.item_ref());
    }
    world.enqueue_many(delayed / 2, &later).await?;
    let env = Environment::system();
    let mut micros = Vec::new();
    let queue = &world.queue;
    for item in &items {
        let began = env.now();
        let status = |tr| async move { queue.status(&tr, item).await };
        assert!(world.runner.run(status).await?.is_some());
        let took = (env.now() - began).as_micros();
        micros.push(u32::try_from(took).unwrap_or(u32::MAX));
    }
    Ok(micros)
}

/// How a worker handles an item.
#[derive(Debug, Clone, Copy)]
enum Handling {
    Process,
    /// `process`, with a handler for jobs of one type.
    Kind,
    /// A handler of `work` acknowledges it in a transaction of its own.
    Acknowledge,
    /// A handler of `work` does so after a step.
    Step,
}

const HANDLINGS: [Handling; 4] = [
    Handling::Process,
    Handling::Kind,
    Handling::Acknowledge,
    Handling::Step,
];

/// Returns a table of the items that are handled in a second, in each way, and of ratios to the way without a kind or a
/// step.
pub(crate) fn processing(stage: &Stage) -> String {
    let mut table = Table::new([
        "handlers",
        "process",
        "with a kind",
        "ratio",
        "work and ack",
        "with a step",
        "ratio",
    ]);
    for handlers in [1, 16, 64] {
        let rounds: Vec<[f64; 4]> = (0..scale(3, 7))
            .map(|round| {
                // The ways take turns to begin.
                let mut rates = [0.0; HANDLINGS.len()];
                for turn in 0..HANDLINGS.len() {
                    let way = (round + turn) % HANDLINGS.len();
                    rates[way] = stage.on_a_clean_place(|place| {
                        let rate = async {
                            let world = World::open(stage, place, Settings::new()).await;
                            match HANDLINGS[way] {
                                Handling::Kind => measure_kind(&world, place, handlers).await,
                                way => measure_handling(&world, handlers, way).await,
                            }
                        };
                        runtime().block_on(rate).expect("the store serves")
                    });
                }
                rates
            })
            .collect();
        let of = |way: usize| format!("{:.0}", median(rounds.iter().map(|rates| rates[way])));
        let ratio = |way: usize, to: usize| {
            let ratios = rounds.iter().map(|rates| rates[way] / rates[to]);
            format!("{:.2}", median(ratios))
        };
        table.push([
            handlers.to_string(),
            of(0),
            of(1),
            ratio(1, 0),
            of(2),
            of(3),
            ratio(3, 2),
        ]);
    }
    format!("Items handled per second, each in a transaction of its own\n\n{table}")
}

async fn measure_handling(world: &World, handlers: usize, way: Handling) -> Result<f64> {
    let items = scale(200, 1_000) * handlers;
    world.enqueue_many(items, &Enqueue::new()).await?;
    let env = Environment::system();
    let options = WorkerOptions::new().with_concurrency(handlers);
    let queue = &world.queue;
    let runner = &world.runner;
    let began = env.now();
    let own = runner.clone();
    let work = move |delivery: Delivery<Bytes>| {
        let runner = own.clone();
        async move {
            if let Handling::Step = way {
                let step = async |_: Tx<_>| Ok::<_, Error>(());
                delivery.step("step", step).await?;
            }
            let delivery = &delivery;
            runner
                .run(|tr| async move { delivery.ack(&tr).await })
                .await
        }
    };
    let worker = match way {
        Handling::Process => {
            let done = |_: Tx<_>, _: Delivery<Bytes>| async { Ok::<_, Error>(()) };
            queue.process(runner, options, done).await?
        }
        _ => queue.work(runner, options, work).await?,
    };
    queue.wait_idle(runner).await?;
    let seconds = (env.now() - began).as_secs_f64();
    worker.shut_down(LATER).await?;
    Ok(items as f64 / seconds)
}

/// A job of the size of the items.
#[derive(Serialize, Deserialize)]
struct Mail(String);

impl Job for Mail {
    const KIND: &'static str = "send-mail";
}

async fn measure_kind(world: &World, place: &Subspace, handlers: usize) -> Result<f64> {
    let runner = &world.runner;
    let settings = Settings::new().with_lease(LATER);
    let place = place.subspace(&"kinds");
    let jobs: Jobs = Jobs::open_with(runner, place, settings, OpenOptions::default()).await?;
    let mail = &Mail("m".repeat(ITEM.len()));
    let items = scale(200, 1_000) * handlers;
    for begin in (0..items).step_by(ITEMS) {
        let count = ITEMS.min(items - begin);
        let enqueue = async |tr: Tx<_>| {
            for _ in 0..count {
                let _ = jobs.enqueue(&tr, mail).await?;
            }
            Ok::<_, Error>(())
        };
        runner.run(enqueue).await?;
    }
    let env = Environment::system();
    let options = WorkerOptions::new().with_concurrency(handlers);
    let done = |_: Tx<_>, _: Delivery<Mail>| async { Ok::<_, Error>(()) };
    let began = env.now();
    let worker = jobs.work(runner, options, Handlers::new().process(done));
    let worker = worker.await?;
    jobs.queue().wait_idle(runner).await?;
    let seconds = (env.now() - began).as_secs_f64();
    worker.shut_down(LATER).await?;
    Ok(items as f64 / seconds)
}

/// How long a handler works on an item that comes back, and after which time it wants the item again.
const WORK: Duration = Duration::from_millis(50);
const SNOOZE: Duration = Duration::from_secs(1);

/// How many handlers there are.
const HANDLERS: usize = 2;

/// The payload of the items that come back.
const SNOOZED: Bytes = Bytes::from_static(b"snoozed");

/// Returns a table of the time until a new item is granted while handlers are busy with items that come back.
pub(crate) fn coming_back(stage: &Stage) -> String {
    let mut table = Table::new(["snoozed items", "share", "the new item is granted after"]);
    for snoozed in [20, 30, 36, 42, 60] {
        let waited = stage.on_a_clean_place(|place| {
            let waited = async {
                let world = World::open(stage, place, Settings::new()).await;
                measure_wait(&world, snoozed).await
            };
            runtime().block_on(waited).expect("the store serves")
        });
        let busy = WORK.as_secs_f64() / SNOOZE.as_secs_f64();
        let share = snoozed as f64 * busy / HANDLERS as f64;
        table.push([
            snoozed.to_string(),
            format!("{share:.2}"),
            format!("{} ms", waited.as_millis()),
        ]);
    }
    format!("A new item among items that come back\n\n{table}")
}

/// Returns the time from the enqueue of a new item to its grant.
async fn measure_wait(world: &World, snoozed: usize) -> Result<Duration> {
    let env = Environment::system();
    let (granted, mut grants) = tokio::sync::mpsc::unbounded_channel();
    let handle = {
        let env = env.clone();
        move |delivery: Delivery<Bytes>| {
            let env = env.clone();
            let granted = granted.clone();
            async move {
                if *delivery.value() != SNOOZED {
                    let _ = granted.send(env.now());
                    return Outcome::Done;
                }
                env.sleep(WORK).await;
                Outcome::snooze(SNOOZE)
            }
        }
    };
    let queue = &world.queue;
    let runner = &world.runner;
    let items = &vec![SNOOZED; snoozed];
    let enqueue = |tr| async move { queue.enqueue_all(&tr, items).await.map(drop) };
    runner.run(enqueue).await?;
    let options = WorkerOptions::new().with_concurrency(HANDLERS);
    let worker = queue.work(runner, options, handle).await?;
    env.sleep(4 * SNOOZE).await;
    let began = env.now();
    world.enqueue(&Enqueue::new()).await?;
    let granted = grants.recv().await.expect("the worker runs");
    worker.shut_down(LATER).await?;
    Ok(granted.saturating_sub(began))
}
