//! The database of the model: a few keys with small values, which stand for [rows](super::rows), and transactions that
//! have staged writes of them.
//!
//! Instead of versions, the model keeps the transactions in flight. A commit that writes a key in the conflict ranges
//! of such a transaction dooms it, and a doomed transaction is dropped at once. This is equivalent to a conflict that
//! is reported later: everything that its client does after the conflict, it may also do later.

use std::ops::Range;

/// The largest number of sessions.
pub(super) const SESSIONS: usize = 3;

/// The session that may take another kind of items than the others.
pub(super) const STRANGER: usize = 0;

/// The largest number of items.
pub(super) const ITEMS: usize = 3;

/// The value of a key that does not exist.
pub(super) const ABSENT: u8 = 0;

/// The value of a key of which only the existence, or the fact that it was written, matters.
pub(super) const PRESENT: u8 = 1;

/// The value of the key of a session that is alive.
pub(super) const ALIVE: u8 = 1;

/// The value of the key of a session that was declared dead.
pub(super) const DEAD: u8 = 2;

/// The value of the key of the first request.
pub(super) const FIRST: u8 = 1;

/// The value of a grant without items: the signal to its request that it is the first.
pub(super) const SIGNAL: u8 = 1 << ITEMS;

/// A placeholder for the rank of a request. Like a versionstamp, it is replaced at the commit. Ranks count from
/// [`FIRST`] and close up when a request is removed: only the order of request ids matters.
pub(super) const STAMP: u8 = u8::MAX;

/// A key, by its contents. A session has at most one request at a time, so that the session identifies its request
/// and its grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// `s/<session>`: [`ALIVE`] or [`DEAD`].
    Session(usize),
    /// `b/<session>`.
    Heartbeat(usize),
    /// `r/<id>`: the rank of a session's request.
    Request(usize),
    /// `r/<id>`: whether a session's request wants one item more than its consumer, for the reserve.
    Ahead(usize),
    /// `g/<session>/<request>`: the granted items, one bit for each, or [`SIGNAL`].
    Grant(usize),
    /// `h/<session>/<item>` or, until it is collected, the item's row of the grant. The value is the number of the
    /// grant. A session that returns the item finds it in either place.
    Held(usize, usize),
    /// `i/<id>`: the number that the item's next grant gets.
    Item(usize),
    /// Application data: how often the item has taken effect.
    Effect(usize),
    /// The pause.
    Pause,
    /// `w`.
    Wake,
    /// A notice of a lane without anything to grant.
    Notice,
}

/// How many keys a session has.
const KEYS_OF_SESSION: usize = 5 + ITEMS;

/// The number of keys: first those of one session after another, then the keys that belong to no session.
const KEYS: usize = SESSIONS * KEYS_OF_SESSION + 2 * ITEMS + 3;

/// Returns the indexes of a session's keys.
const fn keys_of(session: usize) -> Range<usize> {
    session * KEYS_OF_SESSION..(session + 1) * KEYS_OF_SESSION
}

impl Key {
    /// Returns all keys.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let of_session = |session| {
            let held = (0..ITEMS).map(move |item| Key::Held(session, item));
            held.chain([
                Key::Session(session),
                Key::Heartbeat(session),
                Key::Request(session),
                Key::Ahead(session),
                Key::Grant(session),
            ])
        };
        let of_item = |item| [Key::Item(item), Key::Effect(item)];
        let of_sessions = (0..SESSIONS).flat_map(of_session);
        of_sessions
            .chain((0..ITEMS).flat_map(of_item))
            .chain([Key::Pause, Key::Wake, Key::Notice])
    }

    const fn index(self) -> usize {
        match self {
            Key::Session(session) => keys_of(session).start,
            Key::Heartbeat(session) => keys_of(session).start + 1,
            Key::Request(session) => keys_of(session).start + 2,
            Key::Ahead(session) => keys_of(session).start + 3,
            Key::Grant(session) => keys_of(session).start + 4,
            Key::Held(session, item) => keys_of(session).start + 5 + item,
            Key::Item(item) => keys_of(SESSIONS).start + item,
            Key::Effect(item) => keys_of(SESSIONS).start + ITEMS + item,
            Key::Pause => KEYS - 3,
            Key::Wake => KEYS - 2,
            Key::Notice => KEYS - 1,
        }
    }
}

/// A new name for each session, by its present name.
pub(super) type Names = [usize; SESSIONS];

/// A set of keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct KeySet(u64);

impl KeySet {
    pub(super) fn insert(&mut self, key: Key) {
        self.0 |= 1 << key.index();
    }

    pub(super) fn insert_all(&mut self, keys: KeySet) {
        self.0 |= keys.0;
    }

    fn contains(self, key: Key) -> bool {
        self.0 & (1 << key.index()) != 0
    }

