//! Audits find each planted contradiction, and repair it.

mod busy;
mod rows;

use std::time::SystemTime;

use crate::common::World;
use conformance::stores::TestStore;
use hc_dequeue::microqueue::{ItemId, MicroQueue};
use hc_dequeue::session::SessionId;
use hc_dequeue::{Consumer, Delivery, Error, Finding, Settings};
use keyspace::codec::Raw;
use keyspace::{Bytes, Isolation, KeyValue, MutationOp, RangeQuery, Transaction, Tx, read_all};

conformance::on_every_store!(
    a_queue_in_use_is_clean,
    a_counter_that_is_off_is_set_right,
    items_of_a_session_that_is_gone_are_returned,
    a_session_without_a_heartbeat_is_reclaimed,
    strays_are_removed,
    requests_of_a_session_that_is_being_removed_are_no_finding,
    the_rest_of_a_grant_without_its_first_item_is_returned,
    an_item_in_two_places_is_reported,
    an_item_that_two_sessions_hold_is_reported,
    items_of_many_sessions_that_are_gone_are_returned,
    a_repair_that_meets_a_damaged_row_goes_on_with_the_others,
);

/// A queue with a held item, and one item of each other kind.
async fn world_in_use(store: &TestStore) -> (World, Delivery<u64>, Consumer<u64>) {
    // No heartbeat comes while a test changes rows.
    let settings = Settings::new().with_lease(crate::common::LONG);
    let world = World::new(store, settings).await;
    let consumer = world.consumer().await;
    world.enqueue(0..5).await;
    let held = consumer.dequeue().await.unwrap().unwrap();
    let dead = consumer.dequeue().await.unwrap().unwrap();
    dead.discard("no good").await.unwrap();
    let delayed = consumer.dequeue().await.unwrap().unwrap();
    delayed
        .retry_after(crate::common::LONG, "not now")
        .await
        .unwrap();
    (world, held, consumer)
}

impl World {
    pub(crate) async fn rows(&self, part: &str) -> Vec<KeyValue> {
        let (begin, end) = self.key(part).range();
        let query = &RangeQuery::keys(begin, end);
        let read = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
        self.runner.run(read).await.unwrap()
    }

    /// Commits a request of a session: format, session, wanted number, number for the reserve.
    async fn request(&self, session: [u8; 16]) -> ItemId {
        let requests = &MicroQueue::<Bytes, Raw>::new(self.key("r"));
        let record = [&[1][..], &session, &1_u32.to_be_bytes(), &[0; 4]].concat();
        let record = &Bytes::from(record);
        let enqueue = |tr: Tx<_>| async move { requests.enqueue(&tr, record).await };
        let (staged, commit) = self.runner.run_committed(enqueue).await.unwrap();
        staged.at(commit.versionstamp.unwrap())
    }

    /// Panics unless the audit finds exactly these contradictions, repairs them, and finds nothing afterwards.
    async fn finds_and_repairs(&self, findings: &[Finding]) {
        let audit = self.queue.repair(&self.runner).await.unwrap();
        assert_eq!(audit.findings, findings);
        self.check().await;
    }
}

async fn a_queue_in_use_is_clean(store: TestStore) {
    let (world, _held, _consumer) = world_in_use(&store).await;
    world.check().await;
}

async fn a_counter_that_is_off_is_set_right(store: TestStore) {
    for (counter, counted) in [("queued", 2), ("delayed", 1), ("held", 1), ("dead", 1)] {
        let (world, held, _consumer) = world_in_use(&store).await;
        let key = &world.queue.subspace().pack(&("c", counter));
        let drift = world.runner.run(|tr| async move {
            tr.atomic(MutationOp::Add, key, &3_i64.to_le_bytes());
            Ok::<_, Error>(())
        });
        drift.await.unwrap();
        let stored = counted + 3;
        let finding = Finding::CounterOff {
            counter,
            stored,
            counted,
        };
        world.finds_and_repairs(&[finding]).await;
        drop(held);
    }
}

