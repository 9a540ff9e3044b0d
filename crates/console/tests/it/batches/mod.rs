//! Batches: what they wait for, closing and cancelling them.

mod program;
mod site;

use std::time::Duration;

use crate::common::{Jobs, LONG, World, assert_queues_unchanged, at_wall, enqueue, job, valid};
use conformance::stores::TestStore;
use console::report::{self, Change};
use console::{Action, Console, Error};
use export_queue::hc_dequeue::{
    Batch, BatchRef, Delivery, Enqueue, Error as DequeueError, ItemRef, Queue,
};
use export_queue::keyspace::codec::Codec;
use export_queue::keyspace::{Runner, Store, Tx};
use serde_json::Value;

conformance::on_every_store!(threads:
    batches_are_listed_with_their_members_and_what_they_wait_for,
    dead_letters_that_stay_are_waited_for,
    the_age_of_a_batch_is_that_of_its_opening,
    a_closed_batch_calls_back_and_a_cancelled_one_does_not,
    a_batch_that_is_not_there_is_neither_shown_nor_changed,
    rows_that_do_not_decode_hide_no_other_batch,
);

async fn open<C: Codec<Value>>(
    runner: &Runner<Store>,
    queue: &Jobs<C>,
    batch: &Batch<Value>,
) -> BatchRef {
    let open = |tr| async move { queue.open_batch(&tr, batch).await };
    runner.run(open).await.unwrap()
}

async fn close<C: Codec<Value>>(world: &World, queue: &Jobs<C>, batch: &BatchRef) {
    let close = |tr: Tx<_>| async move { queue.close_batch(&tr, batch) };
    world.runner.run(close).await.unwrap();
}

/// Enqueues a member that comes before all other items.
async fn add<C: Codec<Value>>(world: &World, queue: &Jobs<C>, batch: &BatchRef) -> ItemRef {
    let member = Enqueue::new().with_batch(batch).with_priority(9);
    enqueue(&world.runner, queue, &job(7), &member).await
}

/// Returns a batch whose callback comes before all other items.
fn then_call_back() -> Batch<Value> {
    Batch::new().with_callback(job(99), Enqueue::new().with_priority(9))
}

/// Takes the next item.
async fn take(world: &World) -> Delivery<Value> {
    world.consumer.dequeue_within(LONG).await.unwrap().unwrap()
}

/// Waits until a batch of `jobs` was ended by the session.
async fn wait(world: &World, batch: &BatchRef) {
    let end = world.jobs.await_batch(&world.runner, batch);
    conformance::timeout(LONG, end).await.unwrap();
}

/// Returns the reference to a batch of the same queue that does not exist.
fn unknown(batch: &BatchRef) -> BatchRef {
    let mut bytes = batch.to_bytes();
    bytes[BatchRef::BYTES - 1] ^= 1;
    BatchRef::from_bytes(&bytes).unwrap()
}

/// The key of the row of a batch, and the key of its number of pending members.
fn keys_of<C>(queue: &Queue<Value, C>, batch: &BatchRef) -> [Vec<u8>; 2]
where
    C: Codec<Value>,
{
    let rows = queue.subspace().subspace(&("B", &batch.to_bytes()[5..]));
    [rows.bytes().to_vec(), rows.pack(&"p")]
}

/// Returns the state of a batch, what it waits for, and its numbers.
fn row(batch: &report::Batch) -> String {
    let waits = batch.waits_for.as_deref().unwrap_or("unknown");
    let numbers = [batch.pending, batch.completed, batch.dead, batch.cancelled];
    format!("{}: {waits} {numbers:?}", batch.state)
}

async fn show(console: &Console, queue: &str, batch: &BatchRef) -> report::Batch {
    let batch = console.batch(queue, &batch.to_string()).await;
    valid(batch.unwrap())
}

/// Returns a page of batches without their ages.
async fn page(
    console: &Console,
    queue: &str,
    after: Option<&str>,
    limit: usize,
) -> report::Batches {
    let page = console.batches(queue, after, limit).await;
    let mut page = valid(page.unwrap());
    for batch in &mut page.batches {
        batch.age_seconds = None;
    }
    page
}

