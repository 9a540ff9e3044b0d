//! Transactions that need what they have enqueued themselves: an id that is enqueued again, and reads.

use std::mem::discriminant;
use std::time::{Duration, SystemTime};

use conformance::plant::{Plant, Planted};
use conformance::stores::TestStore;
use futures::future::ready;
use futures::{StreamExt, stream};
use hc_dequeue::testing::ManualWall;
use hc_dequeue::{
    Consumer, Delivery, Enqueue, Enqueued, Error, ItemRef, OnRepeat, Place, PlaceKind, Schedule,
};
use keyspace::run::RunOptions;
use keyspace::{Code, Database, Isolation, OwnedTransaction, Runner, Transaction};

use crate::common::{AT_ONCE, LONG, Queue, World, open, settings};

conformance::on_every_store!(
    an_id_that_is_enqueued_twice_in_one_transaction_is_as_in_two,
    many_ids_that_are_enqueued_many_times_in_one_transaction_are_one_item_each,
    enqueues_of_one_transaction_count_as_made_at_the_time_of_the_first,
    two_transactions_with_one_read_version_do_not_take_each_others_items_for_their_own,
    a_read_after_an_enqueue_works_or_is_refused_by_name,
    a_burst_is_due_after_its_longest_wait_however_often_it_is_enqueued,
    a_new_burst_begins_when_the_item_was_granted,
);

const MODES: [OnRepeat; 3] = [OnRepeat::Keep, OnRepeat::Replace, OnRepeat::Debounce];

/// The delays of two enqueues.
const DELAYS: [[Option<Duration>; 2]; 5] = [
    [None, None],
    [None, Some(LONG)],
    [Some(LONG), None],
    [Some(LONG), Some(LONG)],
    [Some(LONG), Some(Duration::from_secs(3600))],
];

/// The item that has the id before.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Before {
    Nothing,
    Queued,
    Delayed,
    Dead,
    Held,
}

const BEFORE: [Before; 5] = [
    Before::Nothing,
    Before::Queued,
    Before::Delayed,
    Before::Dead,
    Before::Held,
];

fn options(mode: OnRepeat, delay: Option<Duration>) -> Enqueue {
    let options = Enqueue::new().with_dedupe("one").with_on_repeat(mode);
    match delay {
        Some(delay) => options.with_delay(delay),
        None => options,
    }
}

/// A world with an item that has the id.
struct Prepared {
    world: World,
    _holder: Option<(Consumer<u64>, Delivery<u64>)>,
}

impl Prepared {
    async fn new(store: &TestStore, before: Before) -> Self {
        let world = World::with_defaults(store).await;
        let delay = (before == Before::Delayed).then_some(2 * LONG);
        if before != Before::Nothing {
            world.enqueue_ref(0, &options(OnRepeat::Keep, delay)).await;
        }
        let mut holder = None;
        if matches!(before, Before::Dead | Before::Held) {
            let consumer = world.consumer().await;
            let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
            match before {
                Before::Dead => delivery.discard("no good").await.unwrap(),
                _ => holder = Some((consumer, delivery)),
            }
        }
        Self {
            world,
            _holder: holder,
        }
    }

    /// Returns the place and the value of each item, and which of them has the id.
    async fn items(&self) -> Vec<(PlaceKind, u64, bool)> {
        let queue = &self.world.queue;
        let list = |tr| async move {
            let holder = queue.find_deduped(&tr, b"one").await?;
            let mut items = Vec::new();
            for place in PlaceKind::ALL {
                for listed in queue.list(&tr, place, None, 10).await?.items {
                    let value = listed.status.unwrap().value.unwrap();
                    items.push((place, value, Some(listed.item) == holder));
                }
            }
            Ok::<_, Error>(items)
        };
        self.world.check().await;
        self.world.runner.run(list).await.unwrap()
    }
}

