//! The parts of a queue: which rows its subspace has, and what they hold.

use std::cmp::Ordering;

use microqueue::keyspace::parts::Part as _;
use microqueue::keyspace::tuple::Versionstamp;
use microqueue::keyspace::{Subspace, parts};

use crate::items::priority::Priority;

parts! {
    /// The parts of a queue.
    pub(crate) enum Part {
        Batches "B" "batch",
        EndedBatches "Bd" "batch that has ended",
        Members "Bm" "member of a batch",
        BatchNotices "Bs" "notice of a batch",
        CancelStamps "a" "cancel stamp",
        Heartbeats "b" "heartbeat",
        Counters "c" "counter",
        Dead "d" "dead letter",
        Schedules "e" "schedule",
        OwnedSchedules "eo" "schedule of an owner",
        FireTimes "f" "time of a schedule",
        Grants "g" "grant",
        Held "h" "held item",
        Parked "hp" "parked group",
        Notices "hs" "notice of a lane",
        QueuedAbove "ht" "queued item of a priority above 0",
        Queued "i" "queued item",
        QueuedBelow "j" "queued item of a priority below 0",
        DedupeIds "k" "token of a dedupe id",
        Lanes "l" "queued item in a lane",
        Settings "m" "settings",
        DedupeItems "n" "item of a dedupe id",
        Pointers "o" "pointer to an item",
        Pause "p" "pause",
        KindRequests "q" "request for items of some kinds",
        Requests "r" "request",
        Sessions "s" "session",
        Delayed "t" "delayed item",
        SessionKinds "u" "kinds of a session",
        Wake "w" "wake stamp",
        Done "x" "done item",
        RetainedIds "y" "retained dedupe id",
        KeepTimes "z" "time until which a done item is kept",
    }
}

parts! {
    /// What a lane has besides its items, by the element after its group.
    pub(crate) enum LanePart {
        Slots "a" "slots in use",
        Gate "f" "gate of a group",
        Limits "k" "limits of a group",
        Pause "l" "pause of a group",
        Mark "m" "mark of changed default limits",
        ParkedUntil "p" "version until which a group is parked",
        Tokens "v" "tokens of a group",
    }
}

parts! {
    /// What a batch has besides its own row, by the element after its id.
    pub(crate) enum BatchPart {
        Completed "c" "completed members of a batch",
        Dead "d" "dead letters of a batch",
        Open "o" "mark of an open batch",
        Pending "p" "pending members of a batch",
        Cancelled "x" "cancelled members of a batch",
    }
}

