//! The staged registry: requests, their answers, and the fast path that bypasses it. Each function stages one step in
//! a transaction. The [crate documentation](crate#the-staged-registry) explains the protocol.

pub(crate) mod front;
pub(crate) mod fulfill;
pub(crate) mod give_back;
pub(crate) mod grant;
pub(crate) mod reclaim;
pub(crate) mod request;

use microqueue::ItemId;
use microqueue::keyspace::codec::DecodeError;
use microqueue::keyspace::foreign::Guarded;
use microqueue::keyspace::{Bytes, Transaction};

use self::front::Fronts;
use crate::items::end::end;
use crate::items::error::Error;
use crate::items::keys::Keys;
use crate::items::record::{End, Record};
use crate::items::settings::Settings;
use crate::session::SessionId;
use crate::session::wall::wall_millis;

/// The largest number of items that one transaction grants.
pub(crate) const MAX_FULFILLMENT_ITEMS: usize = 512;

/// How many bytes of items one transaction grants. The last item may exceed it.
pub(crate) const MAX_FULFILLMENT_BYTES: usize = 1_000_000;

/// The largest number of requests that one transaction answers.
pub(crate) const MAX_FULFILLMENT_REQUESTS: usize = 128;

/// The largest number of delayed items that one transaction promotes.
pub(crate) const MAX_FULFILLMENT_PROMOTIONS: usize = 128;

/// A part of a session's own demand: a number of items. They are held until they are acknowledged or, if they are
/// popped, completed by the transaction that takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) wanted: usize,
    pub(crate) pop: bool,
}

/// An item that was granted to the session.
#[derive(Debug)]
pub(crate) struct Granted<T> {
    pub(crate) id: ItemId,
    pub(crate) record: Record,
    pub(crate) value: Result<Guarded<T>, DecodeError>,
    /// Whether the item was completed by the transaction that took it. This is never the case for an item that does
    /// not decode.
    pub(crate) is_popped: bool,
}

impl<T> Granted<T> {
    fn new(context: SessionContext<'_, T>, id: ItemId, record: Record, pop: bool) -> Self {
        let value = (context.decode)(record.payload.clone());
        Self {
            is_popped: pop && value.is_ok() && record.cancelled_millis == 0,
            id,
            record,
            value,
        }
    }
}

/// Decodes a payload.
pub(crate) type Decode<T> = dyn Fn(Bytes) -> Result<Guarded<T>, DecodeError> + Send + Sync;

/// The session that takes part in the protocol, and its own demand.
pub(crate) struct SessionContext<'a, T> {
    pub(crate) keys: &'a Keys,
    pub(crate) settings: &'a Settings,
    pub(crate) session: SessionId,
    /// Whether the session promotes delayed items that are due: only if its wall clock agrees with those of the
    /// others.
    pub(crate) promotes: bool,
    pub(crate) demand: &'a [Demand],
    pub(crate) decode: &'a Decode<T>,
    pub(crate) fronts: &'a Fronts,
}

impl<T> Clone for SessionContext<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SessionContext<'_, T> {}

impl<T> SessionContext<'_, T> {
    /// Stages the completion of a popped item.
    fn end_popped(&self, tr: &impl Transaction, item: &Granted<T>) -> Result<(), Error> {
        let id = &item.id;
        let record = &item.record;
        let none = Bytes::new();
        end(
            tr,
            self.keys,
            self.settings,
            id,
            record,
            End::Completed,
            none,
        )
    }

    /// Returns the time up to which delayed items are due, in milliseconds since the Unix epoch. For a session that
    /// does not promote, this is the epoch.
    fn due_until(&self) -> u64 {
        if self.promotes {
            wall_millis(&self.keys.env)
        } else {
            0
        }
    }
}

/// Returns the number of items in a demand.
pub(crate) fn count_wanted(demand: &[Demand]) -> usize {
    demand.iter().map(|demand| demand.wanted).sum()
}

/// Returns for each item of a demand, in order, whether it is popped.
pub(crate) fn pop_flags(demand: &[Demand]) -> impl Iterator<Item = bool> + '_ {
    demand
        .iter()
        .flat_map(|demand| std::iter::repeat_n(demand.pop, demand.wanted))
}
