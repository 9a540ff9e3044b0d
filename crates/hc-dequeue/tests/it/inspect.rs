//! Sessions are listed with what they hold, and an inspection makes no other transaction fail.

use std::time::{Duration, UNIX_EPOCH};

use crate::common::World;
use conformance::stores::TestStore;
use hc_dequeue::microqueue::MicroQueue;
use hc_dequeue::session::{Life, SessionId};
use hc_dequeue::{Enqueue, Error, PlaceKind, Queue, SessionPage, SessionState};
use keyspace::codec::Raw;
use keyspace::tuple::Versionstamp as TupleVersionstamp;
use keyspace::{Bytes, Database, OwnedTransaction, Transaction, Tx};

conformance::on_every_store!(
    the_items_of_a_session_are_counted_up_to_a_bound,
    a_session_is_shown_with_its_life_its_heartbeat_and_its_requests,
    sessions_are_listed_page_by_page_and_damaged_ones_with_the_reason,
    an_inspection_makes_no_other_transaction_fail,
);

const LEASE: Duration = Duration::from_secs(60);

impl World {
    fn session_key(&self, part: &str, session: SessionId) -> Vec<u8> {
        let key = (part, session.0.as_slice());
        self.queue.subspace().pack(&key)
    }

    async fn open_session(&self, session: SessionId) {
        let sessions = self.queue.sessions();
        let open = |tr: Tx<_>| async move {
            sessions.open(&tr, session, LEASE, UNIX_EPOCH);
            Ok::<_, Error>(())
        };
        self.runner.run(open).await.unwrap();
    }

    async fn page(&self, after: Option<SessionId>, limit: usize) -> SessionPage {
        let queue = &self.queue;
        let page = |tr| async move { queue.session_states(&tr, after, limit).await };
        self.runner.run(page).await.unwrap()
    }

    /// Returns the state of the only session.
    async fn only_session(&self) -> SessionState {
        let page = self.page(None, 10).await;
        assert_eq!((page.sessions.len(), page.next), (1, None));
        page.sessions[0].value.clone().unwrap()
    }
}

/// Writes items that a session holds, or, with the number of a part of a grant, that were granted to it.
async fn hold(world: &World, session: SessionId, calls: std::ops::Range<u64>, bytes: usize) {
    let held = &world.queue.subspace().subspace(&"h");
    let payload = &vec![7; bytes];
    // Few rows at a time, so that a transaction does not get too large.
    for calls in calls.collect::<Vec<_>>().chunks(500) {
        let write = |tr: Tx<_>| async move {
            for call in calls {
                let stamp = TupleVersionstamp::complete([1; 10], 0);
                let key = held.pack(&(session.0.as_slice(), stamp, *call));
                // The time of the grant in two bytes.
                let granted = 2_000 - *call as u16;
                let record = [&[1, 1, 12, 0, 2][..], &granted.to_be_bytes(), &[0], payload];
                tr.set(&key, &record.concat());
            }
            Ok::<_, Error>(())
        };
        world.runner.run(write).await.unwrap();
    }
}

async fn the_items_of_a_session_are_counted_up_to_a_bound(store: TestStore) {
    let session = SessionId([7; 16]);
    let world = World::with_defaults(&store).await;
    world.open_session(session).await;
    let counted = async |calls, bytes| {
        hold(&world, session, calls, bytes).await;
        let state = world.only_session().await;
        (state.held, state.holds_more)
    };
    assert_eq!(counted(0..0, 0).await, (0, false));
    // More bytes than one batch of a range read has.
    assert_eq!(counted(0..100, 2_000).await, (100, false));
    let oldest = world.only_session().await.oldest_grant;
    assert_eq!(oldest, Some(UNIX_EPOCH + Duration::from_millis(1_901)));
    assert_eq!(counted(100..999, 1).await, (999, false));
    assert_eq!(counted(999..1_000, 1).await, (1_000, false));
    assert_eq!(counted(1_000..1_001, 1).await, (1_000, true));
    let (held, has_more) = counted(0..100, 20_000).await;
    assert!((40..60).contains(&held) && has_more, "{held}");
}

