//! What Gaps hide is known through merges of many steps, so that it is merged away at last.

use std::sync::Arc;

use super::super::{Layout, RunList, Runs};
use super::{META, Written, options};
use crate::stores::embedded::backend::MemoryBackend;

const LAYOUT: Layout = Layout {
    chunk_bytes: 4096,
    table_bytes: 16 << 10,
};

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Sets of some rows of 100 bytes.
fn sets(numbers: impl Iterator<Item = u32>) -> Vec<Written> {
    numbers
        .map(|number| Written::Set(key(number), vec![7; 100]))
        .collect()
}

fn add(runs: &Runs, entries: &[Written]) {
    let entries = entries.iter().map(Written::entry);
    runs.add_entries(entries, |_| (), |_| ()).unwrap();
}

fn hidden(list: &RunList) -> u64 {
    list.runs.iter().map(|run| run.hidden_bytes).sum()
}

#[test]
fn what_a_gap_hides_is_known_after_a_merge_of_many_steps_that_has_soon_used_the_gap() {
    let file = Arc::new(MemoryBackend::default());
    let runs = Runs::create(file, options(LAYOUT, 0, 0), META, |_| Ok(())).unwrap();
    add(&runs, &sets(0..3_000));
    for first in 0..3 {
        add(&runs, &sets((first..3_000).step_by(3).skip(700)));
    }
    add(&runs, &[Written::Gap(key(0), key(2_000))]);
    let before = hidden(&runs.list());
    assert!(before > 150_000, "{before}");
    let mut steps = 0;
    loop {
        let list = runs.list();
        let inputs = list
            .runs
            .iter()
            .take_while(|run| run.into.is_some())
            .count();
        if steps > 0 && inputs == 0 {
            break;
        }
        let count = if steps == 0 {
            list.runs.len() - 1
        } else {
            inputs
        };
        runs.merge_runs(&list, 0..count, |_| ()).unwrap();
        steps += 1;
    }
    assert!(steps > 3, "{steps}");
    let list = runs.list();
    assert_eq!(list.runs.len(), 2);
    let after = hidden(&list);
    assert!(after > 150_000 && after <= list.runs[1].bytes(), "{after}");
}

#[test]
fn gaps_that_hide_the_same_hide_no_more_than_there_is() {
    let file = Arc::new(MemoryBackend::default());
    let runs = Runs::create(file, options(LAYOUT, 0, 0), META, |_| Ok(())).unwrap();
    add(&runs, &sets(0..3_000));
    for _ in 0..5 {
        add(&runs, &[Written::Gap(key(0), key(3_000))]);
        let list = runs.list();
        let older = list.bytes() - list.runs[0].bytes();
        assert!(list.runs[0].hidden_bytes <= older);
    }
}
