//! Dead letters: entries that were given up, kept with the reason.

use combine::keyspace::codec::{Codec, DecodeError};
use combine::keyspace::{
    self, Bytes, Database, Isolation, Listed, RangeQuery, Runner, Transaction, Tx, Undecodable,
    key_after, read_all,
};
use combine::microqueue::blocks::{EntryId, decode_block};

use crate::error::{Error, Result};
use crate::exporter::{Exporter, SequencedExport};
use crate::record::{Kept, Letter};
use crate::sequence::Sequence;
use crate::subscription::Subscription;

/// An entry that was given up, or a whole block of entries that does not decode: the sequence of a letter
/// says [which of the two](Sequence::is_of_block).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// How often it has failed; 0 for one that could not be decoded.
    pub failures: u32,
    /// The last failure.
    pub reason: String,
}

impl<K, V, C> Subscription<K, V, C>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<V>,
{
    /// Returns a page of the dead letters: up to `limit` after `after`, or from the oldest. Fewer are
    /// the last page. Each has the sequence of its entry, and its record or why that does not decode.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Corrupt`](combine::keyspace::Error::Corrupt) if a key is none of a dead letter's.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn dead_letters(
        &self,
        tr: &impl Transaction,
        after: Option<Sequence>,
        limit: usize,
    ) -> Result<Vec<Listed<Sequence, DeadLetter>>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let keys = &self.queue.keys;
        let (begin, end) = keys.letters(&self.name).range();
        let begin = after.map_or(begin, |after| key_after(&keys.letter(&self.name, &after)));
        let query = RangeQuery::keys(begin, end).limit(limit);
        let rows = read_all(tr, query, Isolation::Snapshot).await?;
        let letters = rows.iter().map(|row| {
            let sequence = keys.parse_letter(&self.name, row.key());
            let expected = "expected the key of a dead letter";
            let sequence = sequence.ok_or_else(|| keyspace::Error::corrupt(row.key(), expected))?;
            let letter = match Letter::decode(&sequence, &row.to_value()) {
                Ok(Letter {
                    failures, reason, ..
                }) => Ok(DeadLetter { failures, reason }),
                Err(error) => Err(Undecodable::new(row.to_key(), row.to_value(), error)),
            };
            Ok(Listed {
                id: sequence,
                value: letter,
            })
        });
        letters.collect()
    }

    /// Exports a dead letter after all, and removes it. Its sequence is what it was, so that a receiver
    /// that compares sequences leaves alone what is newer. False: it is not there any more.
    ///
    /// Of a whole block all entries are exported in one call, if it decodes by now.
    ///
    /// # Retries
    /// None: the letter stays if the exporter fails, or if this process dies in between.
    ///
    /// # Errors
    /// [`Exporter`](Error::Exporter) if the exporter fails;
    /// [`Corrupt`](combine::keyspace::Error::Corrupt) if it still does not decode;
    /// those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the letter, exported or not.
    pub async fn redrive<D: Database>(
        &self,
        runner: &Runner<D>,
        exporter: &impl Exporter<K, V>,
        sequence: &Sequence,
    ) -> Result<bool> {
        let row = self.queue.keys.letter(&self.name, sequence);
        let key = row.as_slice();
        let look =
            |tr: Tx<_>| async move { Ok::<_, Error>(tr.get(key, Isolation::Serializable).await?) };
        let Some(record) = runner.run(look).await? else {
            return Ok(false);
        };
        let exports = self.decode_letter(sequence, &record);
        let exports = exports.map_err(|error| error.at(row.clone()))?;
        let exported = exporter.export(&exports).await;
        exported.map_err(|error| Error::Exporter(error.into()))?;
        let purge = |tr| async move { self.purge(&tr, sequence).await };
        runner.run(purge).await?;
        Ok(true)
    }

    /// Returns what a dead letter holds as the exporter gets it: key by key.
    fn decode_letter(
        &self,
        sequence: &Sequence,
        record: &Bytes,
    ) -> Result<Vec<SequencedExport<K, V>>, DecodeError> {
        let mut entries = match Letter::decode(sequence, record)?.kept {
            Kept::Entry(entry) => vec![(*sequence, entry)],
            Kept::Block(bytes) => {
                let of_entry = |index| {
                    Sequence::of(EntryId {
                        index,
                        ..sequence.id()
                    })
                };
                let entries = decode_block(&bytes)?.into_iter();
                (0..).map(of_entry).zip(entries).collect()
            }
        };
        // Those of one key stay in their order.
        entries.sort_by(|(_, one), (_, other)| one.key.cmp(&other.key));
        let exports = entries.iter().map(|(sequence, entry)| {
            let (key, value) = self.queue.decode(entry)?;
            Ok(SequencedExport::new(key, value, *sequence))
        });
        exports.collect()
    }

    /// Stages that a dead letter is gone for good. False: it is not there any more.
    ///
    /// # Conflicts
    /// Reads and writes the letter.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// Dropping the future stages nothing.
    pub async fn purge(&self, tr: &impl Transaction, sequence: &Sequence) -> Result<bool> {
        let key = self.queue.keys.letter(&self.name, sequence);
        let is_there = tr.get(&key, Isolation::Serializable).await?.is_some();
        if is_there {
            tr.clear(&key);
        }
        Ok(is_there)
    }
}
