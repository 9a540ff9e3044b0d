//! The row of a batch. Whatever adds a member reads it.

use futures::try_join;
use microqueue::keyspace::codec::{self, Codec as _};
use microqueue::keyspace::record::Fields;
use microqueue::keyspace::{self, Bytes, Isolation, Transaction};

use crate::items::batch::{BatchId, BatchMember, BatchRef, Joining};
use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::record::{Record, RecordCodec};

const FORMAT: u8 = 1;

mod flag {
    pub(super) const CALLBACK: u8 = 1;
    pub(super) const DEAD_STAY: u8 = 2;
    pub(super) const CANCELLED: u8 = 4;
    pub(super) const PARENT_DEAD_STAY: u8 = 8;
}

impl BatchRef {
    /// Returns the id of the batch if it belongs to the queue.
    ///
    /// # Errors
    /// [`Error::ForeignRef`] if it belongs to another queue.
    pub(crate) fn id_in(&self, keys: &Keys) -> Result<BatchId> {
        if self.queue() != keys.tag {
            return Err(Error::ForeignRef {
                queue: keys.queue.clone(),
            });
        }
        Ok(self.id())
    }
}

/// The item that is enqueued when a batch is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Callback {
    /// How long it is delayed after that.
    pub(crate) delay_millis: u64,
    /// Until which wall time it is delayed in any case.
    pub(crate) due_millis: u64,
    pub(crate) record: Record,
}

impl Callback {
    /// Returns whether a wall clock decides when it is ready.
    pub(crate) fn has_time(&self) -> bool {
        self.delay_millis > 0 || self.due_millis > 0
    }
}

/// The row of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BatchRow {
    pub(crate) dead_letters_stay: bool,
    pub(crate) is_cancelled: bool,
    /// Of which batch it is a member.
    pub(crate) parent: Option<BatchMember>,
    pub(crate) opened_millis: u64,
    pub(crate) callback: Option<Callback>,
}

impl BatchRow {
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut flags = 0;
        for (is_set, flag) in [
            (self.callback.is_some(), flag::CALLBACK),
            (self.dead_letters_stay, flag::DEAD_STAY),
            (self.is_cancelled, flag::CANCELLED),
            (
                self.parent.is_some_and(|parent| parent.dead_letters_stay),
                flag::PARENT_DEAD_STAY,
            ),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let parent = self
            .parent
            .map_or([0; BatchId::BYTES], |parent| parent.batch.0);
        let mut bytes = vec![FORMAT, flags];
        bytes.extend_from_slice(&parent);
        bytes.extend_from_slice(&self.opened_millis.to_be_bytes());
        if let Some(callback) = &self.callback {
            bytes.extend_from_slice(&callback.delay_millis.to_be_bytes());
            bytes.extend_from_slice(&callback.due_millis.to_be_bytes());
            RecordCodec.encode(&callback.record, &mut bytes)?;
        }
        Ok(bytes)
    }

    pub(crate) fn parse(key: &[u8], value: &Bytes) -> keyspace::Result<Self> {
        parse(value).map_err(|reason| keyspace::Error::corrupt(key, reason))
    }
}

fn parse(value: &Bytes) -> Result<BatchRow, String> {
    let mut fields = Fields::new(value);
    fields.format(FORMAT)?;
    let [flags] = fields.array()?;
    let has = |flag| flags & flag != 0;
    if flags > flag::CALLBACK | flag::DEAD_STAY | flag::CANCELLED | flag::PARENT_DEAD_STAY {
        return Err(format!("flags {flags:#x} are unknown"));
    }
    let batch = BatchId(fields.array()?);
    let parent = if batch.0 == [0; BatchId::BYTES] {
        if has(flag::PARENT_DEAD_STAY) {
            return Err("there is no parent in which dead letters stay".to_owned());
        }
        None
    } else {
        Some(BatchMember {
            batch,
            dead_letters_stay: has(flag::PARENT_DEAD_STAY),
        })
    };
    let opened_millis = fields.u64()?;
    let callback = if has(flag::CALLBACK) {
        let delay_millis = fields.u64()?;
        let due_millis = fields.u64()?;
        let record = codec::decode(&RecordCodec, value.slice_ref(fields.rest()));
        Some(Callback {
            delay_millis,
            due_millis,
            record: record.map_err(|error| error.to_string())?,
        })
    } else {
        fields.end()?;
        None
    };
    Ok(BatchRow {
        dead_letters_stay: has(flag::DEAD_STAY),
        is_cancelled: has(flag::CANCELLED),
        parent,
        opened_millis,
        callback,
    })
}

/// Returns what the record of a new member says, after a check that the batch takes it.
///
/// # Conflicts
/// Reads the row of the batch, which only its end and its cancellation change. Unless a member adds the new one, also
/// reads the row that exists while the batch is open.
///
/// # Errors
/// [`Error::ForeignRef`], [`Error::BatchOver`], [`Error::BatchClosed`].
pub(crate) async fn join(
    tr: &impl Transaction,
    keys: &Keys,
    Joining { batch, by_member }: Joining,
) -> Result<BatchMember> {
    let id = batch.id_in(keys)?;
    let key = keys.batch_row(id);
    let open = keys.batch_open(id);
    // Safe as a snapshot read: it does not matter to a member.
    let of_open = if by_member {
        Isolation::Snapshot
    } else {
        Isolation::Serializable
    };
    let (row, open) = try_join!(
        tr.get(&key, Isolation::Serializable),
        tr.get(&open, of_open)
    )?;
    let row = row.map(|row| BatchRow::parse(&key, &row)).transpose()?;
    match row {
        Some(row) if !row.is_cancelled => {
            if open.is_none() && !by_member {
                return Err(Error::BatchClosed { batch });
            }
            Ok(BatchMember {
                batch: id,
                dead_letters_stay: row.dead_letters_stay,
            })
        }
        _ => Err(Error::BatchOver { batch }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_the_bytes_of_the_schema() {
        let callback = Callback {
            delay_millis: 3,
            due_millis: 4,
            record: Record::new(0, Bytes::from_static(b"payload")),
        };
        let all = BatchRow {
            dead_letters_stay: true,
            is_cancelled: true,
            parent: Some(BatchMember {
                batch: BatchId([7; 16]),
                dead_letters_stay: true,
            }),
            opened_millis: 258,
            callback: Some(callback),
        };
        let plain = BatchRow {
            dead_letters_stay: false,
            is_cancelled: false,
            parent: None,
            opened_millis: 1,
            callback: None,
        };
        let number = |number: u64| number.to_be_bytes();
        let of_all = [
            &[1, 15][..],
            &[7; 16],
            &number(258),
            &number(3),
            &number(4),
            b"\x01\0payload",
        ];
        for (row, expected) in [
            (all, of_all.concat()),
            (plain, [&[1, 0][..], &[0; 16], &number(1)].concat()),
        ] {
            assert_eq!(row.to_bytes().unwrap(), expected);
            let bytes = Bytes::from(expected);
            assert_eq!(BatchRow::parse(b"key", &bytes).unwrap(), row);
            for end in 0..26 {
                assert!(
                    BatchRow::parse(b"key", &bytes.slice(..end)).is_err(),
                    "{end}"
                );
            }
        }
        for (place, byte) in [(0, 2), (1, 16), (1, 8), (1, 1)] {
            let mut bytes = [&[1, 0][..], &[0; 24]].concat();
            bytes[place] = byte;
            assert!(BatchRow::parse(b"key", &bytes.into()).is_err(), "{place}");
        }
    }
}
