//! Which kinds of items wait, and how many sessions take them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use futures::try_join;
use microqueue::Item;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Isolation, KeyValue, RangeQuery, Transaction, visit_rows};

use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::kind::{Kind, parse_kinds};
use crate::items::part::Part;
use crate::items::record::Record;
use crate::queue::handle::Queue;
use crate::session::wall::wall_millis;

/// How many of the first items to look at: in lanes, in none, and of those that are due. Reaching either limit ends a
/// search.
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

/// How many rows with the states of lanes are read besides.
const MAX_STATE_ROWS: usize = 10_000;

/// How many sessions are looked at.
const MAX_SESSIONS: usize = 10_000;

/// How many bytes of their kinds are read. The last row may exceed it.
const MAX_SESSION_BYTES: usize = 4_000_000;

/// A kind of items that wait, or that sessions take.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KindState {
    /// The kind.
    pub kind: String,
    /// How many sessions take items of this kind. If none does while items wait, no worker knows the kind.
    pub sessions: u64,
    /// How many such items are among the first ones that wait, or are delayed and due.
    pub waiting: u64,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Returns the kinds of the first items that wait, and those that sessions take, in alphabetical order. An item
    /// that is due by the wall clock of this process waits, too: without a session that takes its kind, it stays
    /// delayed.
    ///
    /// Looks at the first 1,000 items in no lane, the first 1,000 in lanes and the first 1,000 that are due, or at
    /// fewer if they have a million bytes or come after 10,000 rows with limits and states of groups. Looks at 10,000
    /// sessions, or fewer if their kinds have 4 million bytes. A session that has died counts until its items have gone
    /// back.
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
    /// them. Reads less than [`kinds`](Self::kinds): the first 100 of each, or fewer if they have 80,000 bytes, and
    /// sessions only until each of these kinds is found. If there are more sessions than it looks at, it returns none.
    ///
    /// # Conflicts
    /// As [`kinds`](Self::kinds).
    ///
    /// # Errors
    /// As [`kinds`](Self::kinds).
    pub async fn unknown_kinds(&self, tr: &impl Transaction) -> Result<Vec<String>> {
        let unknown = unknown_kinds(tr, &self.keys, BTreeSet::new()).await?;
        Ok(unknown.iter().map(|kind| kind.name().to_owned()).collect())
    }
}

