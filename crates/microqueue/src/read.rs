//! Reads a queue, and refuses to do so after an enqueue in the same transaction.
//!
//! In commit order an enqueued item has no place before the commit. FoundationDB makes the range in which
//! the item may land unreadable for its own transaction: a read that touches this range fails with
//! `accessed_unreadable` (1036). Whether a read touches it depends on the contents of the queue:
//!
//! 1. A transaction reads a key, which fixes its read version, and then enqueues.
//! 2. Items that were committed up to that version sort below the unreadable range. A read of the head
//!    that finds one of them succeeds. A read that finds the queue empty fails.
//!
//! A program would be tested with one case and meet the other in production. Every read of a queue in
//! commit order therefore also reads a probe: a key that no item has, inside the range of all possible
//! versionstamps. The probe is unreadable if this transaction has enqueued anything, through any handle.
//! The read then fails with `ReadAfterWrite`.
//!
//! The probe is read serializably, since a snapshot read can be configured to ignore the writes of its
//! own transaction. Only `clear` writes it, so reads conflict with a `clear` even if they found no item. In index order
//! there is no probe.

use std::ops::ControlFlow;

use keyspace::codec::Codec;
use keyspace::{
    Code, Isolation, KeyValue, RangeQuery, RowCount, StreamingMode, Transaction, key_after,
    read_all, visit_rows,
};

use crate::error::{Error, Result};
use crate::item::{ItemId, Listed};
use crate::order::Order;
use crate::queue::MicroQueue;

