//! Loading: makes the documents of the store equal to the files of a directory.
//!
//! For an unchanged document, loading reads one row. For a new or changed document, one transaction stores the id of
//! its content, updates the number of documents of the old and the new content, and enqueues each content that must be
//! counted or subtracted.
//!
//! A text that is too long for that transaction is stored before it, in several transactions. The stored chunks of a
//! text always begin with the first one and have no gap: a transaction that stores a chunk checks that the previous
//! chunk is there.
//!
//! If a process dies while it stores a text, and the file changes, no document will ever have the chunks. Therefore the
//! first chunk registers the text as an *upload*, until a document has it. A load ends by removing all uploads, even
//! those of other processes that are still running. Such a process finds the previous chunk or the text missing, and
//! starts the text again.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use export_queue::hc_dequeue::Enqueue;
use futures::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;

use crate::choice::Choice;
use crate::corpus::{Content, Corpus};
use crate::error::{Error, Result};
use crate::keyspace::Transaction;
use crate::progress::{Phase, Progress};
use crate::source::{CHUNK_BYTES, Reading, Skipped, Source, Text, find};
use crate::text::ContentId;

/// How many files are read and stored at the same time.
const FILES_AT_ONCE: usize = 16;

/// How many chunks of a text one transaction stores.
const CHUNKS_AT_ONCE: usize = 10;

/// How many documents or uploads one transaction reads.
const ROWS_AT_ONCE: usize = 1_000;

/// The result of loading.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// Files with text.
    pub(crate) files: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Documents that are new or have changed.
    pub(crate) stored: u64,
    /// Documents that have not changed.
    pub(crate) unchanged: u64,
    /// Documents that were removed.
    pub(crate) removed: u64,
    /// Phrases that are too long to be counted.
    pub(crate) overlong: u64,
    pub(crate) skipped: Vec<Skipped>,
    /// Files that were left out because their names are not those of text files.
    pub(crate) left_out: u64,
}

/// The outcome of storing a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Stored,
    Unchanged,
    /// Its text has to be stored first.
    NeedsText,
}

/// Makes the documents of the store equal to the files of a directory.
pub(crate) async fn load(
    store: &Corpus,
    directory: &Path,
    choice: Choice,
    progress: &Progress,
) -> Result<Loaded> {
    let path = directory.to_owned();
    let found = in_background(move || find(&path, choice)).await?;
    let sources = found.sources;
    let phase = progress.phase("loading", sources.len() as u64);
    let loading = Loading {
        store,
        progress,
        phase: &phase,
        loaded: Mutex::new(Loaded {
            skipped: found.skipped,
            left_out: found.left_out,
            ..Loaded::default()
        }),
        seen: Mutex::default(),
    };
    let loads = stream::iter(sources)
        .map(|source| loading.file(source))
        .buffer_unordered(FILES_AT_ONCE);
    loads.try_for_each(|()| async { Ok(()) }).await?;
    loading.remove_unseen().await?;
    loading.remove_uploads().await?;
    let mut loaded = loading.into_loaded();
    loaded.skipped.sort_by(|a, b| a.uri.cmp(&b.uri));
    phase.finish(&format!(
        "loaded: {} documents new or changed, {} unchanged, {} removed, {} files skipped",
        loaded.stored,
        loaded.unchanged,
        loaded.removed,
        loaded.skipped.len()
    ));
    Ok(loaded)
}

struct Loading<'a> {
    store: &'a Corpus,
    progress: &'a Progress,
    phase: &'a Phase,
    loaded: Mutex<Loaded>,
    /// The documents that the directory has.
    seen: Mutex<HashSet<String>>,
}

