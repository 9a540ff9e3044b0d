//! The transactions of the protocol, each named after the function of the crate that it represents.
//!
//! They return the staged writes, or `None` if they find nothing to do.

use super::database::{
    ABSENT, ALIVE, DEAD, Database, FIRST, ITEMS, Key, NOTICE, PRESENT, SESSIONS, STAMP, Staged,
    Transaction,
};

/// A planted bug: a rule of the protocol that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mistake {
    /// `reclaim::declare_dead` reads the heartbeat by snapshot.
    HeartbeatNotInConflict,
    /// `protocol::fulfill` reads the session of a request by snapshot.
    SessionNotInConflict,
    /// `protocol::fulfill` and `protocol::take` add no read conflict on the items.
    ItemsNotInConflict,
    /// `protocol::fulfill` pairs the last items instead of the first.
    LastItemsFirst,
    /// `delivery::ack` does not compare the number of the grant.
    GrantNumberIgnored,
    /// `reclaim::remove_session` does not read the items and grants of the session.
    RemovedUnread,
    /// `protocol::fulfill` does not notify the next request that it is the first.
    NoNotice,
    /// `protocol::fulfill` does nothing while the queue is paused.
    NoNoticeInPause,
    /// `protocol::fulfill` adds no read conflict on the request that it notifies.
    NoticeNotInConflict,
    /// When `protocol::fulfill` answers the session's own request, it leaves the notice to it.
    NoticeKept,
    /// `enqueue` does not write the wake stamp.
    NoWakeByEnqueue,
}

/// The rules of a run of the protocol.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// How many items a request wants.
    pub(super) wanted: usize,
    /// The rule that is broken.
    pub(super) mistake: Option<Mistake>,
}

impl Rules {
    /// Returns whether this rule is broken.
    pub(super) fn breaks(self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Reads the queued items, in the order in which they are to be granted.
    fn queued(self, tr: &mut Transaction<'_>) -> Vec<(usize, u8)> {
        let mut items: Vec<_> = (0..ITEMS)
            .map(|item| (item, tr.snapshot(Key::Item(item))))
            .filter(|(_, number)| *number != ABSENT)
            .collect();
        if self.breaks(Mistake::LastItemsFirst) {
            items.reverse();
        }
        items
    }

    /// Moves an item from the queue to those that a session holds.
    fn hold(self, tr: &mut Transaction<'_>, session: usize, (item, number): (usize, u8)) {
        if !self.breaks(Mistake::ItemsNotInConflict) {
            tr.conflict(Key::Item(item));
        }
        tr.clear(Key::Item(item));
        tr.set(Key::Held(session, item), number);
    }
}

/// `enqueue`: writes blindly, and writes the wake stamp.
pub(super) fn enqueue(db: &Database, rules: Rules, item: usize) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    tr.set(Key::Item(item), 1);
    if !rules.breaks(Mistake::NoWakeByEnqueue) {
        tr.set(Key::Wake, PRESENT);
    }
    tr.staged()
}

/// `pause`.
pub(super) fn pause(db: &Database) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    tr.set(Key::Pause, PRESENT);
    tr.staged()
}

/// `resume`: writes the wake stamp, too.
pub(super) fn resume(db: &Database) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    tr.clear(Key::Pause);
    tr.set(Key::Wake, PRESENT);
    tr.staged()
}

/// `session::open`: writes blindly.
pub(super) fn open(db: &Database, me: usize) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    tr.set(Key::Session(me), ALIVE);
    tr.set(Key::Heartbeat(me), PRESENT);
    tr.staged()
}

/// `session::beat`. Returns `None` if the session is dead.
pub(super) fn beat(db: &Database, me: usize) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    tr.get(Key::Heartbeat(me));
    if tr.get(Key::Session(me)) == ALIVE {
        tr.set(Key::Heartbeat(me), PRESENT);
    }
    tr.staged()
}

/// `protocol::take`: the fast path, if no request is registered.
pub(super) fn take(db: &Database, rules: Rules, me: usize) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    let is_alive = tr.get(Key::Session(me)) == ALIVE;
    if !is_alive || tr.get(Key::Pause) != ABSENT {
        return None;
    }
    let mut registered = (0..SESSIONS).map(|session| tr.get(Key::Request(session)));
    if registered.any(|rank| rank != ABSENT) {
        return None;
    }
    for item in rules.queued(&mut tr).into_iter().take(rules.wanted) {
        rules.hold(&mut tr, me, item);
    }
    tr.staged()
}