/// Returns which kinds no session takes: of those that a session has met, and of the first items that wait.
///
/// # Conflicts
/// As [`Queue::kinds`].
pub(crate) async fn unknown_kinds(
    tr: &impl Transaction,
    keys: &Keys,
    met: BTreeSet<Kind>,
) -> Result<BTreeSet<Kind>> {
    let mut unknown = met;
    unknown.extend(waiting_kinds(tr, keys, &FIRST_FEW).await?);
    unknown.remove(&Kind::NONE);
    if unknown.is_empty() {
        return Ok(unknown);
    }
    let has_seen_all = visit_taken(tr, keys, |kinds| {
        for kind in kinds {
            unknown.remove(&kind);
        }
        if unknown.is_empty() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    if !has_seen_all.await? {
        // The other sessions may take them.
        unknown.clear();
    }
    Ok(unknown)
}

/// Returns the kind of each of the first items that wait, or are due.
///
/// # Conflicts
/// As [`Queue::kinds`].
async fn waiting_kinds(tr: &impl Transaction, keys: &Keys, first: &First) -> Result<Vec<Kind>> {
    keys.refuse_after_enqueue(tr).await?;
    let queued = |row: &KeyValue| keys.decode_queued(row).ok();
    let delayed = |row: &KeyValue| {
        let ready_millis = keys.parse_ready(row).ok()?;
        keys.delayed(ready_millis).decode(row).ok()
    };
    let due = keys.due(wall_millis(&keys.env));
    let (mut kinds, in_lanes, due) = try_join!(
        first_kinds(tr, keys, keys.outside_lanes(), first, queued),
        first_kinds(tr, keys, keys.part(Part::Lanes), first, queued),
        first_kinds(tr, keys, due, first, delayed),
    )?;
    kinds.extend(in_lanes);
    kinds.extend(due);
    Ok(kinds)
}

/// Returns the kinds of the first items between two keys.
async fn first_kinds(
    tr: &impl Transaction,
    keys: &Keys,
    (begin, end): (Vec<u8>, Vec<u8>),
    first: &First,
    decode: impl Fn(&KeyValue) -> Option<Item<Record>>,
) -> Result<Vec<Kind>> {
    let query = RangeQuery::keys(begin, end);
    let mut kinds = Vec::new();
    let mut bytes = 0;
    let mut state_rows = 0;
    // Safe as a snapshot read: nothing is written.
    let visited = visit_rows(tr, query, Isolation::Snapshot, |row| {
        if keys.is_lane_state(row.key()) {
            state_rows += 1;
        } else {
            bytes += row.key().len() + row.value().len();
            kinds.extend(decode(&row).map(|item| item.value.kind));
        }
        let ends =
            kinds.len() == first.items || bytes >= first.bytes || state_rows == MAX_STATE_ROWS;
        Ok::<_, Error>(if ends {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    });
    visited.await?;
    Ok(kinds)
}

/// Returns the kinds that sessions take, and how many sessions take each.
async fn taken_kinds(tr: &impl Transaction, keys: &Keys) -> Result<BTreeMap<Kind, u64>> {
    let mut taken = BTreeMap::new();
    let visited = visit_taken(tr, keys, |kinds| {
        for kind in kinds {
            *taken.entry(kind).or_default() += 1;
        }
        ControlFlow::Continue(())
    });
    visited.await?;
    Ok(taken)
}

/// Visits the kinds of each session. Returns whether all sessions were visited.
async fn visit_taken(
    tr: &impl Transaction,
    keys: &Keys,
    mut visit: impl FnMut(Vec<Kind>) -> ControlFlow<()>,
) -> Result<bool> {
    let (begin, end) = keys.part(Part::SessionKinds);
    let query = RangeQuery::keys(begin, end);
    let mut sessions = 0;
    let mut bytes = 0;
    let mut is_complete = true;
    // Safe as a snapshot read: nothing is written.
    let visited = visit_rows(tr, query, Isolation::Snapshot, |row| {
        if sessions == MAX_SESSIONS || bytes >= MAX_SESSION_BYTES {
            is_complete = false;
            return Ok::<_, Error>(ControlFlow::Break(()));
        }
        sessions += 1;
        bytes += row.key().len() + row.value().len();
        // An audit finds rows that do not decode.
        let kinds = parse_kinds(row.value()).unwrap_or_default();
        Ok(visit(kinds))
    });
    visited.await?;
    Ok(is_complete)
}

#[cfg(test)]
mod tests {
    use microqueue::keyspace::{Database, Environment, Subspace};

    use super::*;
    use crate::items::kind::{Kinds, MAX_KIND_BYTES, MAX_KINDS};
    use crate::session::SessionId;
    use crate::tests::memory;

    fn kind(name: &str) -> Kind {
        Kind::new(name).unwrap()
    }

    #[tokio::test]
    async fn a_kind_that_a_session_may_take_that_was_not_looked_at_is_not_unknown() {
        let keys = Keys::new(Subspace::from_bytes(b"Q"), Environment::system());
        let tr = memory().begin().unwrap();
        // As many and as long ones as a session can take.
        let many = (0..MAX_KINDS).map(|number| kind(&format!("{number:0MAX_KIND_BYTES$}")));
        let row = Kinds::new(many.collect()).to_row().unwrap();
        let sessions = MAX_SESSION_BYTES.div_ceil(row.len());
        let met = BTreeSet::from([kind("invoice")]);
        for (sessions, expected) in [(sessions - 1, met.clone()), (sessions + 1, BTreeSet::new())] {
            for number in 0..sessions as u128 {
                tr.set(&keys.session_kinds(SessionId(number.to_be_bytes())), &row);
            }
            let unknown = unknown_kinds(&tr, &keys, met.clone()).await.unwrap();
            assert_eq!(unknown, expected);
        }
    }
}
