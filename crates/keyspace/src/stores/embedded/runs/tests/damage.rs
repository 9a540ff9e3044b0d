//! Damage: a changed file is refused, or gives all rows.
//!
//! Every byte of a small closed file is changed, its pieces are zeroed, and its blocks and chunks change places. Each
//! time, everything is read. If damage is not found, the rows must be right. That is only so for one of the two
//! manifests.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::block::{CHECKSUM_BYTES, sign};
use super::super::damage::FileError;
use super::super::run::RunList;
use super::super::{Layout, OpenRunsError, Runs};
use super::blocks::{Kind, blocks};
use super::plants::place_in_file;
use super::program::manifests;
use super::{META, Rows, Written, apply, options};
use crate::stores::embedded::backend::{Backend, File, MemoryBackend};
use crate::stores::embedded::layers::Layers;

/// A closed file, and what it holds.
struct Closed {
    layout: Layout,
    bytes: Vec<u8>,
    rows: Rows,
}

/// What is found in a changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Damage(String),
    AllRows,
    WrongRows(String),
}

fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read(0, &mut bytes).unwrap();
    bytes
}

fn file_of(bytes: &[u8]) -> File {
    let file = MemoryBackend::default();
    file.write(0, bytes).unwrap();
    Arc::new(file)
}

impl Closed {
    /// Returns a store with some runs.
    fn new(layout: Layout, runs_of_entries: &[Vec<Written>]) -> Self {
        let file: File = Arc::new(MemoryBackend::default());
        let runs = Runs::create(file.clone(), options(layout, 0, 0), META, |_| {
            Ok::<_, FileError>(())
        });
        let runs = runs.unwrap();
        let mut rows = Rows::new();
        for entries in runs_of_entries {
            let written = entries.iter().map(Written::entry);
            runs.add_entries(written, |_| (), |_| ()).unwrap();
            apply(&mut rows, entries);
        }
        runs.close().unwrap();
        Self {
            layout,
            bytes: read_all(&file),
            rows,
        }
    }

    /// Two runs of a table each, with Sets and Gaps.
    fn small() -> Self {
        let set = |key: &str, len| Written::Set(key.into(), vec![key.as_bytes()[0]; len]);
        let gap = |begin: &str, end: &str| Written::Gap(begin.into(), end.into());
        let older = vec![
            set("a", 9),
            set("ab", 0),
            set("c", 30),
            set("d", 5),
            set("e", 1),
        ];
        let newer = vec![
            set("ab", 7),
            gap("b", "bb"),
            set("c", 2),
            gap("d", "da"),
            set("f", 3),
        ];
        let layout = Layout {
            chunk_bytes: 512,
            table_bytes: 1000,
        };
        Self::new(layout, &[older, newer])
    }

    /// Two runs of several tables, whose blocks have the same lengths.
    fn large() -> Self {
        let entries = |begin: u32| -> Vec<Written> {
            let set = |n: u32| {
                let key = format!("{begin:03}/{n:04}").into_bytes();
                Written::Set(key.clone(), key.repeat(25))
            };
            (0..110).map(set).collect()
        };
        let layout = Layout {
            chunk_bytes: 2048,
            table_bytes: 8300,
        };
        Self::new(layout, &[entries(1), entries(2)])
    }

    fn open(&self, bytes: &[u8]) -> Result<Runs, OpenRunsError> {
        Runs::open(file_of(bytes), options(self.layout, 1 << 20, 0))
    }

    /// Reads everything in a changed file.
    fn found(&self, bytes: &[u8]) -> Found {
        let runs = match self.open(bytes) {
            Ok(runs) => runs,
            Err(OpenRunsError::File(FileError::Damage(damage))) => {
                return Found::Damage(damage.to_string());
            }
            Err(error) => return Found::WrongRows(format!("{error:?}")),
        };
        let list = runs.list();
        let mut damage = None;
        let right = self.reads(&list).into_iter().all(|read| match read {
            Ok(is_right) => is_right,
            Err(FileError::Damage(found)) => {
                damage.get_or_insert(found.to_string());
                true
            }
            Err(FileError::Io(error)) => panic!("{error}"),
        });
        match damage {
            _ if !right => Found::WrongRows("rows are wrong".to_owned()),
            Some(damage) => Found::Damage(damage),
            None => Found::AllRows,
        }
    }

