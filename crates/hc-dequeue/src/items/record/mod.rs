//! The records that the queue stores. The [schema](crate::items::keys) specifies the bytes.
//!
//! - This file: the record of an item, which moves with the item.
//! - `checkpoint`: what the handlers of an item leave for its next delivery.
//! - `codec`: the bytes of records.
//! - `request`: requests.
//! - `grant`: the rows of grants, which contain records.

mod checkpoint;
mod codec;
mod grant;
mod request;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::SystemTime;

use microqueue::keyspace::codec::DecodeError;
use microqueue::keyspace::record::Fields;
use microqueue::keyspace::{Bytes, limits};

pub(crate) use self::checkpoint::Checkpoint;
pub use self::checkpoint::{
    MAX_CHECKPOINT_BYTES, MAX_PROGRESS_TEXT_BYTES, MAX_STEP_NAME_BYTES, MAX_STEPS, Progress,
};
pub(crate) use self::codec::{
    RecordCodec, decode_fields, dedupe, group, priority_field, push_field, push_priority,
};
pub(crate) use self::grant::{GrantPart, ListedGrantPart, SIGNAL, is_signal};
pub(crate) use self::request::{Request, RequestCodec};
use crate::items::batch::{BatchMember, CallbackOf};
use crate::items::kind::{Kind, MAX_KIND_BYTES};
use crate::items::priority::Priority;
use crate::session::wall::unix_time;

/// The tags of the fields of a record.
mod tag {
    pub(super) const END: u8 = 0;
    pub(super) const ENQUEUED: u8 = 1;
    pub(super) const DELIVERIES: u8 = 2;
    pub(super) const ATTEMPTS: u8 = 3;
    pub(super) const DEATHS: u8 = 4;
    pub(super) const FAILURE: u8 = 5;
    pub(super) const LIMITS: u8 = 6;
    pub(super) const DEDUPE: u8 = 7;
    pub(super) const TOKEN: u8 = 8;
    pub(super) const CANCELLED: u8 = 9;
    pub(super) const DONE: u8 = 10;
    pub(super) const TRACE_CONTEXT: u8 = 11;
    pub(super) const GRANTED: u8 = 12;
    pub(super) const READY: u8 = 13;
    pub(super) const BURST: u8 = 14;
    pub(super) const UNCOUNTED: u8 = 15;
    pub(super) const RESERVE: u8 = 16;
    pub(super) const PRIORITY: u8 = 17;
    pub(super) const GROUP: u8 = 18;
    pub(super) const SLOT: u8 = 19;
    pub(super) const MEMBER: u8 = 20;
    pub(super) const CALLBACK: u8 = 21;
    pub(super) const SPENT: u8 = 22;
    pub(super) const KIND: u8 = 23;
    pub(super) const CHECKPOINT: u8 = 24;
    pub(super) const PROGRESS: u8 = 25;
}

/// The format number of all records.
const FORMAT: u8 = 1;

/// The number of bytes that a grant adds to the record of an item.
const PART_BYTES: usize = 23;

/// The largest dedupe id in bytes.
pub const MAX_DEDUPE_BYTES: usize = 255;

/// The largest [group](crate::Enqueue::with_group) of items in bytes.
pub const MAX_GROUP_BYTES: usize = 255;

/// The largest [`Failure::reason`] in bytes.
pub const MAX_FAILURE_BYTES: usize = 500;

/// The largest result of an item in bytes. Store larger results in rows of the application.
pub const MAX_RESULT_BYTES: usize = 4_096;

/// The largest trace context in bytes: traceparent, newline and tracestate.
pub(crate) const MAX_TRACE_CONTEXT_BYTES: usize = 512;

/// The length of a token in bytes.
pub(crate) const TOKEN_BYTES: usize = 33;

/// The number of bytes that a field has besides its value: its tag and its length.
pub(crate) const FIELD_BYTES: usize = 3;

/// The number of bytes in a record that are reserved for fields of later versions.
pub(crate) const MAX_UNKNOWN_BYTES: usize = 349;

