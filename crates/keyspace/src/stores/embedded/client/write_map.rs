//! The writes of a transaction: its own reads see them over the store, and its commit sends them.
//!
//! For every key there are four facts. Each is stored as the set of keys for which it is true:
//!
//! - its *stack*: the operations staged on it since it was last cleared or set;
//! - *cleared*: whether its value in the store is gone (there may still be a stack on top);
//! - *unreadable*: whether its value depends on the versionstamp of this transaction. A clear makes a key
//!   readable again. A set does not: its operation joins the stack;
//! - *conflict*: whether the commit writes it, as other transactions see it. No operation removes this.
//!
//! A versionstamped key is not known before the commit. Everything between the smallest and the largest key
//! that it can become is unreadable. Its operation is stored at the smallest key. A later clear that covers
//! the smallest key removes the operation. A clear that does not cover it leaves the operation, even if it
//! covers the key that the operation will write. Operations that were staged in that range earlier are
//! first sent to the commit.
//!
//! The commit applies, in this order: the operations that were sent in this way; all clears, in key order;
//! all stacks, in key order. This is the order in which FoundationDB's client sends them.

use std::borrow::Cow;
use std::iter;

use bytes::Bytes;

use crate::contract::mutation::{MutationOp, Versionstamp};
use crate::stores::embedded::checks::{OFFSET_BYTES, STAMP_BYTES, stamp_offset};
use crate::stores::embedded::collections::ranges::{KeyRange, RangeSet};
use crate::stores::embedded::collections::sorted_map::{MapPlace, SortedMap};
use crate::stores::embedded::engine::atomic;
use crate::stores::embedded::engine::queue::Mutation;

/// The bytes that an operation adds to a transaction's size besides its operands.
const OPERATION_OVERHEAD_BYTES: usize = 44;

/// A staged operation on one key.
#[derive(Debug, Clone)]
struct Op {
    /// The operation, `None` for a plain set.
    op: Option<MutationOp>,
    param: Bytes,
}

impl Op {
    fn is_independent(&self) -> bool {
        matches!(
            self.op,
            None | Some(MutationOp::SetVersionstampedKey | MutationOp::SetVersionstampedValue)
        )
    }

    /// Returns whether this operation followed by `next`, of the same kind, equals one operation with the
    /// combined param.
    fn is_associative_with(&self, next: &Op) -> bool {
        match self.op {
            Some(MutationOp::AppendIfFits | MutationOp::ByteMin | MutationOp::ByteMax) => true,
            Some(MutationOp::CompareAndClear) | None => false,
            Some(_) => self.param.len() == next.param.len(),
        }
    }
}

/// The operations on one key, oldest first.
#[derive(Debug, Clone)]
pub(crate) struct Stack {
    /// Whether the first operation was staged on a key that the transaction had cleared.
    on_cleared: bool,
    first: Op,
    later: Vec<Op>,
}

impl Stack {
    fn new(on_cleared: bool, first: Op) -> Self {
        Self {
            on_cleared,
            first,
            later: Vec::new(),
        }
    }

    fn ops(&self) -> impl Iterator<Item = &Op> {
        iter::once(&self.first).chain(&self.later)
    }

    fn into_ops(self) -> impl Iterator<Item = Op> {
        iter::once(self.first).chain(self.later)
    }

    /// Returns whether the value depends on the value in the store.
    pub(crate) fn is_dependent(&self) -> bool {
        !self.on_cleared && !self.first.is_independent()
    }

