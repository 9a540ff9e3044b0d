//! Enqueues items. An enqueue reads nothing unless its options require it.
//!
//! [`stage`](crate::queue::stage) has what does not depend on the type of the values.

use microqueue::keyspace::codec::{self, Codec};
use microqueue::keyspace::limits::MAX_TRANSACTION_BYTES;
use microqueue::keyspace::{self, Bytes, Code, Transaction};

use crate::items::changes::Changes;
use crate::items::dedupe::check_dedupe;
use crate::items::error::{Error, Result};
use crate::items::item_ref::StagedRef;
use crate::items::keys::Keys;
use crate::items::part::Counter;
use crate::items::priority::Priority;
use crate::items::record::{MAX_PAYLOAD_BYTES, Record};
use crate::items::trace_context::{TraceContext, current_context};
use crate::queue::enqueue_options::{Enqueue, Enqueued};
use crate::queue::handle::Queue;
use crate::queue::refs::{check_ref_key, stage_ref};
use crate::queue::stage::{NewItem, record_of, stage, stage_all};
use crate::session::wall::wall_millis;

impl<T, C: Codec<T>> Queue<T, C> {
    /// Stages an item at the end of the queue.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{Queue, Result};
    /// /// Stores an order and enqueues its invoice, both or neither.
    /// async fn order(tr: &impl Transaction, invoices: &Queue<u64>, number: u64) -> Result<()> {
    ///     tr.set(format!("order {number}").as_bytes(), b"");
    ///     invoices.enqueue(tr, &number).await?;
    ///     Ok(())
    /// }
    /// ```
    /// [`submit`](Self::submit) enqueues in a transaction of its own.
    ///
    /// # Conflicts
    /// Never conflicts: reads nothing, and writes the item's row, a counter and the wake stamp.
    ///
    /// # Errors
    /// [`Error::PayloadTooLarge`], and [`Encode`] of the codec. In both cases nothing is staged.
    ///
    /// [`Encode`]: microqueue::keyspace::Error::Encode
    pub async fn enqueue(&self, tr: &impl Transaction, value: &T) -> Result<StagedRef> {
        let record = new_record(&self.keys, self.payload(value)?, current_context());
        enqueue_one(tr, &self.keys, record).await
    }

