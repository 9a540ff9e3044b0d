//! The data of phrasecount in the store.
//!
//! ```text
//! ("phrasecount", "store")                id of this store
//! ("phrasecount", "document", uri)        id of its content
//! ("phrasecount", "content", id)          how many documents have it, and how far it is counted
//! ("phrasecount", "text", id)             there, if the text is complete
//! ("phrasecount", "chunk", id, index)     a part of the text
//! ("phrasecount", "upload", id)           there, from the first chunk of a text that takes several
//!                                         transactions, until a document has it
//! ("phrasecount", "work", ...)            the queue of contents to be counted
//! ("phrasecount", "counts", ...)          the combine queue of phrases
//! ("phrasecount", "exports", ...)         the export queue of phrases
//! ```
//!
//! A content is *wanted* while a document has it. A transaction that changes this, or that adds a content, also
//! enqueues the content's id with a dedupe id. So every content that is not counted as it should be has one item in the
//! queue.

use std::time::Duration;

use export_queue::ExportQueue;
use export_queue::combine::{self, CombineQueue};
use export_queue::hc_dequeue::{self, Queue};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use crate::error::{Error, Result};
use crate::keyspace::codec::MessagePack;
use crate::keyspace::embedded::{self, Sharing};
use crate::keyspace::url::StoreUrl;
use crate::keyspace::{
    self, Bytes, Isolation, OpenOptions, RangeQuery, StreamingMode, Subspace, Transaction, typed,
};
use crate::text::ContentId;

pub(crate) type Runner = keyspace::Runner<keyspace::Store>;

/// How long a process may be silent before other processes take over its work.
const LEASE: Duration = Duration::from_secs(5);

/// How long a bucket rests after a pass. The phrases of all documents that arrive in this time are combined, stored and
/// exported together. This is more than twice as fast as passes without a rest, and writes a quarter of the bytes.
pub(crate) const REST: Duration = Duration::from_millis(300);

/// How many bytes a pass takes: enough for the updates that arrive while a bucket rests. A pass that does not reach the
/// end of its log stores values without reporting them, and the next pass writes them again.
pub(crate) const BYTES_PER_PASS: usize = 3 << 20;

/// The number of buckets of phrases.
const BUCKETS: u32 = 32;

/// The change of a phrase's count by a content or a part of one.
///
/// MessagePack stores the names of fields. There is a record for each phrase of a document, so the names are short.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Update {
    #[serde(rename = "d")]
    documents: i64,
    #[serde(rename = "o")]
    occurrences: i64,
}

impl Update {
    /// Adds one document with this number of occurrences.
    pub(crate) fn add(occurrences: u32) -> Self {
        Self {
            documents: 1,
            occurrences: occurrences.into(),
        }
    }

    /// Subtracts one document with this number of occurrences.
    pub(crate) fn subtract(occurrences: u32) -> Self {
        Self {
            documents: -1,
            occurrences: -i64::from(occurrences),
        }
    }
}

/// The count of a phrase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Count {
    /// The number of distinct contents with the phrase.
    #[serde(rename = "d")]
    pub(crate) documents: u64,
    /// The number of occurrences in all of them.
    #[serde(rename = "o")]
    pub(crate) occurrences: u64,
}

/// Adds up updates. A phrase without occurrences has no count.
fn combine_counts(_phrase: &String, current: Option<Count>, updates: Vec<Update>) -> Option<Count> {
    let current = current.unwrap_or_default();
    let documents = updates.iter().map(|update| update.documents).sum();
    let occurrences = updates.iter().map(|update| update.occurrences).sum();
    // A content is subtracted only after it was added, and by the same amount.
    let sum = |count: u64, change| count.checked_add_signed(change).expect("a count");
    let count = Count {
        documents: sum(current.documents, documents),
        occurrences: sum(current.occurrences, occurrences),
    };
    Some(count).filter(|count| *count != Count::default())
}