    /// Computes the value from the value in the store.
    pub(crate) fn value(&self, stored: Option<&[u8]>) -> Option<Bytes> {
        let base = if self.on_cleared {
            None
        } else {
            stored.map(Cow::Borrowed)
        };
        let value = self
            .ops()
            .fold(base, |old: Option<Cow<'_, [u8]>>, op| match op.op {
                None => Some(Cow::Borrowed(&op.param[..])),
                Some(kind) => {
                    let new = atomic::apply(kind, old.as_deref(), &op.param);
                    new.map(|value| Cow::Owned(value.into_owned()))
                }
            });
        value.map(|value| Bytes::from(value.into_owned()))
    }

    /// Adds an operation to a readable key, and keeps the stack as short as possible. On a known value the
    /// operation is applied. After an operation of the same kind, the two are combined.
    ///
    /// Two consecutive appends are combined, so the limit on the value's size is checked against both
    /// together.
    fn merge(&mut self, op: Op) {
        if !self.is_dependent() {
            self.later.push(op);
            // An operation that leaves no value stays, because the commit has to apply it.
            if let Some(param) = self.value(None) {
                *self = Self::new(self.on_cleared, Op { op: None, param });
            }
            return;
        }
        let last = self.later.last_mut().unwrap_or(&mut self.first);
        if last.op == op.op && last.is_associative_with(&op) {
            let kind = op.op.expect("a plain set is independent");
            if let Some(param) = atomic::apply(kind, Some(&last.param), &op.param) {
                last.param = Bytes::from(param.into_owned());
            }
        } else {
            self.later.push(op);
        }
    }
}

/// What a transaction knows about a key from its own writes.
pub(crate) enum Own<'a> {
    Unmodified,
    Unreadable,
    Cleared,
    Written(&'a Stack),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct WriteMap {
    stacks: SortedMap<Stack>,
    cleared: RangeSet,
    unreadable: RangeSet,
    conflicts: RangeSet,
    /// The operations that were sent ahead of a versionstamped key.
    flushed: Vec<Mutation>,
}

impl WriteMap {
    /// Returns whether every read has the store's result.
    pub(crate) fn is_transparent(&self) -> bool {
        self.stacks.is_empty() && self.cleared.is_empty() && self.unreadable.is_empty()
    }

