//! The keys and values of a queue. `queue` is the prefix of its subspace, in which no other key is ever written.
//! Integers in values are big-endian, unless said otherwise.
//!
//! # Layout
//!
//! ```text
//! (queue, "m")                    = settings
//! (queue, "p")                    = empty; while it exists, nothing is granted
//! (queue, "w")                    = wake stamp: versionstamp of the newest commit that may have made an item ready
//! (queue, "c", name)              = counter
//! (queue, "ht", rank, id)         = queued item of rank 1 to 9
//! (queue, "i", id)                = queued item of rank 10
//! (queue, "j", rank, id)          = queued item of rank 11 to 19
//! (queue, "l", group, rank, id)   = queued item in a lane; rank is 0 if it has a slot
//! (queue, "l", group, "a")        = counter: slots in use
//! (queue, "l", group, "k")        = limits of the group; those of group "" are the defaults
//! (queue, "l", group, "l")        = empty; while it exists, no item of the group is granted. No part sorts between it
//!                                   and the limits: a grant has both in one conflict range
//! (queue, "l", group, "v")        = tokens of the group's rate
//! (queue, "l", group, "p")        = version until which the lane is parked: 8 bytes
//! (queue, "l", group, "f")        = gate, never written: starts in a group with a limit or a rate conflict here
//! (queue, "l", "", "m")           = versionstamp of the last change of the defaults, until all lanes have notices
//! (queue, "hp", until, group)     = empty; the lane is parked until this version
//! (queue, "hs", rank, hash, group) = notice that the lane may have something to grant at this rank: versionstamp
//! (queue, "B", batch)             = batch
//! (queue, "B", batch, "o")        = empty; while it exists, the batch is open
//! (queue, "B", batch, tally)      = counter: members
//! (queue, "Bd", batch)            = batch that has ended, while it is kept
//! (queue, "Bm", batch, id)        = empty; the item is or was a member of the batch, which is there or kept
//! (queue, "Bs", batch)            = notice that the batch may be complete: versionstamp
//! (queue, "t", ready, id)         = delayed item
//! (queue, "h", session, id)       = item that the session holds
//! (queue, "d", id)                = dead letter
//! (queue, "x", id)                = done item, while it is kept
//! (queue, "z", until, id)         = empty; the item above is kept until this time
//! (queue, "o", id)                = pointer to an item that is delayed, or queued elsewhere than in "i": 00, time at
//!                                   which it is ready; 01, rank; or 02, rank in its lane, group of the lane
//! (queue, "k", dedupe)            = token of the item with the dedupe id, call of its id in 8 bytes, group; while the
//!                                   item is queued, delayed, held or dead, not cancelled, and no other has the id
//! (queue, "n", dedupe)            = id of this item: versionstamp, call in 8 bytes
//! (queue, "y", dedupe)            = time at which the last item with the id was completed, while it is retained
//! (queue, "e", schedule)          = schedule
//! (queue, "eo", owner, schedule)  = empty; the schedule belongs to this owner
//! (queue, "f", next, schedule)    = empty; the schedule fires next at this time
//! (queue, "r", id)                = request of a session that takes the items without a kind
//! (queue, "q", registry, id)      = request of a session that takes items of other kinds
//! (queue, "g", session, id of request, number)
//!                                 = part of a grant: an item that the session holds but has not collected
//! (queue, "s", session)           = format 01; 00 dead, 01 alive or 02 ended; lease: duration
//! (queue, "u", session)           = kinds that the session takes, if it takes other items than those without a kind
//! (queue, "b", session)           = heartbeat: versionstamp, wall time of its process
//! (queue, "a", session)           = cancel stamp: versionstamp of the newest commit that cancelled one of its items
//!
//! id        two tuple elements: versionstamp, call; an item keeps the id of its first enqueue
//! rank      tuple integer: 10 - priority
//! group     tuple byte string: 1 to 255 bytes, or empty for the lane of items without a group that have come back
//! batch     tuple byte string: 16 random bytes
//! tally     tuple string: "p" members and batches in it that have not ended; "c" completed; "d" dead; "x" cancelled
//! hash      tuple integer: the first 16 bits of the XXH3 of the group
//! ready, until, next
//!           tuple integer: time; the "until" of a parked lane is a version
//! session   tuple byte string: 16 random bytes
//! registry  tuple byte string: the XXH3, of 128 bits, of the value with the kinds of the session, in 16 bytes
//! dedupe    tuple byte string: 1 to 255 bytes
//! schedule  tuple string: its name, 1 to 255 bytes
//! owner     tuple string: 1 to 255 bytes
//! number    tuple integer: 0 for the first item of the grant
//! name      tuple string: "queued", "delayed", "held", "dead", "completed", "cancelled", "removed"
//! counter   8 bytes, little-endian; changed by atomic additions
//!
//! item      01 (microqueue's format), then
//!     0       format, 01
//!     next    fields in the order of their tags, each optional: tag, length in 2 bytes, bytes
//!         01  time of the first enqueue: number
//!         02  grants so far: number
//!         03  failures since the enqueue or the last redrive: number
//!         04  deaths of sessions that held it, since then: number
//!         05  last failure: time, then up to 500 bytes of UTF-8
//!         06  own limits of attempts, deaths and deliveries: 4 bytes each; 0 for that of the settings
//!         07  dedupe id: 1 to 255 bytes
//!         08  only if the item still has its dedupe id: token, 33 bytes. 8 random bytes; of the enqueue: read version,
//!             time, time at which the item is ready (0 if it was queued), and rank, plus 128 for a member of a batch
//!         09  time of its cancellation, while a session holds it: number
//!         0A  only of a done item: time of the end; time until which it is kept; 00 completed, 01 cancelled, 02
//!             removed; result, up to 4,096 bytes
//!         0B  trace context of the enqueue, up to 512 bytes of UTF-8: W3C traceparent in 55 bytes; then, if there is
//!             one, a newline and the tracestate
//!         0C  time of the last grant: number
//!         0D  time since which it waits in the queue, if not since its enqueue: number
//!         0E  burst of debounced enqueues, if not the first: time of its begin; deliveries until then in 8 bytes
//!         0F  deliveries that do not count: before the last redrive, or not handed out: number
//!         10  01 in the reserve of its session, or handed out since, or to be handed out apart; 02 a session that
//!             held it has died: it enters no reserve before it was handed out for certain
//!         11  rank, if it is not 10: a byte
//!         12  group: 1 to 255 bytes
//!         13  01 if it has a slot of its group
//!         14  batch of which it is a member; 01 if dead letters stay members, otherwise 00
//!         15  only of a batch's callback: completed, dead and cancelled members, in 8 bytes each; the batch
//!         16  only while a session holds it, if its grant took a token of its group's rate: read version of the grant;
//!             after how many versions a token comes back, in 8 bytes each
//!         17  kind: 1 to 100 bytes of UTF-8
//!         18  not of a done item: checkpoint. Number of steps that are done, in a byte; for each, the length of its
//!             name in a byte, the name, the length of its result in 2 bytes, and the result; then the application's
//!             own bytes. Up to 4,096 bytes without the first one
//!         19  progress: done and total in 8 bytes each, then up to 200 bytes of UTF-8
//!         1A..FF  fields of later versions, kept unchanged: up to 349 bytes with their tags and lengths
//!     next    00
//!     rest    payload: the codec's bytes
//!     number  1 to 8 bytes without leading zeros; 0 is stored as a missing field
//! request   01 (microqueue's format), then
//!     0       format, 01
//!     1..17   session
//!     17..21  wanted: how many items
//!     21..25  how many of them the session takes ahead of its handlers
//! kinds of a session
//!     0       format, 01
//!     next    of each of up to 500 kinds, in ascending order: its length in a byte, 0 for items without a kind; its
//!             bytes
//! part of a grant
//!     0       format, 01
//!     1..5    number of parts of the grant; a value that ends before is a signal that the request is the first
//!     5..15   versionstamp of the item
//!     15..23  call of the item
//!     23..    the item, without microqueue's format
//! limits of a group
//!     0       format, 01
//!     1       flags: 1 has a limit; 2 slots are kept until the end; 4 dead letters keep theirs; 8 has a rate
//!     2..6    limit, or 0
//!     6..10   starts per period of the rate, or 0
//!     10..18  its period: duration, or 0
//!     18..22  its burst, or 0
//!     22..26  weight
//! tokens of a rate
//!     0..8    version at which all tokens are there
//!     next    up to 8 times, 8 bytes each: version of a grant; after how many versions all tokens would have been
//!             there without it; both grow
//! batch
//!     0       format, 01
//!     1       flags: 1 has a callback; 2 dead letters stay members; 4 was cancelled; 8 dead letters stay members
//!             of its parent
//!     2..18   its parent, the batch of which it is a member; or zeros
//!     18..26  time at which it was opened
//!     26..34  delay of the callback: duration; this and what follows only if there is a callback
//!     34..42  time until which the callback is delayed in any case, or 0
//!     42..    item: the callback, without microqueue's format
//! batch that has ended
//!     0       format, 01
//!     1       flags: 1 has enqueued a callback; 2 dead letters stayed members; 4 was cancelled
//!     2..18   its parent, or zeros
//!     18..42  times at which it was opened, at which it ended, and until which it is kept
//!     42..66  completed, dead and cancelled members, in 8 bytes each
//!     66..84  versionstamp and call of the callback, if there is one
//! schedule
//!     0       format, 01
//!     next    fields as those of an item; 03, 04 and 05 are required, 06, 08, 0A, 0C and 0D are of its items
//!         01  time at which it fires next
//!         02  up to 8 runs of times that have fired, ascending: the first and the last time of each
//!         03  which missed times fire: 00 none, 01 the newest, 02 several of the newest; then in 4 bytes, for 02 their
//!             number, 1 to 1,000, otherwise 0
//!         04  cron expression: 1 to 255 bytes of UTF-8
//!         05  time zone: 1 to 255 bytes of UTF-8
//!         06  delay after the scheduled time: duration
//!         07  longest wait of a burst: duration
//!         08  dedupe id: 1 to 255 bytes
//!         09  what a repeated dedupe id does, if not nothing: 01 replace, 02 debounce
//!         0A  limits, as field 06 of an item
//!         0B  how many queued items make it skip a time: 8 bytes
//!         0C  rank, if it is not 10: a byte
//!         0D  group: 1 to 255 bytes
//!         0E  owner, if it has one: 1 to 255 bytes of UTF-8
//!         0F  kind: 1 to 100 bytes of UTF-8
//!         10..FF  as 1A..FF of an item
//!     next    00
//!     rest    payload: the codec's bytes
//! settings
//!     0       format, 01
//!     1..9    lease: duration, at least 30
//!     9..21   limits of attempts, deaths, deliveries: 4 bytes each
//!     21..29  retention of dedupe ids: duration
//!     29..37  how long done items are kept: duration
//!     37..39  length of the next part: 2 bytes, 0 if there is no queue of deaths
//!     next    prefix of the queue of deaths
//!     rest    name of the codec
//! death     payload of an item in a queue of deaths: in MessagePack, a map with these strings as its keys
//!     "queue"    string: name of the queue of the dead letter, as the console shows it
//!     "item"     binary: reference to the dead letter, 23 bytes
//!     "kind"     string, or nil: its kind
//!     "reason"   string: its last failure, up to 500 bytes
//!     "attempts", "deaths"
//!                integers: as fields 03 and 04 of the item
//!     "payload"  binary: the codec's bytes of the dead letter; nil if the map would be too large for a payload
//! ```
//!
//! A time is wall time in milliseconds since the Unix epoch, a duration is in milliseconds: 8 bytes each in a value,
//! unless it is a number.
//!
//! # Invariants
//!
//! - While a key under `(queue, "h", session)` or `(queue, "g", session)` exists, `(queue, "s", session)` exists, too.
//!   A transaction that writes one of the former either reads the latter serializably or moves the item from another
//!   key of the same session.
//! - One range has the parked lanes, then the notices of lanes, and then the queued items that are in no lane, in the
//!   order in which they are granted: no name of another part may sort between "hp" and "j".

