//! Dead letters: entries that were given up, kept with the reason.

use combine::keyspace::codec::{Codec, DecodeError};
use combine::keyspace::foreign::Guarded;
use combine::keyspace::{
    self, Bytes, Database, Isolation, Listed, RangeQuery, Runner, Transaction, Tx, Undecodable,
    key_after, read_all,
};
use combine::microqueue::blocks::{EntryId, decode_block};

use crate::error::{Error, Result};
use crate::exporter::{Exporter, SequencedExport, call};
use crate::record::{DeadLetterRecord, Kept};
use crate::sequence::Sequence;
use crate::subscription::Subscription;

/// An entry that was given up, or a whole block of entries that does not decode. The sequence of the
/// letter shows [which of the two](Sequence::is_of_block) it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// How often the entry failed, or 0 if it could not be decoded.
    pub failures: u32,
    /// The last failure.
    pub reason: String,
    /// The encoded key. Empty for a block.
    pub key: Bytes,
    /// The encoded value, or the bytes of the block.
    pub value: Bytes,
    /// How many of the first entries of a block were exported before it was given up. Zero for an entry. A
    /// [redrive](Subscription::redrive) exports only the entries after them.
    pub exported: u16,
}

impl From<DeadLetterRecord> for DeadLetter {
    fn from(letter: DeadLetterRecord) -> Self {
        let (key, value, exported) = match letter.kept {
            Kept::Entry(entry) => (entry.key, entry.value, 0),
            Kept::Block { exported, bytes } => (Bytes::new(), bytes, exported),
        };
        Self {
            failures: letter.failures,
            reason: letter.reason,
            key,
            value,
            exported,
        }
    }
}

impl<K, V, C> Subscription<K, V, C>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<V>,
{
    /// Returns a page of the dead letters: up to `limit` letters after `after`, or from the oldest.
    ///
    /// A page with fewer than `limit` letters is the last one. Each entry has the sequence of the letter,
    /// and either its record or the reason why it does not decode.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Corrupt`](combine::keyspace::Error::Corrupt) if a key of the store is not the key of a dead
    /// letter.
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
        let (begin, end) = keys.dead_letters(&self.name).range();
        let begin = after.map_or(begin, |after| {
            key_after(&keys.dead_letter(&self.name, &after))
        });
        let query = RangeQuery::keys(begin, end).limit(limit);
        let rows = read_all(tr, query, Isolation::Snapshot).await?;
        let letters = rows.iter().map(|row| {
            let Some(sequence) = keys.parse_dead_letter(&self.name, row.key()) else {
                let expected = "expected the key of a dead letter";
                return Err(keyspace::Error::corrupt(row.key(), expected).into());
            };
            let letter = match DeadLetterRecord::decode(&sequence, &row.to_value()) {
                Ok(letter) => Ok(DeadLetter::from(letter)),
                Err(error) => Err(Undecodable::new(row.to_key(), row.to_value(), error)),
            };
            Ok(Listed {
                id: sequence,
                value: letter,
            })
        });
        letters.collect()
    }

    /// Exports a dead letter through `exporter`, and then removes it. Returns false if it no longer
    /// exists.
    ///
    /// The entry keeps its sequence, so a receiver that compares sequences keeps its newer values. If the
    /// letter is a whole block that decodes by now, one call exports its entries, except for those that were
    /// [exported](DeadLetter::exported) before it became a dead letter.
    ///
    /// # Retries
    /// The export is not retried. If the exporter fails, or this process dies before the removal commits,
    /// the letter stays.
    ///
    /// # Errors
    /// - [`Exporter`](Error::Exporter) if the exporter fails, and
    ///   [`ExporterPanicked`](Error::ExporterPanicked) if it panics
    /// - [`Corrupt`](combine::keyspace::Error::Corrupt) if the letter still does not decode
    /// - those of [`Runner::run`]
    ///
    /// # Cancel safety
    /// If the future is dropped, the letter stays unless its removal has been committed. It may or may
    /// not have been exported.
    pub async fn redrive<D: Database>(
        &self,
        runner: &Runner<D>,
        exporter: &impl Exporter<K, V>,
        sequence: &Sequence,
    ) -> Result<bool> {
        let row = self.queue.keys.dead_letter(&self.name, sequence);
        let key = row.as_slice();
        let read =
            |tr: Tx<_>| async move { Ok::<_, Error>(tr.get(key, Isolation::Serializable).await?) };
        let Some(record) = runner.run(read).await? else {
            return Ok(false);
        };
        let exports = self
            .decode_dead_letter(sequence, &record)
            .map(Guarded::new)
            .map_err(|error| error.at(row.clone()))?;
        call(exporter, &exports).await?;
        let purge = |tr| async move { self.purge(&tr, sequence).await };
        runner.run(purge).await?;
        Ok(true)
    }

    /// Returns the entries of a dead letter as the exporter receives them, sorted by key.
    fn decode_dead_letter(
        &self,
        sequence: &Sequence,
        record: &Bytes,
    ) -> Result<Vec<SequencedExport<K, V>>, DecodeError> {
        let mut entries = match DeadLetterRecord::decode(sequence, record)?.kept {
            Kept::Entry(entry) => vec![(*sequence, entry)],
            Kept::Block { exported, bytes } => {
                let of_entry = |index| {
                    Sequence::of(EntryId {
                        index,
                        ..sequence.id()
                    })
                };
                let entries = decode_block(&bytes)?;
                let count = entries.len();
                if usize::from(exported) >= count {
                    // No batch leaves such a block.
                    return Err(DecodeError {
                        codec: "a block",
                        reason: format!("{exported} of {count} entries are said to be exported"),
                    });
                }
                let entries = (0..).map(of_entry).zip(entries);
                entries.skip(exported.into()).collect()
            }
        };
        // The sort is stable, so the entries of a key stay in order.
        entries.sort_by(|(_, one), (_, other)| one.key.cmp(&other.key));
        let exports = entries.iter().map(|(sequence, entry)| {
            let (key, value) = self.queue.decode(entry)?;
            Ok(SequencedExport::new(key, value, *sequence))
        });
        exports.collect()
    }

    /// Stages the permanent removal of a dead letter. Returns false if it no longer exists.
    ///
    /// # Conflicts
    /// Reads and writes the letter.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn purge(&self, tr: &impl Transaction, sequence: &Sequence) -> Result<bool> {
        let key = self.queue.keys.dead_letter(&self.name, sequence);
        let is_there = tr.get(&key, Isolation::Serializable).await?.is_some();
        if is_there {
            tr.clear(&key);
        }
        Ok(is_there)
    }
}