/// The largest envelope in bytes: everything in a record except the payload. A done item has a result and no
/// checkpoint, so the two share their room.
const MAX_ENVELOPE_BYTES: usize = 2
    + 8 * (FIELD_BYTES + 8)
    + (FIELD_BYTES + 8 + MAX_FAILURE_BYTES)
    + (FIELD_BYTES + Limits::BYTES)
    + (FIELD_BYTES + MAX_DEDUPE_BYTES)
    + (FIELD_BYTES + TOKEN_BYTES)
    + (FIELD_BYTES + 17 + MAX_RESULT_BYTES)
    + (FIELD_BYTES + MAX_TRACE_CONTEXT_BYTES)
    + (FIELD_BYTES + Burst::BYTES)
    + (FIELD_BYTES + MAX_GROUP_BYTES)
    + 3 * (FIELD_BYTES + 1)
    + (FIELD_BYTES + BatchMember::BYTES)
    + (FIELD_BYTES + CallbackOf::BYTES)
    + (FIELD_BYTES + Spent::BYTES)
    + (FIELD_BYTES + MAX_KIND_BYTES)
    + (FIELD_BYTES + Progress::MAX_BYTES)
    + MAX_UNKNOWN_BYTES;

const _: () = assert!(MAX_CHECKPOINT_BYTES < 17 + MAX_RESULT_BYTES);

/// The largest payload in bytes: the value limit of the store, less the bytes that a grant adds and less the largest
/// envelope. An item with such a payload fits in every place of the queue, even after failures and with fields of
/// later versions.
pub const MAX_PAYLOAD_BYTES: usize = limits::MAX_VALUE_BYTES - PART_BYTES - MAX_ENVELOPE_BYTES;

/// An item in any place: queued, delayed, held, dead or done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Record {
    /// When it was first enqueued, by the wall clock.
    pub(crate) enqueued_millis: u64,
    /// How often it was granted. This number identifies a delivery, so it only grows.
    pub(crate) deliveries: u64,
    /// How often it has failed since it was enqueued or redriven.
    pub(crate) attempts: u64,
    /// How many sessions have died with it since then.
    pub(crate) deaths: u64,
    /// How many of the grants do not count: those before it was last redriven, and those after which it was not handed
    /// out.
    pub(crate) uncounted_deliveries: u64,
    pub(crate) reserve: Reserve,
    pub(crate) priority: Priority,
    /// Its group; empty if it has none.
    pub(crate) group: Bytes,
    /// Whether it has a slot of its group. [`Changes`](crate::items::changes::Changes) gives and frees slots.
    pub(crate) has_slot: bool,
    /// Of which batch it is a member.
    pub(crate) member: Option<BatchMember>,
    /// The batch whose callback it is.
    pub(crate) callback_of: Option<CallbackOf>,
    /// The token of its group's rate that its grant has taken.
    pub(crate) spent: Option<Spent>,
    pub(crate) kind: Kind,
    /// What its handlers have left for the next delivery.
    pub(crate) checkpoint: Checkpoint,
    /// How far they are.
    pub(crate) progress: Option<Box<Progress>>,
    /// Why it last failed, went back or became a dead letter.
    pub(crate) failure: Option<StoredFailure>,
    /// Its own limits, where they differ from the queue's settings.
    pub(crate) limits: Limits,
    /// Its dedupe id; empty if it has none.
    pub(crate) dedupe: Bytes,
    /// Distinguishes the item from others that have had the same dedupe id.
    pub(crate) token: Option<Token>,
    /// When it was cancelled while a session held it; zero if it was not.
    pub(crate) cancelled_millis: u64,
    /// How it ended, if it is done.
    pub(crate) end: Option<StoredEnd>,
    /// The trace context of its enqueue, as stored. Its form is not checked.
    pub(crate) trace_context: Option<Arc<str>>,
    /// When it was last granted, by the wall clock; zero if it never was.
    pub(crate) granted_millis: u64,
    /// When it last got into the queue, by the wall clock; zero if that was its enqueue.
    ready_millis: u64,
    /// When the present burst of debounced enqueues began, if that was not the item's first enqueue.
    pub(crate) burst: Option<Burst>,
    /// Fields of later versions, as stored. No other module can access them, so that a record keeps them wherever the
    /// item goes.
    unknown: Bytes,
    pub(crate) payload: Bytes,
}

