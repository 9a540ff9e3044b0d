//! Failures of the disk. Commits in flight have an unknown outcome, all later calls are refused, and
//! opening the store again on a working disk recovers all acknowledged commits.

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use conformance::{HANG, let_pass, scale};
use futures::FutureExt;
use futures::future::{Either, select};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::{Durability, Options};
use super::disk::{Disk, Fault, Image};
use super::workload::Workload;
use super::{new_store, open_on, path, seeds, set, setup};
use crate::contract::env::{Environment, ManualClock};
use crate::contract::error::{Code, Error, OpenError, chain};
use crate::stores::embedded::backend::File;
use crate::stores::embedded::disk::open::{OpenedStore, Setup};
use crate::stores::embedded::engine::queue::Mutation;
use crate::stores::embedded::engine::watch::WatchFuture;
use crate::stores::embedded::engine::{CommitRequest, Ending, Engine, Snapshot};
use crate::stores::embedded::log::effect::Effect;
use crate::stores::embedded::log::files::Folder;
use crate::stores::embedded::log::frame::BLOCK_BYTES;
use crate::stores::embedded::log::segment::Sizes;
use crate::stores::embedded::runs::RunLimits;
use crate::stores::embedded::runs::damage::{Damage, FileError};

const FAULTS: [Fault; 3] = [Fault::Error, Fault::Full, Fault::ShortWrite];

fn options() -> Options {
    Options::new().with_environment(Environment::seeded(0, Arc::new(ManualClock::new())))
}

/// Asserts that an error reports the failure of the store and its reason.
fn assert_poisoned(error: &Error) {
    assert!(matches!(error, Error::Poisoned { .. }), "{error:?}");
    assert_eq!(error.code(), Some(Code::IO_ERROR));
    assert!(std::error::Error::source(error).is_some());
}

/// Asserts that a failed store refuses every call.
fn assert_refuses_all(engine: &Engine, (version, snapshot): (i64, Snapshot), watch: WatchFuture) {
    assert_poisoned(&engine.read_version().err().unwrap());
    assert_poisoned(&engine.snapshot_at(version).err().unwrap());
    assert_poisoned(&snapshot.get(b"newest").unwrap_err());
    assert_poisoned(&watch.now_or_never().unwrap().unwrap_err());
    let commit = engine.commit(CommitRequest::default());
    assert_poisoned(&commit.now_or_never().unwrap().unwrap_err());
    let (setter, late) = engine.watches().create(9).unwrap();
    engine.watches().arm("key".into(), None, setter);
    assert_poisoned(&late.now_or_never().unwrap().unwrap_err());
}

/// Opens the store, commits until the disk fails, and opens the store again on the files that are left.
fn fail_and_recover(fault: Fault, seed: u64) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut workload = Workload::default();
    let disk = Disk::with(new_store());
    let store = open_on(&disk).unwrap();
    let (engine, mut committer) = Engine::prepare(store, &options());
    let snapshot = engine.read_version().unwrap();
    let (setter, watch) = engine.watches().create(9).unwrap();
    engine.watches().arm("never written".into(), None, setter);
    disk.fail_after(rng.random_range(1..200), fault);
    let mut has_waited = false;
    let failed = loop {
        if disk.has_failed() {
            // A merge, or a write for which nothing waits.
            disk.fail_after(rng.random_range(1..200), fault);
        }
        let (number, request) = workload.next(&mut rng);
        let mut commit = Box::pin(engine.commit(request));
        let mut stepped = committer.step();
        let mut verdict = (&mut commit).now_or_never();
        if verdict.is_none() && stepped.is_ok() {
            assert_eq!(fault, Fault::Full, "only for want of room a commit waits");
            assert!(engine.read_version().is_ok());
            disk.go_on();
            has_waited = true;
            stepped = committer.step();
            verdict = commit.now_or_never();
        }
        match verdict {
            Some(Ok(commit)) => workload.acknowledge(number, commit, true)?,
            Some(Err(error)) => assert_eq!(error.code(), Some(Code::COMMIT_UNKNOWN_RESULT)),
            // A checkpoint failed while the commit waited for room.
            None => assert!(stepped.is_err() && fault == Fault::Full),
        }
        // A checkpoint, too, may fail after the commit was acknowledged.
        match stepped {
            Err(failed) => break Some(failed),
            // The log has continued in another segment.
            Ok(()) if has_waited => break None,
            Ok(()) => {}
        }
    };
    if let Some(failed) = failed {
        assert!(disk.has_failed() || has_waited);
        assert_poisoned(&failed);
        assert_refuses_all(&engine, snapshot, watch);
    }
    drop(committer);

    let left = if rng.random() {
        disk.image()
    } else {
        disk.image_after_power_loss(&mut rng)
    };
    let mut store =
        open_on(&Disk::with(left)).map_err(|error| format!("does not open: {error}"))?;
    workload.check(&mut store)
}

