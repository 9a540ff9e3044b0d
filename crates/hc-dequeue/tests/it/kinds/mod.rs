//! Jobs of several kinds in one queue: each has its handler, and a worker passes over those for which it has none.

mod handlers;
mod items_of;
mod unknown;

use std::sync::Arc;
use std::time::Duration;

use crate::common::{LONG, process, settings};
use conformance::chaos::{Chaos, Faults};
use conformance::stores::TestStore;
use conformance::until;
use futures::future::{join_all, try_join_all};
use hc_dequeue::testing::ManualWall;
use hc_dequeue::{
    Backoff, Delivery, Enqueue, GroupLimits, Handler, Handlers, ItemRef, Job, Jobs, KindState,
    OnRepeat, Outcome, Place, Settings, Stats, Worker, WorkerOptions,
};
use keyspace::{
    Bytes, Environment, Isolation, MutationOp, OpenOptions, RangeQuery, Runner, Store, Transaction,
    Tx, read_all,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

conformance::on_every_store!(
    each_kind_has_its_handler,
    a_job_is_handled_under_its_earlier_names,
    a_worker_passes_over_a_thousand_jobs_of_another_kind,
    workers_of_different_kinds_wait_side_by_side,
    a_request_behind_that_of_a_dead_session_of_its_kinds_is_answered,
    a_worker_of_one_type_leaves_jobs_with_kinds,
    jobs_of_a_group_pass_each_other_unless_the_group_is_ordered,
    many_groups_with_jobs_of_another_kind_hide_none,
    delays_of_another_kind_hide_no_shorter_one,
    what_comes_back_among_jobs_of_another_kind_is_found,
    a_new_value_under_a_dedupe_id_has_the_new_kind,
    each_job_is_handled_once_by_workers_of_its_kind_under_faults,
);

const SOON: Duration = Duration::from_millis(1);

/// Returns the options of a worker that does not poll: it must be woken.
fn woken() -> WorkerOptions {
    WorkerOptions::new().with_poll_interval(LONG * 60)
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Mail(u64);

impl Job for Mail {
    const KIND: &'static str = "mail";
    const ALIASES: &'static [&'static str] = &["letter", ""];
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Invoice {
    cents: u64,
}

impl Job for Invoice {
    const KIND: &'static str = "invoice";
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Letter(u64);

impl Job for Letter {
    const KIND: &'static str = "letter";
}

/// A queue of jobs in a store, and what its handlers have handled.
struct World {
    store: TestStore,
    runner: Runner<Store>,
    jobs: Jobs,
    handled: Arc<Mutex<Vec<String>>>,
}

impl World {
    async fn new(store: &TestStore, settings: Settings) -> Self {
        let store = store.fresh();
        let runner = store.runner();
        let subspace = store.root.subspace(&"queue");
        let jobs = Jobs::open_with(&runner, subspace, settings, OpenOptions::new());
        Self {
            jobs: jobs.await.unwrap(),
            store,
            runner,
            handled: Arc::default(),
        }
    }

    async fn with_defaults(store: &TestStore) -> Self {
        Self::new(store, Settings::new()).await
    }

    /// Returns a handler that notes the jobs.
    fn note<J: Job + std::fmt::Debug>(&self) -> impl Handler<J> + use<J> {
        let handled = self.handled.clone();
        move |job: Delivery<J>| {
            handled.lock().push(format!("{:?}", job.value()));
            async {}
        }
    }

    /// Returns what was handled since the last call.
    fn handled(&self) -> Vec<String> {
        std::mem::take(&mut self.handled.lock())
    }

    async fn until_handled(&self, count: usize) {
        until(async || self.handled.lock().len() >= count).await;
    }

    async fn work(&self, options: WorkerOptions, handlers: Handlers<Store>) -> Worker<Bytes> {
        let worker = self.jobs.work(&self.runner, options, handlers);
        worker.await.unwrap()
    }

    async fn submit(&self, job: &(impl Job + Serialize + for<'a> Deserialize<'a>)) -> ItemRef {
        self.jobs.submit(&self.runner, job).await.unwrap()
    }

    async fn submit_with(
        &self,
        job: &(impl Job + Serialize + for<'a> Deserialize<'a>),
        options: Enqueue,
    ) -> ItemRef {
        let item = self.jobs.submit_with(&self.runner, job, options).await;
        item.unwrap().expect("it is new")
    }

    /// Enqueues many invoices.
    async fn enqueue_invoices(&self, count: u64) {
        let jobs = &self.jobs;
        let invoices = (0..count).map(|cents| {
            let invoice = Invoice { cents };
            jobs.prepare(&invoice, Enqueue::new()).unwrap()
        });
        let invoices = &invoices.collect::<Vec<_>>();
        let enqueue = |tr| async move { jobs.queue().enqueue_all_with(&tr, invoices).await };
        self.runner.run(enqueue).await.unwrap();
    }

    async fn stats(&self) -> Stats {
        let queue = self.jobs.queue();
        let stats = |tr| async move { queue.stats(&tr).await };
        self.runner.run(stats).await.unwrap()
    }

    async fn place(&self, item: &ItemRef) -> Option<Place> {
        let queue = self.jobs.queue();
        let status = |tr| async move { queue.status(&tr, item).await };
        let status = self.runner.run(status).await.unwrap();
        status.map(|status| status.place)
    }

    async fn unknown_kinds(&self) -> Vec<String> {
        let queue = self.jobs.queue();
        let unknown = |tr| async move { queue.unknown_kinds(&tr).await };
        self.runner.run(unknown).await.unwrap()
    }

    async fn kinds(&self) -> Vec<(String, u64, u64)> {
        let queue = self.jobs.queue();
        let kinds = |tr| async move { queue.kinds(&tr).await };
        let kinds = self.runner.run(kinds).await.unwrap();
        let parts = |state: KindState| (state.kind, state.sessions, state.waiting);
        kinds.into_iter().map(parts).collect()
    }

    /// Returns how many keys a part of the queue has.
    async fn count(&self, part: &str) -> usize {
        let (begin, end) = self.jobs.queue().subspace().subspace(&part).range();
        let query = &RangeQuery::keys(begin, end);
        let rows = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
        self.runner.run(rows).await.unwrap().len()
    }

    async fn check(&self) {
        let audit = self.jobs.queue().audit(&self.runner).await.unwrap();
        assert_eq!(audit.findings, []);
    }
}

async fn each_kind_has_its_handler(store: TestStore) {
    /// A handler with state.
    struct Ledger {
        key: Vec<u8>,
    }

    impl<Tr: Transaction> hc_dequeue::TransactionHandler<Invoice, Tr> for Ledger {
        type Output = keyspace::Result<()>;

        async fn handle(&self, tr: Tx<Tr>, invoice: Delivery<Invoice>) -> Self::Output {
            let sum = tr.get(&self.key, Isolation::Serializable).await?;
            let sum = sum.map_or(0, |sum| u64::from_be_bytes(sum[..].try_into().unwrap()));
            let sum = sum + invoice.value().cents;
            tr.set(&self.key, &sum.to_be_bytes());
            Ok(())
        }
    }

    let world = World::with_defaults(&store).await;
    let key = world.store.root.pack(&"sum");
    let ledger = Ledger { key: key.clone() };
    let handlers = Handlers::new().work(world.note::<Mail>()).process(ledger);
    let worker = world.work(WorkerOptions::new(), handlers).await;
    for number in 0..20 {
        world.submit(&Mail(number)).await;
        world.submit(&Invoice { cents: number }).await;
    }
    world.jobs.queue().wait_idle(&world.runner).await.unwrap();
    assert_eq!(world.handled().len(), 20);
    let read = async |tr: Tx<_>| tr.get(&key, Isolation::Snapshot).await;
    let sum = world.runner.run(read).await.unwrap().unwrap();
    assert_eq!(sum[..], 190_u64.to_be_bytes());
    assert_eq!(world.stats().await.completed, 40);
    worker.shut_down(LONG).await.unwrap();
    // Nothing is left of the session.
    assert_eq!((world.count("u").await, world.count("q").await), (0, 0));
    world.check().await;
}

async fn a_job_is_handled_under_its_earlier_names(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.submit(&Letter(1)).await;
    let subspace = world.store.root.subspace(&"queue");
    let of_one_type = hc_dequeue::Queue::<Mail>::open(&world.runner, subspace);
    let of_one_type = of_one_type.await.unwrap();
    of_one_type.submit(&world.runner, &Mail(2)).await.unwrap();
    world.submit(&Mail(3)).await;
    let handlers = Handlers::new().work(world.note::<Mail>());
    let worker = world
        .work(WorkerOptions::new().with_concurrency(1), handlers)
        .await;
    world.until_handled(3).await;
    assert_eq!(world.handled(), ["Mail(1)", "Mail(2)", "Mail(3)"]);
    worker.shut_down(LONG).await.unwrap();
    world.check().await;
}

async fn a_worker_passes_over_a_thousand_jobs_of_another_kind(store: TestStore) {
    let world = World::with_defaults(&store).await;
    for _ in 0..3 {
        world.enqueue_invoices(500).await;
    }
    world.submit(&Mail(1)).await;
    let handlers = Handlers::new().work(world.note::<Mail>());
    let worker = world.work(woken(), handlers).await;
    world.until_handled(1).await;
    world.submit(&Mail(2)).await;
    world.until_handled(2).await;
    // One of a higher priority comes to a place before those that were passed over.
    world
        .submit_with(&Mail(3), Enqueue::new().with_priority(5))
        .await;
    world.until_handled(3).await;
    worker.shut_down(LONG).await.unwrap();
    let Stats {
        queued, completed, ..
    } = world.stats().await;
    assert_eq!((queued, completed), (1_500, 3));
    world.check().await;
}

async fn workers_of_different_kinds_wait_side_by_side(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let mut workers = Vec::new();
    for _ in 0..2 {
        let mailer = Handlers::new().work(world.note::<Mail>());
        workers.push(world.work(woken(), mailer).await);
        let clerk = Handlers::new().work(world.note::<Invoice>());
        workers.push(world.work(woken(), clerk).await);
    }
    // Two registries, with the requests of two workers each.
    until(async || world.count("q").await == 4).await;
    assert_eq!((world.count("r").await, world.count("u").await), (0, 4));
    for number in 0..10 {
        world.submit(&Invoice { cents: number }).await;
        world.until_handled(1).await;
        assert_eq!(world.handled(), [format!("Invoice {{ cents: {number} }}")]);
        world.submit(&Mail(number)).await;
        world.until_handled(1).await;
        assert_eq!(world.handled(), [format!("Mail({number})")]);
    }
    world.check().await;
    for worker in workers {
        worker.shut_down(LONG).await.unwrap();
    }
}

async fn a_request_behind_that_of_a_dead_session_of_its_kinds_is_answered(store: TestStore) {
    let world = World::new(&store, settings()).await;
    let (alive, killed) = tokio::sync::oneshot::channel::<()>();
    let doomed = {
        let jobs = world.jobs.clone();
        let runner = world.runner.clone();
        process(|| async move {
            let handlers = Handlers::new().work(async |_: Delivery<Mail>| {});
            let worker = jobs.work(&runner, WorkerOptions::new(), handlers).await;
            let _ = killed.await;
            drop(worker);
        })
    };
    until(async || world.count("q").await == 1).await;
    // It sleeps behind the first request, and never polls.
    let handlers = Handlers::new().work(world.note::<Mail>());
    let second = world.work(woken(), handlers).await;
    until(async || world.count("q").await == 2).await;
    let handlers = Handlers::new().work(world.note::<Invoice>());
    let other = world.work(WorkerOptions::new(), handlers).await;
    until(async || world.count("q").await == 3).await;
    drop(alive);
    doomed.join().unwrap();
    until(async || world.count("u").await == 2).await;
    world.submit(&Mail(1)).await;
    world.until_handled(1).await;
    for worker in [second, other] {
        worker.shut_down(LONG).await.unwrap();
    }
    world.check().await;
}

async fn a_worker_of_one_type_leaves_jobs_with_kinds(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.submit(&Invoice { cents: 7 }).await;
    let subspace = world.store.root.subspace(&"queue");
    let queue = hc_dequeue::Queue::<u64>::open(&world.runner, subspace).await;
    let queue = queue.unwrap();
    queue.submit(&world.runner, &8).await.unwrap();
    let consumer = queue.consumer(&world.runner, WorkerOptions::new()).await;
    let consumer = consumer.unwrap();
    let popped = consumer.pop_within(LONG).await.unwrap().unwrap();
    assert_eq!(popped.value, 8);
    assert!(consumer.pop().await.unwrap().is_none());
    let Stats { queued, dead, .. } = world.stats().await;
    assert_eq!((queued, dead), (1, 0));
}

async fn jobs_of_a_group_pass_each_other_unless_the_group_is_ordered(store: TestStore) {
    for limits in [GroupLimits::new().with_limit(2), GroupLimits::ordered()] {
        let world = World::with_defaults(&store).await;
        let queue = world.jobs.queue();
        let configure = async |tr| queue.configure_group(&tr, b"acme", Some(&limits)).await;
        world.runner.run(configure).await.unwrap();
        let of_acme = || Enqueue::new().with_group("acme");
        world.submit_with(&Mail(1), of_acme()).await;
        let invoice = world.submit_with(&Invoice { cents: 2 }, of_acme()).await;
        world.submit_with(&Mail(3), of_acme()).await;
        let handlers = Handlers::new().work(world.note::<Mail>());
        let mailer = world.work(WorkerOptions::new(), handlers).await;
        world.until_handled(1).await;
        // A later one outside the group shows that the worker has gone on.
        world.submit(&Mail(4)).await;
        until(async || world.handled.lock().contains(&"Mail(4)".to_owned())).await;
        until(async || world.stats().await.held == 0).await;
        let is_ordered = limits == GroupLimits::ordered();
        assert_eq!(
            world.handled.lock().contains(&"Mail(3)".to_owned()),
            !is_ordered
        );
        assert_eq!(world.place(&invoice).await, Some(Place::Queued));
        world.check().await;
        let handlers = Handlers::new().work(world.note::<Invoice>());
        let clerk = world.work(WorkerOptions::new(), handlers).await;
        queue.wait_idle(&world.runner).await.unwrap();
        assert_eq!(world.handled().len(), 4);
        for worker in [mailer, clerk] {
            worker.shut_down(LONG).await.unwrap();
        }
        world.check().await;
    }
}

async fn many_groups_with_jobs_of_another_kind_hide_none(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let jobs = &world.jobs;
    let invoices = (0..1_500).map(|group: u32| {
        let options = Enqueue::new().with_group(format!("group {group}"));
        jobs.prepare(&Invoice { cents: 1 }, options).unwrap()
    });
    let invoices = invoices.collect::<Vec<_>>();
    for some in invoices.chunks(500) {
        let enqueue = |tr| async move { jobs.queue().enqueue_all_with(&tr, some).await };
        world.runner.run(enqueue).await.unwrap();
    }
    let of_group = |name: &str| Enqueue::new().with_group(name);
    world.submit_with(&Mail(1), of_group("a")).await;
    let handlers = Handlers::new().work(world.note::<Mail>());
    let worker = world.work(woken(), handlers).await;
    world.until_handled(1).await;
    world.submit_with(&Mail(2), of_group("b")).await;
    world.submit(&Mail(3)).await;
    world.until_handled(3).await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(world.stats().await.queued, 1_500);
    world.check().await;
}

async fn delays_of_another_kind_hide_no_shorter_one(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let tomorrow = || Enqueue::new().with_delay(Duration::from_secs(24 * 3600));
    for cents in 0..40 {
        world.submit_with(&Invoice { cents }, tomorrow()).await;
    }
    let handlers = Handlers::new().work(world.note::<Mail>());
    let worker = world.work(woken(), handlers).await;
    until(async || world.count("q").await == 1).await;
    for number in 0..3 {
        let soon = Enqueue::new().with_delay(Duration::from_millis(20));
        world.submit_with(&Mail(number), soon).await;
        world.until_handled(1).await;
        assert_eq!(world.handled(), [format!("Mail({number})")]);
    }
    worker.shut_down(LONG).await.unwrap();
    world.check().await;
}

async fn what_comes_back_among_jobs_of_another_kind_is_found(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue_invoices(20).await;
    let item = &world.submit(&Mail(1)).await;
    world.enqueue_invoices(20).await;
    let discard = async |_: Delivery<Mail>| Outcome::discard("no good");
    let first = world.work(woken(), Handlers::new().work(discard)).await;
    until(async || world.stats().await.dead == 1).await;
    first.shut_down(LONG).await.unwrap();
    // The second worker passes over all invoices before the mail comes back to its place.
    let handlers = Handlers::new().work(world.note::<Mail>());
    let second = world.work(woken(), handlers).await;
    until(async || world.count("q").await == 1).await;
    let queue = world.jobs.queue();
    let redrive = async |tr| queue.redrive(&tr, item).await;
    assert!(world.runner.run(redrive).await.unwrap());
    world.until_handled(1).await;
    second.shut_down(LONG).await.unwrap();
    world.check().await;
}

async fn a_new_value_under_a_dedupe_id_has_the_new_kind(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let once = || {
        Enqueue::new()
            .with_dedupe("order 7")
            .with_on_repeat(OnRepeat::Replace)
    };
    let first = world.submit_with(&Invoice { cents: 7 }, once()).await;
    let second = world.submit_with(&Mail(7), once()).await;
    assert_eq!(first, second);
    let handlers = Handlers::new().work(world.note::<Mail>());
    let worker = world.work(WorkerOptions::new(), handlers).await;
    world.until_handled(1).await;
    assert_eq!(world.handled(), ["Mail(7)"]);
    worker.shut_down(LONG).await.unwrap();
}

async fn each_job_is_handled_once_by_workers_of_its_kind_under_faults(store: TestStore) {
    let mut faults = 0;
    for seed in 0..3 {
        let settings = Settings::new().with_lease(Duration::from_secs(1));
        let world = World::new(&store, settings).await;
        let env = Environment::seeded(seed, Arc::new(ManualWall::new()));
        let chaos = Chaos::new(world.store.db.clone(), env, Faults::all(0.05));
        let runner = world.store.runner_on(chaos.clone());
        let jobs = &world.jobs;
        let jobs_of_both = async |number: u64| {
            world.submit(&Mail(number)).await;
            world.submit(&Invoice { cents: number }).await;
        };
        join_all((0..20).map(jobs_of_both)).await;
        // An effect that was committed twice counts twice.
        let root = world.store.root.subspace(&"effects");
        let count = move |tr: &Tx<_>, kind: &str, number: u64| {
            let key = root.pack(&(kind, number));
            tr.atomic(MutationOp::Add, &key, &1_u64.to_le_bytes());
        };
        let of_mail = count.clone();
        let mail = move |tr: Tx<_>, mail: Delivery<Mail>| {
            of_mail(&tr, Mail::KIND, mail.value().0);
            async {}
        };
        let invoice = move |tr: Tx<_>, invoice: Delivery<Invoice>| {
            count(&tr, Invoice::KIND, invoice.value().cents);
            async {}
        };
        let options = WorkerOptions::new().with_backoff(Backoff::new(SOON, SOON));
        // The third worker shares each kind with one of the others.
        let of_both = Handlers::new()
            .process(mail.clone())
            .process(invoice.clone());
        let of_each = [
            Handlers::new().process(mail),
            Handlers::new().process(invoice),
        ];
        let handlers = of_each.into_iter().chain([of_both]);
        let start = |handlers| jobs.work(&runner, options.clone(), handlers);
        let workers: Vec<_> = try_join_all(handlers.map(start)).await.unwrap();
        jobs.queue().wait_idle(&world.runner).await.unwrap();
        for worker in workers {
            worker.shut_down(LONG).await.unwrap();
        }
        chaos.flush().await;
        faults += chaos.tally().commits;
        let (begin, end) = world.store.root.subspace(&"effects").range();
        let effects = RangeQuery::keys(begin, end);
        let read = async |tr: Tx<_>| read_all(&tr, effects.clone(), Isolation::Snapshot).await;
        let rows = world.runner.run(read).await.unwrap();
        assert_eq!(rows.len(), 40);
        assert!(rows.iter().all(|row| row.value() == 1_u64.to_le_bytes()));
        world.check().await;
    }
    assert!(faults > 2, "{faults}");
}
