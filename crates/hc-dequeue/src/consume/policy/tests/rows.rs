//! The rows for which the compact [database](super::database) stands, and the compact form of what a transaction has
//! recorded on them.
//!
//! Ids are numbered by what they mean in the model: the id of an item by its number, the id of a request by its rank.
//! An id has no other meaning in the protocol, and a session has at most one request.

use std::sync::Arc;
use std::time::Duration;

use conformance::checker_store::{
    CheckerTransaction, NoBugs, RecordedAccess, Rows, Span, Write, rows_of,
};
use microqueue::keyspace::env::ManualClock;
use microqueue::keyspace::{
    Bytes, Environment, KeyValue, MutationOp, Subspace, Transaction, Versionstamp,
};
use microqueue::{Item, ItemId, StagedId};

use super::database::{
    ABSENT, ALIVE, DEAD, Database, FIRST, ITEMS, Key, KeySet, PRESENT, SESSIONS, SIGNAL, STAMP,
    STRANGER, Staged,
};
use super::state::Budget;
use crate::items::keys::Keys;
use crate::items::kind::{Kind, Kinds};
use crate::items::priority::Priority;
use crate::items::priority::RANK_OF_SLOT;
use crate::items::record::{self, ListedGrantPart, Record, Request, is_signal};
use crate::protocol::grant::answer;
use crate::session::{Life, SessionId};

/// The lease of all sessions.
pub(super) const LEASE: Duration = Duration::from_secs(10);

/// The version of all heartbeats.
pub(super) const HEARTBEAT: i64 = 1;

/// From this version on, the ids of items have the numbers of the items.
const ITEM: i64 = 100;

/// From this version on, the ids of requests that are answered have the numbers of the sessions.
const ANSWERED: i64 = 200;

/// From this version on, the ids of registered requests have their ranks.
const REGISTERED: i64 = 300;

/// The version of the next request.
const NEXT: i64 = 400;

/// The group of the lane that has a notice without anything to grant.
pub(super) const NOTICED: &[u8] = b"noticed";

/// How the queue of the model is stored.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) keys: Arc<Keys>,
    /// The keys and the kinds of the [`STRANGER`], if there is one.
    stranger: Option<(Keys, Vec<u8>)>,
    /// How many items a consumer wants.
    wanted: u32,
    /// Whether a lane may have a notice.
    has_notices: bool,
    /// Whether an item of a kind that no session takes is the first.
    has_unknown: bool,
}

/// Rows, and where each key of the model is.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) rows: Arc<Rows>,
    places: Arc<[(Key, Span)]>,
}

impl Stored {
    /// Returns the keys of the model in some ranges.
    fn keys_in<'a>(&self, spans: impl Iterator<Item = &'a Span>) -> KeySet {
        let mut keys = KeySet::default();
        for span in spans {
            let met = self.places.iter().filter(|(_, place)| place.meets(span));
            met.for_each(|(key, _)| keys.insert(*key));
        }
        keys
    }
}

/// Returns an id with this version.
fn id(version: i64) -> ItemId {
    StagedId::of_call(0).at(Versionstamp::new(version, 0))
}

/// Returns the id of an item.
pub(super) fn item_id(item: usize) -> ItemId {
    id(ITEM + item as i64)
}

/// Returns the id of the item of a kind that no session takes, which is before all others.
fn unknown_id() -> ItemId {
    id(ITEM - 1)
}

/// Returns the record of that item.
fn unknown() -> Record {
    let mut record = record_of(0);
    record.kind = Kind::new("unknown").unwrap();
    record
}

/// Returns the key of that item.
pub(super) fn unknown_key(keys: &Keys) -> Vec<u8> {
    unknown_id().key_in(keys.queued(Priority::DEFAULT).subspace())
}

/// Returns the kinds that the [`STRANGER`] takes.
pub(super) fn strange() -> Kinds {
    Kinds::new([Kind::new("strange").unwrap()].into())
}

/// Returns the id of a session.
pub(super) fn session_id(session: usize) -> SessionId {
    SessionId([session as u8 + 1; 16])
}

