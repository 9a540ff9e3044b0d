//! Random programs on layers, compared with a map for each version.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Base, BaseRow, Layers};
use crate::embedded::tests::seeds;
use crate::embedded::tree::damage::Damage;
use crate::embedded::window::tests::assert_sound;
use crate::embedded::window::{Below, Entry, Part, PartSnapshot};
use crate::transaction::key_after;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A base in memory that counts its reads.
#[derive(Clone, Default)]
struct MapBase {
    rows: Arc<Map>,
    ranges: Arc<AtomicUsize>,
    steps: Arc<AtomicUsize>,
}

impl MapBase {
    fn new(rows: Map) -> Self {
        Self {
            rows: Arc::new(rows),
            ..Self::default()
        }
    }

    /// Returns the number of ranges opened and of rows read since the last call.
    fn take_counts(&self) -> (usize, usize) {
        let take = |count: &AtomicUsize| count.swap(0, Ordering::Relaxed);
        (take(&self.ranges), take(&self.steps))
    }
}

impl Base for MapBase {
    type Error = Damage;
    type Row = (Vec<u8>, Vec<u8>);
    type Range<'a> = Box<dyn DoubleEndedIterator<Item = Result<Self::Row, Damage>> + 'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Damage> {
        Ok(self.rows.get(key).cloned().map(Bytes::from))
    }

    fn range(&self, begin: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<Self::Range<'_>, Damage> {
        self.ranges.fetch_add(1, Ordering::Relaxed);
        let rows = self.rows.range::<[u8], _>((begin, end));
        Ok(Box::new(rows.map(|(key, value)| {
            self.steps.fetch_add(1, Ordering::Relaxed);
            Ok((key.clone(), value.clone()))
        })))
    }
}

impl BaseRow for (Vec<u8>, Vec<u8>) {
    fn key(&self) -> &[u8] {
        &self.0
    }

    fn value(&self) -> &[u8] {
        &self.1
    }
}

/// A store without its engine: the layers, and their expected content.
struct LayersWorld {
    active: Part,
    frozen: Vec<PartSnapshot>,
    base: MapBase,
    model: Map,
    /// Published versions that are read again later.
    versions: Vec<(Layers<MapBase>, Map)>,
}

impl LayersWorld {
    fn new(base: Map) -> Self {
        Self {
            active: Part::new(),
            frozen: Vec::new(),
            model: base.clone(),
            base: MapBase::new(base),
            versions: Vec::new(),
        }
    }

