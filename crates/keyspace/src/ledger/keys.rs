//! The ledger's bytes.
//!
//! Unless its ledger is turned off, a `Runner` adds a read conflict on one slot to each transaction that writes
//! anything, and writes the slot. No other operation uses the slot at the same time. The subspace must contain no other
//! keys.
//!
//! # Layout
//!
//! ```text
//! ledgers = the ledger subspace, by default the tuple ("keyspace.ledger",)
//!
//! (ledgers, id, slot) = slot record
//!     id      byte string of 16 random bytes
//!     slot    integer, from 0
//!
//! slot record, 23 bytes
//!     0       format, 1
//!     1..9    operation; 0 before the first use
//!     9..13   its attempt; 0 before the first use
//!     13..23  versionstamp of the commit that wrote the record
//! ```

use foundationdb_tuple::{Bytes as ByteString, Subspace};

use crate::contract::env::Environment;
use crate::contract::error::{Error, Result};
use crate::contract::mutation::Versionstamp;
use crate::values::record;

/// The id of a ledger, unique in its subspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LedgerId([u8; 16]);

impl LedgerId {
    pub(crate) fn random(environment: &Environment) -> Self {
        Self(environment.random_bytes())
    }
}

/// The keys of all ledgers in one subspace.
#[derive(Debug)]
pub(crate) struct LedgerKeys {
    ledgers: Subspace,
}

impl LedgerKeys {
    pub(crate) fn new(ledgers: Subspace) -> Self {
        Self { ledgers }
    }

    /// Returns the key of a slot.
    pub(crate) fn slot(&self, id: LedgerId, slot: u64) -> Vec<u8> {
        self.ledger(id).pack(&(slot,))
    }

    /// Returns the range of exactly the slots of a ledger.
    pub(crate) fn slots(&self, id: LedgerId) -> (Vec<u8>, Vec<u8>) {
        self.ledger(id).range()
    }

    /// Returns the range of exactly the slots of all ledgers.
    pub(crate) fn all(&self) -> (Vec<u8>, Vec<u8>) {
        self.ledgers.range()
    }

    /// Returns the ledger that the key of a slot belongs to.
    pub(crate) fn ledger_of(&self, key: &[u8]) -> Result<LedgerId> {
        let unpacked = self.ledgers.unpack::<(ByteString<'_>, u64)>(key);
        let id = unpacked
            .ok()
            .and_then(|(id, _slot)| id.0.as_ref().try_into().ok());
        id.map(LedgerId).ok_or_else(|| {
            Error::corrupt(
                key,
                "expected the key (16-byte id, slot) of a ledger's slot",
            )
        })
    }

    fn ledger(&self, id: LedgerId) -> Subspace {
        self.ledgers.subspace(&(id.0.as_slice(),))
    }
}

/// The content of a slot: the last attempt that committed on it, and its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotRecord {
    pub(crate) operation: u64,
    pub(crate) attempt: u32,
    pub(crate) versionstamp: Versionstamp,
}

impl SlotRecord {
    const FORMAT: u8 = 1;
    const BYTES: usize = 23;
    const VERSIONSTAMP_OFFSET: usize = 13;

    /// Returns the param of the `SetVersionstampedValue` that writes the record.
    pub(crate) fn template(operation: u64, attempt: u32) -> Vec<u8> {
        let mut template = Vec::with_capacity(Self::BYTES + size_of::<u32>());
        template.push(Self::FORMAT);
        template.extend_from_slice(&operation.to_be_bytes());
        template.extend_from_slice(&attempt.to_be_bytes());
        template.extend_from_slice(Versionstamp::INCOMPLETE.as_bytes());
        template.extend_from_slice(&(Self::VERSIONSTAMP_OFFSET as u32).to_le_bytes());
        template
    }

    /// Decodes the record under `key`.
    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Self> {
        record::decode(key, value, Self::FORMAT, |fields| {
            let operation = fields.u64()?;
            let attempt = fields.u32()?;
            let stamp = fields.array()?;
            fields.end()?;
            Ok(Self {
                operation,
                attempt,
                versionstamp: Versionstamp::from_bytes(stamp),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LedgerId = LedgerId(*b"sixteen bytes id");

    fn keys() -> LedgerKeys {
        LedgerKeys::new(Subspace::from(("keyspace.ledger",)))
    }

    #[test]
    fn a_slot_key_is_the_tuple_of_ledger_and_slot() {
        let key = keys().slot(ID, 258);
        assert_eq!(
            key,
            b"\x02keyspace.ledger\0\x01sixteen bytes id\0\x16\x01\x02"
        );
        assert_eq!(keys().slot(ID, 0).last(), Some(&0x14));
        assert_eq!(keys().ledger_of(&key).unwrap(), ID);
    }

    #[test]
    fn a_ledgers_range_holds_its_slots_and_no_other() {
        let (begin, end) = keys().slots(ID);
        for slot in [0, 1, 255, 256, u64::MAX] {
            let key = keys().slot(ID, slot);
            assert!(begin < key && key < end);
        }
        let mut other = ID;
        other.0[15] += 1;
        assert!(keys().slot(other, 0) > end);
        let (first, last) = keys().all();
        assert!(first < begin && end < last);
    }

    #[test]
    fn a_template_leaves_room_for_the_versionstamp_alone() {
        assert_eq!(
            SlotRecord::template(0x0102_0304_0506_0708, 0x090a_0b0c),
            b"\x01\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\
              \xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x0d\0\0\0"
        );
    }

    #[test]
    fn a_record_decodes_from_its_golden_bytes() {
        let golden = b"\x01\0\0\0\0\0\0\0\x07\0\0\0\x02\0\0\0\0\0\0\x01\0\0\x05";
        assert_eq!(
            SlotRecord::decode(b"key", golden).unwrap(),
            SlotRecord {
                operation: 7,
                attempt: 2,
                versionstamp: Versionstamp::new(256, 5),
            }
        );
    }

    #[test]
    fn bytes_that_are_no_record_are_corrupt() {
        let golden = b"\x01\0\0\0\0\0\0\0\x07\0\0\0\x02\0\0\0\0\0\0\x01\0\0\x05";
        let longer = [golden.as_slice(), b"\0"].concat();
        let mut newer = *golden;
        newer[0] = 2;
        for (bytes, reason) in [
            (&b""[..], "it ends 1 bytes early"),
            (&golden[..22], "it ends 1 bytes early"),
            (&longer, "1 bytes are left over"),
            (
                &newer,
                "format 2 is newer than this version of the library, which reads up to 1: upgrade \
                 the library",
            ),
        ] {
            match SlotRecord::decode(b"key", bytes) {
                Err(Error::Corrupt { key, reason: found }) => {
                    assert_eq!((&key[..], found.as_str()), (&b"key"[..], reason));
                }
                other => panic!("expected a corrupt record, found {other:?}"),
            }
        }
    }

    #[test]
    fn keys_that_are_no_slots_are_corrupt() {
        let ledgers = Subspace::from(("keyspace.ledger",));
        for key in [
            ledgers.pack(&("text", 1)),
            ledgers.pack(&(&b"fifteen bytes.."[..], 1)),
            ledgers.pack(&(ID.0.as_slice(),)),
            ledgers.pack(&(ID.0.as_slice(), 1, 2)),
            b"elsewhere".to_vec(),
        ] {
            assert!(
                matches!(keys().ledger_of(&key), Err(Error::Corrupt { .. })),
                "{key:?}"
            );
        }
    }
}
