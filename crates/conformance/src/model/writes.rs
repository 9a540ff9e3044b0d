//! What a transaction has staged: a plain list, read from its beginning for every question.

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

    /// Whether the result does not depend on what the key held before.
    fn is_independent(&self) -> bool {
        matches!(self, Self::Set(_)) || self.is_stamped()
    }
}

/// What goes to the store at commit.
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
enum Write {
    Key(Bytes, KeyOp),
    Clear(Bytes, Bytes),
    /// The keys that a versionstamped key may become. What was staged for them has been sent; from
    /// here on nobody may read them.
    Unreadable(Bytes, Bytes),
}

/// What a transaction has staged.
#[derive(Debug, Clone, Default)]
pub(super) struct Writes {
    log: Vec<Write>,
    sent: Vec<Mutation>,
}

/// What the writes make of one key.
#[derive(Debug, Clone, Default)]
pub(super) struct Staged {
    pub(super) cleared: bool,
    pub(super) ops: Vec<KeyOp>,
    pub(super) unreadable: bool,
}

impl Staged {
    fn push(&mut self, op: &KeyOp) {
        use KeyOp::Atomic;
        use MutationOp::AppendIfFits;
        if op.is_independent() && !self.unreadable {
            self.ops.clear();
        }
        self.unreadable |= op.is_stamped();
        // The client merges appends before anything is sent, so that two that do not fit together
        // are one that does not fit.
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

    /// Whether what the transaction reads here does not depend on the store.
    pub(super) fn is_independent(&self) -> bool {
        self.cleared || self.ops.first().is_some_and(KeyOp::is_independent)
    }

    /// What the transaction reads here, where the store holds `stored`.
    pub(super) fn value(&self, stored: Option<&Bytes>) -> Option<Bytes> {
        let stored = stored.filter(|_| !self.cleared).cloned();
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
        self.log.push(Write::Key(key.clone(), op));
    }

    pub(super) fn clear(&mut self, begin: Bytes, end: Bytes) {
        self.log.push(Write::Clear(begin, end));
    }

    /// Stages a versionstamped key by its template, with the versionstamp it has at least.
    ///
    /// The operation itself stands at a placeholder among the keys it may become: a clear of the
    /// placeholder takes it back.
    pub(super) fn stamped_key(&mut self, template: &Bytes, value: &Bytes, least: Versionstamp) {
        let begin: Bytes = atomic::complete(template, least).into();
        let end = key_after(&atomic::complete(template, Versionstamp::INCOMPLETE)).into();
        let mut placeholder = begin.to_vec();
        placeholder.extend_from_slice(&template[template.len() - 4..]);
        self.send(&begin, &end);
        self.log.push(Write::Unreadable(begin, end));
        let op = KeyOp::Atomic(MutationOp::SetVersionstampedKey, value.clone());
        self.log.push(Write::Key(placeholder.into(), op));
    }

    /// What the writes make of a key.
    pub(super) fn at(&self, key: &[u8]) -> Staged {
        let covers = |begin: &Bytes, end: &Bytes| begin <= key && key < end;
        let mut staged = Staged::default();
        for write in &self.log {
            match write {
                Write::Key(written, op) if written == key => staged.push(op),
                Write::Clear(begin, end) if covers(begin, end) => {
                    staged = Staged {
                        cleared: true,
                        ..Staged::default()
                    };
                }
                Write::Unreadable(begin, end) if covers(begin, end) => {
                    staged = Staged {
                        unreadable: true,
                        ..Staged::default()
                    };
                }
                _ => {}
            }
        }
        staged
    }

    /// Every key at which what the writes make of keys may change, the first key included.
    pub(super) fn boundaries(&self) -> BTreeSet<Bytes> {
        let mut boundaries = BTreeSet::from([Bytes::new()]);
        for write in &self.log {
            match write {
                Write::Key(key, _) => boundaries.extend([key.clone(), key_after(key).into()]),
                Write::Clear(begin, end) | Write::Unreadable(begin, end) => {
                    boundaries.extend([begin.clone(), end.clone()]);
                }
            }
        }
        boundaries
    }

    /// Everything in the order in which it reaches the store.
    pub(super) fn into_mutations(mut self) -> Vec<Mutation> {
        self.send(&Bytes::new(), &Bytes::from_static(b"\xff"));
        self.sent
    }

    /// Sends what is staged in a range: all clears first, then the operations in key order.
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

/// Applies mutations to the rows of a store, in their order.
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

/// The keys that stamped keys have become, as ranges.
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
