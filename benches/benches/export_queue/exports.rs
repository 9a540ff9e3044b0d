//! A worker whose exporter only counts, compared with reading the same entries: as many bytes in a transaction,
//! as many buckets at once.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use benches::figures::{Figures, Rounds};
use benches::run_tasks;
use benches::stage::{Stage, runtime};
use benches::table::Table;
use conformance::scale;
use export_queue::WorkerOptions;
use keyspace::Transaction;
use keyspace::codec::{Codec, MessagePack};
use microqueue::blocks::{BlockLogs, Entry, EntryId, StoredBlock, WHOLE_BLOCK};

use crate::log::{ENTRIES_PER_COMMIT, Log};

/// How many bytes of entries are read in a transaction: the default of a worker.
const BYTES_PER_BATCH: usize = 1 << 20;

/// How many buckets are read, or exported, at once: the default of a worker.
const BUCKETS_AT_ONCE: usize = 4;

/// Reads logs, and exports them.
pub(crate) fn measure(stage: &Stage) -> String {
    let entries = scale(100_000, 1_000_000) as u64;
    let mut read = Rounds::default();
    let mut exported = Rounds::default();
    for _ in 0..scale(3, 5) {
        stage.on_a_clean_place(|place| {
            runtime().block_on(async {
                let log = Log::fill(stage, place, entries / ENTRIES_PER_COMMIT).await;
                let rate = |took: Duration| Figures::of_rate(entries as f64 / took.as_secs_f64());
                read.push(rate(read_all(&log).await));
                let options = WorkerOptions::new()
                    .with_concurrency(BUCKETS_AT_ONCE)
                    .with_max_batch_bytes(BYTES_PER_BATCH);
                exported.push(rate(log.export(options).await));
            });
        });
    }
    let mut table = Table::new(["way", "entries per second", "times reading"]);
    for (name, rounds) in [("read and decoded", &read), ("exported", &exported)] {
        table.push([
            name.to_owned(),
            format!("{:.0}", rounds.median(|figures| figures.rate)),
            format!("{:.2}", rounds.median_ratio(&read)),
        ]);
    }
    format!("A log of {entries} entries, {BUCKETS_AT_ONCE} buckets at once\n\n{table}")
}

/// Returns how long it takes to read and decode all entries.
async fn read_all(log: &Log) -> Duration {
    let buckets = log.queue.settings().bucket_count();
    let env = log.runner.environment().clone();
    let entries = Arc::new(AtomicU64::new(0));
    let read = {
        let log = log.clone();
        let entries = entries.clone();
        move |bucket| {
            let log = log.clone();
            let entries = entries.clone();
            async move {
                let count = read_bucket(&log, bucket).await;
                entries.fetch_add(count, Ordering::Relaxed);
            }
        }
    };
    let took = run_tasks(&env, BUCKETS_AT_ONCE, buckets.into(), read).await;
    assert_eq!(entries.load(Ordering::Relaxed), log.entries);
    took
}

/// Reads a bucket, and returns how many entries it has.
async fn read_bucket(log: &Log, bucket: u64) -> u64 {
    let settings = log.queue.settings();
    let logs = BlockLogs::new(
        log.queue.subspace().subspace(&"e"),
        settings.bucket_count(),
        log.runner.environment().clone(),
    );
    let bucket = u32::try_from(bucket).expect("there are few buckets");
    let mut after = None;
    let mut entries = 0;
    loop {
        let logs = &logs;
        let read = |tr| async move { read_batch(&tr, logs, bucket, after).await };
        let batch = log.runner.run(read).await.expect("the store serves");
        let Some(last) = batch.last() else {
            return entries;
        };
        // The block after it.
        after = Some(EntryId {
            index: WHOLE_BLOCK,
            ..last.id
        });
        for block in &batch {
            for entry in block.entries().expect("blocks are whole") {
                black_box(decode(entry));
                entries += 1;
            }
        }
    }
}

async fn read_batch(
    tr: &impl Transaction,
    logs: &BlockLogs,
    bucket: u32,
    after: Option<EntryId>,
) -> microqueue::Result<Vec<StoredBlock>> {
    let mut batch = Vec::new();
    let mut bytes = 0;
    let visited = logs.visit(tr, bucket, after, |block| {
        bytes += block.bytes.len();
        batch.push(block);
        Ok::<_, microqueue::Error>(if bytes < BYTES_PER_BATCH {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        })
    });
    visited.await?;
    Ok(batch)
}

/// Returns key and value of an entry.
fn decode(entry: Entry) -> (String, u64) {
    let key = MessagePack.decode(entry.key);
    let value = MessagePack.decode(entry.value);
    (
        key.expect("the key is a text"),
        value.expect("the value is a number"),
    )
}