    /// Returns whether the commit would change nothing and conflict with nothing.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_transparent() && self.conflicts.is_empty() && self.flushed.is_empty()
    }

    pub(crate) fn conflicts(&self) -> &RangeSet {
        &self.conflicts
    }

    pub(crate) fn unreadable(&self) -> &RangeSet {
        &self.unreadable
    }

    pub(crate) fn cleared(&self) -> &RangeSet {
        &self.cleared
    }

    /// Returns the first written key at or after `key` with its stack.
    pub(crate) fn stack_from(&self, key: &[u8]) -> Option<(&Bytes, &Stack)> {
        self.stacks.at(self.stacks.at_or_after(key))
    }

    /// Returns the last written key before `key` with its stack.
    pub(crate) fn stack_before(&self, key: &[u8]) -> Option<(&Bytes, &Stack)> {
        let place = self.stacks.before(self.stacks.at_or_after(key))?;
        self.stacks.at(place)
    }

    pub(crate) fn own(&self, key: &[u8], bypass_unreadable: bool) -> Own<'_> {
        if !bypass_unreadable && self.unreadable.contains(key) {
            Own::Unreadable
        } else if let Some(stack) = self.stacks.get(key) {
            Own::Written(stack)
        } else if self.cleared.contains(key) {
            Own::Cleared
        } else {
            Own::Unmodified
        }
    }

    pub(crate) fn set(&mut self, key: Bytes, value: Bytes, conflict: bool) {
        self.stage(
            key,
            Op {
                op: None,
                param: value,
            },
            conflict,
        );
    }

    /// Stages an atomic operation other than `SetVersionstampedKey`.
    pub(crate) fn atomic(&mut self, op: MutationOp, key: Bytes, param: Bytes, conflict: bool) {
        let op = Op {
            op: Some(op),
            param,
        };
        let is_independent = op.is_independent();
        let written = KeyRange::key(key.clone());
        self.stage(key, op, conflict);
        if is_independent {
            self.unreadable.insert(written);
        }
    }

    /// Stages `SetVersionstampedKey` with a valid template. The commit writes the final key
    /// and adds its conflict.
    pub(crate) fn set_versionstamped_key(&mut self, template: &[u8], value: Bytes, version: i64) {
        let offset = stamp_offset(template).expect("the caller has validated the template");
        let stamp = offset..offset + STAMP_BYTES;
        let mut smallest = template.to_vec();
        smallest[stamp.clone()].copy_from_slice(Versionstamp::new(version, 0).as_bytes());
        let mut largest = template[..template.len() - OFFSET_BYTES].to_vec();
        largest[stamp].copy_from_slice(Versionstamp::INCOMPLETE.as_bytes());
        largest.push(0);

        let smallest = Bytes::from(smallest);
        let begin = smallest.slice(..smallest.len() - OFFSET_BYTES);
        let possible = KeyRange::new(begin, Bytes::from(largest));
        self.flush(&possible);
        self.unreadable.insert(possible);
        let op = Op {
            op: Some(MutationOp::SetVersionstampedKey),
            param: value,
        };
        self.stage(smallest, op, false);
    }

    /// Stages the clear of a range.
    pub(crate) fn clear(&mut self, range: KeyRange, conflict: bool) {
        if range.is_empty() {
            return;
        }
        self.remove_stacks(&range);
        self.unreadable.remove(&range);
        if conflict {
            self.conflicts.insert(range.clone());
        }
        self.cleared.insert(range);
    }

    pub(crate) fn add_conflict(&mut self, range: KeyRange) {
        self.conflicts.insert(range);
    }

    /// Adds the keys of a range to the read conflicts, if they were read from the store and not from
    /// independent writes of the transaction.
    pub(crate) fn add_read_conflict(&self, range: KeyRange, reads: &mut RangeSet) {
        match range.parts() {
            _ if self.is_transparent() => reads.insert(range),
            (key, None) if self.is_independent(key) => {}
            (_, None) => reads.insert(range),
            (_, Some(_)) => self.add_range_read_conflict(range, reads),
        }
    }

    /// Returns whether the value of a key is independent of the store.
    fn is_independent(&self, key: &[u8]) -> bool {
        let stack = self.stacks.get(key);
        stack.is_some_and(|stack| !stack.is_dependent()) || self.cleared.contains(key)
    }

    fn add_range_read_conflict(&self, range: KeyRange, reads: &mut RangeSet) {
        let (begin, end) = range.into_bounds();
        let mut own = RangeSet::default();
        let stacks = self.stacks.iter_from(self.stacks.at_or_after(&begin));
        for (key, stack) in stacks.take_while(|(key, _)| **key < end) {
            if !stack.is_dependent() {
                own.insert(KeyRange::key(key.clone()));
            }
        }
        let mut from = begin;
        while from < end {
            // From here on, keys up to the next written one were read from the store.
            let next = [&self.cleared, &own]
                .into_iter()
                .filter_map(|set| set.first_from(&from))
                .map(KeyRange::into_bounds);
            let Some((own_begin, own_end)) = next.min() else {
                break;
            };
            reads.insert(KeyRange::new(from, own_begin.min(end.clone())));
            from = own_end;
        }
        reads.insert(KeyRange::new(from, end));
    }

    /// Returns the size of the operations in bytes, as FoundationDB counts it.
    pub(crate) fn operation_bytes(&self) -> usize {
        let stacked = self.stacks.iter().flat_map(|(key, stack)| {
            let ops = stack.ops();
            ops.map(|op| key.len() + op.param.len() + OPERATION_OVERHEAD_BYTES)
        });
        let cleared = self.cleared.bounds_bytes() + self.cleared.len() * OPERATION_OVERHEAD_BYTES;
        let flushed = self
            .flushed
            .iter()
            .map(|sent| sent.operand_bytes() + OPERATION_OVERHEAD_BYTES);
        cleared + stacked.chain(flushed).sum::<usize>()
    }

    /// Returns the operations in the order of the commit, and the write conflict ranges.
    pub(crate) fn into_commit(self) -> (Vec<Mutation>, RangeSet) {
        let mut mutations = self.flushed;
        mutations.reserve_exact(self.cleared.len() + self.stacks.len());
        mutations.extend(self.cleared.into_ranges().map(clear_mutation));
        for (key, stack) in self.stacks.into_entries() {
            send(&mut mutations, key, stack);
        }
        (mutations, self.conflicts)
    }

    fn stage(&mut self, key: Bytes, op: Op, conflict: bool) {
        if conflict {
            self.conflicts.insert(KeyRange::key(key.clone()));
        }
        let is_readable = !self.unreadable.contains(&key);
        match self.stacks.find(&key) {
            Ok(place) => {
                let stack = self.stacks.value_mut(place);
                if !is_readable {
                    stack.later.push(op);
                } else if op.is_independent() {
                    *stack = Stack::new(stack.on_cleared, op);
                } else {
                    stack.merge(op);
                }
            }
            Err(place) => {
                let on_cleared = self.cleared.contains(&key);
                self.stacks.insert(place, key, Stack::new(on_cleared, op));
            }
        }
    }

    /// Sends the operations staged in a range to the commit, and removes them from the map.
    fn flush(&mut self, range: &KeyRange) {
        let (begin, end) = range.clone().into_bounds();
        while let Some(cleared) = self.cleared.first_from(&begin) {
            let (b, e) = cleared.into_bounds();
            let cleared = KeyRange::new(b.max(begin.clone()), e.min(end.clone()));
            if cleared.is_empty() {
                break;
            }
            self.cleared.remove(&cleared);
            self.flushed.push(clear_mutation(cleared));
        }
        for (key, stack) in self.remove_stacks(range) {
            send(&mut self.flushed, key, stack);
        }
    }

    fn remove_stacks(&mut self, range: &KeyRange) -> Vec<(Bytes, Stack)> {
        let (from, to) = self.places(range);
        self.stacks.remove(from, to)
    }

    /// Returns the place of the first stack in a range, and the place after the last one.
    fn places(&self, range: &KeyRange) -> (MapPlace, MapPlace) {
        match range.parts() {
            (begin, Some(end)) => (self.stacks.at_or_after(begin), self.stacks.at_or_after(end)),
            (key, None) => match self.stacks.find(key) {
                Ok(place) => (place, self.stacks.after(place)),
                Err(place) => (place, place),
            },
        }
    }
}

