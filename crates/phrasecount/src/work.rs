//! Workers: they count contents, combine the counts, and queue changed counts for export.

use std::sync::Arc;
use std::time::Duration;

use export_queue::ExportQueue;
use export_queue::combine::{self, BoxError, Change, ChangeObserver};
use export_queue::hc_dequeue::{self, Delivery, WorkerOptions};

use crate::corpus::{BYTES_PER_PASS, Corpus, Count, REST};
use crate::count::Counter;
use crate::error::{Error, Result};
use crate::keyspace::Transaction;
use crate::keyspace::error::chain;
use crate::progress::{Progress, Tally};
use crate::text::ContentId;

/// How long workers may finish their current work after they are stopped.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// The time limit of a step of counting.
const STEP_TIME_LIMIT: Duration = Duration::from_secs(60);

/// How many buckets are combined at the same time. A pass takes tens of megabytes of memory.
const PASSES_AT_ONCE: usize = 2;

/// How often a waiting command checks whether the queue of contents is empty.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Queues each changed count for export, in the transaction that changes it.
struct ExportChanges(ExportQueue<String, Option<Count>>);

impl ChangeObserver<String, Count> for ExportChanges {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, Count>],
    ) -> Result<(), BoxError> {
        let changes: Vec<_> = changes
            .iter()
            .map(|change| (change.key.clone(), change.new))
            .collect();
        Ok(self
            .0
            .add_all(tr, changes.iter().map(|(key, value)| (key, value)))
            .await?)
    }
}

/// The workers of this process.
pub(crate) struct Workers {
    counting: hc_dequeue::Worker<ContentId>,
    combining: combine::Worker,
}

impl Workers {
    /// Starts to count, `contents` contents at the same time, and to combine.
    pub(crate) async fn start(
        store: &Corpus,
        contents: usize,
        tally: &Arc<Tally>,
        progress: &Progress,
    ) -> Result<Self> {
        let counter = Counter::new(store, tally, progress);
        let options = WorkerOptions::new()
            .with_concurrency(contents)
            .with_time_limit(STEP_TIME_LIMIT);
        let telling = progress.clone();
        let count = move |delivery: Delivery<ContentId>| {
            let counter = counter.clone();
            let telling = telling.clone();
            async move {
                let counted = counter.count(&delivery).await;
                if let Err(error) = &counted {
                    telling.line(format_args!("trying again: {}", chain(error)));
                }
                counted
            }
        };
        let counting = store.work.work(&store.runner, options, count).await?;
        let observer = ExportChanges(store.exports.clone());
        let options = combine::WorkerOptions::new()
            .with_concurrency(PASSES_AT_ONCE)
            .with_pass_interval(REST)
            .with_max_batch_bytes(BYTES_PER_PASS);
        let combining = store.counts.work(&store.runner, options, observer).await?;
        Ok(Self {
            counting,
            combining,
        })
    }

    /// Stops taking work, and gives back the work that is not finished soon.
    pub(crate) async fn shut_down(self) -> Result<()> {
        let counting = async { Ok::<_, Error>(self.counting.shut_down(GRACE).await?) };
        let combining = async { Ok::<_, Error>(self.combining.shut_down(GRACE).await?) };
        futures::try_join!(counting, combining)?;
        Ok(())
    }
}

/// Waits until all processes together have counted and combined everything that was loaded, and queued it for export.
pub(crate) async fn wait_idle(store: &Corpus, tally: &Tally, progress: &Progress) -> Result<()> {
    let phase = progress.phase("counting", 0);
    loop {
        let look = |tr| async move { store.work.stats(&tr).await };
        let stats = store.runner.run(look).await?;
        let contents = stats.queued + stats.delayed + stats.held;
        if contents == 0 {
            break;
        }
        let phrases = tally.phrases_moved();
        phase.tell(format!(
            "{contents} documents left, {phrases} phrases counted"
        ));
        store.runner.environment().sleep(LOOK_INTERVAL).await;
    }
    phase.tell("combining".to_owned());
    store.counts.wait_idle(&store.runner).await?;
    let phrases = tally.phrases_moved();
    phase.finish(&format!("counted: {phrases} phrases"));
    Ok(())
}
