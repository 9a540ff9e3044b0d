//! Items of a group, and members of a batch: listed, cleared, cancelled and redriven wherever they are.

use std::collections::BTreeMap;

use conformance::stores::TestStore;
use conformance::{HANG, scale, timeout};
use hc_dequeue::{
    Batch, BatchRef, Consumer, Cursor, Delivery, Enqueue, Error, GroupLimits, ItemsOf, Listing,
    MAX_KIND_BYTES, Place, PlaceKind, Settings,
};
use keyspace::Tx;

use crate::common::{LONG, World};

conformance::on_every_store!(
    each_place_lists_the_items_of_a_group_and_the_members_of_a_batch,
    a_search_goes_on_over_pages_and_finds_each_item_once,
    queued_items_of_a_group_are_found_in_its_lane_alone,
    waiting_items_that_belong_together_are_cleared,
    items_that_belong_together_are_cancelled_wherever_they_are,
    dead_letters_that_belong_together_are_redriven_once,
    a_change_of_many_items_takes_several_transactions,
    what_names_no_items_of_the_queue_is_refused,
    the_items_that_have_the_slots_of_a_group_are_named,
);

/// What happens to an item before it is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Queued,
    Delayed,
    Held,
    Dead,
    Done,
}

const FATES: [(Fate, PlaceKind); 5] = [
    (Fate::Queued, PlaceKind::Queued),
    (Fate::Delayed, PlaceKind::Delayed),
    (Fate::Held, PlaceKind::Held),
    (Fate::Dead, PlaceKind::Dead),
    (Fate::Done, PlaceKind::Done),
];

/// A queue in which each place has an item of each of two groups and one without a group. Those of the group "a" are
/// members of a batch.
struct Places {
    world: World,
    batch: BatchRef,
    /// What the session of the consumer holds.
    held: Vec<Delivery<u64>>,
    consumer: Consumer<u64>,
}

/// The values of the items of the group "a" begin here, those of "b" and without a group at the next hundreds.
const A: u64 = 100;

impl Places {
    async fn new(store: &TestStore) -> Self {
        let world = World::new(store, Settings::new().with_keep_done(LONG)).await;
        let queue = &world.queue;
        let open = |tr| async move {
            let stays = Batch::new().with_dead_letters_staying();
            queue.open_batch(&tr, &stays).await
        };
        let batch = world.runner.run(open).await.unwrap();
        let consumer = world.consumer().await;
        let mut held = Vec::new();
        let kinds = [
            Enqueue::new().with_group("a").with_batch(&batch),
            Enqueue::new().with_group("b"),
            Enqueue::new(),
        ];
        // Those that stay queued come last, since nothing is taken after them.
        for (number, (fate, _)) in FATES.into_iter().enumerate().rev() {
            for (kind, options) in (1..).zip(&kinds) {
                let value = kind * A + number as u64;
                world.enqueue_ref(value, options).await;
                if fate == Fate::Queued {
                    continue;
                }
                let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
                assert_eq!(*delivery.value(), value);
                match fate {
                    Fate::Delayed => delivery.retry_after(LONG, "later").await.unwrap(),
                    Fate::Dead => delivery.discard("no").await.unwrap(),
                    Fate::Done => delivery.complete().await.unwrap(),
                    Fate::Held | Fate::Queued => held.push(delivery),
                }
            }
        }
        Self {
            world,
            batch,
            held,
            consumer,
        }
    }

    /// Returns the values of the items in each place.
    async fn values(&self) -> BTreeMap<Fate, Vec<u64>> {
        let mut places = BTreeMap::new();
        for (fate, place) in FATES {
            let values = walk(&self.world, &Listing::new(place), 100).await.0;
            places.insert(fate, values);
        }
        places
    }
}

/// Returns the values of all items of a listing in the order of their values, and how many pages they are on.
async fn walk(world: &World, listing: &Listing, limit: usize) -> (Vec<u64>, usize) {
    let queue = &world.queue;
    let mut values = Vec::new();
    let mut pages = 0;
    let mut after: Option<Cursor> = None;
    loop {
        let from = after.as_ref();
        let read = |tr| async move { queue.list(&tr, listing, from, limit).await };
        let page = world.runner.run(read).await.unwrap();
        assert!(page.items.len() <= limit);
        let status = page.items.into_iter().map(|item| item.status.unwrap());
        values.extend(status.map(|status| status.value.unwrap()));
        pages += 1;
        after = page.next;
        if after.is_none() {
            values.sort_unstable();
            return (values, pages);
        }
    }
}

