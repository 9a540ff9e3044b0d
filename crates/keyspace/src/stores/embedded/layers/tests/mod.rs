//! Random programs on layers, compared with a map for each version.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::Layers;
use crate::contract::env::Environment;
use crate::contract::transaction::key_after;
use crate::stores::embedded::backend::{Backend, MemoryBackend};
use crate::stores::embedded::entries::Entry;
use crate::stores::embedded::runs::manifest::Meta;
use crate::stores::embedded::runs::{Layout, RunLimits, RunStoreOptions, RunWriter, Runs};
use crate::stores::embedded::tests::seeds;
use crate::stores::embedded::window::tests::assert_sound;
use crate::stores::embedded::window::{Below, PartSnapshot, WindowPart};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A file in memory that counts its reads.
#[derive(Debug, Default)]
struct CountedFile {
    memory: MemoryBackend,
    reads: AtomicUsize,
}

impl Backend for CountedFile {
    fn len(&self) -> io::Result<u64> {
        self.memory.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.memory.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.memory.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.memory.sync_data()
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write(offset, bytes)
    }
}

/// Returns runs that hold rows, with small tables.
fn runs_of(rows: &Map, file: Arc<CountedFile>) -> Runs {
    let options = RunStoreOptions {
        layout: Layout {
            chunk_bytes: 128 << 10,
            table_bytes: 8 << 10,
        },
        cache_bytes: 0,
        limits: RunLimits::default(),
        env: Environment::system(),
    };
    let meta = Meta {
        last_version: 1,
        id: [0; 16],
        log: None,
    };
    let write = |writer: &mut RunWriter<'_>| {
        rows.iter()
            .try_for_each(|(key, value)| writer.add(Entry::Set { key, value }))
    };
    Runs::create(file, options, meta, write).unwrap()
}

/// A store without its engine: the layers, and their expected content.
struct LayersWorld {
    active: WindowPart,
    frozen: Vec<PartSnapshot>,
    file: Arc<CountedFile>,
    runs: Runs,
    model: Map,
    /// Published versions that are read again later.
    versions: Vec<(Layers, Map)>,
}

impl LayersWorld {
    fn new(rows: Map) -> Self {
        let file = Arc::new(CountedFile::default());
        Self {
            active: WindowPart::new(),
            frozen: Vec::new(),
            runs: runs_of(&rows, file.clone()),
            file,
            model: rows,
            versions: Vec::new(),
        }
    }

    /// Returns the number of reads of the file since the last call.
    fn take_reads(&self) -> usize {
        self.file.reads.swap(0, Ordering::Relaxed)
    }

    /// Returns the layers below the active part.
    fn below(&self) -> Layers {
        Layers::new(self.frozen.clone(), self.runs.list())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) {
        self.active.set(key, value);
        self.model.insert(key.to_vec(), value.to_vec());
    }

    fn clear(&mut self, key: &[u8]) {
        self.active.clear(key, &self.below()).unwrap();
        self.model.remove(key);
    }

    fn clear_range(&mut self, begin: &[u8], end: &[u8]) {
        self.active.clear_range(begin, end, &self.below()).unwrap();
        self.model
            .retain(|key, _| &key[..] < begin || end <= &key[..]);
    }

    fn publish(&mut self) -> Layers {
        let mut parts = vec![self.active.snapshot()];
        parts.extend(self.frozen.iter().cloned());
        let layers = Layers::new(parts, self.runs.list());
        self.versions.push((layers.clone(), self.model.clone()));
        layers
    }

    fn freeze(&mut self) {
        let active = std::mem::replace(&mut self.active, WindowPart::new());
        self.frozen.insert(0, active.freeze());
    }

    /// Moves the oldest frozen part to the runs, or merges some of them.
    fn checkpoint(&mut self, rng: &mut StdRng) {
        match self.frozen.pop() {
            Some(oldest) => {
                let added = self.runs.add_entries(oldest.entries(), |_| (), |_| ());
                added.unwrap();
            }
            None => drop(self.runs.merge_step(rng.random(), |_| ()).unwrap()),
        }
    }
}

