//! The staged registry: requests, their answers, and the fast path that bypasses it. Each function stages one step in
//! a transaction.
//!
//! - [`fulfill`]: fulfills, and takes.
//! - [`request`]: registers, collects and withdraws requests, and reads what a check needs.
//! - [`grant`]: answers to requests, and notices.
//! - [`give_back`]: items that a session no longer holds.
//! - [`reclaim`]: items and rows of dead sessions.
//! - [`front`]: reads the first rows, and skips those that do not decode.
//!
//! # The idea
//!
//! All consumers want the same item: the first. If several transactions take it at the same time, only one of them
//! commits. FoundationDB's *Queues* recipe solves this with an extension: a consumer that does not succeed at once
//! registers a request, and then helps to fulfill requests, many in one transaction. This crate adds sessions, so
//! that any participant may die at any moment.
//!
//! # Steps
//!
//! Each step is one transaction of a session's dispatcher.
//!
//! - *Take*, the fast path: takes the first items for the session's own consumers, without a request. It reads the
//!   first key of the registry serializably and takes nothing if a request is there. A registration at the same time
//!   therefore makes it fail. When takes follow closely on one another, each reads the queue while the one before it
//!   commits.
//! - *Register*: appends a request to the registry. It reads only the session's own state, so that registrations
//!   never conflict with each other.
//! - *Fulfill*: pairs the first requests with the first items. Any session may do it at any time; normally the
//!   session that owns the first request does.
//! - *Check*: reads whether the session's request was answered and whether it is the first one, and sets watches on
//!   the keys that may change this.
//! - *Collect*: takes the granted items over. If the session's consumers want more, the same transaction registers
//!   the next request.
//! - *Withdraw*: removes a request that was not answered.
//!
//! # Why it is safe
//!
//! 1. `fulfill` reads requests and items by snapshot, and `take` reads items by snapshot. Enqueues therefore never
//!    make them fail, and registrations never make `fulfill` fail. For each request and item that they pair, they add
//!    read conflict keys on the request, the item and the session's state *before* they clear the request and the
//!    item. If two transactions pair the same item or the same request, one of them fails.
//! 2. One transaction clears a request and its items and writes the grant, which contains the items. Another
//!    transaction collects the grant and moves the items out of it. Every item is therefore in exactly one place at
//!    every version.
//! 3. A transaction that adds a held or granted item to a session either reads the session's state serializably or
//!    moves the item out of a grant; while a grant exists, its session is not removed. The transaction that declares
//!    a session dead writes the session's state. After it, nothing more is granted to that session, and each item
//!    that it holds is returned once.
//!
//! # Why it does not stall
//!
//! 1. The session that owns the first request *leads*: it fulfills. Only this session watches the wake stamp, which
//!    every enqueue, return and redrive writes. An enqueue therefore wakes one session, however many wait.
//! 2. Every other session watches only for its own answer. Each transaction that checks a request also sets the
//!    watches, so that no change is lost between the check and the watch.
//! 3. If `fulfill` leaves another session's request as the first one, it writes a notice to that session, under the
//!    key where the grant would be.
//! 4. One case needs more than a notice. Request B is registered after request A and sees it, A is removed by a
//!    transaction that does not see B, and B's session sleeps because it saw A before it. Therefore, after a session
//!    removes a request (by answering it, withdrawing it, or because its owner is dead), it keeps calling `fulfill`
//!    until a call that started after the removal committed finds nothing to do.
//! 5. Meanwhile, another session's request may become the first. That session waits for the duration of a few
//!    transactions before it leads. If two sessions lead at the same time anyway, one of them fails with a conflict.
//!    From then on it grants nothing and only notifies the owner of the first request, so that the two do not keep
//!    colliding.
//! 6. If the session that owns the first request is dead, the other sessions notice this at their poll interval. They
//!    lose *patience* one after another, in the order of their requests, and lead in its place. While there are no
//!    items, no session loses patience.

pub(crate) mod front;
pub(crate) mod fulfill;
pub(crate) mod give_back;
pub(crate) mod grant;
pub(crate) mod reclaim;
pub(crate) mod request;

use microqueue::ItemId;
use microqueue::keyspace::codec::DecodeError;
use microqueue::keyspace::{Bytes, Transaction};

use self::front::Fronts;
use crate::items::end::end;
use crate::items::error::Error;
use crate::items::keys::Keys;
use crate::items::record::{End, Record};
use crate::items::settings::Settings;
use crate::items::value::{Decode, Value};
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
pub(crate) struct Granted {
    pub(crate) id: ItemId,
    pub(crate) record: Record,
    pub(crate) value: Result<Value, DecodeError>,
    /// Whether the item was completed by the transaction that took it. This is never the case for an item that does
    /// not decode.
    pub(crate) is_popped: bool,
}

impl Granted {
    fn new(context: SessionContext<'_>, id: ItemId, record: Record, pop: bool) -> Self {
        let value = (context.decode)(record.payload.clone());
        Self {
            is_popped: pop && value.is_ok() && record.cancelled_millis == 0,
            id,
            record,
            value,
        }
    }
}

/// The session that takes part in the protocol, and its own demand.
#[derive(Clone, Copy)]
pub(crate) struct SessionContext<'a> {
    pub(crate) keys: &'a Keys,
    pub(crate) settings: &'a Settings,
    pub(crate) session: SessionId,
    /// Whether the session promotes delayed items that are due: only if its wall clock agrees with those of the
    /// others.
    pub(crate) promotes: bool,
    pub(crate) demand: &'a [Demand],
    pub(crate) decode: &'a Decode,
    pub(crate) fronts: &'a Fronts,
}

impl SessionContext<'_> {
    /// Stages the completion of a popped item.
    fn end_popped(&self, tr: &impl Transaction, item: &Granted) -> Result<(), Error> {
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
