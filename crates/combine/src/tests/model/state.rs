//! A state of the model: the committed rows, the transactions in flight, and the events that have
//! actually happened.

use std::sync::Arc;

use conformance::checker_store::{Rows, Staged, rows_of};
use hc_dequeue::keyspace::Bytes;

use crate::keys::AsideKey;
use crate::queue::aside::AsideId;
use crate::record::{Current, PassState, decode_value};
use crate::tests::model::protocol::{BUCKET, KEYS, LOADED, Protocol, Report, Update};

/// The distance between the versions of commits. It leaves room for a commit of a restored store between
/// two of them.
const VERSIONS_APART: i64 = 16;

/// How often each optional event may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// The number of transactions that may be between their read version and their commit.
    pub(crate) flights: usize,
    /// Values that may still be loaded.
    pub(crate) loads: usize,
    /// Passes that may still withhold the reports of a key.
    pub(crate) withholdings: usize,
    /// Records that may still be redriven.
    pub(crate) redrives: usize,
    /// Passes in which the observer may still add to the bucket.
    pub(crate) additions: usize,
    /// Blocks that may still get a versionstamp that sorts before existing blocks.
    pub(crate) restored: usize,
}

/// The effect of a commit on the actual history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Effect {
    /// The sum of the updates, by key.
    pub(crate) added: [i64; KEYS],
    /// The number of updates that do not decode.
    pub(crate) broken: usize,
    /// The key that is loaded.
    pub(crate) loaded: Option<usize>,
    /// The reported changes, if it is a pass.
    pub(crate) reports: Option<Vec<Report>>,
}

impl Effect {
    pub(crate) fn of(updates: &[Update]) -> Self {
        let mut effect = Self::default();
        for (key, update) in updates {
            effect.added[*key] += update.unwrap_or(0);
            effect.broken += usize::from(update.is_none());
        }
        effect
    }
}

/// A transaction in flight.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Flight {
    pub(crate) staged: Staged,
    pub(crate) effect: Effect,
    /// The actual history at the read version.
    pub(crate) sums: [i64; KEYS],
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) rows: Arc<Rows>,
    /// The version of the last commit that has added a block.
    pub(crate) version: i64,
    pub(crate) flights: Vec<Flight>,
    /// The blocks that are not yet added, by number.
    pub(crate) to_add: Vec<usize>,
    pub(crate) budget: Budget,
    /// The sum of each key's committed updates that decode, and of its loaded value.
    pub(crate) sums: [i64; KEYS],
    /// The number of committed updates that do not decode.
    pub(crate) broken: usize,
    /// The new value of each key's last report, or its loaded value.
    pub(crate) reported: [Option<i64>; KEYS],
    /// Whether a report had a new value that was not the sum at its pass's read version.
    pub(crate) has_wrong_new: bool,
    /// Whether a report had an old value that was not the new value of the previous report.
    pub(crate) has_wrong_old: bool,
    /// Whether a pass recorded that it left nothing to report, although it left something.
    pub(crate) has_false_end: bool,
}

impl State {
    pub(crate) fn new(block_count: usize, budget: Budget) -> Self {
        Self {
            rows: Arc::default(),
            version: VERSIONS_APART,
            flights: Vec::new(),
            to_add: (0..block_count).collect(),
            budget,
            sums: [0; KEYS],
            broken: 0,
            reported: [None; KEYS],
            has_wrong_new: false,
            has_wrong_old: false,
            has_false_end: false,
        }
    }

    /// Commits at the latest version, and removes the transactions that this makes fail.
    pub(crate) fn commit(&mut self, protocol: &Protocol, flight: Flight) {
        if flight.staged.appends() {
            self.version += VERSIONS_APART;
        }
        self.commit_at(protocol, self.version, flight);
    }

