//! Each time fires once, at whichever step a session ends and whatever other processes do at the same time.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use conformance::chaos::{Chaos, CommitFault, Fate, Faults, Landing, LandingPoint};
use conformance::stores::TestStore;
use microqueue::keyspace::{Code, Database, Environment, OwnedTransaction, Store};

use super::*;

conformance::on_every_store!(
    a_firing_that_ends_at_any_step_fires_once,
    a_firing_that_ends_with_its_commit_fires_once,
    a_firing_whose_commit_is_in_doubt_fires_once,
    of_two_processes_that_fire_at_once_one_does,
    a_change_during_a_firing_makes_it_fail,
);

/// Polls a future a number of times, and drops it. Returns `None` if it was not ready by then.
async fn poll_times<F: Future>(future: F, mut polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if polls == 0 {
            return Poll::Ready(None);
        }
        polls -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Returns a world whose store delays and fails as FoundationDB may, and another one whose store does not.
async fn faulty(
    store: &TestStore,
    seed: u64,
    faults: Faults,
) -> (ScheduleWorld<Chaos<Store>>, ScheduleWorld<Store>) {
    let store = store.fresh();
    let env = Environment::seeded(seed, Arc::new(ManualWall::new()));
    let chaos = Chaos::new(store.db.clone(), env, faults);
    let world = ScheduleWorld::on(&store, chaos, "2026-11-22T11:59:30Z").await;
    let quiet = ScheduleWorld::on(&store, store.db.clone(), "2026-11-22T11:59:30Z").await;
    assert_eq!(quiet.schedule("a", &minutely()).await, Scheduled::Created);
    quiet.set(NOON);
    (world, quiet)
}

async fn a_firing_that_ends_at_any_step_fires_once(store: TestStore) {
    let mut steps = 0;
    for polls in 0.. {
        let (world, quiet) = faulty(&store, 0, Faults::default()).await;
        // Delay the answers, so that none is ready at once.
        world
            .runner
            .database()
            .set_latency(Duration::from_micros(100));
        let keys = &*world.queue.keys;
        let fire = |tr| async move { fire_due(&tr, keys, None).await };
        world.set(NOON);
        // The process ends here. Requests that it has sent may still take effect at any later time.
        let fired = poll_times(world.runner.run(fire), polls).await;
        quiet.fire().await;
        assert_eq!(quiet.times().await, [utc(NOON)], "after {polls} polls");
        assert_eq!(quiet.fire().await, 0);
        quiet.check().await;
        if fired.is_some() {
            break;
        }
        steps = polls;
    }
    // The process has ended before each of the reads, and before and after it sent the commit.
    assert!(steps >= 3, "{steps}");
}

async fn a_firing_that_ends_with_its_commit_fires_once(store: TestStore) {
    let late = |before| {
        Fate::Late(Landing {
            attempts: 0,
            before,
        })
    };
    for fate in [
        Fate::Applied,
        Fate::Lost,
        late(LandingPoint::ReadVersion),
        late(LandingPoint::Commit),
    ] {
        let (world, quiet) = faulty(&store, 0, Faults::default()).await;
        world.set(NOON);
        let chaos = world.runner.database();
        chaos.script([CommitFault::Silent(fate)]);
        let keys = &*world.queue.keys;
        let fire = |tr| async move { fire_due(&tr, keys, None).await };
        let is_sent = async {
            while chaos.tally().commits == 0 {
                tokio::task::yield_now().await;
            }
        };
        // The process ends after it sent the commit.
        tokio::select! {
            biased;
            _ = world.runner.run(fire) => unreachable!("the commit is never answered"),
            () = is_sent => {}
        }
        // Another process fires on the same network, where the late commit lands.
        assert_eq!(
            world.fire().await,
            usize::from(fate == Fate::Lost),
            "{fate:?}"
        );
        assert_eq!(quiet.times().await, [utc(NOON)], "{fate:?}");
        quiet.check().await;
    }
}

async fn a_firing_whose_commit_is_in_doubt_fires_once(store: TestStore) {
    let mut faults = 0;
    for seed in 0..20 {
        let (world, quiet) = faulty(&store, seed, Faults::all(0.1)).await;
        let mut expected = Vec::new();
        for _ in 0..10 {
            world.pass(MINUTE);
            let time = utc(NOON) + MINUTE * u32::try_from(expected.len()).unwrap();
            expected.push(time);
            world.fire().await;
            world.fire().await;
        }
        assert_eq!(quiet.times().await, expected, "seed {seed}");
        quiet.check().await;
        faults += world.runner.database().tally().commits;
    }
    assert!(faults > 20, "{faults}");
}

async fn of_two_processes_that_fire_at_once_one_does(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    world.create("a", &minutely()).await;
    world.set(NOON);
    let mut one = store.db.begin().unwrap();
    let mut other = store.db.begin().unwrap();
    for tr in [&one, &other] {
        let fired = fire_due(tr, &world.queue.keys, None).await.unwrap();
        assert_eq!(fired.items, 1);
    }
    one.commit().await.unwrap();
    let refused = other.commit().await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::NOT_COMMITTED));
    assert_eq!(world.fire().await, 0);
    assert_eq!(world.times().await, [utc(NOON)]);
    world.check().await;
}

async fn a_change_during_a_firing_makes_it_fail(store: TestStore) {
    let later = &Schedule::new("30 * * * *");
    let job = &"other".to_owned();
    for is_removed in [true, false] {
        let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
        world.create("a", &minutely()).await;
        world.set(NOON);
        for fires_first in [false, true] {
            let queue = &world.queue;
            let mut firing = store.db.begin().unwrap();
            let mut changing = store.db.begin().unwrap();
            assert_eq!(fire_due(&firing, &queue.keys, None).await.unwrap().items, 1);
            if is_removed {
                assert!(queue.unschedule(&changing, "a").await.unwrap());
            } else {
                let changed = queue.schedule(&changing, "a", later, job).await;
                assert_eq!(changed.unwrap(), Scheduled::Changed);
            }
            let (first, last) = if fires_first {
                (&mut firing, &mut changing)
            } else {
                (&mut changing, &mut firing)
            };
            first.commit().await.unwrap();
            let refused = last.commit().await.unwrap_err();
            assert_eq!(refused.code(), Some(Code::NOT_COMMITTED));
            if fires_first {
                assert_eq!(world.times().await, [utc(NOON) + MINUTE]);
            } else {
                assert_eq!(world.times().await, []);
                assert_eq!(world.fire().await, 0);
                world.check().await;
                let _ = world.schedule("a", &minutely()).await;
                world.pass(MINUTE);
            }
        }
        world.check().await;
    }
}
