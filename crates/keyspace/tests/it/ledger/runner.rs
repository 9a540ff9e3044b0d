//! The promises of the retry loop, apart from the ledger's protocol.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use conformance::chaos::{CommitFault, Fate};
use conformance::stores::TestStore;
use keyspace::{
    Code, Commit, ConflictKind, Database, Embedded, Error, Isolation, KeyValue, MutationOp,
    OwnedTransaction, RangeQuery, Receipt, RunOptions, Runner, Transaction, TransactionOption, Tx,
    VersionClock, read_all,
};

use crate::ledger::log;
use crate::ledger::saboteur::ledgers;
use crate::ledger::world::{Failure, TestDatabase, World};

conformance::on_every_store!(
    a_writing_operation_records_itself_in_its_slot,
    a_reading_operation_leaves_its_slot_alone,
    an_operation_whose_outcome_was_found_out_leaves_nothing_to_settle,
    a_write_of_an_earlier_attempt_does_not_make_a_reading_attempt_write,
    every_kind_of_write_is_recorded,
    operations_one_after_the_other_share_a_slot,
    operations_at_the_same_time_have_slots_of_their_own,
    an_idempotent_runner_of_a_runner_writes_only_what_its_closures_write,
    without_the_ledger_an_applied_commit_happens_twice,
    an_attempt_says_what_the_previous_one_failed_with,
    a_retryable_error_of_the_closure_runs_it_again,
    any_other_error_of_the_closure_is_the_answer,
    a_permanent_refusal_is_returned,
    a_permanent_refusal_is_returned_even_after_an_unknown_commit,
    a_handle_kept_past_the_closure_commits_nothing_and_is_cancelled,
    a_handle_kept_by_an_attempt_in_doubt_leaves_no_doubt,
    a_watch_may_leave_the_closure,
    the_attempt_limit_ends_in_the_last_error,
    the_last_error_is_the_closures_own,
    backoff_is_limited_by_the_longest_delay,
    a_closure_that_reads_much_lets_other_tasks_run,
);

type TestTx = Tx<<TestDatabase as Database>::Transaction>;

async fn ledger_rows(db: &impl Database) -> Vec<KeyValue> {
    let (begin, end) = ledgers().range();
    let tr = db.begin().unwrap();
    read_all(&tr, RangeQuery::keys(begin, end), Isolation::Snapshot)
        .await
        .unwrap()
}

