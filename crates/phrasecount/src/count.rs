//! Counting: adds the phrases of a content to the counts, or subtracts them.
//!
//! The phrases of a long content are divided into *partitions* by their hash, one for each transaction. Every step
//! reads whether the content is wanted and how many of its partitions are counted. It then adds or subtracts one
//! partition:
//!
//! 1. Every step but the last moves a partition and writes the new number of counted partitions.
//! 2. The last step also acknowledges the item, and removes the content if no document has it.
//!
//! If a process dies between two steps, its item comes back, and the number says which partitions are counted. If a
//! document is removed while its content is being counted, the next step reverses the direction: it subtracts exactly
//! the partitions that were added.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use export_queue::hc_dequeue::Delivery;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::block_in_place;
use xxhash_rust::xxh3::xxh3_64;

use crate::corpus::{Content, Corpus, Update};
use crate::error::{Error, Result};
use crate::keyspace::Transaction;
use crate::progress::{Progress, Tally};
use crate::text::{ContentId, Phrases};

/// How many partitions all workers together hold in memory. A partition takes some megabytes.
const PARTITIONS_IN_MEMORY: u32 = 32;

/// How many partitions one pass over the text collects.
const PARTITIONS_AT_ONCE: u32 = 8;

/// How many chunks of a text one transaction reads.
const CHUNKS_AT_ONCE: usize = 20;

/// Counts the contents of deliveries.
#[derive(Clone)]
pub(crate) struct Counter {
    store: Corpus,
    memory: Arc<Semaphore>,
    tally: Arc<Tally>,
    progress: Progress,
}

/// The updates of some partitions of a content.
struct Partitions {
    range: Range<u32>,
    adds: bool,
    updates: Vec<Vec<(String, Update)>>,
    _memory: OwnedSemaphorePermit,
}

impl Partitions {
    fn get(&self, partition: u32, adds: bool) -> Option<&[(String, Update)]> {
        let index = partition.checked_sub(self.range.start)?;
        let updates = self.updates.get(index as usize)?;
        (self.adds == adds).then_some(updates)
    }
}

/// The outcome of a step.
enum Step {
    /// The content is counted as it should be, and the item is acknowledged.
    Done { moved: usize },
    /// A partition was moved, and others must follow.
    Moved { moved: usize },
    /// The step needs the phrases of a partition.
    Needs { partition: u32, content: Content },
}

impl Counter {
    pub(crate) fn new(store: &Corpus, tally: &Arc<Tally>, progress: &Progress) -> Self {
        Self {
            store: store.clone(),
            memory: Arc::new(Semaphore::new(PARTITIONS_IN_MEMORY as usize)),
            tally: tally.clone(),
            progress: progress.clone(),
        }
    }

    /// Adds or subtracts a content until the counts contain it exactly if it is wanted.
    pub(crate) async fn count(&self, delivery: &Delivery<ContentId>) -> Result<()> {
        let id = *delivery.value();
        let mut held = None;
        loop {
            let partitions = held.as_ref();
            let step = |tr| async move { self.step(&tr, delivery, partitions).await };
            let (is_done, moved) = match self.store.runner.run(step).await? {
                Step::Needs { partition, content } => {
                    // Free the old partitions first: reading waits for memory, which they hold.
                    drop(held.take());
                    held = Some(self.read(id, &content, partition).await?);
                    delivery.keep_alive()?;
                    continue;
                }
                Step::Moved { moved } => (false, moved),
                Step::Done { moved } => (true, moved),
            };
            self.tally.moved(moved);
            self.progress
                .detail(|| format!("counted {moved} phrases of {id}"));
            if is_done {
                return Ok(());
            }
            delivery.keep_alive()?;
        }
    }

    async fn step(
        &self,
        tr: &impl Transaction,
        delivery: &Delivery<ContentId>,
        held: Option<&Partitions>,
    ) -> Result<Step> {
        let store = &self.store;
        let id = *delivery.value();
        let Some(mut content) = store.content(tr, id).await? else {
            delivery.ack(tr).await?;
            return Ok(Step::Done { moved: 0 });
        };
        let before = content.counted;
        let mut moved = 0;
        if content.counted != goal(&content) {
            let partition = if content.is_wanted() {
                content.counted
            } else {
                content.counted - 1
            };
            let held = held.and_then(|held| held.get(partition, content.is_wanted()));
            let Some(updates) = held else {
                return Ok(Step::Needs { partition, content });
            };
            store
                .counts
                .add_all(tr, updates.iter().map(|(key, value)| (key, value)))
                .await?;
            moved = updates.len();
            content.counted = if content.is_wanted() {
                partition + 1
            } else {
                partition
            };
        }
        let is_done = content.counted == goal(&content);
        if is_done {
            delivery.ack(tr).await?;
        }
        if is_done && !content.is_wanted() {
            store.clear_content(tr, id);
        } else if content.counted != before {
            store.set_content(tr, id, &content)?;
        }
        Ok(if is_done {
            Step::Done { moved }
        } else {
            Step::Moved { moved }
        })
    }

