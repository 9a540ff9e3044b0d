//! The staged registry: requests, their answers, and the fast path that bypasses it. Each function stages one step in
//! a transaction.
//!
//! - [`take`]: takes items for the session's own demand, without a request.
//! - [`fulfill`]: answers requests.
//! - [`ready`]: reads what could be granted; `grantable` grants it.
//! - [`request`]: registers, collects and withdraws requests, and reads what a check needs.
//! - [`grant`]: answers to requests, and signals.
//! - [`give_back`]: items that a session no longer holds.
//! - [`confirm`]: items that are handed out, although their records do not say so.
//! - [`reclaim`]: items and rows of dead sessions.
//! - [`front`]: what a session knows of the parts from which it takes items.
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
//!   session of the first request does.
//! - *Check*: reads whether the session's request was answered and whether it is the first one, and sets watches on
//!   the keys that may change this.
//! - *Collect*: takes the granted items over. If the session's consumers want more, the same transaction registers
//!   the next request.
//! - *Withdraw*: removes a request that was not answered.
//!
//! A take, a request and the demand in a fulfillment may ask for more items than the session's handlers want: its
//! *reserve*. The records of these items say so, because their handlers may get them without a transaction. If the
//! session dies, they go back without a counted death, and are granted the next time only to be handed out. The record
//! of an item that is to be handed out apart says the same, until the session is about to hand it out. An item that
//! takes a token of a rate is not granted for a reserve.
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
//! # Kinds
//!
//! A session takes only the items whose [kinds](crate::items::kind) it knows, and sees no others: its reads skip them
//! as they skip rows that do not decode. Sessions that know the same kinds have a registry of their own, in which each
//! may answer each request. All that is said here of *the* registry, and of items, holds for each registry and the
//! items of its kinds. An enqueue wakes the first request of each registry. Two registries conflict only where both
//! take items of the same kind.
//!
//! # Why it does not stall
//!
//! 1. The session of the first request *leads*: it fulfills. Only this session watches the wake stamp, which
//!    every enqueue, return and redrive writes. An enqueue therefore wakes one session, however many wait.
//! 2. Every other session watches only for its own answer. Each transaction that checks a request also sets the
//!    watches, so that no change is lost between the check and the watch.
//! 3. If `fulfill` leaves another session's request as the first one, it writes a signal to that session, under the
//!    key where the grant would be.
//! 4. One case needs more than a signal. Request B is registered after request A and sees it, A is removed by a
//!    transaction that does not see B, and B's session sleeps because it saw A before it. Therefore, after a session
//!    removes a request (by answering it, withdrawing it, or because its session is dead), it keeps calling `fulfill`
//!    until a call that started after the removal committed finds nothing to do.
//!    In another registry than its own, it fulfills nothing: there, the removal notifies the first request that it
//!    leaves or, if it leaves none, fails if one is registered meanwhile, and is repeated.
//! 5. Meanwhile, another session's request may become the first. That session waits for the duration of a few
//!    transactions before it leads. If two sessions lead at the same time anyway, one of them fails with a conflict.
//!    From then on it grants nothing and only notifies the session of the first request, so that the two do not keep
//!    colliding.
//! 6. If the session of the first request is dead, the other sessions notice this at their poll interval. They
//!    lose *patience* one after another, in the order of their requests, and lead in its place. While there are no
//!    items, no session loses patience.
//!
//! # Reads, writes and conflicts
//!
//! Letters are the parts of the [schema](crate::items::keys): `i` is a key under `(queue, "i")`, `"ht"` or `"j"`; with
//! an item of another priority than 0 goes its `o`. Reads are
//! serializable, except those by snapshot. `c` and `w` are written without being read, so they make no step fail. *The
//! end* of an item is these writes: `c` of `completed` or `cancelled`; clears of `k` and `n`, if they still belong to
//! the item; `y`, if the item was completed and dedupe ids are retained; `x` and `z`, if done items are kept.
//!
//! | step | reads | by snapshot | writes | conflicts with a transaction that |
//! |---|---|---|---|---|
//! | take: the fast path | `p`; the session's own `s`; `r` up to the first request, or all of it; each item that it takes (`i`) or promotes (`t`) | the first items; `t` up to now | clears each `i` and sets its `h`, or for popped items the end; for promoted items clears `t` and `o` and sets `i`; `c` | granted, cancelled or changed one of these items; registered the first request; paused or resumed the queue; wrote the session's `s` |
//! | register | the session's own `s` | | a new `r` | wrote the session's `s` |
//! | fulfill | `p`; `s` of the own session and of those whose requests it reads; each request that it answers, removes or notifies (`r`); each item that it grants (`i`) or promotes (`t`) | the first requests and items; `t` up to now; the first row of a grant | clears these `r` and `i`; sets a `g` for each item, or an `h` for those of its own session; a signal in `g`; the rest as a take | answered or withdrew one of these requests; granted, cancelled or changed one of these items; paused or resumed the queue; wrote one of these `s` |
//! | check | | `g`, `r`, `t`, `p`, `i`, `Bs` | | |
//! | collect | the rows of the grant (`g`) | | clears them and sets an `h` for each, or for popped items the end and `c`; a new `r`, if more items are wanted | collected or returned the grant; cancelled an item of it |
//! | withdraw | its `r` | | clears `r` and the first row of `g` | answered or removed the request |
//! | complete | `h` of the item | | clears `h`; the end; `c` | cancelled the item, took over its dedupe id, set its checkpoint, or gave it back |
//! | give back | `h` of the item | | clears `h`; sets `i`, or `t` and `o`, or `d`; if the item was cancelled, the end; `c`, `w` | cancelled the item, took over its dedupe id, acknowledged it, gave it back or set its checkpoint |
//! | set a checkpoint or progress, or run a step | `h` of the item; what the step reads | | `h`; what the step writes | cancelled the item, took over its dedupe id, acknowledged it, gave it back, set its checkpoint or confirmed its hand-out |
//! | confirm hand-outs | `h` of each item | | these `h` | cancelled one of these items, acknowledged it, gave it back or set its checkpoint |
//! | fire due schedules | `e` of each schedule that fires; an `f` without a schedule | the first `f`; from time to time 100 later `f` with their `e` | a new `i` for each time, or as `enqueue_with` if the schedule has options; `e`, `f`, `c`, `w` | fired, changed or removed one of these schedules; with a dedupe id, as `enqueue_with` |
//! | open a session | | | `s`, `b` | |
//! | store the kinds of a session | its own `s` | | `u` | declared the session dead |
//! | write a heartbeat | the session's own `s` and `b` | | `b`; `s`, if the lease changes | declared the session dead |
//! | take a census | | all `s` and `b` | | |
//! | declare a session dead | its `b` and `s` | | `s` | wrote a heartbeat of the session, or its `s` |
//! | end a session | its own `s` | | `s` | declared the session dead |
//! | return items of a dead session | its `s`; each item that it returns (`h`, or the row in `g`) | pages of `h` and `g` | as give back | returned or collected one of these items, or set its checkpoint |
//! | remove a dead session | its `s` and `u`; all of its `h` and `g`; each request that it removes; of another registry, also the request that it notifies, or the whole registry if it leaves none | the first 1,000 requests of its registry | clears its signals in `g`, its `r`, `s`, `u`, `b` and `a`; a signal in `g`, if the registry is another one | granted an item to the session, or removed one of these requests; registered one in another registry of which it leaves none |
//! | remove expired rows | each `y` and `Bd` that it removes | pages of `y`, `Bd` and `z`; `m` | clears `y`, `Bd` with its `Bm`, `x`, `z` | ended an item with this dedupe id, or removed the same `y` or `Bd` |
//!
//! For items of lanes, these are added. `a`, `k`, `v`, `p`, `f` and `l l` are the state rows of a lane: slots in use,
//! limits, the tokens of a rate, until when it is parked, the gate, and the pause of its group. `hp` names the parked
//! lanes.
//!
//! | step | reads | by snapshot | writes | conflicts with a transaction that |
//! |---|---|---|---|---|
//! | enqueue with a group, or return to a lane | | | the item's `l` and `o`; a notice in `hs` | |
//! | take, fulfill | | the first `hp` and `hs`; `a`, `k`, `l l`, `v` and `p` of lanes, with their first items (`l`); the default limits | clears notices that still have the values that it read | |
//! | grant from a lane | the group's `k` and `l l` and, if there is no `k`, the default limits; `f`, if there is a limit or a rate | | clears `l` and `o`; `a`; `v`, if there is a rate; `f`, if there is a limit or a rate; a notice, if something is left to grant | changed these limits; paused or resumed the group; started an item of the same group, if it has a limit or a rate; parked its lane, or gave a token of it back |
//! | park a lane, or look at one that is parked or waits for its rate | `f` | as take | `hp`, `p`, `f`; clears `v` once all tokens are there | started an item of the group; parked its lane, or gave a token of it back |
//! | the return of an item that took a token and that no handler got | the group's `k`; the default limits; `f` | `v` | `v`, `f`; a notice and `w` | as above; changed these limits |
//! | the end, or the return, of an item that has a slot | the group's `k`; the default limits | | `a`; a notice and `w`, if there is a limit | changed these limits |
//! | set limits | | | `k`; a notice or, for the default limits, the mark; `w` | |
//! | pause a group, or resume it | | | `l l`; if it is resumed, a notice and `w` | |
//! | sweep lanes after a change of the default limits | | the mark; first rows of lanes | notices; clears the mark if it still has the value that it read; `w` | |
//!
//! For members of batches, these are added. `B` is the row of a batch, `B p` and the like are its numbers, `Bs` is its
//! notice, `Bm` has its members, and `Bd` is what is kept of it after its end.
//!
//! | step | reads | by snapshot | writes | conflicts with a transaction that |
//! |---|---|---|---|---|
//! | add a member, or a batch in a batch | `B`; `B o`, unless a member adds it | | `B p`; the `Bm` of an item | ended or cancelled the batch, or closed it, unless a member adds it |
//! | the end of a member | | | `B p`; `B c`, `d` or `x`; `Bs`, `w` | |
//! | open a batch | | | `B`, `B o` | |
//! | close a batch | | | clears `B o`; `Bs`, `w` | |
//! | cancel a batch | `B` | | `B`; as close | ended or cancelled the batch |
//! | end batches that are complete | of each that it ends, `B` and `B p` | the first `Bs`; all rows of these batches | clears notices that still have the values that it read; of each that it ends, clears all rows, and sets a `Bd` or, if it is not kept, clears `Bm`; its callback as `enqueue_with`, or `B p` of its parent, as the end of a member | added a member to it, cancelled or ended it |
//!
//! A range read of items or requests by snapshot also reads the probe of that microqueue, which no operation of this
//! crate writes. A pause or its end makes every take and fulfillment that runs at that moment fail; the session tries
//! again. A session combines steps in one transaction where it can: a take, a fulfillment, a registration and a
//! collection also give back and complete items.