async fn items_of_a_session_that_is_gone_are_returned(store: TestStore) {
    let (world, held, _consumer) = world_in_use(&store).await;
    let states = world.rows("s").await;
    let heartbeats = world.rows("b").await;
    let bytes: Vec<u8> = world.key("s").unpack(states[0].key()).unwrap();
    let session = SessionId(bytes.try_into().unwrap());
    world.write(states[0].key(), None).await;
    world.write(heartbeats[0].key(), None).await;
    world
        .finds_and_repairs(&[Finding::NoSession { session }])
        .await;
    let lost = world.ack(&held).await.unwrap_err();
    assert!(matches!(lost, Error::DeliveryLost { .. }));
    assert_eq!(world.values().await.len(), 3);
}

async fn a_session_without_a_heartbeat_is_reclaimed(store: TestStore) {
    let (world, _held, _consumer) = world_in_use(&store).await;
    let heartbeats = world.rows("b").await;
    let bytes: Vec<u8> = world.key("b").unpack(heartbeats[0].key()).unwrap();
    let session = SessionId(bytes.try_into().unwrap());
    world.write(heartbeats[0].key(), None).await;
    world
        .finds_and_repairs(&[Finding::NoHeartbeat { session }])
        .await;
    assert_eq!(world.values().await.len(), 3);
}

async fn requests_of_a_session_that_is_being_removed_are_no_finding(store: TestStore) {
    for is_dead in [true, false] {
        let world = World::new(&store, Settings::default()).await;
        let session = SessionId([9; 16]);
        let sessions = world.queue.sessions();
        let open = |tr: Tx<_>| async move {
            sessions.open(&tr, session, crate::common::LONG, SystemTime::UNIX_EPOCH);
            Ok::<_, Error>(())
        };
        world.runner.run(open).await.unwrap();
        let request = world.request(session.0).await;
        world.check().await;
        // The steps of the removal: the state, what it holds and its requests, the session.
        let declare = |tr: Tx<_>| async move {
            if is_dead {
                let is_declared = sessions.declare_dead(&tr, session, |_| Some(i64::MAX));
                assert!(is_declared.await?);
            } else {
                sessions.end(&tr, session).await?;
            }
            Ok::<_, Error>(())
        };
        world.runner.run(declare).await.unwrap();
        let audit = world.queue.audit(&world.runner).await.unwrap();
        assert_eq!(audit.findings, [], "dead: {is_dead}");
        let remove = |tr: Tx<_>| async move {
            sessions.remove(&tr, session);
            Ok::<_, Error>(())
        };
        world.runner.run(remove).await.unwrap();
        world
            .finds_and_repairs(&[Finding::StrayRequest {
                request,
                registry: None,
            }])
            .await;
    }
}

async fn strays_are_removed(store: TestStore) {
    let (world, _held, _consumer) = world_in_use(&store).await;
    let session = SessionId([9; 16]);
    let heartbeat = world.key("b").pack(&session.0.as_slice());
    world.write(&heartbeat, Some(&[0; 18])).await;
    world
        .finds_and_repairs(&[Finding::StrayHeartbeat { session }])
        .await;

    let request = world.request(session.0).await;
    world
        .finds_and_repairs(&[Finding::StrayRequest {
            request,
            registry: None,
        }])
        .await;
}

async fn the_rest_of_a_grant_without_its_first_item_is_returned(store: TestStore) {
    type Held = (Vec<u8>, keyspace::tuple::Versionstamp, u64);
    let (world, held, _consumer) = world_in_use(&store).await;
    let rows = world.rows("h").await;
    let (session, stamp, call): Held = world.key("h").unpack(rows[0].key()).unwrap();
    // The second of two parts. The record lacks the format byte of microqueue.
    let second = world.key("g").pack(&(session.as_slice(), stamp, call, 1));
    let ItemId::Commit { versionstamp, call } = held.id() else {
        panic!("items are in commit order");
    };
    let id = [&versionstamp.as_bytes()[..], &call.to_be_bytes()].concat();
    let part = [&[1, 0, 0, 0, 2][..], &id, &rows[0].value()[1..]].concat();
    world.write(rows[0].key(), None).await;
    world.write(&second, Some(&part)).await;
    let session = SessionId(session.try_into().unwrap());
    world
        .finds_and_repairs(&[Finding::BrokenGrant { session }])
        .await;
    let lost = world.ack(&held).await.unwrap_err();
    assert!(matches!(lost, Error::DeliveryLost { .. }));
    assert_eq!(world.values().await.len(), 3);
}

