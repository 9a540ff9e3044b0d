//! Positions inside blocks, set by one transaction at a time: which entries are read after them, and
//! which blocks are cleared.

use std::time::{Duration, SystemTime};

use combine::hc_dequeue::session::SessionId;
use combine::keyspace::error::{chain, corrupt_key};
use combine::keyspace::{
    self, Bytes, Database, Isolation, OpenOptions, OwnedTransaction, Runner, Store, Transaction,
};
use combine::microqueue::blocks::{EntryId, WHOLE_BLOCK};
use combine::{Bucket, Pending, Settings};

use crate::error::Error;
use crate::exporting::batch::{Advance, Batch, ClaimOutcome, Portion};
use crate::queue::ExportQueue;
use crate::subscription::Subscription;
use crate::subscription::subscribe::Start;

const SESSION: SessionId = SessionId([1; 16]);

const BUCKET: Bucket = Bucket(0);

type Reader = Subscription<String, u64>;

struct OneBucket {
    runner: Runner<Store>,
    queue: ExportQueue<String, u64>,
}

impl OneBucket {
    async fn new() -> Self {
        let runner = Runner::new(keyspace::open("memory:").unwrap());
        let settings = Settings::new().with_bucket_count(1);
        let queue = ExportQueue::open_with(&runner, "queue", settings, OpenOptions::default())
            .await
            .unwrap();
        Self { runner, queue }
    }

    /// Creates a subscription with a session that is alive.
    async fn subscribe(&self, name: &str, start: Start) -> Reader {
        let reader = self
            .queue
            .subscribe(&self.runner, name, start)
            .await
            .unwrap();
        let mut tr = self.begin();
        reader.sessions().open(
            &tr,
            SESSION,
            Duration::from_secs(10),
            SystemTime::UNIX_EPOCH,
        );
        tr.commit().await.unwrap();
        reader
    }

    fn begin(&self) -> <Store as Database>::Transaction {
        self.runner.database().begin().unwrap()
    }

    /// Adds one block with this number of entries.
    async fn add(&self, entries: u64) {
        let mut tr = self.begin();
        self.stage(&tr, entries).await;
        tr.commit().await.unwrap();
    }

    async fn stage(&self, tr: &<Store as Database>::Transaction, entries: u64) {
        let key = "key".to_owned();
        let values: Vec<_> = (0..entries).collect();
        let entries = values.iter().map(|value| (&key, value));
        self.queue.add_all(tr, entries).await.unwrap();
    }

    /// Exports a batch of at most `entries` entries, sets the position after it, and returns it.
    async fn export(&self, reader: &Reader, entries: usize) -> Option<Batch> {
        let portion = Portion {
            entries,
            bytes: usize::MAX,
        };
        let mut tr = self.begin();
        let claimed = reader.claim_batch(&tr, SESSION, BUCKET, portion, None);
        let batch = match claimed.await.unwrap() {
            ClaimOutcome::Batch(batch) => batch,
            ClaimOutcome::Nothing => return None,
            other => panic!("{other:?}"),
        };
        tr.commit().await.unwrap();
        let advance = Advance {
            position: batch.end,
            dead: Vec::new(),
            releases_claim: false,
        };
        let mut tr = self.begin();
        let advanced = reader.advance(&tr, SESSION, BUCKET, &advance).await;
        assert!(advanced.unwrap());
        tr.commit().await.unwrap();
        Some(batch)
    }

    async fn position(&self, reader: &Reader) -> Option<EntryId> {
        let tr = self.begin();
        let position = reader.position(&tr, BUCKET, Isolation::Snapshot).await;
        position.unwrap().map(|position| position.id())
    }

    async fn pending(&self, reader: &Reader) -> Pending {
        reader.pending(&self.begin(), BUCKET).await.unwrap()
    }

    /// Replaces the bytes of the first block, and returns the old ones.
    async fn put_first(&self, bytes: &[u8]) -> Bytes {
        let first = self.blocks().await[0].block();
        let row = first.key_in(&self.queue.keys.logs.subspace(0));
        let before = self.begin().get(&row, Isolation::Snapshot).await.unwrap();
        self.set(&row, bytes).await;
        before.unwrap()
    }

    async fn set(&self, row: &[u8], bytes: &[u8]) {
        let mut tr = self.begin();
        tr.set(row, bytes);
        tr.commit().await.unwrap();
    }

    /// Returns the ids of the remaining blocks.
    async fn blocks(&self) -> Vec<EntryId> {
        let tr = self.begin();
        let mut blocks = Vec::new();
        let visited = self.queue.keys.logs.visit(&tr, 0, None, |block| {
            blocks.push(block.id);
            Ok::<_, Error>(std::ops::ControlFlow::Continue(()))
        });
        visited.await.unwrap();
        blocks
    }
}

#[tokio::test]
async fn the_last_entry_of_a_block_moves_the_position_past_the_block() {
    let world = OneBucket::new().await;
    let reader = &world.subscribe("reader", Start::Oldest).await;
    world.add(3).await;
    let block = world.blocks().await[0];
    for (index, has_more) in [(0, true), (1, true), (WHOLE_BLOCK, false)] {
        let batch = world.export(reader, 1).await.unwrap();
        assert_eq!((batch.count(), batch.has_more), (1, has_more));
        let expected = EntryId { index, ..block };
        assert_eq!(world.position(reader).await, Some(expected));
        assert_eq!(world.blocks().await.len(), usize::from(has_more));
    }
    assert!(world.export(reader, 1).await.is_none());
}

