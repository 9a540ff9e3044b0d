//! What phrasecount keeps in the store.
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
//! A content is *wanted* while a document has it. Whenever that changes, or the content is new, the
//! same transaction enqueues its id, once: so there is an item in the queue for every content that is
//! not counted as it should be.

use std::time::Duration;

use export_queue::ExportQueue;
use export_queue::combine::{self, CombineQueue};
use export_queue::hc_dequeue::{self, HighContentionQueue};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::keyspace::codec::MessagePack;
use crate::keyspace::{
    self, Bytes, Isolation, RangeQuery, StreamingMode, Subspace, Transaction, typed,
};
use crate::text::ContentId;

pub(crate) type Runner = keyspace::Runner<keyspace::Store>;

/// How long others wait for a process that is silent before they take its work.
const LEASE: Duration = Duration::from_secs(5);

/// How long a bucket rests after a pass. Phrases of all documents that come meanwhile are counted, stored
/// and exported together: more than twice as fast as at once, with a quarter of the bytes
/// written.
pub(crate) const REST: Duration = Duration::from_millis(300);

/// How many bytes a pass takes: enough for what comes while a bucket rests. A pass that does not reach the
/// end of its log writes values that it does not report yet, which the next one writes again.
pub(crate) const BYTES_PER_PASS: usize = 3 << 20;

/// Into how many buckets phrases are divided.
const BUCKETS: u32 = 32;

/// What a content, or a part of it, adds to a phrase, or takes away.
///
/// MessagePack stores the names of fields. Short ones keep the size of a small record, of which there is
/// one for each phrase of a document.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Update {
    #[serde(rename = "d")]
    documents: i64,
    #[serde(rename = "o")]
    occurrences: i64,
}

impl Update {
    /// One document with so many occurrences comes.
    pub(crate) fn add(occurrences: u32) -> Self {
        Self {
            documents: 1,
            occurrences: occurrences.into(),
        }
    }

    /// One document with so many occurrences goes.
    pub(crate) fn subtract(occurrences: u32) -> Self {
        Self {
            documents: -1,
            occurrences: -i64::from(occurrences),
        }
    }
}

/// How often there is a phrase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Count {
    /// In how many distinct contents.
    #[serde(rename = "d")]
    pub(crate) documents: u64,
    /// How often in all of them.
    #[serde(rename = "o")]
    pub(crate) occurrences: u64,
}

/// Adds updates up. A phrase that is nowhere has no count.
fn combine_counts(_phrase: &String, current: Option<Count>, updates: Vec<Update>) -> Option<Count> {
    let current = current.unwrap_or_default();
    let documents = updates.iter().map(|update| update.documents).sum();
    let occurrences = updates.iter().map(|update| update.occurrences).sum();
    // A content is subtracted after it was added, and as much of it.
    let sum = |count: u64, change| count.checked_add_signed(change).expect("a count");
    let count = Count {
        documents: sum(current.documents, documents),
        occurrences: sum(current.occurrences, occurrences),
    };
    Some(count).filter(|count| *count != Count::default())
}

/// A content that some document has, or had.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Content {
    /// How many documents have it.
    pub(crate) references: u64,
    /// Into how many partitions its phrases are divided.
    pub(crate) partitions: u32,
    /// How many of them, from the first on, are in the counts.
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
    /// Tells this store from all others.
    pub(crate) id: String,
    pub(crate) work: HighContentionQueue<ContentId>,
    pub(crate) counts: CombineQueue<String, Update, Count>,
    pub(crate) exports: ExportQueue<String, Option<Count>>,
    root: Subspace,
}

impl Corpus {
    /// Opens the store of a URL, and creates what is not there. A transaction that has not ended after
    /// its time limit has failed.
    pub(crate) async fn open(url: &str, time_limit: Duration) -> Result<Self> {
        let db = keyspace::open(url).map_err(Error::Open)?;
        Self::open_on(runner(db, time_limit)).await
    }

