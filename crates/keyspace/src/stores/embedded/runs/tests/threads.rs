//! One thread adds runs, one merges, and one reads: each list that is installed has the rows of its time, and keeps
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use conformance::scale;
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::super::damage::FileError;
use super::super::{Layout, Runs};
use super::{Keys, META, Rows, Written, apply, check_all, check_verify, options, random_entries};
use crate::stores::embedded::backend::{File, MemoryBackend};

#[test]
fn lists_keep_the_rows_of_their_time_while_other_threads_add_and_merge() {
    let layout = Layout {
        chunk_bytes: 4096,
        table_bytes: 16 << 10,
    };
    let options = options(layout, 100_000, 0);
    let file: File = Arc::new(MemoryBackend::default());
    let runs = Runs::create(file.clone(), options.clone(), META, |_| {
        Ok::<_, FileError>(())
    });
    let runs = runs.unwrap();
    // Changed while a list is installed, so that it fits the newest list.
    let rows = Mutex::new(Rows::new());
    let is_over = AtomicBool::new(false);
    let merges = thread::scope(|scope| {
        let (send, installed) = channel();
        let from_merger = send.clone();
        scope.spawn(|| {
            let mut rng = StdRng::seed_from_u64(0);
            for _ in 0..scale(150, 5_000) {
                while runs.is_full() {
                    thread::yield_now();
                }
                let entries = random_entries(&mut rng, Keys::Numbered, 40);
                let written = entries.iter().map(Written::entry);
                let added = runs.add_entries(
                    written,
                    |_| (),
                    |list| {
                        let mut rows = rows.lock();
                        apply(&mut rows, &entries);
                        send.send((list.clone(), rows.clone())).unwrap();
                    },
                );
                added.unwrap();
            }
            drop(send);
            is_over.store(true, Ordering::Relaxed);
        });
        let merger = scope.spawn(|| {
            let from_merger = from_merger;
            let mut merges = 0;
            let mut is_at_rest = false;
            while !is_over.load(Ordering::Relaxed) {
                let merged = runs.merge_step(is_at_rest, |list| {
                    from_merger
                        .send((list.clone(), rows.lock().clone()))
                        .unwrap();
                });
                is_at_rest = !merged.unwrap();
                merges += usize::from(!is_at_rest);
            }
            merges
        });
        for (list, rows) in installed {
            check_all(&list, &rows).unwrap();
        }
        merger.join().unwrap()
    });
    assert!(merges > 10, "{merges}");
    let rows = rows.into_inner();
    check_verify(&runs.list(), &rows).unwrap();
    runs.close().unwrap();
    drop(runs);
    let opened = Runs::open(file, options).unwrap_or_else(|error| panic!("{error:?}"));
    check_all(&opened.list(), &rows).unwrap();
}
