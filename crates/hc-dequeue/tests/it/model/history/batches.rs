//! Batches in a history: they are opened, get members, and are closed or cancelled, and each has one callback.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use conformance::stores::TestStore;
use hc_dequeue::{
    Batch, BatchRef, Delivery, Enqueue, Enqueued, Error, ItemRef, PlaceKind, StagedRef,
};
use keyspace::{Transaction, Tx};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::groups::PACED;
use super::{Player, SAME, count, count_done};
use crate::common::Queue;

/// A batch that a history has opened. It may be over by now.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenedBatch {
    batch: BatchRef,
    /// The value of its callback.
    callback: u64,
    dead_letters_stay: bool,
    is_closed: bool,
}

impl Player {
    /// Opens a batch, adds members to one, closes one, or cancels one.
    pub(super) async fn step_batches(&mut self) {
        let place = self.rng.random_range(0..self.batches.len().max(1));
        let step = self.rng.random_range(0..10);
        let Some(batch) = self.batches.get(place).copied() else {
            return self.open_batch().await;
        };
        match step {
            0..3 => self.open_batch().await,
            3..7 => self.add_members(&batch).await,
            7..9 => {
                self.batches[place].is_closed = true;
                self.close(&batch).await;
            }
            _ => {
                self.batches[place].is_closed = true;
                self.cancel_batch(&batch).await;
            }
        }
    }

    /// Opens a batch, which may be a member of another one.
    async fn open_batch(&mut self) {
        let callback = self.next_value;
        self.next_value += 1;
        let delay = Duration::from_millis(self.rng.random_range(0..10));
        let group = self.some_group();
        let options = self.with_group(Enqueue::new().with_delay(delay), group);
        if group == Some(PACED) {
            self.paced.insert(callback);
        }
        let dead_letters_stay = self.rng.random();
        let mut batch = Batch::new().with_callback(callback, options);
        if dead_letters_stay {
            batch = batch.with_dead_letters_staying();
        }
        let mut parent = self.batches.choose(&mut self.rng).copied();
        if self.rng.random() {
            parent = None;
        }
        let parent = &parent;
        let queue = &self.queue;
        let store = &self.store;
        let batch = &batch;
        let open = |tr| async move {
            let tr = &tr;
            if let Some(parent) = parent {
                let child = batch.clone().with_parent(&parent.batch);
                match queue.open_batch(tr, &child).await {
                    // It has no parent then.
                    Err(Error::BatchOver { .. } | Error::BatchClosed { .. }) => {}
                    opened => {
                        let opened = opened?;
                        count(tr, store, "members", parent.callback);
                        return Ok(opened);
                    }
                }
            }
            queue.open_batch(tr, batch).await
        };
        let batch = self.runner.run(open).await.unwrap();
        self.batches.push(OpenedBatch {
            batch,
            callback,
            dead_letters_stay,
            is_closed: false,
        });
    }

    async fn add_members(&mut self, batch: &OpenedBatch) {
        let mut items = Vec::new();
        for _ in 0..self.rng.random_range(1..4) {
            let group = self.some_group();
            if group == Some(PACED) {
                self.paced.insert(self.next_value);
            }
            items.push((self.next_value, self.with_group(Enqueue::new(), group)));
            self.next_value += 1;
        }
        let queue = &self.queue;
        let store = &self.store;
        let items = &items[..];
        let add = |tr| async move { stage_members(&tr, store, queue, batch, items, None).await };
        let (staged, commit) = self.runner.run_committed(add).await.unwrap();
        let stamp = commit.versionstamp.unwrap();
        let staged = staged.into_iter().map(|item| item.at(stamp));
        let values = items.iter().map(|(value, _)| *value);
        self.items.extend(values.zip(staged));
    }

    async fn close(&self, batch: &OpenedBatch) {
        let queue = &self.queue;
        let close = |tr: Tx<_>| async move { queue.close_batch(&tr, &batch.batch) };
        self.runner.run(close).await.unwrap();
    }

    /// Closes all batches that are still open.
    pub(super) async fn close_all(&self) {
        for batch in self.batches.iter().filter(|batch| !batch.is_closed) {
            self.close(batch).await;
        }
    }

    /// Cancels a batch. Counts in the same transaction that its callback does not come, unless it has come.
    async fn cancel_batch(&self, batch: &OpenedBatch) {
        let queue = &self.queue;
        let store = &self.store;
        let cancel = |tr| async move {
            let tr = &tr;
            let status = queue.batch_status(tr, &batch.batch).await?;
            let was_there = queue.cancel_batch(tr, &batch.batch).await?;
            let status = status.filter(|status| status.end.is_none());
            assert_eq!(was_there, status.is_some());
            if status.is_some_and(|status| !status.is_cancelled) {
                count(tr, store, "without callback", batch.callback);
            }
            Ok::<_, Error>(())
        };
        self.runner.run(cancel).await.unwrap();
    }