async fn an_id_that_is_enqueued_twice_in_one_transaction_is_as_in_two(store: TestStore) {
    let mut cases = Vec::new();
    for before in BEFORE {
        for first_mode in MODES {
            for second_mode in MODES {
                for [first_delay, second_delay] in DELAYS {
                    let one = options(first_mode, first_delay);
                    let other = options(second_mode, second_delay);
                    cases.push((before, one, other));
                }
            }
        }
    }
    let cases = cases
        .iter()
        .map(|(before, one, other)| is_as_in_two(&store, *before, one, other));
    let are_as_in_two = stream::iter(cases).buffer_unordered(AT_ONCE);
    let moves = are_as_in_two
        .filter(|is_as_in_two| ready(!is_as_in_two))
        .count();
    let moves = moves.await;
    // Three changes of the time: of new items in each of the first modes, and where a held item had the id in two of
    // them, since `Keep` enqueues nothing there.
    assert_eq!(moves, 3 * 3 + 3 * 2);
}

/// Compares two enqueues in one transaction with the same in two. Returns `false` if the second one is refused.
async fn is_as_in_two(store: &TestStore, before: Before, one: &Enqueue, other: &Enqueue) -> bool {
    let case = format!("{before:?}: {one:?}, {other:?}");
    let together = Prepared::new(store, before).await;
    let world = &together.world;
    let mut tr = world.store.db.begin().unwrap();
    let first = world.queue.enqueue_with(&tr, &1, one).await.unwrap();
    let second = world.queue.enqueue_with(&tr, &2, other).await;
    tr.commit().await.unwrap();
    let apart = Prepared::new(store, before).await;
    let apart_first = apart.world.enqueue_with(1, one).await.unwrap();
    if let Err(error) = &second {
        let is_refusal = matches!(error, Error::EnqueuedWithOtherPlace);
        assert!(is_refusal, "{case}: {error}");
        assert!(matches!(first, Enqueued::Staged(_)), "{case}");
        // The second enqueue has staged nothing.
        assert_eq!(together.items().await, apart.items().await, "{case}");
        return false;
    }
    let apart_second = apart.world.enqueue_with(2, other).await.unwrap();
    let second = second.unwrap();
    if matches!(apart_second, Enqueued::Replaced(_)) && matches!(first, Enqueued::Staged(_)) {
        assert_eq!(second, first, "{case}");
    } else {
        assert_eq!(discriminant(&second), discriminant(&apart_second), "{case}");
    }
    assert_eq!(discriminant(&first), discriminant(&apart_first), "{case}");
    assert_eq!(together.items().await, apart.items().await, "{case}");
    true
}

async fn many_ids_that_are_enqueued_many_times_in_one_transaction_are_one_item_each(
    store: TestStore,
) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let enqueue = |tr| async move {
        let mut enqueued = Vec::new();
        for round in 0..5_u64 {
            // Items without an id, and items with other ids, lie between those of an id.
            queue.enqueue(&tr, &(100 + round)).await?;
            for number in 0..10_u64 {
                let id = Enqueue::new()
                    .with_dedupe(number.to_be_bytes())
                    .with_on_repeat([OnRepeat::Replace, OnRepeat::Debounce][number as usize % 2]);
                let id = if number < 5 { id } else { id.with_delay(LONG) };
                let item = queue.enqueue_with(&tr, &(10 * round + number), &id).await?;
                enqueued.push(item);
            }
        }
        Ok::<_, Error>(enqueued)
    };
    let (enqueued, commit) = world.runner.run_committed(enqueue).await.unwrap();
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.delayed), (5 + 5, 5));
    for (index, enqueued) in enqueued.into_iter().enumerate() {
        let Enqueued::Staged(staged) = enqueued else {
            panic!("{enqueued:?}");
        };
        let item = staged.at(commit.versionstamp.unwrap());
        let status = world.status(&item).await.unwrap();
        assert_eq!(status.value.unwrap(), 40 + index as u64 % 10);
        assert_eq!(status.place == Place::Queued, index % 10 < 5);
    }
    world.check().await;
}