async fn a_session_is_shown_with_its_life_its_heartbeat_and_its_requests(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let named = |name: u8| SessionId([name; 16]);
    for name in 1..4 {
        world.open_session(named(name)).await;
    }
    // Format, dead, lease in milliseconds; and no heartbeat.
    let dead = [&[1, 0][..], &60_000_u64.to_be_bytes()].concat();
    world
        .write(&world.session_key("s", named(2)), Some(&dead))
        .await;
    let sessions = world.queue.sessions();
    let key = &world.session_key("b", named(3));
    assert_eq!(world.queue.describe_key(key), Some("heartbeat"));
    assert_eq!(world.queue.describe_key(b"elsewhere"), None);
    let clear = |tr: Tx<_>| async move {
        tr.clear(key);
        Ok::<_, Error>(())
    };
    world.runner.run(clear).await.unwrap();
    let requests = world.queue.subspace().subspace(&"r");
    let requests = MicroQueue::<Bytes, Raw>::new(requests);
    let mut records = Vec::new();
    for (session, wanted) in [(named(1), 5_u32), (named(3), 2), (named(1), 6)] {
        let record = [&[1][..], &session.0, &wanted.to_be_bytes(), &[0; 4]].concat();
        records.push(Bytes::from(record));
    }
    records.push(Bytes::from("damaged"));
    let requests = &requests;
    let records = &records[..];
    let enqueue = |tr: Tx<_>| async move { requests.enqueue_all(&tr, records).await };
    world.runner.run(enqueue).await.unwrap();

    assert_eq!(sessions.subspace(), world.queue.subspace());
    let page = world.page(None, 10).await;
    let states: Vec<_> = page
        .sessions
        .into_iter()
        .map(|one| one.value.unwrap())
        .collect();
    for (state, (name, life, wall, wanted)) in states.iter().zip([
        (1, Life::Alive, Some(UNIX_EPOCH), 11),
        (2, Life::Dead, Some(UNIX_EPOCH), 0),
        (3, Life::Alive, None, 2),
    ]) {
        assert_eq!((state.session, state.life), (named(name), life));
        assert_eq!((state.wall, state.lease), (wall, LEASE));
        assert_eq!(
            (state.silent.is_some(), state.wanted),
            (wall.is_some(), wanted)
        );
    }
    assert_eq!(states.len(), 3);
}

async fn sessions_are_listed_page_by_page_and_damaged_ones_with_the_reason(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let named = |name: u8| SessionId([name; 16]);
    for name in 1..=5 {
        world.open_session(named(name)).await;
    }
    world
        .write(&world.session_key("s", named(2)), Some(b"?"))
        .await;
    world
        .write(&world.session_key("b", named(4)), Some(b"?"))
        .await;
    // Keys that name no session, before the others and between them.
    for key in [&[0][..], &[3]] {
        let key = world.queue.subspace().pack(&("s", key));
        world.write(&key, Some(b"?")).await;
    }
    for limit in 1..7 {
        let mut listed = Vec::new();
        let mut after = None;
        loop {
            let page = world.page(after, limit).await;
            assert!(page.sessions.len() <= limit);
            listed.extend(page.sessions);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let ids: Vec<_> = listed.iter().map(|one| one.id).collect();
        assert_eq!(ids, [1, 2, 3, 4, 5].map(named));
        for (name, part) in [(2, "s"), (4, "b")] {
            let damaged = listed[name - 1].value.as_ref().unwrap_err();
            assert_eq!(damaged.key, world.session_key(part, ids[name - 1]));
        }
        let whole = listed.iter().filter(|one| one.value.is_ok());
        assert_eq!(whole.count(), 3);
    }
    assert_eq!(world.page(None, 0).await.sessions, []);
}

async fn an_inspection_makes_no_other_transaction_fail(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    world.enqueue(0..3).await;
    world
        .enqueue_ref(3, &Enqueue::new().with_delay(LEASE))
        .await;
    let consumer = world.consumer().await;
    let mut tr = store.db.begin().unwrap();
    for place in PlaceKind::ALL {
        queue.list(&tr, place, None, 10).await.unwrap();
    }
    queue.session_states(&tr, None, 10).await.unwrap();
    queue.is_paused(&tr).await.unwrap();
    queue.stats(&tr).await.unwrap();
    queue.settings(&tr).await.unwrap();
    queue.verify_order(&tr).await.unwrap();
    Queue::inspect(&world.runner, queue.subspace().clone())
        .await
        .unwrap();

    // Everything that was read changes.
    let other = world.consumer().await;
    let held = consumer.dequeue().await.unwrap().unwrap();
    let done = consumer.dequeue().await.unwrap().unwrap();
    done.discard("no good").await.unwrap();
    world.enqueue(4..6).await;
    let _ = queue.clear(&world.runner).await.unwrap();
    let change = |tr: Tx<_>| async move {
        queue.pause(&tr);
        queue.configure(&tr, &crate::common::settings()).await
    };
    world.runner.run(change).await.unwrap();
    // A transaction that only reads never conflicts.
    tr.set(&store.root.pack(&"other"), b"");
    tr.commit().await.unwrap();
    drop((held, other));
}
