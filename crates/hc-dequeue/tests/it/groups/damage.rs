//! Groups and limits that are refused, and rows that are damaged.

use std::time::Duration;

use conformance::stores::TestStore;
use hc_dequeue::{
    Enqueue, Error, Finding, GroupLimits, GroupState, MAX_GROUP_BYTES, MAX_RATE_PER_SECOND,
    MAX_RATE_PERIOD, Rate, Schedule,
};
use keyspace::{Bytes, Isolation, RangeQuery, Transaction, Tx, read_all};

use super::{next, of, take_all, values};
use crate::common::{LONG, World, settings};

conformance::on_every_store!(
    bad_groups_and_limits_are_refused_before_anything_is_staged,
    a_group_whose_limits_do_not_decode_is_paused,
    rows_that_do_not_decode_keep_the_notice_of_their_group_and_no_session_busy,
    wrong_slots_and_lost_notices_are_found_and_repaired,
    a_repair_frees_no_slot_of_an_item_that_does_not_decode,
    lost_rows_of_rates_are_found_and_repaired,
    a_row_of_a_parked_group_that_contradicts_the_other_goes_with_a_look,
    while_limits_do_not_decode_no_tokens_are_lost,
    a_parked_group_whose_items_do_not_decode_keeps_a_notice,
);

const SECOND: Duration = Duration::from_secs(1);

fn rated(rate: Rate) -> GroupLimits {
    GroupLimits::new().with_rate(rate)
}

impl World {
    async fn read(&self, key: &[u8]) -> Option<Bytes> {
        let read = |tr: Tx<_>| async move { tr.get(key, Isolation::Snapshot).await };
        self.runner.run(read).await.unwrap()
    }

    /// Returns the version until which a group is parked.
    async fn parked_until(&self, group: &str) -> i64 {
        let until = self.key("l").pack(&(group.as_bytes(), "p"));
        let version = self.read(&until).await.unwrap();
        i64::from_be_bytes((*version).try_into().unwrap())
    }

    /// Lets a group of which this many items wait start one of them, and wait a year for the next start.
    async fn park(&self, group: &'static str, items: u64) {
        self.limit(group, rated(Rate::new(1, MAX_RATE_PERIOD)))
            .await;
        self.enqueue_all_of(group, 0..items).await;
        let consumer = self.consumer().await;
        assert!(consumer.pop().await.unwrap().is_some());
        assert!(consumer.pop().await.unwrap().is_none());
        consumer.shut_down(Duration::ZERO).await.unwrap();
    }
}

async fn bad_groups_and_limits_are_refused_before_anything_is_staged(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let long = vec![0; MAX_GROUP_BYTES + 1];
    for group in [&b""[..], &long] {
        let options = Enqueue::new().with_group(group);
        let schedule = &Schedule::new("@daily").with_enqueue_options(options.clone());
        let options = &options;
        let refused = |tr: Tx<_>| async move {
            let limits = GroupLimits::new();
            let results = [
                queue.enqueue_with(&tr, &1, options).await.map(drop),
                queue
                    .enqueue_all_with(&tr, &[(1, options.clone())])
                    .await
                    .map(drop),
                queue.schedule(&tr, "daily", schedule, &1).await.map(drop),
                queue.configure_group(&tr, group, Some(&limits)).await,
                queue.configure_group(&tr, group, None).await,
                queue.group(&tr, group).await.map(drop),
            ];
            let are_refused = results.iter().all(|result| {
                matches!(result, Err(Error::Group { bytes, limit: MAX_GROUP_BYTES }) if *bytes == group.len())
            });
            assert!(are_refused, "{results:?}");
            Ok::<_, Error>(())
        };
        world.runner.run(refused).await.unwrap();
    }
    for limits in [
        GroupLimits::new().with_weight(0),
        GroupLimits::new().with_weight(1_001),
        GroupLimits::new().with_until_end(),
        GroupLimits::new()
            .with_limit(1)
            .with_dead_letters_blocking(),
        rated(Rate::new(0, SECOND)),
        rated(Rate::new(1, Duration::ZERO)),
        rated(Rate::new(1, MAX_RATE_PERIOD + SECOND)),
        rated(Rate::new(1, Duration::MAX)),
        rated(Rate::new(1, SECOND).with_burst(0)),
        rated(Rate::new(MAX_RATE_PER_SECOND + 1, SECOND)),
        rated(Rate::new(1_001, Duration::from_millis(1))),
    ] {
        let limits = &limits;
        let refused = |tr: Tx<_>| async move {
            let results = [
                queue.configure_group(&tr, b"a", Some(limits)).await,
                queue.configure_groups(&tr, limits).await,
            ];
            assert!(
                results
                    .iter()
                    .all(|result| matches!(result, Err(Error::GroupLimits { .. })))
            );
            Ok::<_, Error>(())
        };
        world.runner.run(refused).await.unwrap();
    }
    for part in ["l", "hs", "e", "o"] {
        assert_eq!(world.count(part).await, 0, "{part}");
    }
    world.check().await;
}