async fn enqueues_of_one_transaction_count_as_made_at_the_time_of_the_first(store: TestStore) {
    let wall = FixedWall::new();
    let world = walled(&store, &wall).await;
    let quiet = options(OnRepeat::Debounce, Some(LONG));
    let mut tr = world.store.db.begin().unwrap();
    let first = world.queue.enqueue_with(&tr, &1, &quiet).await.unwrap();
    wall.set(LONG / 2);
    let second = world.queue.enqueue_with(&tr, &2, &quiet).await.unwrap();
    assert_eq!(first, second);
    // Its time passes while it is staged.
    wall.set(2 * LONG);
    assert_eq!(
        world.queue.enqueue_with(&tr, &3, &quiet).await.unwrap(),
        first
    );
    let versionstamp = tr.commit().await.unwrap().versionstamp.unwrap();
    let Enqueued::Staged(staged) = first else {
        panic!("{first:?}");
    };
    let status = world.status(&staged.at(versionstamp)).await.unwrap();
    let Place::Delayed { until } = status.place else {
        panic!("{status:?}");
    };
    assert_eq!(until, wall.begun + LONG);
    assert_eq!(status.value.unwrap(), 3);
    world.check().await;
}

/// Lets two transactions with one read version enqueue an id. Returns whether the second one fails.
async fn second_fails<D: Database>(db: D, queue: &Queue) -> bool {
    let mut one = db.begin().unwrap();
    let mut other = db.begin().unwrap();
    other.set_read_version(one.read_version().await.unwrap());
    let id = &options(OnRepeat::Replace, None);
    for (tr, value) in [(&one, 1), (&other, 2)] {
        let enqueued = queue.enqueue_with(tr, &value, id).await.unwrap();
        assert!(matches!(enqueued, Enqueued::Staged(_)));
    }
    one.commit().await.unwrap();
    match other.commit().await {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.code(), Some(Code::NOT_COMMITTED));
            true
        }
    }
}

async fn two_transactions_with_one_read_version_do_not_take_each_others_items_for_their_own(
    store: TestStore,
) {
    let world = World::with_defaults(&store).await;
    assert!(second_fails(world.store.db.clone(), &world.queue).await);
    let again = world
        .enqueue_with(3, &options(OnRepeat::Replace, None))
        .await;
    assert!(matches!(again.unwrap(), Enqueued::Replaced(_)));
    assert_eq!(world.values().await, [3]);
    world.check().await;

    // If reads do not conflict, the audit finds that two items claim the id.
    let world = World::with_defaults(&store).await;
    let planted = Planted::new(world.store.db.clone(), Plant::NoReadConflicts);
    assert!(!second_fails(planted, &world.queue).await);
    assert!(!world.queue.audit(&world.runner).await.unwrap().is_clean());
}

/// A call that reads.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Read {
    Status,
    FindDeduped,
    Cancel,
    Expedite,
    Replace,
    Redrive,
    Purge,
    List(PlaceKind),
    End(PlaceKind),
    OldestAge,
    Stats,
    Len,
    Settings,
    IsPaused,
    Schedule,
    Schedules,
    Unschedule,
    Sessions,
    VerifyOrder,
    Release,
    Repeat(OnRepeat),
    RepeatLater,
    Bounded,
}