/// A content that a document has, or had.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Content {
    /// The number of documents that have it.
    pub(crate) references: u64,
    /// The number of partitions of its phrases.
    pub(crate) partitions: u32,
    /// How many of the partitions, from the first one on, are in the counts.
    pub(crate) counted: u32,
    pub(crate) text_bytes: u64,
}

impl Content {
    pub(crate) fn is_wanted(&self) -> bool {
        self.references > 0
    }
}

/// The recipes and rows of phrasecount in one store.
#[derive(Clone)]
pub(crate) struct Corpus {
    pub(crate) runner: Runner,
    /// The id of this store, which no other store has.
    pub(crate) id: String,
    pub(crate) work: Queue<ContentId>,
    pub(crate) counts: CombineQueue<String, Update, Count>,
    pub(crate) exports: ExportQueue<String, Option<Count>>,
    root: Subspace,
}

impl Corpus {
    /// Opens the store of a URL, and creates it if it is missing. A transaction fails if it has not ended after the
    /// time limit.
    pub(crate) async fn open(url: &str, time_limit: Duration) -> Result<Self> {
        let db = keyspace::open(url).map_err(Error::Open)?;
        Self::open_on(runner(db, time_limit)).await
    }

    /// Opens a store in which something was counted, with the time limit of [`open`](Self::open), to look at it. If it
    /// is embedded, it stays with the processes that work on it.
    ///
    /// # Errors
    /// [`Error::NoStore`], [`Error::Memory`] and [`Error::NothingCounted`], which leave the store unchanged and create
    /// nothing.
    pub(crate) async fn open_existing(url: &str, time_limit: Duration) -> Result<Self> {
        let opened = match url.parse() {
            Ok(StoreUrl::Memory) => return Err(Error::Memory),
            Ok(StoreUrl::Embedded { path }) => {
                let viewer = embedded::Options::new().with_sharing(Sharing::Yield);
                viewer.open_existing(path).map(keyspace::Store::from)
            }
            _ => keyspace::open_existing(url),
        };
        let db = match opened {
            Err(keyspace::OpenError::NoStore { path }) => return Err(Error::NoStore { path }),
            opened => opened.map_err(Error::Open)?,
        };
        let runner = runner(db, time_limit);
        let id_key = &root().pack(&"store");
        let id = runner.run(|tr| async move {
            typed::get::<String>(&tr, &MessagePack, id_key, Isolation::Serializable).await
        });
        if id.await?.is_none() {
            // The range also has the runner's slot of the ledger.
            runner.close().await?;
            let db = url.to_owned();
            return Err(Error::NothingCounted { db });
        }
        Self::open_on(runner).await
    }

    async fn open_on(runner: Runner) -> Result<Self> {
        let root = root();
        // The death of a session says nothing against its items.
        let work = hc_dequeue::Settings::new()
            .with_lease(LEASE)
            .with_max_attempts(u32::MAX);
        let buckets = combine::Settings::new()
            .with_bucket_count(BUCKETS)
            .with_lease(LEASE);
        let [work_keys, counts, exports] =
            ["work", "counts", "exports"].map(|name| root.subspace(&name));
        let work = Queue::open_with(&runner, work_keys, work, OpenOptions::default()).await?;
        let counts = CombineQueue::open_with(
            &runner,
            counts,
            buckets,
            combine_counts,
            OpenOptions::default(),
        )
        .await?;
        let exports =
            ExportQueue::open_with(&runner, exports, buckets, OpenOptions::default()).await?;
        let id_key = &root.pack(&"store");
        let new_id = &random_id(&runner);
        let id = runner
            .run(|tr| async move {
                let stored = typed::get(&tr, &MessagePack, id_key, Isolation::Serializable).await?;
                if stored.is_none() {
                    typed::set(&tr, &MessagePack, id_key, new_id)?;
                }
                Ok::<_, Error>(stored.unwrap_or_else(|| new_id.clone()))
            })
            .await?;
        Ok(Self {
            runner,
            id,
            work,
            counts,
            exports,
            root,
        })
    }

