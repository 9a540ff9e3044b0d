//! The keys of requests, and of the kinds that sessions take.

use microqueue::keyspace::tuple::Versionstamp as TupleVersionstamp;
use microqueue::keyspace::{self, Result};
use microqueue::{ItemId, MicroQueue};
use xxhash_rust::xxh3::xxh3_128;

use super::{Keys, Requests};
use crate::items::part::Part;
use crate::session::SessionId;

/// Names the registry of sessions that know the same kinds: the XXH3 of the kinds as they are stored.
pub(crate) type RegistryId = [u8; 16];

impl Keys {
    /// Returns the keys with the registry of a session that has stored these kinds, or none.
    pub(crate) fn of_kinds(&self, row: Option<&[u8]>) -> Self {
        self.in_registry(row.map(|row| xxh3_128(row).to_be_bytes()))
    }

    /// Returns the keys with a registry.
    pub(crate) fn in_registry(&self, registry: Option<RegistryId>) -> Self {
        let mut keys = self.clone();
        keys.requests = self.registry(registry);
        keys
    }

    /// Returns a registry: that of sessions which take the items without a kind, if none is named.
    pub(crate) fn registry(&self, registry: Option<RegistryId>) -> Requests {
        let subspace = match registry {
            None => self.queue.subspace(&Part::Requests),
            Some(registry) => self
                .queue
                .subspace(&(Part::KindRequests, registry.as_slice())),
        };
        MicroQueue::new(subspace).with_environment(self.env.clone())
    }

    /// Returns in which registry a request is that has this key.
    pub(crate) fn parse_registry(&self, key: &[u8]) -> Option<RegistryId> {
        let of_kinds = self.queue.subspace(&Part::KindRequests);
        let unpacked: Option<(Vec<u8>, TupleVersionstamp, u64)> = of_kinds.unpack(key).ok();
        let (registry, ..) = unpacked?;
        registry.try_into().ok()
    }

    /// Returns the key of the kinds that a session takes.
    pub(crate) fn session_kinds(&self, session: SessionId) -> Vec<u8> {
        self.queue.pack(&(Part::SessionKinds, session.0.as_slice()))
    }

    /// Returns the session in the key of its kinds.
    pub(crate) fn parse_session_kinds(&self, key: &[u8]) -> Result<SessionId> {
        let bytes: Option<Vec<u8>> = self.queue.subspace(&Part::SessionKinds).unpack(key).ok();
        let session = bytes.and_then(|session| session.try_into().ok());
        let reason = "expected the key of the kinds of a session";
        session
            .map(SessionId)
            .ok_or_else(|| keyspace::Error::corrupt(key, reason))
    }

    pub(crate) fn request(&self, request: &ItemId) -> Vec<u8> {
        request.key_in(self.requests.subspace())
    }
}