    fn meets(self, other: KeySet) -> bool {
        self.0 & other.0 != 0
    }

    fn covers(self, other: KeySet) -> bool {
        other.0 & !self.0 == 0
    }

    fn renamed(self, names: &Names) -> KeySet {
        let one_session = (1 << KEYS_OF_SESSION) - 1;
        let of_no_session = u64::MAX << keys_of(SESSIONS).start;
        let mut renamed = self.0 & of_no_session;
        for (session, name) in names.iter().enumerate() {
            let keys = self.0 >> keys_of(session).start & one_session;
            renamed |= keys << keys_of(*name).start;
        }
        KeySet(renamed)
    }
}

/// A value for each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Values([u8; KEYS]);

impl Values {
    const NONE: Values = Values([ABSENT; KEYS]);

    fn get(&self, key: Key) -> u8 {
        self.0[key.index()]
    }

    fn set(&mut self, key: Key, value: u8) {
        self.0[key.index()] = value;
    }

    fn renamed(&self, names: &Names) -> Values {
        let mut renamed = *self;
        for (session, name) in names.iter().enumerate() {
            renamed.0[keys_of(*name)].copy_from_slice(&self.0[keys_of(session)]);
        }
        renamed
    }
}

/// The committed state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Database {
    values: Values,
}

impl Database {
    /// Returns a database without a key.
    pub(super) fn new() -> Self {
        Database {
            values: Values::NONE,
        }
    }

    /// Returns the value of a key.
    pub(super) fn get(&self, key: Key) -> u8 {
        self.values.get(key)
    }

    /// Returns whether a key exists.
    pub(super) fn has(&self, key: Key) -> bool {
        self.get(key) != ABSENT
    }

    /// Sets the value of a key.
    pub(super) fn set(&mut self, key: Key, value: u8) {
        self.values.set(key, value);
    }

    /// Applies the writes of a transaction.
    pub(super) fn apply(&mut self, staged: &Staged) {
        for index in 0..KEYS {
            if staged.written.0 & (1 << index) != 0 {
                self.values.0[index] = staged.values.0[index];
            }
        }
        let ranks: [u8; SESSIONS] = std::array::from_fn(|session| self.get(Key::Request(session)));
        for session in (0..SESSIONS).filter(|session| ranks[*session] != ABSENT) {
            let up_to = FIRST..=ranks[session];
            let rank = ranks.iter().filter(|rank| up_to.contains(*rank)).count();
            self.values.set(Key::Request(session), rank as u8);
        }
    }

    /// Returns whether a transaction that reads this state grants an item and skips an earlier one.
    pub(super) fn skips_an_item(&self, staged: &Staged) -> bool {
        let queued = (0..ITEMS).map(Key::Item).filter(|key| self.has(*key));
        !queued.is_sorted_by_key(|key| staged.written(key).is_none())
    }

    /// Returns the database after renaming session `n` to `names[n]`.
    pub(super) fn renamed(&self, names: &Names) -> Self {
        Database {
            values: self.values.renamed(names),
        }
    }
}

/// The part of a transaction that is sent to the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Staged {
    conflicts: KeySet,
    written: KeySet,
    values: Values,
    is_serializable: bool,
}

impl Staged {
    /// Returns a transaction by its reads, its conflict ranges, the keys that it writes, and a database with their new
    /// values. Returns `None` if it writes nothing.
    pub(super) fn new(
        read: KeySet,
        conflicts: KeySet,
        written: KeySet,
        after: &Database,
    ) -> Option<Self> {
        let mut values = Values::NONE;
        for key in Key::all().filter(|key| written.contains(*key)) {
            values.set(key, after.get(key));
        }
        let staged = Staged {
            conflicts,
            written,
            values,
            is_serializable: conflicts.covers(read),
        };
        (written != KeySet::default()).then_some(staged)
    }

    /// Returns whether all reads of the transaction are in its conflict ranges.
    ///
    /// If so, it would read and stage the same at its commit, so that the whole transaction can be considered to
    /// happen at that moment. If it fails, nothing has happened. The model therefore runs it in one step, which
    /// excludes no behavior.
    pub(super) fn is_serializable(&self) -> bool {
        self.is_serializable
    }

    /// Returns the value that is written to a key, if it is written.
    pub(super) fn written(&self, key: Key) -> Option<u8> {
        self.written.contains(key).then(|| self.values.get(key))
    }

    /// Returns whether this commit makes `other` fail.
    pub(super) fn dooms(&self, other: &Staged) -> bool {
        self.written.meets(other.conflicts)
    }

    /// Returns the transaction after renaming session `n` to `names[n]`.
    pub(super) fn renamed(&self, names: &Names) -> Self {
        Staged {
            conflicts: self.conflicts.renamed(names),
            written: self.written.renamed(names),
            values: self.values.renamed(names),
            is_serializable: self.is_serializable,
        }
    }
}