    /// Returns why an embedded store gave no answer in time: a disk without room lets commits wait until there is room.
    /// Closes the store, because only the end of that wait has the disk's error.
    pub(crate) async fn cause_of_silence(&self, error: &Error) -> Option<Error> {
        match self.runner.database() {
            keyspace::Store::Embedded(_) if error.is_no_answer() => self.close_files().await.err(),
            _ => None,
        }
    }

    /// Closes the store. An embedded store is a single file afterwards.
    pub(crate) async fn close(&self) -> Result<()> {
        self.runner.close().await?;
        self.close_files().await
    }

    /// Closes the store on a thread of its own, so that a signal ends the wait for a disk that hangs.
    async fn close_files(&self) -> Result<()> {
        let db = self.runner.database().clone();
        let closed = spawn_blocking(move || db.close()).await;
        Ok(closed.expect("closing does not panic")?)
    }

    fn document_key(&self, uri: &str) -> Vec<u8> {
        self.root.pack(&("document", uri))
    }

    pub(crate) async fn document(
        &self,
        tr: &impl Transaction,
        uri: &str,
    ) -> Result<Option<ContentId>> {
        let key = self.document_key(uri);
        Ok(typed::get(tr, &MessagePack, &key, Isolation::Serializable).await?)
    }

    pub(crate) fn set_document(
        &self,
        tr: &impl Transaction,
        uri: &str,
        id: Option<ContentId>,
    ) -> Result<()> {
        let key = self.document_key(uri);
        match id {
            Some(id) => Ok(typed::set(tr, &MessagePack, &key, &id)?),
            None => {
                tr.clear(&key);
                Ok(())
            }
        }
    }

