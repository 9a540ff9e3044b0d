//! The results of atomic operations, by the table of FoundationDB's semantics.
//!
//! The same function serves the commit, which applies an operation to the latest value, and the
//! transaction's own reads, which apply it to the value that they see.

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::contract::limits::MAX_VALUE_BYTES;
use crate::contract::mutation::MutationOp;

/// Applies `op` with `param` to `old`, where `None` is a missing value.
///
/// A versionstamped operation is a plain set once the stamp is filled in, so its result is `param`.
pub(crate) fn apply<'a>(
    op: MutationOp,
    old: Option<&'a [u8]>,
    param: &'a [u8],
) -> Option<Cow<'a, [u8]>> {
    let present = old.unwrap_or_default();
    Some(match op {
        MutationOp::Add => add(present, param).into(),
        MutationOp::BitAnd if old.is_none() => param.into(),
        MutationOp::BitAnd => zip_padded(present, param, |a, b| a & b).into(),
        MutationOp::BitOr => zip_padded(present, param, |a, b| a | b).into(),
        MutationOp::BitXor => zip_padded(present, param, |a, b| a ^ b).into(),
        MutationOp::AppendIfFits if present.len() + param.len() > MAX_VALUE_BYTES => present.into(),
        MutationOp::AppendIfFits => [present, param].concat().into(),
        MutationOp::Max if compare_integers(present, param) == Ordering::Greater => {
            resized(present, param.len()).into()
        }
        MutationOp::Min if old.is_some() && compare_integers(present, param) == Ordering::Less => {
            resized(present, param.len()).into()
        }
        MutationOp::ByteMin if old.is_some() && present < param => present.into(),
        MutationOp::ByteMax if old.is_some() && present > param => present.into(),
        MutationOp::CompareAndClear if old.is_some_and(|old| old == param) => return None,
        MutationOp::CompareAndClear => return old.map(Cow::Borrowed),
        MutationOp::Max
        | MutationOp::Min
        | MutationOp::ByteMin
        | MutationOp::ByteMax
        | MutationOp::SetVersionstampedKey
        | MutationOp::SetVersionstampedValue => param.into(),
    })
}

fn add(old: &[u8], param: &[u8]) -> Vec<u8> {
    let mut carry = 0;
    zip_padded(old, param, |a, b| {
        let sum = u16::from(a) + u16::from(b) + carry;
        carry = sum >> 8;
        sum.to_le_bytes()[0]
    })
}

/// Combines `param` byte by byte with `old`, extended by zeros or truncated to the same length.
fn zip_padded(old: &[u8], param: &[u8], mut combine: impl FnMut(u8, u8) -> u8) -> Vec<u8> {
    let old = old.iter().copied().chain(std::iter::repeat(0));
    old.zip(param).map(|(a, &b)| combine(a, b)).collect()
}

fn resized(old: &[u8], len: usize) -> Vec<u8> {
    let mut value = old.to_vec();
    value.resize(len, 0);
    value
}

/// Compares `old`, extended by zeros or truncated to the length of `param`, with `param`, both as
/// little-endian unsigned integers.
fn compare_integers(old: &[u8], param: &[u8]) -> Ordering {
    let old_at = |index| old.get(index).copied().unwrap_or(0);
    (0..param.len())
        .rev()
        .map(|index| old_at(index).cmp(&param[index]))
        .find(|ordering| ordering.is_ne())
        .unwrap_or(Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &[u8] = b"\x02\x01\xff";

    #[test]
    fn results_follow_the_table() {
        use MutationOp::*;
        type Case = (
            MutationOp,
            Option<&'static [u8]>,
            &'static [u8],
            Option<&'static [u8]>,
        );
        let cases: &[Case] = &[
            (Add, None, b"\x05", Some(b"\x05")),
            (Add, Some(OLD), b"", Some(b"")),
            (Add, Some(b"\xff\xff"), b"\x01\x00", Some(b"\x00\x00")),
            (Add, Some(b"\xff"), b"\x01\x00", Some(b"\x00\x01")),
            (Add, Some(OLD), b"\x01", Some(b"\x03")),
            (BitAnd, None, b"\x0f", Some(b"\x0f")),
            (BitAnd, Some(b""), b"\x0f", Some(b"\x00")),
            (BitAnd, Some(OLD), b"\x03\x03", Some(b"\x02\x01")),
            (BitOr, None, b"\x0f", Some(b"\x0f")),
            (BitOr, Some(b"\x10"), b"\x0f\x01", Some(b"\x1f\x01")),
            (BitXor, Some(b"\x11"), b"\x10\x01", Some(b"\x01\x01")),
            (AppendIfFits, None, b"ab", Some(b"ab")),
            (AppendIfFits, Some(b"a"), b"", Some(b"a")),
            (AppendIfFits, Some(b"a"), b"b", Some(b"ab")),
            (Max, None, b"\x01", Some(b"\x01")),
            (Max, Some(OLD), b"\x01\x01", Some(b"\x02\x01")),
            (Max, Some(b"\x02"), b"\x01\x01", Some(b"\x01\x01")),
            (Max, Some(b"\x02"), b"\x01\x00", Some(b"\x02\x00")),
            (Max, Some(b"\x02"), b"", Some(b"")),
            (Min, None, b"\x05", Some(b"\x05")),
            (Min, Some(b""), b"\x05\x05", Some(b"\x00\x00")),
            (Min, Some(b"\x02"), b"\x01\x01", Some(b"\x02\x00")),
            (Min, Some(b"\x02\x02"), b"\x01\x01", Some(b"\x01\x01")),
            (ByteMin, None, b"b", Some(b"b")),
            (ByteMin, Some(b"a"), b"b", Some(b"a")),
            (ByteMin, Some(b"a"), b"", Some(b"")),
            (ByteMax, None, b"", Some(b"")),
            (ByteMax, Some(b"ab"), b"a", Some(b"ab")),
            (ByteMax, Some(b"a"), b"b", Some(b"b")),
            (CompareAndClear, None, b"", None),
            (CompareAndClear, Some(b""), b"", None),
            (CompareAndClear, Some(b"a"), b"a", None),
            (CompareAndClear, Some(b"a"), b"b", Some(b"a")),
        ];
        for &(op, old, param, expected) in cases {
            let result = apply(op, old, param);
            assert_eq!(
                result.as_deref(),
                expected,
                "{op:?} of {old:?} with {param:?}"
            );
        }
    }

    #[test]
    fn append_stops_at_the_value_limit() {
        let old = vec![1; MAX_VALUE_BYTES - 1];
        let fits = apply(MutationOp::AppendIfFits, Some(&old), b"x").unwrap();
        assert_eq!(fits.len(), MAX_VALUE_BYTES);
        let too_long = apply(MutationOp::AppendIfFits, Some(&old), b"xy").unwrap();
        assert_eq!(too_long, old);
    }
}
