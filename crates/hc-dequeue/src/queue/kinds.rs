//! Which kinds of items wait, and how many sessions take them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use futures::try_join;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Isolation, RangeQuery, Transaction, visit_rows};

use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::kind::{Kind, parse_kinds};
use crate::items::part::Part;
use crate::queue::handle::Queue;

/// How many of the first items to look at, in lanes and outside. Reaching either limit ends the search.
struct First {
    items: usize,
    bytes: usize,
}

const FIRST: First = First {
    items: 1_000,
    bytes: 1_000_000,
};

/// Those looked at for kinds that no session takes.
const FIRST_FEW: First = First {
    items: 100,
    bytes: 80_000,
};

/// How many rows are read for these. Lanes have rows without items.
const MAX_ROWS: usize = 10_000;

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
    /// the first 1,000 items in no lane and the first 1,000 in lanes, or at fewer in 10,000 rows or a million bytes,
    /// and at 10,000 sessions. Delayed items are not counted, also if they are due and no session takes their kind. A
    /// session that has died counts until its items have gone back.
    ///
    /// # Conflicts
    /// Reads by snapshot, and a key that only [`clear`](microqueue::MicroQueue::clear) of a microqueue writes.
    ///
    /// # Errors
    /// [`ReadAfterWrite`](microqueue::Error::ReadAfterWrite) after an enqueue in the same transaction; those of the
    /// reads.
    pub async fn kinds(&self, tr: &impl Transaction) -> Result<Vec<KindState>> {
        let keys = &*self.keys;
        let (waiting, taken) = try_join!(waiting_kinds(tr, keys, &FIRST), taken_kinds(tr, keys))?;
        let mut kinds: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (kind, sessions) in &taken {
            kinds.entry(kind.name()).or_default().0 += sessions;
        }
        for kind in &waiting {
            kinds.entry(kind.name()).or_default().1 += 1;
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

    /// Returns those kinds of the first items that wait which no session takes, in alphabetical order: no worker knows
    /// them. Reads less than [`kinds`](Self::kinds): the first 100 items in no lane and the first 100 in lanes, or
    /// fewer if they are large, and 10,000 sessions if any of the items has a kind.
    ///
    /// # Conflicts
    /// As [`kinds`](Self::kinds).
    ///
    /// # Errors
    /// As [`kinds`](Self::kinds).
    pub async fn unknown_kinds(&self, tr: &impl Transaction) -> Result<Vec<String>> {
        let keys = &*self.keys;
        let waiting = waiting_kinds(tr, keys, &FIRST_FEW).await?;
        let mut waiting: BTreeSet<Kind> = waiting.into_iter().collect();
        waiting.remove(&Kind::NONE);
        if waiting.is_empty() {
            return Ok(Vec::new());
        }
        let unknown = not_taken(tr, keys, &waiting).await?;
        Ok(unknown.iter().map(|kind| kind.name().to_owned()).collect())
    }
}

/// Returns the kind of each of the first items that wait.
///
/// # Conflicts
/// As [`Queue::kinds`].
async fn waiting_kinds(tr: &impl Transaction, keys: &Keys, first: &First) -> Result<Vec<Kind>> {
    keys.refuse_after_enqueue(tr).await?;
    let (mut kinds, in_lanes) = try_join!(
        first_kinds(tr, keys, keys.outside_lanes(), first),
        first_kinds(tr, keys, keys.part(Part::Lanes), first),
    )?;
    kinds.extend(in_lanes);
    Ok(kinds)
}

/// Returns the kinds of the first items that wait between two keys.
async fn first_kinds(
    tr: &impl Transaction,
    keys: &Keys,
    (begin, end): (Vec<u8>, Vec<u8>),
    first: &First,
) -> Result<Vec<Kind>> {
    let query = RangeQuery::keys(begin, end).limit(MAX_ROWS);
    let mut kinds = Vec::new();
    let mut bytes = 0;
    // Safe as a snapshot read: nothing is written.
    let visited = visit_rows(tr, query, Isolation::Snapshot, |row| {
        bytes += row.key().len() + row.value().len();
        if let Ok(item) = keys.decode_queued(&row) {
            kinds.push(item.value.kind);
        }
        Ok::<_, Error>(if kinds.len() == first.items || bytes >= first.bytes {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    });
    visited.await?;
    Ok(kinds)
}

/// Returns which of some kinds no session takes.
///
/// # Conflicts
/// Reads by snapshot.
pub(crate) async fn not_taken(
    tr: &impl Transaction,
    keys: &Keys,
    kinds: &BTreeSet<Kind>,
) -> Result<BTreeSet<Kind>> {
    let taken = taken_kinds(tr, keys).await?;
    let unknown = kinds.iter().filter(|kind| !taken.contains_key(kind));
    Ok(unknown.cloned().collect())
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