async fn each_place_lists_the_items_of_a_group_and_the_members_of_a_batch(store: TestStore) {
    let places = Places::new(&store).await;
    let world = &places.world;
    for (number, (fate, place)) in (0..).zip(FATES) {
        let of_a = [ItemsOf::group("a"), ItemsOf::batch(&places.batch)];
        for (items, expected) in [
            (of_a[0].clone(), vec![A + number]),
            (of_a[1].clone(), vec![A + number]),
            (ItemsOf::group("b"), vec![2 * A + number]),
            (ItemsOf::group("c"), vec![]),
        ] {
            let listing = Listing::new(place).with_items_of(items.clone());
            for limit in [1, 100] {
                let (values, _) = walk(world, &listing, limit).await;
                assert_eq!(values, expected, "{fate:?} {items:?}");
            }
        }
        let all = walk(world, &place.into(), 100).await.0;
        assert_eq!(all, [1, 2, 3].map(|kind| kind * A + number), "{fate:?}");
    }
    assert_eq!(places.held.len(), 3);
}

async fn a_search_goes_on_over_pages_and_finds_each_item_once(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let later = Enqueue::new().with_delay(LONG);
    let of_a = later.clone().with_group("a").with_kind("invoice");
    // The first and the last ones belong to the group and are of the kind, with more rows between them than one page
    // looks through.
    let others = 2_100;
    let mut items = vec![(0, of_a.clone()), (1, of_a.clone())];
    items.extend((0..others).map(|value| (A + value, later.clone())));
    items.push((2, of_a));
    let items = &items;
    let enqueue = |tr| async move { queue.enqueue_all_with(&tr, items).await.map(drop) };
    world.runner.run(enqueue).await.unwrap();
    let delayed = Listing::new(PlaceKind::Delayed);
    let listing = delayed.clone().with_items_of(ItemsOf::group("a"));
    for items in [ItemsOf::group("a"), ItemsOf::kind("invoice")] {
        let listing = delayed.clone().with_items_of(items);
        for limit in [1, 2, 100] {
            let (values, pages) = walk(&world, &listing, limit).await;
            assert_eq!(values, [0, 1, 2]);
            assert!(pages >= 3, "{pages}");
        }
    }
    // The end of a listing is where a walk over a place that grows ends.
    let listed = &listing;
    let end = |tr| async move { queue.end(&tr, listed).await };
    let end = world.runner.run(end).await.unwrap().unwrap();
    let later = Enqueue::new().with_delay(2 * LONG).with_group("a");
    world.enqueue_ref(3, &later).await;
    let (values, _) = walk(&world, &listing.clone().with_last(end), 100).await;
    assert_eq!(values, [0, 1, 2]);
    assert_eq!(walk(&world, &listing, 100).await.0, [0, 1, 2, 3]);
}

async fn queued_items_of_a_group_are_found_in_its_lane_alone(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    world.enqueue(A..A + 1_100).await;
    for (value, group) in [(1, "a"), (2, "b"), (3, "a"), (4, "c")] {
        let options = Enqueue::new().with_group(group).with_priority(4);
        world.enqueue_ref(value, &options).await;
    }
    let of_b = &Listing::new(PlaceKind::Queued).with_items_of(ItemsOf::group("b"));
    // One page is enough, however many other items there are.
    assert_eq!(walk(&world, of_b, 100).await, (vec![2], 1));
    // A cursor of another listing is none of this one.
    let first = |tr| async move { queue.list(&tr, PlaceKind::Queued, None, 1).await };
    let cursor = world.runner.run(first).await.unwrap().next;
    let after = cursor.as_ref();
    let next = |tr| async move { queue.list(&tr, of_b, after, 1).await };
    let refused = world.runner.run(next).await;
    assert!(matches!(refused, Err(Error::MalformedCursor)));
}

