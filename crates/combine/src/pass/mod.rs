//! A pass: one transaction that folds updates of a bucket and reports the changes.
//!
//! A pass makes all its reads before its first write:
//!
//! 1. It reads the state of the passes serializably, and always writes it, so two concurrent passes over
//!    one bucket never both commit. The result therefore does not depend on which session holds the
//!    bucket.
//! 2. It reads blocks of updates from the start of the log, up to a number of bytes. A [read conflict
//!    range](Portion::remove) protects the blocks that it takes.
//! 3. It reads the values of their keys by snapshot, and adds one read conflict range over the bucket's
//!    values and one over its current values. A bulk load of the same bucket therefore conflicts with it.
//!    It takes updates, in order, for as many keys as its budget of transaction bytes allows. The last
//!    update taken may be inside a block: one block can have updates of more keys with large values than
//!    fit a transaction.
//! 4. It folds the updates. If it has reached the end of the log, it reports as many changes as the
//!    budget of changes allows, and reserves half of them for keys that have waited. All other new values
//!    become current values. A hash of the read version determines with which of the waiting keys it
//!    begins: if more keys change all the time than one pass can report, each has its turn. If the
//!    observer cannot handle the changes, their number shrinks, but not the number of updates taken: a
//!    bucket that receives fewer updates than passes take always reaches the end of its log.
//! 5. It clears the blocks, and stages the values.
//! 6. It calls the observer last. An update that the observer adds to the same bucket goes to the end of
//!    the log, in a range that a later clear would empty.
//!
//! A report therefore covers every update that was committed before the reporting pass began. The old
//! value of a report is the new value of the previous one, because only reports write values, and they
//! follow one another.
//!
//! # Reads, writes and conflicts
//!
//! Letters are the parts of the layout in `keys.rs`.
//!
//! | step | reads | reads by snapshot | writes | conflicts with a transaction that |
//! |---|---|---|---|---|
//! | pass | `x`; `u` from the start of the log to the last block that it takes updates of; all `v` and `c` of the bucket, if it reads values | `u`, `v` and `c`, as far as it needs them | clears the `u` that it has folded completely; `x`; `v`, `c` and `q` of its keys; what the observer writes | made a pass over the bucket; initialized a key of the bucket; redrove a key of the bucket; wrote what the observer has read |
//!
//! An addition never makes a pass fail, and a pass never an addition: additions read nothing, and their rows go after
//! the blocks that a pass has read.

pub(crate) mod combining;
mod decide;
mod log;
pub(crate) mod metrics;
pub(crate) mod observer;
pub(crate) mod options;
pub(crate) mod typed;
mod values;

use futures::try_join;
use hc_dequeue::keyspace::names::queue_name;
use hc_dequeue::keyspace::{Bytes, ConflictKind, Isolation, Transaction};
use xxhash_rust::xxh3::xxh3_64;

use crate::bucket::{Bucket, KeyHash};
use crate::error::Result;
use crate::keys::Keys;
use crate::pass::decide::{ChangeBudget, KeyValues, PassEnd, Staged, Verdict};
use crate::pass::log::Portion;
use crate::pass::typed::{FoldedKey, TypedPass};
use crate::pass::values::{ReadKey, Waiting, cost, take, waiting};
use crate::record::{
    Current, PassState, encode_block_aside, encode_update_aside, encode_value, encode_withheld,
};

/// The limits of a pass.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// How many bytes of the transaction the pass uses for itself. It takes at least one update.
    pub(crate) budget: usize,
    /// How many changes the pass reports, at least one.
    pub(crate) max_changes: usize,
    /// The key whose change is withheld instead of reported, and the reason.
    pub(crate) withheld: Option<(Bytes, String)>,
}

/// How many bytes of updates a pass reads for each byte of its transaction. Several updates of a key
/// result in one value, and a pass that does not reach the end of the log writes values that the next one
/// writes again.
const LOG_BYTES_PER_BYTE: usize = 2;

impl Plan {
    /// Returns how many bytes of updates the pass reads.
    fn log_bytes(&self) -> usize {
        self.budget.saturating_mul(LOG_BYTES_PER_BYTE)
    }

    /// Returns the plan for an attempt. Each attempt does less than the one before, so that a pass that
    /// takes too long for a transaction, or conflicts, succeeds in the end.
    pub(crate) fn for_attempt(&self, number: u32) -> Self {
        let halvings = number.saturating_sub(1);
        let shrink = |budget: usize| budget.checked_shr(halvings).unwrap_or(0).max(1);
        Self {
            budget: shrink(self.budget),
            max_changes: shrink(self.max_changes),
            withheld: self.withheld.clone(),
        }
    }
}

/// The result of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Pass {
    pub(crate) updates: usize,
    /// The approximate number of transaction bytes that the pass has staged by itself.
    pub(crate) bytes: usize,
    pub(crate) changes: usize,
    pub(crate) set_aside: usize,
    /// Whether the bucket has more work: updates in the log, or values to report.
    pub(crate) has_more: bool,
}

