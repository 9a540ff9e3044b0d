//! Runs in a file of tiny chunks hold the same rows as a map, whatever is merged, opened again and still read.
//!
//! After each step of a random program, keys and ranges are compared in both directions, and each chunk must belong to
//! one table or be free. Snapshots must keep their rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use conformance::scale;

use super::super::damage::FileError;
use super::super::{Layout, Runs};
use super::program::Program;
use super::{META, Rows, Written, check_all, options};
use crate::stores::embedded::backend::{File, MemoryBackend};
use crate::stores::embedded::tests::seeds;

#[test]
fn runs_hold_the_rows_of_a_map_after_any_merge() {
    let mut done: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in seeds(scale(40, 10_000)) {
        let mut program = Program::new(seed, None);
        let ran = program.run(60);
        assert_eq!(
            ran,
            Ok(()),
            "to repeat: TEST_SEED={seed} cargo test -p fdbq-keyspace --lib runs::tests::model"
        );
        for (step, count) in program.done {
            *done.entry(step).or_default() += count;
        }
    }
    assert!(done.len() == 14 || std::env::var_os("TEST_SEED").is_some());
}

#[test]
fn a_store_whose_rows_are_all_cleared_is_short_once_it_is_closed() {
    let layout = Layout {
        chunk_bytes: 512,
        table_bytes: 1000,
    };
    let file: File = Arc::new(MemoryBackend::default());
    let options = options(layout, 0, 0);
    let runs = Runs::create(file.clone(), options.clone(), META, |_| {
        Ok::<_, FileError>(())
    });
    let runs = runs.unwrap();
    let row = Written::Set(b"a".to_vec(), vec![1; 8000]);
    let clear = Written::Gap(b"a".to_vec(), b"b".to_vec());
    for entry in [row, clear] {
        let entries = [entry.entry()].into_iter();
        runs.add_entries(entries, |_| (), |_| ()).unwrap();
    }
    assert!(file.len().unwrap() > 8000);
    let list = runs.list();
    assert!(runs.merge_runs(&list, 0..2, |_| ()).unwrap());
    drop(list);
    runs.close().unwrap();
    assert!(file.len().unwrap() <= 2 * 512);
    let opened = Runs::open(file, options).unwrap_or_else(|error| panic!("{error:?}"));
    check_all(&opened.list(), &Rows::new()).unwrap();
}