pub(crate) mod confirm;
pub(crate) mod front;
pub(crate) mod fulfill;
pub(crate) mod give_back;
pub(crate) mod grant;
mod grantable;
pub(crate) mod ready;
pub(crate) mod reclaim;
pub(crate) mod request;
pub(crate) mod take;

use microqueue::ItemId;
use microqueue::keyspace::codec::DecodeError;
use microqueue::keyspace::{Bytes, Transaction};

use self::front::Fronts;
use crate::items::changes::Changes;
use crate::items::end::{Ending, Rules, end};
use crate::items::error::Error;
use crate::items::group_limits::KnownLimits;
use crate::items::keys::Keys;
use crate::items::record::{End, Record, Reserve};
use crate::items::settings::Settings;
use crate::items::value::{Decode, Value};
use crate::lanes::Gone;
use crate::session::SessionId;
use crate::session::wall::wall_millis;

/// The largest number of requests that one transaction answers.
const MAX_FULFILLMENT_REQUESTS: usize = 128;

/// The largest number of delayed items that one transaction promotes.
const MAX_FULFILLMENT_PROMOTIONS: usize = 128;

/// A part of a session's own demand: a number of items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) wanted: usize,
    pub(crate) purpose: Purpose,
}

/// What a session does with an item that it is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It hands the item out, and holds it until it is acknowledged.
    Deliver,
    /// It hands the item out. The transaction that takes the item completes it.
    Pop,
    /// It holds the item until a handler wants it. Such a demand comes last, and any number of items meets it.
    Reserve,
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
    fn new(context: SessionContext<'_>, id: ItemId, mut record: Record, purpose: Purpose) -> Self {
        let value = (context.decode)(&record.kind, record.payload.clone());
        let is_popped = purpose == Purpose::Pop && value.is_ok() && record.cancelled_millis == 0;
        record.reserve = match (purpose, record.reserve) {
            (Purpose::Reserve, Reserve::Out) => Reserve::In,
            (Purpose::Reserve, reserve) => reserve,
            // A transaction records when it is handed out. Until then, it waits for others.
            _ if !is_popped && context.settings.hands_out_apart(&record) => Reserve::In,
            _ => Reserve::Out,
        };
        Self {
            is_popped,
            id,
            record,
            value,
        }
    }

    /// Returns what a view that was read before these items were granted must leave out.
    pub(crate) fn gone(granted: &[Self]) -> Gone {
        let groups = granted.iter().map(|item| &item.record.group);
        Gone {
            items: granted.iter().map(|item| item.id).collect(),
            groups: groups.filter(|group| !group.is_empty()).cloned().collect(),
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
    /// Stages the completion of a popped item. `limits` must contain those of its group, if the item has a slot.
    fn end_popped(
        &self,
        tr: &impl Transaction,
        item: &Granted,
        limits: &KnownLimits,
        changes: &mut Changes,
    ) -> Result<(), Error> {
        let ending = Ending {
            id: &item.id,
            record: &item.record,
            how: End::Completed,
            result: Bytes::new(),
        };
        end(tr, self.keys, self.rules(limits), ending, changes)
    }

    /// Returns the rules by which items end.
    fn rules<'b>(&'b self, limits: &'b KnownLimits) -> Rules<'b> {
        Rules {
            settings: self.settings,
            limits,
        }
    }

    /// Returns the wall time up to which delayed items are due, in milliseconds since the Unix epoch, if the session
    /// trusts its clock. Otherwise, it promotes nothing.
    fn wall_millis(&self) -> Option<u64> {
        if !self.promotes {
            return None;
        }
        Some(wall_millis(&self.keys.env))
    }
}

/// Returns the number of items in a demand.
pub(crate) fn count_wanted(demand: &[Demand]) -> usize {
    demand.iter().map(|demand| demand.wanted).sum()
}

/// Returns the purpose of each item of a demand, in order.
fn purposes(demand: &[Demand]) -> impl Iterator<Item = Purpose> + '_ {
    demand
        .iter()
        .flat_map(|demand| std::iter::repeat_n(demand.purpose, demand.wanted))
}
