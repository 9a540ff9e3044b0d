//! The effect of each fault, one by one, and a test that the seed decides which faults happen.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use conformance::chaos::{
    Chaos, ChaosTransaction, CommitFault, Fate, FaultTally, Faults, Landing, LandingPoint,
};
use conformance::part::Part;
use conformance::stores::TestStore;
use futures::FutureExt;
use keyspace::env::ManualClock;
use keyspace::{
    Code, Commit, ConflictKind, Database, Embedded, Environment, Isolation, KeySelector,
    OwnedTransaction, RangeQuery, Result, Store, Transaction, TransactionOption,
};

conformance::on_every_store!(
    without_faults_nothing_goes_wrong,
    a_refused_commit_changes_nothing_and_can_be_retried,
    an_unknown_commit_has_happened_or_not,
    a_refused_commit_is_not_reported_as_unknown,
    a_reading_commit_meets_no_fault,
    a_late_commit_lands_when_enough_attempts_have_begun,
    the_retry_of_the_same_transaction_is_an_attempt,
    a_late_commit_keeps_the_read_version_it_had,
    a_silent_commit_is_never_answered,
    a_read_that_was_made_to_fail_fails_the_commit_too,
    an_early_watch_fires_without_a_change_but_not_before_the_commit,
    a_late_watch_fires_after_its_delay,
    options_that_survive_a_retry_survive_a_commit_that_was_taken_away,
    a_reset_makes_a_transaction_new_whose_commit_was_taken_away,
    one_seed_gives_one_course_of_faults,
    a_slow_store_takes_its_time_for_each_answer,
);

struct World {
    db: Part<Store>,
    chaos: Chaos<Part<Store>>,
    env: Environment,
}

fn world(store: &TestStore, seed: u64, faults: Faults) -> World {
    let db = store.fresh().part();
    let clock = Arc::new(ManualClock::moved_by_sleepers());
    let env = Environment::seeded(seed, clock);
    let chaos = Chaos::new(db.clone(), env.clone(), faults);
    World { db, chaos, env }
}

fn calm(store: &TestStore) -> World {
    world(store, 0, Faults::default())
}

fn code<T: std::fmt::Debug>(result: Result<T>) -> Option<Code> {
    result.unwrap_err().code()
}

async fn stored(db: &Part<Store>, key: &[u8]) -> Option<Vec<u8>> {
    let tr = db.begin().unwrap();
    let value = tr.get(key, Isolation::Snapshot).await.unwrap();
    value.map(|value| value.to_vec())
}

async fn set(db: &impl Database, key: &[u8], value: &[u8]) -> Result<Commit> {
    let mut tr = db.begin().unwrap();
    tr.set(key, value);
    tr.commit().await
}

fn late(attempts: u32, before: LandingPoint) -> CommitFault {
    CommitFault::Unknown(Fate::Late(Landing { attempts, before }))
}

#[test]
fn chaos_crosses_threads() {
    fn assert_shared<T: Send + Sync + 'static>() {}
    assert_shared::<Chaos<Embedded>>();
    assert_shared::<ChaosTransaction<Embedded>>();
}

async fn without_faults_nothing_goes_wrong(store: TestStore) {
    let World { db, chaos, .. } = calm(&store);
    let watch = chaos.begin().unwrap().watch(b"key");
    assert_eq!(code(watch.await), Some(Code::TRANSACTION_CANCELLED));
    let mut tr = chaos.begin().unwrap();
    assert!(tr.read_version().await.unwrap() > 0);
    let watch = tr.watch(b"key");
    let versionstamp = tr.versionstamp();
    tr.set(b"other", b"value");
    let commit = tr.commit().await.unwrap();
    assert_eq!(Some(versionstamp.await.unwrap()), commit.versionstamp);
    set(&db, b"key", b"value").await.unwrap();
    watch.await.unwrap();
    assert_eq!(chaos.tally(), FaultTally::default());
}