mod batches;
mod lanes;
mod requests;

use std::array;
use std::borrow::Cow;

use futures::future::try_join_all;
use microqueue::keyspace::names::queue_name;
use microqueue::keyspace::tuple::Versionstamp as TupleVersionstamp;
use microqueue::keyspace::{
    self, Environment, KeyValue, MutationOp, Result, Subspace, Transaction,
};
use microqueue::{Item, ItemId, MicroQueue, StagedId};

pub(crate) use self::lanes::{check_group, lane_hash};
use crate::items::batch::{BatchId, BatchRef};
use crate::items::error;
use crate::items::item_ref::{ItemRef, QueueTag, StagedRef, queue_tag};
use crate::items::part::{Counter, Part};
use crate::items::priority::Priority;
use crate::items::record::{Record, RecordCodec, Request, RequestCodec};
use crate::items::spot::Spot;
use crate::session::{SessionId, Sessions};

/// A part of the queue that contains items, by id.
pub(crate) type Records = MicroQueue<Record, RecordCodec>;

/// A registry of requests.
pub(crate) type Requests = MicroQueue<Request, RequestCodec>;

/// The parts of a queue's subspace.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) queue: Subspace,
    /// The name of the queue, for logs.
    pub(crate) name: String,
    pub(crate) env: Environment,
    /// The items that are queued, by priority: the highest one comes first.
    queued: [Records; Priority::COUNT],
    /// The dead letters.
    pub(crate) dead: Records,
    /// The done items that are kept.
    pub(crate) done: Records,
    /// The requests of the sessions that take the same kinds, in the order in which they are answered.
    pub(crate) requests: Requests,
    pub(crate) sessions: Sessions,
    /// The tag by which references to items identify the queue.
    pub(crate) tag: QueueTag,
}