/// `protocol::register`.
pub(super) fn register(db: &Database, me: usize) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    if tr.get(Key::Session(me)) == ALIVE {
        tr.set(Key::Request(me), STAMP);
    }
    tr.staged()
}

/// The items that a fulfillment takes without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taking {
    /// Items for its own session, after all requests.
    Last,
    /// Nothing for its own session.
    ForOthers,
    /// Nothing for any session, with or without a request.
    Nothing,
}

/// `protocol::fulfill`: pairs the first requests with the first items, clears requests of dead sessions that it
/// reads, and notifies the next request that it is the first. The session's own request gets no grant: the session
/// learns its items from the commit, and the notice to it is cleared. A demand without a request comes last. While
/// the queue is paused, or if the session hands over, it acts as if there were no items.
pub(super) fn fulfill(db: &Database, rules: Rules, me: usize, taking: Taking) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    let is_paused = tr.get(Key::Pause) != ABSENT;
    if is_paused && rules.breaks(Mistake::NoNoticeInPause) {
        return None;
    }
    let takes_last = taking == Taking::Last && tr.get(Key::Session(me)) == ALIVE;
    let requests = requests(&mut tr, rules);
    let mut unanswered = requests.len() + usize::from(takes_last);
    let mut queued = rules.queued(&mut tr);
    queued.retain(|_| !is_paused && taking != Taking::Nothing);
    let mut items = queued.into_iter();
    for (session, life) in requests {
        unanswered -= 1;
        if life != ALIVE {
            tr.conflict(Key::Request(session));
            tr.clear(Key::Request(session));
            continue;
        }
        if items.len() == 0 {
            if session != me && !rules.breaks(Mistake::NoNotice) {
                notify_first(&mut tr, rules, session);
            }
            break;
        }
        tr.conflict(Key::Request(session));
        tr.clear(Key::Request(session));
        // Every request gets an item before any request gets all that it wants.
        let share = (items.len() - 1) / (unanswered + 1) + 1;
        let mut grant = 0;
        for item in items.by_ref().take(share.min(rules.wanted)) {
            grant |= 1 << item.0;
            rules.hold(&mut tr, session, item);
        }
        if session != me {
            tr.set(Key::Grant(session), grant);
        } else if !rules.breaks(Mistake::NoticeKept) {
            tr.clear(Key::Grant(session));
        }
    }
    if takes_last {
        for item in items.take(rules.wanted) {
            rules.hold(&mut tr, me, item);
        }
    }
    tr.staged()
}

/// Reads the sessions that have requests, in the order of the requests, and whether they are alive.
fn requests(tr: &mut Transaction<'_>, rules: Rules) -> Vec<(usize, u8)> {
    let mut requests: Vec<_> = (0..SESSIONS)
        .map(|session| (tr.snapshot(Key::Request(session)), session))
        .filter(|(rank, _)| *rank != ABSENT)
        .collect();
    requests.sort_unstable();
    let mut life = |session| {
        if rules.breaks(Mistake::SessionNotInConflict) {
            tr.snapshot(Key::Session(session))
        } else {
            tr.get(Key::Session(session))
        }
    };
    let sessions = requests.into_iter().map(|(_, session)| session);
    sessions.map(|session| (session, life(session))).collect()
}

/// Notifies a request that it is the first, unless that was done before.
fn notify_first(tr: &mut Transaction<'_>, rules: Rules, session: usize) {
    if tr.snapshot(Key::Grant(session)) == ABSENT {
        if !rules.breaks(Mistake::NoticeNotInConflict) {
            tr.conflict(Key::Request(session));
        }
        tr.set(Key::Grant(session), NOTICE);
    }
}

