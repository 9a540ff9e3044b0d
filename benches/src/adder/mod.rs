//! Ways to add to the counts of keys, behind one trait, so that one harness measures them all.

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

    use keyspace::{Environment, Isolation, RangeQuery, Subspace, read_all};
    use keyspace::{KeyValue, Runner};

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
        let (added, _staged) = (add::<Added>(&site).await, add::<Staged>(&site).await);
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
    async fn blind_sets_write_what_an_update_takes_beside_it() {
        // Numbers of calls that take two bytes each, however many others there are meanwhile.
        while Environment::system().next_call() <= u64::from(u8::MAX) {}
        let (updated, set) = (site(), site());
        Staged::open(&updated).await.add(&[KEY]).await;
        BlindSets::open(&set).await.add(&[KEY]).await;
        let [update, row] = [updated, set].map(|site| async move {
            let rows = rows(&site, &site.queue().subspace(&"u")).await;
            assert_eq!(rows.len(), 1);
            rows.into_iter().next().unwrap()
        });
        let (update, row) = (update.await, row.await);
        assert_eq!(update.value(), row.value());
        // All but the versionstamp, and the number of the call.
        let stamp_begins = update.key().len() - 14;
        assert_eq!(row.key().len(), update.key().len());
        assert_eq!(row.key()[..stamp_begins], update.key()[..stamp_begins]);
    }
}
