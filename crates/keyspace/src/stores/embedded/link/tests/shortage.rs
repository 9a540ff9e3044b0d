//! A system that has no thread, runtime or socket for a moment, at each place where a store makes one.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bytes::BytesMut;

use super::{LIMIT, messages, write};
use crate::contract::env::{Environment, ManualClock};
use crate::contract::error::{OpenError, chain};
use crate::stores::embedded::backend::place::FileId;
use crate::stores::embedded::repeats::backoff;
use crate::stores::embedded::wire::{self, Greeting, Refusal};
use crate::stores::embedded::{Durability, Options, Role, Sharing};

fn options() -> Options {
    Options::new().with_patience(LIMIT)
}

/// Options with an environment that counts what is made.
fn counted() -> (Environment, Options) {
    let env = Environment::system().with_shortage();
    (env.clone(), options().with_environment(env))
}

fn is_alone(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().count() == 1
}

/// Opens a store again and again, while one more thing cannot be made. Returns how many there are.
fn open_each(options: &Options, env: &Environment, path: &Path) -> u64 {
    for missing in 0.. {
        env.miss(missing..missing + 1);
        let opened = options.open(path);
        let made = env.miss(0..0);
        if let Err(refused) = &opened {
            let text = chain(refused).to_string();
            assert!(matches!(refused, OpenError::Open { .. }), "{refused:?}");
            assert!(text.contains("cannot start a"), "{text}");
        }
        if made <= missing {
            return made;
        }
        if let Ok(db) = opened {
            db.close().unwrap();
        }
    }
    unreachable!()
}

#[tokio::test]
async fn an_opening_without_a_thread_says_so_and_leaves_the_store_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let (env, options) = counted();
    // Four threads of the engine, the socket, and a thread for it.
    assert!(open_each(&options, &env, &path) >= 6);
    assert!(is_alone(folder.path()));
    let owner = Options::new().open(&path).unwrap();
    // A thread with a runtime.
    assert_eq!(open_each(&options, &env, &path), 2);
    write(&options.open(&path).unwrap()).await;
    owner.close().unwrap();
    let viewer = options.with_sharing(Sharing::Yield);
    assert!(open_each(&viewer, &env, &path) >= 8);
    assert!(is_alone(folder.path()));
}

#[tokio::test]
async fn a_client_that_lacks_anything_at_a_takeover_tries_again() {
    for missing in 0..10 {
        for count in [1, 3] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("store");
            let owner = Options::new().open(&path).unwrap();
            let (env, options) = counted();
            let client = options.open(&path).unwrap();
            write(&client).await;
            env.miss(missing..missing + count);
            owner.close().unwrap();
            write(&client).await;
            while client.role() != Role::Owner {
                write(&client).await;
            }
            // Also one that has come meanwhile.
            let next = Options::new().with_patience(LIMIT).open(&path).unwrap();
            write(&next).await;
            client.close().unwrap();
            write(&next).await;
            next.close().unwrap();
            assert!(is_alone(folder.path()), "{missing} {count}");
        }
    }
}

#[tokio::test]
async fn an_owner_that_lacks_a_thread_for_a_client_lets_it_in_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let (env, shared) = counted();
    let owner = shared.open(&path).unwrap();
    for missing in 0..2 {
        env.miss(missing..missing + 3);
        let client = options().open(&path).unwrap();
        write(&client).await;
    }
    env.miss(0..u64::MAX);
    let soon = Options::new().with_patience(Duration::from_millis(100));
    let refused = soon.open(&path).unwrap_err().to_string();
    assert!(refused.contains("its owner has no thread"), "{refused}");
    env.miss(0..0);
    owner.close().unwrap();
    assert!(is_alone(folder.path()));
}

#[tokio::test]
async fn a_viewer_that_lacks_anything_hands_the_store_over_later() {
    for missing in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let (env, viewer) = counted();
        let viewer = viewer.with_sharing(Sharing::Yield).open(&path).unwrap();
        write(&viewer).await;
        env.miss(missing..missing + 2);
        let application = options().open(&path).unwrap();
        write(&application).await;
        write(&viewer).await;
        env.miss(0..0);
        application.close().unwrap();
        viewer.close().unwrap();
        assert!(is_alone(folder.path()), "{missing}");
    }
}