/// Returns the id of a session's request. If the session has none, there is no request with this id.
pub(super) fn request_id(db: &Database, session: usize) -> ItemId {
    match db.get(Key::Request(session)) {
        ABSENT => id(ANSWERED + session as i64),
        rank => id(REGISTERED + i64::from(rank)),
    }
}

/// Returns the items of a session's grant, in the order of its rows.
fn granted(db: &Database, session: usize) -> impl Iterator<Item = usize> {
    let grant = match db.get(Key::Grant(session)) {
        SIGNAL => ABSENT,
        grant => grant,
    };
    (0..ITEMS).filter(move |item| grant & (1 << item) != 0)
}

/// Returns the record of an item that was granted this often.
fn record_of(deliveries: u8) -> Record {
    let mut record = Record::new(0, Bytes::from_static(&[0]));
    record.deliveries = deliveries.into();
    // Every item keeps its place, as if it had never been handed out: lanes have a model of their own.
    record.uncounted_deliveries = u64::MAX / 2;
    record
}

impl Layout {
    pub(super) fn new(wanted: usize, budget: &Budget) -> Self {
        let env = Environment::seeded(0, Arc::new(ManualClock::new()));
        let keys = Arc::new(Keys::new(Subspace::from("Q"), env));
        let kinds = budget.stranger.then(|| strange().to_row().unwrap());
        Self {
            stranger: kinds.map(|kinds| (keys.of_kinds(Some(&kinds)), kinds)),
            keys,
            wanted: wanted as u32,
            has_notices: budget.notices > 0,
            has_unknown: budget.unknown,
        }
    }

    /// Returns the keys with the registry of a session.
    pub(super) fn keys_of(&self, session: usize) -> &Keys {
        match &self.stranger {
            Some((keys, _)) if session == STRANGER => keys,
            _ => &self.keys,
        }
    }

    /// Returns the kinds that a session stores, if it stores any.
    pub(super) fn kinds_of(&self, session: usize) -> Option<&[u8]> {
        let stranger = self.stranger.as_ref().filter(|_| session == STRANGER);
        stranger.map(|(_, kinds)| &**kinds)
    }

    /// Returns a session of each registry.
    fn of_registries(&self) -> impl Iterator<Item = usize> {
        let others = [STRANGER + 1];
        let stranger = self.stranger.as_ref().map(|_| STRANGER);
        others.into_iter().chain(stranger)
    }

    fn notice(&self) -> Vec<u8> {
        self.keys.notice(RANK_OF_SLOT, NOTICED)
    }

    /// Returns the row of the application that counts how often an item has taken effect.
    pub(super) fn effect(item: usize) -> Vec<u8> {
        vec![b'E', item as u8]
    }

    /// Returns the rows for which a database stands.
    pub(super) fn store(&self, db: &Database) -> Stored {
        let keys = &*self.keys;
        let tr = CheckerTransaction::begin(&Arc::default(), 0, NoBugs);
        for session in 0..SESSIONS {
            self.store_session(&tr, db, session);
        }
        for item in 0..ITEMS {
            match db.get(Key::Item(item)) {
                ABSENT => {}
                number => {
                    let record = record_of(number - 1);
                    keys.queued(Priority::DEFAULT)
                        .insert(&tr, &item_id(item), &record)
                        .unwrap();
                }
            }
            match db.get(Key::Effect(item)) {
                ABSENT => {}
                count => tr.set(&Self::effect(item), &[count]),
            }
        }
        if db.has(Key::Pause) {
            tr.set(&keys.pause(), b"");
        }
        if db.has(Key::Notice) {
            tr.set(&self.notice(), &[PRESENT]);
        }
        if self.has_unknown {
            let queued = keys.queued(Priority::DEFAULT);
            queued.insert(&tr, &unknown_id(), &unknown()).unwrap();
        }
        let rows = match tr.staged() {
            Some(staged) => staged.applied(&Rows::new(), 0),
            None => Rows::new(),
        };
        let mut parsed = self.parse(&rows);
        parsed.set(Key::Wake, db.get(Key::Wake));
        assert_eq!(parsed, *db, "the rows mean what the database means");
        Stored {
            rows: Arc::new(rows),
            places: self.places(db).into(),
        }
    }

