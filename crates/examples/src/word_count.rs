//! Counts words over all documents, while documents are added, changed and removed at the same time. A
//! transaction that changes a document also adds the difference to the counts.
//!
//! The counts of common words change with nearly every document, but no two changes conflict.
//!
//! It removes all its documents at the end, and thus all words.

use std::collections::BTreeMap;
use std::time::Duration;

use combine::keyspace::{
    self, Isolation, RangeQuery, Runner, Store, Subspace, Transaction, read_all,
};
use combine::{CombineQueue, Result, Sum, Unobserved, WorkerOptions};
use futures::future::try_join_all;

use crate::say;

/// A change of a document.
type Change = (&'static str, Option<&'static str>);

const ADDED: [Change; 3] = [
    ("sea", Some("The sea is deep and the sea is wide")),
    ("sky", Some("The sky is wide and the wind is free")),
    ("well", Some("The well is deep")),
];

const CHANGED: [Change; 2] = [
    ("sea", Some("The sea is calm")),
    ("well", Some("The well is dry and the sky is calm")),
];

const REMOVED: [Change; 3] = [("sea", None), ("sky", None), ("well", None)];

/// Adds, changes and removes documents, and checks the counts after each step.
///
/// # Errors
/// Those of the queue.
pub async fn run(runner: &Runner<Store>, root: &Subspace) -> Result<()> {
    let counts = root.subspace(&"counts");
    let library = Library {
        documents: root.subspace(&"documents"),
        counts: CombineQueue::open(runner, counts, Sum).await?,
    };
    let options = WorkerOptions::default();
    let worker = library.counts.work(runner, options, Unobserved).await?;
    for changes in [&ADDED[..], &CHANGED, &REMOVED] {
        // Each runs in its own transaction, all at the same time.
        try_join_all(changes.iter().map(|change| library.change(runner, change))).await?;
        library.counts.wait_idle(runner).await?;

        let (documents, counts) = library.read(runner).await?;
        assert_eq!(counts, count(&documents.join(" ")));
        let mut ranking: Vec<_> = counts.iter().collect();
        ranking.sort_by_key(|(_, count)| -**count);
        ranking.truncate(3);
        say(format_args!("{} documents: {ranking:?}", documents.len()));
    }
    let (documents, counts) = library.read(runner).await?;
    assert!(documents.is_empty() && counts.is_empty());
    worker.shut_down(Duration::from_secs(60)).await?;
    Ok(())
}

struct Library {
    documents: Subspace,
    counts: CombineQueue<String, i64>,
}

impl Library {
    /// Writes or removes a document and adds the difference to the counts, in one transaction.
    async fn change(&self, runner: &Runner<Store>, (name, text): &Change) -> Result<()> {
        let document = &self.documents.pack(name);
        let change = |tr| async move { self.stage(&tr, document, text.as_deref()).await };
        runner.run(change).await
    }

    async fn stage(&self, tr: &impl Transaction, document: &[u8], new: Option<&str>) -> Result<()> {
        // Two changes of the same document conflict, so one follows the other.
        let stored = tr.get(document, Isolation::Serializable).await?;
        let old = stored.as_deref().map(String::from_utf8_lossy);
        match new {
            Some(new) => tr.set(document, new.as_bytes()),
            None => tr.clear(document),
        }
        let mut difference = count(new.unwrap_or_default());
        for (word, count) in count(&old.unwrap_or_default()) {
            *difference.entry(word).or_default() -= count;
        }
        difference.retain(|_, count| *count != 0);
        let updates: Vec<_> = difference.into_iter().collect();
        self.counts
            .add_all(tr, updates.iter().map(|(key, value)| (key, value)))
            .await
    }

    /// Reads all documents and all counts at one read version.
    async fn read(&self, runner: &Runner<Store>) -> Result<(Vec<String>, BTreeMap<String, i64>)> {
        let read = |tr| async move {
            let (begin, end) = self.documents.range();
            let documents =
                read_all(&tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await?;
            let counts = self
                .counts
                .values(&tr, None, usize::MAX, Isolation::Snapshot)
                .await?
                .into_iter()
                .map(|listed| listed.value)
                .collect::<Result<_, _>>();
            Ok((documents, counts.map_err(keyspace::Error::from)?))
        };
        let (documents, counts) = runner.run::<_, combine::Error, _, _, _>(read).await?;
        let text = |row: &keyspace::KeyValue| String::from_utf8_lossy(row.value()).into_owned();
        let documents = documents.iter().map(text).collect();
        Ok((documents, counts))
    }
}

/// Counts the words of a text, ignoring case.
fn count(text: &str) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    for word in text.split_whitespace() {
        *counts.entry(word.to_lowercase()).or_default() += 1;
    }
    counts
}
