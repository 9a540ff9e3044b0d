//! PlantedBug bugs of the transactions: rules that are broken between a function of the protocol and the rows.

use std::sync::Arc;

use conformance::checker_store::{Bugs, RecordedAccess, Span, Write};
use microqueue::keyspace::{Bytes, KeyValue, RangeQuery};

use super::database::Database;
use super::protocol::Action;
use super::rows::{request_id, session_id, unknown_key};
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::priority::Priority;
use crate::items::record::SIGNAL;

/// A rule of a transaction that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// `Sessions::declare_dead` reads the heartbeat by snapshot.
    HeartbeatNotInConflict,
    /// `fulfill` reads the session of a request by snapshot.
    SessionNotInConflict,
    /// `fulfill` and `take` add no read conflict on the items.
    ItemsNotInConflict,
    /// `fulfill` pairs the last items instead of the first.
    LastItemsFirst,
    /// `give_back` does not compare the number of the grant when an item is completed.
    GrantNumberIgnored,
    /// `remove_session` does not see the items and grants of the session.
    RemovedUnread,
    /// `fulfill` does not notify the next request that it is the first.
    NoSignal,
    /// `fulfill` does nothing while the queue is paused.
    NoSignalInPause,
    /// `fulfill` adds no read conflict on the request that it notifies.
    SignalNotInConflict,
    /// When `fulfill` answers the session's own request, it leaves the signal to it.
    SignalKept,
    /// `enqueue` does not write the wake stamp.
    NoWakeByEnqueue,
    /// A notice of a lane without anything to grant stays.
    NoticeKept,
    /// The first items end at one of a kind that the session does not take.
    UnknownKindEnds,
    /// A check takes an item of a kind that the session does not take for one that it may be granted.
    UnknownKindGrantable,
    /// `remove_requests` does not notify the first request that is left in another registry.
    NoSignalFromAfar,
    /// `remove_requests` adds no read conflict on another registry in which no request is left.
    RegistryNotInConflict,
}

/// The rule that is broken, if any, and the action that a transaction performs.
#[derive(Debug, Clone)]
pub(super) struct PlantedBug {
    pub(super) bug: Option<Bug>,
    pub(super) keys: Arc<Keys>,
    pub(super) session: usize,
    pub(super) action: Action,
}

impl PlantedBug {
    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn fulfills(&self) -> bool {
        matches!(self.action, Action::Fulfill { .. })
    }

    fn removes(&self) -> bool {
        matches!(self.action, Action::Remove { .. })
    }

    /// Returns whether a key is in a part of the queue.
    fn is_in(&self, part: Part, key: &[u8]) -> bool {
        let (begin, end) = self.keys.part(part);
        *begin <= *key && *key < *end
    }

    /// Changes what a transaction that reads this database has recorded.
    pub(super) fn change(&self, db: &Database, recorded: &mut RecordedAccess) {
        let writes = &mut recorded.writes;
        match self.bug {
            Some(Bug::SignalNotInConflict) if self.fulfills() => {
                // Of the requests, only those that are answered are removed.
                let is_removed = |span: &Span| writes.contains(&Write::Clear(span.clone()));
                recorded
                    .conflicts
                    .retain(|span| !self.is_in(Part::Requests, &span.begin) || is_removed(span));
            }
            Some(Bug::SignalKept) if self.fulfills() => {
                let request = request_id(db, self.session);
                let own = self.keys.grant(session_id(self.session), &request);
                writes.retain(|write| *write != Write::Clear(Span::key(&own)));
            }
            Some(Bug::NoWakeByEnqueue) if self.action == Action::Enqueue => {
                recorded.stamps.clear();
            }
            Some(Bug::NoSignalFromAfar) if self.removes() => {
                writes.retain(|write| !matches!(write, Write::Set(..)));
            }
            Some(Bug::RegistryNotInConflict) if self.removes() => {
                let is_removed = |span: &Span| writes.contains(&Write::Clear(span.clone()));
                recorded
                    .conflicts
                    .retain(|span| !self.is_in(Part::Requests, &span.begin) || is_removed(span));
            }
            Some(Bug::NoticeKept) => {
                let atomics = &mut recorded.atomics;
                atomics.retain(|(_, key, _)| !self.is_in(Part::Notices, key));
            }
            _ => {}
        }
    }
}

impl Bugs for PlantedBug {
    fn hides_read(&self, key: &[u8]) -> bool {
        match self.bug {
            Some(Bug::HeartbeatNotInConflict) => {
                self.action == Action::DeclareDead && self.is_in(Part::Heartbeats, key)
            }
            Some(Bug::SessionNotInConflict) => {
                let own = self.keys.sessions.state(session_id(self.session));
                self.fulfills() && self.is_in(Part::Sessions, key) && *key != *own
            }
            _ => false,
        }
    }

    fn hides_range(&self, begin: &[u8]) -> bool {
        let grants = self.fulfills() || matches!(self.action, Action::Take(_));
        self.is(Bug::ItemsNotInConflict) && grants && self.is_in(Part::Queued, begin)
    }

    fn read(&self, key: &[u8], value: Option<Bytes>) -> Option<Bytes> {
        if self.is(Bug::NoSignal) && self.fulfills() && self.is_in(Part::Grants, key) {
            // As if the request had been notified.
            return Some(Bytes::from_static(&SIGNAL));
        }
        value
    }

    fn rearrange(&self, query: &RangeQuery, rows: &mut Vec<KeyValue>) {
        let begin = &query.begin.key;
        match self.bug {
            Some(Bug::LastItemsFirst) if self.fulfills() && self.is_in(Part::Parked, begin) => {
                rows.reverse();
            }
            Some(Bug::UnknownKindEnds) => {
                let unknown = unknown_key(&self.keys);
                let (_, end) = self.keys.queued(Priority::DEFAULT).subspace().range();
                rows.retain(|row| *row.key() <= *unknown || *row.key() >= *end);
            }
            // Only the last check of a session reads a single row.
            Some(Bug::RemovedUnread) if self.removes() && query.limit == 1 => {
                rows.clear();
            }
            _ => {}
        }
        if self.action == (Action::Remove { from_afar: false }) && self.is_in(Part::Requests, begin)
        {
            // The search is for the first 1,000 requests. Here it finds only one, so that others are left for a later
            // fulfillment.
            rows.truncate(1);
        }
    }
}