async fn an_item_in_two_places_is_reported(store: TestStore) {
    let (world, held, _consumer) = world_in_use(&store).await;
    let rows = world.rows("h").await;
    let part = world.key("h");
    let item = held.item_ref();
    let of_item: (Vec<u8>, keyspace::tuple::Versionstamp, u64) =
        part.unpack(rows[0].key()).unwrap();
    let copy = world.key("i").pack(&(of_item.1, of_item.2));
    world.write(&copy, Some(rows[0].value())).await;
    let audit = world.queue.audit(&world.runner).await.unwrap();
    let off = Finding::CounterOff {
        counter: "queued",
        stored: 2,
        counted: 3,
    };
    assert_eq!(audit.findings, [Finding::Twice { item }, off]);
}

async fn an_item_that_two_sessions_hold_is_reported(store: TestStore) {
    let (world, held, _consumer) = world_in_use(&store).await;
    let other = world.consumer().await;
    let row = world.rows("h").await.remove(0);
    let sessions = world.rows("s").await;
    let of_item: (Vec<u8>, keyspace::tuple::Versionstamp, u64) =
        world.key("h").unpack(row.key()).unwrap();
    let item = held.item_ref();
    for state in sessions {
        let session: Vec<u8> = world.key("s").unpack(state.key()).unwrap();
        let copy = (session.as_slice(), of_item.1.clone(), of_item.2);
        let copy = world.key("h").pack(&copy);
        world.write(&copy, Some(row.value())).await;
    }
    let off = Finding::CounterOff {
        counter: "held",
        stored: 1,
        counted: 2,
    };
    let audit = world.queue.audit(&world.runner).await.unwrap();
    assert_eq!(audit.findings, [Finding::Twice { item }, off]);
    drop(other);
}

/// More held items than one page of the audit has.
async fn items_of_many_sessions_that_are_gone_are_returned(store: TestStore) {
    let world = World::new(&store, Settings::default()).await;
    world.enqueue(0..250).await;
    let mut consumers = Vec::new();
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let consumer = world.consumer().await;
        let held = consumer.dequeue_batch(120).await.unwrap();
        assert_eq!(held.len(), 120);
        consumers.push((consumer, held));
    }
    for state in world.rows("s").await {
        let session: Vec<u8> = world.key("s").unpack(state.key()).unwrap();
        sessions.push(SessionId(session.try_into().unwrap()));
        world.write(state.key(), None).await;
    }
    let finding = |session| Finding::NoSession { session };
    let findings: Vec<_> = sessions.into_iter().map(finding).collect();
    assert_eq!(findings.len(), 2);
    world.finds_and_repairs(&findings).await;
    assert_eq!(world.values().await.len(), 250);
}

async fn a_repair_that_meets_a_damaged_row_goes_on_with_the_others(store: TestStore) {
    let (world, _held, _consumer) = world_in_use(&store).await;
    let item = world.rows("h").await.remove(0);
    let state = world.rows("s").await.remove(0);
    let bytes: Vec<u8> = world.key("s").unpack(state.key()).unwrap();
    let session = SessionId(bytes.try_into().unwrap());
    world.write(item.key(), Some(b"?")).await;
    world.write(state.key(), None).await;
    let counter = world.queue.subspace().pack(&("c", "dead"));
    world.write(&counter, Some(&3_i64.to_le_bytes())).await;
    let undecodable = Finding::Undecodable {
        key: Bytes::copy_from_slice(item.key()),
    };
    let off = Finding::CounterOff {
        counter: "dead",
        stored: 3,
        counted: 1,
    };
    let audit = world.queue.repair(&world.runner).await.unwrap();
    let findings = [Finding::NoSession { session }, off, undecodable.clone()];
    assert_eq!(audit.findings, findings);
    // The session was declared dead, and still holds the item.
    let audit = world.queue.audit(&world.runner).await.unwrap();
    assert_eq!(audit.findings, [undecodable]);
}