/// A pass that is staged, except for the writes of the observer.
#[derive(Debug, Default)]
pub(crate) struct StagedPass {
    pub(crate) pass: Pass,
    /// The encoded keys of the changes.
    pub(crate) changed: Vec<Bytes>,
    leaves_to_report: bool,
    leaves_withheld: bool,
}

/// Stages a pass over a bucket, except for the writes of the observer. Its changes go to `typed`.
///
/// # Conflicts
/// Reads the state of the bucket's passes, its log from the start to the last block that it takes,
/// and all its values and current values.
pub(crate) async fn stage_pass(
    tr: &impl Transaction,
    keys: &Keys,
    bucket: Bucket,
    plan: &Plan,
    typed: &mut dyn TypedPass,
) -> Result<StagedPass> {
    let state_key = keys.pass(bucket);
    let (stored, version) = try_join!(
        tr.get(&state_key, Isolation::Serializable),
        tr.read_version()
    )?;
    let state = PassState::decode(&state_key, stored.as_deref())?;
    let portion = Portion::read(tr, keys, bucket, state.position, plan.log_bytes()).await?;
    if portion.is_empty() && !state.has_to_report {
        return Ok(StagedPass::default());
    }
    let (taken, read) = take(tr, keys, &portion, &state, plan.budget).await?;
    let has_reached_end = portion.is_whole && taken == portion.updates.len();
    let budget = ChangeBudget::new(if has_reached_end { plan.max_changes } else { 0 });
    let scans = has_reached_end && state.has_to_report;
    let turn = xxh3_64(&version.to_be_bytes());
    let waiting = if scans {
        let limits = (budget.for_waiting(), plan.budget.div_ceil(2));
        waiting(tr, keys, bucket, &read, turn, limits).await?
    } else {
        Waiting::default()
    };

    // All reads are done. The writes start here.
    if !(read.is_empty() && waiting.keys.is_empty()) {
        for (begin, end) in [keys.values_of(bucket), keys.currents_of(bucket)] {
            tr.add_conflict_range(ConflictKind::Read, &begin, &end)?;
        }
    }
    portion.remove(tr, keys, bucket, taken)?;
    let mut writes = PassWrites {
        tr,
        keys,
        bucket,
        portion: &portion,
        plan,
        budget,
        staged: StagedPass::default(),
    };
    writes.staged.leaves_withheld = waiting.has_withheld;
    writes.set_broken_aside(taken);
    for key in in_turn(waiting.keys, read, turn, budget) {
        let key = typed.fold(&portion, key);
        writes.set_updates_aside(&key);
        writes.stage_key(key, typed);
    }
    let mut staged = writes.staged;
    let after = state.after(PassEnd {
        version,
        has_reached_end,
        scanned: if scans { Some(waiting.is_whole) } else { None },
        leaves_to_report: staged.leaves_to_report,
        leaves_withheld: staged.leaves_withheld,
        position: portion.position(taken),
    });
    tr.set(&state_key, &after.encode());
    staged.pass.updates = taken;
    staged.pass.changes = staged.changed.len();
    staged.pass.has_more = !has_reached_end || after.has_to_report;
    Ok(staged)
}

/// Stages the writes of a pass. Its reads are done.
struct PassWrites<'a, T> {
    tr: &'a T,
    keys: &'a Keys,
    bucket: Bucket,
    portion: &'a Portion,
    plan: &'a Plan,
    budget: ChangeBudget,
    staged: StagedPass,
}

