//! Reads the members of batches: where they are, or how they have ended, with their results.

use futures::future::try_join_all;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::limits::MAX_VALUE_BYTES;
use microqueue::keyspace::{
    Isolation, KeyValue, RangeQuery, Transaction, Undecodable, key_after, read_all,
};

use crate::items::MAX_STEP_BYTES;
use crate::items::batch::{BatchId, BatchRef};
use crate::items::error::{Error, Result};
use crate::items::find::find;
use crate::items::finding::Finding;
use crate::items::item_ref::ItemRef;
use crate::items::item_row::decode_item;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::queue::handle::Queue;
use crate::queue::list::undecodable;
use crate::queue::status::Status;

/// The largest number of members on a page.
const MAX_PAGE_MEMBERS: usize = 250;

/// A page of the members of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberPage<T> {
    /// The members, in the order of their first enqueues. A page with fewer members than requested is not necessarily
    /// the last one.
    pub members: Vec<MemberStatus<T>>,
    /// The member after which the next page begins. `None` if this is the last page.
    pub next: Option<ItemRef>,
}

/// A member of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberStatus<T> {
    /// The item.
    pub item: ItemRef,
    /// Where it is, or how it has ended: with its result, or as a dead letter with the last failure. `None` if it has
    /// ended and is no longer [kept](crate::Settings::with_keep_done). Or why its record does not decode.
    pub status: Result<Option<Status<T>>, Undecodable>,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Returns a page of the items that are or were members of a batch: up to `limit`, at most 250, after the member
    /// `after`, or the first ones. Returns `None` if there is no such batch, or if it has ended and is no longer kept.
    ///
    /// If the queue [keeps](crate::Settings::with_keep_done) done items, a batch that has ended is kept with its
    /// members as long as an item that ends at the same time; otherwise, it is gone at once. So its callback reads
    /// their results, by [`ended_batch`](crate::Delivery::ended_batch). A member that ends much earlier is gone by
    /// then: keep done items for longer than a batch takes.
    ///
    /// A dead letter is among the members also after it has left, and as what it is now: dead, or whatever became of it
    /// by a redrive. Of a batch within this one, the callback is a member, and its own members are not.
    ///
    /// A page reads up to about 1,000,000 bytes of items, five reads for each member, and more for one that is held or
    /// gone. A handler that reads many thousands of members reads each page in a transaction of its own, by
    /// [`work`](Self::work).
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{Delivery, Place, Queue, Result};
    /// /// Returns how many members of the batch are dead letters, in its callback, or `None` if it is not kept.
    /// async fn failed(
    ///     tr: &impl Transaction,
    ///     jobs: &Queue<String>,
    ///     callback: &Delivery<String>,
    /// ) -> Result<Option<usize>> {
    ///     let batch = callback.ended_batch().expect("it is a callback");
    ///     let mut failed = 0;
    ///     let mut after = None;
    ///     loop {
    ///         let Some(page) = jobs.members(tr, &batch, after.as_ref(), 100).await? else {
    ///             return Ok(None);
    ///         };
    ///         let ended = page.members.iter().filter_map(|member| member.status.as_ref().ok()?.as_ref());
    ///         failed += ended.filter(|status| status.place == Place::Dead).count();
    ///         after = page.next;
    ///         if after.is_none() {
    ///             return Ok(Some(failed));
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Conflicts
    /// Reads the rows of the batch, those of the page in the index of its members, and of each member the keys that an
    /// item has, or would have, in each part of the queue.
    ///
    /// # Errors
    /// [`Error::ForeignRef`]; [`Error::ReadAfterWrite`] as [`status`](Self::status), and if this transaction has
    /// enqueued a member of the batch; [`Corrupt`](microqueue::keyspace::Error::Corrupt) if a key is not that of a
    /// member.
    ///
    /// [`Error::ForeignRef`]: crate::Error::ForeignRef
    /// [`Error::ReadAfterWrite`]: crate::Error::ReadAfterWrite
    pub async fn members(
        &self,
        tr: &impl Transaction,
        batch: &BatchRef,
        after: Option<&ItemRef>,
        limit: usize,
    ) -> Result<Option<MemberPage<T>>> {
        let keys = &*self.keys;
        let id = batch.id_in(keys)?;
        let index = keys.members(id);
        let (mut begin, end) = index.range();
        if let Some(after) = after {
            begin = key_after(&after.id_in(keys)?.key_in(&index));
        }
        let rows = [keys.batch_row(id), keys.ended_batch(id)];
        let rows = rows.iter().map(|row| tr.get(row, Isolation::Serializable));
        if try_join_all(rows).await?.iter().all(Option::is_none) {
            return Ok(None);
        }
        let limit = limit.clamp(1, MAX_PAGE_MEMBERS);
        let query = RangeQuery::keys(begin, end).limit(limit);
        let rows = read_all(tr, query, Isolation::Serializable).await?;
        let mut members = Vec::with_capacity(rows.len());
        let mut bytes_left = MAX_STEP_BYTES;
        while members.len() < rows.len() && bytes_left > 0 {
            // As many as there is room for, however large they are.
            let count = bytes_left.div_ceil(MAX_VALUE_BYTES);
            let next = rows.iter().skip(members.len()).take(count);
            let reads = next.map(|row| self.member(tr, row));
            for (member, bytes) in try_join_all(reads).await? {
                bytes_left = bytes_left.saturating_sub(bytes);
                members.push(member);
            }
        }
        let is_last = members.len() == rows.len() && rows.len() < limit;
        let last = members.last().map(|member| member.item);
        Ok(Some(MemberPage {
            members,
            next: if is_last { None } else { last },
        }))
    }

    /// Returns the member in a row of the index, and how many bytes were read of it.
    async fn member(
        &self,
        tr: &impl Transaction,
        row: &KeyValue,
    ) -> Result<(MemberStatus<T>, usize)> {
        let (_, id) = self.keys.parse_member(row.key())?;
        let item = self.keys.item_ref(id);
        let read = async {
            let found = find(tr, &self.keys, &id).await?;
            let bytes = found.as_ref().map_or(0, |(_, record)| {
                let result = record.end.as_ref().map_or(0, |end| end.result.len());
                record.payload.len() + result
            });
            Ok::<_, Error>((self.status_of(&id, found)?, bytes))
        };
        let error = match read.await {
            Ok((status, bytes)) => {
                let status = Ok(status);
                return Ok((MemberStatus { item, status }, bytes));
            }
            Err(error) => error,
        };
        let Some(key) = error.corrupt_key().cloned() else {
            return Err(error);
        };
        // Safe as a snapshot read: it shows what does not decode.
        let value = tr.get(&key, Isolation::Snapshot).await?.unwrap_or_default();
        let row = KeyValue::new(&key, &value);
        let status = Err(undecodable(error, &row, "an item")?);
        Ok((MemberStatus { item, status }, value.len()))
    }
}