/// The keys that a program uses.
#[derive(Debug, Clone, Copy)]
enum KeyKind {
    /// Up to three bytes, most of them zero, so that keys are often adjacent.
    Short,
    /// Up to 3,000 different keys, mostly ascending, so that trees have three levels.
    Numbered,
    /// Keys of almost 10,000 bytes that differ only in their last bytes.
    Long,
}

impl KeyKind {
    fn random(self, rng: &mut StdRng) -> Vec<u8> {
        match self {
            KeyKind::Short => {
                let len = rng.random_range(0..=3);
                (0..len)
                    .map(|_| [0, 0, 1, b'a'][rng.random_range(0..4)])
                    .collect()
            }
            KeyKind::Numbered => rng.random_range(0..3000_u16).to_be_bytes().to_vec(),
            KeyKind::Long => {
                let mut key = vec![b'k'; 9_990];
                key.extend(KeyKind::Short.random(rng));
                key
            }
        }
    }

    /// Returns the bounds of a range, which is sometimes empty or inverted.
    fn random_range(self, rng: &mut StdRng) -> (Vec<u8>, Vec<u8>) {
        let begin = self.random(rng);
        let end = match rng.random_range(0..10) {
            0 => b"\xff".to_vec(),
            1 => key_after(&begin),
            2..5 if matches!(self, KeyKind::Numbered) => {
                let number = u16::from_be_bytes([begin[0], begin[1]]);
                (number + rng.random_range(0..200)).to_be_bytes().to_vec()
            }
            _ => self.random(rng),
        };
        (begin, end)
    }
}

fn random_value(rng: &mut StdRng) -> Vec<u8> {
    let len = rng.random_range(0..4);
    (0..len).map(|_| rng.random()).collect()
}

fn compare(layers: &Layers, model: &Map, keys: KeyKind, rng: &mut StdRng) {
    for _ in 0..4 {
        let key = keys.random(rng);
        let value = layers.get(&key).unwrap();
        assert_eq!(
            value.as_deref(),
            model.get(&key).map(|value| &value[..]),
            "get {key:02x?}"
        );
        let live = layers.first_live_from(&key).unwrap();
        let first = model.range(key.clone()..).next();
        assert_eq!(
            live.as_deref(),
            first.map(|(key, _)| &key[..]),
            "from {key:02x?}"
        );
    }
    let whole = (Vec::new(), b"\xff".to_vec());
    let ranges = [whole, keys.random_range(rng), keys.random_range(rng)];
    for (begin, end) in ranges {
        for reverse in [false, true] {
            let max_rows = [0, 1, 2, 20, usize::MAX][rng.random_range(0..5)];
            let found = layers.scan(&begin, &end, reverse, max_rows).unwrap();
            let rows: Vec<_> = found.iter().map(|row| (row.key(), row.value())).collect();
            let mut expected: Vec<_> = model
                .iter()
                .map(|(key, value)| (&key[..], &value[..]))
                .filter(|(key, _)| &begin[..] <= *key && *key < &end[..])
                .collect();
            if reverse {
                expected.reverse();
            }
            expected.truncate(max_rows);
            assert_eq!(
                rows, expected,
                "scan {begin:02x?}..{end:02x?}, reverse: {reverse}, max_rows: {max_rows}"
            );
        }
    }
}