    /// Stages items at the end of the queue, in the given order: either all of them or none.
    ///
    /// # Conflicts
    /// As [`enqueue`](Self::enqueue).
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue), and [`Error::TransactionTooLarge`] if the values alone exceed the limit of a
    /// transaction. Nothing is staged then.
    pub async fn enqueue_all(&self, tr: &impl Transaction, values: &[T]) -> Result<Vec<StagedRef>> {
        let trace_context = current_context();
        let record = |value| {
            let payload = self.payload(value)?;
            Ok(new_record(&self.keys, payload, trace_context.clone()))
        };
        let records: Vec<_> = values.iter().map(record).collect::<Result<_>>()?;
        let bytes: usize = records.iter().map(|record| record.payload.len()).sum();
        if bytes > MAX_TRANSACTION_BYTES {
            return Err(keyspace::Error::from(Code::TRANSACTION_TOO_LARGE).into());
        }
        enqueue_records(tr, &self.keys, &records).await
    }

    /// Stages an item with the given options.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{Enqueue, Enqueued, Queue, Result};
    /// /// Reminds of an invoice in a week, once per invoice.
    /// async fn remind(tr: &impl Transaction, reminders: &Queue<u64>, invoice: u64) -> Result<bool> {
    ///     let in_a_week = Duration::from_secs(7 * 24 * 60 * 60);
    ///     let options = Enqueue::new().with_delay(in_a_week).with_dedupe(format!("invoice {invoice}"));
    ///     let enqueued = reminders.enqueue_with(tr, &invoice, &options).await?;
    ///     Ok(matches!(enqueued, Enqueued::Staged(_)))
    /// }
    /// ```
    /// # Conflicts
    /// As [`enqueue`](Self::enqueue), and:
    ///
    /// - With a dedupe id, reads the rows of the id and, by snapshot, the settings if the id is retained.
    /// - With another [`OnRepeat`](crate::OnRepeat) than `Keep`, also reads and writes the row of the item that has the
    ///   id, so an acknowledgement of that item conflicts.
    /// - With a group, writes a pointer and a notice.
    /// - With a batch, adds to a number, and reads the row of the batch, which its end and its cancellation write, and,
    ///   unless [a member](Enqueue::with_batch_of) adds the item, the row that its close removes.
    /// - With a maximum depth, reads the counter of queued items by snapshot.
    /// - With the key of a reference, writes it; if the dedupe id is refused, also reads the row that names its item.
    ///
    /// # Errors
    /// [`Error::DedupeId`], [`Error::Priority`], [`Error::Group`], [`Error::RefKey`], [`Error::Full`] and those of
    /// [`enqueue`](Self::enqueue); with a batch, [`Error::ForeignRef`], [`Error::OtherBatch`], [`Error::BatchOver`],
    /// [`Error::BatchClosed`] and [`Corrupt`](microqueue::keyspace::Error::Corrupt), of which the last three only if a
    /// new item is enqueued or one joins the batch; [`Error::EnqueuedWithOtherPlace`]; [`Error::ReadAfterWrite`] if
    /// this transaction has enqueued before, and an item that exists is to be replaced. In all cases nothing is staged.
    ///
    /// # Cancel safety
    /// As for all [operations](Queue#cancel-safety), except with another `OnRepeat` than `Keep`. If a session holds the
    /// item that has the dedupe id, a future that is dropped may have staged that this item gives the id up: the
    /// transaction must not commit.
    pub async fn enqueue_with(
        &self,
        tr: &impl Transaction,
        value: &T,
        options: &Enqueue,
    ) -> Result<Enqueued> {
        let payload = self.payload_for(value, options)?;
        enqueue_payload(tr, &self.keys, payload, options).await
    }

    /// Stages items, each with its options, in the given order. Returns the result for each. A maximum depth also
    /// counts the items before it.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{Enqueue, Queue, Result};
    /// /// Sends each invoice once.
    /// async fn send(tr: &impl Transaction, invoices: &Queue<u64>, numbers: &[u64]) -> Result<()> {
    ///     let once = |number: &u64| (*number, Enqueue::new().with_dedupe(format!("invoice {number}")));
    ///     let items: Vec<_> = numbers.iter().map(once).collect();
    ///     invoices.enqueue_all_with(tr, &items).await?;
    ///     Ok(())
    /// }
    /// ```
    /// # Conflicts
    /// As [`enqueue_with`](Self::enqueue_with).
    ///
    /// # Errors
    /// As [`enqueue_with`](Self::enqueue_with). A part of the items may then be staged: the transaction must not
    /// commit.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, a part of the items may be staged: the transaction must not commit.
    pub async fn enqueue_all_with(
        &self,
        tr: &impl Transaction,
        items: &[(T, Enqueue)],
    ) -> Result<Vec<Enqueued>> {
        let items = items.iter().map(|(value, options)| (value, options));
        self.enqueue_each(tr, items).await
    }

    /// Stages items with the same options, in the given order. Returns the result for each.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{Enqueue, Queue, Result};
    /// /// Resizes the images of a customer.
    /// async fn resize(tr: &impl Transaction, jobs: &Queue<String>, images: &[String], customer: &str) -> Result<()> {
    ///     let of_customer = Enqueue::new().with_group(customer);
    ///     jobs.enqueue_all_alike(tr, images, &of_customer).await?;
    ///     Ok(())
    /// }
    /// ```
    /// # Conflicts
    /// As [`enqueue_with`](Self::enqueue_with).
    ///
    /// # Errors
    /// [`Error::EnqueueOptions`] for a dedupe id or the key of a reference, which only one item can have: nothing is
    /// staged then. Otherwise as [`enqueue_all_with`](Self::enqueue_all_with).
    ///
    /// # Cancel safety
    /// As [`enqueue_all_with`](Self::enqueue_all_with).
    pub async fn enqueue_all_alike(
        &self,
        tr: &impl Transaction,
        values: &[T],
        options: &Enqueue,
    ) -> Result<Vec<Enqueued>> {
        if options.dedupe.is_some() || options.ref_key.is_some() {
            let reason = "a dedupe id or the key for a reference is that of one item: give each value its own by \
                          `enqueue_all_with`";
            return Err(Error::EnqueueOptions { reason });
        }
        let items = values.iter().map(|value| (value, options));
        self.enqueue_each(tr, items).await
    }

    /// Stages items, each with its options.
    async fn enqueue_each<'a>(
        &self,
        tr: &impl Transaction,
        items: impl Iterator<Item = (&'a T, &'a Enqueue)> + Clone,
    ) -> Result<Vec<Enqueued>>
    where
        T: 'a,
    {
        let keys = &*self.keys;
        let current = current_context();
        let mut new_items = Vec::new();
        for (value, options) in items.clone() {
            let payload = self.payload_for(value, options)?;
            new_items.push(new_item(keys, payload, options, || current.clone())?);
        }
        let mut changes = Changes::default();
        let enqueued = stage_all(tr, keys, new_items, &mut changes).await?;
        changes.stage(tr, keys);
        for ((_, options), enqueued) in items.zip(&enqueued) {
            stage_ref(tr, keys, options, enqueued).await?;
        }
        Ok(enqueued)
    }

    /// Encodes a value as the payload of an item.
    pub(crate) fn payload(&self, value: &T) -> Result<Bytes> {
        let mut payload = Vec::new();
        codec::encode(&self.codec, value, &mut payload)?;
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(Error::PayloadTooLarge {
                queue: self.keys.queue.clone(),
                bytes: payload.len(),
                limit: MAX_PAYLOAD_BYTES,
            });
        }
        Ok(payload.into())
    }

    /// Encodes a value as the payload of an item with these options, after their check.
    pub(super) fn payload_for(&self, value: &T, options: &Enqueue) -> Result<Bytes> {
        if let Some(dedupe) = options.dedupe() {
            check_dedupe(dedupe)?;
        }
        self.payload(value)
    }
}