    /// Opens the store of a URL that something was counted in, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// [`Error::NoStore`], [`Error::NothingCounted`]: nothing was created, and the store is as it was.
    pub(crate) async fn open_existing(url: &str, time_limit: Duration) -> Result<Self> {
        let db = match keyspace::open_existing(url) {
            Err(keyspace::OpenError::NoStore { path }) => return Err(Error::NoStore { path }),
            opened => opened.map_err(Error::Open)?,
        };
        let runner = runner(db, time_limit);
        let id_key = &root().pack(&"store");
        let id = runner.run(|tr| async move {
            typed::get::<String>(&tr, &MessagePack, id_key, Isolation::Serializable).await
        });
        if id.await?.is_none() {
            // The ledger has a slot of the runner's, too.
            runner.close().await?;
            let db = url.to_owned();
            return Err(Error::NothingCounted { db });
        }
        Self::open_on(runner).await
    }

    async fn open_on(runner: Runner) -> Result<Self> {
        let root = root();
        // A session that dies with an item does not speak against the item.
        let work = hc_dequeue::Settings::new()
            .lease(LEASE)
            .max_attempts(u32::MAX);
        let buckets = combine::Settings::new().bucket_count(BUCKETS).lease(LEASE);
        let [work_keys, counts, exports] =
            ["work", "counts", "exports"].map(|name| root.subspace(&name));
        let work = HighContentionQueue::open(&runner, work_keys, work).await?;
        let counts = CombineQueue::open(&runner, counts, buckets, combine_counts).await?;
        let exports = ExportQueue::open(&runner, exports, buckets).await?;
        let (id_key, new_id) = (&root.pack(&"store"), &random_id(&runner));
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

    /// Ends the use of the store. An embedded one is a single file then.
    pub(crate) async fn close(self) -> Result<()> {
        let db = self.runner.database().clone();
        self.runner.close().await?;
        Ok(db.close()?)
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

    /// Returns a page of the documents behind one, by snapshot. An empty one is the last.
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
        let query = RangeQuery::keys(begin, end).limit(limit);
        let query = query.mode(StreamingMode::WantAll);
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

    /// Stages that there is no such content any more.
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

    /// Stages that somebody stores the text, which no document has yet.
    pub(crate) fn begin_upload(&self, tr: &impl Transaction, id: ContentId) {
        tr.set(&self.upload_key(id), b"");
    }

    /// Stages that a document has the text.
    pub(crate) fn end_upload(&self, tr: &impl Transaction, id: ContentId) {
        tr.clear(&self.upload_key(id));
    }

    /// Stages that a text is gone that was begun to be stored, and that no document has. False: there
    /// is none.
    pub(crate) async fn clear_upload(&self, tr: &impl Transaction, id: ContentId) -> Result<bool> {
        let upload = self.upload_key(id);
        let is_there = tr.get(&upload, Isolation::Serializable).await?.is_some();
        if is_there {
            tr.clear(&upload);
            self.clear_content(tr, id);
        }
        Ok(is_there)
    }

    /// Returns a page of the uploads behind one, by snapshot. An empty one is the last.
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
            let id = uploads.unpack::<Vec<u8>>(row.key());
            let id = id.map_err(|error| error.to_string());
            let id = id.and_then(|id| ContentId::try_from(&*id).map_err(|error| error.to_string()));
            id.map_err(|reason| keyspace::Error::corrupt(row.key(), reason))
        };
        Ok(rows.iter().map(id).collect::<Result<_, _>>()?)
    }

    /// Reads chunks of a text, by snapshot: a text does not change.
    pub(crate) async fn read_chunks(
        &self,
        tr: &impl Transaction,
        id: ContentId,
        first: u64,
        limit: usize,
    ) -> Result<Vec<Bytes>> {
        let chunks = self.chunks(id);
        let (_, end) = chunks.range();
        let query = RangeQuery::keys(chunks.pack(&first), end).limit(limit);
        let query = query.mode(StreamingMode::WantAll);
        let rows = keyspace::read_all(tr, query, Isolation::Snapshot).await?;
        Ok(rows.iter().map(keyspace::KeyValue::to_value).collect())
    }
}

fn root() -> Subspace {
    Subspace::from("phrasecount")
}

fn runner(db: keyspace::Store, time_limit: Duration) -> Runner {
    let options = keyspace::RunOptions::default().time_limit(time_limit);
    Runner::with_options(db, options)
}

/// Returns an id that nothing else has.
pub(crate) fn random_id(runner: &Runner) -> String {
    let bytes = runner.environment().random_bytes::<8>();
    format!("{:016x}", u64::from_be_bytes(bytes))
}