#[tokio::test]
async fn a_store_whose_socket_cannot_be_made_gets_one_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let socket = folder.path().join("store.socket");
    Options::new().open(&path).unwrap().close().unwrap();
    fs::create_dir(&socket).unwrap();
    let owner = Options::new().open(&path).unwrap();
    write(&owner).await;
    fs::remove_dir(&socket).unwrap();
    write(&options().open(&path).unwrap()).await;
    // One that is removed is made again.
    fs::remove_file(&socket).unwrap();
    write(&options().open(&path).unwrap()).await;
    owner.close().unwrap();
    assert!(is_alone(folder.path()));
}

#[test]
fn an_owner_that_answers_nonsense_is_asked_less_and_less_often() {
    let waits = waits_between_connections(LIMIT, |file| {
        let mut greeting = messages::greetings().remove(0);
        if let Greeting::Welcome(welcome) = &mut greeting {
            welcome.file = Some(file);
        }
        let mut frames = BytesMut::new();
        wire::put(&mut frames, 0, &greeting);
        frames.extend_from_slice(&[0xff; 64]);
        frames
    });
    // An owner that was killed may have had nothing to answer: the client looks for the next one at once.
    assert_eq!(waits[0], Duration::ZERO);
}

#[test]
fn an_owner_that_refuses_a_client_is_asked_less_and_less_often() {
    for refusal in [Refusal::Short, Refusal::Durability(Durability::Immediate)] {
        waits_between_connections(Duration::ZERO, |_| {
            let mut frames = BytesMut::new();
            wire::put(&mut frames, 0, &Greeting::Refused(refusal));
            frames
        });
    }
}

/// Opens a store whose owner gives each client the same answer. Returns how long the client waits between its
/// connections, after a check that it waits longer and longer. The clock stands still until the second one, but not for
/// longer than `still`.
fn waits_between_connections(
    still: Duration,
    answer: impl FnOnce(FileId) -> BytesMut,
) -> Vec<Duration> {
    const CONNECTIONS: u32 = 6;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    Options::new().open(&path).unwrap().close().unwrap();
    let file = fs::File::options().read(true).write(true).open(&path);
    let file = file.unwrap();
    file.lock().unwrap();
    fs::write(folder.path().join("store.lock"), "").unwrap();
    let listener = UnixListener::bind(folder.path().join("store.socket")).unwrap();
    let frames = answer(FileId::at(&path).unwrap());
    let clock = ManualClock::new();
    let env = Environment::seeded(1, Arc::new(clock.clone()));
    let opening = thread::spawn({
        let options = options().with_environment(env.clone());
        // The clock is ahead of what others do.
        let options = options.with_patience(Duration::from_secs(u32::MAX.into()));
        move || options.open(&path).unwrap()
    });
    let is_over = &AtomicBool::new(false);
    let (second, came) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let _ = came.recv_timeout(still);
            while !is_over.load(Ordering::SeqCst) {
                clock.advance(Duration::from_millis(1));
                thread::yield_now();
            }
        });
        let mut passed = Vec::new();
        for _ in 0..CONNECTIONS {
            let (mut stream, _) = listener.accept().unwrap();
            passed.push(env.now());
            if passed.len() == 2 {
                // The clock may have begun to go.
                let _ = second.send(());
            }
            // Its greeting.
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(&frames).unwrap();
        }
        drop((listener, file));
        let opened = opening.join();
        is_over.store(true, Ordering::SeqCst);
        opened.unwrap().close().unwrap();
        let waits: Vec<_> = passed.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // The first failure delays nothing.
        for (repeats, wait) in (1..).zip(&waits[1..]) {
            assert!(*wait >= backoff(repeats), "{passed:?}");
        }
        waits
    })
}