    /// Commits with this version in its versionstamp.
    pub(crate) fn commit_at(&mut self, protocol: &Protocol, stamp: i64, flight: Flight) {
        let Flight {
            staged,
            effect,
            sums,
        } = flight;
        let mut rows = staged.applied(&self.rows, stamp);
        self.flights
            .retain(|other| !staged.dooms(stamp, &other.staged));
        for (key, old, new) in effect.reports.iter().flatten() {
            self.has_wrong_new |= new.unwrap_or(0) != sums[*key];
            self.has_wrong_old |= *old != self.reported[*key];
            self.reported[*key] = *new;
        }
        if effect.reports.is_some() {
            let says_end = forget_versions(protocol, &mut rows);
            let is_reported = |key: usize| {
                let currents = current(protocol, &rows, key);
                let is_withheld = currents.is_some_and(|current| current.is_withheld);
                is_withheld || value(protocol, &rows, key).unwrap_or(0) == sums[key]
            };
            self.has_false_end |= says_end && !(0..KEYS).all(is_reported);
        }
        self.rows = Arc::new(rows);
        for key in 0..KEYS {
            self.sums[key] += effect.added[key];
        }
        self.broken += effect.broken;
        if let Some(key) = effect.loaded {
            self.sums[key] += LOADED;
            self.reported[key] = Some(LOADED);
        }
    }

    /// Returns a version for a versionstamp right before that of a block in the log, given its index.
    pub(crate) fn version_before(&self, protocol: &Protocol, place: usize) -> i64 {
        let (block, _) = log(protocol, &self.rows)[place];
        // Later ones go further to the front, so that no versionstamp occurs twice.
        let back = 1 + VERSIONS_APART / 4 * self.budget.restored as i64;
        block - back
    }
}

/// Removes the versions from the state of the passes, since nothing depends on them. Returns whether the
/// last pass recorded that it left nothing to report.
fn forget_versions(protocol: &Protocol, rows: &mut Rows) -> bool {
    let key = protocol.queue.keys.pass(BUCKET);
    let state = state_of_passes(protocol, rows);
    let without = PassState {
        last: 0,
        complete: 0,
        ..state
    };
    rows.insert(key.into(), without.encode().into());
    state.complete != 0
}

pub(crate) fn state_of_passes(protocol: &Protocol, rows: &Rows) -> PassState {
    let key = protocol.queue.keys.pass(BUCKET);
    PassState::decode(&key, rows.get(&key[..]).map(|stored| &stored[..])).unwrap()
}

/// Returns the versions of the blocks in the log, and the blocks.
pub(crate) fn log<'a>(protocol: &Protocol, rows: &'a Rows) -> Vec<(i64, &'a Bytes)> {
    let logs = &protocol.queue.keys.logs;
    let prefix = logs.subspace(BUCKET.0).into_bytes().len() + 1;
    let blocks = rows_of(rows, &logs.after(BUCKET.0, None));
    let version = |key: &Bytes| {
        let bytes = key[prefix..].first_chunk().expect("a versionstamp");
        i64::from_be_bytes(*bytes)
    };
    blocks.map(|(key, block)| (version(key), block)).collect()
}

/// Returns the value of a key as last reported.
pub(crate) fn value(protocol: &Protocol, rows: &Rows, key: usize) -> Option<i64> {
    let row = protocol.queue.keys.value(&protocol.encoded[key]);
    let bytes = decode_value(&row, rows.get(&row[..])?).unwrap();
    protocol.queue.decode_stored(&Some(bytes)).unwrap()
}

/// Returns the current value of a key.
pub(crate) fn current(protocol: &Protocol, rows: &Rows, key: usize) -> Option<Current> {
    let row = protocol.queue.keys.current(&protocol.encoded[key]);
    Some(Current::decode(&row, rows.get(&row[..])?).unwrap())
}

/// Returns the ids of the records that are set aside.
pub(crate) fn aside(protocol: &Protocol, rows: &Rows) -> Vec<AsideId> {
    let keys = &protocol.queue.keys;
    let found = rows_of(rows, &keys.all_aside()).map(|(row, _)| row);
    let id = |row: &Bytes| match keys.parse_aside(row).unwrap() {
        AsideKey::Key(key) => AsideId::Key(key.into()),
        AsideKey::Update(bucket, id) => AsideId::Update { bucket, id },
    };
    found.map(id).collect()
}
