//! Batches of items with dedupe ids: an item that gets a new value joins the batch of the enqueue.

use conformance::stores::TestStore;
use futures::{StreamExt, stream};
use hc_dequeue::{
    Batch, BatchRef, Consumer, Delivery, Enqueue, Enqueued, Error, ItemRef, OnRepeat,
};
use keyspace::Tx;

use super::{DONE, complete_next, counts, expect, of, then};
use crate::common::{AT_ONCE, LONG, World};

conformance::on_every_store!(
    a_callback_comes_after_the_new_value_of_a_dead_letter,
    an_item_that_gets_a_new_value_joins_the_batch_or_the_enqueue_is_refused,
    an_enqueue_that_keeps_the_item_adds_no_member,
    an_id_that_the_transaction_has_enqueued_changes_no_batch,
);

async fn a_callback_comes_after_the_new_value_of_a_dead_letter(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let once = Enqueue::new()
        .with_dedupe("once")
        .with_on_repeat(OnRepeat::Replace);
    let item = world.enqueue_ref(1, &once).await;
    let consumer = world.consumer().await;
    expect(&consumer, 1).await.discard("no").await.unwrap();
    let batch = world.open_batch(&then(DONE)).await;
    let replaced = world
        .enqueue_with(2, &once.with_batch(&batch))
        .await
        .unwrap();
    assert_eq!(replaced, Enqueued::Replaced(item));
    world.close(&batch).await;
    let value = expect(&consumer, 2).await;
    assert_eq!(value.batch(), Some(batch));
    assert!(consumer.dequeue().await.unwrap().is_none());
    value.complete().await.unwrap();
    assert_eq!(counts(&expect(&consumer, DONE).await), [1, 0, 0]);
    world.check().await;
}

/// Where the item is that has the dedupe id.
#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    Queued,
    Delayed,
    Held,
    Dead,
    /// It is dead, and stays a member of its batch.
    DeadAndStays,
    Done,
}

/// Of which batch it is a member.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Of {
    None,
    Same,
    Other,
}

/// The state of the batch that the enqueue names.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Open,
    /// It is closed and not complete.
    Closed,
    Cancelled,
    Over,
}

/// What holds an item.
type Held = (Consumer<u64>, Delivery<u64>);

#[derive(Debug, Clone, Copy)]
struct Case {
    at: At,
    of: Of,
    state: State,
    mode: OnRepeat,
}

