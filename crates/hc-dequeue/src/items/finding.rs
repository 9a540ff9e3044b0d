//! The findings of an audit.

use std::fmt;

use microqueue::ItemId;
use microqueue::keyspace::Bytes;
use microqueue::keyspace::error::printable;

use crate::items::batch::BatchRef;
use crate::items::item_ref::{ItemRef, hex, id_to_bytes};
use crate::session::SessionId;

/// A contradiction in a queue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// A counter differs from the number of items that it counts. Repaired by adding the difference, which is the
    /// same at every version.
    #[error("counter `{counter}` is {stored}, but there are {counted} items")]
    CounterOff {
        /// The name of the counter: `queued`, `delayed`, `held` or `dead`.
        counter: &'static str,
        /// The stored number.
        stored: i64,
        /// The correct number.
        counted: i64,
    },

    /// A session that does not exist holds items or grants. Repaired by returning the items to the queue.
    #[error("session {session} holds items but does not exist")]
    NoSession {
        /// The session.
        session: SessionId,
    },

    /// A session has no heartbeat, so that no other session would ever declare it dead. Repaired by declaring it dead
    /// and returning its items; if it is alive, it opens a new session.
    #[error("session {session} has no heartbeat")]
    NoHeartbeat {
        /// The session.
        session: SessionId,
    },

    /// A heartbeat belongs to no session. Repaired by removing it.
    #[error("there is a heartbeat of session {session}, which does not exist")]
    StrayHeartbeat {
        /// The session that does not exist.
        session: SessionId,
    },

    /// A request belongs to a session that does not exist. Repaired by removing it.
    #[error("request {} belongs to a session that does not exist", IdText(request))]
    StrayRequest {
        /// The request.
        request: ItemId,
        /// The registry that has it, if that is not the one of sessions which take items without a kind.
        registry: Option<[u8; 16]>,
    },

    /// A grant lacks its first item, so that its session does not recognize it as an answer. Repaired by returning
    /// the other items to the queue.
    #[error("a grant of session {session} lacks its first item")]
    BrokenGrant {
        /// The session.
        session: SessionId,
    },

    /// An item is in two places, and would be delivered from each. Not repaired: it is unknown which of the two is
    /// right.
    #[error("item {item} is in two places")]
    Twice {
        /// The item.
        item: ItemRef,
    },

    /// An item that is delayed, or queued with another priority than 0 or in a lane, has no pointer, or one to another
    /// place, so that no reference finds the item. Repaired by writing the pointer.
    #[error("item {item} has no pointer")]
    NoPointer {
        /// The item.
        item: ItemRef,
        /// The key of the item's row.
        key: Bytes,
    },

    /// A pointer leads to no item, so that finding the item fails with `Corrupt`. Repaired by removing the pointer.
    #[error("the pointer of item {item} leads to no item")]
    StrayPointer {
        /// The item that the pointer belongs to.
        item: ItemRef,
    },

    /// The number of slots of a group differs from the number of items that have one. Repaired by adding the
    /// difference, which is the same at every version. While items do not decode, which may have slots, only a number
    /// that is too small is found.
    #[error(
        "{stored} slots of group `{}` are in use, but {counted} items have one",
        printable(group)
    )]
    SlotsOff {
        /// The group.
        group: Bytes,
        /// The stored number.
        stored: i64,
        /// The correct number.
        counted: i64,
    },

    /// An item of a group may be granted, but no session would find it; the group is empty for items without one that
    /// have come back. Repaired by telling the sessions.
    #[error(
        "group `{}` has an item that may be granted, and no notice",
        printable(group)
    )]
    NoNotice {
        /// The group.
        group: Bytes,
    },

    /// A group waits for its rate until a version, but is missing among the parked groups, so that no session would
    /// look at it then. Repaired by adding it.
    #[error(
        "group `{}` waits for its rate and is missing among the parked groups",
        printable(group)
    )]
    NotParked {
        /// The group.
        group: Bytes,
        /// The version.
        until: i64,
    },

    /// There is a group among the parked ones that does not wait for its rate until that version. Repaired by removing
    /// it.
    #[error("group `{}` is among the parked groups by mistake", printable(group))]
    StrayParked {
        /// The group.
        group: Bytes,
        /// The version.
        until: i64,
    },

    /// The number of pending members of a batch differs from the number of items and batches that are members. Repaired
    /// by adding the difference, which is the same at every version. While items or batches do not decode, which may be
    /// members, only a number that is too small is found.
    #[error("batch {batch} has {stored} pending members, but {counted} are there")]
    BatchOff {
        /// The batch.
        batch: BatchRef,
        /// The stored number.
        stored: i64,
        /// The correct number.
        counted: i64,
    },

    /// A batch is complete, but no session would find it. Repaired by telling the sessions.
    #[error("batch {batch} is complete, and has no notice")]
    NoBatchNotice {
        /// The batch.
        batch: BatchRef,
    },

    /// There are numbers of a batch that does not exist. Repaired by removing them.
    #[error("there are numbers of batch {batch}, which does not exist")]
    StrayBatch {
        /// The batch.
        batch: BatchRef,
    },

    /// A member is missing in the index of its batch, so that the batch's callback would not find it. Repaired by
    /// adding it.
    #[error("item {item} is missing among the members of batch {batch}")]
    NoMember {
        /// The batch.
        batch: BatchRef,
        /// The item.
        item: ItemRef,
        /// The key of the item's row.
        key: Bytes,
    },

    /// There is a member of a batch that does not exist, and has not ended lately. Repaired by removing the entry; the
    /// item stays.
    #[error("item {item} is among the members of batch {batch}, which does not exist")]
    StrayMember {
        /// The batch.
        batch: BatchRef,
        /// The item.
        item: ItemRef,
    },

    /// A done item is missing from the index by expiry time, so that it would never be removed. Repaired by adding
    /// it.
    #[error("done item {item} is missing from the index by expiry time")]
    NoKeepTime {
        /// The item.
        item: ItemRef,
        /// When the item expires, in milliseconds since the Unix epoch.
        until_millis: u64,
    },

    /// An entry of the index by expiry time belongs to no done item. Repaired by removing the entry.
    #[error("item {item} is in the index by expiry time but is not a done item")]
    StrayKeepTime {
        /// The item that the entry belongs to.
        item: ItemRef,
        /// The time of the entry, in milliseconds since the Unix epoch.
        until_millis: u64,
    },

    /// An item has a dedupe id, but the rows of the id do not belong to the item, so that the id does not refuse
    /// another item. Repaired by writing the rows, unless they belong to another item.
    #[error("item {item} does not hold its dedupe id `{}`", printable(dedupe))]
    NoDedupe {
        /// The item.
        item: ItemRef,
        /// The dedupe id.
        dedupe: Bytes,
    },

    /// The rows of a dedupe id, or the one of them that exists, belong to no item with that id, so that they would
    /// refuse items forever. Repaired by removing them.
    #[error("dedupe id `{}` is held by no item", printable(dedupe))]
    StrayDedupe {
        /// The dedupe id.
        dedupe: Bytes,
        /// The item that the rows name, if any.
        named: Option<ItemRef>,
    },

    /// A cancel stamp belongs to a session that does not exist. Repaired by removing it.
    #[error("there is a cancel stamp of session {session}, which does not exist")]
    StrayCancel {
        /// The session.
        session: SessionId,
    },

    /// Kinds are stored for a session that does not exist. Repaired by removing them.
    #[error("there are kinds of session {session}, which does not exist")]
    StrayKinds {
        /// The session.
        session: SessionId,
    },

    /// A schedule is missing from the index by next time, so that it would never fire again. Repaired by adding it.
    #[error("schedule `{schedule}` is missing from the index by next time")]
    NoFireTime {
        /// The name of the schedule.
        schedule: String,
        /// When it fires next, in milliseconds since the Unix epoch.
        time_millis: u64,
    },

    /// An entry of the index by next time differs from the schedule's next time. It may remain after a schedule that
    /// did not decode was removed. Repaired by removing the entry.
    #[error("the index by next time has a wrong entry of schedule `{schedule}`")]
    StrayFireTime {
        /// The name of the schedule in the entry.
        schedule: String,
        /// The time of the entry, in milliseconds since the Unix epoch.
        time_millis: u64,
    },

    /// A schedule is missing in the index by owner, so that its owner would never change or remove it. Repaired by
    /// adding it.
    #[error("schedule `{schedule}` is missing among those of owner `{owner}`")]
    NoOwnedSchedule {
        /// The name of the schedule.
        schedule: String,
        /// Its owner.
        owner: String,
    },

    /// An entry of the index by owner names a schedule that does not exist, or belongs to another owner or none. It may
    /// remain after a schedule that did not decode was removed. Repaired by removing the entry.
    #[error("schedule `{schedule}` is among those of owner `{owner}` by mistake")]
    StrayOwnedSchedule {
        /// The name of the schedule in the entry.
        schedule: String,
        /// The owner in the entry.
        owner: String,
    },

    /// A schedule fires no more although it should: this version of the library does not understand its expression or
    /// its time zone, its times cannot be determined, or it has no next time although its expression has one. Not
    /// repaired: [schedule](crate::Queue::schedule) it again.
    #[error("schedule `{schedule}` does not fire: {reason}")]
    StoppedSchedule {
        /// The name of the schedule.
        schedule: String,
        /// Why.
        reason: String,
    },

    /// A row does not decode. Not repaired: a newer version of this library may understand it.
    #[error("the row under key {} does not decode", printable(key))]
    Undecodable {
        /// The key of the row.
        key: Bytes,
    },

    /// A part of the queue has more findings than an audit lists. Run the repair again to repair them.
    #[error("part `{part}` has more findings than are listed")]
    More {
        /// The part, named by the second element of its keys.
        part: &'static str,
    },
}