    /// Returns a page of the documents after one, by snapshot. The last page is empty.
    pub(crate) async fn documents(
        &self,
        tr: &impl Transaction,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>> {
        let documents = self.root.subspace(&"document");
        let (mut begin, end) = documents.range();
        if let Some(after) = after {
            begin = keyspace::key_after(&self.document_key(after));
        }
        let query = RangeQuery::keys(begin, end)
            .limit(limit)
            .mode(StreamingMode::WantAll);
        let rows = keyspace::read_all(tr, query, Isolation::Snapshot).await?;
        let uri = |row: &keyspace::KeyValue| {
            let uri = documents.unpack(row.key());
            uri.map_err(|error| keyspace::Error::corrupt(row.key(), error.to_string()))
        };
        Ok(rows.iter().map(uri).collect::<Result<_, _>>()?)
    }

    fn content_key(&self, id: ContentId) -> Vec<u8> {
        self.root.pack(&("content", id.bytes()))
    }

    pub(crate) async fn content(
        &self,
        tr: &impl Transaction,
        id: ContentId,
    ) -> Result<Option<Content>> {
        let key = self.content_key(id);
        Ok(typed::get(tr, &MessagePack, &key, Isolation::Serializable).await?)
    }

    pub(crate) fn set_content(
        &self,
        tr: &impl Transaction,
        id: ContentId,
        content: &Content,
    ) -> Result<()> {
        Ok(typed::set(
            tr,
            &MessagePack,
            &self.content_key(id),
            content,
        )?)
    }

    /// Stages the removal of a content.
    pub(crate) fn clear_content(&self, tr: &impl Transaction, id: ContentId) {
        tr.clear(&self.content_key(id));
        tr.clear(&self.text_key(id));
        let (begin, end) = self.chunks(id).range();
        tr.clear_range(&begin, &end);
    }

    fn text_key(&self, id: ContentId) -> Vec<u8> {
        self.root.pack(&("text", id.bytes()))
    }

    pub(crate) async fn has_text(&self, tr: &impl Transaction, id: ContentId) -> Result<bool> {
        let text = tr.get(&self.text_key(id), Isolation::Serializable).await?;
        Ok(text.is_some())
    }

    /// Stages that the text is complete.
    pub(crate) fn complete_text(&self, tr: &impl Transaction, id: ContentId) {
        tr.set(&self.text_key(id), b"");
    }

    fn chunks(&self, id: ContentId) -> Subspace {
        self.root.subspace(&("chunk", id.bytes()))
    }

    pub(crate) fn set_chunk(&self, tr: &impl Transaction, id: ContentId, index: u64, chunk: &[u8]) {
        tr.set(&self.chunks(id).pack(&index), chunk);
    }

    pub(crate) async fn has_chunk(
        &self,
        tr: &impl Transaction,
        id: ContentId,
        index: u64,
    ) -> Result<bool> {
        let key = self.chunks(id).pack(&index);
        Ok(tr.get(&key, Isolation::Serializable).await?.is_some())
    }

    fn upload_key(&self, id: ContentId) -> Vec<u8> {
        self.root.pack(&("upload", id.bytes()))
    }

    /// Stages an upload: a text that is being stored and that no document has.
    pub(crate) fn begin_upload(&self, tr: &impl Transaction, id: ContentId) {
        tr.set(&self.upload_key(id), b"");
    }

    /// Stages the end of an upload, because a document has the text.
    pub(crate) fn end_upload(&self, tr: &impl Transaction, id: ContentId) {
        tr.clear(&self.upload_key(id));
    }

    /// Stages the removal of an upload and its text. Returns `false` if there is no such upload.
    pub(crate) async fn clear_upload(&self, tr: &impl Transaction, id: ContentId) -> Result<bool> {
        let upload = self.upload_key(id);
        let is_there = tr.get(&upload, Isolation::Serializable).await?.is_some();
        if is_there {
            tr.clear(&upload);
            self.clear_content(tr, id);
        }
        Ok(is_there)
    }

    /// Returns a page of the uploads after one, by snapshot. The last page is empty.
    pub(crate) async fn uploads(
        &self,
        tr: &impl Transaction,
        after: Option<ContentId>,
        limit: usize,
    ) -> Result<Vec<ContentId>> {
        let uploads = self.root.subspace(&"upload");
        let (mut begin, end) = uploads.range();
        if let Some(after) = after {
            begin = keyspace::key_after(&self.upload_key(after));
        }
        let query = RangeQuery::keys(begin, end).limit(limit);
        let rows = keyspace::read_all(tr, query, Isolation::Snapshot).await?;
        let id = |row: &keyspace::KeyValue| {
            uploads
                .unpack::<Vec<u8>>(row.key())
                .map_err(|error| error.to_string())
                .and_then(|id| ContentId::try_from(&*id).map_err(|error| error.to_string()))
                .map_err(|reason| keyspace::Error::corrupt(row.key(), reason))
        };
        Ok(rows.iter().map(id).collect::<Result<_, _>>()?)
    }

    /// Reads chunks of a text. A snapshot read is safe, because a text does not change.
    pub(crate) async fn read_chunks(
        &self,
        tr: &impl Transaction,
        id: ContentId,
        first: u64,
        limit: usize,
    ) -> Result<Vec<Bytes>> {
        let chunks = self.chunks(id);
        let (_, end) = chunks.range();
        let query = RangeQuery::keys(chunks.pack(&first), end)
            .limit(limit)
            .mode(StreamingMode::WantAll);
        let rows = keyspace::read_all(tr, query, Isolation::Snapshot).await?;
        Ok(rows.iter().map(keyspace::KeyValue::to_value).collect())
    }
}

fn root() -> Subspace {
    Subspace::from("phrasecount")
}

fn runner(db: keyspace::Store, time_limit: Duration) -> Runner {
    let options = keyspace::RunOptions::default().with_time_limit(time_limit);
    Runner::with_options(db, options)
}

/// Returns a random id.
pub(crate) fn random_id(runner: &Runner) -> String {
    let bytes = runner.environment().random_bytes::<8>();
    format!("{:016x}", u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn a_wait_for_the_store_to_close_can_be_ended() {
        let store = Corpus::open("memory:", Duration::from_secs(60))
            .await
            .unwrap();
        let mut closed = pin!(store.close_files());
        // A close on this thread would not return before it was done, and no signal would be seen until then.
        assert!(poll!(&mut closed).is_pending());
        closed.await.unwrap();
    }
}
