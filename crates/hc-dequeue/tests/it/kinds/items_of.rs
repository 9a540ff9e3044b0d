//! Jobs of a kind: listed, cleared, cancelled and redriven wherever they are.

use conformance::stores::TestStore;
use conformance::until;
use hc_dequeue::{
    Delivery, Enqueue, Handlers, ItemRef, ItemsOf, Listing, Outcome, PlaceKind, Settings,
    WorkerOptions,
};
use keyspace::{Bytes, Tx};

use super::{Invoice, Mail, SOON, World};
use crate::common::LONG;

conformance::on_every_store!(
    each_place_lists_the_jobs_of_a_kind,
    jobs_of_a_kind_are_redriven_cleared_and_cancelled,
    kinds_that_wait_and_that_no_session_takes_are_named,
);

/// Where jobs come to, by their numbers.
const PLACES: [PlaceKind; 5] = [
    PlaceKind::Done,
    PlaceKind::Dead,
    PlaceKind::Delayed,
    PlaceKind::Held,
    PlaceKind::Queued,
];

async fn handle(number: u64) -> Outcome {
    match PLACES[number as usize] {
        PlaceKind::Done => Outcome::Done,
        PlaceKind::Dead => Outcome::discard("no"),
        PlaceKind::Delayed => Outcome::snooze(LONG),
        _ => std::future::pending().await,
    }
}

/// A paused queue in which each place has an invoice and a mail, and a worker that knows both.
struct Places {
    world: World,
    worker: hc_dequeue::Worker<Bytes>,
    invoices: Vec<ItemRef>,
    mails: Vec<ItemRef>,
}

impl Places {
    async fn new(store: &TestStore) -> Self {
        let settings = Settings::new().with_keep_done(LONG).with_lease(LONG);
        let world = World::new(store, settings).await;
        let handlers = Handlers::new()
            .work(async |invoice: Delivery<Invoice>| handle(invoice.value().cents).await)
            .work(async |mail: Delivery<Mail>| handle(mail.value().0).await);
        let options = WorkerOptions::new().with_time_limit(LONG * 60);
        let worker = world.work(options, handlers).await;
        let mut invoices = Vec::new();
        let mut mails = Vec::new();
        for number in 0..PLACES.len() as u64 {
            if PLACES[number as usize] == PlaceKind::Queued {
                until(async || {
                    let stats = world.stats().await;
                    [stats.completed, stats.dead, stats.delayed, stats.held] == [2; 4]
                })
                .await;
                let queue = world.jobs.queue();
                let pause = async |tr: Tx<_>| {
                    queue.pause(&tr);
                    Ok::<_, keyspace::Error>(())
                };
                world.runner.run(pause).await.unwrap();
            }
            invoices.push(world.submit(&Invoice { cents: number }).await);
            mails.push(world.submit(&Mail(number)).await);
        }
        Self {
            world,
            worker,
            invoices,
            mails,
        }
    }

    /// Returns the items of a kind in each place.
    async fn found(&self, kind: &str) -> Vec<Vec<ItemRef>> {
        let queue = self.world.jobs.queue();
        let mut places = Vec::new();
        for place in PLACES {
            let listing = &Listing::new(place).with_items_of(ItemsOf::kind(kind));
            let list = |tr| async move { queue.list(&tr, listing, None, 100).await };
            let page = self.world.runner.run(list).await.unwrap();
            assert_eq!(page.next, None);
            let mut items = Vec::new();
            for listed in page.items {
                assert_eq!(listed.status.unwrap().kind.as_deref(), Some(kind));
                items.push(listed.item);
            }
            places.push(items);
        }
        places
    }

    async fn end(self) {
        self.worker.shut_down(SOON).await.unwrap();
        self.world.check().await;
    }
}

/// Returns each of some items alone.
fn apart(items: &[ItemRef]) -> Vec<Vec<ItemRef>> {
    items.iter().map(|item| vec![*item]).collect()
}

async fn each_place_lists_the_jobs_of_a_kind(store: TestStore) {
    let places = Places::new(&store).await;
    assert_eq!(places.found("invoice").await, apart(&places.invoices));
    assert_eq!(places.found("mail").await, apart(&places.mails));
    // A worker handles it as a mail, and it is none of them.
    assert_eq!(places.found("letter").await, [const { Vec::new() }; 5]);
    places.end().await;
}

async fn jobs_of_a_kind_are_redriven_cleared_and_cancelled(store: TestStore) {
    let places = Places::new(&store).await;
    let runner = &places.world.runner;
    let queue = places.world.jobs.queue();
    let invoices = &ItemsOf::kind("invoice");
    let counts = async || -> Vec<usize> {
        let found = places.found("invoice").await;
        found.iter().map(Vec::len).collect()
    };
    assert_eq!(queue.redrive_items(runner, invoices).await.unwrap(), 1);
    assert_eq!(counts().await, [1, 0, 1, 1, 2]);
    assert_eq!(queue.clear_items(runner, invoices).await.unwrap(), 3);
    assert_eq!(counts().await, [4, 0, 0, 1, 0]);
    let cancelled = queue.cancel_items(runner, invoices).await.unwrap();
    assert_eq!((cancelled.removed, cancelled.requested), (0, 1));
    assert_eq!(places.found("mail").await, apart(&places.mails));
    places.end().await;
}

async fn kinds_that_wait_and_that_no_session_takes_are_named(store: TestStore) {
    let places = Places::new(&store).await;
    let world = &places.world;
    let waiting: Vec<_> = world.kinds().await.into_iter().map(|kind| kind.2).collect();
    assert_eq!(waiting, [1, 0, 1]);
    assert_eq!(world.unknown_kinds().await, [""; 0]);
    let queue = world.jobs.queue();
    for (kind, group) in [("report", "a"), ("audit", "")] {
        let mut options = Enqueue::new().with_kind(kind);
        if !group.is_empty() {
            options = options.with_group(group);
        }
        let payload = Bytes::new();
        let submitted = queue.submit_with(&world.runner, &payload, &options).await;
        submitted.unwrap().expect("it is new");
    }
    assert_eq!(world.unknown_kinds().await, ["audit", "report"]);
    places.end().await;
}