/// Stages an item without options.
pub(super) async fn enqueue_one(
    tr: &impl Transaction,
    keys: &Keys,
    record: Record,
) -> Result<StagedRef> {
    let staged = enqueue_records(tr, keys, &[record]).await?;
    Ok(staged[0])
}

/// Stages items without options.
async fn enqueue_records(
    tr: &impl Transaction,
    keys: &Keys,
    records: &[Record],
) -> Result<Vec<StagedRef>> {
    let queued = keys.queued(Priority::DEFAULT);
    let staged = queued.enqueue_all(tr, records).await?;
    if !staged.is_empty() {
        keys.count(tr, Counter::Queued, staged.len() as i64);
        keys.wake_all(tr);
    }
    let staged = staged.into_iter();
    Ok(staged.map(|id| keys.staged_ref(id)).collect())
}

/// Stages an item with options, which were checked.
pub(super) async fn enqueue_payload(
    tr: &impl Transaction,
    keys: &Keys,
    payload: Bytes,
    options: &Enqueue,
) -> Result<Enqueued> {
    let item = new_item(keys, payload, options, current_context)?;
    let mut changes = Changes::default();
    let enqueued = stage(tr, keys, item, &mut changes).await?;
    changes.stage(tr, keys);
    stage_ref(tr, keys, options, &enqueued).await?;
    Ok(enqueued)
}

/// Returns an item with options. Its trace context is that of the options or, if they have none, the current one.
fn new_item<'a>(
    keys: &Keys,
    payload: Bytes,
    options: &'a Enqueue,
    current: impl FnOnce() -> Option<TraceContext>,
) -> Result<NewItem<'a>> {
    let trace_context = options.trace_context.clone().or_else(current);
    let mut record = record_of(payload, wall_millis(&keys.env), options)?;
    if let Some(key) = &options.ref_key {
        check_ref_key(keys, key)?;
    }
    if let Some(joining) = &options.batch {
        // Also if the dedupe id is taken, and no batch is read.
        joining.batch.id_in(keys)?;
    }
    record.trace_context = trace_context.map(TraceContext::into_field);
    Ok(NewItem { record, options })
}

/// Returns the record of an item without options.
pub(super) fn new_record(
    keys: &Keys,
    payload: Bytes,
    trace_context: Option<TraceContext>,
) -> Record {
    let mut record = Record::new(wall_millis(&keys.env), payload);
    record.trace_context = trace_context.map(TraceContext::into_field);
    record
}
