//! A worker whose exporter only counts, beside reading the same entries: as many bytes in a transaction,
//! as many buckets at once.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use benches::figures::{Figures, Rounds};
use benches::run_tasks;
use benches::stage::{Stage, runtime};
use benches::table::Table;
use conformance::scale;
use export_queue::{ExportOptions, WorkerOptions};
use keyspace::codec::{Codec, MessagePack, Raw};
use keyspace::transaction::key_after;
use keyspace::{Bytes, Isolation, KeyValue, RangeQuery, StreamingMode, Transaction};
use microqueue::MicroQueue;

use crate::log::{ENTRIES_PER_COMMIT, Log};

/// How many bytes of entries are read in a transaction: the default of a worker.
const BYTES_PER_BATCH: usize = 1 << 20;

/// How many buckets are read, or exported, at once: the default of a worker.
const BUCKETS_AT_ONCE: usize = 4;

/// Reads logs, and exports them.
pub(crate) fn measure(stage: &Stage) -> String {
    let entries = scale(100_000, 1_000_000) as u64;
    let (mut read, mut exported) = (Rounds::default(), Rounds::default());
    for _ in 0..scale(3, 5) {
        stage.on_a_clean_place(|place| {
            runtime().block_on(async {
                let log = Log::fill(stage, place, entries / ENTRIES_PER_COMMIT).await;
                let rate = |took: Duration| Figures::of_rate(entries as f64 / took.as_secs_f64());
                read.push(rate(read_all(&log).await));
                let options = ExportOptions::new()
                    .worker(WorkerOptions::new().concurrency(BUCKETS_AT_ONCE))
                    .bytes_per_batch(BYTES_PER_BATCH);
                exported.push(rate(log.export(options, Duration::ZERO).await.took));
            });
        });
    }
    let mut table = Table::new(["way", "entries a second", "times reading"]);
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
    let (buckets, env) = (
        log.queue.settings().get_bucket_count(),
        log.runner.environment().clone(),
    );
    let entries = Arc::new(AtomicU64::new(0));
    let read = {
        let (log, entries) = (log.clone(), entries.clone());
        move |bucket| {
            let (log, entries) = (log.clone(), entries.clone());
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
    let subspace = log.queue.subspace().subspace(&("e", bucket));
    let (mut begin, end) = subspace.range();
    let (rows, mut entries) = (MicroQueue::<Bytes, Raw>::new(subspace), 0);
    loop {
        let (from, end) = (&begin, &end);
        let read = |tr| async move { read_batch(&tr, from, end).await };
        let batch = log.runner.run(read).await.expect("the store serves");
        let Some(last) = batch.last() else {
            return entries;
        };
        begin = key_after(last.key());
        for row in &batch {
            let entry = rows.decode(row).expect("entries are a microqueue's");
            black_box(decode(&entry.value));
            entries += 1;
        }
    }
}

async fn read_batch(
    tr: &impl Transaction,
    begin: &[u8],
    end: &[u8],
) -> keyspace::Result<Vec<KeyValue>> {
    let query = RangeQuery::keys(begin.to_vec(), end.to_vec()).mode(StreamingMode::WantAll);
    let (mut next, mut batch, mut bytes) = (Some(query), Vec::new(), 0);
    while let Some(query) = next.filter(|_| bytes < BYTES_PER_BATCH) {
        let read = tr.get_range(&query, Isolation::Snapshot).await?;
        next = query.after(&read);
        let sizes = read
            .rows
            .iter()
            .map(|row| row.key().len() + row.value().len());
        bytes += sizes.sum::<usize>();
        batch.extend(read.rows);
    }
    Ok(batch)
}

/// Returns key and value of an entry: the length of the key, key, value.
fn decode(entry: &Bytes) -> (String, u64) {
    let (length, _) = entry.split_first_chunk().expect("it begins with a length");
    let value_begins = 4 + u32::from_be_bytes(*length) as usize;
    let key = MessagePack.decode(entry.slice(4..value_begins));
    let value = MessagePack.decode(entry.slice(value_begins..));
    (
        key.expect("the key is a text"),
        value.expect("the value is a number"),
    )
}
