//! Planted bugs of the transactions: rules that are broken between a function of the protocol and the rows.

use std::sync::Arc;

use conformance::checker_store::{Bugs, Recorded, Span, Write};
use microqueue::keyspace::{Bytes, KeyValue, RangeQuery};

use super::database::Database;
use super::protocol::Action;
use super::rows::{request_id, session_id};
use crate::items::keys::Keys;
use crate::items::record::NOTICE;

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mistake {
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
    NoNotice,
    /// `fulfill` does nothing while the queue is paused.
    NoNoticeInPause,
    /// `fulfill` adds no read conflict on the request that it notifies.
    NoticeNotInConflict,
    /// When `fulfill` answers the session's own request, it leaves the notice to it.
    NoticeKept,
    /// `enqueue` does not write the wake stamp.
    NoWakeByEnqueue,
}

/// The rule that is broken, if any, and the action that a transaction performs.
#[derive(Debug, Clone)]
pub(super) struct Planted {
    pub(super) mistake: Option<Mistake>,
    pub(super) keys: Arc<Keys>,
    pub(super) session: usize,
    pub(super) action: Action,
}

impl Planted {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn fulfills(&self) -> bool {
        matches!(self.action, Action::Fulfill { .. })
    }

    /// Returns whether a key is in a part of the queue.
    fn is_in(&self, part: &str, key: &[u8]) -> bool {
        let (begin, end) = self.keys.part(part);
        *begin <= *key && *key < *end
    }

    /// Changes what a transaction that reads this database has recorded.
    pub(super) fn change(&self, db: &Database, recorded: &mut Recorded) {
        let writes = &mut recorded.writes;
        match self.mistake {
            Some(Mistake::NoticeNotInConflict) if self.fulfills() => {
                // Of the requests, only those that are answered are removed.
                let is_removed = |span: &Span| writes.contains(&Write::Clear(span.clone()));
                recorded
                    .conflicts
                    .retain(|span| !self.is_in("r", &span.begin) || is_removed(span));
            }
            Some(Mistake::NoticeKept) if self.fulfills() => {
                let request = request_id(db, self.session);
                let own = self.keys.grant(session_id(self.session), &request);
                writes.retain(|write| *write != Write::Clear(Span::key(&own)));
            }
            Some(Mistake::NoWakeByEnqueue) if self.action == Action::Enqueue => {
                recorded.stamps.clear();
            }
            _ => {}
        }
    }
}

impl Bugs for Planted {
    fn hides_read(&self, key: &[u8]) -> bool {
        match self.mistake {
            Some(Mistake::HeartbeatNotInConflict) => {
                self.action == Action::DeclareDead && self.is_in("b", key)
            }
            Some(Mistake::SessionNotInConflict) => {
                let own = self.keys.sessions.state(session_id(self.session));
                self.fulfills() && self.is_in("s", key) && *key != *own
            }
            _ => false,
        }
    }

    fn hides_range(&self, begin: &[u8]) -> bool {
        let grants = self.fulfills() || self.action == Action::Take;
        self.is(Mistake::ItemsNotInConflict) && grants && self.is_in("i", begin)
    }

    fn read(&self, key: &[u8], value: Option<Bytes>) -> Option<Bytes> {
        if self.is(Mistake::NoNotice) && self.fulfills() && self.is_in("g", key) {
            // As if the request had been notified.
            return Some(Bytes::from_static(&NOTICE));
        }
        value
    }

    fn rearrange(&self, query: &RangeQuery, rows: &mut Vec<KeyValue>) {
        let begin = &query.begin.key;
        match self.mistake {
            Some(Mistake::LastItemsFirst) if self.fulfills() && self.is_in("i", begin) => {
                rows.reverse();
            }
            // Only the last look at a session reads a single row.
            Some(Mistake::RemovedUnread) if self.action == Action::Remove && query.limit == 1 => {
                rows.clear();
            }
            _ => {}
        }
        if self.action == Action::Remove && self.is_in("r", begin) {
            // The search is for the first 1,000 requests. Here it finds only one, so that others are left for a later
            // fulfillment.
            rows.truncate(1);
        }
    }
}