/// What the enqueue does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Does {
    /// The item that exists gets the value.
    Replaces,
    /// A new item is staged.
    Stages,
    IsOver,
    IsClosed,
    IsOfOther,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for at in [
            At::Queued,
            At::Delayed,
            At::Held,
            At::Dead,
            At::DeadAndStays,
            At::Done,
        ] {
            for of in [Of::None, Of::Same, Of::Other] {
                for state in [State::Open, State::Closed, State::Cancelled, State::Over] {
                    // A batch with members is not over.
                    if of == Of::Same && state == State::Over {
                        continue;
                    }
                    for mode in [OnRepeat::Replace, OnRepeat::Debounce] {
                        all.push(Self {
                            at,
                            of,
                            state,
                            mode,
                        });
                    }
                }
            }
        }
        all
    }

    /// Returns what the enqueue must do, and how many pending members the batch then has more.
    fn expected(self) -> (Does, i64) {
        // A dead letter that does not stay has left its batch.
        let of = if self.at == At::Dead {
            Of::None
        } else {
            self.of
        };
        let is_new = matches!(self.at, At::Held | At::Done);
        match (of, self.state) {
            (Of::Same, _) if !is_new => (Does::Replaces, 0),
            (Of::Other, _) if !is_new => (Does::IsOfOther, 0),
            (_, State::Open) if is_new => (Does::Stages, 1),
            (_, State::Open) => (Does::Replaces, 1),
            (_, State::Closed) => (Does::IsClosed, 0),
            (_, State::Cancelled | State::Over) => (Does::IsOver, 0),
        }
    }

    async fn run(self, store: &TestStore) {
        let world = World::with_defaults(store).await;
        let stays = self.at == At::DeadAndStays;
        let open = || {
            let batch = then(DONE);
            if stays {
                batch.with_dead_letters_staying()
            } else {
                batch
            }
        };
        let batch = world.open_batch(&open()).await;
        let other = world.open_batch(&open()).await;
        if self.state == State::Over {
            // Without its callback, which would come before the item.
            assert!(world.cancel_batch(&batch).await);
            let consumer = world.consumer().await;
            world
                .queue
                .await_batch(&world.runner, &batch)
                .await
                .unwrap();
            consumer.shut_down(LONG).await.unwrap();
        }
        let (item, held) = self.place_item(&world, &batch, &other).await;
        self.set_state(&world, &batch).await;
        let pending = |status: Option<hc_dequeue::BatchStatus>| {
            status.map_or(0, |status| status.pending as i64)
        };
        let before = pending(world.batch(&batch).await);
        let before_in_other = pending(world.batch(&other).await);
        let options = of(&batch).with_dedupe("id").with_on_repeat(self.mode);
        let enqueued = world.enqueue_with(2, &options).await;
        let does = match &enqueued {
            Ok(Enqueued::Replaced(replaced)) if *replaced == item => Does::Replaces,
            Ok(Enqueued::Staged(_)) => Does::Stages,
            Err(Error::BatchOver { batch: over }) if *over == batch => Does::IsOver,
            Err(Error::BatchClosed { batch: closed }) if *closed == batch => Does::IsClosed,
            Err(Error::OtherBatch { batch }) if *batch == other => Does::IsOfOther,
            unexpected => panic!("{self:?}: {unexpected:?}"),
        };
        let joined = pending(world.batch(&batch).await) - before;
        assert_eq!((does, joined), self.expected(), "{self:?}");
        let in_other = pending(world.batch(&other).await);
        assert_eq!(in_other, before_in_other, "{self:?}");
        if does == Does::Replaces {
            let status = world.status(&item).await.unwrap();
            assert_eq!(status.batch, Some(batch), "{self:?}");
            assert_eq!(status.value, Ok(2), "{self:?}");
        }
        world.check().await;
        drop(held);
    }

    /// Enqueues the item that has the dedupe id, and brings it where it is.
    async fn place_item(
        self,
        world: &World,
        batch: &BatchRef,
        other: &BatchRef,
    ) -> (ItemRef, Option<Held>) {
        let first = match self.of {
            Of::None => Enqueue::new(),
            Of::Same => of(batch),
            Of::Other => of(other),
        };
        let first = match self.at {
            At::Delayed => first.with_delay(LONG * 60),
            _ => first,
        };
        let item = world.enqueue_ref(1, &first.with_dedupe("id")).await;
        if matches!(self.at, At::Queued | At::Delayed) {
            return (item, None);
        }
        let consumer = world.consumer().await;
        let delivery = expect(&consumer, 1).await;
        match self.at {
            At::Held => return (item, Some((consumer, delivery))),
            At::Done => delivery.complete().await.unwrap(),
            _ => delivery.discard("no").await.unwrap(),
        }
        consumer.shut_down(LONG).await.unwrap();
        (item, None)
    }

    async fn set_state(self, world: &World, batch: &BatchRef) {
        if self.state != State::Over {
            // It keeps the batch from being complete.
            let _ = world
                .enqueue_with(9, &of(batch).with_delay(LONG * 60))
                .await;
        }
        match self.state {
            State::Open => {}
            State::Closed => world.close(batch).await,
            State::Cancelled => assert!(world.cancel_batch(batch).await),
            State::Over => assert_eq!(world.batch(batch).await, None),
        }
    }
}

async fn an_item_that_gets_a_new_value_joins_the_batch_or_the_enqueue_is_refused(store: TestStore) {
    let cases = stream::iter(Case::all());
    let run = cases.for_each_concurrent(AT_ONCE, |case| case.run(&store));
    run.await;
}

async fn an_enqueue_that_keeps_the_item_adds_no_member(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let batch = world.open_batch(&then(DONE)).await;
    let other = world.open_batch(&then(2 * DONE)).await;
    let once = of(&batch).with_dedupe("once");
    let item = world.enqueue_ref(1, &once).await;
    for options in [&once, &of(&other).with_dedupe("once")] {
        let again = world.enqueue_with(2, options).await.unwrap();
        assert_eq!(again, Enqueued::Repeated);
    }
    // Without a batch, an item that gets a new value stays in its own.
    let replace = Enqueue::new()
        .with_dedupe("once")
        .with_on_repeat(OnRepeat::Replace);
    let replaced = world.enqueue_with(3, &replace).await.unwrap();
    assert_eq!(replaced, Enqueued::Replaced(item));
    for batch in [&batch, &other] {
        world.close(batch).await;
    }
    let consumer = world.consumer().await;
    let member = expect(&consumer, 3).await;
    complete_next(&consumer, 2 * DONE).await;
    member.complete().await.unwrap();
    assert_eq!(counts(&expect(&consumer, DONE).await), [1, 0, 0]);
    world.check().await;
}

async fn an_id_that_the_transaction_has_enqueued_changes_no_batch(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let batch = &world.open_batch(&Batch::new()).await;
    let queue = &world.queue;
    for (first, second) in [(of(batch), Enqueue::new()), (Enqueue::new(), of(batch))] {
        let first = &first.with_dedupe("twice");
        let second = &second
            .with_dedupe("twice")
            .with_on_repeat(OnRepeat::Replace);
        let twice = |tr: Tx<_>| async move {
            let _ = queue.enqueue_with(&tr, &1, first).await?;
            let _ = queue.enqueue_with(&tr, &2, second).await?;
            Ok(())
        };
        let refused = world.runner.run(twice).await;
        assert!(matches!(refused, Err(Error::EnqueuedWithOtherPlace)));
    }
    world.check().await;
}
