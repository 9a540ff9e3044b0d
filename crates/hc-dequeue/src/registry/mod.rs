//! The staged registry: requests, how they are answered, and the fast path beside them, as functions that
//! stage one step in a transaction each. The [crate documentation](crate#the-staged-registry) explains the
//! protocol.

pub(crate) mod fulfill;
pub(crate) mod grant;
pub(crate) mod request;

use microqueue::ItemId;
use microqueue::keyspace::codec::DecodeError;
use microqueue::keyspace::{Bytes, Transaction};

use crate::done::end;
use crate::error::Error;
use crate::keys::Keys;
use crate::record::{End, Record};
use crate::session::SessionId;
use crate::settings::Settings;
use crate::wall::wall_millis;

/// How many items one transaction grants at most.
pub(crate) const ITEMS_PER_FULFILLMENT: usize = 512;

/// How many bytes of items one transaction grants, but for the last item.
pub(crate) const BYTES_PER_FULFILLMENT: usize = 1_000_000;

/// How many requests one transaction answers at most.
pub(crate) const REQUESTS_PER_FULFILLMENT: usize = 128;

/// How many delayed items one transaction promotes at most.
pub(crate) const PROMOTIONS_PER_FULFILLMENT: usize = 128;

/// A part of a session's own wish: so many items, to be held until they are acknowledged or, if they
/// are popped, to be completed by the transaction that takes them.
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
    pub(crate) value: Result<T, DecodeError>,
    /// Whether the item is completed already. One that does not decode never is.
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
pub(crate) type Decode<T> = dyn Fn(Bytes) -> Result<T, DecodeError> + Send + Sync;

/// The session that takes part, and what it wants for itself.
pub(crate) struct SessionContext<'a, T> {
    pub(crate) keys: &'a Keys,
    pub(crate) settings: &'a Settings,
    pub(crate) session: SessionId,
    /// Whether the session promotes what is due: its wall clock agrees with those of the others.
    pub(crate) promotes: bool,
    pub(crate) demand: &'a [Demand],
    pub(crate) decode: &'a Decode<T>,
}

impl<T> Clone for SessionContext<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SessionContext<'_, T> {}

impl<T> SessionContext<'_, T> {
    /// Stages that an item is done which is popped.
    fn end_popped(&self, tr: &impl Transaction, item: &Granted<T>) -> Result<(), Error> {
        let (id, record, none) = (&item.id, &item.record, Bytes::new());
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

    /// Returns until which time delayed items are due, in milliseconds since the Unix epoch. A session
    /// that does not promote finds none.
    fn due_until(&self) -> u64 {
        match self.promotes {
            true => wall_millis(&self.keys.env),
            false => 0,
        }
    }
}

/// Returns how many items a wish is for.
pub(crate) fn count_wanted(demand: &[Demand]) -> usize {
    demand.iter().map(|demand| demand.wanted).sum()
}

/// Returns for each item wanted, in order, whether it is popped.
pub(crate) fn pop_flags(demand: &[Demand]) -> impl Iterator<Item = bool> + '_ {
    demand
        .iter()
        .flat_map(|demand| std::iter::repeat_n(demand.pop, demand.wanted))
}
