//! What a batch does to the rows: sets and clears, computed from the mutations of its transactions.
//!
//! An atomic operation needs the value that it meets, which the store held before the batch or which
//! an earlier effect of the batch left. Effects need no value: applying them again, in order, to the
//! rows that they made changes nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;

use super::queue::Mutation;
use super::{atomic, log};
use crate::mutation::MutationOp;

/// A change of the rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// Sets a key.
    Set { key: Bytes, value: Bytes },
    /// Clears a key.
    Clear { key: Bytes },
    /// Clears the keys `begin <= key < end`.
    ClearRange { begin: Bytes, end: Bytes },
}

impl Effect {
    /// Returns the effect as the log has it.
    pub(super) fn as_logged(&self) -> log::effect::Effect<'_> {
        match self {
            Self::Set { key, value } => log::effect::Effect::Set { key, value },
            Self::Clear { key } => log::effect::Effect::Clear { key },
            Self::ClearRange { begin, end } => log::effect::Effect::ClearRange { begin, end },
        }
    }
}

/// The values of the keys that a batch's atomic operations are on, as the effects so far left them.
pub(super) type Values = BTreeMap<Bytes, Option<Bytes>>;

/// Returns the key whose value decides what a mutation does, if there is one.
pub(super) fn needed_key(mutation: &Mutation) -> Option<&Bytes> {
    match mutation {
        Mutation::Atomic { key, .. } => Some(key),
        Mutation::Set { .. } | Mutation::Clear { .. } | Mutation::ClearRange { .. } => None,
    }
}

/// Computes the effects of mutations, in order. `values` holds the value before the batch of every
/// [needed key](needed_key).
pub(super) fn effects(
    mutations: impl Iterator<Item = Mutation>,
    mut values: Values,
) -> Vec<Effect> {
    mutations
        .map(|mutation| {
            let effect = effect(mutation, &values);
            keep_up(&mut values, &effect);
            effect
        })
        .collect()
}

fn effect(mutation: Mutation, values: &Values) -> Effect {
    match mutation {
        Mutation::Set { key, value } => Effect::Set { key, value },
        Mutation::Clear { key } => Effect::Clear { key },
        Mutation::ClearRange { begin, end } => Effect::ClearRange { begin, end },
        Mutation::Atomic { op, key, param } => match result(op, &key, &param, values) {
            Some(value) => Effect::Set { key, value },
            None => Effect::Clear { key },
        },
    }
}

fn result(op: MutationOp, key: &Bytes, param: &Bytes, values: &Values) -> Option<Bytes> {
    let old = values.get(key).expect("the value of a needed key was read");
    let new = atomic::apply(op, old.as_deref(), param);
    new.map(Cow::into_owned).map(Bytes::from)
}

/// Brings the values up to date with an effect.
fn keep_up(values: &mut Values, effect: &Effect) {
    if values.is_empty() {
        return;
    }
    match effect {
        Effect::Set { key, value } => {
            if let Some(latest) = values.get_mut(key) {
                *latest = Some(value.clone());
            }
        }
        Effect::Clear { key } => {
            if let Some(latest) = values.get_mut(key) {
                *latest = None;
            }
        }
        Effect::ClearRange { begin, end } if begin < end => {
            for (_, latest) in values.range_mut::<Bytes, _>(begin..end) {
                *latest = None;
            }
        }
        Effect::ClearRange { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &'static str, value: &'static str) -> Mutation {
        Mutation::Set {
            key: key.into(),
            value: value.into(),
        }
    }

    fn append(key: &'static str, param: &'static str) -> Mutation {
        Mutation::Atomic {
            op: MutationOp::AppendIfFits,
            key: key.into(),
            param: param.into(),
        }
    }

    fn clear_key(key: &'static str) -> Mutation {
        Mutation::Clear { key: key.into() }
    }

    fn clear(begin: &'static str, end: &'static str) -> Mutation {
        Mutation::ClearRange {
            begin: begin.into(),
            end: end.into(),
        }
    }

    /// Returns the effects on a store in which every key has the value `old`.
    fn texts<const N: usize>(mutations: [Mutation; N]) -> Vec<String> {
        let needed = mutations.iter().filter_map(needed_key);
        let values = needed
            .map(|key| (key.clone(), Some("old".into())))
            .collect();
        let text = |bytes: &Bytes| bytes.escape_ascii().to_string();
        effects(mutations.into_iter(), values)
            .iter()
            .map(|effect| match effect {
                Effect::Set { key, value } => format!("set {} {}", text(key), text(value)),
                Effect::Clear { key } => format!("clear {}", text(key)),
                Effect::ClearRange { begin, end } => format!("clear {} {}", text(begin), text(end)),
            })
            .collect()
    }

    #[test]
    fn an_atomic_operation_meets_the_stored_value_or_what_the_batch_left() {
        assert_eq!(texts([append("k", "1")]), ["set k old1"]);
        assert_eq!(
            texts([append("k", "1"), append("k", "2")])[1],
            "set k old12"
        );
        assert_eq!(texts([set("k", "new"), append("k", "1")])[1], "set k new1");
        assert_eq!(texts([clear_key("k"), append("k", "1")])[1], "set k 1");
        assert_eq!(texts([clear("a", "z"), append("k", "1")])[1], "set k 1");
        for elsewhere in [
            set("kk", "new"),
            clear_key("kk"),
            clear("a", "k"),
            clear("k\0", "z"),
            clear("z", "a"),
        ] {
            assert_eq!(texts([elsewhere, append("k", "1")])[1], "set k old1");
        }
    }

    #[test]
    fn an_atomic_operation_that_leaves_no_value_clears() {
        let compare = Mutation::Atomic {
            op: MutationOp::CompareAndClear,
            key: "k".into(),
            param: "old".into(),
        };
        let sent = texts([compare, append("k", "1")]);
        assert_eq!(sent, ["clear k", "set k 1"]);
    }
}
