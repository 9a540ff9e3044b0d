//! Enqueuing: make the keys unique, then stage.
//!
//! A key must be unique whoever else enqueues, in this transaction or another.
//!
//! - Commit order: the commit supplies the versionstamp, which no other transaction has. Within a
//!   transaction the call number tells items apart. It comes from one counter of the process, so
//!   that it does so for any number of handles and enqueues.
//! - Index order: two transactions may see the same last index, and no read conflict makes one of
//!   them fail. The random suffix tells their items apart.

use std::slice;

use keyspace::codec::Codec;
use keyspace::{Isolation, MutationOp, Transaction, Versionstamp};

use crate::error::Result;
use crate::item::{ItemId, SUFFIX_BYTES, StagedId};
use crate::order::Order;
use crate::queue::MicroQueue;
use crate::read::last_row;

/// Encoded values, and what will make their keys unique.
pub(crate) struct Prepared {
    values: Vec<Vec<u8>>,
    unique: Unique,
}

enum Unique {
    /// Consecutive call numbers.
    Calls { first: u64 },
    /// A random suffix for each value.
    Suffixes(Vec<[u8; SUFFIX_BYTES]>),
}

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Stages an item at the end of the queue.
    ///
    /// In commit order nothing is read, and the item's place is fixed by the commit: behind
    /// everything committed before, in the order of calls within the transaction. In index order
    /// the item goes behind the last one that this transaction sees; enqueues of one transaction
    /// keep their order if each is awaited before the next begins and the transaction's snapshot
    /// reads see its own writes, as they do by default.
    ///
    /// # Conflicts
    /// Reads nothing in commit order; in index order the last item, by snapshot. Writes the
    /// item's key. So enqueues never conflict, and only make a transaction fail that has read the
    /// queue's end: one that found the queue empty, or all of its items. In index order an item
    /// may also tie with the head, and make a transaction fail that has read it.
    ///
    /// # Errors
    /// [`ItemTooLarge`](crate::Error::ItemTooLarge), [`PrefixTooLong`](crate::Error::PrefixTooLong)
    /// and the codec's [`Encode`](keyspace::Error::Encode), before anything is staged. In index
    /// order [`Corrupt`](keyspace::Error::Corrupt) if the last key is none of such a queue.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn enqueue(&self, tr: &impl Transaction, value: &T) -> Result<StagedId> {
        let prepared = self.prepare(slice::from_ref(value))?;
        let staged = self.stage(tr, &prepared).await?;
        Ok(staged[0])
    }

    /// Stages items at the end of the queue, in their order.
    ///
    /// All or nothing: if one does not fit, none is staged. How many fit one transaction is the
    /// store's limit on its bytes, which the commit reports.
    ///
    /// # Conflicts
    /// As [`enqueue`](Self::enqueue).
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue).
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn enqueue_all(&self, tr: &impl Transaction, values: &[T]) -> Result<Vec<StagedId>> {
        let prepared = self.prepare(values)?;
        self.stage(tr, &prepared).await
    }

    /// Encodes values and draws what makes their keys unique. Staged in several attempts of one
    /// transaction, they keep both.
    pub(crate) fn prepare(&self, values: &[T]) -> Result<Prepared> {
        self.layout.check_prefix()?;
        let values: Vec<_> = values
            .iter()
            .map(|value| self.layout.encode(value))
            .collect::<Result<_>>()?;
        let unique = match self.layout.order {
            Order::Commit => Unique::Calls {
                first: self.env.next_calls(values.len() as u64),
            },
            Order::Index => {
                Unique::Suffixes(values.iter().map(|_| self.env.random_bytes()).collect())
            }
        };
        Ok(Prepared { values, unique })
    }

    /// Stages what was prepared, one id for each value.
    pub(crate) async fn stage(
        &self,
        tr: &impl Transaction,
        prepared: &Prepared,
    ) -> Result<Vec<StagedId>> {
        match &prepared.unique {
            Unique::Calls { first } => {
                let staged = (*first..).zip(&prepared.values).map(|(call, value)| {
                    let key = self.layout.key_template(call);
                    tr.atomic(MutationOp::SetVersionstampedKey, &key, value);
                    StagedId(ItemId::Commit {
                        versionstamp: Versionstamp::INCOMPLETE,
                        call,
                    })
                });
                Ok(staged.collect())
            }
            Unique::Suffixes(suffixes) => {
                let last = self.last_index(tr, suffixes.len() as u64).await?;
                let rows = (1..).zip(suffixes).zip(&prepared.values);
                let staged = rows.map(|((behind, suffix), value)| {
                    let id = ItemId::Index {
                        index: last + behind,
                        suffix: *suffix,
                    };
                    tr.set(&self.layout.key(&id), value);
                    StagedId(id)
                });
                Ok(staged.collect())
            }
        }
    }

    /// Returns the index of the last item, which `count` more can follow, or 0.
    async fn last_index(&self, tr: &impl Transaction, count: u64) -> Result<u64> {
        let query = last_row(self.layout.subspace.range());
        // Safe as a snapshot read: if another item comes to be the last one before the commit,
        // this one ties with it or sorts before it, and the suffix keeps their keys apart. Only
        // the order of items that were enqueued at the same time is open, as the recipe has it.
        let batch = tr.get_range(&query, Isolation::Snapshot).await?;
        let Some(row) = batch.rows.first() else {
            return Ok(0);
        };
        let last = self.layout.index(row.key())?;
        if last.checked_add(count).is_none() {
            return Err(keyspace::Error::corrupt(
                row.key(),
                format!("no {count} indexes follow {last}"),
            )
            .into());
        }
        Ok(last)
    }
}