/// Returns a queue with two subscriptions, and a log of three blocks of three entries.
async fn three_blocks() -> (OneBucket, Reader, Reader) {
    let world = OneBucket::new().await;
    let quick = world.subscribe("quick", Start::Oldest).await;
    let slow = world.subscribe("slow", Start::Oldest).await;
    for _ in 0..3 {
        world.add(3).await;
    }
    (world, quick, slow)
}

#[tokio::test]
async fn a_trim_ends_before_the_block_that_the_slowest_is_inside_of() {
    let (world, quick, slow) = three_blocks().await;
    let quick = &quick;
    let slow = &slow;
    let blocks = world.blocks().await;
    for (reader, entries, expected) in [
        // The slow subscription has exported nothing and has passed nothing.
        (quick, 9, &blocks[..]),
        (slow, 1, &blocks[..]),
        (slow, 1, &blocks[..]),
        (slow, 1, &blocks[1..]),
        (slow, 2, &blocks[1..]),
        (slow, 2, &blocks[2..]),
        (slow, 2, &[]),
    ] {
        let batch = world.export(reader, entries).await.unwrap();
        assert_eq!(batch.count(), entries);
        assert_eq!(world.blocks().await, expected);
    }
}

#[tokio::test]
async fn one_that_begins_with_a_commit_sees_nothing_that_it_adds() {
    for adds_first in [true, false] {
        let world = OneBucket::new().await;
        world.subscribe("holds the log", Start::Oldest).await;
        world.add(2).await;
        let mut tr = world.begin();
        if adds_first {
            world.stage(&tr, 2).await;
        }
        world.queue.create(&tr, "late", Start::Now).await.unwrap();
        if !adds_first {
            world.stage(&tr, 2).await;
        }
        tr.commit().await.unwrap();
        let late = &world.subscribe("late", Start::Oldest).await;
        let begin = world.position(late).await.unwrap();
        assert_eq!((begin.call, begin.index), (u64::MAX, WHOLE_BLOCK));
        let last = *world.blocks().await.last().unwrap();
        assert_eq!(begin.versionstamp, last.versionstamp);
        assert!(world.export(late, 9).await.is_none());
        world.add(1).await;
        assert_eq!(world.export(late, 9).await.unwrap().count(), 1);
    }
}

#[tokio::test]
async fn pending_entries_are_counted_after_the_position() {
    let world = OneBucket::new().await;
    let reader = &world.subscribe("reader", Start::Oldest).await;
    world.add(3).await;
    world.add(2).await;
    for expected in (0..=5).rev() {
        let pending = world.pending(reader).await;
        let tr = world.begin();
        assert_eq!((pending.count, pending.has_more), (expected, false));
        let behind = reader.unfinished_buckets(&tr).await.unwrap();
        assert_eq!(behind.is_empty(), expected == 0);
        assert_eq!(reader.lag(&tr).await.unwrap().is_some(), expected > 0);
        world.export(reader, 1).await;
    }
}

#[tokio::test]
async fn pending_entries_are_counted_after_a_trim() {
    let (world, quick, slow) = three_blocks().await;
    let quick = &quick;
    let slow = &slow;
    let blocks = world.blocks().await;
    world.export(slow, 5).await;
    // The fast subscription clears the first block, and the position of the slow one is inside the
    // second.
    world.export(quick, 8).await;
    assert_eq!(world.blocks().await, blocks[1..]);
    let quick = world.pending(quick).await;
    let slow = world.pending(slow).await;
    assert_eq!((quick.count, slow.count), (1, 4));
    // The bytes are those of whole blocks, including a block that is exported in part.
    assert_eq!(slow.bytes, 2 * quick.bytes);
}

#[tokio::test]
async fn a_broken_block_is_one_entry_that_waits_wherever_the_position_is() {
    let world = OneBucket::new().await;
    let reader = &world.subscribe("reader", Start::Oldest).await;
    world.add(3).await;
    world.add(2).await;
    for expected in [5, 4, 3] {
        assert_eq!(world.pending(reader).await.count, expected);
        let block = world.put_first(b"no block").await;
        assert_eq!(world.pending(reader).await.count, 1 + 2);
        world.put_first(&block).await;
        world.export(reader, 1).await;
    }
}

#[tokio::test]
async fn batches_stop_at_a_block_of_a_newer_version_until_the_upgrade() {
    for newer in [&b"\x02"[..], b"\x01\x02"] {
        let world = OneBucket::new().await;
        let reader = &world.subscribe("reader", Start::Oldest).await;
        for entries in [3, 2, 1] {
            world.add(entries).await;
        }
        let row = world.blocks().await[1]
            .block()
            .key_in(&world.queue.keys.logs.subspace(0));
        let tr = world.begin();
        let whole = tr.get(&row, Isolation::Snapshot).await.unwrap().unwrap();
        let newer = [newer, &whole[newer.len()..]].concat();
        world.set(&row, &newer).await;

        // The entries before the block are exported.
        let batch = world.export(reader, 9).await.unwrap();
        assert_eq!((batch.count(), batch.has_more), (3, true));
        let portion = Portion {
            entries: 9,
            bytes: usize::MAX,
        };
        let tr = world.begin();
        let claimed = reader.claim_batch(&tr, SESSION, BUCKET, portion, None);
        let refused = claimed.await.unwrap_err();
        assert_eq!(corrupt_key(&refused), Some(&row[..]), "{refused}");
        let reason = chain(&refused).to_string();
        assert!(reason.ends_with("upgrade the library"), "{reason}");

        world.set(&row, &whole).await;
        let batch = world.export(reader, 9).await.unwrap();
        assert_eq!((batch.entries.len(), batch.broken.len()), (3, 0));
    }
}