impl Loading<'_> {
    async fn file(&self, source: Source) -> Result<()> {
        let uri = source.uri.clone();
        match in_background(move || source.read()).await? {
            Reading::Text(text) => {
                let text = Arc::new(text);
                let outcome = self.store_document(&uri, &text).await?;
                self.note(|loaded| {
                    loaded.files += 1;
                    loaded.bytes += text.file_bytes;
                    loaded.overlong += text.overlong;
                    match outcome {
                        Outcome::Unchanged => loaded.unchanged += 1,
                        Outcome::Stored | Outcome::NeedsText => loaded.stored += 1,
                    }
                });
                if outcome == Outcome::Stored {
                    self.progress.detail(|| format!("loaded {uri}"));
                }
                self.see(uri);
            }
            Reading::Empty => self.note(|loaded| loaded.files += 1),
            Reading::Skipped(skipped) => self.note(|loaded| loaded.skipped.push(skipped)),
        }
        self.phase.advance();
        Ok(())
    }

    async fn store_document(&self, uri: &str, text: &Arc<Text>) -> Result<Outcome> {
        let store = self.store;
        loop {
            let set = |tr| async move { set_document(store, &tr, uri, Some(text)).await };
            match store.runner.run(set).await? {
                Outcome::NeedsText => self.store_text(uri, text).await?,
                outcome => return Ok(outcome),
            }
        }
    }

    /// Removes the documents that the directory does not have, but keeps those that may be in a place that could not
    /// be read.
    async fn remove_unseen(&self) -> Result<()> {
        let store = self.store;
        let mut after: Option<String> = None;
        loop {
            let last = after.as_deref();
            let look = |tr| async move { store.documents(&tr, last, ROWS_AT_ONCE).await };
            let documents = store.runner.run(look).await?;
            let Some(last) = documents.last() else {
                return Ok(());
            };
            after = Some(last.clone());
            for uri in documents.iter().filter(|uri| self.is_gone(uri)) {
                let remove = |tr| async move { set_document(store, &tr, uri, None).await };
                store.runner.run(remove).await?;
                self.note(|loaded| loaded.removed += 1);
                self.progress.detail(|| format!("removed {uri}"));
            }
        }
    }

    /// Stores a text in as many transactions as it takes.
    async fn store_text(&self, uri: &str, text: &Arc<Text>) -> Result<()> {
        let store = self.store;
        let mut first = 0;
        while first < text.chunks() {
            let source = text.clone();
            let chunks: &[u8] = &in_background(move || {
                let chunks = source.read_chunks(first, CHUNKS_AT_ONCE);
                chunks.map_err(|cause| Error::Spool {
                    path: std::env::temp_dir(),
                    cause,
                })
            })
            .await?;
            let store = |tr| async move { store_chunks(store, &tr, text, first, chunks).await };
            // `false` means that another load has removed the text: start it again.
            first = if self.store.runner.run(store).await? {
                text.chunks().min(first + CHUNKS_AT_ONCE as u64)
            } else {
                0
            };
            self.progress
                .detail(|| format!("stored {first} of {} chunks of {uri}", text.chunks()));
        }
        Ok(())
    }

    /// Removes the uploads: texts that were partly stored, and that no document has. Removes each at most once, so
    /// that a process that starts its text again can complete it.
    async fn remove_uploads(&self) -> Result<()> {
        let store = self.store;
        let mut after = None;
        loop {
            let look = |tr| async move { store.uploads(&tr, after, ROWS_AT_ONCE).await };
            let uploads = store.runner.run(look).await?;
            after = uploads.last().copied();
            if after.is_none() {
                return Ok(());
            }
            for id in uploads {
                let clear = |tr| async move { store.clear_upload(&tr, id).await };
                if store.runner.run(clear).await? {
                    self.progress.detail(|| format!("removed upload {id}"));
                }
            }
        }
    }

    fn is_gone(&self, uri: &str) -> bool {
        let seen = self.seen.lock();
        let loaded = self.loaded.lock();
        !seen.contains(uri) && !loaded.skipped.iter().any(|skipped| skipped.hides(uri))
    }

    fn see(&self, uri: String) {
        let mut seen = self.seen.lock();
        seen.insert(uri);
    }

    fn note(&self, note: impl FnOnce(&mut Loaded)) {
        note(&mut self.loaded.lock());
    }

    fn into_loaded(self) -> Loaded {
        self.loaded.into_inner()
    }
}

/// Stages the text of a document. `None` removes the document.
async fn set_document(
    store: &Corpus,
    tr: &impl Transaction,
    uri: &str,
    text: Option<&Arc<Text>>,
) -> Result<Outcome> {
    let old = store.document(tr, uri).await?;
    let new = text.map(|text| text.id);
    if old == new {
        return Ok(Outcome::Unchanged);
    }
    if let Some(text) = text {
        if !store.has_text(tr, text.id).await? {
            let Some(bytes) = text.in_memory() else {
                return Ok(Outcome::NeedsText);
            };
            for (index, chunk) in (0..).zip(bytes.chunks(CHUNK_BYTES)) {
                store.set_chunk(tr, text.id, index, chunk);
            }
            store.complete_text(tr, text.id);
        }
        let mut content = store.content(tr, text.id).await?.unwrap_or_else(|| {
            store.end_upload(tr, text.id);
            Content {
                references: 0,
                partitions: text.partitions,
                counted: 0,
                text_bytes: text.text_bytes,
            }
        });
        content.references += 1;
        store.set_content(tr, text.id, &content)?;
        if content.references == 1 {
            enqueue(store, tr, text.id).await?;
        }
    }
    if let Some(old) = old {
        // The content exists while a document has it.
        if let Some(mut content) = store.content(tr, old).await? {
            content.references -= 1;
            store.set_content(tr, old, &content)?;
            if !content.is_wanted() {
                enqueue(store, tr, old).await?;
            }
        }
    }
    store.set_document(tr, uri, new)?;
    Ok(Outcome::Stored)
}

/// Stages an item that makes a worker check a content.
async fn enqueue(store: &Corpus, tr: &impl Transaction, id: ContentId) -> Result<()> {
    let once = Enqueue::new().with_dedupe(id.bytes());
    // If the queue already has an item for this content, its worker reads the writes of this transaction, or its own
    // transaction conflicts.
    let _ = store.work.enqueue_with(tr, &id, &once).await?;
    Ok(())
}