/// The most bytes of rows that are read to count them.
const MAX_COUNTED_BYTES: usize = 8 << 20;

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Returns the first item without taking it, or `None` if the queue is empty.
    ///
    /// If the item's value does not decode, the returned [`Listed`] contains the reason;
    /// [`Item::try_from`](crate::Item) turns it into an error.
    ///
    /// # Conflicts
    /// Reads from the start of the queue to the first item. If the queue is empty, it reads the whole
    /// queue, so any enqueue conflicts with this transaction. In commit order it also reads a key that
    /// only [`clear`](Self::clear) writes.
    ///
    /// # Examples
    /// ```
    /// use keyspace::{Database, Runner};
    /// use microqueue::MicroQueue;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let jobs = &MicroQueue::<String>::open(&runner, "jobs").await?;
    /// let job = &"resize 17.png".to_owned();
    /// runner.run(async |tr| jobs.enqueue(&tr, job).await).await?;
    ///
    /// let first = jobs.peek(&runner.database().begin()?).await?.expect("a job was enqueued");
    /// assert_eq!(first.value?, "resize 17.png");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn peek(&self, tr: &impl Transaction) -> Result<Option<Listed<T>>> {
        let (begin, end) = self.layout.subspace.range();
        let row = self.rows(tr, begin, end, 1).await?.pop();
        row.as_ref()
            .map(|row| self.layout.parse_listed(row))
            .transpose()
    }

    /// Returns whether the queue is empty.
    ///
    /// # Conflicts
    /// Those of [`peek`](Self::peek).
    pub async fn is_empty(&self, tr: &impl Transaction) -> Result<bool> {
        let (begin, end) = self.layout.subspace.range();
        Ok(self.rows(tr, begin, end, 1).await?.is_empty())
    }

    /// Returns a page of up to `limit` items after the item `after`, or from the start of the queue.
    ///
    /// A page with fewer than `limit` items is the last one. A limit of zero reads nothing. Each entry
    /// has the item's id, and either its value or the reason why the value does not decode.
    ///
    /// # Conflicts
    /// Reads from `after` to the last item returned, or to the end of the queue if the page is the last.
    /// In commit order it also reads a key that only [`clear`](Self::clear) writes.
    ///
    /// # Examples
    /// ```
    /// # use keyspace::Transaction;
    /// # use microqueue::{ItemId, MicroQueue, Result};
    /// async fn count(tr: &impl Transaction, queue: &MicroQueue<String>) -> Result<usize> {
    ///     let page_items = 1_000;
    ///     let mut count = 0;
    ///     let mut after = None;
    ///     loop {
    ///         let page = queue.items(tr, after, page_items).await?;
    ///         count += page.len();
    ///         if page.len() < page_items {
    ///             return Ok(count);
    ///         }
    ///         after = page.last().map(|item| item.id);
    ///     }
    /// }
    /// ```
    pub async fn items(
        &self,
        tr: &impl Transaction,
        after: Option<ItemId>,
        limit: usize,
    ) -> Result<Vec<Listed<T>>> {
        let (mut begin, end) = self.layout.subspace.range();
        if let Some(after) = after {
            self.check_order(after)?;
            begin = key_after(&self.layout.key(&after));
        }
        let rows = self.rows(tr, begin, end, limit).await?;
        rows.iter()
            .map(|row| self.layout.parse_listed(row))
            .collect()
    }

    /// Counts the items at the read version, including items that do not decode: up to `limit` items, and
    /// up to the one with which the rows read reach 8 MiB.
    ///
    /// This reads every item that it counts, since a store reads no keys without their values. The queues
    /// of the crate `hc-dequeue` maintain counters instead.
    ///
    /// # Conflicts
    /// Reads by snapshot, so no other consumer or producer conflicts with it. In commit order it also
    /// reads, serializably, a key that only [`clear`](Self::clear) writes.
    pub async fn count_up_to(&self, tr: &impl Transaction, limit: usize) -> Result<RowCount> {
        let mut counted = RowCount::default();
        let mut row_bytes = 0;
        let probe = self.probe(tr);
        let (begin, end) = self.layout.subspace.range();
        // The row after the last one counted is read, too: it says whether there are more.
        let query = page(begin, end, limit.saturating_add(1));
        // Safe as a snapshot read: the count is that of the read version, and nothing is taken.
        let visited = visit_rows(tr, query, Isolation::Snapshot, |row| {
            if counted.count == limit || row_bytes >= MAX_COUNTED_BYTES {
                counted.has_more = true;
                return Ok(ControlFlow::Break(()));
            }
            counted.count += 1;
            row_bytes += row.key().len() + row.value().len();
            Ok::<_, keyspace::Error>(ControlFlow::Continue(()))
        });
        visited.await.map_err(|error| self.read_error(error))?;
        probe.await?;
        Ok(counted)
    }

    /// Fails with [`ReadAfterWrite`](Error::ReadAfterWrite) if the transaction has enqueued into the queue, for
    /// layers that read rows of the queue by other means.
    ///
    /// # Conflicts
    /// In commit order, reads a key that only [`clear`](Self::clear) writes.
    pub async fn refuse_after_enqueue(&self, tr: &impl Transaction) -> Result<()> {
        self.probe(tr).await
    }

    /// Reads up to `limit` rows serializably. Fails if the transaction has enqueued.
    pub(crate) async fn rows(
        &self,
        tr: &impl Transaction,
        begin: Vec<u8>,
        end: Vec<u8>,
        limit: usize,
    ) -> Result<Vec<KeyValue>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        self.read(tr, page(begin, end, limit), Isolation::Serializable)
            .await
    }

    /// Reads rows of the queue. Fails if the transaction has enqueued.
    pub(crate) async fn read(
        &self,
        tr: &impl Transaction,
        query: RangeQuery,
        isolation: Isolation,
    ) -> Result<Vec<KeyValue>> {
        let probe = self.probe(tr);
        let rows = read_all(tr, query, isolation)
            .await
            .map_err(|error| self.read_error(error))?;
        probe.await?;
        Ok(rows)
    }

    /// Fails if the transaction has enqueued.
    ///
    /// The read is issued by this call, before the returned future is polled, so that it runs at the same
    /// time as the reads that the caller issues next.
    pub(crate) fn probe<Tr: Transaction>(
        &self,
        tr: &Tr,
    ) -> impl Future<Output = Result<()>> + Send + use<'_, Tr, T, C> {
        let probe = match self.layout.order {
            Order::Commit => Some(tr.get(&self.layout.probe(), Isolation::Serializable)),
            Order::Index => None,
        };
        async move {
            if let Some(probe) = probe {
                probe.await.map_err(|error| self.read_error(error))?;
            }
            Ok(())
        }
    }

    pub(crate) fn read_error(&self, error: keyspace::Error) -> Error {
        if error.code() == Some(Code::ACCESSED_UNREADABLE) {
            return Error::ReadAfterWrite {
                queue: self.layout.subspace.clone(),
            };
        }
        error.into()
    }
}

/// Returns the query for the last row between two keys.
pub(crate) fn last_row((begin, end): (Vec<u8>, Vec<u8>)) -> RangeQuery {
    RangeQuery::keys(begin, end)
        .limit(1)
        .reversed()
        .mode(StreamingMode::Exact)
}

/// Returns the query for up to `limit` rows, starting at `begin`.
pub(crate) fn page(begin: Vec<u8>, end: Vec<u8>, limit: usize) -> RangeQuery {
    RangeQuery::keys(begin, end)
        .limit(limit)
        .mode(StreamingMode::WantAll)
}
