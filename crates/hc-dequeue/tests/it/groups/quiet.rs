//! Audits find nothing wrong with groups that wait, and find what is wrong.

use std::time::Duration;

use conformance::stores::TestStore;
use conformance::{scale, until};
use hc_dequeue::{Error, Finding, GroupLimits, GroupState, Rate, WorkerOptions};
use keyspace::{Transaction, Tx};
use tokio::sync::oneshot;

use super::next;
use crate::common::{LONG, World, process, settings};

conformance::on_every_store!(
    a_group_that_comes_due_while_no_session_takes_items_is_no_finding,
    groups_are_no_findings_before_a_session_has_seen_new_default_limits,
    a_notice_that_is_missing_is_found_whether_the_group_is_parked_or_not,
    groups_are_no_findings_after_a_kill,
);

/// One start in a second.
const SOON: GroupLimits = GroupLimits::new().with_rate(Rate::new(1, Duration::from_secs(1)));

impl World {
    /// Waits until the next item of a group may start, and checks that nothing is wrong.
    async fn check_when_ready(&self, group: &str) {
        until(async || self.group_status(group).await.state == GroupState::Ready).await;
        self.check().await;
    }

    /// Returns what an audit finds that is wrong with groups.
    async fn wrong_groups(&self) -> Vec<Finding> {
        let audit = self.queue.audit(&self.runner).await.unwrap();
        let is_of_group = |finding: &Finding| {
            let kinds = ["no-notice", "not-parked", "stray-parked", "slots-off"];
            kinds.contains(&finding.kind())
        };
        audit.findings.into_iter().filter(is_of_group).collect()
    }
}

async fn a_group_that_comes_due_while_no_session_takes_items_is_no_finding(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", SOON).await;
    world.enqueue_all_of("a", 0..20).await;
    let consumer = world.consumer().await;
    while consumer.pop().await.unwrap().is_some() {}
    consumer.shut_down(LONG).await.unwrap();
    world.check_when_ready("a").await;
    // The same while the queue is paused.
    let consumer = world.consumer().await;
    let _ = consumer.pop_within(LONG).await.unwrap();
    let queue = &world.queue;
    let pause = |tr| async move {
        queue.pause(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(pause).await.unwrap();
    world.enqueue_all_of("a", 20..22).await;
    world.check_when_ready("a").await;
}

async fn groups_are_no_findings_before_a_session_has_seen_new_default_limits(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit_all(GroupLimits::new().with_limit(0)).await;
    for group in ["a", "b"] {
        world.enqueue_all_of(group, 0..2).await;
    }
    let consumer = world.consumer().await;
    assert!(consumer.pop().await.unwrap().is_none());
    consumer.shut_down(LONG).await.unwrap();
    world.limit_all(GroupLimits::new()).await;
    world.check().await;
    let consumer = world.consumer().await;
    for _ in 0..4 {
        assert!(consumer.pop_within(LONG).await.unwrap().is_some());
    }
    world.check().await;
}

async fn a_notice_that_is_missing_is_found_whether_the_group_is_parked_or_not(store: TestStore) {
    let no_notice = || {
        let group = "a".into();
        [Finding::NoNotice { group }]
    };
    for limits in [GroupLimits::new(), SOON] {
        let world = World::with_defaults(&store).await;
        world.limit("a", limits).await;
        world.enqueue_all_of("a", 0..2).await;
        let (begin, end) = world.key("hs").range();
        let queue = &world.queue;
        let begin = &begin;
        let end = &end;
        let remove = |tr: Tx<_>| async move {
            tr.clear_range(begin, end);
            Ok::<_, Error>(())
        };
        world.runner.run(remove).await.unwrap();
        assert_eq!(
            queue.audit(&world.runner).await.unwrap().findings,
            no_notice()
        );
        // Also if the group is parked for longer than its rate needs.
        let group = &b"a"[..];
        let until = i64::MAX / 2;
        let parked = world.key("hp").pack(&(until, group));
        let row = world.key("l").pack(&(group, "p"));
        world.write(&parked, Some(b"")).await;
        world.write(&row, Some(&until.to_be_bytes())).await;
        assert_eq!(
            queue.audit(&world.runner).await.unwrap().findings,
            no_notice()
        );
        let repaired = queue.repair(&world.runner).await.unwrap();
        assert_eq!(repaired.findings, no_notice());
        let consumer = world.consumer().await;
        let _ = next(&consumer).await;
        world.check().await;
    }
}

async fn groups_are_no_findings_after_a_kill(store: TestStore) {
    let world = World::new(&store, settings()).await;
    world.limit_all(SOON).await;
    world.limit("limited", SOON.with_limit(1)).await;
    let groups = ["a", "b", "limited"];
    for round in 0..scale(4, 200) as u64 {
        for group in groups {
            world
                .enqueue_all_of(group, 10 * round..10 * round + 5)
                .await;
        }
        let (alive, killed) = oneshot::channel::<()>();
        let queue = world.queue.clone();
        let runner = world.runner.clone();
        let doomed = process(|| async move {
            let options = WorkerOptions::new().with_concurrency(2);
            let worker = queue.work(&runner, options, |_| async {}).await.unwrap();
            let _ = killed.await;
            drop(worker);
        });
        let before = world.stats().await.completed;
        while world.stats().await.completed == before {
            assert_eq!(world.wrong_groups().await, []);
        }
        drop(alive);
        doomed.join().unwrap();
        let waits = |state| matches!(state, GroupState::UntilRate(_));
        while waits(world.group_status("a").await.state) {
            assert_eq!(world.wrong_groups().await, []);
        }
        assert_eq!(world.wrong_groups().await, []);
    }
}