    /// Reads the text, and collects the phrases of a partition and of the partitions that follow it.
    async fn read(&self, id: ContentId, content: &Content, partition: u32) -> Result<Partitions> {
        let first = partition - partition % PARTITIONS_AT_ONCE;
        let range = first..content.partitions.min(first + PARTITIONS_AT_ONCE);
        let memory = self
            .memory
            .clone()
            .acquire_many_owned(range.end - range.start)
            .await
            .expect("the semaphore is never closed");
        let mut found: Vec<HashMap<String, u32>> = Vec::new();
        found.resize_with(range.len(), HashMap::new);
        let mut each = |phrase: &str| {
            let partition = xxh3_64(phrase.as_bytes()) % u64::from(content.partitions);
            let Some(index) = partition.checked_sub(range.start.into()) else {
                return;
            };
            let Some(phrases) = found.get_mut(index as usize) else {
                return;
            };
            match phrases.get_mut(phrase) {
                Some(occurrences) => *occurrences += 1,
                None => {
                    phrases.insert(phrase.to_owned(), 1);
                }
            }
        };
        let mut phrases = Phrases::new();
        let mut next = 0;
        let mut text_bytes = 0;
        loop {
            let store = &self.store;
            let read = |tr| async move { store.read_chunks(&tr, id, next, CHUNKS_AT_ONCE).await };
            let chunks = store.runner.run(read).await?;
            if chunks.is_empty() {
                break;
            }
            next += chunks.len() as u64;
            for chunk in &chunks {
                text_bytes += chunk.len() as u64;
                block_in_place(|| phrases.feed(chunk, &mut each));
            }
        }
        phrases.finish(&mut each);
        // If this worker has lost the item, another one may have removed the text.
        if text_bytes != content.text_bytes {
            return Err(Error::IncompleteText {
                content: id.to_string(),
                found: text_bytes,
                expected: content.text_bytes,
            });
        }
        let adds = content.is_wanted();
        let update = if adds { Update::add } else { Update::subtract };
        let updates = found.into_iter().map(|phrases| {
            let updates = phrases.into_iter();
            updates
                .map(|(phrase, occurrences)| (phrase, update(occurrences)))
                .collect()
        });
        Ok(Partitions {
            range,
            adds,
            updates: updates.collect(),
            _memory: memory,
        })
    }
}

/// Returns how many partitions of a content should be in the counts.
fn goal(content: &Content) -> u32 {
    if content.is_wanted() {
        content.partitions
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use export_queue::combine::Bucket;
    use export_queue::hc_dequeue::{Consumer, WorkerOptions};
    use tempfile::TempDir;

    use super::*;
    use crate::choice::Choice;
    use crate::keyspace::Tx;
    use crate::load::load;

    /// A store with a document that takes several steps to count, and the delivery of that document.
    struct CountWorld {
        store: Corpus,
        empty: TempDir,
        _consumer: Consumer<ContentId>,
        delivery: Delivery<ContentId>,
        counter: Counter,
    }

    impl CountWorld {
        async fn new() -> Self {
            let time_limit = Duration::from_secs(60);
            let store = Corpus::open("memory:", time_limit).await.unwrap();
            let [full, empty] = [(); 2].map(|()| TempDir::new().unwrap());
            let words: Vec<_> = (0..40_000).map(|word| word.to_string()).collect();
            fs::write(full.path().join("long"), words.join(" ")).unwrap();
            let progress = Progress::new(true, false);
            let load_full = load(&store, full.path(), Choice::Text, &progress);
            load_full.await.unwrap();
            let options = WorkerOptions::default();
            let consumer = store.work.consumer(&store.runner, options).await.unwrap();
            Self {
                delivery: consumer.dequeue().await.unwrap().unwrap(),
                _consumer: consumer,
                counter: Counter::new(&store, &Arc::default(), &progress),
                store,
                empty,
            }
        }

        async fn content(&self) -> Option<Content> {
            let store = &self.store;
            let id = *self.delivery.value();
            let content = |tr| async move { store.content(&tr, id).await };
            store.runner.run(content).await.unwrap()
        }

        /// Collects the phrases of the first partitions, to be added.
        async fn read(&self) -> Partitions {
            let content = self.content().await.unwrap();
            assert!(content.partitions > 1, "the first step is not the last one");
            let read = self.counter.read(*self.delivery.value(), &content, 0);
            read.await.unwrap()
        }

        async fn remove_document(&self) -> Result<()> {
            let progress = Progress::new(true, false);
            load(&self.store, self.empty.path(), Choice::Text, &progress).await?;
            Ok(())
        }

        /// Returns the number of pending updates.
        async fn updates(&self) -> usize {
            let store = &self.store;
            let mut updates = 0;
            for bucket in (0..store.counts.settings().bucket_count()).map(Bucket) {
                let pending = |tr| async move { store.counts.pending(&tr, bucket).await };
                updates += store.runner.run(pending).await.unwrap().count;
            }
            updates
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_document_that_goes_while_a_step_is_under_way_is_not_counted() {
        let world = &CountWorld::new().await;
        let held = &world.read().await;
        let step = world
            .store
            .runner
            .run(|tr: Tx<_>| async move {
                let attempt = tr.attempt();
                let step = world.counter.step(&tr, &world.delivery, Some(held)).await?;
                if attempt.number == 1 {
                    assert!(matches!(step, Step::Moved { .. }));
                    world.remove_document().await?;
                }
                Ok::<_, Error>(step)
            })
            .await
            .unwrap();
        assert!(matches!(step, Step::Done { moved: 0 }));
        assert!(world.content().await.is_none());
        assert_eq!(world.updates().await, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_was_found_to_be_added_is_not_subtracted() {
        let world = &CountWorld::new().await;
        let held = &world.read().await;
        let step = |tr| async move { world.counter.step(&tr, &world.delivery, Some(held)).await };
        let first = world.store.runner.run(step).await.unwrap();
        assert!(matches!(first, Step::Moved { .. }));
        let added = world.updates().await;
        world.remove_document().await.unwrap();
        let second = world.store.runner.run(step).await.unwrap();
        assert!(matches!(second, Step::Needs { partition: 0, .. }));
        world.counter.count(&world.delivery).await.unwrap();
        assert!(world.content().await.is_none());
        assert_eq!(world.updates().await, 2 * added);
    }
}
