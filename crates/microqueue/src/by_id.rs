//! Reads, removes and inserts items by id, for layers that move items and keep their places.
//!
//! Every [`dequeue`](MicroQueue::dequeue) conflicts with every other one, because all of them read the
//! head. A transaction that reads by [`snapshot`](MicroQueue::snapshot) and then
//! [removes](MicroQueue::remove) items conflicts only with transactions that remove the same items.

use std::ops::ControlFlow;

use keyspace::codec::Codec;
use keyspace::{ConflictKind, Isolation, KeyValue, MutationOp, Transaction, visit_rows};

use crate::error::{Error, Result};
use crate::item::{Item, ItemId, Listed, StagedId};
use crate::order::Order;
use crate::queue::MicroQueue;
use crate::read::page;

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Returns the first items at the read version, without taking them.
    ///
    /// It stops after `limit` items, or after the item with which the keys and values read reach
    /// `row_bytes` bytes.
    ///
    /// # Conflicts
    /// Reads by snapshot, so no other consumer or producer conflicts with it. [`remove`](Self::remove)
    /// ensures that an item still exists at the commit. In commit order it also reads, serializably, a
    /// key that only [`clear`](Self::clear) writes.
    ///
    /// # Errors
    /// [`Corrupt`](keyspace::Error::Corrupt) if an item does not decode.
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

    /// Returns the value of the item with this id, or `None` if the queue does not contain it.
    ///
    /// # Conflicts
    /// Reads the item's key.
    ///
    /// # Errors
    /// [`Corrupt`](keyspace::Error::Corrupt) if the record does not decode.
    /// [`ReadAfterWrite`](Error::ReadAfterWrite) only if the id is among those that the items enqueued by this
    /// transaction may get.
    pub async fn get(&self, tr: &impl Transaction, id: &ItemId) -> Result<Option<T>> {
        self.check_order(*id)?;
        let key = self.layout.key(id);
        let value = tr
            .get(&key, Isolation::Serializable)
            .await
            .map_err(|error| self.read_error(error))?;
        let row = value.map(|value| KeyValue::new(&key, &value));
        let item = row
            .as_ref()
            .map(|row| self.layout.decode(row))
            .transpose()?;
        Ok(item.map(|item| item.value))
    }

    /// Stages the removal of an item that this transaction has read by snapshot.
    ///
    /// The commit fails with a conflict if another transaction has removed the item since.
    ///
    /// # Conflicts
    /// Reads the item's key, unless this transaction has [inserted](Self::insert) it, and writes it.
    pub fn remove(&self, tr: &impl Transaction, id: &ItemId) -> Result<()> {
        self.check_order(*id)?;
        let key = self.layout.key(id);
        // The conflict is added before the clear, since a read conflict leaves out keys that the
        // transaction has written.
        tr.add_conflict_key(ConflictKind::Read, &key)?;
        tr.clear(&key);
        Ok(())
    }

    /// Stages an item at the place of the given id, so that an item that was removed returns to its old
    /// place.
    ///
    /// # Conflicts
    /// Writes the item's key.
    pub fn insert(&self, tr: &impl Transaction, id: &ItemId, value: &T) -> Result<()> {
        self.check_order(*id)?;
        self.layout.check_prefix()?;
        tr.set(&self.layout.key(id), &self.layout.encode(value)?);
        Ok(())
    }

    /// Stages another value for an item that this transaction has enqueued, under the same id.
    ///
    /// # Conflicts
    /// Writes the item's key.
    pub fn restage(&self, tr: &impl Transaction, staged: StagedId, value: &T) -> Result<()> {
        self.check_order(staged.0)?;
        self.layout.check_prefix()?;
        let value = self.layout.encode(value)?;
        match staged.key_template_in(&self.layout.subspace) {
            // The commit applies both writes of the key in their order.
            Some(template) => tr.atomic(MutationOp::SetVersionstampedKey, &template, &value),
            None => tr.set(&self.layout.key(&staged.0), &value),
        }
        Ok(())
    }

    /// Decodes a row of the queue that the caller has read by other means.
    ///
    /// # Errors
    /// [`Corrupt`](keyspace::Error::Corrupt) if the row is not an item of this queue.
    pub fn decode(&self, row: &KeyValue) -> Result<Item<T>> {
        self.layout.decode(row)
    }

    /// Decodes a row of the queue as listings do: an item that does not decode is returned with the
    /// reason.
    ///
    /// # Errors
    /// [`Corrupt`](keyspace::Error::Corrupt) if the key is not the key of an item of this queue.
    pub fn parse_listed(&self, row: &KeyValue) -> Result<Listed<T>> {
        self.layout.parse_listed(row)
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
