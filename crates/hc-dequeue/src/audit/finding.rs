//! What an audit finds.

use microqueue::ItemId;
use microqueue::keyspace::Bytes;

/// Something in a queue that contradicts something else in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// A counter is not the number of items that it counts. Repaired by adding the difference, which
    /// is the same at every version.
    CounterOff {
        /// The counter: `queued`, `delayed`, `held` or `dead`.
        counter: &'static str,
        /// What it says.
        stored: i64,
        /// What it should say.
        counted: i64,
    },

    /// A part of the queue has more items than one transaction has time to count.
    Uncounted {
        /// The counter that was not checked.
        counter: &'static str,
    },

    /// Items are held, or granted, by a session that does not exist. Repaired by returning them to
    /// the queue.
    NoSession {
        /// The session.
        session: [u8; 16],
    },

    /// A session has no heartbeat, so that no other session would ever find it dead. Repaired by declaring
    /// it dead and returning its items: if it lives after all, it opens a new session.
    NoHeartbeat {
        /// The session.
        session: [u8; 16],
    },

    /// A heartbeat belongs to no session. Repaired by removing it.
    StrayHeartbeat {
        /// The session that is not there.
        session: [u8; 16],
    },

    /// A request belongs to a session that does not live. Repaired by removing it.
    StrayRequest {
        /// The request.
        request: ItemId,
    },

    /// A grant lacks its first item, so that its session takes it for no answer. Repaired by returning
    /// the others to the queue.
    BrokenGrant {
        /// The session.
        session: [u8; 16],
    },

    /// An item is in two places at once, and would be delivered from each. Not repaired: nothing shows which
    /// of the two is right.
    Twice {
        /// The item.
        id: ItemId,
    },

    /// A delayed item has no pointer, or one that leads to another time: no reference finds the item.
    /// Repaired by writing the pointer.
    NoPointer {
        /// The item.
        id: ItemId,
        /// Until when it is delayed, in milliseconds since the Unix epoch.
        ready_millis: u64,
    },

    /// A pointer leads to no delayed item: a look for the item fails as corrupt. Repaired by removing the
    /// pointer.
    StrayPointer {
        /// The item that it is of.
        id: ItemId,
    },

    /// An item that is done and kept is not in the index of the times until which items are kept: it would
    /// be kept for good. Repaired by adding it.
    NoKeepTime {
        /// The item.
        id: ItemId,
        /// Until when it is to be kept, in milliseconds since the Unix epoch.
        until_millis: u64,
    },

    /// An entry of the index of the times until which items are kept is of no item that is done. Repaired
    /// by removing it.
    StrayKeepTime {
        /// The item that it is of.
        id: ItemId,
        /// The time, in milliseconds since the Unix epoch.
        until_millis: u64,
    },

    /// An item has a dedupe id whose rows are not its own: the id does not refuse another item. Repaired by
    /// writing the rows, unless they are those of another item.
    NoDedupe {
        /// The item.
        id: ItemId,
        /// The dedupe id.
        dedupe: Bytes,
    },

    /// The rows of a dedupe id, or the one that is there, are those of no item that has the id: it would
    /// refuse items for good. Repaired by removing them.
    StrayDedupe {
        /// The dedupe id.
        dedupe: Bytes,
        /// The item that they name, if they name one.
        named: Option<ItemId>,
    },

    /// A cancel stamp belongs to a session that does not exist. Repaired by removing it.
    StrayCancel {
        /// The session.
        session: [u8; 16],
    },

    /// A schedule is not in the index of the times at which schedules fire: it would never fire again.
    /// Repaired by adding it.
    NoFireTime {
        /// The name of the schedule.
        schedule: String,
        /// When it fires next, in milliseconds since the Unix epoch.
        time_millis: u64,
    },

    /// An entry of the index of the times at which schedules fire is not the next time of a schedule. It may
    /// be left of one that did not decode and was removed. Repaired by removing the entry.
    StrayFireTime {
        /// The name of the schedule that it is of.
        schedule: String,
        /// The time, in milliseconds since the Unix epoch.
        time_millis: u64,
    },

    /// A row does not decode. Not repaired: a newer version of this library may know what it is.
    Undecodable {
        /// Its key.
        key: Bytes,
    },

    /// A part of the queue has more findings than an audit lists. Repaired by the next repair.
    More {
        /// The part: the second element of its keys.
        part: &'static str,
    },
}

impl Finding {
    /// Returns whether another finding is the same, or this follows from it and is gone once that is repaired.
    pub(super) fn follows_from(&self, cause: &Self) -> bool {
        match (cause, self) {
            (Self::NoPointer { id, .. }, Self::StrayPointer { id: of })
            | (
                Self::NoPointer { id, .. },
                Self::StrayDedupe {
                    named: Some(of), ..
                },
            ) => id == of,
            (Self::NoDedupe { dedupe, .. }, Self::StrayDedupe { dedupe: of, .. }) => dedupe == of,
            // What it holds is not found.
            (Self::NoSession { .. }, Self::StrayDedupe { .. }) => true,
            (Self::NoSession { session }, Self::StrayCancel { session: of }) => session == of,
            _ => self == cause,
        }
    }
}