#[test]
fn a_disk_that_fails_stops_the_store_and_loses_nothing_that_was_acknowledged() {
    for fault in FAULTS {
        for seed in seeds(scale(100, 1_000)) {
            let recovered = fail_and_recover(fault, seed);
            assert_eq!(recovered, Ok(()), "{fault:?}; to repeat: TEST_SEED={seed}");
        }
    }
}

#[test]
fn commits_wait_for_a_file_descriptor_for_the_next_file_of_the_log() {
    let disk = Disk::with(new_store());
    let (engine, mut committer) = Engine::prepare(open_on(&disk).unwrap(), &options());
    disk.set_out_of_descriptors(true);
    let mut waiting = None;
    for _ in 0..100 {
        let mut commit = Box::pin(engine.commit(set(None, &["key"], "value")));
        committer.step().unwrap();
        match (&mut commit).now_or_never() {
            Some(committed) => drop(committed.unwrap()),
            None => {
                waiting = Some(commit);
                break;
            }
        }
    }
    let mut waiting = waiting.expect("the log needs another file");
    assert!(engine.read_version().is_ok());
    committer.step().unwrap();
    assert!((&mut waiting).now_or_never().is_none());
    disk.set_out_of_descriptors(false);
    committer.step().unwrap();
    let committed = waiting.now_or_never().expect("the log has its file");
    committed.unwrap();
    committer.close().unwrap();
}

#[test]
fn an_opening_without_a_file_descriptor_leaves_every_file_as_it_was() {
    for image in [new_store(), killed_store()] {
        let disk = Disk::with(image.clone());
        disk.set_out_of_descriptors(true);
        let error = open_on(&disk).err().unwrap();
        assert!(matches!(error, OpenError::Open { .. }), "{error:?}");
        assert!(disk.image() == image);
        disk.set_out_of_descriptors(false);
        assert!(open_on(&disk).is_ok());
    }
}

/// Returns the disk content of a store with a row that is only in its log.
fn killed_store() -> Image {
    let disk = Disk::with(new_store());
    let mut store = open_on(&disk).unwrap();
    let row = Effect::Set {
        key: b"row",
        value: b"",
    };
    store.commit(&[row]).unwrap();
    disk.image()
}

#[test]
fn an_empty_file_whose_folder_cannot_be_read_is_not_called_a_file_of_another_program() {
    let folder = tempfile::tempdir().unwrap();
    let files = Folder::beside(&folder.path().join("store")).unwrap();
    drop(folder);
    let empty: File = Arc::new(Disk::new(Vec::new()));
    let error = OpenedStore::check_not_empty(&empty, &files, path()).unwrap_err();
    assert!(matches!(error, OpenError::Open { .. }), "{error:?}");
}

#[test]
fn an_opening_that_fails_before_its_log_has_begun_leaves_no_new_file() {
    for fault in [Fault::Error, Fault::Full] {
        for calls in 1.. {
            let disk = Disk::with(new_store());
            disk.fail_after(calls, fault);
            let opened = open_on(&disk);
            let image = disk.image();
            let has_frames = |bytes: &Vec<u8>| bytes[BLOCK_BYTES..].iter().any(|&byte| byte != 0);
            if opened.is_ok() || image.slots.values().any(has_frames) {
                assert!(calls > 4, "{calls}");
                break;
            }
            assert!(image.slots.is_empty(), "{fault:?} after {calls} calls");
            assert!(
                image.main == new_store().main,
                "{fault:?} after {calls} calls"
            );
        }
    }
}

#[test]
fn a_disk_that_fails_while_the_store_is_opened_leaves_it_to_be_opened_again() {
    for fault in FAULTS {
        for calls in 1..20 {
            let disk = Disk::with(new_store());
            disk.fail_after(calls, fault);
            if let Err(error) = open_on(&disk) {
                assert!(
                    matches!(error, OpenError::Open { .. }),
                    "{fault:?} {calls}: {error:?}"
                );
            }
            let again = open_on(&Disk::with(disk.image()));
            assert!(again.is_ok(), "{fault:?} {calls}: {:?}", again.err());
        }
    }
}