async fn a_refused_commit_changes_nothing_and_can_be_retried(store: TestStore) {
    for (fault, expected) in [
        (CommitFault::NotCommitted, Code::NOT_COMMITTED),
        (CommitFault::TooOld, Code::TRANSACTION_TOO_OLD),
    ] {
        let World { db, chaos, .. } = calm(&store);
        chaos.script([fault]);
        let mut tr = chaos.begin().unwrap();
        let versionstamp = tr.versionstamp();
        let watch = tr.watch(b"watched");
        tr.set(b"key", b"value");
        let error = tr.commit().await.unwrap_err();
        assert_eq!(error.code(), Some(expected));
        assert_eq!(
            code(versionstamp.await),
            Some(Code::TRANSACTION_INVALID_VERSION)
        );
        assert_eq!(code(watch.await), Some(expected));
        assert_eq!(stored(&db, b"key").await, None);

        tr.on_error(error).await.unwrap();
        let versionstamp = tr.versionstamp();
        let mut watch = Box::pin(tr.watch(b"watched"));
        assert!(watch.as_mut().now_or_never().is_none());
        tr.set(b"key", b"value");
        let commit = tr.commit().await.unwrap();
        assert_eq!(Some(versionstamp.await.unwrap()), commit.versionstamp);
        assert_eq!(stored(&db, b"key").await.unwrap(), b"value");
        set(&db, b"watched", b"value").await.unwrap();
        watch.await.unwrap();
    }
}

async fn an_unknown_commit_has_happened_or_not(store: TestStore) {
    for (fate, happened) in [(Fate::Applied, true), (Fate::Lost, false)] {
        let World { db, chaos, .. } = calm(&store);
        chaos.script([CommitFault::Unknown(fate)]);
        let mut tr = chaos.begin().unwrap();
        let watch = tr.watch(b"watched");
        tr.set(b"key", b"value");
        let error = tr.commit().await.unwrap_err();
        assert_eq!(error.code(), Some(Code::COMMIT_UNKNOWN_RESULT));
        assert_eq!(code(watch.await), Some(Code::COMMIT_UNKNOWN_RESULT));
        assert_eq!(stored(&db, b"key").await.is_some(), happened);

        tr.on_error(error).await.unwrap();
        let value = tr.get(b"key", Isolation::Serializable).await.unwrap();
        assert_eq!(value.is_some(), happened);
        tr.commit().await.unwrap();
    }
}

async fn a_refused_commit_is_not_reported_as_unknown(store: TestStore) {
    let World { db, chaos, .. } = calm(&store);
    chaos.script([CommitFault::Unknown(Fate::Applied)]);
    let mut tr = chaos.begin().unwrap();
    tr.get(b"key", Isolation::Serializable).await.unwrap();
    tr.set(b"other", b"value");
    set(&db, b"key", b"changed").await.unwrap();
    assert_eq!(code(tr.commit().await), Some(Code::NOT_COMMITTED));
}

async fn a_reading_commit_meets_no_fault(store: TestStore) {
    let World { chaos, .. } = calm(&store);
    chaos.script([CommitFault::NotCommitted]);
    let mut tr = chaos.begin().unwrap();
    tr.get(b"key", Isolation::Serializable).await.unwrap();
    assert_eq!(tr.commit().await.unwrap(), Commit::READ_ONLY);
    assert_eq!(
        code(set(&chaos, b"key", b"value").await),
        Some(Code::NOT_COMMITTED)
    );
    let mut tr = chaos.begin().unwrap();
    chaos.script([CommitFault::NotCommitted]);
    tr.add_conflict_key(ConflictKind::Write, b"key").unwrap();
    assert_eq!(code(tr.commit().await), Some(Code::NOT_COMMITTED));
}

async fn a_late_commit_lands_when_enough_attempts_have_begun(store: TestStore) {
    for attempts in 0..4 {
        for before in [LandingPoint::ReadVersion, LandingPoint::Commit] {
            let World { db, chaos, .. } = calm(&store);
            chaos.script([late(attempts, before)]);
            assert_eq!(
                code(set(&chaos, b"key", b"value").await),
                Some(Code::COMMIT_UNKNOWN_RESULT)
            );
            for attempt in 1..=attempts.max(1) {
                let due = attempt >= attempts;
                assert_eq!(stored(&db, b"key").await, None);
                let mut tr = chaos.begin().unwrap();
                tr.read_version().await.unwrap();
                let at_read_version = due && before == LandingPoint::ReadVersion;
                assert_eq!(stored(&db, b"key").await.is_some(), at_read_version);
                tr.commit().await.unwrap();
                assert_eq!(stored(&db, b"key").await.is_some(), due);
            }
            assert_eq!((chaos.tally().landed, chaos.tally().refused), (1, 0));
        }
    }
}