    fn store_session(&self, tr: &CheckerTransaction<NoBugs>, db: &Database, session: usize) {
        let keys = &*self.keys;
        let name = session_id(session);
        let life = match db.get(Key::Session(session)) {
            ALIVE => Some(Life::Alive),
            DEAD => Some(Life::Dead),
            _ => None,
        };
        if let Some(life) = life {
            keys.sessions.set_state(tr, name, life, LEASE);
            if let Some(kinds) = self.kinds_of(session) {
                tr.set(&keys.session_kinds(name), kinds);
            }
        }
        if db.has(Key::Heartbeat(session)) {
            let stamp = Versionstamp::new(HEARTBEAT, 0);
            let value = [&stamp.as_bytes()[..], &[0; 8]].concat();
            tr.set(&keys.sessions.heartbeat(name), &value);
        }
        let request = Request {
            session: name,
            wanted: self.wanted + u32::from(db.has(Key::Ahead(session))),
            for_reserve: db.has(Key::Ahead(session)).into(),
        };
        let id = request_id(db, session);
        if db.has(Key::Request(session)) {
            let registry = &self.keys_of(session).requests;
            registry.insert(tr, &id, &request).unwrap();
        }
        let held = |item| match db.get(Key::Held(session, item)) {
            ABSENT => None,
            number => Some(record_of(number)),
        };
        if db.get(Key::Grant(session)) == SIGNAL {
            tr.set(&keys.grant(name, &id), &record::SIGNAL);
        }
        let items = granted(db, session).filter_map(|item| {
            let value = held(item)?;
            let id = item_id(item);
            Some(Item { id, value })
        });
        answer(tr, keys, name, &id, items.collect()).unwrap();
        let is_granted = |item: &usize| granted(db, session).any(|granted| granted == *item);
        for item in (0..ITEMS).filter(|item| !is_granted(item)) {
            if let Some(record) = held(item) {
                let place = keys.held(name);
                place.insert(tr, &item_id(item), &record).unwrap();
            }
        }
    }

    /// Returns where each key of the model is stored, or will be.
    fn places(&self, db: &Database) -> Vec<(Key, Span)> {
        let keys = &*self.keys;
        let mut places = vec![(Key::Pause, Span::key(&keys.pause()))];
        // Otherwise, takes and fulfillments would read by snapshot what never changes.
        if self.has_notices {
            places.push((Key::Notice, Span::key(&self.notice())));
        }
        for session in 0..SESSIONS {
            let name = session_id(session);
            let request = request_id(db, session);
            let registered = match db.get(Key::Request(session)) {
                ABSENT => id(NEXT),
                _ => request,
            };
            let (begin, end) = keys.grants(name);
            let registered = self.keys_of(session).request(&registered);
            places.extend([
                (Key::Session(session), Span::key(&keys.sessions.state(name))),
                (Key::Session(session), Span::key(&keys.session_kinds(name))),
                (
                    Key::Heartbeat(session),
                    Span::key(&keys.sessions.heartbeat(name)),
                ),
                (Key::Request(session), Span::key(&registered)),
                (Key::Ahead(session), Span::key(&registered)),
                (Key::Grant(session), Span { begin, end }),
            ]);
            for item in 0..ITEMS {
                let held = item_id(item).key_in(keys.held(name).subspace());
                places.push((Key::Held(session, item), Span::key(&held)));
            }
            for (number, item) in (0..).zip(granted(db, session)) {
                let part = keys.part_of_grant(name, &request, number);
                places.push((Key::Held(session, item), Span::key(&part)));
            }
        }
        for item in 0..ITEMS {
            let queued = item_id(item).key_in(keys.queued(Priority::DEFAULT).subspace());
            places.push((Key::Item(item), Span::key(&queued)));
            places.push((Key::Effect(item), Span::key(&Self::effect(item))));
        }
        places
    }