async fn waiting_items_that_belong_together_are_cleared(store: TestStore) {
    for by_batch in [false, true] {
        let places = Places::new(&store).await;
        let world = &places.world;
        let mut expected = places.values().await;
        for fate in [Fate::Queued, Fate::Delayed] {
            let cleared = expected.get_mut(&fate).unwrap().remove(0);
            // What was removed is kept among those that are done.
            expected.get_mut(&Fate::Done).unwrap().push(cleared);
        }
        expected.get_mut(&Fate::Done).unwrap().sort_unstable();
        let items = if by_batch {
            ItemsOf::batch(&places.batch)
        } else {
            ItemsOf::group("a")
        };
        let cleared = world.queue.clear_items(&world.runner, &items).await;
        assert_eq!(cleared.unwrap(), 2);
        assert_eq!(places.values().await, expected);
        assert_eq!(world.stats().await.removed, 2);
        let again = world.queue.clear_items(&world.runner, &items).await;
        assert_eq!(again.unwrap(), 0);
        world.check().await;
    }
}

async fn items_that_belong_together_are_cancelled_wherever_they_are(store: TestStore) {
    for by_batch in [false, true] {
        let places = Places::new(&store).await;
        let world = &places.world;
        let items = if by_batch {
            ItemsOf::batch(&places.batch)
        } else {
            ItemsOf::group("a")
        };
        let cancel = || world.queue.cancel_items(&world.runner, &items);
        let cancelled = cancel().await.unwrap();
        assert_eq!((cancelled.removed, cancelled.requested), (3, 1));
        // A second call asks no session again.
        let again = cancel().await.unwrap();
        assert_eq!((again.removed, again.requested), (0, 0));
        let [of_a, others @ ..] = &places.held[..] else {
            panic!("three items are held");
        };
        timeout(HANG, of_a.cancelled()).await;
        assert!(matches!(
            of_a.complete().await,
            Err(Error::Cancelled { .. })
        ));
        for delivery in others {
            delivery.complete().await.unwrap();
        }
        let stats = world.stats().await;
        assert_eq!((stats.cancelled, stats.completed), (4, 5));
        assert_eq!([stats.queued, stats.delayed, stats.dead], [2; 3]);
        world.check().await;
        // The others wait.
        assert!(places.consumer.dequeue().await.unwrap().is_some());
    }
}

async fn dead_letters_that_belong_together_are_redriven_once(store: TestStore) {
    for by_batch in [false, true] {
        let places = Places::new(&store).await;
        let world = &places.world;
        let items = if by_batch {
            ItemsOf::batch(&places.batch)
        } else {
            ItemsOf::group("a")
        };
        let mut expected = places.values().await;
        let redriven = expected.get_mut(&Fate::Dead).unwrap().remove(0);
        expected.get_mut(&Fate::Queued).unwrap().insert(1, redriven);
        for count in [1, 0] {
            let redriven = world.queue.redrive_items(&world.runner, &items).await;
            assert_eq!(redriven.unwrap(), count);
            assert_eq!(places.values().await, expected);
        }
        world.check().await;
    }
}

async fn a_change_of_many_items_takes_several_transactions(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let count = scale(1_200, 5_000) as u64;
    let kinds = ["a", "b"].map(|group| Enqueue::new().with_group(group));
    let items = (0..count).flat_map(|value| kinds.clone().map(|options| (value, options)));
    let items: Vec<_> = items.collect();
    let items = &items;
    let enqueue = |tr| async move { queue.enqueue_all_with(&tr, items).await.map(drop) };
    world.runner.run(enqueue).await.unwrap();
    let of_a = &ItemsOf::group("a");
    assert_eq!(queue.clear_items(&world.runner, of_a).await.unwrap(), count);
    let of_b = &ItemsOf::group("b");
    let cancelled = queue.cancel_items(&world.runner, of_b).await.unwrap();
    assert_eq!((cancelled.removed, cancelled.requested), (count, 0));
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.removed), (0, count));
    assert_eq!(stats.cancelled, count);
    assert_eq!(world.count("l").await, 0);
    world.check().await;
}

