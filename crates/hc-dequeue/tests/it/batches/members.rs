//! Members of batches are read with how they have ended, also after the batch has.

use std::time::Duration;

use conformance::stores::TestStore;
use conformance::until;
use hc_dequeue::{
    Audit, Batch, BatchRef, Delivery, End, Enqueue, Error, Finding, ItemRef, MemberPage,
    MemberStatus, OnRepeat, Place, Queue, Settings, WorkerOptions,
};
use keyspace::{OpenOptions, Tx};

use super::{DONE, complete_next, counts, expect, of, then};
use crate::common::{LONG, Wall, World, open};

conformance::on_every_store!(
    a_callback_reads_how_each_member_has_ended,
    members_are_read_page_by_page_in_the_order_of_their_enqueues,
    a_page_of_large_members_has_about_a_million_bytes,
    a_replaced_item_and_the_callback_of_a_batch_within_are_members,
    members_are_gone_with_their_batch_unless_done_items_are_kept,
    ended_batches_are_swept_with_their_members_when_their_time_is_over,
    a_member_that_does_not_decode_is_shown_and_hides_no_other,
    an_audit_finds_and_repairs_what_contradicts_the_index_of_members,
);

fn keeping() -> Settings {
    Settings::new().with_keep_done(LONG)
}

impl World {
    async fn member_page(
        &self,
        batch: &BatchRef,
        after: Option<&ItemRef>,
        limit: usize,
    ) -> Option<MemberPage<u64>> {
        let queue = &self.queue;
        let read = async |tr| queue.members(&tr, batch, after, limit).await;
        self.runner.run(read).await.unwrap()
    }

    async fn all_members(&self, batch: &BatchRef) -> Vec<MemberStatus<u64>> {
        let page = self.member_page(batch, None, 250).await.unwrap();
        assert_eq!(page.next, None);
        page.members
    }

    /// Returns what the members of a batch say.
    async fn said(&self, batch: &BatchRef) -> Vec<String> {
        let members = self.all_members(batch).await;
        members.iter().map(text_of).collect()
    }
}

/// Returns how a member has ended, and its result or the reason.
fn text_of(member: &MemberStatus<u64>) -> String {
    let Some(status) = member.status.as_ref().unwrap() else {
        return "gone".to_owned();
    };
    match status.place {
        Place::Done { end, .. } => format!("{end:?} {}", status.result.escape_ascii()),
        Place::Dead => format!("Dead {}", status.failure.as_ref().unwrap().reason),
        place => format!("{:?}", place.is_end()),
    }
}

async fn complete_with(delivery: Delivery<u64>, result: &'static str) {
    delivery.set_result(result).unwrap();
    delivery.complete().await.unwrap();
}

async fn a_callback_reads_how_each_member_has_ended(store: TestStore) {
    let world = World::new(&store, keeping()).await;
    let batch = world.open_batch(&then(DONE)).await;
    let items = world.members(&batch, 0..5).await;
    let consumer = world.consumer().await;
    complete_with(expect(&consumer, 0).await, "zero").await;
    expect(&consumer, 1).await.discard("no").await.unwrap();
    let third = expect(&consumer, 2).await;
    let _ = world.cancel(&items[3]).await;
    let live = ["Completed zero", "Dead no", "false", "Cancelled ", "false"];
    assert_eq!(world.said(&batch).await, live);
    complete_next(&consumer, 4).await;
    complete_with(third, "two").await;
    world.close(&batch).await;

    let callback = expect(&consumer, DONE).await;
    assert_eq!(counts(&callback), [3, 1, 1]);
    assert_eq!(callback.ended_batch(), Some(batch));
    assert_eq!(callback.batch(), None);
    let ended = [
        "Completed zero",
        "Dead no",
        "Completed two",
        "Cancelled ",
        "Completed ",
    ];
    assert_eq!(world.said(&batch).await, ended);
    let members = world.all_members(&batch).await;
    let found: Vec<_> = members.iter().map(|member| member.item).collect();
    assert_eq!(found, items);
    // In the transaction of the callback, too.
    let queue = &world.queue;
    let delivery = &callback;
    let ack = async |tr: Tx<_>| {
        let ended = delivery.ended_batch().unwrap();
        let page = queue.members(&tr, &ended, None, 10).await?.unwrap();
        let _ = queue.enqueue_with(&tr, &77, &Enqueue::new()).await?;
        delivery.ack(&tr).await?;
        Ok::<_, Error>(page.members.len())
    };
    assert_eq!(world.runner.run(ack).await.unwrap(), 5);
    let next = expect(&consumer, 77).await;
    assert_eq!(next.ended_batch(), None);
    next.complete().await.unwrap();
    // The dead letter is redriven, and then is what it became.
    let dead = &items[1];
    let redrive = async |tr| queue.redrive(&tr, dead).await;
    assert!(world.runner.run(redrive).await.unwrap());
    assert_eq!(world.said(&batch).await[1], "false");
    complete_with(expect(&consumer, 1).await, "late").await;
    assert_eq!(world.said(&batch).await[1], "Completed late");
    world.check().await;
}