async fn get(db: &impl Database, key: &[u8]) -> Option<Vec<u8>> {
    let tr = db.begin().unwrap();
    let value = tr.get(key, Isolation::Snapshot).await.unwrap();
    value.map(|value| value.to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_of_any_database_can_be_spawned() {
    fn spawn<D: Database>(runner: Runner<D>) -> tokio::task::JoinHandle<Result<u32, Error>> {
        tokio::spawn(async move {
            runner
                .run(|tr| async move {
                    let attempt = tr.attempt();
                    let read = tr.get(b"key", Isolation::Serializable);
                    tr.set(b"key", b"value");
                    read.await?;
                    Ok(attempt.number)
                })
                .await
        })
    }
    let runner = Runner::new(keyspace::open("memory:").unwrap());
    assert_eq!(spawn(runner).await.unwrap().unwrap(), 1);
}

#[test]
fn runners_and_their_futures_cross_threads() {
    fn assert_shared<T: Send + Sync + 'static>() {}
    fn assert_send<T: Send>(_: impl FnOnce() -> T) {}
    fn upkeep<D: Database>(runner: &Runner<D>, clock: &VersionClock) {
        assert_send(|| runner.receipt());
        assert_send(|| runner.close());
        assert_send(|| runner.sweep(clock));
    }
    fn foreign<T: Transaction>(receipt: &Receipt, tr: &T) {
        assert_send(|| receipt.resolve(tr));
    }
    assert_shared::<Runner<Embedded>>();
    assert_shared::<Receipt>();
    let _ = upkeep::<Embedded>;
    let _ = foreign::<Tx<<Embedded as Database>::Transaction>>;
}

async fn a_writing_operation_records_itself_in_its_slot(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    let ((), commit) = runner
        .run_committed(|tr| async move {
            tr.set(b"key", b"value");
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
    let rows = ledger_rows(&world.db).await;
    assert_eq!(rows.len(), 1);
    let mut record = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\x01".to_vec();
    record.extend_from_slice(commit.versionstamp.unwrap().as_bytes());
    assert_eq!(rows[0].value(), record);
}

async fn a_reading_operation_leaves_its_slot_alone(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    let before = ledger_rows(&world.db).await;
    let (value, commit) = runner
        .run_committed(|tr| async move {
            tr.add_conflict_key(ConflictKind::Read, b"other")?;
            tr.get(b"key", Isolation::Serializable).await
        })
        .await
        .unwrap();
    assert_eq!((value, commit), (None, Commit::READ_ONLY));
    assert_eq!(ledger_rows(&world.db).await, before);
}

async fn an_operation_whose_outcome_was_found_out_leaves_nothing_to_settle(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    for fate in [Fate::Applied, Fate::Lost] {
        world.chaos.script([CommitFault::Unknown(fate)]);
        let write = runner.run(|tr| async move {
            tr.set(b"key", b"value");
            Ok::<_, Error>(())
        });
        write.await.unwrap();
        let before = ledger_rows(&world.db).await;
        let read = runner.run(|_| async { Ok::<_, Error>(()) });
        read.await.unwrap();
        assert_eq!(ledger_rows(&world.db).await, before);
    }
}

async fn a_write_of_an_earlier_attempt_does_not_make_a_reading_attempt_write(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    let before = ledger_rows(&world.db).await;
    world.chaos.script([CommitFault::NotCommitted]);
    let ((), commit) = runner
        .run_committed(|tr| async move {
            let attempt = tr.attempt();
            if attempt.number == 1 {
                tr.set(b"key", b"value");
            }
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
    assert_eq!(commit, Commit::READ_ONLY);
    assert_eq!(ledger_rows(&world.db).await, before);
}

async fn every_kind_of_write_is_recorded(store: TestStore) {
    let writes: [fn(&TestTx); 5] = [
        |tr| tr.set(b"key", b"value"),
        |tr| tr.clear(b"key"),
        |tr| tr.clear_range(b"a", b"b"),
        |tr| tr.atomic(MutationOp::Add, b"key", b"\x01"),
        |tr| tr.add_conflict_key(ConflictKind::Write, b"key").unwrap(),
    ];
    for write in writes {
        let world = World::calm(&store).await;
        let runner = world.runner().await;
        let before = ledger_rows(&world.db).await;
        runner
            .run(|tr| async move {
                write(&tr);
                Ok::<_, Error>(())
            })
            .await
            .unwrap();
        assert_ne!(ledger_rows(&world.db).await, before);
    }
}

async fn operations_one_after_the_other_share_a_slot(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    for operation in 0..20 {
        let append = runner.run(|tr| async move {
            log::append(&tr, operation, 1);
            Ok::<_, Error>(())
        });
        append.await.unwrap();
    }
    assert_eq!(ledger_rows(&world.db).await.len(), 1);
}

async fn operations_at_the_same_time_have_slots_of_their_own(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = &world.runner().await;
    let operations = (0..10).map(|operation| {
        runner.run(move |tr| async move {
            tokio::task::yield_now().await;
            log::append(&tr, operation, 1);
            Ok::<_, Error>(())
        })
    });
    futures::future::try_join_all(operations).await.unwrap();
    assert_eq!(ledger_rows(&world.db).await.len(), 10);
    assert_eq!(log::stored_items(&world.db).await.len(), 10);
}

async fn an_idempotent_runner_of_a_runner_writes_only_what_its_closures_write(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = Runner::with_options(world.saboteur.clone(), world.options());
    let add = |tr: TestTx| async move {
        log::append(&tr, 1, 1);
        Ok::<_, Error>(())
    };
    runner.idempotent().run(add).await.unwrap();
    assert_eq!(log::stored_items(&world.db).await.len(), 1);
    assert_eq!(ledger_rows(&world.db).await, []);
    // The runner itself still has its ledger.
    runner.run(add).await.unwrap();
    assert_ne!(ledger_rows(&world.db).await, []);
}

async fn without_the_ledger_an_applied_commit_happens_twice(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = Runner::with_options(world.saboteur.clone(), world.options()).idempotent();
    world.chaos.script([CommitFault::Unknown(Fate::Applied)]);
    let flags = &Mutex::new(Vec::new());
    runner
        .run(|tr| async move {
            let attempt = tr.attempt();
            flags.lock().unwrap().push(attempt.after);
            log::append(&tr, 1, attempt.number);
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
    assert_eq!(
        *flags.lock().unwrap(),
        [None, Some(Code::COMMIT_UNKNOWN_RESULT)]
    );
    assert_eq!(log::stored_items(&world.db).await.len(), 2);
    assert_eq!(ledger_rows(&world.db).await, []);
}

async fn an_attempt_says_what_the_previous_one_failed_with(store: TestStore) {
    for exactly_once in [true, false] {
        let world = World::calm(&store).await;
        let options = world.options().with_exactly_once(exactly_once);
        let runner = world.runner_with(options).await;
        world.chaos.script([
            CommitFault::NotCommitted,
            CommitFault::Unknown(Fate::Lost),
            CommitFault::TooOld,
            CommitFault::NotCommitted,
        ]);
        let attempts = &Mutex::new(Vec::new());
        runner
            .run(|tr| async move {
                let attempt = tr.attempt();
                attempts
                    .lock()
                    .unwrap()
                    .push((attempt.number, attempt.after));
                tr.set(b"key", b"value");
                Ok::<_, Error>(())
            })
            .await
            .unwrap();
        assert_eq!(
            *attempts.lock().unwrap(),
            [
                (1, None),
                (2, Some(Code::NOT_COMMITTED)),
                (3, Some(Code::COMMIT_UNKNOWN_RESULT)),
                (4, Some(Code::TRANSACTION_TOO_OLD)),
                (5, Some(Code::NOT_COMMITTED)),
            ]
        );
    }
}

async fn a_retryable_error_of_the_closure_runs_it_again(store: TestStore) {
    #[derive(Debug, thiserror::Error)]
    #[error("deep inside")]
    struct Wrapped(#[from] Error);

    let world = World::calm(&store).await;
    let runner = world.runner().await;
    let number = runner
        .run(|tr| async move {
            let attempt = tr.attempt();
            tr.set(b"key", &[attempt.number as u8]);
            if attempt.number < 3 {
                return Err(Wrapped(Code::FUTURE_VERSION.into()));
            }
            Ok(attempt.number)
        })
        .await
        .unwrap();
    assert_eq!(number, 3);
    assert_eq!(get(&world.db, b"key").await.unwrap(), [3]);
}

async fn any_other_error_of_the_closure_is_the_answer(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    let runs = &AtomicU32::new(0);
    let before = ledger_rows(&world.db).await;
    let answer = runner
        .run(|tr| async move {
            runs.fetch_add(1, Ordering::Relaxed);
            tr.set(b"key", b"value");
            Err::<(), _>(Failure::Refused)
        })
        .await;
    assert!(matches!(answer, Err(Failure::Refused)));
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!(get(&world.db, b"key").await, None);
    assert_eq!(ledger_rows(&world.db).await, before);
}

async fn a_permanent_refusal_is_returned(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    let answer = runner
        .run(|tr| async move {
            tr.set(b"key", &[0; keyspace::limits::MAX_VALUE_BYTES + 1]);
            Ok::<_, Error>(())
        })
        .await;
    assert_eq!(answer.unwrap_err().code(), Some(Code::VALUE_TOO_LARGE));
    assert_eq!(get(&world.db, b"key").await, None);
}

async fn a_permanent_refusal_is_returned_even_after_an_unknown_commit(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    world.chaos.script([CommitFault::Unknown(Fate::Lost)]);
    let answer = runner
        .run(|tr| async move {
            let attempt = tr.attempt();
            let value_bytes = match attempt.number {
                1 => 1,
                _ => keyspace::limits::MAX_VALUE_BYTES + 1,
            };
            tr.set(b"key", &vec![0; value_bytes]);
            Ok::<_, Error>(())
        })
        .await;
    assert_eq!(answer.unwrap_err().code(), Some(Code::VALUE_TOO_LARGE));
    assert_eq!(get(&world.db, b"key").await, None);
}

async fn a_handle_kept_past_the_closure_commits_nothing_and_is_cancelled(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    let kept = &Mutex::new(None);
    let answer = runner
        .run(|tr| async move {
            tr.set(b"key", b"value");
            *kept.lock().unwrap() = Some(tr);
            Ok::<_, Error>(())
        })
        .await;
    assert!(matches!(answer, Err(Error::HandleKept)));
    assert_eq!(get(&world.db, b"key").await, None);

    let tr = kept.lock().unwrap().take().unwrap();
    let cancelled = Some(Code::TRANSACTION_CANCELLED);
    assert_eq!(
        tr.get(b"key", Isolation::Snapshot)
            .await
            .unwrap_err()
            .code(),
        cancelled
    );
    assert_eq!(tr.read_version().await.unwrap_err().code(), cancelled);
    assert_eq!(tr.watch(b"key").await.unwrap_err().code(), cancelled);
    let conflict = tr.add_conflict_key(ConflictKind::Write, b"key");
    assert_eq!(conflict.unwrap_err().code(), cancelled);
    let option = tr.set_option(TransactionOption::SnapshotRywDisable);
    assert_eq!(option.unwrap_err().code(), cancelled);
    tr.set(b"key", b"late");
    drop(tr);
    assert_eq!(get(&world.db, b"key").await, None);
}

async fn a_handle_kept_by_an_attempt_in_doubt_leaves_no_doubt(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    let kept = &Mutex::new(None);
    for (fate, happened) in [(Fate::Lost, false), (Fate::Applied, true)] {
        world.chaos.script([CommitFault::Unknown(fate)]);
        let answer = runner
            .run(|tr| async move {
                let attempt = tr.attempt();
                tr.set(b"key", b"value");
                if attempt.number > 1 {
                    *kept.lock().unwrap() = Some(tr);
                }
                Ok::<_, Error>(())
            })
            .await;
        assert_eq!(answer.is_ok(), happened);
        if let Err(error) = answer {
            assert!(matches!(error, Error::HandleKept));
        }
        assert_eq!(get(&world.db, b"key").await.is_some(), happened);
    }
}

async fn a_watch_may_leave_the_closure(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    let watch = runner.run(|tr| async move { Ok::<_, Error>(tr.watch(b"key")) });
    // The future of a watch is large, and so is a future that returns it.
    let watch = Box::pin(watch).await.unwrap();
    let mut tr = world.db.begin().unwrap();
    tr.set(b"key", b"changed");
    tr.commit().await.unwrap();
    watch.await.unwrap();
}

async fn the_attempt_limit_ends_in_the_last_error(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world
        .runner_with(world.options().with_attempt_limit(3))
        .await;
    world.chaos.script([CommitFault::NotCommitted; 3]);
    let runs = &AtomicU32::new(0);
    let answer = runner
        .run(|tr| async move {
            runs.fetch_add(1, Ordering::Relaxed);
            tr.set(b"key", b"value");
            Ok::<_, Error>(())
        })
        .await;
    assert_eq!(answer.unwrap_err().code(), Some(Code::NOT_COMMITTED));
    assert_eq!(runs.load(Ordering::Relaxed), 3);
    assert_eq!(get(&world.db, b"key").await, None);
}

async fn the_last_error_is_the_closures_own(store: TestStore) {
    #[derive(Debug, thiserror::Error)]
    #[error("attempt {number}")]
    struct Wrapped {
        number: u32,
        source: Error,
    }
    impl From<Error> for Wrapped {
        fn from(source: Error) -> Self {
            Self { number: 0, source }
        }
    }

    let world = World::calm(&store).await;
    let runner = world
        .runner_with(world.options().with_attempt_limit(3))
        .await;
    let answer = runner
        .run(|tr| async move {
            let attempt = tr.attempt();
            Err::<(), _>(Wrapped {
                number: attempt.number,
                source: Code::NOT_COMMITTED.into(),
            })
        })
        .await;
    assert_eq!(answer.unwrap_err().number, 3);
}

#[tokio::test]
async fn the_time_limit_ends_in_a_timeout() {
    for own_timeout in [None, Some(Duration::ZERO)] {
        let world = World::still().await;
        let limit = Duration::from_secs(3);
        let runner = world
            .runner_with(world.options().with_time_limit(limit))
            .await;
        let operation = runner.run(|tr| async move {
            if let Some(timeout) = own_timeout {
                tr.set_option(TransactionOption::Timeout(timeout))?;
            }
            Err::<(), Error>(Code::NOT_COMMITTED.into())
        });
        let answer = world.let_time_pass(operation).await;
        assert_eq!(
            answer.unwrap_err().code(),
            Some(Code::TRANSACTION_TIMED_OUT)
        );
        assert!(world.env.now() >= limit);
    }
}

#[tokio::test]
async fn the_time_limit_is_that_of_each_step_too() {
    let world = World::still().await;
    let limit = Duration::from_secs(3);
    let runner = world
        .runner_with(world.options().with_time_limit(limit))
        .await;
    let clock = &world.clock;
    let answer = runner
        .run(|tr| async move {
            clock.advance(limit);
            tr.get(b"key", Isolation::Snapshot).await
        })
        .await;
    assert_eq!(
        answer.unwrap_err().code(),
        Some(Code::TRANSACTION_TIMED_OUT)
    );
}

#[tokio::test]
async fn a_limit_reached_in_doubt_is_an_unknown_outcome() {
    for limit in [
        |options: RunOptions| options.with_attempt_limit(4),
        |options: RunOptions| options.with_time_limit(Duration::from_secs(3)),
    ] {
        let world = World::still().await;
        let runner = world.runner_with(limit(world.options())).await;
        world.chaos.script([CommitFault::Unknown(Fate::Lost)]);
        world.chaos.script([CommitFault::NotCommitted; 100]);
        let operation = runner.run(|tr| async move {
            tr.set(b"key", b"value");
            Ok::<_, Error>(())
        });
        match world.let_time_pass(operation).await {
            Err(Error::OutcomeUnknown { attempts, cause }) => {
                assert!(attempts >= 4);
                assert!(cause.is_some());
            }
            other => panic!("expected an unknown outcome, found {other:?}"),
        }
        assert_eq!(get(&world.db, b"key").await, None);
    }
}

async fn backoff_is_limited_by_the_longest_delay(store: TestStore) {
    let world = World::calm(&store).await;
    let options = world
        .options()
        .with_max_retry_delay(Duration::from_millis(1))
        .with_attempt_limit(100);
    let runner = world.runner_with(options).await;
    let began = world.env.now();
    let answer = runner
        .run(|_| async { Err::<(), Error>(Code::NOT_COMMITTED.into()) })
        .await;
    assert_eq!(answer.unwrap_err().code(), Some(Code::NOT_COMMITTED));
    assert!(world.env.now() - began <= Duration::from_millis(110));
}

async fn a_closure_that_reads_much_lets_other_tasks_run(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    let other_ran = &AtomicBool::new(false);
    let long = runner.run(|tr| async move {
        for _ in 0..1000 {
            tr.get(b"key", Isolation::Snapshot).await?;
        }
        Ok::<_, Error>(other_ran.load(Ordering::Relaxed))
    });
    let other = async { other_ran.store(true, Ordering::Relaxed) };
    let (seen, ()) = futures::future::join(long, other).await;
    assert!(seen.unwrap());
}

#[tokio::test]
async fn a_store_that_is_closed_is_an_answer() {
    let store = keyspace::embedded::Options::new().memory().unwrap();
    let runner = Runner::new(store.clone());
    store.close().unwrap();
    let answer = runner.run(|_| async { Ok::<_, Error>(()) }).await;
    assert_eq!(
        answer.unwrap_err().code(),
        Some(Code::TRANSACTION_CANCELLED)
    );
}
