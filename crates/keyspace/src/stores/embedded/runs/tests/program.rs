//! Random programs on runs, which are compared with a map after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::chunks::MANIFEST_CHUNKS;
use super::super::damage::FileError;
use super::super::manifest::Manifest;
use super::super::run::RunList;
use super::super::{Layout, OpenRunsError, RunStoreOptions, Runs};
use super::plants::Flaw;
use super::{
    Keys, META, Rows, apply, check_all, check_get, check_scan, check_verify, options,
    random_entries, text,
};
use crate::stores::embedded::backend::{File, MemoryBackend};

/// A state that a reader still has.
struct Snapshot {
    list: Arc<RunList>,
    rows: Rows,
}

/// A store's file, and what it must hold.
pub(super) struct Program {
    rng: StdRng,
    keys: Keys,
    file: File,
    options: RunStoreOptions,
    runs: Runs,
    rows: Rows,
    version: i64,
    snapshots: Vec<Snapshot>,
    pub(super) flaw: Option<Flaw>,
    /// How often each kind of step was done, and some states were there.
    pub(super) done: BTreeMap<&'static str, usize>,
}

impl Program {
    pub(super) fn new(seed: u64, flaw: Option<Flaw>) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let layout = Layout {
            chunk_bytes: 512 << rng.random_range(0..7),
            table_bytes: 1 << rng.random_range(10..18),
        };
        let cache_bytes = [0, 20_000, 1 << 20][rng.random_range(0..3)];
        let keys = [Keys::Short, Keys::Numbered, Keys::Long][rng.random_range(0..3)];
        let options = options(layout, cache_bytes, seed);
        let file: File = Arc::new(MemoryBackend::default());
        let runs = Runs::create(file.clone(), options.clone(), META, |_| {
            Ok::<_, FileError>(())
        });
        Self {
            rng,
            keys,
            file,
            options,
            runs: runs.expect("the file is in memory"),
            rows: Rows::new(),
            version: META.last_version,
            snapshots: Vec::new(),
            flaw,
            done: BTreeMap::new(),
        }
    }

    /// Does some steps, and checks the state after each. The error begins with the step that went wrong.
    pub(super) fn run(&mut self, steps: usize) -> Result<(), String> {
        for number in 0..steps {
            let (name, stepped) = self.step();
            let checked = stepped.and_then(|()| self.check());
            checked.map_err(|error| format!("{name} (step {number}): {error}"))?;
            *self.done.entry(name).or_default() += 1;
            self.count_states();
        }
        self.snapshots.clear();
        let ended = self.reopen(true).and_then(|()| self.check_everything());
        ended.map_err(|error| format!("at the end: {error}"))
    }

    fn step(&mut self) -> (&'static str, Result<(), String>) {
        match self.rng.random_range(0..100) {
            0..30 => ("add", self.add()),
            30..55 => ("merge", self.merge_any()),
            55..70 => ("merge by the rules", self.merge_next()),
            70..76 => ("change the record", self.change_meta()),
            76..80 => ("close", self.reopen(true)),
            80..84 => ("open again", self.reopen(false)),
            84..92 => ("take a snapshot", self.take_snapshot()),
            92..96 => ("drop a snapshot", self.drop_snapshot()),
            _ => ("check everything", self.check_everything()),
        }
    }

    /// Counts states that a program should come to.
    fn count_states(&mut self) {
        let list = self.runs.list();
        let begun: BTreeSet<_> = list.runs.iter().filter_map(|run| run.into).collect();
        let has_freed = list.tables().any(|table| table.first_chunk > 0);
        let has_many_leaves = list
            .tables()
            .any(|table| table.root.index.blocks().len() > 1);
        let states = [
            (begun.len() > 1, "two merges have begun"),
            (begun.len() == 1, "a merge has begun"),
            (has_freed, "chunks of a table are free"),
            (has_many_leaves, "a table has several blocks of the index"),
            (list.runs.len() > 8, "there are many runs"),
        ];
        for (is_so, name) in states {
            if is_so {
                *self.done.entry(name).or_default() += 1;
            }
        }
    }

    fn add(&mut self) -> Result<(), String> {
        let max = [3, 10, 100][self.rng.random_range(0..3)];
        let mut entries = random_entries(&mut self.rng, self.keys, max);
        // The manifest of many chunks does not fit into a small one.
        let chunk_bytes = self.options.layout.chunk_bytes as usize;
        let mut room = chunk_bytes * chunk_bytes / 64;
        entries.retain(|entry| {
            let bytes = entry.entry().key().len() + entry.entry().tail().len();
            let fits = bytes <= room;
            room -= bytes.min(room);
            fits
        });
        if entries.is_empty() {
            return Ok(());
        }
        let version = self.version + 1;
        let written = entries.iter().map(|entry| entry.entry());
        let mut installed = None;
        let added = self.runs.add_entries(
            written,
            |meta| meta.last_version = version,
            |list| installed = Some(list.clone()),
        );
        if !is_done(added)? {
            return Ok(());
        }
        self.version = version;
        apply(&mut self.rows, &entries);
        let is_newest = installed.is_some_and(|list| Arc::ptr_eq(&list, &self.runs.list()));
        if !is_newest {
            return Err("the list that was installed is not the newest".to_owned());
        }
        match self.flaw {
            Some(flaw) => flaw.after_add(&self.runs, &self.file, &entries),
            None => Ok(()),
        }
    }

    /// Does a step of the merge of any runs that may be merged.
    fn merge_any(&mut self) -> Result<(), String> {
        let list = self.runs.list();
        let mut ranges = mergeable(&list);
        if ranges.is_empty() {
            return Ok(());
        }
        let range = ranges.swap_remove(self.rng.random_range(0..ranges.len()));
        if self.rng.random_ratio(1, 30) {
            return self.merge_stopped(&list, range);
        }
        if self.rng.random_ratio(1, 4) {
            // A run may be added while others are merged.
            self.add()?;
        }
        let merged = match self.flaw {
            Some(flaw) => flaw.merge(&self.runs, &list, range),
            None => self.runs.merge_runs(&list, range, |_| ()),
        };
        is_done(merged.map(drop)).map(drop)
    }

    /// A merge that is stopped while it copies changes nothing.
    fn merge_stopped(&self, list: &Arc<RunList>, range: Range<usize>) -> Result<(), String> {
        self.runs.stop_merging();
        let mut was_installed = false;
        let merged = self.runs.merge_runs(list, range, |_| was_installed = true);
        self.runs.stops_merging.store(false, Ordering::Relaxed);
        let mut is_changed = false;
        // A table that is not copied moves all the same.
        is_done(merged.map(|merged| is_changed = merged))?;
        let is_same = Arc::ptr_eq(list, &self.runs.list());
        if is_changed != was_installed || is_changed == is_same {
            return Err("a merge that was stopped has an effect".to_owned());
        }
        Ok(())
    }

    fn merge_next(&mut self) -> Result<(), String> {
        let is_at_rest = self.rng.random();
        is_done(self.runs.merge_step(is_at_rest, |_| ()).map(drop)).map(drop)
    }

    fn change_meta(&mut self) -> Result<(), String> {
        let version = self.version + 1;
        let changed = self.runs.change_meta(|meta| meta.last_version = version);
        if is_done(changed)? {
            self.version = version;
        }
        Ok(())
    }

    fn reopen(&mut self, closes: bool) -> Result<(), String> {
        // The readers of a process end before it.
        self.check_snapshots()?;
        self.snapshots.clear();
        if closes {
            let before = self.runs.list();
            drop(before);
            self.runs.close().map_err(text)?;
        }
        self.runs.release();
        let opened = Runs::open(self.file.clone(), self.options.clone());
        self.runs = opened.map_err(refused)?;
        if closes {
            self.check_closed()?;
        }
        check_all(&self.runs.list(), &self.rows)
    }

    /// A closed file is not much longer than what is in use, and both manifests say the same.
    fn check_closed(&self) -> Result<(), String> {
        let [one, other] = manifests(&self.file, self.options.layout)?;
        let (Some(one), Some(other)) = (one, other) else {
            return Err("a closed file has only one manifest".to_owned());
        };
        if (one.meta, &one.runs) != (other.meta, &other.runs) {
            return Err("the manifests of a closed file differ".to_owned());
        }
        let list = self.runs.list();
        let used: usize = list.tables().map(|table| table.chunks.len()).sum();
        let chunks = self.file.len().unwrap() / u64::from(self.options.layout.chunk_bytes);
        let most = MANIFEST_CHUNKS as usize + used + 4 + used / 4;
        if chunks as usize > most {
            return Err(format!("{chunks} chunks are left, {used} are in use"));
        }
        Ok(())
    }

    fn take_snapshot(&mut self) -> Result<(), String> {
        self.snapshots.push(Snapshot {
            list: self.runs.list(),
            rows: self.rows.clone(),
        });
        Ok(())
    }

    fn drop_snapshot(&mut self) -> Result<(), String> {
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let index = self.rng.random_range(0..self.snapshots.len());
        let Snapshot { list, rows } = self.snapshots.swap_remove(index);
        check_all(&list, &rows).map_err(|error| format!("a snapshot: {error}"))
    }

    fn check_snapshots(&self) -> Result<(), String> {
        self.snapshots.iter().try_for_each(|snapshot| {
            let checked = check_all(&snapshot.list, &snapshot.rows);
            checked.map_err(|error| format!("a snapshot: {error}"))
        })
    }

    fn check_everything(&mut self) -> Result<(), String> {
        let list = self.runs.list();
        check_all(&list, &self.rows)?;
        check_verify(&list, &self.rows)?;
        self.check_snapshots()
    }

    /// Compares some keys and ranges of the newest state with the model.
    fn check(&mut self) -> Result<(), String> {
        let list = self.runs.list();
        for _ in 0..5 {
            let key = self.keys.random(&mut self.rng);
            check_get(&list, &self.rows, &key)?;
        }
        for _ in 0..2 {
            let mut ends = [(); 2].map(|()| self.keys.random(&mut self.rng));
            ends.sort();
            let [begin, end] = &ends;
            let max_rows = self.rng.random_range(1..50);
            for reverse in [false, true] {
                check_scan(&list, &self.rows, (begin, end), reverse, max_rows)?;
            }
        }
        if self.runs.meta().last_version != self.version {
            return Err("the record is not the one that was written".to_owned());
        }
        if self.flaw.is_none() {
            self.check_chunks()?;
        }
        Ok(())
    }

    /// Each chunk belongs to one table or is free. What the manifest names is what the newest state uses.
    fn check_chunks(&self) -> Result<(), String> {
        let newest = self.runs.list();
        let mut owners = BTreeMap::new();
        let lists = self.snapshots.iter().map(|snapshot| &snapshot.list);
        for list in lists.chain([&newest]) {
            let mut of_list = BTreeSet::new();
            for chunk in list.tables().flat_map(|table| &table.chunks) {
                let owner = owners.entry(chunk.number()).or_insert(chunk);
                if !Arc::ptr_eq(owner, chunk) {
                    return Err(format!("chunk {} is taken twice", chunk.number()));
                }
                if !of_list.insert(chunk.number()) {
                    return Err(format!("two tables have chunk {}", chunk.number()));
                }
            }
        }
        let (free, end) = self.runs.file.free_numbers();
        let mut all = free.clone();
        all.extend(owners.keys());
        if all.len() != free.len() + owners.len() {
            return Err("a chunk that is in use is free".to_owned());
        }
        if !all.into_iter().eq(MANIFEST_CHUNKS..end) {
            return Err("a chunk was lost".to_owned());
        }
        let manifests = manifests(&self.file, self.options.layout)?;
        let manifest = manifests.into_iter().flatten();
        let manifest = manifest.max_by_key(|manifest| manifest.sequence);
        let manifest = manifest.ok_or("there is no manifest")?;
        let tables = manifest.runs.iter().flat_map(|run| &run.tables);
        let named = tables.flat_map(|table| table.chunks.iter().copied());
        let in_use = newest.tables().flat_map(|table| &table.chunks);
        if !named.eq(in_use.map(|chunk| chunk.number())) {
            return Err("the manifest does not name the chunks in use".to_owned());
        }
        Ok(())
    }
}