/// Defines an enum whose `ALL` has each of its variants, at the place that is its number.
macro_rules! listed {
    ($(#[$attribute:meta])* $visibility:vis enum $Name:ident { $($variant:ident,)* }) => {
        $(#[$attribute])*
        $visibility enum $Name {
            $($variant,)*
        }

        impl $Name {
            $visibility const ALL: [Self; [$(stringify!($variant)),*].len()] =
                [$(Self::$variant),*];
        }
    };
}
pub(crate) use listed;

/// Returns what a key is in a queue with this prefix, in words: `queued item`, for example. Returns `None` if no key
/// of a queue begins so.
///
/// The words are for people, and may change. To look at a key takes no read and no open queue.
///
/// ```
/// use hc_dequeue::describe_key;
/// use hc_dequeue::keyspace::Subspace;
///
/// let jobs = Subspace::from("jobs");
/// assert_eq!(describe_key(&jobs, &jobs.pack(&"p")), Some("pause"));
/// assert_eq!(describe_key(&jobs, &jobs.pack(&"P")), None);
/// ```
#[must_use]
pub fn describe_key(queue: &Subspace, key: &[u8]) -> Option<&'static str> {
    let part = Part::of(queue, key)?;
    let rows = queue.subspace(&part);
    match part {
        Part::Lanes if !is_item_of_lane(&rows, key) => {
            let (_, name): (Vec<u8>, String) = rows.unpack(key).ok()?;
            LanePart::named(&name).map(LanePart::text)
        }
        Part::Batches if rows.unpack::<Vec<u8>>(key).is_err() => {
            let (_, name): (Vec<u8>, String) = rows.unpack(key).ok()?;
            BatchPart::named(&name).map(BatchPart::text)
        }
        _ => Some(part.text()),
    }
}

fn is_item_of_lane(lanes: &Subspace, key: &[u8]) -> bool {
    lanes
        .unpack::<(Vec<u8>, u64, Versionstamp, u64)>(key)
        .is_ok()
}

impl Part {
    /// Returns the counter that counts the items in the part, if they are items that are not done.
    pub(crate) const fn counter(self) -> Option<Counter> {
        match self {
            Self::QueuedAbove | Self::Queued | Self::QueuedBelow | Self::Lanes => {
                Some(Counter::Queued)
            }
            Self::Delayed => Some(Counter::Delayed),
            Self::Held | Self::Grants => Some(Counter::Held),
            Self::Dead => Some(Counter::Dead),
            Self::Batches
            | Self::EndedBatches
            | Self::Members
            | Self::BatchNotices
            | Self::CancelStamps
            | Self::Heartbeats
            | Self::Counters
            | Self::Schedules
            | Self::OwnedSchedules
            | Self::FireTimes
            | Self::Parked
            | Self::Notices
            | Self::DedupeIds
            | Self::Settings
            | Self::DedupeItems
            | Self::Pointers
            | Self::Pause
            | Self::Requests
            | Self::KindRequests
            | Self::Sessions
            | Self::SessionKinds
            | Self::Wake
            | Self::Done
            | Self::RetainedIds
            | Self::KeepTimes => None,
        }
    }

    /// Returns the part with the queued items of a priority that are in no lane.
    pub(crate) fn of_priority(priority: Priority) -> Self {
        match priority.get().cmp(&0) {
            Ordering::Greater => Self::QueuedAbove,
            Ordering::Equal => Self::Queued,
            Ordering::Less => Self::QueuedBelow,
        }
    }

    /// Returns the parts with items that are not done, in the order in which an audit looks at them: if two rows claim
    /// an item or a dedupe id, the first one has it.
    pub(crate) fn with_items() -> impl Iterator<Item = Self> {
        Counter::of_items().flat_map(Self::counted_by)
    }

    /// Returns the parts with the items that a counter counts.
    pub(crate) fn counted_by(counter: Counter) -> impl Iterator<Item = Self> {
        let parts = Self::ALL.iter().copied();
        parts.filter(move |part| part.counter() == Some(counter))
    }

    /// Returns the parts with items that may have slots of their groups: items outside lanes have none.
    pub(crate) fn with_slots() -> impl Iterator<Item = Self> {
        let outside = [Self::QueuedAbove, Self::Queued, Self::QueuedBelow];
        Self::with_items().filter(move |part| !outside.contains(part))
    }

    /// Returns the parts with items that references find by a pointer, in the order in which an audit looks at them.
    pub(crate) fn with_pointers() -> impl Iterator<Item = Self> {
        let waiting = [Counter::Delayed, Counter::Queued];
        let parts = waiting.into_iter().flat_map(Self::counted_by);
        parts.filter(|part| *part != Self::Queued)
    }
}

listed! {
    /// A counter, changed by atomic additions.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Counter {
        Queued,
        Delayed,
        Held,
        Dead,
        Completed,
        Cancelled,
        Removed,
    }
}

impl Counter {
    /// Returns the counters of existing items.
    pub(crate) fn of_items() -> impl Iterator<Item = Self> {
        let all = Self::ALL.into_iter();
        all.filter(|counter| Part::counted_by(*counter).next().is_some())
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Delayed => "delayed",
            Self::Held => "held",
            Self::Dead => "dead",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Removed => "removed",
        }
    }
}