async fn read(
    tr: &impl Transaction,
    queue: &Queue,
    item: &ItemRef,
    read: Read,
) -> hc_dequeue::Result<()> {
    let minutely = &Schedule::new("* * * * *");
    match read {
        Read::Status => queue.status(tr, item).await.map(drop),
        Read::FindDeduped => queue.find_deduped(tr, b"one").await.map(drop),
        Read::Cancel => queue.cancel(tr, item).await.map(drop),
        Read::Expedite => queue.expedite(tr, item).await.map(drop),
        Read::Replace => queue.replace(tr, item, &7).await.map(drop),
        Read::Redrive => queue.redrive(tr, item).await.map(drop),
        Read::Purge => queue.purge(tr, item).await.map(drop),
        Read::List(place) => queue.list(tr, place, None, 10).await.map(drop),
        Read::End(place) => queue.end(tr, place).await.map(drop),
        Read::OldestAge => queue.oldest_age(tr).await.map(drop),
        Read::Stats => queue.stats(tr).await.map(drop),
        Read::Len => queue.len(tr).await.map(drop),
        Read::Settings => queue.settings(tr).await.map(drop),
        Read::IsPaused => queue.is_paused(tr).await.map(drop),
        Read::Schedule => {
            let _ = queue.schedule(tr, "a", minutely, &7).await?;
            queue.schedule(tr, "a", minutely, &8).await.map(drop)
        }
        Read::Schedules => queue.schedules(tr, None, 10).await.map(drop),
        Read::Unschedule => queue.unschedule(tr, "a").await.map(drop),
        Read::Sessions => queue.session_states(tr, None, 10).await.map(drop),
        Read::VerifyOrder => queue.verify_order(tr).await,
        Read::Release => queue.release_dedupe(tr, b"one").await.map(drop),
        Read::Repeat(mode) => queue
            .enqueue_with(tr, &7, &options(mode, Some(LONG)))
            .await
            .map(drop),
        Read::RepeatLater => {
            let later = options(OnRepeat::Debounce, Some(2 * LONG));
            queue.enqueue_with(tr, &7, &later).await.map(drop)
        }
        Read::Bounded => {
            let bounded = Enqueue::new().with_max_depth(100);
            queue.enqueue_with(tr, &7, &bounded).await.map(drop)
        }
    }
}

/// The reads that work after any enqueue.
const WORK: [Read; 15] = [
    Read::List(PlaceKind::Held),
    Read::List(PlaceKind::Dead),
    Read::List(PlaceKind::Done),
    Read::End(PlaceKind::Dead),
    Read::Stats,
    Read::Len,
    Read::Settings,
    Read::IsPaused,
    Read::Schedule,
    Read::Schedules,
    Read::Unschedule,
    Read::Sessions,
    Read::Release,
    Read::Repeat(OnRepeat::Replace),
    Read::Bounded,
];

/// The reads that may be refused.
const MAY_BE_REFUSED: [Read; 14] = [
    Read::Status,
    Read::FindDeduped,
    Read::Cancel,
    Read::Expedite,
    Read::Replace,
    Read::Redrive,
    Read::Purge,
    Read::List(PlaceKind::Queued),
    Read::List(PlaceKind::Delayed),
    Read::End(PlaceKind::Queued),
    Read::End(PlaceKind::Delayed),
    Read::OldestAge,
    Read::VerifyOrder,
    Read::RepeatLater,
];

async fn a_read_after_an_enqueue_works_or_is_refused_by_name(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let item = world.enqueue_ref(1, &Enqueue::new()).await;
    let later = Enqueue::new().with_delay(LONG);
    let queue = &world.queue;
    let mut refused = 0;
    for knows_version in [false, true] {
        for (reads, always_work) in [(&WORK[..], true), (&MAY_BE_REFUSED, false)] {
            for call in reads.iter().copied() {
                let tr = world.store.db.begin().unwrap();
                if knows_version {
                    tr.get(b"elsewhere", Isolation::Serializable).await.unwrap();
                }
                queue.enqueue(&tr, &2).await.unwrap();
                let _ = queue.enqueue_with(&tr, &3, &later).await.unwrap();
                let once = options(OnRepeat::Keep, Some(LONG));
                let _ = queue.enqueue_with(&tr, &4, &once).await.unwrap();
                match read(&tr, queue, &item, call).await {
                    Ok(()) => {}
                    Err(Error::EnqueuedWithOtherPlace) if call == Read::RepeatLater => refused += 1,
                    Err(Error::ReadAfterWrite) if !always_work => refused += 1,
                    Err(error) => panic!("{call:?}: {error:?}"),
                }
            }
        }
    }
    assert!(refused >= 16, "{refused}");
}

/// A wall clock that stands still at a time after the beginning of the test.
struct FixedWall {
    manual: ManualWall,
    begun: SystemTime,
}

impl FixedWall {
    fn new() -> Self {
        let manual = ManualWall::new();
        let begun = manual.time();
        Self { manual, begun }
    }

    fn set(&self, after: Duration) {
        self.manual.set(self.begun + after);
    }
}