async fn batches_are_listed_with_their_members_and_what_they_wait_for(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let name = &world.name("orders");
    let orders = &world.orders().await;
    let none = page(&console, name, None, 10).await;
    assert_eq!((none.batches.len(), none.next), (0, None));
    let runner = &world.runner;
    let parent = open(runner, orders, &Batch::new()).await;
    let nested = then_call_back()
        .with_parent(&parent)
        .with_dead_letters_staying();
    let opened = open(runner, orders, &nested).await;
    let member = add(&world, orders, &opened).await;
    let closed = open(runner, orders, &Batch::new()).await;
    for _ in 0..2 {
        add(&world, orders, &closed).await;
    }
    close(&world, orders, &closed).await;
    let complete = open(runner, orders, &Batch::new()).await;
    close(&world, orders, &complete).await;
    for (batch, expected) in [
        (parent, "open: to be closed [1, 0, 0, 0]"),
        (opened, "open: to be closed [1, 0, 0, 0]"),
        (closed, "closed: 2 members [2, 0, 0, 0]"),
        (complete, "closed: a session [0, 0, 0, 0]"),
    ] {
        assert_eq!(row(&show(&console, name, &batch).await), expected);
    }
    let shown = show(&console, name, &opened).await;
    assert_eq!(shown.parent, Some(parent.to_string()));
    assert!(shown.has_callback && shown.dead_letters_stay);
    let shown = show(&console, name, &closed).await;
    assert!(!shown.has_callback && !shown.dead_letters_stay && shown.parent.is_none());

    let member = member.to_string();
    console.change(name, Action::Cancel, &member).await.unwrap();
    let shown = show(&console, name, &opened).await;
    assert_eq!(row(&shown), "open: to be closed [0, 0, 0, 1]");

    let all = page(&console, name, None, 10).await.batches;
    let mut listed: Vec<_> = all.iter().map(|batch| batch.batch.clone()).collect();
    listed.sort();
    let mut expected = [parent, opened, closed, complete].map(|batch| batch.to_string());
    expected.sort();
    assert_eq!(listed, expected);
    for limit in 1..=5 {
        let mut paged = Vec::new();
        let mut after = None;
        loop {
            let page = page(&console, name, after.as_deref(), limit).await;
            assert!(page.batches.len() <= limit);
            paged.extend(page.batches);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(paged, all, "{limit}");
    }
    assert_eq!(page(&console, name, None, 4).await.next, None);
}

async fn dead_letters_that_stay_are_waited_for(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let staying = Batch::new().with_dead_letters_staying();
    let staying = open(&world.runner, &world.jobs, &staying).await;
    let leaving = open(&world.runner, &world.jobs, &Batch::new()).await;
    let mut letters = Vec::new();
    for batch in [&staying, &staying, &leaving] {
        letters.push(add(&world, &world.jobs, batch).await);
        take(&world).await.discard("no").await.unwrap();
    }
    let last = add(&world, &world.jobs, &staying).await;
    close(&world, &world.jobs, &staying).await;
    let delivery = take(&world).await;
    assert_eq!(delivery.item_ref(), last);
    let told = async || row(&show(&console, jobs, &staying).await);
    assert_eq!(
        told().await,
        "closed: 1 member, and 2 dead letters to be redriven, cancelled or purged [3, 0, 2, 0]"
    );
    delivery.complete().await.unwrap();
    assert_eq!(
        told().await,
        "closed: 2 dead letters to be redriven, cancelled or purged [2, 1, 2, 0]"
    );
    // A batch that dead letters leave does not wait for them.
    let shown = show(&console, jobs, &leaving).await;
    assert_eq!(row(&shown), "open: to be closed [0, 0, 1, 0]");

    let [first, second, left] = letters[..] else {
        panic!("{letters:?}");
    };
    for (item, batch) in [(first, Some(staying)), (last, Some(staying)), (left, None)] {
        let item = valid(console.item(jobs, &item.to_string()).await.unwrap());
        assert_eq!(item.batch, batch.map(|batch| batch.to_string()));
    }
    let other = world.items.queued[0].to_string();
    assert_eq!(console.item(jobs, &other).await.unwrap().batch, None);

    let first = first.to_string();
    console.change(jobs, Action::Purge, &first).await.unwrap();
    assert_eq!(
        told().await,
        "closed: 1 dead letter to be redriven, cancelled or purged [1, 1, 1, 1]"
    );
    let second = second.to_string();
    let cancelled = console.change(jobs, Action::Cancel, &second).await;
    assert_eq!(cancelled.unwrap().outcome, "removed from the queue");
}

async fn the_age_of_a_batch_is_that_of_its_opening(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let long_ago = at_wall(&world, "ledger of long ago", Duration::from_secs(60)).await;
    let old = open(&long_ago.runner, &long_ago.jobs, &Batch::new()).await;
    let old = show(&console, jobs, &old).await;
    assert_eq!(old.opened.unwrap().to_string(), "1970-01-01T00:01:00.000Z");
    let years = old.age_seconds.unwrap() / (365.25 * 86_400.0);
    assert!(years > 50.0, "{years}");
    // The clock of the process that opened it is ahead of ours.
    let future = Duration::from_secs(200_000_000_000);
    let ahead = at_wall(&world, "ledger of later", future).await;
    let new = open(&ahead.runner, &ahead.jobs, &Batch::new()).await;
    let new = show(&console, jobs, &new).await;
    assert_eq!(new.age_seconds, Some(0.0));
}

async fn a_closed_batch_calls_back_and_a_cancelled_one_does_not(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let told = |change: Result<Change, Error>| {
        let change = valid(change.unwrap());
        assert_eq!(change.changed, 0);
        format!("{}: {}", change.action, change.outcome)
    };
    let batch = open(&world.runner, &world.jobs, &then_call_back()).await;
    add(&world, &world.jobs, &batch).await;
    let member = take(&world).await;
    let reference = &batch.to_string();
    assert_eq!(
        told(console.close_batch(jobs, reference).await),
        "close-batch: it is complete when no member is left"
    );
    assert_eq!(
        told(console.close_batch(jobs, reference).await),
        "close-batch: it was closed before"
    );
    let shown = show(&console, jobs, &batch).await;
    assert_eq!(row(&shown), "closed: 1 member [1, 0, 0, 0]");
    member.complete().await.unwrap();
    drop(member);
    wait(&world, &batch).await;
    let callback = take(&world).await;
    assert_eq!(callback.value(), &job(99));
    // The batch has ended, and its counts are kept.
    let shown = show(&console, jobs, &batch).await;
    assert_eq!((&*shown.state, shown.waits_for), ("complete", None));
    assert_eq!(shown.callback, Some(callback.item_ref().to_string()));
    assert!(shown.ended.is_some());
    callback.complete().await.unwrap();

    let batch = open(&world.runner, &world.jobs, &then_call_back()).await;
    add(&world, &world.jobs, &batch).await;
    let member = take(&world).await;
    let reference = &batch.to_string();
    for _ in 0..2 {
        assert_eq!(
            told(console.cancel_batch(jobs, reference).await),
            "cancel-batch: no callback comes, and its members go on"
        );
    }
    let shown = show(&console, jobs, &batch).await;
    assert_eq!(row(&shown), "cancelled: 1 member [1, 0, 0, 0]");
    assert!(!shown.has_callback);
    let queue = &world.jobs;
    let options = &Enqueue::new().with_batch(&batch);
    let join = |tr| async move { queue.enqueue_with(&tr, &job(7), options).await.map(drop) };
    let refused = world.runner.run(join).await;
    assert!(
        matches!(refused, Err(DequeueError::BatchOver { .. })),
        "{refused:?}"
    );
    member.complete().await.unwrap();
    drop(member);
    wait(&world, &batch).await;
    let next = take(&world).await;
    assert_eq!(next.item_ref(), world.items.queued[0]);
    for gone in [
        console.close_batch(jobs, reference).await,
        console.cancel_batch(jobs, reference).await,
    ] {
        assert!(matches!(gone, Err(Error::Missing { .. })), "{gone:?}");
    }
}

async fn a_batch_that_is_not_there_is_neither_shown_nor_changed(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = world.name("jobs");
    let orders = world.orders().await;
    let own = open(&world.runner, &world.jobs, &then_call_back()).await;
    let foreign = open(&world.runner, &orders, &then_call_back()).await;
    let item = world.items.queued[0].to_string();
    let before = world.written().await;
    let of_jobs = [
        (unknown(&own).to_string(), "missing"),
        (foreign.to_string(), "foreign"),
        (item, "malformed"),
        (format!("{own}00"), "malformed"),
        (String::new(), "malformed"),
        ("\u{1b}[2J".to_owned(), "malformed"),
    ];
    let of_others = ["mail", "events", "counts", "none"].map(|queue| {
        let kind = if queue == "none" {
            "no queue"
        } else {
            "recipe"
        };
        (world.name(queue), own.to_string(), kind)
    });
    let of_jobs = of_jobs.map(|(batch, kind)| (jobs.clone(), batch, kind));
    for (queue, batch, expected) in of_jobs.into_iter().chain(of_others) {
        for refused in [
            console.batch(&queue, &batch).await.map(drop),
            console.close_batch(&queue, &batch).await.map(drop),
            console.cancel_batch(&queue, &batch).await.map(drop),
        ] {
            let kind = match refused.unwrap_err() {
                Error::Missing { what: "batch", .. } => "missing",
                Error::Malformed { what: "batch", .. } => "malformed",
                Error::Dequeue(DequeueError::ForeignRef { .. }) => "foreign",
                Error::WrongRecipe {
                    what: "batches", ..
                } => "recipe",
                Error::NoQueue { .. } => "no queue",
                other => panic!("{other}"),
            };
            assert_eq!(kind, expected, "{queue}: {batch}");
        }
    }
    for after in ["", "00", &foreign.to_string()] {
        assert!(console.batches(&jobs, Some(after), 1).await.is_err());
    }
    // A page begins after any batch, even if it is over.
    let after = unknown(&own).to_string();
    let rest = console.batches(&jobs, Some(&after), 1).await.unwrap();
    let expected = usize::from(own > unknown(&own));
    assert_eq!(rest.batches.len(), expected);
    assert_queues_unchanged(&world, &before, &world.written().await);
}

async fn rows_that_do_not_decode_hide_no_other_batch(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let name = &world.name("orders");
    let orders = &world.orders().await;
    let mut batches = Vec::new();
    for _ in 0..3 {
        batches.push(open(&world.runner, orders, &Batch::new()).await);
    }
    let [newer, damaged, readable] = &batches[..] else {
        panic!("{batches:?}");
    };
    let [newer_row, _] = keys_of(orders, newer);
    world.set(&newer_row, b"\x63newer").await;
    let [_, pending] = keys_of(orders, damaged);
    world.set(&pending, b"x").await;
    let listed = page(&console, name, None, 10).await.batches;
    assert_eq!(listed.len(), 3);
    for (batch, reason) in [(newer, "newer"), (damaged, "eight bytes")] {
        let shown = listed.iter().find(|one| one.batch == batch.to_string());
        let shown = shown.unwrap();
        assert_eq!(row(shown), "unreadable: unknown [0, 0, 0, 0]");
        let problem = shown.problem.as_ref().unwrap();
        assert!(problem.contains(reason), "{problem}");
        for refused in [
            console.batch(name, &shown.batch).await.map(drop),
            console.close_batch(name, &shown.batch).await.map(drop),
        ] {
            assert!(matches!(refused, Err(Error::Dequeue(_))), "{refused:?}");
        }
    }
    let shown = show(&console, name, readable).await;
    assert_eq!(row(&shown), "open: to be closed [0, 0, 0, 0]");
    // A batch is cancelled whatever its numbers are.
    let cancelled = console.cancel_batch(name, &damaged.to_string()).await;
    assert_eq!(cancelled.unwrap().action, "cancel-batch");
    let cancelled = console.cancel_batch(name, &newer.to_string()).await;
    assert!(matches!(cancelled, Err(Error::Dequeue(_))), "{cancelled:?}");
}