    /// Returns of each read whether it gives the right rows.
    fn reads(&self, list: &Arc<RunList>) -> Vec<Result<bool, FileError>> {
        let absent = [&b"aa"[..], b"b", b"da", b"zz"].into_iter();
        let keys = self.rows.keys().map(|key| &key[..]).chain(absent);
        let mut reads: Vec<_> = keys
            .map(|key| {
                let expected = self.rows.get(key).map(|value| &value[..]);
                Ok(list.get(key)?.as_deref() == expected)
            })
            .collect();
        let layers = Layers::new(Vec::new(), list.clone());
        for reverse in [false, true] {
            let rows = layers.scan(b"", b"\xff", reverse, usize::MAX);
            reads.push(rows.map(|mut rows| {
                if reverse {
                    rows.reverse();
                }
                let rows = rows.iter().map(|row| (row.key(), row.value()));
                rows.eq(self.rows.iter().map(|(key, value)| (&key[..], &value[..])))
            }));
        }
        let rows = self.rows.len() as u64;
        let verified = list.verify(|_, _| ());
        reads.push(verified.map(|found| found.rows == rows));
        reads
    }

    /// Returns the bytes of the two manifests.
    fn manifests(&self) -> [Range<usize>; 2] {
        let file = file_of(&self.bytes);
        let found = manifests(&file, self.layout).unwrap();
        let lengths = found.map(|manifest| manifest.unwrap().encode().len());
        let second = self.layout.chunk_bytes as usize;
        [0..lengths[0], second..second + lengths[1]]
    }

    fn is_in_manifest(&self, at: usize) -> bool {
        self.manifests().iter().any(|range| range.contains(&at))
    }

    fn list(&self) -> Arc<RunList> {
        self.open(&self.bytes)
            .unwrap_or_else(|error| panic!("{error:?}"))
            .list()
    }

    /// Returns where the bytes of the tables lie in the file.
    fn table_bytes(&self) -> Vec<usize> {
        let list = self.list();
        let places = list
            .tables()
            .flat_map(|table| (0..table.bytes).map(|offset| place_in_file(table, offset) as usize));
        places.collect()
    }

    /// Checks a change: only that of one manifest may not be noticed.
    fn check(&self, bytes: &[u8], is_in_manifest: bool, what: &str) {
        let found = self.found(bytes);
        match found {
            Found::AllRows => assert!(is_in_manifest, "{what} is not noticed"),
            Found::Damage(damage) => assert!(!is_in_manifest, "{what}: {damage}"),
            Found::WrongRows(error) => panic!("{what}: {error}"),
        }
    }
}

#[test]
fn a_changed_byte_is_noticed_unless_it_is_one_of_a_manifest() {
    let closed = Closed::small();
    assert_eq!(closed.found(&closed.bytes), Found::AllRows);
    let mut rng = StdRng::seed_from_u64(0);
    let tables = closed.table_bytes();
    assert!(tables.len() > 300, "{}", tables.len());
    let manifests = closed.manifests().into_iter().flatten();
    for at in tables.into_iter().chain(manifests) {
        for change in [1 << rng.random_range(0..8), rng.random_range(1..=255)] {
            let mut bytes = closed.bytes.clone();
            bytes[at] ^= change;
            let what = format!("byte {at} xor {change:#x}");
            closed.check(&bytes, closed.is_in_manifest(at), &what);
        }
    }
}

#[test]
fn a_zeroed_piece_is_noticed_unless_it_is_one_of_a_manifest() {
    const PIECE_BYTES: usize = 64;
    for closed in [Closed::small(), Closed::large()] {
        let tables = closed.table_bytes();
        for begin in (0..closed.bytes.len()).step_by(PIECE_BYTES) {
            let end = closed.bytes.len().min(begin + PIECE_BYTES);
            let mut bytes = closed.bytes.clone();
            bytes[begin..end].fill(0);
            let is_in_table = tables.iter().any(|at| (begin..end).contains(at));
            if bytes != closed.bytes {
                let what = format!("the bytes from {begin} on");
                closed.check(&bytes, !is_in_table, &what);
            }
        }
        let mut bytes = closed.bytes.clone();
        for range in closed.manifests() {
            bytes[range.start + 30] ^= 1;
        }
        closed.check(&bytes, false, "both manifests");
    }
}

#[test]
fn a_file_that_ends_too_early_is_noticed() {
    let closed = Closed::small();
    for len in (closed.layout.chunk_bytes as usize)..closed.bytes.len() {
        closed.check(&closed.bytes[..len], false, &format!("only {len} bytes"));
    }
}