/// Returns a world of processes with this wall clock.
async fn walled(store: &TestStore, wall: &FixedWall) -> World {
    let store = store.fresh();
    let options = RunOptions::default()
        .with_ledger_subspace(store.root.subspace(&"ledgers"))
        .with_environment(wall.manual.environment());
    let runner = Runner::with_options(store.db.clone(), options);
    let queue = open(&store, &runner, settings()).await.unwrap();
    World {
        store,
        runner,
        queue,
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn burst() -> Enqueue {
    options(OnRepeat::Debounce, Some(60 * SECOND)).with_max_wait(150 * SECOND)
}

impl World {
    /// Enqueues the burst at a time. Returns in how many seconds after the beginning of the test it is due, or `None`
    /// if it is queued.
    async fn debounce_at(&self, wall: &FixedWall, seconds: u32, options: &Enqueue) -> Option<u64> {
        wall.set(seconds * SECOND);
        let value = seconds.into();
        let item = self
            .queue
            .submit_with(&self.runner, &value, options)
            .await
            .unwrap()
            .unwrap();
        match self.place(&item).await.unwrap() {
            Place::Queued => None,
            Place::Delayed { until } => Some(until.duration_since(wall.begun).unwrap().as_secs()),
            other => panic!("{other:?}"),
        }
    }
}

async fn a_burst_is_due_after_its_longest_wait_however_often_it_is_enqueued(store: TestStore) {
    let wall = FixedWall::new();
    let world = walled(&store, &wall).await;
    let mut due = Vec::new();
    for seconds in [0, 50, 100, 140, 160, 300] {
        due.push(world.debounce_at(&wall, seconds, &burst()).await);
    }
    assert_eq!(due, [Some(60), Some(110), Some(150), Some(150), None, None]);
    assert_eq!(
        (world.stats().await.queued, world.stats().await.delayed),
        (1, 0)
    );
    world.check().await;

    // Without a longest wait it is never due, and an enqueue that has none extends the burst.
    let world = walled(&store, &wall).await;
    let endless = options(OnRepeat::Debounce, Some(60 * SECOND));
    let mut due = Vec::new();
    for seconds in [0, 50, 100, 150, 200] {
        due.push(world.debounce_at(&wall, seconds, &endless).await);
    }
    assert_eq!(due, [60, 110, 160, 210, 260].map(Some));
    // A longest wait that is shorter than the delay applies to the first enqueue, too.
    let world = walled(&store, &wall).await;
    let short = burst().with_max_wait(10 * SECOND);
    assert_eq!(world.debounce_at(&wall, 0, &short).await, Some(10));
    assert_eq!(world.debounce_at(&wall, 5, &short).await, Some(10));
    // `Replace` keeps the time.
    let replaced = short.clone().with_on_repeat(OnRepeat::Replace);
    assert_eq!(world.debounce_at(&wall, 6, &replaced).await, Some(10));
    // The clock by which the burst began was ahead.
    let world = walled(&store, &wall).await;
    assert_eq!(
        world.debounce_at(&wall, 10_000, &burst()).await,
        Some(10_060)
    );
    assert_eq!(world.debounce_at(&wall, 0, &burst()).await, Some(60));
}

async fn a_new_burst_begins_when_the_item_was_granted(store: TestStore) {
    for is_dead in [false, true] {
        let wall = FixedWall::new();
        let world = walled(&store, &wall).await;
        let consumer = world.consumer().await;
        world.debounce_at(&wall, 0, &burst()).await;
        let mut now = 200;
        for _ in 0..2 {
            wall.set(now * SECOND);
            let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
            if is_dead {
                delivery.discard("no good").await.unwrap();
            } else {
                let later = delivery.retry_after(LONG, "not now");
                later.await.unwrap();
            }
            let mut due = Vec::new();
            for seconds in [10, 60, 110] {
                let at = world.debounce_at(&wall, now + seconds, &burst()).await;
                due.push(at.map(|at| at - u64::from(now)));
            }
            assert_eq!(due, [70, 120, 160].map(Some), "{is_dead}");
            now += 1_000;
        }
        world.check().await;
    }
}