async fn what_names_no_items_of_the_queue_is_refused(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let other = World::with_defaults(&store).await;
    let elsewhere = &other.queue;
    let open = |tr| async move { elsewhere.open_batch(&tr, &Batch::new()).await };
    let foreign = other.runner.run(open).await.unwrap();
    let long_kind = "k".repeat(MAX_KIND_BYTES + 1);
    let refused_items = [
        ItemsOf::group(""),
        ItemsOf::batch(&foreign),
        ItemsOf::kind(""),
        ItemsOf::kind(long_kind),
    ];
    let queue = &world.queue;
    let runner = &world.runner;
    world.enqueue([1]).await;
    for items in &refused_items {
        let is_refusal = |error: &Error| match items {
            ItemsOf::Group(_) => matches!(error, Error::Group { .. }),
            ItemsOf::Kind(_) => matches!(error, Error::Kind { .. }),
            _ => matches!(error, Error::ForeignRef { .. }),
        };
        let listing = &Listing::new(PlaceKind::Dead).with_items_of(items.clone());
        let list = |tr: Tx<_>| async move { queue.list(&tr, listing, None, 1).await };
        assert!(is_refusal(&runner.run(list).await.unwrap_err()));
        let end = |tr: Tx<_>| async move { queue.end(&tr, listing).await };
        assert!(is_refusal(&runner.run(end).await.unwrap_err()));
        let refused = queue.clear_items(runner, items).await;
        assert!(is_refusal(&refused.unwrap_err()));
        let refused = queue.cancel_items(runner, items).await;
        assert!(is_refusal(&refused.unwrap_err()));
        let refused = queue.redrive_items(runner, items).await;
        assert!(is_refusal(&refused.unwrap_err()));
    }
    assert_eq!(world.values().await, [1]);
}

async fn the_items_that_have_the_slots_of_a_group_are_named(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(9)).await;
    let queue = &world.queue;
    let limits = &GroupLimits::new()
        .with_limit(4)
        .with_until_end()
        .with_dead_letters_blocking();
    let configure = |tr| async move { queue.configure_group(&tr, b"a", Some(limits)).await };
    world.runner.run(configure).await.unwrap();
    let holders = || async {
        let read = |tr| async move { queue.slot_holders(&tr, b"a").await };
        world.runner.run(read).await.unwrap()
    };
    let none = holders().await;
    assert_eq!((none.items.len(), none.is_complete), (0, true));
    // Others that are held, delayed and dead, and one of the group that waits for a slot.
    let of_a = &Enqueue::new().with_group("a");
    for value in 0..5 {
        world.enqueue_ref(value, of_a).await;
    }
    let consumer = world.consumer().await;
    let mut taken = Vec::new();
    while let Some(delivery) = consumer.dequeue().await.unwrap() {
        taken.push(delivery);
    }
    let [held, delayed, dead, released] = &taken[..] else {
        panic!("four items have slots");
    };
    delayed.retry_after(LONG, "broken").await.unwrap();
    dead.discard("no").await.unwrap();
    released.release().await.unwrap();
    world.enqueue_ref(9, &of_a.clone().with_delay(LONG)).await;
    let found = holders().await;
    assert!(found.is_complete);
    let status = found.items.iter().map(|item| item.status.as_ref().unwrap());
    let status: Vec<_> = status.collect();
    let values: Vec<_> = status
        .iter()
        .map(|status| *status.value.as_ref().unwrap())
        .collect();
    assert_eq!(values, [0, 3, 2, 1]);
    let [first, second, third, fourth] = &status[..] else {
        panic!("there are four");
    };
    assert!(matches!(first.place, Place::Held { .. }) && first.granted.is_some());
    assert_eq!(second.place, Place::Queued);
    assert_eq!(third.place, Place::Dead);
    assert!(matches!(fourth.place, Place::Delayed { .. }));
    let reason = |failure: &Option<hc_dequeue::Failure>| failure.clone().unwrap().reason;
    assert_eq!(reason(&third.failure), "no");
    assert_eq!(reason(&fourth.failure), "broken");
    held.complete().await.unwrap();
    assert_eq!(holders().await.items.len(), 3);
}
