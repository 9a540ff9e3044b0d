//! The staged writes of a transaction: a plain list, which is read from the start for every question.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use keyspace::{MutationOp, Versionstamp, key_after};

use super::atomic;

/// An operation on one key: a set, or an atomic operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyOp {
    Set(Bytes),
    Atomic(MutationOp, Bytes),
}

impl KeyOp {
    fn is_stamped(&self) -> bool {
        use MutationOp::{SetVersionstampedKey, SetVersionstampedValue};
        matches!(
            self,
            Self::Atomic(SetVersionstampedKey | SetVersionstampedValue, _)
        )
    }

    /// Whether the result is independent of the key's earlier value.
    fn is_independent(&self) -> bool {
        matches!(self, Self::Set(_)) || self.is_stamped()
    }
}

/// A write that is sent to the store at commit.
#[derive(Debug, Clone)]
pub(super) enum Mutation {
    Clear(Bytes, Bytes),
    Key(Bytes, KeyOp),
}

impl Mutation {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Clear(begin, end) => begin.len() + end.len(),
            Self::Key(key, KeyOp::Set(param) | KeyOp::Atomic(_, param)) => key.len() + param.len(),
        }
    }
}

#[derive(Debug, Clone)]
enum LoggedWrite {
    Key(Bytes, KeyOp),
    Clear(Bytes, Bytes),
    /// The keys that a versionstamped key may become. Earlier writes to these keys have been sent. From
    /// here on, the keys cannot be read.
    Unreadable(Bytes, Bytes),
}

/// The staged writes of a transaction.
#[derive(Debug, Clone, Default)]
pub(super) struct Writes {
    log: Vec<LoggedWrite>,
    sent: Vec<Mutation>,
}

/// The effect of the writes on one key.
#[derive(Debug, Clone, Default)]
pub(super) struct StagedKey {
    pub(super) cleared: bool,
    pub(super) ops: Vec<KeyOp>,
    pub(super) unreadable: bool,
}

impl StagedKey {
    fn push(&mut self, op: &KeyOp) {
        use KeyOp::Atomic;
        use MutationOp::AppendIfFits;
        if op.is_independent() && !self.unreadable {
            self.ops.clear();
        }
        self.unreadable |= op.is_stamped();
        // The client merges appends before it sends anything. Two appends that do not fit together
        // therefore act as one that does not fit.
        if let (Some(Atomic(AppendIfFits, last)), Atomic(AppendIfFits, param)) =
            (self.ops.last_mut(), op)
            && !self.unreadable
        {
            let merged = atomic::apply(AppendIfFits, Some(last), param);
            *last = merged.expect("an append keeps the value").into();
        } else {
            self.ops.push(op.clone());
        }
    }

    /// Whether the value that the transaction reads here is independent of the store.
    pub(super) fn is_independent(&self) -> bool {
        self.cleared || self.ops.first().is_some_and(KeyOp::is_independent)
    }

    /// Returns the value that the transaction reads here if the store holds `stored`.
    pub(super) fn value(&self, stored: Option<&Bytes>) -> Option<Bytes> {
        let stored = if self.cleared { None } else { stored.cloned() };
        self.ops.iter().fold(stored, |old, op| match op {
            KeyOp::Set(value) => Some(value.clone()),
            KeyOp::Atomic(MutationOp::SetVersionstampedValue, value) => Some(value.clone()),
            KeyOp::Atomic(MutationOp::SetVersionstampedKey, value) => Some(value.clone()),
            KeyOp::Atomic(op, param) => atomic::apply(*op, old.as_deref(), param).map(Bytes::from),
        })
    }
}

impl Writes {
    pub(super) fn is_empty(&self) -> bool {
        self.log.is_empty() && self.sent.is_empty()
    }

    pub(super) fn key(&mut self, key: &Bytes, op: KeyOp) {
        self.log.push(LoggedWrite::Key(key.clone(), op));
    }

    pub(super) fn clear(&mut self, begin: Bytes, end: Bytes) {
        self.log.push(LoggedWrite::Clear(begin, end));
    }

    /// Stages a versionstamped key by its template, with the smallest versionstamp that it can get.
    ///
    /// The operation itself is stored at a placeholder among the keys that it may become. A clear of the
    /// placeholder removes it.
    pub(super) fn stamped_key(&mut self, template: &Bytes, value: &Bytes, least: Versionstamp) {
        let begin: Bytes = atomic::complete(template, least).into();
        let end = key_after(&atomic::complete(template, Versionstamp::INCOMPLETE)).into();
        let mut placeholder = begin.to_vec();
        placeholder.extend_from_slice(&template[template.len() - 4..]);
        self.send(&begin, &end);
        self.log.push(LoggedWrite::Unreadable(begin, end));
        let op = KeyOp::Atomic(MutationOp::SetVersionstampedKey, value.clone());
        self.log.push(LoggedWrite::Key(placeholder.into(), op));
    }

