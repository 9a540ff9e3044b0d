//! Which kinds of items wait, and how many sessions take them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use futures::try_join;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Isolation, KeyValue, RangeQuery, Transaction, visit_rows};

use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::kind::{Kind, parse_kinds};
use crate::items::part::Part;
use crate::items::scan::{ReadLimit, first_items};
use crate::queue::handle::Queue;

/// How many of the first items are looked at, in lanes and outside.
const FIRST: ReadLimit = ReadLimit {
    items: 1_000,
    row_bytes: 1_000_000,
};

/// How many sessions are looked at.
const MAX_SESSIONS: usize = 10_000;

/// A kind of items that wait, or that sessions take.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KindState {
    /// The kind.
    pub kind: String,
    /// How many sessions take items of this kind. If none does while items wait, no worker knows the kind.
    pub sessions: u64,
    /// How many such items are among the first ones that wait.
    pub waiting: u64,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Returns the kinds of the first items that wait, and those that sessions take, in alphabetical order. Looks at
    /// the first 1,000 items in no lane and the first 1,000 in lanes, or at fewer if they are large, and at 10,000
    /// sessions. A session that has died counts until its items have gone back.
    ///
    /// # Conflicts
    /// Reads by snapshot, and a key that only [`clear`](microqueue::MicroQueue::clear) of a microqueue writes.
    ///
    /// # Errors
    /// [`ReadAfterWrite`](microqueue::Error::ReadAfterWrite) after an enqueue in the same transaction; those of the
    /// reads.
    pub async fn kinds(&self, tr: &impl Transaction) -> Result<Vec<KindState>> {
        let keys = &*self.keys;
        keys.refuse_after_enqueue(tr).await?;
        let decode = |row: &KeyValue| keys.decode_queued(row).ok();
        let (outside, in_lanes, taken) = try_join!(
            first_items(tr, keys.outside_lanes(), FIRST, decode),
            first_items(tr, keys.part(Part::Lanes), FIRST, decode),
            taken_kinds(tr, keys),
        )?;
        let mut kinds: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (kind, sessions) in &taken {
            kinds.entry(kind.name()).or_default().0 += sessions;
        }
        for item in outside.iter().chain(&in_lanes) {
            kinds.entry(item.value.kind.name()).or_default().1 += 1;
        }
        // Items without a kind are those of other numbers, and sessions that take only these store nothing.
        kinds.remove("");
        let kinds = kinds
            .into_iter()
            .map(|(kind, (sessions, waiting))| KindState {
                kind: kind.to_owned(),
                sessions,
                waiting,
            });
        Ok(kinds.collect())
    }
}

/// Returns which of some kinds no session takes.
///
/// # Conflicts
/// Reads by snapshot.
pub(crate) async fn not_taken(
    tr: &impl Transaction,
    keys: &Keys,
    mut kinds: BTreeSet<Kind>,
) -> Result<BTreeSet<Kind>> {
    let taken = taken_kinds(tr, keys).await?;
    kinds.retain(|kind| !taken.contains_key(kind));
    Ok(kinds)
}

/// Returns the kinds that sessions take, and how many sessions take each.
async fn taken_kinds(tr: &impl Transaction, keys: &Keys) -> Result<BTreeMap<Kind, u64>> {
    let (begin, end) = keys.part(Part::SessionKinds);
    let query = RangeQuery::keys(begin, end).limit(MAX_SESSIONS);
    let mut taken = BTreeMap::new();
    // Safe as a snapshot read: nothing is written.
    let visited = visit_rows(tr, query, Isolation::Snapshot, |row| {
        // An audit finds rows that do not decode.
        for kind in parse_kinds(row.value()).into_iter().flatten() {
            *taken.entry(kind).or_default() += 1;
        }
        Ok::<_, Error>(ControlFlow::Continue(()))
    });
    visited.await?;
    Ok(taken)
}