    /// Returns how many items of a kind that no session takes are before the others, and checks that they are there.
    fn count_unknown(&self, rows: &Rows) -> usize {
        if !self.has_unknown {
            return 0;
        }
        let queued = self.keys.queued(Priority::DEFAULT);
        let unknown_key = unknown_key(&self.keys);
        let row = rows_of(rows, &of_key(unknown_key)).next();
        let (key, value) = row.expect("it stays in the queue");
        let item = queued.decode(&KeyValue::new(key, value)).unwrap();
        assert_eq!(item.value, unknown(), "nothing is counted or changed");
        1
    }

    /// Returns the database that rows mean, except for the wake stamp, which has no row.
    ///
    /// # Panics
    /// If the rows contain something else.
    fn parse(&self, rows: &Rows) -> Database {
        let keys = &*self.keys;
        let mut db = Database::new();
        let mut row_count = 0;
        let mut requests = Vec::new();
        let mut read = |range: (Vec<u8>, Vec<u8>)| {
            let found: Vec<_> = rows_of(rows, &range)
                .map(|(key, value)| KeyValue::new(key, value))
                .collect();
            row_count += found.len();
            found
        };
        for session in 0..SESSIONS {
            let name = session_id(session);
            for row in read(of_key(keys.sessions.state(name))) {
                let (_, state) = keys.sessions.parse_state_row(&row).unwrap();
                let is_alive = state.life == Life::Alive;
                db.set(Key::Session(session), if is_alive { ALIVE } else { DEAD });
            }
            for row in read(of_key(keys.session_kinds(name))) {
                assert_eq!(Some(row.value()), self.kinds_of(session));
            }
            for _ in read(of_key(keys.sessions.heartbeat(name))) {
                db.set(Key::Heartbeat(session), PRESENT);
            }
            let held = keys.held(name);
            for row in read(held.subspace().range()) {
                let Item { id, value } = held.decode(&row).unwrap();
                let held = Key::Held(session, item_of(&id));
                db.set(held, value.deliveries as u8);
            }
            let mut grant = ABSENT;
            for row in read(keys.grants(name)) {
                if is_signal(row.value()) {
                    assert_eq!(grant, ABSENT, "a signal is alone");
                    grant = SIGNAL;
                    continue;
                }
                let part = ListedGrantPart::decode(row.key(), row.to_value()).unwrap();
                let item = item_of(&part.item.id);
                let deliveries = part.item.value.unwrap().deliveries;
                grant |= 1 << item;
                db.set(Key::Held(session, item), deliveries as u8);
            }
            db.set(Key::Grant(session), grant);
        }
        for registry in self.of_registries() {
            let registry = &self.keys_of(registry).requests;
            let rows = read(registry.subspace().range());
            requests.extend(rows.iter().map(|row| registry.decode(row).unwrap()));
        }
        self.set_requests(&mut db, requests);
        let queued = read(keys.outside_lanes()).into_iter();
        for row in queued.skip(self.count_unknown(rows)) {
            let Item { id, value } = keys.queued(Priority::DEFAULT).decode(&row).unwrap();
            db.set(Key::Item(item_of(&id)), value.deliveries as u8 + 1);
        }
        for item in 0..ITEMS {
            for row in read(of_key(Self::effect(item))) {
                db.set(Key::Effect(item), row.value()[0]);
            }
        }
        for _ in read(of_key(keys.pause())) {
            db.set(Key::Pause, PRESENT);
        }
        for _ in read(of_key(self.notice())) {
            db.set(Key::Notice, PRESENT);
        }
        assert_eq!(row_count, rows.len(), "the model knows all rows");
        db
    }

    /// Notes requests, of all registries, by their ranks.
    fn set_requests(&self, db: &mut Database, mut requests: Vec<Item<Request>>) {
        requests.sort_unstable_by_key(|request| request.id);
        for (rank, Item { value: request, .. }) in (FIRST..).zip(requests) {
            let session = session_of(request.session);
            assert!(!db.has(Key::Request(session)), "a session has one request");
            db.set(Key::Request(session), rank);
            if request.wanted > self.wanted {
                db.set(Key::Ahead(session), PRESENT);
            }
        }
    }