/// Returns false if the manifest has no room for a change, which has no effect then.
fn is_done(changed: Result<(), FileError>) -> Result<bool, String> {
    match changed {
        Ok(()) => Ok(true),
        Err(FileError::Io(error)) if error.kind() == std::io::ErrorKind::StorageFull => Ok(false),
        Err(error) => Err(text(error)),
    }
}

pub(super) fn refused(error: OpenRunsError) -> String {
    match error {
        OpenRunsError::File(error) => format!("does not open: {error}"),
        error => format!("does not open: {error:?}"),
    }
}

/// Returns the two manifests of a file, `None` for one that is not valid.
pub(super) fn manifests(file: &File, layout: Layout) -> Result<[Option<Manifest>; 2], String> {
    let mut found = [None, None];
    for (place, found) in (0..).zip(&mut found) {
        let start: u64 = place * u64::from(layout.chunk_bytes);
        let len = file.len().unwrap().saturating_sub(start);
        let mut bytes = vec![0; len.min(layout.chunk_bytes.into()) as usize];
        file.read(start, &mut bytes)
            .map_err(|error| error.to_string())?;
        let head = bytes.first_chunk();
        if let Some(length) = head.and_then(super::super::manifest::length) {
            bytes.truncate(length as usize);
            *found = Manifest::decode(&bytes).ok();
        }
    }
    Ok(found)
}

/// Returns the runs that may be merged: those of a merge that has begun, and neighbors that no merge concerns.
pub(super) fn mergeable(list: &RunList) -> Vec<Range<usize>> {
    let runs = &list.runs;
    let is_free = |index: usize| {
        let run = &runs[index];
        run.into.is_none() && !runs.iter().any(|input| input.into == Some(run.id))
    };
    let mut ranges = Vec::new();
    let mut begin = 0;
    while begin < runs.len() {
        let into = runs[begin].into;
        let same = runs[begin..].iter().take_while(|run| run.into == into);
        let end = begin + same.count();
        if into.is_some() {
            ranges.push(begin..end);
        }
        begin = end;
    }
    for begin in 0..runs.len() {
        let free = (begin..runs.len()).take_while(|&index| is_free(index));
        ranges.extend(free.map(|last| begin..last + 1));
    }
    ranges
}