#[test]
fn a_failed_read_stops_the_store_for_commits_and_watches_too() {
    let disk = Disk::with(new_store());
    // With many rows and no cache, a read of one of them reads from the disk.
    let setup = Setup {
        cache_bytes: 0,
        ..setup()
    };
    let files = Arc::new(disk.clone());
    let mut store = OpenedStore::open(Arc::new(disk.clone()), files, path(), &setup).unwrap();
    for number in 0..1000_u32 {
        let key = &number.to_be_bytes();
        let value = &[0; 100];
        store.commit(&[Effect::Set { key, value }]).unwrap();
    }
    store.checkpoint().unwrap();
    let engine = Engine::start(store, &options()).unwrap();
    let snapshot = engine.read_version().unwrap();
    let (setter, watch) = engine.watches().create(9).unwrap();
    engine.watches().arm("key".into(), None, setter);
    disk.lose_power();
    let failed = snapshot.1.get(&[0, 0, 1, 0]).unwrap_err();
    assert_poisoned(&failed);
    let text = chain(&failed).to_string();
    assert!(text.contains("PowerLoss"), "{text}");
    // A thread of the store may be about to fail the armed watches. After all threads have ended, all
    // watches have failed.
    assert_poisoned(&engine.shut_down(Ending::Close).unwrap_err());
    assert_refuses_all(&engine, snapshot, watch);
}