fn clear_mutation(range: KeyRange) -> Mutation {
    match range.into_parts() {
        (key, None) => Mutation::Clear { key },
        (begin, Some(end)) => Mutation::ClearRange { begin, end },
    }
}

/// Sends the operations of a stack. Additions that follow one another become one.
fn send(mutations: &mut Vec<Mutation>, key: Bytes, stack: Stack) {
    for Op { op, param } in stack.into_ops() {
        let key = key.clone();
        let Some(op) = op else {
            mutations.push(Mutation::Set { key, value: param });
            continue;
        };
        if op == MutationOp::Add
            && let Some(Mutation::Atomic {
                op: MutationOp::Add,
                key: last_key,
                param: sum,
            }) = mutations.last_mut()
            && *last_key == key
            && sum.len() == param.len()
        {
            let added = atomic::apply(op, Some(sum), &param).unwrap_or_default();
            *sum = added.into_owned().into();
        } else {
            mutations.push(Mutation::Atomic { op, key, param });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    fn range(begin: &str, end: &str) -> KeyRange {
        KeyRange::new(bytes(begin), bytes(end))
    }

    fn template(prefix: &str) -> Vec<u8> {
        let mut template = prefix.as_bytes().to_vec();
        template.extend([0xff; STAMP_BYTES]);
        template.extend(u32::try_from(prefix.len()).unwrap().to_le_bytes());
        template
    }

    fn commit_keys(writes: WriteMap) -> Vec<String> {
        let name = |mutation: &Mutation| match mutation {
            Mutation::Set { key, .. } => format!("set {}", key.escape_ascii()),
            Mutation::Clear { key } => format!("clear {}", key.escape_ascii()),
            Mutation::ClearRange { begin, .. } => format!("clear from {}", begin.escape_ascii()),
            Mutation::Atomic { op, key, .. } => format!("{op:?} {}", key[..1].escape_ascii()),
        };
        writes.into_commit().0.iter().map(name).collect()
    }

    #[test]
    fn a_commit_sends_clears_before_operations_in_key_order() {
        let mut writes = WriteMap::default();
        writes.set(bytes("b"), bytes("1"), true);
        writes.clear(range("x", "y"), true);
        writes.set(bytes("a"), bytes("1"), true);
        writes.clear(range("a", "a\0"), true);
        assert_eq!(commit_keys(writes), ["clear a", "clear from x", "set b"]);
    }

    #[test]
    fn additions_of_the_same_length_that_follow_one_another_are_sent_as_one() {
        let mut writes = WriteMap::default();
        let mut stage = |op, param: &[u8]| {
            writes.atomic(op, bytes("a"), Bytes::copy_from_slice(param), true);
        };
        stage(MutationOp::Add, &[255, 1]);
        stage(MutationOp::Add, &[2, 0]);
        stage(MutationOp::Add, &[1]);
        stage(MutationOp::Max, &[5]);
        stage(MutationOp::Add, &[1]);
        stage(MutationOp::Add, &[255]);
        let (sent, _) = writes.into_commit();
        let sent: Vec<_> = sent
            .iter()
            .map(|mutation| match mutation {
                Mutation::Atomic { op, param, .. } => (*op, &param[..]),
                other => panic!("{other:?}"),
            })
            .collect();
        let add = MutationOp::Add;
        let max = MutationOp::Max;
        let expected: [(_, &[u8]); 4] = [(add, &[1, 2]), (add, &[1]), (max, &[5]), (add, &[0])];
        assert_eq!(sent, expected);
    }

    #[test]
    fn a_versionstamped_key_sends_what_was_staged_in_its_range_first() {
        let mut writes = WriteMap::default();
        writes.set(bytes("k5"), bytes("1"), true);
        writes.set(bytes("a"), bytes("1"), true);
        writes.set_versionstamped_key(&template("k"), bytes("v"), 0);
        assert_eq!(
            commit_keys(writes),
            ["set k5", "set a", "SetVersionstampedKey k"]
        );
    }

    #[test]
    fn a_clear_of_the_smallest_possible_key_removes_a_versionstamped_key() {
        for (begin, kept) in [("k", false), ("k\u{1}", true)] {
            let mut writes = WriteMap::default();
            writes.set_versionstamped_key(&template("k"), bytes("v"), 0);
            writes.clear(range(begin, "l"), true);
            assert!(matches!(writes.own(b"k5", false), Own::Cleared));
            let sent = commit_keys(writes).contains(&"SetVersionstampedKey k".to_owned());
            assert_eq!(sent, kept, "clear from {begin:?}");
        }
    }

    #[test]
    fn operations_on_one_key_are_sent_as_one() {
        let one = bytes("\u{1}");
        for is_set in [false, true] {
            let mut writes = WriteMap::default();
            if is_set {
                writes.set(bytes("a"), one.clone(), true);
            }
            for _ in 0..100 {
                writes.atomic(MutationOp::Add, bytes("a"), one.clone(), true);
            }
            let Own::Written(stack) = writes.own(b"a", false) else {
                panic!("the key was written");
            };
            assert_eq!(stack.value(Some(b"\x01")).as_deref(), Some(&[101][..]));
            let sent = if is_set { "set a" } else { "Add a" };
            assert_eq!(commit_keys(writes), [sent]);
        }
    }

    #[test]
    fn an_operation_that_leaves_no_value_is_sent() {
        let mut writes = WriteMap::default();
        writes.set(bytes("a"), bytes("1"), true);
        writes.atomic(MutationOp::CompareAndClear, bytes("a"), bytes("1"), true);
        assert_eq!(commit_keys(writes), ["set a", "CompareAndClear a"]);
    }

    #[test]
    fn a_set_leaves_a_versionstamped_value_unreadable_and_a_clear_does_not() {
        let mut writes = WriteMap::default();
        let value = Bytes::from(template(""));
        writes.atomic(MutationOp::SetVersionstampedValue, bytes("a"), value, true);
        writes.set(bytes("a"), bytes("1"), true);
        assert!(matches!(writes.own(b"a", false), Own::Unreadable));
        writes.clear(range("a", "b"), true);
        assert!(matches!(writes.own(b"a", false), Own::Cleared));
    }

    #[test]
    fn read_conflicts_skip_what_the_transaction_wrote_by_itself() {
        let mut writes = WriteMap::default();
        writes.set(bytes("c"), bytes("1"), true);
        writes.atomic(MutationOp::Add, bytes("e"), bytes("1"), true);
        writes.clear(range("g", "i"), true);
        writes.atomic(MutationOp::Add, bytes("h"), bytes("1"), true);
        let mut reads = RangeSet::default();
        writes.add_read_conflict(range("b", "k"), &mut reads);
        let expected = [("b", "c"), ("c\0", "g"), ("i", "k")].map(|(b, e)| range(b, e));
        assert!(reads.iter().eq(expected), "{reads:?}");
    }
}