/// Stages consecutive chunks. Returns `false` if the chunk before them is missing.
async fn store_chunks(
    store: &Corpus,
    tr: &impl Transaction,
    text: &Text,
    first: u64,
    chunks: &[u8],
) -> Result<bool> {
    if store.has_text(tr, text.id).await? {
        return Ok(true);
    }
    if first > 0 && !store.has_chunk(tr, text.id, first - 1).await? {
        return Ok(false);
    }
    if first == 0 {
        store.begin_upload(tr, text.id);
    }
    let mut next = first;
    for chunk in chunks.chunks(CHUNK_BYTES) {
        store.set_chunk(tr, text.id, next, chunk);
        next += 1;
    }
    if next == text.chunks() {
        store.complete_text(tr, text.id);
    }
    Ok(true)
}

/// Runs blocking work on a thread of its own.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;
    use crate::keyspace::Tx;

    /// A store, a directory with a text that takes several transactions, and an empty directory.
    struct LoadWorld {
        store: Corpus,
        full: TempDir,
        empty: TempDir,
    }

    impl LoadWorld {
        async fn new() -> Self {
            let time_limit = Duration::from_secs(60);
            let world = Self {
                store: Corpus::open("memory:", time_limit).await.unwrap(),
                full: TempDir::new().unwrap(),
                empty: TempDir::new().unwrap(),
            };
            let text = "all work and no play makes a dull day ".repeat(60_000);
            fs::write(world.full.path().join("long"), text).unwrap();
            world
        }

        fn text(&self) -> Arc<Text> {
            let found = find(self.full.path(), Choice::Text).unwrap();
            let Reading::Text(text) = found.sources[0].read().unwrap() else {
                panic!("it is a text");
            };
            Arc::new(text)
        }

        async fn load(&self, directory: &TempDir) -> Loaded {
            let progress = Progress::new(true, false);
            load(&self.store, directory.path(), Choice::Text, &progress)
                .await
                .unwrap()
        }

        async fn store_run(&self, text: &Text, run: usize) -> bool {
            let store = &self.store;
            let first = run * CHUNKS_AT_ONCE;
            let chunks = &text.read_chunks(first as u64, CHUNKS_AT_ONCE).unwrap();
            let run =
                |tr| async move { store_chunks(store, &tr, text, first as u64, chunks).await };
            store.runner.run(run).await.unwrap()
        }

        /// Returns the number of chunks and of uploads.
        async fn left(&self, text: &Text) -> (usize, usize) {
            let store = &self.store;
            let id = text.id;
            let count = |tr| async move {
                let chunks = store.read_chunks(&tr, id, 0, ROWS_AT_ONCE).await?;
                let uploads = store.uploads(&tr, None, ROWS_AT_ONCE).await?;
                Ok::<_, Error>((chunks.len(), uploads.len()))
            };
            store.runner.run(count).await.unwrap()
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_upload_that_another_load_removes_begins_again() {
        let world = LoadWorld::new().await;
        let text = world.text();
        let all = text.chunks() as usize;
        assert!(all > 2 * CHUNKS_AT_ONCE);
        assert!(world.store_run(&text, 0).await);
        assert_eq!(world.left(&text).await, (CHUNKS_AT_ONCE, 1));
        world.load(&world.empty).await;
        assert_eq!(world.left(&text).await, (0, 0));
        assert!(!world.store_run(&text, 1).await);
        assert_eq!(world.left(&text).await, (0, 0));
        assert_eq!(world.load(&world.full).await.stored, 1);
        assert_eq!(world.left(&text).await, (all, 0));
        assert_eq!(world.load(&world.full).await.unchanged, 1);
        assert_eq!(world.left(&text).await, (all, 0));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn documents_that_get_a_text_at_the_same_time_are_all_counted() {
        let world = LoadWorld::new().await;
        let store = &world.store;
        let text = &world.text();
        world.load(&world.full).await;
        let set = |tr: Tx<_>| async move {
            let attempt = tr.attempt();
            let outcome = set_document(store, &tr, "a", Some(text)).await?;
            if attempt.number == 1 {
                let set = |tr| async move { set_document(store, &tr, "b", Some(text)).await };
                store.runner.run(set).await?;
            }
            Ok::<_, Error>(outcome)
        };
        store.runner.run(set).await.unwrap();
        let content = store
            .runner
            .run(|tr| async move { store.content(&tr, text.id).await })
            .await
            .unwrap();
        assert_eq!(content.map(|content| content.references), Some(3));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_whole_text_that_no_document_has_is_removed_too() {
        let world = LoadWorld::new().await;
        let text = world.text();
        for run in 0..3 {
            assert!(world.store_run(&text, run).await);
        }
        assert_eq!(world.left(&text).await, (text.chunks() as usize, 1));
        world.load(&world.empty).await;
        assert_eq!(world.left(&text).await, (0, 0));
        let store = &world.store;
        let document = &text;
        let set = |tr| async move { set_document(store, &tr, "long", Some(document)).await };
        assert_eq!(store.runner.run(set).await.unwrap(), Outcome::NeedsText);
    }
}
