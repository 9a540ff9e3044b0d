//! The rows of grants.

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Bytes, Result, Undecodable, Versionstamp, record};
use microqueue::{Item, ItemId, Listed};

use super::{FORMAT, Record, RecordCodec};

/// The signal to a request that it is the first, stored in place of an answer.
pub(crate) const SIGNAL: [u8; 1] = [FORMAT];

/// Returns whether the first row of a grant is not an answer but the signal that the request is the first.
pub(crate) fn is_signal(value: &[u8]) -> bool {
    value == SIGNAL
}

/// A row of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GrantPart {
    /// The number of rows of the grant.
    pub(crate) parts: u32,
    pub(crate) item: Item<Record>,
}

impl GrantPart {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut value = vec![FORMAT];
        value.extend_from_slice(&self.parts.to_be_bytes());
        if let ItemId::Commit { versionstamp, call } = self.item.id {
            value.extend_from_slice(versionstamp.as_bytes());
            value.extend_from_slice(&call.to_be_bytes());
        }
        RecordCodec.encode(&self.item.value, &mut value)?;
        Ok(value)
    }

    #[cfg(test)]
    pub(crate) fn decode(key: &[u8], value: Bytes) -> Result<Self> {
        let ListedGrantPart { parts, item } = ListedGrantPart::decode(key, value)?;
        let item = item.try_into()?;
        Ok(Self { parts, item })
    }
}

/// A row of a grant, whether or not its record decodes.
pub(crate) struct ListedGrantPart {
    /// The number of rows of the grant.
    pub(crate) parts: u32,
    pub(crate) item: Listed<Record>,
}

impl ListedGrantPart {
    /// Decodes a row. Fails if the row does not say which item it contains.
    pub(crate) fn decode(key: &[u8], value: Bytes) -> Result<Self> {
        record::decode(key, &value, FORMAT, |fields| {
            let parts = fields.u32()?;
            let id = ItemId::Commit {
                versionstamp: Versionstamp::from_bytes(fields.array()?),
                call: fields.u64()?,
            };
            let bytes = value.slice_ref(fields.rest());
            let record = RecordCodec.decode(bytes.clone());
            let value =
                record.map_err(|error| Undecodable::new(Bytes::copy_from_slice(key), bytes, error));
            let item = Listed { id, value };
            Ok(Self { parts, item })
        })
    }
}
