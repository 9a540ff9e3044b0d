//! The keys and values of the relay.
//!
//! ```text
//! ("relay", "directory")                              path of the directory
//! ("relay", "queue", ...)                             the queue of lines
//! ("relay", "position", file)                         how many lines of the file were enqueued
//! ("relay", "received", consumer, versionstamp, run)  lines of one file that a consumer took
//! ```
//!
//! The transaction that enqueues lines writes the position. The transaction that dequeues lines writes
//! the record of received lines. Both therefore agree with the queue at whatever moment the process dies.

use keyspace::codec::{Codec, MessagePack};
use keyspace::tuple::Versionstamp;
use keyspace::{
    Isolation, KeyValue, MutationOp, RangeQuery, StreamingMode, Subspace, Transaction, typed,
};
use microqueue::{MicroQueue, keyspace};
use serde::{Deserialize, Serialize};

use super::error::{Error, Result};

/// An item: one line of a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) file: String,
    pub(crate) number: u64,
    pub(crate) text: String,
}

/// Successive lines of one file that a consumer took in one transaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Received {
    pub(crate) file: String,
    pub(crate) lines: Vec<ReceivedLine>,
}

/// The fingerprint of a line, which is enough to recognize it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReceivedLine {
    pub(crate) number: u64,
    pub(crate) checksum: u32,
}

impl ReceivedLine {
    pub(crate) fn new(number: u64, text: &str) -> Self {
        Self {
            number,
            checksum: crc32fast::hash(text.as_bytes()),
        }
    }
}

/// The keys of the relay.
#[derive(Clone)]
pub(crate) struct Store {
    root: Subspace,
    pub(crate) queue: MicroQueue<Line>,
}

impl Store {
    pub(crate) fn new() -> Self {
        let root = Subspace::from("relay");
        Self {
            queue: MicroQueue::new(root.subspace(&"queue")),
            root,
        }
    }

    /// Binds the store to a directory.
    pub(crate) async fn claim(&self, tr: &impl Transaction, directory: &str) -> Result<()> {
        let key = self.root.pack(&"directory");
        match typed::get::<String>(tr, &MessagePack, &key, Isolation::Serializable).await? {
            None => Ok(typed::set(tr, &MessagePack, &key, &directory.to_owned())?),
            Some(stored) if stored == directory => Ok(()),
            Some(stored) => Err(Error::OtherDirectory {
                stored,
                given: directory.to_owned(),
            }),
        }
    }

    /// Returns the number of lines of a file that were enqueued.
    pub(crate) async fn position(&self, tr: &impl Transaction, file: &str) -> Result<u64> {
        let key = self.position_key(file);
        let position = typed::get(tr, &MessagePack, &key, Isolation::Serializable).await?;
        Ok(position.unwrap_or(0))
    }

    pub(crate) fn set_position(&self, tr: &impl Transaction, file: &str, lines: u64) -> Result<()> {
        Ok(typed::set(
            tr,
            &MessagePack,
            &self.position_key(file),
            &lines,
        )?)
    }

    /// Records the lines that a consumer took in this transaction, in its order.
    ///
    /// The versionstamp in the key makes a consumer's records sort in the order in which it took them. It
    /// also keeps the write blind, so that consumers conflict only at the head of the queue.
    pub(crate) fn record(
        &self,
        tr: &impl Transaction,
        consumer: u64,
        received: &[Received],
    ) -> Result<()> {
        for (run, received) in (0_u64..).zip(received) {
            let key = self.root.pack_with_versionstamp(&(
                "received",
                consumer,
                Versionstamp::incomplete(0),
                run,
            ));
            let mut value = Vec::new();
            MessagePack.encode(received, &mut value)?;
            tr.atomic(MutationOp::SetVersionstampedKey, &key, &value);
        }
        Ok(())
    }

    /// Returns the query for all records, consumer after consumer, each in its order.
    pub(crate) fn records(&self) -> RangeQuery {
        let (begin, end) = self.root.subspace(&"received").range();
        RangeQuery::keys(begin, end).mode(StreamingMode::WantAll)
    }

    /// Returns the consumer and the content of a record.
    pub(crate) fn received(&self, row: KeyValue) -> Result<(u64, Received)> {
        let key: Result<(String, u64, Versionstamp, u64), _> = self.root.unpack(row.key());
        let (_, consumer, _, _) =
            key.map_err(|error| keyspace::Error::corrupt(row.key(), error.to_string()))?;
        let received = MessagePack
            .decode(row.to_value())
            .map_err(|error| error.at(row.to_key()))?;
        Ok((consumer, received))
    }

    fn position_key(&self, file: &str) -> Vec<u8> {
        self.root.pack(&("position", file))
    }
}