fn run_program(seed: u64, keys: KeyKind, steps: usize) {
    let rng = &mut StdRng::seed_from_u64(seed);
    let mut base = Map::new();
    for _ in 0..rng.random_range(0..steps) {
        base.insert(keys.random(rng), random_value(rng));
    }
    let mut world = LayersWorld::new(base);
    let mut ascending = 0_u16;
    let sets = rng.random_range(10..60);
    for step in 0..steps {
        match rng.random_range(0..100) {
            choice if choice < sets => {
                ascending = (ascending + 1) % 3000;
                let key = match keys {
                    KeyKind::Numbered if choice % 4 > 0 => ascending.to_be_bytes().to_vec(),
                    _ => keys.random(rng),
                };
                world.set(&key, &random_value(rng));
            }
            60..75 => world.clear(&keys.random(rng)),
            75..82 => {
                // Pops the head of a queue.
                let first = world.model.keys().next().cloned();
                world.clear(&first.unwrap_or_default());
            }
            82..90 => {
                let (begin, end) = keys.random_range(rng);
                world.clear_range(&begin, &end);
            }
            90..96 => {
                let layers = world.publish();
                compare(&layers, &world.model, keys, rng);
            }
            96..98 => world.freeze(),
            98..100 => world.checkpoint(rng),
            _ => {}
        }
        if !matches!(keys, KeyKind::Numbered) || step % 16 == 0 {
            assert_sound(&world.active, &world.below());
        }
        if step % 64 == 0 {
            for (layers, model) in &world.versions {
                compare(layers, model, keys, rng);
            }
            let forgotten = world.versions.len() / 2;
            world.versions.drain(..forgotten);
        }
    }
    world.publish();
    for (layers, model) in &world.versions {
        compare(layers, model, keys, rng);
    }
}

/// Runs programs. To repeat one that failed, set `TEST_SEED=<seed>`.
fn run_programs(keys: KeyKind, programs: usize, steps: usize) {
    for seed in seeds(programs) {
        println!("TEST_SEED={seed}, {keys:?}");
        run_program(seed, keys, steps);
    }
}

#[test]
fn programs_of_short_keys_read_at_every_version_what_the_model_holds() {
    run_programs(KeyKind::Short, 200, 300);
}

#[test]
fn programs_of_many_keys_read_at_every_version_what_the_model_holds() {
    run_programs(KeyKind::Numbered, 6, 4000);
}

#[test]
fn programs_of_long_keys_read_at_every_version_what_the_model_holds() {
    run_programs(KeyKind::Long, 4, 200);
}

fn numbered(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn world_of(rows: u32) -> LayersWorld {
    LayersWorld::new(
        (0..rows)
            .map(|row| (numbered(row), b"value".to_vec()))
            .collect(),
    )
}

#[test]
fn rows_cleared_one_by_one_are_one_gap_and_cost_a_read_two_blocks() {
    let mut world = world_of(3000);
    for row in 0..2000 {
        world.clear(&numbered(row));
    }
    let layers = world.publish();
    assert_eq!(layers.parts[0].entries().count(), 1);
    world.take_reads();
    let rows = layers.scan(&numbered(0), b"\xff", false, 1).unwrap();
    assert_eq!(rows[0].key(), numbered(2000));
    assert!(world.take_reads() <= 4);
    let rows = layers.scan(&numbered(0), &numbered(2000), true, 1).unwrap();
    assert_eq!(rows.len(), 0);
    assert_eq!(world.take_reads(), 0);
}

#[test]
fn a_gap_in_a_run_is_not_read_row_by_row() {
    let mut world = world_of(3000);
    world.clear_range(&numbered(1), &numbered(2000));
    world.freeze();
    world.checkpoint(&mut StdRng::seed_from_u64(0));
    let layers = world.publish();
    for reverse in [false, true] {
        world.take_reads();
        let rows = layers.scan(b"", &numbered(2001), reverse, 2).unwrap();
        assert_eq!(rows.len(), 2);
        let reads = world.take_reads();
        assert!((1..20).contains(&reads), "{reads}");
    }
}

#[test]
fn a_read_of_rows_that_a_part_holds_does_not_read_the_file() {
    let mut world = world_of(3000);
    world.set(&numbered(5), b"new");
    let layers = world.publish();
    world.take_reads();
    let rows = layers.scan(&numbered(5), b"\xff", false, 1).unwrap();
    assert_eq!(rows[0].value(), b"new");
    assert_eq!(world.take_reads(), 0);
}