async fn members_are_read_page_by_page_in_the_order_of_their_enqueues(store: TestStore) {
    let world = World::new(&store, keeping()).await;
    let batch = world.open_batch(&then(DONE)).await;
    let other = world.open_batch(&then(DONE)).await;
    world.members(&other, [50]).await;
    let items = world.members(&batch, 0..7).await;
    let queue = &world.queue;
    // Several in one transaction have the order of the calls.
    let more = async |tr| {
        let members: Vec<_> = (7..10).map(|value| (value, of(&batch))).collect();
        queue.enqueue_all_with(&tr, &members).await.map(drop)
    };
    world.runner.run(more).await.unwrap();
    for limit in [1, 3, 5, 10, 11] {
        let mut values = Vec::new();
        let mut after = None;
        let mut pages = 0;
        loop {
            let page = world
                .member_page(&batch, after.as_ref(), limit)
                .await
                .unwrap();
            assert!(page.members.len() <= limit);
            let value = |member: MemberStatus<u64>| member.status.unwrap().unwrap().value.unwrap();
            values.extend(page.members.into_iter().map(value));
            pages += 1;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(values, (0..10).collect::<Vec<_>>());
        assert_eq!(pages, 10 / limit + 1, "{limit}");
    }
    // A page has a member, even if none is wanted.
    let after = world.member_page(&batch, Some(&items[6]), 0).await.unwrap();
    assert_eq!(after.members.len(), 1);
    world.check().await;
}

async fn a_page_of_large_members_has_about_a_million_bytes(store: TestStore) {
    let store = store.fresh();
    let runner = store.runner();
    let subspace = store.root.subspace(&"queue");
    let queue = Queue::<String>::open_with(&runner, subspace, keeping(), OpenOptions::default());
    let queue = &queue.await.unwrap();
    let large = vec!["x".repeat(90_000); 15];
    let large = &large;
    let enqueue = async |tr| {
        let batch = queue.open_batch(&tr, &Batch::new()).await?;
        let member = Enqueue::new().with_batch(&batch);
        let _ = queue.enqueue_all_alike(&tr, large, &member).await?;
        Ok::<_, Error>(batch)
    };
    let batch = &runner.run(enqueue).await.unwrap();
    let mut after = None;
    let mut members = Vec::new();
    loop {
        let from = after.as_ref();
        let read = async |tr| queue.members(&tr, batch, from, 250).await;
        let page = runner.run(read).await.unwrap().unwrap();
        members.push(page.members.len());
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    // The last one on a page may exceed it.
    assert_eq!(members, [12, 3]);
}

async fn a_replaced_item_and_the_callback_of_a_batch_within_are_members(store: TestStore) {
    let world = World::new(&store, keeping()).await;
    let batch = world.open_batch(&then(DONE)).await;
    let within = world.open_batch(&then(7).with_parent(&batch)).await;
    let inner = world.members(&within, [1]).await;
    let named = Enqueue::new().with_dedupe("a").with_priority(3);
    let replaced = world.enqueue_ref(2, &named).await;
    for on_repeat in [OnRepeat::Replace, OnRepeat::Debounce] {
        let again = of(&batch).with_dedupe("a").with_on_repeat(on_repeat);
        let _ = world.enqueue_with(3, &again).await.unwrap();
    }
    for each in [&batch, &within] {
        world.close(each).await;
    }
    let found: Vec<_> = world.all_members(&batch).await;
    assert_eq!(
        found.iter().map(|one| one.item).collect::<Vec<_>>(),
        [replaced]
    );
    let consumer = world.consumer().await;
    for _ in 0..2 {
        let next = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        next.complete().await.unwrap();
    }
    let callback = expect(&consumer, 7).await;
    assert_eq!(callback.batch(), Some(batch));
    let of_callback = callback.item_ref();
    complete_with(callback, "seven").await;
    let last = expect(&consumer, DONE).await;
    let found = world.all_members(&last.ended_batch().unwrap()).await;
    let items: Vec<_> = found.iter().map(|one| one.item).collect();
    assert_eq!(items, [replaced, of_callback]);
    assert_eq!(world.said(&batch).await[1], "Completed seven");
    let of_inner = world.all_members(&within).await;
    assert_eq!(of_inner[0].item, inner[0]);
    world.check().await;
}

async fn members_are_gone_with_their_batch_unless_done_items_are_kept(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let batch = world.open_batch(&then(DONE)).await;
    world.members(&batch, 0..3).await;
    world.enqueue([9]).await;
    assert_eq!(world.count("Bm").await, 3);
    let consumer = world.consumer().await;
    complete_next(&consumer, 0).await;
    // It has ended, and the batch goes on.
    assert_eq!(world.said(&batch).await, ["gone", "false", "false"]);
    complete_next(&consumer, 1).await;
    complete_next(&consumer, 2).await;
    world.close(&batch).await;
    complete_next(&consumer, 9).await;
    complete_next(&consumer, DONE).await;
    assert_eq!(world.member_page(&batch, None, 10).await, None);
    for part in ["B", "Bd", "Bm"] {
        assert_eq!(world.count(part).await, 0, "{part}");
    }
    world.check().await;
}

async fn ended_batches_are_swept_with_their_members_when_their_time_is_over(store: TestStore) {
    const HOUR: Duration = Duration::from_secs(60 * 60);
    let store = store.fresh();
    let wall = Wall::ahead(Duration::ZERO);
    let runner = wall.runner(&store);
    let settings = Settings::new()
        .with_keep_done(HOUR)
        .with_lease(Duration::from_secs(1));
    let queue = &open(&store, &runner, settings).await.unwrap();
    let enqueue = async |tr| {
        let batch = queue.open_batch(&tr, &Batch::new()).await?;
        let members = [1, 2].map(|value| (value, of(&batch)));
        queue.enqueue_all_with(&tr, &members).await?;
        queue.close_batch(&tr, &batch)?;
        Ok::<_, Error>(batch)
    };
    let batch = &runner.run(enqueue).await.unwrap();
    let consumer = queue
        .consumer(&runner, WorkerOptions::default())
        .await
        .unwrap();
    for _ in 0..2 {
        let next = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        next.complete().await.unwrap();
    }
    queue.await_batch(&runner, batch).await.unwrap();
    let read = async |tr| queue.members(&tr, batch, None, 10).await;
    let kept = runner.run(read).await.unwrap().unwrap().members;
    let how = kept
        .iter()
        .map(|member| member.status.clone().unwrap().unwrap().place);
    let is_completed = |place| {
        matches!(
            place,
            Place::Done {
                end: End::Completed,
                ..
            }
        )
    };
    assert!(
        how.into_iter().all(is_completed) && kept.len() == 2,
        "{kept:?}"
    );
    wall.set(HOUR + Duration::from_secs(1));
    until(async || runner.run(read).await.unwrap().is_none()).await;
    let audit = queue.audit(&runner).await.unwrap();
    assert!(audit.is_clean(), "{audit:?}");
}

async fn a_member_that_does_not_decode_is_shown_and_hides_no_other(store: TestStore) {
    let world = World::new(&store, keeping()).await;
    let batch = world.open_batch(&then(DONE)).await;
    let items = world.members(&batch, [0]).await;
    world.damage("i").await;
    world.members(&batch, [1]).await;
    let members = world.all_members(&batch).await;
    assert_eq!((members[0].item, members.len()), (items[0], 2));
    let problem = members[0].status.as_ref().unwrap_err();
    assert_eq!(problem.codec, "an item");
    assert_eq!(text_of(&members[1]), "false");
}

async fn an_audit_finds_and_repairs_what_contradicts_the_index_of_members(store: TestStore) {
    let world = World::new(&store, keeping()).await;
    let batch = world.open_batch(&then(DONE)).await;
    let items = world.members(&batch, 0..2).await;
    let rows = world.rows("Bm").await;
    assert_eq!(rows.len(), 2);
    world.write(rows[0].key(), None).await;
    let repair = async || {
        let Audit { findings, .. } = world.queue.repair(&world.runner).await.unwrap();
        assert!(world.queue.audit(&world.runner).await.unwrap().is_clean());
        findings
    };
    let [
        Finding::NoMember {
            item, batch: of, ..
        },
    ] = &repair().await[..]
    else {
        panic!("the index lacks one");
    };
    assert_eq!((item, of), (&items[0], &batch));
    assert_eq!(world.rows("Bm").await, rows);

    world.close(&batch).await;
    let consumer = world.consumer().await;
    for value in [0, 1, DONE] {
        complete_next(&consumer, value).await;
    }
    consumer.shut_down(LONG).await.unwrap();
    let ended = world.rows("Bd").await.remove(0).to_key();
    world.write(&ended, None).await;
    let mut found = repair().await;
    found.sort_by_key(|finding| finding.to_string());
    let strays = items
        .into_iter()
        .map(|item| Finding::StrayMember { batch, item });
    let mut strays: Vec<_> = strays.collect();
    strays.sort_by_key(|finding| finding.to_string());
    assert_eq!(found, strays);
    assert_eq!(world.count("Bm").await, 0);
}
