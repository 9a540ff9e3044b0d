//! Ways to queue, as one trait, so that one harness measures them all.

mod classic;
mod grouped;
mod high_contention;
mod members;
mod naive;
mod sets;

use std::future::Future;

use keyspace::{Bytes, Store, Subspace};

pub use self::classic::Classic;
pub use self::grouped::{Grouped, RATED};
pub use self::high_contention::{Acknowledged, HighContention, Popped};
pub use self::members::Members;
pub use self::naive::Naive;
pub use self::sets::BlindSets;
use crate::meter::Metered;

/// The value of an item.
pub const ITEM: Bytes = Bytes::from_static(&[7; 100]);

/// How many bytes the number of a [`numbered`] item has, at its beginning.
pub const NUMBER_BYTES: usize = size_of::<u64>();

/// Returns an [`ITEM`] that begins with a number, which distinguishes it from others.
#[must_use]
pub fn numbered(number: u64) -> Bytes {
    let mut item = ITEM.to_vec();
    item[..NUMBER_BYTES].copy_from_slice(&number.to_be_bytes());
    item.into()
}

/// Returns the number of a [`numbered`] item.
///
/// # Panics
/// If the item is shorter than a number.
#[must_use]
pub fn number_of(item: &[u8]) -> u64 {
    let number = item.first_chunk().expect("an item begins with a number");
    u64::from_be_bytes(*number)
}

/// A way to queue, as one session of a queue.
///
/// Everything here commits, and tries again until it has. Failures for good are panics: a benchmark
/// of a store that fails has no result.
pub trait Contender: Send + Sync + Sized + 'static {
    /// Where the sessions of one queue meet.
    type Site: Sync;

    /// Opens a session.
    fn open(site: &Self::Site) -> impl Future<Output = Self> + Send;

    /// Puts items into the queue, in one commit.
    fn enqueue(&self, items: &[Bytes]) -> impl Future<Output = ()> + Send;

    /// Takes an item; `None` if it found none.
    fn pop(&self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// Where the sessions of one queue meet that is kept in a store.
#[derive(Debug, Clone)]
pub struct Site {
    /// The store.
    pub db: Metered<Store>,
    /// What the queue may write into, all of it.
    pub root: Subspace,
}

impl Site {
    /// Returns the subspace of the queue proper.
    #[must_use]
    pub fn queue(&self) -> Subspace {
        self.root.subspace(&"queue")
    }

    /// Returns the subspace of the ledgers of runners.
    #[must_use]
    pub fn ledger(&self) -> Subspace {
        self.root.subspace(&"ledger")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;

    const ITEMS: u8 = 200;

    fn site() -> Site {
        Site {
            db: Metered::new(keyspace::open("memory:").unwrap()),
            root: Subspace::from("test"),
        }
    }

    /// Lets two sessions of four consumers each take items, until no consumer finds one.
    async fn each_item_is_taken_once<C: Contender<Site = Site>>() {
        let site = site();
        let sessions = [C::open(&site).await, C::open(&site).await].map(Arc::new);
        let items: Vec<_> = (0..ITEMS).map(|item| Bytes::from(vec![item])).collect();
        let (first, rest) = items.split_at(1);
        sessions[0].enqueue(first).await;
        sessions[1].enqueue(rest).await;
        let consumers = (0..8).map(|number| {
            let session = sessions[number % 2].clone();
            tokio::spawn(async move {
                let mut taken = Vec::new();
                while let Some(item) = session.pop().await {
                    taken.push(item);
                }
                taken
            })
        });
        let mut taken = Vec::new();
        for consumer in consumers.collect::<Vec<_>>() {
            taken.extend(consumer.await.unwrap());
        }
        assert_eq!(taken.len(), items.len());
        let taken: BTreeSet<_> = taken.into_iter().collect();
        assert_eq!(taken, items.into_iter().collect());
    }

    #[test]
    fn an_item_with_a_number_is_otherwise_as_every_item() {
        let item = numbered(3);
        assert_eq!(number_of(&item), 3);
        assert_eq!(item.len(), ITEM.len());
        assert_eq!(item[NUMBER_BYTES..], ITEM[NUMBER_BYTES..]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_the_naive_dequeue_each_item_is_taken_once() {
        each_item_is_taken_once::<Naive>().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_the_classic_dequeue_each_item_is_taken_once() {
        each_item_is_taken_once::<Classic>().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_the_high_contention_queue_each_item_is_popped_once() {
        each_item_is_taken_once::<Popped>().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_the_high_contention_queue_each_item_is_acknowledged_once() {
        each_item_is_taken_once::<Acknowledged>().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_a_queue_with_batches_each_item_is_acknowledged_once() {
        each_item_is_taken_once::<Members<true>>().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_a_queue_with_groups_each_item_is_acknowledged_once() {
        let site = site();
        let session = Grouped::<true, 3, 1, 1>::open(&site).await;
        let items: Vec<_> = (0..9).map(numbered).collect();
        session.enqueue(&items).await;
        let mut taken = BTreeSet::new();
        while let Some(item) = session.pop().await {
            assert!(taken.insert(number_of(&item)));
        }
        assert!(taken.into_iter().eq(0..9));
    }

    #[tokio::test]
    async fn blind_sets_write_as_much_as_an_item_and_meet_no_conflict() {
        let site = site();
        let sets = BlindSets::open(&site).await;
        assert_eq!(sets.pop().await, Some(ITEM));
        sets.enqueue(&[ITEM, ITEM]).await;
        let reading = site.db.reading();
        assert_eq!(reading.commits, 2);
        assert_eq!(reading.conflicts, 0);

        let queue = Naive::open(&site).await;
        queue.enqueue(&[ITEM]).await;
        let before = site.db.reading();
        queue.enqueue(&[ITEM]).await;
        let enqueue = site.db.reading() - before;
        assert!(reading.bytes_written / 3 <= enqueue.bytes_written);
    }
}