impl Keys {
    pub(crate) fn new(queue: Subspace, env: Environment) -> Self {
        let part = |part: Part| queue.subspace(&part);
        Self {
            queued: array::from_fn(|index| {
                let rank = index as u8 + 1;
                let priority = Priority::of_rank(rank).expect("each index is below a rank");
                let of_priority = match Part::of_priority(priority) {
                    Part::Queued => part(Part::Queued),
                    ranked => queue.subspace(&(ranked, u64::from(rank))),
                };
                MicroQueue::new(of_priority).with_environment(env.clone())
            }),
            dead: MicroQueue::new(part(Part::Dead)).with_environment(env.clone()),
            done: MicroQueue::new(part(Part::Done)).with_environment(env.clone()),
            requests: MicroQueue::new(part(Part::Requests)).with_environment(env.clone()),
            sessions: Sessions::new(queue.clone()),
            tag: queue_tag(&queue),
            name: queue_name(&queue),
            env,
            queue,
        }
    }

    /// Returns the part with the queued items of a priority.
    pub(crate) fn queued(&self, priority: Priority) -> &Records {
        &self.queued[usize::from(priority.rank()) - 1]
    }

    /// Returns the range of the queued items that are in no lane. It contains nothing else.
    pub(crate) fn outside_lanes(&self) -> (Vec<u8>, Vec<u8>) {
        (
            self.part(Part::QueuedAbove).0,
            self.part(Part::QueuedBelow).1,
        )
    }

