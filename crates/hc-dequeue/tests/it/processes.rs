//! Eight processes of thirty-two consumers each run on one store, a cluster or a file that they share. They are killed
//! at random and started again, and on a file also stopped for longer than leases, whether they own it or not, while
//! items fail, are snoozed, take long, die and are cancelled, a schedule fires, and the settings change. Every item
//! whose enqueue was acknowledged takes effect exactly once: it is completed or cancelled, or the queue of deaths has
//! one death of it. No other item takes effect more than once, and the schedule enqueues one item for each second. Of
//! items that are handled in steps, each step takes effect exactly once, and some go on with their second step after
//! their process was killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use conformance::process::{self, Herd, acknowledge, join, misaccounted, role};
use conformance::server::Server;
use conformance::{HANG, let_pass, scale, stores, timeout, until};
use hc_dequeue::{
    Backoff, Cancelled, Death, Delivery, Enqueue, Enqueued, Error, ItemRef, Missed, Outcome,
    PlaceKind, Result, Schedule, Scheduled, Settings, Status, Worker, WorkerOptions,
};
use keyspace::codec::Codec;
use keyspace::{
    Isolation, KeyValue, MutationOp, OpenOptions, RangeQuery, Runner, Store, Subspace, Transaction,
    Tx, read_all,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const PROCESSES: usize = 8;
const CONSUMERS: usize = 32;

/// The number of waiting items from which on no more are enqueued.
const BACKLOG: u64 = 300;

type Queue = hc_dequeue::Queue<String>;

/// The queue of deaths, which no process works.
const DEATHS: &str = "deaths";

/// After how many failures an item dies that always fails.
const ATTEMPTS: u32 = 2;

async fn open(runner: &Runner<Store>) -> Result<Queue> {
    Queue::open_with(runner, "jobs", settings(1_000), OpenOptions::default()).await
}

fn settings(lease_millis: u64) -> Settings {
    Settings::new()
        .with_lease(Duration::from_millis(lease_millis))
        .with_max_attempts(1_000)
        .with_max_deaths(1_000)
        .with_deaths(DEATHS)
}

/// The last character of items that are handled in steps.
const IN_STEPS: char = '2';

/// The payload of the schedule's items.
const SCHEDULED: &str = "scheduled";

/// Counts the effects of each item, in the transactions that acknowledge it.
fn effects() -> Subspace {
    Subspace::from("effects")
}

/// Stages the effect of an item.
fn take_effect(tr: &impl Transaction, item: &str) {
    let effect = effects().pack(&item);
    tr.atomic(MutationOp::Add, &effect, &1_u64.to_le_bytes());
}

/// Counts how often each step of an item takes effect.
fn steps() -> Subspace {
    Subspace::from("steps")
}

/// Names the items whose first step an earlier delivery has done, and a later one the second.
fn resumed() -> Subspace {
    Subspace::from("resumed")
}

/// Handles an item in steps, between which its process may be killed.
async fn take_steps(delivery: &Delivery<String>, item: &str) -> Result<()> {
    let runs_first = &AtomicBool::new(false);
    for step in ["a", "b"] {
        let effect = &steps().pack(&(item, step));
        let run = async |tr: Tx<_>| {
            tr.atomic(MutationOp::Add, effect, &1_u64.to_le_bytes());
            if step == "a" {
                runs_first.store(true, Ordering::Relaxed);
            } else if !runs_first.load(Ordering::Relaxed) {
                tr.set(&resumed().pack(&item), b"");
            }
            Ok::<_, Error>(())
        };
        delivery.step(step, run).await?;
        // So long that many handlers are between their steps when a process is killed.
        let_pass(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Returns the name under which an item takes effect. For an item of the schedule, it is the second for which the
/// item was enqueued.
fn name_of(delivery: &Delivery<String>) -> String {
    match &**delivery.value() {
        SCHEDULED => {
            let time = delivery.enqueued().duration_since(SystemTime::UNIX_EPOCH);
            format!("{SCHEDULED} {}", time.unwrap().as_millis())
        }
        item => item.to_owned(),
    }
}

/// Runs a worker in whose handler each item takes effect in the transaction that acknowledges it. Some items fail
/// once before that, and some are snoozed. Others never take effect there: they are discarded, or fail each time.
async fn handle(queue: &Queue, runner: &Runner<Store>) -> Result<Worker<String>> {
    let store = runner.clone();
    let handler = move |delivery: Delivery<String>| {
        let store = store.clone();
        async move {
            let soon = Duration::from_millis(5);
            match delivery.value().as_bytes().last() {
                Some(b'3') if delivery.attempt() == 1 => {
                    return Ok(Outcome::retry_after(soon, "not yet"));
                }
                Some(b'4') if delivery.deliveries() == 1 => return Ok(Outcome::snooze(soon)),
                Some(b'7') => return Ok(Outcome::discard("no good")),
                Some(b'8') => return Ok(Outcome::retry_after(soon, "never")),
                _ => {}
            }
            // Most handlers are quick, so that their processes take items ahead. Some take longer than a lease.
            let length = match delivery.value().as_bytes().last() {
                Some(b'5') => Duration::from_millis(30),
                Some(b'6') => Duration::from_millis(700),
                _ => Duration::ZERO,
            };
            let_pass(length).await;
            let name = &name_of(&delivery);
            let delivery = &delivery;
            if name.ends_with(IN_STEPS) {
                take_steps(delivery, name).await?;
            }
            let acknowledge = store.run(|tr| async move {
                delivery.ack(&tr).await?;
                take_effect(&tr, name);
                Ok::<_, Error>(Outcome::Done)
            });
            acknowledge.await
        }
    };
    let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(100));
    let options = WorkerOptions::default()
        .with_concurrency(CONSUMERS)
        .with_backoff(backoff);
    queue.work(runner, options, handler).await
}

/// Does the work of a child process until it is killed: handles items, and enqueues some. The role contains its name
/// and the URL of the store.
async fn work(role: &str) -> Result<()> {
    let (name, url) = role.split_once(' ').unwrap();
    let runner = Runner::new(process::open(url));
    let queue = &open(&runner).await?;
    let _worker = handle(queue, &runner).await?;
    for number in 0_u64.. {
        let depth = |tr| async move { queue.len(&tr).await };
        until(async || runner.run(depth).await.unwrap() <= BACKLOG).await;
        let items = (0..10).map(|item| {
            let options = match item {
                8 => Enqueue::new().with_max_attempts(ATTEMPTS),
                _ => Enqueue::new(),
            };
            (format!("{name}-{number}-{item}"), options)
        });
        let items: Vec<_> = items.collect();
        let batch = &items;
        let enqueue = |tr| async move { queue.enqueue_all_with(&tr, batch).await };
        let (enqueued, commit) = runner.run_committed(enqueue).await?;
        for (item, _) in &items {
            acknowledge(item);
        }
        let Enqueued::Staged(last) = &enqueued[9] else {
            panic!("{enqueued:?}");
        };
        let last = &last.at(commit.versionstamp.unwrap());
        let name = &items[9].0;
        let cancel = |tr| async move {
            match queue.cancel(&tr, last).await? {
                Cancelled::Removed | Cancelled::Requested => take_effect(&tr, name),
                // The item was completed before it could be cancelled.
                _ => {}
            }
            Ok::<_, Error>(())
        };
        runner.run(cancel).await?;
    }
    Ok(())
}

async fn rows_of(runner: &Runner<Store>, subspace: &Subspace) -> Vec<KeyValue> {
    let (begin, end) = subspace.range();
    let query = &RangeQuery::keys(begin, end);
    let read = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
    runner.run(read).await.unwrap()
}

fn count_in(row: &KeyValue) -> u64 {
    u64::from_le_bytes(row.value().try_into().unwrap())
}

async fn counted(runner: &Runner<Store>) -> BTreeMap<String, u64> {
    let effects = effects();
    let rows = rows_of(runner, &effects).await;
    let count = |row: &KeyValue| (effects.unpack(row.key()).unwrap(), count_in(row));
    rows.iter().map(count).collect()
}

/// Panics unless each step of the items that were handled in steps has taken effect once, and a later delivery of some
/// of these items went on with the second step.
async fn assert_each_step_once(runner: &Runner<Store>, effects: &BTreeMap<String, u64>) {
    let mut taken: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
    for row in &rows_of(runner, &steps()).await {
        let (item, step) = steps().unpack(row.key()).unwrap();
        taken.entry(item).or_default().push((step, count_in(row)));
    }
    let in_steps = effects.keys().filter(|item| item.ends_with(IN_STEPS));
    let each_once = || ["a", "b"].map(|step| (step.to_owned(), 1)).to_vec();
    let expected: BTreeMap<_, _> = in_steps.map(|item| (item.clone(), each_once())).collect();
    assert_eq!(taken, expected);
    let resumed = rows_of(runner, &resumed()).await;
    assert!(!resumed.is_empty(), "no item went on with its second step");
}

/// Runs the processes, and checks what they have done.
async fn kill_again_and_again(test: &'static str, url: &str, stops: bool) {
    let mut names = 0..;
    let store = url.to_owned();
    let role = move |_| format!("{} {store}", names.next().unwrap());
    schedule(url).await;
    let mut herd = Herd::start(test, PROCESSES, role);
    let runner = Runner::new(join(url));
    let queue = open(&runner).await.unwrap();

    let mut rng = StdRng::seed_from_u64(4);
    for _ in 0..scale(16, 1_000) {
        herd.hear(1);
        // Most of the eight processes live longer than a lease, and return the items of the dead ones.
        let_pass(Duration::from_millis(rng.random_range(0..500))).await;
        let place = rng.random_range(0..PROCESSES);
        if stops && rng.random_range(0..4) == 0 {
            herd.pause(place);
            let_pass(Duration::from_millis(rng.random_range(0..3_000))).await;
            herd.resume(place);
        } else {
            herd.replace(place);
        }
        let settings = &settings(rng.random_range(500..2_000));
        let queue = &queue;
        let configure = |tr| async move { queue.configure(&tr, settings).await };
        runner.run(configure).await.unwrap();
    }
    drop((queue, runner));
    check(url, &herd.end()).await;
}

/// Creates the queues, and the schedule.
async fn schedule(url: &str) {
    let runner = Runner::new(keyspace::open(url).unwrap());
    let deaths = hc_dequeue::Queue::<Death>::open(&runner, DEATHS);
    deaths.await.unwrap();
    let queue = &open(&runner).await.unwrap();
    let each_second = &Schedule::new("* * * * * *").with_missed(Missed::All { cap: 1_000 });
    let payload = &SCHEDULED.to_owned();
    let schedule = |tr| async move { queue.schedule(&tr, "tick", each_second, payload).await };
    assert_eq!(runner.run(schedule).await.unwrap(), Scheduled::Created);
}

/// Handles what is left, and compares the effects with what was acknowledged.
async fn check(url: &str, acknowledged: &BTreeSet<String>) {
    let runner = Runner::new(keyspace::open(url).unwrap());
    let queue = &open(&runner).await.unwrap();
    let worker = handle(queue, &runner).await.unwrap();
    until(async || scheduled(&counted(&runner).await).len() > 2).await;
    let unschedule = |tr| async move { queue.unschedule(&tr, "tick").await };
    assert!(runner.run(unschedule).await.unwrap());
    timeout(HANG, queue.wait_idle(&runner)).await.unwrap();
    worker.shut_down(HANG).await.unwrap();
    let audit = queue.audit(&runner).await.unwrap();
    assert!(audit.is_clean(), "{audit:?}");
    let mut effects = counted(&runner).await;
    count_deaths(&runner, queue, &mut effects).await;
    assert_eq!(misaccounted(acknowledged, &effects), [""; 0]);
    assert_each_second(&effects);
    assert_each_step_once(&runner, &effects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_fdb_every_acknowledged_item_takes_effect_exactly_once() {
    const NAME: &str = "processes::on_fdb_every_acknowledged_item_takes_effect_exactly_once";
    if let Some(role) = role() {
        return work(&role).await.unwrap();
    }
    match Server::start() {
        Ok(server) => kill_again_and_again(NAME, &server.url(), false).await,
        Err(reason) => stores::skip(NAME, reason),
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn on_embedded_every_acknowledged_item_takes_effect_exactly_once() {
    const NAME: &str = "processes::on_embedded_every_acknowledged_item_takes_effect_exactly_once";
    if let Some(role) = role() {
        return work(&role).await.unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let url = format!("embedded:{}", folder.path().join("store").display());
    kill_again_and_again(NAME, &url, true).await;
}

/// Compares the dead letters with the queue of deaths. A death is the effect of its item.
async fn count_deaths(runner: &Runner<Store>, queue: &Queue, effects: &mut BTreeMap<String, u64>) {
    let deaths = hc_dequeue::Queue::<Death>::open(runner, DEATHS);
    let deaths = &deaths.await.unwrap();
    let audit = deaths.audit(runner).await.unwrap();
    assert!(audit.is_clean(), "{audit:?}");
    let mut told = Vec::new();
    for (_, status) in listed(runner, deaths, PlaceKind::Queued).await {
        let death = status.value.unwrap();
        let name = queue.decode_payload(death.payload.unwrap()).unwrap();
        assert!(name.ends_with(['7', '8']), "{name} has died");
        *effects.entry(name).or_default() += 1;
        told.push((death.item, death.attempts, death.deaths, death.reason));
    }
    let dead = listed(runner, queue, PlaceKind::Dead).await.into_iter();
    let dead = dead.map(|(item, status)| {
        let reason = status.failure.unwrap().reason;
        (item, status.attempts, status.deaths, reason)
    });
    let mut dead: Vec<_> = dead.collect();
    told.sort();
    dead.sort();
    assert_eq!(told, dead);
    for reason in ["no good", "never"] {
        assert!(dead.iter().any(|(.., of)| of == reason), "{reason}");
    }
}

/// Returns all items in a place.
async fn listed<T: Send, C: Codec<T>>(
    runner: &Runner<Store>,
    queue: &hc_dequeue::Queue<T, C>,
    place: PlaceKind,
) -> Vec<(ItemRef, Status<T>)> {
    let mut listed = Vec::new();
    let mut after = None;
    loop {
        let from = after.as_ref();
        let list = |tr| async move { queue.list(&tr, place, from, 1_000).await };
        let page = runner.run(list).await.unwrap();
        assert!(page.strays.is_empty(), "{:?}", page.strays);
        let items = page.items.into_iter();
        listed.extend(items.map(|listed| (listed.item, listed.status.unwrap())));
        after = page.next;
        if after.is_none() {
            return listed;
        }
    }
}

/// Returns the times of the schedule's items that took effect.
fn scheduled(effects: &BTreeMap<String, u64>) -> Vec<u64> {
    let names = effects.keys();
    let times = names.filter_map(|name| name.strip_prefix(SCHEDULED));
    times.map(|millis| millis.trim().parse().unwrap()).collect()
}

/// Panics if the schedule has skipped a second.
fn assert_each_second(effects: &BTreeMap<String, u64>) {
    let times = scheduled(effects);
    assert!(times.len() > 2, "{times:?}");
    for pair in times.windows(2) {
        assert_eq!(pair[1] - pair[0], 1_000, "{times:?}");
    }
}