/// Something that an audit has not checked, because the queue has too many items. It says nothing about the queue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unchecked {
    /// A part of the queue has more items than one transaction can count in time.
    #[error("counter `{counter}` was not checked: there are too many items")]
    Counter {
        /// The counter, `slots` for those of all groups, or `batches` for members.
        counter: &'static str,
    },

    /// Sessions hold more than the 100,000 items that an audit compares with each other. An item that two sessions
    /// hold may have been missed.
    #[error("held items were not compared with each other: sessions hold too many")]
    HeldItems,
}

/// The text of the id of a request: its bytes, in hexadecimal digits.
struct IdText<'a>(&'a ItemId);

impl fmt::Display for IdText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&id_to_bytes(self.0), f)
    }
}

impl Finding {
    /// Returns the kind of the finding, such as `counter-off`: the name of the variant in lower case with hyphens.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::CounterOff { .. } => "counter-off",
            Self::NoSession { .. } => "no-session",
            Self::NoHeartbeat { .. } => "no-heartbeat",
            Self::StrayHeartbeat { .. } => "stray-heartbeat",
            Self::StrayRequest { .. } => "stray-request",
            Self::BrokenGrant { .. } => "broken-grant",
            Self::Twice { .. } => "twice",
            Self::NoPointer { .. } => "no-pointer",
            Self::StrayPointer { .. } => "stray-pointer",
            Self::SlotsOff { .. } => "slots-off",
            Self::NoNotice { .. } => "no-notice",
            Self::NotParked { .. } => "not-parked",
            Self::StrayParked { .. } => "stray-parked",
            Self::BatchOff { .. } => "batch-off",
            Self::NoBatchNotice { .. } => "no-batch-notice",
            Self::StrayBatch { .. } => "stray-batch",
            Self::NoMember { .. } => "no-member",
            Self::StrayMember { .. } => "stray-member",
            Self::NoKeepTime { .. } => "no-keep-time",
            Self::StrayKeepTime { .. } => "stray-keep-time",
            Self::NoDedupe { .. } => "no-dedupe",
            Self::StrayDedupe { .. } => "stray-dedupe",
            Self::StrayCancel { .. } => "stray-cancel",
            Self::StrayKinds { .. } => "stray-kinds",
            Self::NoFireTime { .. } => "no-fire-time",
            Self::StrayFireTime { .. } => "stray-fire-time",
            Self::NoOwnedSchedule { .. } => "no-owned-schedule",
            Self::StrayOwnedSchedule { .. } => "stray-owned-schedule",
            Self::StoppedSchedule { .. } => "stopped-schedule",
            Self::Undecodable { .. } => "undecodable",
            Self::More { .. } => "more",
        }
    }

    /// Returns whether this finding equals `cause`, or is a consequence that disappears when `cause` is repaired.
    pub(crate) fn follows_from(&self, cause: &Self) -> bool {
        match (cause, self) {
            (Self::NoPointer { item, .. }, Self::StrayPointer { item: of })
            | (
                Self::NoPointer { item, .. },
                Self::StrayDedupe {
                    named: Some(of), ..
                },
            ) => item == of,
            (Self::NoDedupe { dedupe, .. }, Self::StrayDedupe { dedupe: of, .. }) => dedupe == of,
            // Items that such a session holds are not found.
            (Self::NoSession { .. }, Self::StrayDedupe { .. }) => true,
            (
                Self::NoSession { session },
                Self::StrayCancel { session: of } | Self::StrayKinds { session: of },
            ) => session == of,
            _ => self == cause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_what_contradicts_what() {
        let off = Finding::CounterOff {
            counter: "dead",
            stored: 3,
            counted: 2,
        };
        assert_eq!(off.kind(), "counter-off");
        assert_eq!(
            off.to_string(),
            "counter `dead` is 3, but there are 2 items"
        );
        let dedupe = Finding::StrayDedupe {
            dedupe: Bytes::from_static(b"a\xff"),
            named: None,
        };
        assert_eq!(dedupe.to_string(), "dedupe id `a\\xff` is held by no item");
    }
}