#[test]
fn a_store_that_is_closed_while_commits_wait_for_room_keeps_what_was_acknowledged() {
    let disk = Disk::with(new_store());
    // All of the commits may be in one batch.
    let log = Sizes {
        segment_bytes: 16 << 20,
        ..setup().log
    };
    let setup = Setup { log, ..setup() };
    let files = Arc::new(disk.clone());
    let store = OpenedStore::open(Arc::new(disk.clone()), files, path(), &setup).unwrap();
    let engine = Engine::start(store, &options()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime
        .block_on(engine.commit(set(None, &["first"], "1")))
        .unwrap();
    disk.fail_after(1, Fault::Full);
    // The value is larger than the room that was filled with zeros.
    let large = |value_bytes| CommitRequest {
        mutations: vec![Mutation::Set {
            key: "large".into(),
            value: vec![7; value_bytes].into(),
        }],
        ..CommitRequest::default()
    };
    // One is being written, one fills the open batch, and one is not resolved yet.
    let waiting = [64 << 10, 5 << 20, 1].map(|bytes| engine.commit(large(bytes)));
    let closed = engine.shut_down(Ending::Close).unwrap_err();
    assert_poisoned(&closed);
    let text = chain(&closed).to_string();
    assert!(text.contains("the disk has no room"), "{text}");
    for commit in waiting {
        let code = runtime.block_on(commit).unwrap_err().code();
        assert!([Some(Code::COMMIT_UNKNOWN_RESULT), Some(Code::IO_ERROR)].contains(&code));
    }
    let store = open_on(&Disk::with(disk.image())).unwrap();
    assert!(store.window.get(b"first").unwrap().is_some());
}

/// Fills a disk while merges lag, and closes the store. Returns the numbers of the rows that were acknowledged.
fn close_on_a_full_disk(disk: &Disk) -> std::ops::Range<u32> {
    let setup = Setup {
        limits: RunLimits {
            max_runs: 3,
            ..RunLimits::default()
        },
        ..setup()
    };
    let files = Arc::new(disk.clone());
    let store = OpenedStore::open(Arc::new(disk.clone()), files, path(), &setup).unwrap();
    let engine = Engine::start(store, &Options::new()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let row = |number: u32| CommitRequest {
        mutations: vec![Mutation::Set {
            key: Bytes::copy_from_slice(&number.to_be_bytes()),
            value: vec![7; 1_000].into(),
        }],
        ..CommitRequest::default()
    };
    let acknowledged = runtime.block_on(async {
        let mut acknowledged = 0;
        // A commit that takes longer waits for room.
        while let Either::Left((Ok(_), _)) = select(
            pin!(engine.commit(row(acknowledged))),
            pin!(let_pass(Duration::from_millis(50))),
        )
        .await
        {
            acknowledged += 1;
        }
        acknowledged
    });
    let (sender, closed) = mpsc::channel();
    std::thread::spawn(move || sender.send(engine.shut_down(Ending::Close)));
    let closed = closed.recv_timeout(HANG);
    let closed = closed.expect("closing does not wait for room");
    closed.inspect_err(assert_poisoned).ok();
    0..acknowledged
}

#[test]
fn a_store_whose_merges_have_no_room_can_be_closed_and_keeps_what_was_acknowledged() {
    for seed in seeds(scale(10, 300)) {
        println!("to repeat: TEST_SEED={seed}");
        let disk = Disk::with(new_store());
        let mut rng = StdRng::seed_from_u64(seed);
        disk.limit_main(rng.random_range(200 << 10..800 << 10));
        let mut acknowledged = close_on_a_full_disk(&disk);
        let store = open_on(&Disk::with(disk.image())).unwrap();
        let has = |number: u32| store.window.get(&number.to_be_bytes()).unwrap().is_some();
        assert!(acknowledged.all(has));
    }
}

#[test]
fn a_checkpoint_writes_nothing_more_once_damage_was_found() {
    let disk = Disk::with(new_store());
    let (engine, mut committer) = Engine::prepare(open_on(&disk).unwrap(), &options());
    committer.write_record().unwrap();
    let before = disk.image();
    engine.fail(Damage::of_block().into());
    let error = committer.write_record().unwrap_err();
    assert!(matches!(error, FileError::Damage(damage) if damage == Damage::of_block()));
    drop(committer);
    assert!(disk.image() == before);
}

#[test]
fn a_commit_that_was_being_resolved_when_the_store_failed_has_a_result() {
    let disk = Disk::with(new_store());
    let (engine, mut committer) = Engine::prepare(open_on(&disk).unwrap(), &options());
    let commit = engine.commit(set(None, &["key"], "value"));
    let cause = std::io::Error::other("it is planned");
    let end = || engine.fail(cause.into());
    committer.resolve_late(end).unwrap();
    let error = commit
        .now_or_never()
        .expect("it does not wait")
        .unwrap_err();
    assert_eq!(error.code(), Some(Code::COMMIT_UNKNOWN_RESULT));
}

#[test]
fn a_store_that_has_ended_writes_no_batch_that_may_depend_on_a_dropped_one() {
    let disk = Disk::with(new_store());
    let (engine, mut committer) = Engine::prepare(open_on(&disk).unwrap(), &options());
    let commit = engine.commit(set(None, &["key"], "value"));
    committer.resolve().unwrap();
    let before = disk.image();
    let cause = std::io::Error::other("it is planned");
    let error = committer
        .publish_late(|| engine.fail(cause.into()))
        .unwrap_err();
    assert_poisoned(&error);
    let error = commit
        .now_or_never()
        .expect("it does not wait")
        .unwrap_err();
    assert_eq!(error.code(), Some(Code::COMMIT_UNKNOWN_RESULT));
    assert!(disk.image() == before);
}

#[test]
fn a_dropped_store_has_flushed_the_log_that_it_leaves() {
    let disk = Disk::with(new_store());
    let setup = Setup {
        window_bytes: 64 << 20,
        log: Sizes::default(),
        ..setup()
    };
    let files = Arc::new(disk.clone());
    let store = OpenedStore::open(Arc::new(disk.clone()), files, path(), &setup).unwrap();
    let interval = Duration::MAX;
    let relaxed = options().with_durability(Durability::Relaxed { interval });
    let engine = Engine::start(store, &relaxed).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let keys = (0..100_u8).map(|number| Bytes::from(vec![number]));
    for key in keys.clone() {
        let mutations = vec![Mutation::Set {
            key,
            value: vec![7; 100_000].into(),
        }];
        let request = CommitRequest {
            mutations,
            ..CommitRequest::default()
        };
        runtime.block_on(engine.commit(request)).unwrap();
    }
    drop(engine);
    let left = disk.flushed();
    assert!(!left.slots.is_empty(), "the log was left");
    let disk = Disk::with(left);
    let store = OpenedStore::open(Arc::new(disk.clone()), Arc::new(disk), path(), &setup).unwrap();
    assert!(
        keys.into_iter()
            .all(|key| store.window.get(&key).unwrap().is_some())
    );
}
