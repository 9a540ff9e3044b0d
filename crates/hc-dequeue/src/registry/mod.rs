//! The staged registry: how many take from one queue without colliding.
//!
//! Everybody who dequeues wants the same item, the first. Of transactions that take it at the same
//! time one commits. FoundationDB's *Queues* recipe has an extension for that: who does not succeed
//! at once registers a request and then takes part in fulfilling requests, many in one transaction.
//! This is that extension, with sessions, so that it survives the death of anyone at any moment.
//!
//! # The steps
//!
//! - `view_queue` and `take`, the fast path: pairs the items at the head with one's own wish, without
//!   a request. It reads the first key of the registry serializably and does nothing if there is
//!   one: whoever registers stops it. The first half may come before there is a wish: of takes that
//!   follow one another closely each looks while the one before it commits.
//! - `register`: appends a request to the registry. It reads only the session's
//!   own state, so that it never conflicts with other requests.
//! - `fulfill`: pairs the first requests with the first items. Everybody may do
//!   it at any time; the owner of the *first* request does it as a rule.
//! - `check_request`: is there a grant, is it the first; with watches on what may change it.
//! - `collect`: takes over what was granted. Whose consumers ask again at once, as a rule, registers the
//!   next request in the same transaction.
//! - `withdraw`: removes a request that nobody has answered.
//!
//! # Why it is safe
//!
//! 1. `fulfill` and `take` read requests and items by snapshot, so that enqueues and registrations
//!    never make them fail. For each pair that they make they add read conflicts on the request, the
//!    item and the session's state, *before* they clear the first two. Of two that make a pair of the
//!    same item or the same request one fails.
//! 2. A grant is written, with the items in it, in the transaction that clears request and items. Who
//!    collects it takes them out. An item is at every moment in one place.
//! 3. What is written under a session is written by a transaction that has read the session's state
//!    serializably, or that moves it out of a grant, which keeps the session from being buried. Who
//!    declares a session dead writes that state: afterwards nothing more is granted to it, and what it
//!    holds can be returned, once.
//!
//! # Why it does not stall
//!
//! The owner of the first request leads: it fulfills. Only it watches the wake stamp, which every
//! enqueue, return and redrive writes, so that an enqueue wakes one session, however many wait. The
//! others watch for their own answer alone. The watches are armed in the transaction that read the
//! state, so that no change falls between.
//!
//! A `fulfill` that leaves somebody else's request as the first tells it so, under the key of its
//! grant. A request that was registered meanwhile may have seen one before it that is gone by now, and
//! be told by nobody: so whoever removes requests, by answering them, by withdrawing its own or for the
//! dead, leaves only after a `fulfill` that began after its own commit and changed nothing.
//!
//! While that goes on, somebody else may come to be the first: it lets the other one lead for as long
//! as a few transactions take. Of two that lead all the same one fails, and then owes the others no more
//! than to tell the first one that it is: two that went on would go on to meet. Should the first one be
//! dead, the others notice when they look after their poll interval, lose patience one after the other, by
//! their rank, and act in its place. While there is no item there is no patience to lose.

pub(crate) mod fulfill;
pub(crate) mod grant;
pub(crate) mod request;

use microqueue::ItemId;
use microqueue::keyspace::Bytes;
use microqueue::keyspace::codec::DecodeError;

use crate::keys::Keys;
use crate::record::Record;
use crate::session::SessionId;
use crate::settings::Settings;

/// How many items one transaction grants at most.
pub(crate) const ITEMS_PER_FULFILMENT: usize = 512;

/// How many bytes of items one transaction grants, but for the last item.
pub(crate) const BYTES_PER_FULFILMENT: usize = 1_000_000;

/// How many requests one transaction answers at most.
pub(crate) const REQUESTS_PER_FULFILMENT: usize = 128;

/// How many delayed items one transaction promotes at most.
pub(crate) const PROMOTIONS_PER_FULFILMENT: usize = 128;

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
            is_popped: pop && value.is_ok(),
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
    pub(crate) demand: &'a [Demand],
    pub(crate) decode: &'a Decode<T>,
}

impl<T> Clone for SessionContext<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SessionContext<'_, T> {}

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