/// Stages the removal of the members of a batch from the index.
pub(crate) fn clear_members(tr: &impl Transaction, keys: &Keys, batch: BatchId) {
    let (begin, end) = keys.members(batch).range();
    tr.clear_range(&begin, &end);
}

/// Checks that the batch of a member exists, or is kept.
pub(crate) async fn check_member(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let (batch, id) = keys.parse_member(row.key())?;
    for key in [keys.batch_row(batch), keys.ended_batch(batch)] {
        if tr.get(&key, Isolation::Serializable).await?.is_some() {
            return Ok(None);
        }
    }
    Ok(Some(Finding::StrayMember {
        batch: keys.batch_ref(batch),
        item: keys.item_ref(id),
    }))
}

/// Checks that an item that is a member of a batch is in the index of its members.
pub(crate) async fn check_membership(
    tr: &impl Transaction,
    keys: &Keys,
    part: Part,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let Some((_, item)) = decode_item(keys, part, row)? else {
        return Ok(None);
    };
    let Some(member) = item.value.member else {
        return Ok(None);
    };
    let index = item.id.key_in(&keys.members(member.batch));
    if tr.get(&index, Isolation::Serializable).await?.is_some() {
        return Ok(None);
    }
    let batch_row = keys.batch_row(member.batch);
    if tr.get(&batch_row, Isolation::Serializable).await?.is_none() {
        return Ok(None);
    }
    Ok(Some(Finding::NoMember {
        batch: keys.batch_ref(member.batch),
        item: keys.item_ref(item.id),
        key: row.to_key(),
    }))
}