    /// Returns the compact form of what a transaction has recorded on rows.
    pub(super) fn staged(
        &self,
        db: &Database,
        stored: &Stored,
        recorded: &RecordedAccess,
    ) -> Option<Staged> {
        let mut rows = Rows::clone(&stored.rows);
        let mut written = KeySet::default();
        let mut registers = false;
        for write in &recorded.writes {
            match write {
                Write::Set(key, value) => {
                    rows.insert(key.clone().into(), value.clone().into());
                    written.insert_all(stored.keys_in([write.span()].iter()));
                }
                Write::Clear(span) => {
                    rows.retain(|key, _| !span.has(key));
                    written.insert_all(stored.keys_in([span].into_iter()));
                }
                Write::Append(prefix, value) => {
                    let mut registries = self.of_registries().map(|of| self.keys_of(of));
                    let registry =
                        registries.find(|of| prefix.starts_with(of.requests.subspace().bytes()));
                    let key = if let Some(registry) = registry {
                        registers = true;
                        registry.request(&id(NEXT))
                    } else {
                        let queued = self.keys.queued(Priority::DEFAULT);
                        assert!(prefix.starts_with(queued.subspace().bytes()));
                        item_id(next_item(db)).key_in(queued.subspace())
                    };
                    rows.insert(key.into(), value.clone().into());
                }
            }
        }
        for (op, key, value) in &recorded.atomics {
            let is_same = rows.get(&**key).is_some_and(|row| row == value);
            if *op == MutationOp::CompareAndClear && is_same {
                rows.remove(&**key);
            }
        }
        let mut after = self.parse(&rows);
        for key in Key::all().filter(|key| *key != Key::Wake) {
            let is_same = match key {
                // The ranks of other requests may have changed.
                Key::Request(_) => db.has(key) == after.has(key),
                _ => db.get(key) == after.get(key),
            };
            if !is_same {
                written.insert(key);
            }
        }
        if registers {
            let mut requests = (0..SESSIONS).map(Key::Request);
            let request = requests.find(|key| after.has(*key) && !db.has(*key));
            after.set(request.expect("a session that had no request"), STAMP);
        }
        for stamp in &recorded.stamps {
            let key = self.stamped(stamp);
            written.insert(key);
            after.set(key, PRESENT);
        }
        let reads = stored.keys_in(recorded.reads.iter());
        let conflicts = stored.keys_in(recorded.conflicts.iter());
        Staged::new(reads, conflicts, written, &after)
    }

    /// Returns the key of the model that has a versionstamp as its value.
    fn stamped(&self, key: &[u8]) -> Key {
        if *key == *self.keys.wake() {
            return Key::Wake;
        }
        if *key == *self.notice() {
            return Key::Notice;
        }
        let sessions = &self.keys.sessions;
        let session = (0..SESSIONS)
            .find(|session| *key == *sessions.heartbeat(session_id(*session)))
            .expect("only heartbeats, notices and the wake stamp have versionstamps");
        Key::Heartbeat(session)
    }
}

fn of_key(key: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let Span { begin, end } = Span::key(&key);
    (begin, end)
}

fn item_of(id: &ItemId) -> usize {
    let item = (0..ITEMS).find(|item| item_id(*item) == *id);
    item.expect("an item of the model")
}

fn session_of(name: SessionId) -> usize {
    let session = (0..SESSIONS).find(|session| session_id(*session) == name);
    session.expect("a session of the model")
}

/// Returns the first item that was not enqueued yet.
fn next_item(db: &Database) -> usize {
    let is_somewhere = |item: usize| {
        let held = (0..SESSIONS).map(|session| Key::Held(session, item));
        let mut places = held.chain([Key::Item(item), Key::Effect(item)]);
        places.any(|key| db.has(key))
    };
    let next = (0..ITEMS).find(|item| !is_somewhere(*item));
    next.expect("the model has room for another item")
}