async fn a_group_whose_limits_do_not_decode_is_paused(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", GroupLimits::new().with_limit(3)).await;
    world.enqueue_all_of("a", 0..3).await;
    world.enqueue_all_of("b", [7]).await;
    let consumer = world.consumer().await;
    let mut held = vec![next(&consumer).await, next(&consumer).await];
    held.sort_by_key(|item| item.group().cloned());
    let row = world.key("l").pack(&(&b"a"[..], "k"));
    world.write(&row, Some(b"\x02newer")).await;
    let status = world.group_status("a").await;
    assert_eq!(status.state, GroupState::Unreadable);
    assert!(consumer.dequeue().await.unwrap().map(|item| *item.value()) != Some(1));
    // What is held can be completed, and what comes back keeps its slot.
    held.remove(0).nack().await.unwrap();
    assert!(consumer.dequeue().await.unwrap().is_none());
    let audit = world.queue.audit(&world.runner).await.unwrap();
    let unreadable = Finding::Undecodable { key: row.into() };
    assert_eq!(audit.findings, [unreadable]);
    world.limit("a", None).await;
    assert_eq!(values(&take_all(&consumer).await).len(), 3);
    world.check().await;
}

async fn rows_that_do_not_decode_keep_the_notice_of_their_group_and_no_session_busy(
    store: TestStore,
) {
    // More than one look skips.
    const DAMAGED: u64 = 1_100;
    let world = World::recorded(&store, settings()).await;
    world.enqueue_all_of("a", 0..DAMAGED).await;
    world.damage("l").await;
    world.enqueue_all_of("b", [7]).await;
    let consumer = world.consumer().await;
    assert_eq!(*next(&consumer).await.value(), 7);
    let none = consumer.dequeue_within(Duration::from_millis(300)).await;
    assert!(none.unwrap().is_none());
    let fulfillments = world.records("hc_dequeue_fulfilled").len();
    assert!(fulfillments < 20, "{fulfillments}");
    assert_eq!(world.count("hs").await, 1);
    // What comes before these rows is found at once.
    let first = of("a").with_priority(1);
    let _ = world.enqueue_with(9, &first).await.unwrap();
    assert_eq!(*next(&consumer).await.value(), 9);
    assert!(world.count("hs").await > 0);
}

async fn wrong_slots_and_lost_notices_are_found_and_repaired(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", GroupLimits::new().with_limit(1)).await;
    world.enqueue_all_of("a", 0..2).await;
    let slots = world.key("l").pack(&(&b"a"[..], "a"));
    world.write(&slots, Some(&2_i64.to_le_bytes())).await;
    let consumer = world.consumer().await;
    assert!(consumer.dequeue().await.unwrap().is_none());
    let off = Finding::SlotsOff {
        group: "a".into(),
        stored: 2,
        counted: 0,
    };
    let repaired = world.queue.repair(&world.runner).await.unwrap();
    assert_eq!(repaired.findings, [off]);
    world.check().await;
    let delivery = next(&consumer).await;
    world.ack(&delivery).await.unwrap();
    drop(delivery);
    // A notice is lost while no session looks.
    consumer.shut_down(LONG).await.unwrap();
    let queue = &world.queue;
    let (begin, end) = queue.subspace().subspace(&"hs").range();
    let range = &(begin, end);
    let lose = |tr: Tx<_>| async move {
        tr.clear_range(&range.0, &range.1);
        Ok::<_, Error>(())
    };
    world.runner.run(lose).await.unwrap();
    let consumer = world.consumer().await;
    assert!(consumer.dequeue().await.unwrap().is_none());
    let repaired = world.queue.repair(&world.runner).await.unwrap();
    let lost = Finding::NoNotice { group: "a".into() };
    assert_eq!(repaired.findings, [lost]);
    assert_eq!(*next(&consumer).await.value(), 1);
    world.check().await;
}

async fn a_repair_frees_no_slot_of_an_item_that_does_not_decode(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", GroupLimits::new().with_limit(1)).await;
    world.enqueue_all_of("a", 0..2).await;
    let consumer = world.consumer().await;
    let _held = next(&consumer).await;
    world.damage("h").await;
    let findings = world.queue.repair(&world.runner).await.unwrap().findings;
    let is_off = |finding: &Finding| matches!(finding, Finding::SlotsOff { .. });
    assert!(!findings.iter().any(is_off), "{findings:?}");
    assert!(consumer.dequeue().await.unwrap().is_none());
}

