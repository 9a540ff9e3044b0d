//! The database of the model: a few keys with small values, and optimistic transactions on them.
//!
//! A transaction reads one state of the database, remembers what it read and which of these reads
//! are in its conflict ranges, and stages writes. Instead of versions the model keeps the
//! transactions that are in flight: a commit that writes what one of them may not find changed dooms
//! it, and a doomed transaction is dropped at once. Nobody can tell that from a conflict that is
//! reported later: what its client does after it, it may do later, too.

use std::ops::Range;

/// How many sessions there are at most.
pub(super) const SESSIONS: usize = 3;

/// How many items there are at most.
pub(super) const ITEMS: usize = 3;

/// The value of a key that does not exist.
pub(super) const ABSENT: u8 = 0;

/// The value of a key of which only the existence, or that it was written, matters.
pub(super) const PRESENT: u8 = 1;

/// The value of the key of a session that lives.
pub(super) const ALIVE: u8 = 1;

/// The value of the key of a session that was declared dead.
pub(super) const DEAD: u8 = 2;

/// The value of the key of the first request.
pub(super) const FIRST: u8 = 1;

/// The value of a grant without items: it tells its request that it has become the first.
pub(super) const TURN: u8 = 1 << ITEMS;

/// Written to the key of a request, this is replaced at the commit, as a versionstamp is, by the
/// request's rank. Ranks count from [`FIRST`] and close up when a request is removed: of the ids of requests
/// only the order matters.
pub(super) const STAMP: u8 = u8::MAX;

/// A key, by what it holds. A session has at most one request at a time, so that the session names
/// its request and its grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// `s/<session>`: [`ALIVE`] or [`DEAD`].
    Session(usize),
    /// `b/<session>`.
    Heartbeat(usize),
    /// `r/<id>`: the rank of a session's request.
    Request(usize),
    /// `g/<session>/<request>`: the granted items, one bit for each, or [`TURN`].
    Grant(usize),
    /// `h/<session>/<item>` or, until it is collected, the item's row of the grant: the number of the
    /// grant. Whoever returns the item finds it in either place.
    Held(usize, usize),
    /// `i/<id>`: the number that the item's next grant gets.
    Item(usize),
    /// The application's data: how often the item has had its effect.
    Effect(usize),
    /// The pause.
    Pause,
    /// `w`.
    Wake,
}

/// How many keys a session has.
const KEYS_OF_SESSION: usize = 4 + ITEMS;

/// How many keys there are: first those of one session after the other, then those of nobody.
const KEYS: usize = SESSIONS * KEYS_OF_SESSION + 2 * ITEMS + 2;

/// Returns the indexes of a session's keys.
const fn keys_of(session: usize) -> Range<usize> {
    session * KEYS_OF_SESSION..(session + 1) * KEYS_OF_SESSION
}

impl Key {
    const fn index(self) -> usize {
        match self {
            Key::Session(session) => keys_of(session).start,
            Key::Heartbeat(session) => keys_of(session).start + 1,
            Key::Request(session) => keys_of(session).start + 2,
            Key::Grant(session) => keys_of(session).start + 3,
            Key::Held(session, item) => keys_of(session).start + 4 + item,
            Key::Item(item) => keys_of(SESSIONS).start + item,
            Key::Effect(item) => keys_of(SESSIONS).start + ITEMS + item,
            Key::Pause => KEYS - 2,
            Key::Wake => KEYS - 1,
        }
    }
}

/// Another name for each session, by the name it has.
pub(super) type Names = [usize; SESSIONS];

/// A set of keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Keys(u32);

impl Keys {
    fn insert(&mut self, key: Key) {
        self.0 |= 1 << key.index();
    }

    fn contains(self, key: Key) -> bool {
        self.0 & (1 << key.index()) != 0
    }

    fn meets(self, other: Keys) -> bool {
        self.0 & other.0 != 0
    }

    fn covers(self, other: Keys) -> bool {
        other.0 & !self.0 == 0
    }

    fn renamed(self, names: &Names) -> Keys {
        let one_session = (1 << KEYS_OF_SESSION) - 1;
        let of_nobody = u32::MAX << keys_of(SESSIONS).start;
        let mut renamed = self.0 & of_nobody;
        for (session, name) in names.iter().enumerate() {
            let keys = self.0 >> keys_of(session).start & one_session;
            renamed |= keys << keys_of(*name).start;
        }
        Keys(renamed)
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

/// What has been committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

    /// Writes what a transaction staged.
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

    /// Returns the same database with session `n` called `names[n]`.
    pub(super) fn renamed(&self, names: &Names) -> Self {
        Database {
            values: self.values.renamed(names),
        }
    }
}

/// A transaction that reads a state of the database.
pub(super) struct Transaction<'a> {
    db: &'a Database,
    read: Keys,
    conflicts: Keys,
    written: Keys,
    values: Values,
}

impl<'a> Transaction<'a> {
    /// Begins a transaction that reads this state.
    pub(super) fn begin(db: &'a Database) -> Self {
        Transaction {
            db,
            read: Keys::default(),
            conflicts: Keys::default(),
            written: Keys::default(),
            values: Values::NONE,
        }
    }

    /// Reads serializably.
    pub(super) fn get(&mut self, key: Key) -> u8 {
        self.conflict(key);
        self.snapshot(key)
    }

    /// Reads by snapshot.
    pub(super) fn snapshot(&mut self, key: Key) -> u8 {
        self.read.insert(key);
        self.db.get(key)
    }

    /// Adds a read conflict.
    pub(super) fn conflict(&mut self, key: Key) {
        self.conflicts.insert(key);
    }

    /// Stages a write.
    pub(super) fn set(&mut self, key: Key, value: u8) {
        self.written.insert(key);
        self.values.set(key, value);
    }

    /// Stages that a key is cleared.
    pub(super) fn clear(&mut self, key: Key) {
        self.set(key, ABSENT);
    }

    /// Returns what is to be committed; `None` if nothing was written.
    pub(super) fn staged(self) -> Option<Staged> {
        let staged = Staged {
            conflicts: self.conflicts,
            written: self.written,
            values: self.values,
            is_serializable: self.conflicts.covers(self.read),
        };
        (self.written != Keys::default()).then_some(staged)
    }
}

/// What a transaction hands to the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Staged {
    conflicts: Keys,
    written: Keys,
    values: Values,
    is_serializable: bool,
}

impl Staged {
    /// Returns whether everything that the transaction read is in its conflict ranges.
    ///
    /// If so, then at its commit it would read what it has read, and stage what it has staged: the
    /// whole transaction might as well happen at that moment. If it fails, nothing has happened. The
    /// model takes it in one step, and leaves out no behavior.
    pub(super) fn is_serializable(&self) -> bool {
        self.is_serializable
    }

    /// Returns the value that a key is given, if it is written.
    pub(super) fn written(&self, key: Key) -> Option<u8> {
        self.written.contains(key).then(|| self.values.get(key))
    }

    /// Returns whether the commit of this makes `other` fail.
    pub(super) fn dooms(&self, other: &Staged) -> bool {
        self.written.meets(other.conflicts)
    }

    /// Returns the same with session `n` called `names[n]`.
    pub(super) fn renamed(&self, names: &Names) -> Self {
        Staged {
            conflicts: self.conflicts.renamed(names),
            written: self.written.renamed(names),
            values: self.values.renamed(names),
            is_serializable: self.is_serializable,
        }
    }
}
