//! Options at the ends of their types: a store opens with each of them, works, and closes; a run ends.

use std::time::Duration;

use conformance::timeout;
use keyspace::embedded::{Durability, Embedded, Options};
use keyspace::{
    Code, Database, Error, Isolation, OwnedTransaction, RunOptions, Runner, Transaction, Tx,
};
use tempfile::TempDir;

/// Longer than anything takes that is not stuck.
const LONG: Duration = Duration::from_secs(60);

const ENDS: [usize; 3] = [0, 1, usize::MAX];

const TIMES: [Duration; 3] = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];

fn options() -> Vec<Options> {
    let mut all = Vec::new();
    for number in ENDS {
        all.push(Options::new().with_cache_bytes(number));
        all.push(Options::new().with_window_bytes(number));
        all.push(Options::new().with_max_runs(number));
        all.push(Options::new().with_garbage_bytes(number as u64));
        all.push(Options::new().with_history_bytes(number));
        all.push(Options::new().with_queue_bytes(number));
    }
    for time in TIMES {
        all.push(Options::new().with_patience(time));
        all.push(Options::new().with_durability(Durability::Relaxed { interval: time }));
    }
    all
}

/// Writes a few rows in transactions that follow one another, and reads one of them.
async fn works(db: &Embedded, round: u8) {
    for number in 0..20 {
        let written = async {
            loop {
                let mut tr = db.begin().unwrap();
                tr.get(&[number], Isolation::Serializable).await.unwrap();
                tr.set(&[number], &vec![round; 10_000]);
                match tr.commit().await {
                    Ok(_) => break,
                    // A history without memory forgets at once.
                    Err(error) if error.code() == Some(Code::TRANSACTION_TOO_OLD) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        timeout(LONG, written).await;
    }
    let tr = db.begin().unwrap();
    let read = tr.get(&[7], Isolation::Snapshot).await.unwrap();
    assert_eq!(read.unwrap()[..], [round; 10_000]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_any_number_in_its_options_works() {
    for options in options() {
        works(&options.clone().memory().unwrap(), 1).await;
        let dir = TempDir::new().unwrap();
        let path = &dir.path().join("store");
        for round in [1, 2] {
            let db = options.clone().open(path).unwrap();
            works(&db, round).await;
            db.close().unwrap();
        }
    }
}

#[tokio::test]
async fn a_run_with_any_number_in_its_options_ends() {
    let db = Options::new().memory().unwrap();
    let mut all = vec![];
    for time in TIMES {
        all.push(RunOptions::default().with_time_limit(time));
        all.push(RunOptions::default().with_max_retry_delay(time));
    }
    for attempts in [0, 1, u32::MAX] {
        all.push(RunOptions::default().with_attempt_limit(attempts));
    }
    for options in all {
        let runner = Runner::with_options(db.clone(), options);
        let run = runner.run(|tr: Tx<_>| async move {
            tr.set(b"key", b"value");
            Ok::<_, Error>(())
        });
        // Without time, it may fail.
        let _: Result<(), Error> = timeout(LONG, run).await;
    }
}
