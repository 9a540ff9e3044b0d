//! Ways to add to the counts of keys, as one trait, so that one harness measures them all.

mod combined;
mod modify;
mod sets;

use std::future::Future;

use keyspace::codec::{Codec, MessagePack};

pub use self::combined::{Added, Staged};
pub use self::modify::ReadModifyWrite;
pub use self::sets::BlindSets;
use crate::contender::Site;

/// A key.
pub type Key = [u8; 8];

/// A count: the bytes of an integer, the most significant first, so that each takes as many.
pub type Count = [u8; 8];

/// What is added each time.
pub const ONE: Count = 1_u64.to_be_bytes();

/// A way to add one to the counts of keys.
///
/// Everything here commits, and tries again until it has. Failures for good are panics: a benchmark
/// of a store that fails has no result.
pub trait Adder: Send + Sync + Sized + 'static {
    /// Opens the counts.
    fn open(site: &Site) -> impl Future<Output = Self> + Send;

    /// Adds one to the count of each key, in one commit.
    fn add(&self, keys: &[Key]) -> impl Future<Output = ()> + Send;
}

/// Returns a count after some have been added to it.
fn sum(count: Option<Count>, added: &[Count]) -> Count {
    let added: u64 = added.iter().map(|count| u64::from_be_bytes(*count)).sum();
    (count.map_or(0, u64::from_be_bytes) + added).to_be_bytes()
}

/// Returns the bytes under which a count is stored.
fn encode(count: &Count) -> Vec<u8> {
    let mut bytes = Vec::new();
    MessagePack
        .encode(count, &mut bytes)
        .expect("an array can be encoded");
    bytes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use keyspace::{Isolation, KeyValue, RangeQuery, Runner, Subspace, read_all, tuple};

    use super::*;
    use crate::meter::Metered;

    const KEY: Key = *b"some key";

    fn site() -> Site {
        Site {
            db: Metered::new(keyspace::open("memory:").unwrap()),
            root: Subspace::from("test"),
        }
    }

    async fn rows(site: &Site, part: &Subspace) -> Vec<KeyValue> {
        let (begin, end) = part.range();
        let query = &RangeQuery::keys(begin, end);
        let rows = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
        Runner::new(site.db.clone()).run(rows).await.unwrap()
    }

    /// Has four tasks add to one key and to others.
    async fn add<A: Adder>(site: &Site) -> A {
        let adder = Arc::new(A::open(site).await);
        let tasks = (0..4_u64).map(|task| {
            let adder = adder.clone();
            tokio::spawn(async move {
                for _ in 0..5 {
                    adder.add(&[KEY]).await;
                    adder.add(&[KEY, task.to_be_bytes()]).await;
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        Arc::into_inner(adder).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_the_combine_queue_each_addition_counts_once() {
        let site = site();
        let added = add::<Added>(&site).await;
        let _staged = add::<Staged>(&site).await;
        assert_eq!(site.db.reading().conflicts, 0);
        let worker = added.work(1 << 20).await;
        added.settle().await;
        worker.stop().await;
        assert_eq!(added.total().await, 2 * 60);
        assert_eq!(added.settled(&KEY).await, 2 * 40);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_reads_that_are_written_back_each_addition_counts_once() {
        let site = site();
        add::<ReadModifyWrite>(&site).await;
        let rows = rows(&site, &site.queue()).await;
        let counts = rows.iter().map(|row| row.value().try_into().unwrap());
        let total: u64 = counts.map(u64::from_be_bytes).sum();
        assert_eq!((rows.len(), total), (5, 60));
    }

    #[tokio::test]
    async fn blind_sets_write_a_row_for_each_update_with_its_key_and_its_bytes() {
        let site = site();
        let other = 7_u64.to_be_bytes();
        BlindSets::open(&site).await.add(&[KEY, other]).await;
        let part = site.queue().subspace(&("u", 0));
        let found = rows(&site, &part).await;
        let mut keys = Vec::new();
        for row in &found {
            let unpacked = part.unpack(row.key()).unwrap();
            let (_, key, ..): (u32, Vec<u8>, tuple::Versionstamp, u64) = unpacked;
            keys.push(key);
            assert_eq!(row.value(), [&[1][..], &encode(&ONE)].concat());
        }
        keys.sort();
        assert_eq!(keys, [encode(&other), encode(&KEY)]);
    }
}