/// Why an item last failed, went back or became a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The time of the failure, by the wall clock of the process that noticed it.
    pub time: SystemTime,
    /// The reason, up to 500 bytes: the error of a handler with its sources, or what happened to the delivery.
    pub reason: String,
}

impl From<&StoredFailure> for Failure {
    fn from(failure: &StoredFailure) -> Self {
        Self {
            time: unix_time(failure.millis),
            reason: failure.text.as_ref().to_owned(),
        }
    }
}

/// A failure as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredFailure {
    pub(crate) millis: u64,
    pub(crate) text: Arc<str>,
}

impl StoredFailure {
    /// Returns a failure at a wall time. A long text is cut off at the end.
    pub(crate) fn new(millis: u64, text: &str) -> Self {
        let mut end = text.len().min(MAX_FAILURE_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = text[..end].into();
        Self { millis, text }
    }
}

/// How an item left the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// It was acknowledged, completed or popped.
    Completed,
    /// It was [cancelled](crate::Queue::cancel).
    Cancelled,
    /// It was a dead letter that was [purged](crate::Queue::purge), or its queue was
    /// [cleared](crate::Queue::clear).
    Removed,
}

/// The end of an item as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredEnd {
    pub(crate) millis: u64,
    /// When the item expires.
    pub(crate) until_millis: u64,
    pub(crate) how: End,
    pub(crate) result: Bytes,
}

/// The token of an item that has its dedupe id. It distinguishes the item from others that have had the id, and says
/// how the item was staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) random: [u8; 8],
    /// The read version of the transaction that has staged the item.
    pub(crate) read_version: i64,
    /// The wall time of the enqueue.
    pub(crate) staged_millis: u64,
    /// The wall time until which the item was delayed; zero if it was queued.
    pub(crate) ready_millis: u64,
    /// The priority with which it was staged.
    pub(crate) priority: Priority,
    /// Whether it was staged as a member of a batch.
    pub(crate) is_member: bool,
}

/// The flag beside the rank in a token of an item that was staged as a member of a batch.
const MEMBER_FLAG: u8 = 0x80;

impl Token {
    pub(crate) fn to_bytes(self) -> [u8; TOKEN_BYTES] {
        let mut bytes = [0; TOKEN_BYTES];
        bytes[..8].copy_from_slice(&self.random);
        bytes[8..16].copy_from_slice(&self.read_version.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.staged_millis.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.ready_millis.to_be_bytes());
        bytes[32] = self.priority.rank() | if self.is_member { MEMBER_FLAG } else { 0 };
        bytes
    }

    pub(crate) fn parse(fields: &mut Fields<'_>) -> Result<Self, String> {
        let random = fields.array()?;
        let read_version = i64::from_be_bytes(fields.array()?);
        let staged_millis = fields.u64()?;
        let ready_millis = fields.u64()?;
        let [rank] = fields.array()?;
        Ok(Self {
            random,
            read_version,
            staged_millis,
            ready_millis,
            priority: priority([rank & !MEMBER_FLAG])?,
            is_member: rank & MEMBER_FLAG != 0,
        })
    }
}

/// Whether an item is in a reserve, as far as its record tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Reserve {
    /// It is not: if a session holds it, it was handed out.
    #[default]
    Out,
    /// Its session has taken it into its reserve, and may have handed it out since. Or it is to be handed out apart,
    /// and was not yet.
    In,
    /// A session has died that held it. It goes into no reserve before it was handed out for certain, so that only the
    /// first of its deaths may not count.
    Barred,
}

/// The token of a rate that the grant of an item has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent {
    /// The read version of the transaction that has granted the item.
    pub(crate) version: i64,
    /// After how many versions the rate let a token come back.
    pub(crate) interval: i64,
}

impl Spent {
    const BYTES: usize = 16;

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        [self.version, self.interval].map(i64::to_be_bytes).concat()
    }

    pub(crate) fn parse(field: &[u8]) -> Result<Self, String> {
        let mut fields = Fields::new(field);
        let spent = Self {
            version: i64::from_be_bytes(fields.array()?),
            interval: i64::from_be_bytes(fields.array()?),
        };
        fields.end()?;
        Ok(spent)
    }
}