#[test]
fn blocks_that_have_changed_places_are_noticed() {
    let closed = Closed::large();
    let list = closed.list();
    assert_eq!(list.runs.len(), 2);
    assert!(list.runs.iter().all(|run| run.tables.len() > 2));
    let blocks = blocks(&list);
    let mut exchanged = 0;
    for (index, one) in blocks.iter().enumerate() {
        for other in &blocks[index + 1..] {
            let contents = [one, other].map(|block| block.read(&closed.bytes));
            if one.bytes != other.bytes || contents[0] == contents[1] {
                continue;
            }
            exchanged += 1;
            let mut bytes = closed.bytes.clone();
            one.write(&mut bytes, &contents[1]);
            let what = format!("{:?} {} written twice", other.kind, other.offset);
            closed.check(&bytes, false, &what);
            other.write(&mut bytes, &contents[0]);
            let what = format!("{:?} {} for {}", one.kind, one.offset, other.offset);
            closed.check(&bytes, false, &what);
        }
    }
    assert!(exchanged > 30, "{exchanged}");
}

#[test]
fn chunks_that_have_changed_places_are_noticed() {
    let closed = Closed::large();
    let chunk_bytes = closed.layout.chunk_bytes as usize;
    let chunks = closed.bytes.len() / chunk_bytes;
    for one in 2..chunks {
        for other in one + 1..chunks {
            let mut bytes = closed.bytes.clone();
            let (before, after) = bytes.split_at_mut(other * chunk_bytes);
            let one_chunk = &mut before[one * chunk_bytes..][..chunk_bytes];
            one_chunk.swap_with_slice(&mut after[..chunk_bytes]);
            if bytes != closed.bytes {
                closed.check(&bytes, false, &format!("chunk {one} for {other}"));
            }
        }
    }
}

/// Returns what is found in a changed file, or that reading it panics.
fn found_or_panic(closed: &Closed, bytes: &[u8]) -> Result<Found, String> {
    let found = catch_unwind(AssertUnwindSafe(|| closed.found(bytes)));
    found.map_err(|_| "a panic".to_owned())
}

#[test]
fn the_check_finds_wrong_rows_in_blocks_whose_checksums_are_right() {
    let closed = Closed::small();
    let mut rng = StdRng::seed_from_u64(0);
    let mut wrong = [0; 4];
    let mut panics = Vec::new();
    for block in blocks(&closed.list()) {
        let good = block.read(&closed.bytes);
        for at in 0..good.len() - CHECKSUM_BYTES {
            for _ in 0..4 {
                let mut content = good[..good.len() - CHECKSUM_BYTES].to_vec();
                content[at] ^= [1 << rng.random_range(0..8), rng.random_range(1..=255)]
                    [rng.random_range(0..2)];
                let mut bytes = closed.bytes.clone();
                block.write(&mut bytes, &block.sign(content));
                match found_or_panic(&closed, &bytes) {
                    Ok(Found::WrongRows(_)) => wrong[block.kind as usize] += 1,
                    Ok(_) => {}
                    Err(_) => panics.push(format!("{:?} byte {at}", block.kind)),
                }
            }
        }
    }
    assert!(panics.is_empty(), "{panics:#?}");
    assert!(wrong[Kind::Leaf as usize] > 50, "{wrong:?}");
    assert!(wrong[Kind::Filter as usize] > 0, "{wrong:?}");
}

#[test]
fn a_wrong_manifest_with_a_right_checksum_is_no_reason_to_panic() {
    let closed = Closed::small();
    let mut rng = StdRng::seed_from_u64(0);
    let manifests = closed.manifests();
    let good = &closed.bytes[manifests[0].clone()];
    let mut wrong = 0;
    for at in 0..good.len() - CHECKSUM_BYTES {
        for change in [1, 0x80, 0xff, rng.random_range(1..=255)] {
            let mut manifest = good[..good.len() - CHECKSUM_BYTES].to_vec();
            manifest[at] ^= change;
            sign(&mut manifest, 0);
            let mut bytes = closed.bytes.clone();
            for range in manifests.clone() {
                bytes[range].copy_from_slice(&manifest);
            }
            let found = found_or_panic(&closed, &bytes);
            let found = found.unwrap_or_else(|error| panic!("byte {at} xor {change}: {error}"));
            wrong += usize::from(matches!(found, Found::WrongRows(_)));
        }
    }
    assert!(wrong > 0);
}