/// `protocol::collect`: moves the items out of the grant, so that it writes them. If the session asks again, the same
/// transaction registers its next request, whether the session is alive or not.
pub(super) fn collect(db: &Database, me: usize, asks: bool) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    let grant = tr.get(Key::Grant(me));
    for item in (0..ITEMS).filter(|item| grant & (1 << item) != 0) {
        let held = Key::Held(me, item);
        let number = tr.get(held);
        if number != ABSENT {
            tr.set(held, number);
        }
    }
    tr.clear(Key::Grant(me));
    if asks {
        tr.set(Key::Request(me), STAMP);
    }
    tr.staged()
}

/// `protocol::withdraw`.
pub(super) fn withdraw(db: &Database, me: usize) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    tr.get(Key::Grant(me));
    if tr.get(Key::Request(me)) != ABSENT {
        tr.clear(Key::Request(me));
        tr.clear(Key::Grant(me));
    }
    tr.staged()
}

/// `delivery::ack`, in the transaction that gives the item its effect. Returns `None` if the delivery is lost.
pub(super) fn ack(
    db: &Database,
    rules: Rules,
    me: usize,
    item: usize,
    number: u8,
) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    let held = tr.get(Key::Held(me, item));
    let is_lost = held != number && !rules.breaks(Mistake::GrantNumberIgnored);
    if held == ABSENT || is_lost {
        return None;
    }
    tr.clear(Key::Held(me, item));
    let effects = tr.get(Key::Effect(item));
    tr.set(Key::Effect(item), effects + 1);
    tr.staged()
}

/// `delivery::give_back`.
pub(super) fn give_back(db: &Database, me: usize, item: usize) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    put_back(&mut tr, me, item);
    tr.staged()
}

/// `reclaim::declare_dead`, of a session whose last heartbeat is old.
pub(super) fn declare_dead(db: &Database, rules: Rules, session: usize) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    if rules.breaks(Mistake::HeartbeatNotInConflict) {
        tr.snapshot(Key::Heartbeat(session));
    } else {
        tr.get(Key::Heartbeat(session));
    }
    if tr.get(Key::Session(session)) == ALIVE {
        tr.set(Key::Session(session), DEAD);
    }
    tr.staged()
}

/// `reclaim::reclaim_items`, for one item. The function returns several items in one transaction, with a read conflict
/// on each: this is equivalent to this step for one item after another, with nothing in between.
pub(super) fn return_item(db: &Database, session: usize, item: usize) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    if tr.get(Key::Session(session)) == DEAD {
        put_back(&mut tr, session, item);
    }
    tr.staged()
}

/// `session::end`, by a session that ends.
pub(super) fn end(db: &Database, me: usize) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    if tr.get(Key::Session(me)) == ALIVE {
        tr.set(Key::Session(me), DEAD);
    }
    tr.staged()
}

/// `reclaim::remove_requests` and `reclaim::remove_session`, in one transaction.
pub(super) fn remove_session(db: &Database, rules: Rules, session: usize) -> Option<Staged> {
    let mut tr = Transaction::begin(db);
    if tr.get(Key::Session(session)) != DEAD {
        return None;
    }
    remove_requests(&mut tr, session);
    let mut held = (0..ITEMS).map(|item| Key::Held(session, item));
    if !rules.breaks(Mistake::RemovedUnread) && held.any(|key| tr.get(key) != ABSENT) {
        return None;
    }
    tr.clear(Key::Session(session));
    tr.clear(Key::Heartbeat(session));
    tr.staged()
}

/// `reclaim::remove_requests`. It searches the first requests for those of the session. Here it searches only one, so
/// that others are left for a later fulfillment. The crate searches by snapshot; here the read is in conflict, which
/// saves a step. This excludes one case: a request that becomes the first during the search, by a concurrent removal,
/// stays until another session loses patience.
fn remove_requests(tr: &mut Transaction<'_>, session: usize) {
    if tr.get(Key::Grant(session)) != ABSENT {
        tr.clear(Key::Grant(session));
    }
    if tr.get(Key::Request(session)) == FIRST {
        tr.clear(Key::Request(session));
    }
}

/// Moves an item from those that a session holds back to its place in the queue, and writes the wake stamp.
fn put_back(tr: &mut Transaction<'_>, session: usize, item: usize) {
    let number = tr.get(Key::Held(session, item));
    if number != ABSENT {
        tr.clear(Key::Held(session, item));
        tr.set(Key::Item(item), number + 1);
        tr.set(Key::Wake, PRESENT);
    }
}
