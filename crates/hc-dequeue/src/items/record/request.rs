//! Requests.

use microqueue::keyspace::codec::{Codec, DecodeError};
use microqueue::keyspace::record::Fields;
use microqueue::keyspace::{self, Bytes};

use super::{FORMAT, undecodable};
use crate::session::SessionId;

/// A request of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) session: SessionId,
    /// How many items.
    pub(crate) wanted: u32,
    /// How many of them no consumer waits for: the session takes them ahead.
    pub(crate) for_reserve: u32,
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
        buffer.extend_from_slice(&request.for_reserve.to_be_bytes());
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<Request, DecodeError> {
        let mut fields = Fields::new(&bytes);
        let request = (|| {
            fields.format(FORMAT)?;
            let session = SessionId(fields.array()?);
            let wanted = u32::from_be_bytes(fields.array()?);
            let for_reserve = u32::from_be_bytes(fields.array()?);
            fields.end()?;
            Ok(Request {
                session,
                wanted,
                for_reserve,
            })
        })();
        request.map_err(|reason| undecodable(Self::NAME, reason))
    }
}