async fn the_retry_of_the_same_transaction_is_an_attempt(store: TestStore) {
    let World { db, chaos, .. } = calm(&store);
    chaos.script([late(1, LandingPoint::ReadVersion)]);
    let mut tr = chaos.begin().unwrap();
    tr.set(b"key", b"value");
    let error = tr.commit().await.unwrap_err();
    tr.on_error(error).await.unwrap();
    assert_eq!(stored(&db, b"key").await, None);
    tr.read_version().await.unwrap();
    assert_eq!(stored(&db, b"key").await.unwrap(), b"value");
}

async fn a_late_commit_keeps_the_read_version_it_had(store: TestStore) {
    for read_first in [true, false] {
        let World { db, chaos, .. } = calm(&store);
        chaos.script([late(100, LandingPoint::ReadVersion)]);
        let mut tr = chaos.begin().unwrap();
        if read_first {
            tr.read_version().await.unwrap();
        }
        tr.add_conflict_key(ConflictKind::Read, b"key").unwrap();
        tr.set(b"other", b"late");
        tr.commit().await.unwrap_err();
        set(&db, b"key", b"changed").await.unwrap();
        chaos.flush().await;
        // Without a read version it gets one at the landing, and does not see the change as a conflict.
        assert_eq!(stored(&db, b"other").await.is_none(), read_first);
        assert_eq!(chaos.tally().refused, usize::from(read_first));
        assert_eq!(chaos.tally().landed, usize::from(!read_first));
    }
}

async fn a_silent_commit_is_never_answered(store: TestStore) {
    for (fate, happened) in [
        (Fate::Applied, true),
        (Fate::Lost, false),
        (
            Fate::Late(Landing {
                attempts: 0,
                before: LandingPoint::ReadVersion,
            }),
            true,
        ),
    ] {
        let World { db, chaos, .. } = calm(&store);
        chaos.script([CommitFault::Silent(fate)]);
        let mut tr = chaos.begin().unwrap();
        tr.set(b"key", b"value");
        let mut commit = Box::pin(tr.commit());
        assert!(commit.as_mut().now_or_never().is_none());
        while happened && stored(&db, b"key").await.is_none() {
            assert!(commit.as_mut().now_or_never().is_none());
            chaos.begin().unwrap().read_version().await.unwrap();
            tokio::task::yield_now().await;
        }
        drop(commit);
        assert_eq!(stored(&db, b"key").await.is_some(), happened);
    }
}

async fn a_read_that_was_made_to_fail_fails_the_commit_too(store: TestStore) {
    for (faults, expected) in [
        (
            Faults {
                too_old_at_read: 1.0,
                ..Faults::default()
            },
            Code::TRANSACTION_TOO_OLD,
        ),
        (
            Faults {
                future_version: 1.0,
                ..Faults::default()
            },
            Code::FUTURE_VERSION,
        ),
    ] {
        let World { chaos, .. } = world(&store, 0, faults);
        let tr = || chaos.begin().unwrap();
        let isolation = Isolation::Serializable;
        let selector = KeySelector::last_less_than(&b"key"[..]);
        let range = RangeQuery::keys(&b"a"[..], &b"b"[..]);
        assert_eq!(code(tr().get(b"key", isolation).await), Some(expected));
        assert_eq!(
            code(tr().get_key(&selector, isolation).await),
            Some(expected)
        );
        assert_eq!(
            code(tr().get_range(&range, isolation).await),
            Some(expected)
        );

        let mut tr = tr();
        drop(tr.get(b"key", isolation));
        let error = tr.commit().await.unwrap_err();
        assert_eq!(error.code(), Some(expected));
        tr.on_error(error).await.unwrap();
        tr.commit().await.unwrap();
        assert_eq!(chaos.tally().reads, 4);
    }
}

async fn an_early_watch_fires_without_a_change_but_not_before_the_commit(store: TestStore) {
    let World { chaos, .. } = world(
        &store,
        0,
        Faults {
            early_watch: 1.0,
            ..Faults::default()
        },
    );
    let mut tr = chaos.begin().unwrap();
    let mut watch = Box::pin(tr.watch(b"key"));
    assert!(watch.as_mut().now_or_never().is_none());
    tr.commit().await.unwrap();
    watch.await.unwrap();
    assert_eq!(chaos.tally().watches, 1);
}

async fn a_late_watch_fires_after_its_delay(store: TestStore) {
    let max_watch_delay = Duration::from_secs(5);
    let World { db, chaos, env } = world(
        &store,
        3,
        Faults {
            late_watch: 1.0,
            max_watch_delay,
            ..Faults::default()
        },
    );
    let mut tr = chaos.begin().unwrap();
    let watch = tr.watch(b"key");
    tr.commit().await.unwrap();
    set(&db, b"key", b"value").await.unwrap();
    let began = env.now();
    watch.await.unwrap();
    let delay = env.now() - began;
    assert!(Duration::ZERO < delay && delay <= max_watch_delay);
}