    /// Returns the layers below the active part.
    fn below(&self) -> Layers<MapBase> {
        Layers::new(self.frozen.clone(), self.base.clone())
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

    fn publish(&mut self) -> Layers<MapBase> {
        let mut parts = vec![self.active.snapshot()];
        parts.extend(self.frozen.iter().cloned());
        let layers = Layers::new(parts, self.base.clone());
        self.versions.push((layers.clone(), self.model.clone()));
        layers
    }

    fn freeze(&mut self) {
        let active = std::mem::replace(&mut self.active, Part::new());
        self.frozen.insert(0, active.freeze());
    }

    /// Moves the oldest frozen part to the base.
    fn checkpoint(&mut self) {
        let Some(oldest) = self.frozen.pop() else {
            return;
        };
        let mut rows = Map::clone(&self.base.rows);
        for entry in oldest.entries() {
            match entry {
                Entry::Set { key, value } => {
                    rows.insert(key.to_vec(), value.to_vec());
                }
                Entry::Gap { begin, end } => {
                    rows.retain(|key, _| &key[..] < begin || end <= &key[..]);
                }
            }
        }
        self.base = MapBase::new(rows);
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

fn compare(layers: &Layers<MapBase>, model: &Map, keys: KeyKind, rng: &mut StdRng) {
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
            98..100 => world.checkpoint(),
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
fn rows_cleared_one_by_one_are_one_gap_and_cost_a_read_one_row_of_the_base() {
    let mut world = world_of(3000);
    for row in 0..2000 {
        world.clear(&numbered(row));
    }
    let layers = world.publish();
    assert_eq!(layers.parts[0].entries().count(), 1);
    world.base.take_counts();
    let rows = layers.scan(&numbered(0), b"\xff", false, 1).unwrap();
    assert_eq!(rows[0].key(), numbered(2000));
    assert_eq!(world.base.take_counts(), (1, 1));
    let rows = layers.scan(&numbered(0), &numbered(2000), true, 1).unwrap();
    assert_eq!(rows.len(), 0);
    assert_eq!(world.base.take_counts(), (0, 0));
}

#[test]
fn a_short_gap_is_stepped_over_and_a_long_one_is_not() {
    for (cleared, counts) in [(7, (1, 9)), (1000, (2, 11))] {
        let mut world = world_of(3000);
        world.clear_range(&numbered(1), &numbered(1 + cleared));
        let layers = world.publish();
        for reverse in [false, true] {
            world.base.take_counts();
            let rows = layers
                .scan(b"", &numbered(2 + cleared), reverse, 2)
                .unwrap();
            assert_eq!(rows.len(), 2);
            assert_eq!(world.base.take_counts(), counts, "{cleared} cleared rows");
        }
    }
}

#[test]
fn a_read_of_rows_that_a_part_holds_does_not_ask_the_base() {
    let mut world = world_of(3000);
    world.set(&numbered(5), b"new");
    let layers = world.publish();
    world.base.take_counts();
    let rows = layers.scan(&numbered(5), b"\xff", false, 1).unwrap();
    assert_eq!(rows[0].value(), b"new");
    assert_eq!(world.base.take_counts(), (0, 0));
}

/// A base whose rows are not where they belong, as damage leaves them: a range returns rows from anywhere.
#[derive(Clone)]
struct Misplaced {
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    steps: Arc<AtomicUsize>,
}

impl Base for Misplaced {
    type Error = Damage;
    type Row = (Vec<u8>, Vec<u8>);
    type Range<'a> = Box<dyn DoubleEndedIterator<Item = Result<Self::Row, Damage>> + 'a>;

    fn get(&self, _key: &[u8]) -> Result<Option<Bytes>, Damage> {
        Ok(None)
    }

    fn range(&self, _: Bound<&[u8]>, _: Bound<&[u8]>) -> Result<Self::Range<'_>, Damage> {
        Ok(Box::new(self.rows.iter().cloned().map(|row| {
            let steps = self.steps.fetch_add(1, Ordering::Relaxed);
            assert!(steps < 10_000, "it reads the same rows again and again");
            Ok(row)
        })))
    }
}

#[test]
fn rows_that_are_out_of_place_end_every_read_with_damage() {
    for seed in 0..200 {
        let mut rng = StdRng::seed_from_u64(seed);
        let count = rng.random_range(1..40);
        let rows = (0..count).map(|_| (numbered(rng.random_range(0..100)), Vec::new()));
        let base = Misplaced {
            rows: rows.collect(),
            steps: Arc::default(),
        };
        let mut part = Part::new();
        for _ in 0..rng.random_range(0..10) {
            part.set(&numbered(rng.random_range(0..100)), b"");
        }
        let layers = Layers::new(vec![part.freeze()], base);
        let bounds = [rng.random_range(0..50), rng.random_range(50..100)].map(numbered);
        for reverse in [false, true] {
            layers.base.steps.store(0, Ordering::Relaxed);
            let Ok(found) = layers.scan(&bounds[0], &bounds[1], reverse, usize::MAX) else {
                continue;
            };
            let mut keys: Vec<_> = found.iter().map(|row| row.key()).collect();
            if reverse {
                keys.reverse();
            }
            assert!(keys.is_sorted_by(|one, other| one < other), "seed {seed}");
            let is_within = |key: &&[u8]| bounds[0][..] <= **key && **key < bounds[1][..];
            assert!(keys.iter().all(is_within), "seed {seed}");
        }
        layers.base.steps.store(0, Ordering::Relaxed);
        if let Ok(Some(live)) = layers.first_live_from(&bounds[0]) {
            assert!(bounds[0][..] <= live[..], "seed {seed}");
        }
    }
}
