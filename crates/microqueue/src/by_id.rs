//! Items by their ids, for layers that move items and keep their places.
//!
//! [`dequeue`](MicroQueue::dequeue) conflicts with every other dequeue, because all of them read the
//! head. A transaction that reads by [`snapshot`](MicroQueue::snapshot) and then
//! [removes](MicroQueue::remove) what it found conflicts with those alone that remove the same items.

use std::ops::ControlFlow;

use keyspace::codec::Codec;
use keyspace::{ConflictKind, Isolation, KeyValue, Transaction, visit_rows};

use crate::error::{Error, Result};
use crate::item::{Item, ItemId};
use crate::order::Order;
use crate::queue::MicroQueue;
use crate::read::page;

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Returns the first items as they were at the read version: up to `limit` of them, and no more
    /// after the one that brings them to `row_bytes` of keys and values.
    ///
    /// # Conflicts
    /// Reads by snapshot, so that no other transaction makes this one fail; [`remove`](Self::remove)
    /// makes sure that an item is still there at the commit. In commit order it also reads,
    /// serializably, a key that only [`clear`](Self::clear) writes.
    ///
    /// # Errors
    /// As [`dequeue`](Self::dequeue): what is to be taken has to decode.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn snapshot(
        &self,
        tr: &impl Transaction,
        limit: usize,
        row_bytes: usize,
    ) -> Result<Vec<Item<T>>> {
        let (begin, end) = self.layout.subspace.range();
        let mut left = row_bytes;
        let mut items = Vec::new();
        let probe = self.probe(tr);
        if limit > 0 {
            let visited = visit_rows(tr, page(begin, end, limit), Isolation::Snapshot, |row| {
                items.push(self.layout.decode(&row)?);
                left = left.saturating_sub(row.key().len() + row.value().len());
                Ok(match left {
                    0 => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                })
            });
            visited.await.map_err(|error| match error {
                Error::Keyspace(error) => self.read_error(error),
                error => error,
            })?;
        }
        probe.await?;
        Ok(items)
    }

    /// Returns the item with an id, or `None` if the queue has none.
    ///
    /// # Conflicts
    /// Reads the item's key.
    ///
    /// # Errors
    /// [`WrongOrder`](Error::WrongOrder); [`Corrupt`](keyspace::Error::Corrupt) if the record does
    /// not decode.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn get(&self, tr: &impl Transaction, id: &ItemId) -> Result<Option<T>> {
        self.check_order(*id)?;
        let key = self.layout.key(id);
        let value = tr.get(&key, Isolation::Serializable).await?;
        let row = value.map(|value| KeyValue::new(&key, &value));
        let item = row
            .as_ref()
            .map(|row| self.layout.decode(row))
            .transpose()?;
        Ok(item.map(|item| item.value))
    }

    /// Removes an item that this transaction has seen by snapshot, and makes the commit fail if another
    /// transaction has removed it since.
    ///
    /// # Conflicts
    /// Reads the item's key, unless this transaction has [inserted](Self::insert) it, and writes it.
    ///
    /// # Errors
    /// [`WrongOrder`](Error::WrongOrder).
    pub fn remove(&self, tr: &impl Transaction, id: &ItemId) -> Result<()> {
        self.check_order(*id)?;
        let key = self.layout.key(id);
        // Before the clear: of a read conflict, what the transaction has written is left out.
        tr.add_conflict_key(ConflictKind::Read, &key)?;
        tr.clear(&key);
        Ok(())
    }

    /// Stages an item at the place of an id: one that was removed goes back to where it was.
    ///
    /// # Conflicts
    /// Writes the item's key.
    ///
    /// # Errors
    /// [`WrongOrder`](Error::WrongOrder), and those of [`enqueue`](Self::enqueue), before anything is
    /// staged.
    pub fn insert(&self, tr: &impl Transaction, id: &ItemId, value: &T) -> Result<()> {
        self.check_order(*id)?;
        self.layout.check_prefix()?;
        tr.set(&self.layout.key(id), &self.layout.encode(value)?);
        Ok(())
    }

    /// Returns the item in a row of the queue, for who has read the row by other means.
    ///
    /// # Errors
    /// [`Corrupt`](keyspace::Error::Corrupt) if it is no row of this queue.
    pub fn decode(&self, row: &KeyValue) -> Result<Item<T>> {
        self.layout.decode(row)
    }

    pub(crate) fn check_order(&self, id: ItemId) -> Result<()> {
        match (self.layout.order, id) {
            (Order::Commit, ItemId::Commit { .. }) | (Order::Index, ItemId::Index { .. }) => Ok(()),
            (order, _) => Err(Error::WrongOrder {
                queue: self.layout.subspace.clone(),
                order,
            }),
        }
    }
}
