//! Looking at a queue, and why that is refused after an enqueue.
//!
//! In commit order an enqueued item has no place before the commit. FoundationDB makes the range
//! where it may land unreadable for its own transaction, and a read that touches the range fails
//! with `accessed_unreadable` (1036). What a read touches depends on the data:
//!
//! 1. The transaction reads anything, which fixes its read version, and enqueues.
//! 2. Keys of items committed by that version lie below the unreadable range. A read of the head
//!    that finds one of them succeeds, one that finds the queue empty fails.
//!
//! A program would be tested with one and meet the other in production. So every read of a queue
//! in commit order also reads a probe, a key that no item has, inside the range of every possible
//! versionstamp: it is unreadable if anything was enqueued in this transaction, through whichever
//! handle. The read is refused then with `ReadAfterWrite`.
//!
//! The probe is read serializably, since a snapshot read can be set to ignore what its own
//! transaction wrote.

use keyspace::codec::Codec;
use keyspace::{
    Code, Isolation, KeyValue, RangeQuery, StreamingMode, Transaction, key_after, read_all,
};

use crate::error::{Error, Result};
use crate::item::{ItemId, Listed};
use crate::order::Order;
use crate::queue::MicroQueue;

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Returns the first item and leaves it in the queue, or `None` if the queue is empty. An item that
    /// does not decode is a [`Listed`] that says so; [`Item::try_from`](crate::Item) makes an error of it.
    ///
    /// # Conflicts
    /// Reads from the queue's begin to the first item; if the queue is empty, all of it, so that
    /// any enqueue makes this transaction fail. In commit order also a key that only
    /// [`clear`](Self::clear) writes.
    ///
    /// # Errors
    /// [`ReadAfterWrite`](Error::ReadAfterWrite) in commit order if this transaction has enqueued
    /// into the queue, through this handle or another, and not cleared it since.
    /// [`Corrupt`](keyspace::Error::Corrupt) if a key in the queue's subspace is none of its items';
    /// also in place of `ReadAfterWrite` in a transaction that has set `BypassUnreadable`.
    ///
    /// # Cancel safety
    /// Reads only: dropping the future leaves conflict ranges at most.
    pub async fn peek(&self, tr: &impl Transaction) -> Result<Option<Listed<T>>> {
        let (begin, end) = self.layout.subspace.range();
        let row = self.rows(tr, begin, end, 1).await?.pop();
        row.as_ref()
            .map(|row| self.layout.parse_listed(row))
            .transpose()
    }

    /// Returns true if the queue has no items.
    ///
    /// # Conflicts
    /// As [`peek`](Self::peek).
    ///
    /// # Errors
    /// [`ReadAfterWrite`](Error::ReadAfterWrite), as [`peek`](Self::peek).
    ///
    /// # Cancel safety
    /// Reads only: dropping the future leaves conflict ranges at most.
    pub async fn is_empty(&self, tr: &impl Transaction) -> Result<bool> {
        let (begin, end) = self.layout.subspace.range();
        Ok(self.rows(tr, begin, end, 1).await?.is_empty())
    }

    /// Returns a page of the queue: up to `limit` items behind the item `after`, or from the
    /// queue's begin. Fewer than `limit` are the last page; a page of none reads nothing. Each has its
    /// id, and its value or why that does not decode.
    ///
    /// # Conflicts
    /// Reads from `after` to the last item returned; to the queue's end if the page is the last.
    /// In commit order also a key that only [`clear`](Self::clear) writes.
    ///
    /// # Errors
    /// [`WrongOrder`](Error::WrongOrder) if `after` is not of a queue of this order, else as
    /// [`peek`](Self::peek).
    ///
    /// # Cancel safety
    /// Reads only: dropping the future leaves conflict ranges at most.
    ///
    /// # Examples
    /// ```
    /// # use keyspace::Transaction;
    /// # use microqueue::{ItemId, MicroQueue, Result};
    /// async fn count(tr: &impl Transaction, queue: &MicroQueue<String>) -> Result<usize> {
    ///     let page_items = 1_000;
    ///     let (mut count, mut after) = (0, None);
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

    /// Reads up to `limit` rows serializably, and refuses to if the transaction has enqueued.
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

    /// Reads rows of the queue, and refuses to if the transaction has enqueued.
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

    /// Refuses if the transaction has enqueued. Reads are issued at the call: what is read before the
    /// answer is awaited is under way at the same time.
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

/// Returns the query for up to `limit` rows from `begin` on.
pub(crate) fn page(begin: Vec<u8>, end: Vec<u8>, limit: usize) -> RangeQuery {
    RangeQuery::keys(begin, end)
        .limit(limit)
        .mode(StreamingMode::WantAll)
}
