//! Requests, and the rows of grants.

use microqueue::keyspace::codec::{Codec, DecodeError};
use microqueue::keyspace::record::{self, Fields};
use microqueue::keyspace::{self, Bytes, Result, Versionstamp};
use microqueue::{Item, ItemId};

use super::{FORMAT, Record, RecordCodec, undecodable};
use crate::session::SessionId;

/// A request of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) session: SessionId,
    pub(crate) wanted: u32,
}

/// The codec of [`Request`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestCodec;

impl Codec<Request> for RequestCodec {
    const NAME: &'static str = "a request";

    fn encode(&self, request: &Request, buffer: &mut Vec<u8>) -> keyspace::Result<()> {
        buffer.push(FORMAT);
        buffer.extend_from_slice(&request.session.0);
        buffer.extend_from_slice(&request.wanted.to_be_bytes());
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<Request, DecodeError> {
        let mut fields = Fields::new(&bytes);
        let request = (|| {
            fields.format(FORMAT)?;
            let session = SessionId(fields.array()?);
            let wanted = u32::from_be_bytes(fields.array()?);
            fields.end()?;
            Ok(Request { session, wanted })
        })();
        request.map_err(|reason| undecodable(Self::NAME, reason))
    }
}

/// The notice to a request that it is the first, stored in place of an answer.
pub(crate) const TURN: [u8; 1] = [FORMAT];

/// Returns whether the first row of a grant is not an answer but the notice that the request is the first.
pub(crate) fn is_turn(value: &[u8]) -> bool {
    value == TURN
}

/// A row of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// The number of rows of the grant.
    pub(crate) parts: u32,
    pub(crate) item: Item<Record>,
}

impl Part {
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

    pub(crate) fn decode(key: &[u8], value: Bytes) -> Result<Self> {
        record::decode(key, &value, FORMAT, |fields| {
            let parts = fields.u32()?;
            let id = ItemId::Commit {
                versionstamp: Versionstamp::from_bytes(fields.array()?),
                call: fields.u64()?,
            };
            let record = RecordCodec.decode(value.slice_ref(fields.rest()));
            let value = record.map_err(|error| error.reason)?;
            let item = Item { id, value };
            Ok(Self { parts, item })
        })
    }
}