impl<T: Transaction> PassWrites<'_, T> {
    /// Stages that the broken blocks among those taken are set aside.
    fn set_broken_aside(&mut self, taken: usize) {
        for (block, broken) in self.portion.broken(taken) {
            let reason = &broken.reason;
            let queue = queue_name(&self.keys.queue);
            tracing::warn!(%queue, bucket = %self.bucket, id = ?block.id, reason, "set a block aside");
            let row = self.keys.aside(self.bucket, &block.id);
            let record = encode_block_aside(reason, broken.folded, &block.bytes);
            self.set_aside(&row, &record);
        }
    }

    /// Stages that the updates of a key that cannot be folded are set aside.
    fn set_updates_aside(&mut self, key: &FoldedKey) {
        for (place, reason) in &key.aside {
            let update = &self.portion.updates[*place];
            let queue = queue_name(&self.keys.queue);
            tracing::warn!(%queue, key = ?key.key, id = ?update.id, reason, "set an update aside");
            let row = self.keys.aside(self.bucket, &update.id);
            // The record contains the reason, so it may be many times as large as the update.
            let record = encode_update_aside(reason, &update.key, &update.update);
            self.set_aside(&row, &record);
        }
    }

    fn set_aside(&mut self, row: &[u8], record: &[u8]) {
        self.staged.pass.set_aside += 1;
        self.staged.pass.bytes += cost(row, record.len());
        self.tr.set(row, record);
    }

    /// Stages the result for a key.
    fn stage_key(&mut self, key: FoldedKey, typed: &mut dyn TypedPass) {
        let FoldedKey {
            key, folded, read, ..
        } = key;
        let values = match folded {
            Ok(values) => values,
            Err(reason) => return self.stage_undecodable(&key, read, &reason),
        };
        let withheld = self.plan.withheld.as_ref();
        let mut refusal = withheld
            .filter(|(withheld, _)| *withheld == key)
            .map(|(_, reason)| reason.clone());
        let is_reportable = values.is_changed() && !values.is_withheld();
        let verdict = if refusal.is_some() {
            // It was the only change of the pass. Another change in its place might be too large as well,
            // and then each of two such keys would be withheld because of the other.
            self.budget.spend();
            Verdict::Withhold
        } else if is_reportable && self.budget.spend() {
            match typed.report(&values.reported) {
                Ok(()) => Verdict::Report,
                Err(reason) => {
                    refusal = Some(reason);
                    Verdict::Withhold
                }
            }
        } else {
            Verdict::Defer
        };
        let decision = values.decide(verdict);
        write_key(self.tr, self.keys, &key, &values, decision);
        let new_bytes = values.new.as_ref().map_or(0, Bytes::len);
        self.staged.pass.bytes += cost(&key, new_bytes);
        match decision {
            Staged::Report => self.staged.changed.push(key),
            Staged::Withhold if !values.is_withheld() => {
                let reason = refusal.unwrap_or_default();
                self.stage_withheld(&key, &reason);
            }
            Staged::Withhold => self.staged.leaves_withheld = true,
            Staged::Keep => self.staged.leaves_to_report = true,
            Staged::Nothing if values.is_withheld() => self.staged.leaves_withheld = true,
            Staged::Nothing => self.staged.leaves_to_report |= values.current.is_some(),
            Staged::Restore => {}
        }
    }

    /// Stages that the reports of a key whose values do not decode are withheld.
    fn stage_undecodable(&mut self, key: &[u8], read: ReadKey, reason: &str) {
        let has_updates = !read.places.is_empty();
        match read.current {
            Ok(None) => {}
            Ok(Some(current)) if has_updates && current.is_withheld => {
                self.staged.leaves_withheld = true;
            }
            // A later read of the current values finds it.
            Ok(Some(_)) if has_updates => self.staged.leaves_to_report = true,
            Ok(Some(current)) => {
                let current = Current {
                    is_withheld: true,
                    ..current
                };
                self.tr.set(&self.keys.current(key), &current.encode());
                self.stage_withheld(key, reason);
            }
            // A record that does not decode has no flag to set.
            Err(_) => self.stage_withheld(key, reason),
        }
    }

    fn stage_withheld(&mut self, key: &[u8], reason: &str) {
        let queue = queue_name(&self.keys.queue);
        tracing::warn!(%queue, ?key, reason, "the reports of a key are withheld");
        self.tr
            .set(&self.keys.withheld(key), &encode_withheld(reason));
        self.staged.pass.set_aside += 1;
        self.staged.leaves_withheld = true;
    }
}

/// Stages the values of a key.
fn write_key(tr: &impl Transaction, keys: &Keys, key: &[u8], values: &KeyValues, decision: Staged) {
    let has_current = values.current.is_some();
    match decision {
        Staged::Nothing => {}
        Staged::Restore => {
            tr.clear(&keys.current(key));
            if values.is_withheld() {
                tr.clear(&keys.withheld(key));
            }
        }
        Staged::Report => {
            match &values.new {
                Some(new) => tr.set(&keys.value(key), &encode_value(new)),
                None => tr.clear(&keys.value(key)),
            }
            if has_current {
                tr.clear(&keys.current(key));
            }
        }
        Staged::Keep | Staged::Withhold => {
            let current = Current {
                bytes: values.new.clone(),
                is_withheld: decision == Staged::Withhold,
            };
            tr.set(&keys.current(key), &current.encode());
        }
    }
}

/// Returns the keys of a pass in the order in which they are reported until the budget is spent. Keys
/// that have waited come before new ones, and `turn` determines which of the keys with updates comes
/// first. If the budget is enough for all keys, or for none, the order is that of their values in the
/// store, since writes in key order are the cheapest.
fn in_turn(
    waited: Vec<ReadKey>,
    read: Vec<ReadKey>,
    turn: u64,
    budget: ChangeBudget,
) -> Vec<ReadKey> {
    let mut keys = waited;
    if !budget.divides(keys.len() + read.len()) {
        keys.extend(read);
        keys.sort_by_cached_key(|key| (KeyHash::of(&key.key), key.key.clone()));
        return keys;
    }
    let is_known = |key: &ReadKey| !matches!(key.current, Ok(None));
    let (mut known, new): (Vec<_>, Vec<_>) = read.into_iter().partition(is_known);
    if let Some(first) = turn.checked_rem(known.len() as u64) {
        known.rotate_left(usize::try_from(first).expect("less than a length"));
    }
    keys.extend(known.into_iter().chain(new));
    keys
}