    /// Returns the effect of the writes on a key.
    pub(super) fn at(&self, key: &[u8]) -> StagedKey {
        let covers = |begin: &Bytes, end: &Bytes| begin <= key && key < end;
        let mut staged = StagedKey::default();
        for write in &self.log {
            match write {
                LoggedWrite::Key(written, op) if written == key => staged.push(op),
                LoggedWrite::Clear(begin, end) if covers(begin, end) => {
                    staged = StagedKey {
                        cleared: true,
                        ..StagedKey::default()
                    };
                }
                LoggedWrite::Unreadable(begin, end) if covers(begin, end) => {
                    staged = StagedKey {
                        unreadable: true,
                        ..StagedKey::default()
                    };
                }
                _ => {}
            }
        }
        staged
    }

    /// Returns every key at which the effect of the writes may change, including the first key.
    pub(super) fn boundaries(&self) -> BTreeSet<Bytes> {
        let mut boundaries = BTreeSet::from([Bytes::new()]);
        for write in &self.log {
            match write {
                LoggedWrite::Key(key, _) => boundaries.extend([key.clone(), key_after(key).into()]),
                LoggedWrite::Clear(begin, end) | LoggedWrite::Unreadable(begin, end) => {
                    boundaries.extend([begin.clone(), end.clone()]);
                }
            }
        }
        boundaries
    }

    /// Returns all writes in the order in which they reach the store.
    pub(super) fn into_mutations(mut self) -> Vec<Mutation> {
        self.send(&Bytes::new(), &Bytes::from_static(b"\xff"));
        self.sent
    }

    /// Sends the writes that are staged in a range: first all clears, then the operations in key order.
    fn send(&mut self, begin: &Bytes, end: &Bytes) {
        let mut boundaries = self.boundaries();
        boundaries.extend([begin.clone(), end.clone()]);
        let inside: Vec<Bytes> = boundaries.range::<Bytes, _>(begin..=end).cloned().collect();
        let mut ops = Vec::new();
        for segment in inside.windows(2) {
            let staged = self.at(&segment[0]);
            if staged.cleared {
                let clear = Mutation::Clear(segment[0].clone(), segment[1].clone());
                self.sent.push(clear);
            }
            let key = &segment[0];
            ops.extend(
                staged
                    .ops
                    .into_iter()
                    .map(|op| Mutation::Key(key.clone(), op)),
            );
        }
        self.sent.append(&mut ops);
    }
}

/// Applies mutations, in order, to the rows of a store.
pub(super) fn apply(
    rows: &mut BTreeMap<Bytes, Bytes>,
    mutations: &[Mutation],
    stamp: Versionstamp,
) {
    for mutation in mutations {
        match mutation {
            Mutation::Clear(begin, end) => rows.retain(|key, _| key < begin || end <= key),
            Mutation::Key(key, KeyOp::Set(value)) => {
                rows.insert(key.clone(), value.clone());
            }
            Mutation::Key(key, KeyOp::Atomic(MutationOp::SetVersionstampedKey, value)) => {
                rows.insert(atomic::complete(key, stamp).into(), value.clone());
            }
            Mutation::Key(key, KeyOp::Atomic(MutationOp::SetVersionstampedValue, value)) => {
                rows.insert(key.clone(), atomic::complete(value, stamp).into());
            }
            Mutation::Key(key, KeyOp::Atomic(op, param)) => {
                match atomic::apply(*op, rows.get(key).map(|old| &old[..]), param) {
                    Some(value) => rows.insert(key.clone(), value.into()),
                    None => rows.remove(key),
                };
            }
        }
    }
}

/// Returns the final keys of versionstamped keys, as ranges.
pub(super) fn stamped_keys(
    mutations: &[Mutation],
    stamp: Versionstamp,
) -> impl Iterator<Item = (Bytes, Bytes)> {
    mutations.iter().filter_map(move |mutation| match mutation {
        Mutation::Key(key, KeyOp::Atomic(MutationOp::SetVersionstampedKey, _)) => {
            let key = atomic::complete(key, stamp);
            Some((key.clone().into(), key_after(&key).into()))
        }
        _ => None,
    })
}