async fn lost_rows_of_rates_are_found_and_repaired(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.park("a", 3).await;
    world.check().await;
    let group = &b"a"[..];
    let until = world.key("l").pack(&(group, "p"));
    let parked_until = world.parked_until("a").await;
    let parked = world.key("hp").pack(&(parked_until, group));
    let name = || "a".into();
    // The group is missing among the parked ones.
    world.write(&parked, None).await;
    let missing = Finding::NotParked {
        group: name(),
        until: parked_until,
    };
    let repaired = world.queue.repair(&world.runner).await.unwrap();
    assert_eq!(repaired.findings, [missing]);
    world.check().await;
    // It is there by mistake.
    let other = world.key("hp").pack(&(7, group));
    world.write(&other, Some(b"")).await;
    let stray = Finding::StrayParked {
        group: name(),
        until: 7,
    };
    let repaired = world.queue.repair(&world.runner).await.unwrap();
    assert_eq!(repaired.findings, [stray]);
    world.check().await;
    // Both rows are lost.
    world.write(&parked, None).await;
    world.write(&until, None).await;
    let repaired = world.queue.repair(&world.runner).await.unwrap();
    assert_eq!(repaired.findings, [Finding::NoNotice { group: name() }]);
    // The tokens do not decode: as if none were left.
    let full_at = world.key("l").pack(&(group, "v"));
    world.write(&full_at, Some(b"newer")).await;
    let audit = world.queue.audit(&world.runner).await.unwrap();
    let unreadable = Finding::Undecodable {
        key: full_at.into(),
    };
    assert_eq!(audit.findings, [unreadable]);
    let consumer = world.consumer().await;
    assert!(consumer.pop().await.unwrap().is_none());
    let state = world.group_status("a").await.state;
    assert!(matches!(state, GroupState::UntilRate(_)), "{state:?}");
    world.check().await;
    world.limit("a", None).await;
    assert_eq!(take_all(&consumer).await.len(), 2);
    world.check().await;
}

async fn a_row_of_a_parked_group_that_contradicts_the_other_goes_with_a_look(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.park("a", 2).await;
    for group in [&b"a"[..], b"unknown"] {
        let stray = world.key("hp").pack(&(7, group));
        world.write(&stray, Some(b"")).await;
    }
    // Otherwise, sessions would look at these groups again and again.
    let consumer = world.consumer().await;
    assert!(consumer.pop().await.unwrap().is_none());
    assert_eq!(world.count("hp").await, 1);
    world.check().await;
}

async fn while_limits_do_not_decode_no_tokens_are_lost(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.park("a", 2).await;
    let limits = world.key("l").pack(&(&b"a"[..], "k"));
    let known = world.read(&limits).await;
    world.write(&limits, Some(b"\x02newer")).await;
    // A session looks at the group.
    world.enqueue_all_of("a", [2]).await;
    let consumer = world.consumer().await;
    assert!(consumer.pop().await.unwrap().is_none());
    assert_eq!(world.group_status("a").await.state, GroupState::Unreadable);
    world.write(&limits, known.as_deref()).await;
    world.enqueue_all_of("a", [3]).await;
    assert!(consumer.pop().await.unwrap().is_none());
    let state = world.group_status("a").await.state;
    assert!(matches!(state, GroupState::UntilRate(_)), "{state:?}");
    world.check().await;
}

async fn a_parked_group_whose_items_do_not_decode_keeps_a_notice(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.park("a", 2).await;
    let group = &b"a"[..];
    let lane = world.key("l").subspace(&group);
    let (begin, end) = lane.range();
    let rows = &RangeQuery::keys(begin, end);
    let waiting = |tr: Tx<_>| async move { read_all(&tr, rows.clone(), Isolation::Snapshot).await };
    // The rows of items have the longest keys.
    let waiting = world.runner.run(waiting).await.unwrap();
    let item = waiting.iter().max_by_key(|row| row.key().len()).unwrap();
    world.write(item.key(), Some(b"\xffnewer")).await;
    // The group is due.
    let parked = world.parked_until("a").await;
    world
        .write(&world.key("hp").pack(&(parked, group)), None)
        .await;
    world
        .write(&world.key("hp").pack(&(1, group)), Some(b""))
        .await;
    world
        .write(&lane.pack(&"p"), Some(&1_i64.to_be_bytes()))
        .await;
    assert_eq!(world.count("hs").await, 0);
    let consumer = world.consumer().await;
    assert!(consumer.pop().await.unwrap().is_none());
    // A newer version, which can decode the item, finds it by the notice.
    assert_eq!(world.count("hs").await, 1);
}