/// The beginning of a burst of debounced enqueues. The burst ends when the item is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Burst {
    pub(crate) began_millis: u64,
    /// How often the item had been granted.
    pub(crate) deliveries: u64,
}

impl Burst {
    const BYTES: usize = 16;
}

/// The limits of an item, where they differ from the queue's settings. Zero stands for the setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Limits {
    pub(crate) attempts: u32,
    pub(crate) deaths: u32,
    pub(crate) deliveries: u32,
}

impl Limits {
    pub(crate) const BYTES: usize = 12;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let limits = [self.attempts, self.deaths, self.deliveries];
        for (part, limit) in bytes.chunks_mut(4).zip(limits) {
            part.copy_from_slice(&limit.to_be_bytes());
        }
        bytes
    }

    /// Parses limits of which at least one differs from the queue's.
    pub(crate) fn parse(field: &[u8]) -> Result<Self, String> {
        let mut fields = Fields::new(field);
        let limits = Self {
            attempts: fields.u32()?,
            deaths: fields.u32()?,
            deliveries: fields.u32()?,
        };
        fields.end()?;
        if limits == Self::default() {
            return Err("expected limits that differ from the queue's".to_owned());
        }
        Ok(limits)
    }
}

impl Record {
    /// Returns whether the item may be granted for a reserve. One that takes a token may not: a token is spent only for
    /// a handler.
    pub(crate) fn may_be_reserved(&self) -> bool {
        self.reserve != Reserve::Barred && self.spent.is_none()
    }

    /// Returns the record of an item that has never been granted.
    pub(crate) fn new(enqueued_millis: u64, payload: Bytes) -> Self {
        Self {
            enqueued_millis,
            payload,
            ..Self::default()
        }
    }

    /// Sets the wall time from which on the item waits in the queue.
    pub(crate) fn become_ready(&mut self, millis: u64) {
        let is_enqueue = millis == self.enqueued_millis;
        self.ready_millis = if is_enqueue { 0 } else { millis };
    }

    /// Returns the wall time since which the item waits in the queue or, if it is not there, since which it waited
    /// the last time.
    pub(crate) fn ready_millis(&self) -> u64 {
        match self.ready_millis {
            0 => self.enqueued_millis,
            ready => ready,
        }
    }

    /// Returns how often the item was granted to be handed out since it was enqueued or redriven.
    pub(crate) fn recent_deliveries(&self) -> u64 {
        self.deliveries.saturating_sub(self.uncounted_deliveries)
    }

    /// Returns when the present burst of debounced enqueues began. A new one begins `now` if the item was granted since
    /// the last one.
    pub(crate) fn burst_began(&mut self, now: u64) -> u64 {
        let began = match self.burst {
            Some(burst) if burst.deliveries == self.deliveries => burst.began_millis,
            None if self.deliveries == 0 => self.enqueued_millis,
            _ => {
                self.burst = Some(Burst {
                    began_millis: now,
                    deliveries: self.deliveries,
                });
                now
            }
        };
        // The clock by which it began may have been ahead.
        began.min(now)
    }

    /// Gives the item another value. What handlers have left belongs to the old one.
    pub(crate) fn replace_payload(&mut self, payload: Bytes) {
        self.payload = payload;
        self.checkpoint = Checkpoint::default();
        self.progress = None;
    }

    /// Resets everything that counts against a limit of the item, but not the number that identifies a delivery.
    pub(crate) fn reset_counts(&mut self) {
        self.attempts = 0;
        self.deaths = 0;
        self.uncounted_deliveries = self.deliveries;
    }
}

/// Returns the priority of a stored rank.
fn priority([rank]: [u8; 1]) -> Result<Priority, String> {
    Priority::of_rank(rank).ok_or_else(|| format!("{rank} is not the rank of a priority"))
}

fn undecodable(codec: &'static str, reason: String) -> DecodeError {
    DecodeError { codec, reason }
}