    /// Returns the range of the parked lanes and the notices, followed by the queued items that are in no lane.
    pub(crate) fn lanes_and_items(&self) -> (Vec<u8>, Vec<u8>) {
        (self.part(Part::Parked).0, self.part(Part::QueuedBelow).1)
    }

    /// Returns the items that stand at a spot.
    pub(crate) fn items_at(&self, spot: &Spot) -> Cow<'_, Records> {
        match spot {
            Spot::Priority(priority) => Cow::Borrowed(self.queued(*priority)),
            Spot::Lane { group, rank } => Cow::Owned(self.lane_items(group, *rank)),
        }
    }

    /// Returns the key of the row of an item that stands at a spot.
    pub(crate) fn row_at(&self, spot: &Spot, id: &ItemId) -> Vec<u8> {
        id.key_in(self.items_at(spot).subspace())
    }

    /// Returns where a queued item stands that has this key.
    pub(crate) fn parse_queued(&self, key: &[u8]) -> Result<Spot> {
        let default = self.queued(Priority::DEFAULT).subspace();
        if key.starts_with(default.bytes()) {
            return Ok(Spot::DEFAULT);
        }
        if key.starts_with(self.queue.subspace(&Part::Lanes).bytes()) {
            let row = self.parse_lane(key)?;
            if let Some(rank) = row.rank {
                return Ok(Spot::Lane {
                    group: row.group,
                    rank,
                });
            }
        }
        for part in [Part::QueuedAbove, Part::QueuedBelow] {
            let unpacked: Result<(u64, TupleVersionstamp, u64), _> =
                self.queue.subspace(&part).unpack(key);
            if let Ok((rank, ..)) = unpacked
                && let Ok(rank) = u8::try_from(rank)
                && let Some(priority) = Priority::of_rank(rank)
                && Part::of_priority(priority) == part
            {
                return Ok(Spot::Priority(priority));
            }
        }
        Err(keyspace::Error::corrupt(
            key,
            "expected a key of a queued item",
        ))
    }

    /// Fails if the transaction has enqueued items that are not delayed, so that it cannot read all queued ones.
    ///
    /// # Conflicts
    /// Reads, for each priority, a key that no operation of this queue writes.
    pub(crate) async fn refuse_after_enqueue(&self, tr: &impl Transaction) -> error::Result<()> {
        let refuse = self
            .queued
            .iter()
            .map(|queued| queued.refuse_after_enqueue(tr));
        try_join_all(refuse).await?;
        Ok(())
    }

    /// Decodes the row of a queued item. Its key decides its priority.
    pub(crate) fn decode_queued(&self, row: &KeyValue) -> error::Result<Item<Record>> {
        let spot = self.parse_queued(row.key())?;
        let mut item = self.items_at(&spot).decode(row)?;
        spot.apply(row.key(), &mut item.value)?;
        Ok(item)
    }

    /// Returns the range of a part of the queue.
    pub(crate) fn part(&self, part: Part) -> (Vec<u8>, Vec<u8>) {
        self.queue.subspace(&part).range()
    }

    pub(crate) fn settings(&self) -> Vec<u8> {
        self.queue.pack(&Part::Settings)
    }

    pub(crate) fn pause(&self) -> Vec<u8> {
        self.queue.pack(&Part::Pause)
    }

    pub(crate) fn wake(&self) -> Vec<u8> {
        self.queue.pack(&Part::Wake)
    }

    pub(crate) fn counter(&self, counter: Counter) -> Vec<u8> {
        self.queue.pack(&(Part::Counters, counter.name()))
    }

    pub(crate) fn dedupe(&self, dedupe: &[u8]) -> Vec<u8> {
        self.queue.pack(&(Part::DedupeIds, dedupe))
    }

    pub(crate) fn dedupe_item(&self, dedupe: &[u8]) -> Vec<u8> {
        self.queue.pack(&(Part::DedupeItems, dedupe))
    }

    pub(crate) fn retained(&self, dedupe: &[u8]) -> Vec<u8> {
        self.queue.pack(&(Part::RetainedIds, dedupe))
    }

    /// Returns the subspace of the pointers to delayed items.
    pub(crate) fn pointers(&self) -> Subspace {
        self.queue.subspace(&Part::Pointers)
    }

    pub(crate) fn cancels(&self, session: SessionId) -> Vec<u8> {
        self.queue.pack(&(Part::CancelStamps, session.0.as_slice()))
    }

    /// Returns the session in the key of a cancel stamp.
    pub(crate) fn parse_cancels(&self, key: &[u8]) -> Result<SessionId> {
        let bytes: Option<Vec<u8>> = self.queue.subspace(&Part::CancelStamps).unpack(key).ok();
        let session = bytes.and_then(|session| session.try_into().ok());
        session
            .map(SessionId)
            .ok_or_else(|| keyspace::Error::corrupt(key, "expected the key of a cancel stamp"))
    }

    pub(crate) fn schedule(&self, name: &str) -> Vec<u8> {
        self.queue.pack(&(Part::Schedules, name))
    }

    /// Returns the name of the schedule in a key.
    pub(crate) fn parse_schedule(&self, key: &[u8]) -> Result<String> {
        let name = self.queue.subspace(&Part::Schedules).unpack(key);
        name.map_err(|_| keyspace::Error::corrupt(key, "expected the key of a schedule"))
    }

    /// Returns the subspace of the schedules of an owner, by name.
    pub(crate) fn schedules_of(&self, owner: &str) -> Subspace {
        self.queue.subspace(&(Part::OwnedSchedules, owner))
    }

    /// Returns the owner and the name of the schedule in a key of that index.
    pub(crate) fn parse_owned_schedule(&self, key: &[u8]) -> Result<(String, String)> {
        let entry = self.queue.subspace(&Part::OwnedSchedules).unpack(key);
        entry.map_err(|_| keyspace::Error::corrupt(key, "expected a schedule of an owner"))
    }

    /// Returns the key of a schedule in the index by next time.
    pub(crate) fn fire_time(&self, next_millis: u64, name: &str) -> Vec<u8> {
        self.queue.pack(&(Part::FireTimes, next_millis, name))
    }

    /// Returns the time and the name in a key of that index.
    pub(crate) fn parse_fire_time(&self, key: &[u8]) -> Result<(u64, String)> {
        let entry = self.queue.subspace(&Part::FireTimes).unpack(key);
        entry.map_err(|_| keyspace::Error::corrupt(key, "expected the time of a schedule"))
    }

    /// Returns the part with the items that a session holds.
    pub(crate) fn held(&self, session: SessionId) -> Records {
        let held = self.queue.subspace(&(Part::Held, session.0.as_slice()));
        MicroQueue::new(held).with_environment(self.env.clone())
    }

    /// Returns the part with the items that are delayed until a wall time.
    pub(crate) fn delayed(&self, ready_millis: u64) -> Records {
        let delayed = self.queue.subspace(&(Part::Delayed, ready_millis));
        MicroQueue::new(delayed).with_environment(self.env.clone())
    }

    /// Returns the range of items that are due at `ready_millis`.
    pub(crate) fn due(&self, ready_millis: u64) -> (Vec<u8>, Vec<u8>) {
        let (begin, _) = self.queue.subspace(&Part::Delayed).range();
        let (_, end) = self.queue.subspace(&(Part::Delayed, ready_millis)).range();
        (begin, end)
    }

    /// Returns the wall time in the key of a delayed item.
    pub(crate) fn parse_ready(&self, row: &KeyValue) -> Result<u64> {
        let delayed = self.queue.subspace(&Part::Delayed);
        let key: Result<(u64, TupleVersionstamp, u64), _> = delayed.unpack(row.key());
        match key {
            Ok((ready_millis, ..)) => Ok(ready_millis),
            Err(_) => Err(keyspace::Error::corrupt(
                row.key(),
                "expected a key of a delayed item",
            )),
        }
    }

    /// Returns the index of the done items that expire at a wall time.
    pub(crate) fn kept_until(&self, until_millis: u64) -> Subspace {
        self.queue.subspace(&(Part::KeepTimes, until_millis))
    }

    /// Returns the range of that index up to a wall time.
    pub(crate) fn kept_at_most_until(&self, until_millis: u64) -> (Vec<u8>, Vec<u8>) {
        let (begin, _) = self.part(Part::KeepTimes);
        let (_, end) = self.kept_until(until_millis).range();
        (begin, end)
    }

    /// Returns the time and the item in a key of that index.
    pub(crate) fn parse_kept(&self, key: &[u8]) -> Result<(u64, ItemId)> {
        let index = self.queue.subspace(&Part::KeepTimes);
        let entry = match index.unpack::<(u64, TupleVersionstamp, u64)>(key) {
            Ok((until, ..)) => {
                ItemId::of_commit(&self.kept_until(until), key).map(|id| (until, id))
            }
            Err(_) => None,
        };
        let reason = "expected the time of an item that is done";
        entry.ok_or_else(|| keyspace::Error::corrupt(key, reason))
    }

    /// Returns the key of a grant's first part. While the session is alive, this part exists as long as any part
    /// does. The signal that a request is the first is stored under the same key.
    pub(crate) fn grant(&self, session: SessionId, request: &ItemId) -> Vec<u8> {
        self.part_of_grant(session, request, 0)
    }

    pub(crate) fn part_of_grant(
        &self,
        session: SessionId,
        request: &ItemId,
        number: u32,
    ) -> Vec<u8> {
        self.parts(session, request).pack(&number)
    }

    pub(crate) fn parts_of_grant(
        &self,
        session: SessionId,
        request: &ItemId,
    ) -> (Vec<u8>, Vec<u8>) {
        self.parts(session, request).range()
    }

    fn parts(&self, session: SessionId, request: &ItemId) -> Subspace {
        let grants = self.queue.subspace(&(Part::Grants, session.0.as_slice()));
        Subspace::from_bytes(request.key_in(&grants))
    }

    /// Returns the range of the items that a session has been granted but has not collected.
    pub(crate) fn grants(&self, session: SessionId) -> (Vec<u8>, Vec<u8>) {
        self.queue
            .subspace(&(Part::Grants, session.0.as_slice()))
            .range()
    }

    /// Returns the reference to an item.
    pub(crate) fn item_ref(&self, id: ItemId) -> ItemRef {
        ItemRef::new(self.tag, id)
    }

    /// Returns the reference to a staged item.
    pub(crate) fn staged_ref(&self, id: StagedId) -> StagedRef {
        StagedRef::new(self.tag, id)
    }

    /// Returns the reference to a batch.
    pub(crate) fn batch_ref(&self, id: BatchId) -> BatchRef {
        BatchRef::new(self.tag, id)
    }

    /// Returns the session in the key of a held item.
    pub(crate) fn parse_holder(&self, key: &[u8]) -> Result<SessionId> {
        let held = self.queue.subspace(&Part::Held);
        let key_of: Option<(Vec<u8>, TupleVersionstamp, u64)> = held.unpack(key).ok();
        let session = key_of.and_then(|(session, ..)| session.try_into().ok());
        session
            .map(SessionId)
            .ok_or_else(|| keyspace::Error::corrupt(key, "expected a key of an item that is held"))
    }

    /// Returns the session in a key of a grant, and the key of the grant's first part.
    pub(crate) fn parse_grant(&self, key: &[u8]) -> Result<(SessionId, Vec<u8>)> {
        type Parts = (Vec<u8>, TupleVersionstamp, u64, u32);
        let grants = self.queue.subspace(&Part::Grants);
        let key_of: Option<Parts> = grants.unpack(key).ok();
        let of_grant = key_of.and_then(|(session, stamp, call, _)| {
            let first = grants.pack(&(session.as_slice(), stamp, call, 0));
            Some((SessionId(session.try_into().ok()?), first))
        });
        of_grant.ok_or_else(|| keyspace::Error::corrupt(key, "expected a key of a grant"))
    }

    /// Stages a change of a counter. The write is blind and conflicts with nothing.
    pub(crate) fn count(&self, tr: &impl Transaction, counter: Counter, change: i64) {
        if change != 0 {
            tr.atomic(
                MutationOp::Add,
                &self.counter(counter),
                &change.to_le_bytes(),
            );
        }
    }

    /// Stages that waiting sessions check again. The write is blind and conflicts with nothing.
    pub(crate) fn wake_all(&self, tr: &impl Transaction) {
        tr.set_to_versionstamp(&self.wake());
    }
}

#[cfg(test)]
mod tests;