    /// Returns the batch of which an item is a member.
    pub(super) fn batch_of(&self, delivery: &Delivery<u64>) -> Option<OpenedBatch> {
        let batch = delivery.batch()?;
        let is_same = |opened: &&OpenedBatch| opened.batch == batch;
        self.batches.iter().find(is_same).copied()
    }

    /// Acknowledges a member, and adds another one to its batch in the same transaction.
    pub(super) async fn acknowledge_and_add(
        &mut self,
        delivery: &Delivery<u64>,
        batch: &OpenedBatch,
    ) -> Result<(), Error> {
        let value = self.next_value;
        let items = &[(value, Enqueue::new())][..];
        let queue = &self.queue;
        let store = &self.store;
        let keep_done = self.keep_done;
        let add = |tr| async move {
            let tr = &tr;
            delivery.ack(tr).await?;
            count_done(tr, store, delivery, keep_done);
            let status = queue.batch_status(tr, &batch.batch).await?;
            let goes_on = status.is_some_and(|status| status.end.is_none());
            assert!(goes_on, "the batch has ended before {delivery:?}");
            stage_members(tr, store, queue, batch, items, Some(delivery)).await
        };
        let (staged, commit) = self.runner.run_committed(add).await?;
        self.next_value += 1;
        let stamp = commit.versionstamp.unwrap();
        let staged = staged.into_iter().map(|item| (value, item.at(stamp)));
        self.items.extend(staged);
        Ok(())
    }

    /// Compares how the members have ended with how many have joined, for each callback that was acknowledged.
    pub(super) async fn judge_batches(
        &mut self,
        done: &BTreeMap<u64, usize>,
    ) -> Result<(), String> {
        let joined = self.effects("members").await;
        let ended = self.effects("members ended").await;
        let dead = self.effects("members dead").await;
        let number =
            |of: &BTreeMap<u64, usize>, batch: &OpenedBatch| of.get(&batch.callback).copied();
        for batch in &self.batches {
            let expected = number(&joined, batch).unwrap_or_default();
            match number(&ended, batch) {
                Some(ended) if ended != expected => {
                    return Err(format!(
                        "{ended} members of {expected} have ended: {batch:?}"
                    ));
                }
                None if done.contains_key(&batch.callback) => {
                    return Err(format!("the callback had no counts: {batch:?}"));
                }
                ended => self.course.callbacks += usize::from(ended.is_some()),
            }
            if batch.dead_letters_stay && number(&dead, batch).is_some_and(|dead| dead > 0) {
                return Err(format!("dead letters have left: {batch:?}"));
            }
        }
        self.course.batches = self.batches.len();
        self.course.members = joined.values().sum::<usize>() as u64;
        Ok(())
    }

    /// Finds the callbacks whose ends are kept: nothing that the history has enqueued returned references to them.
    pub(super) async fn find_kept_callbacks(&mut self) {
        let queue = &self.queue;
        let list = |tr| async move {
            let mut found: Vec<(u64, ItemRef)> = Vec::new();
            let mut after = None;
            loop {
                let page = queue
                    .list(&tr, PlaceKind::Done, after.as_ref(), 100)
                    .await?;
                for listed in page.items {
                    let status = listed.status.expect("the history has encoded it");
                    let value = status.value.expect("the history has encoded it");
                    found.push((value % SAME, listed.item));
                }
                after = page.next;
                if after.is_none() {
                    return Ok::<_, Error>(found);
                }
            }
        };
        let mut kept = self.runner.run(list).await.unwrap();
        let callbacks = self.batches.iter().map(|batch| batch.callback);
        let callbacks: BTreeSet<_> = callbacks.collect();
        kept.retain(|(value, _)| callbacks.contains(value));
        self.items.extend(kept);
    }
}

/// Stages items as members of a batch, which may be that of a delivery's item, or without it if it takes none.
async fn stage_members(
    tr: &impl Transaction,
    store: &TestStore,
    queue: &Queue,
    batch: &OpenedBatch,
    items: &[(u64, Enqueue)],
    by: Option<&Delivery<u64>>,
) -> Result<Vec<StagedRef>, Error> {
    let mut staged = Vec::new();
    for (value, options) in items {
        let member = match by {
            Some(delivery) => options.clone().with_batch_of(delivery),
            None => options.clone().with_batch(&batch.batch),
        };
        let enqueued = match queue.enqueue_with(tr, value, &member).await {
            Err(Error::BatchOver { .. } | Error::BatchClosed { .. }) => {
                queue.enqueue_with(tr, value, options).await?
            }
            enqueued => {
                let enqueued = enqueued?;
                count(tr, store, "members", batch.callback);
                enqueued
            }
        };
        match enqueued {
            Enqueued::Staged(item) => staged.push(item),
            other => panic!("{other:?}"),
        }
    }
    Ok(staged)
}