async fn options_that_survive_a_retry_survive_a_commit_that_was_taken_away(store: TestStore) {
    let World { chaos, .. } = calm(&store);
    chaos.script([
        late(100, LandingPoint::ReadVersion),
        CommitFault::NotCommitted,
    ]);
    let mut tr = chaos.begin().unwrap();
    tr.set_option(TransactionOption::RetryLimit(Some(1)))
        .unwrap();
    tr.set(b"key", b"value");
    let error = tr.commit().await.unwrap_err();
    assert_eq!(
        code(tr.get(b"key", Isolation::Snapshot).await),
        Some(Code::USED_DURING_COMMIT)
    );
    tr.on_error(error).await.unwrap();
    tr.set(b"key", b"value");
    let error = tr.commit().await.unwrap_err();
    assert_eq!(code(tr.on_error(error).await), Some(Code::NOT_COMMITTED));
    assert_eq!(
        code(tr.get(b"key", Isolation::Snapshot).await),
        Some(Code::TRANSACTION_CANCELLED)
    );
    tr.reset();
    tr.set(b"key", b"value");
    tr.commit().await.unwrap();
}

async fn a_reset_makes_a_transaction_new_whose_commit_was_taken_away(store: TestStore) {
    let World { db, chaos, .. } = calm(&store);
    chaos.script([
        CommitFault::Unknown(Fate::Applied),
        CommitFault::Unknown(Fate::Applied),
    ]);
    let mut tr = chaos.begin().unwrap();
    tr.set_option(TransactionOption::RetryLimit(Some(0)))
        .unwrap();
    tr.set(b"key", b"value");
    tr.commit().await.unwrap_err();
    tr.reset();
    tr.set(b"other", b"value");
    let error = tr.commit().await.unwrap_err();
    assert_eq!(stored(&db, b"other").await.unwrap(), b"value");
    // The limit was reset.
    tr.on_error(error).await.unwrap();
    tr.cancel();
    assert_eq!(code(tr.commit().await), Some(Code::TRANSACTION_CANCELLED));
}

async fn one_seed_gives_one_course_of_faults(store: TestStore) {
    async fn course(store: &TestStore, seed: u64) -> (Vec<Option<Code>>, FaultTally) {
        let World { chaos, .. } = world(store, seed, Faults::all(0.1));
        let mut codes = Vec::new();
        for number in 0..200u8 {
            let mut tr = chaos.begin().unwrap();
            let read = tr.get(b"key", Isolation::Snapshot).await;
            codes.push(read.err().and_then(|error| error.code()));
            tr.set(b"key", &[number]);
            codes.push(tr.commit().await.err().and_then(|error| error.code()));
        }
        chaos.flush().await;
        (codes, chaos.tally())
    }
    let (codes, tally) = course(&store, 1).await;
    assert_eq!(course(&store, 1).await, (codes.clone(), tally));
    assert_ne!(codes, course(&store, 2).await.0);
    for code in [
        Code::NOT_COMMITTED,
        Code::TRANSACTION_TOO_OLD,
        Code::COMMIT_UNKNOWN_RESULT,
        Code::FUTURE_VERSION,
    ] {
        assert!(codes.contains(&Some(code)), "{code:?}");
    }
    assert!(tally.landed > 0);
}

async fn a_slow_store_takes_its_time_for_each_answer(store: TestStore) {
    const LATENCY: Duration = Duration::from_millis(70);
    let World { chaos, env, .. } = calm(&store);
    chaos.set_latency(LATENCY);
    let mut tr = chaos.begin().unwrap();
    tr.read_version().await.unwrap();
    assert_eq!(env.now(), LATENCY);
    tr.get(b"key", Isolation::Snapshot).await.unwrap();
    assert_eq!(env.now(), 2 * LATENCY);
    // Without a write, the store does not have to be asked.
    tr.commit().await.unwrap();
    assert_eq!(env.now(), 2 * LATENCY);
    set(&chaos, b"key", b"value").await.unwrap();
    assert_eq!(env.now(), 3 * LATENCY);
    chaos.set_latency(Duration::ZERO);
    set(&chaos, b"key", b"value").await.unwrap();
    assert_eq!(env.now(), 3 * LATENCY);
}
