//! A slot that stops costs no item an attempt, wherever the item is.

use std::time::Duration;

use conformance::by_hand::ByHand;
use conformance::stores::TestStore;
use microqueue::keyspace::OpenOptions;

use super::*;
use crate::items::kind::Kinds;
use crate::items::settings::Settings;
use crate::queue::handle::Queue;

conformance::on_every_store!(
    a_slot_that_stops_with_its_answer_gives_the_item_back_uncounted,
    a_slot_that_is_dropped_with_its_answer_gives_the_item_back_uncounted,
    a_slot_that_is_dropped_before_its_handler_begins_gives_the_item_back_uncounted,
);

/// Longer than anything takes that is not stuck.
const LONG: Duration = Duration::from_secs(60);

/// A queue whose items become dead letters with the first attempt that counts.
struct World {
    runner: Runner<Store>,
    queue: Queue<u64>,
    consumer: UntypedConsumer,
    orders: Arc<watch::Sender<Orders>>,
}

impl World {
    async fn new(store: &TestStore) -> Self {
        let runner = store.runner();
        let settings = Settings::new().with_max_attempts(1);
        let subspace = store.root.subspace(&"queue");
        let queue = Queue::open_with(&runner, subspace, settings, OpenOptions::default());
        let queue = queue.await.unwrap();
        let options = DispatcherOptions::of_worker(&WorkerOptions::new()).unwrap();
        let consumer = UntypedConsumer::open(queue.untyped(), runner.on_store(), options);
        Self {
            consumer: consumer.await.unwrap(),
            runner,
            queue,
            orders: Arc::default(),
        }
    }

    /// Returns a slot whose handler panics.
    fn slot(&self) -> Slot {
        let env = self.runner.environment();
        let handler: Box<Handle> = Box::new(|_| panic!("no handler may begin"));
        Slot {
            consumer: self.consumer.clone(),
            handler: Arc::new(Guarded::new(handler)),
            calls: Arc::new(Calls::new(self.queue.subspace(), env, &Kinds::unnamed())),
            ordered: self.orders.subscribe(),
            orders: self.orders.clone(),
            turns: Arc::default(),
            restarted: Arc::default(),
            busy: Arc::default(),
        }
    }

    async fn enqueue(&self) {
        let queue = &self.queue;
        let enqueue = |tr| async move { queue.enqueue(&tr, &7).await.map(drop) };
        self.runner.run(enqueue).await.unwrap();
    }

    /// Panics unless the item is queued again, and another session gets it as if it had never been granted.
    async fn check_untouched(self) {
        self.consumer.shut_down(LONG).await.unwrap();
        let queue = &self.queue;
        let stats = self.runner.run(|tr| async move { queue.stats(&tr).await });
        let stats = stats.await.unwrap();
        assert_eq!((stats.queued, stats.delayed, stats.dead), (1, 0, 0));
    }
}

async fn a_slot_that_stops_with_its_answer_gives_the_item_back_uncounted(store: TestStore) {
    let world = World::new(&store).await;
    let mut slot = world.slot();
    let mut turns = ByHand::new(slot.take_turns());
    assert_eq!(turns.poll(), None);
    world.enqueue().await;
    turns.until_woken().await;
    world.orders.send_modify(|orders| orders.stops = true);
    assert_eq!(turns.poll(), Some(()));
    drop(turns);
    drop(slot);
    world.check_untouched().await;
}

async fn a_slot_that_is_dropped_with_its_answer_gives_the_item_back_uncounted(store: TestStore) {
    let world = World::new(&store).await;
    let mut slot = world.slot();
    let mut turns = ByHand::new(slot.take_turns());
    assert_eq!(turns.poll(), None);
    world.enqueue().await;
    turns.until_woken().await;
    drop(turns);
    drop(slot);
    world.check_untouched().await;
}

async fn a_slot_that_is_dropped_before_its_handler_begins_gives_the_item_back_uncounted(
    store: TestStore,
) {
    let world = World::new(&store).await;
    let consumer = world.consumer.clone();
    world.enqueue().await;
    let handed_out = consumer.dequeue(1, LONG).await.unwrap().pop().unwrap();
    let slot = world.slot();
    // Never polled, as when it waits for its turn.
    let item = handed_out.item.clone();
    drop(slot.handle(&item, handed_out));
    drop(item);
    drop(slot);
    world.check_untouched().await;
}
