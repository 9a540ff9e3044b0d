//! The results of atomic operations, from the table in FoundationDB's documentation.

use keyspace::limits::MAX_VALUE_BYTES;
use keyspace::{MutationOp, Versionstamp};

/// Applies an operation without a versionstamp.
pub(crate) fn apply(op: MutationOp, old: Option<&[u8]>, param: &[u8]) -> Option<Vec<u8>> {
    let stored = old.unwrap_or_default();
    // The old value with the length of the param: missing bytes are zero, extra bytes are ignored.
    let padded = |index: usize| stored.get(index).copied().unwrap_or(0);
    let resized: Vec<u8> = (0..param.len()).map(padded).collect();
    let each = |combine: fn(u8, u8) -> u8| {
        let pairs = resized.iter().zip(param);
        pairs.map(|(old, param)| combine(*old, *param)).collect()
    };
    let integer = |bytes: &[u8]| bytes.iter().rev().copied().collect::<Vec<u8>>();
    Some(match op {
        MutationOp::Add => add(&resized, param),
        MutationOp::BitAnd | MutationOp::Min if old.is_none() => param.to_vec(),
        MutationOp::BitAnd => each(|old, param| old & param),
        MutationOp::BitOr => each(|old, param| old | param),
        MutationOp::BitXor => each(|old, param| old ^ param),
        MutationOp::Max if integer(&resized) > integer(param) => resized,
        MutationOp::Min if integer(&resized) < integer(param) => resized,
        MutationOp::Max | MutationOp::Min => param.to_vec(),
        MutationOp::AppendIfFits if stored.len() + param.len() > MAX_VALUE_BYTES => stored.to_vec(),
        MutationOp::AppendIfFits => [stored, param].concat(),
        MutationOp::ByteMax if old.is_some_and(|old| old > param) => stored.to_vec(),
        MutationOp::ByteMin if old.is_some_and(|old| old < param) => stored.to_vec(),
        MutationOp::ByteMax | MutationOp::ByteMin => param.to_vec(),
        MutationOp::CompareAndClear if old == Some(param) => return None,
        MutationOp::CompareAndClear => return old.map(<[u8]>::to_vec),
        MutationOp::SetVersionstampedKey | MutationOp::SetVersionstampedValue => {
            unreachable!("stamped operations are completed before they are applied")
        }
    })
}

fn add(old: &[u8], param: &[u8]) -> Vec<u8> {
    let mut carry = 0;
    let digits = old.iter().zip(param).map(|(old, param)| {
        let sum = u16::from(*old) + u16::from(*param) + carry;
        carry = sum >> 8;
        (sum & 0xff) as u8
    });
    digits.collect()
}

/// Returns the offset of the versionstamp in a template, `None` if it has no room for one.
pub(crate) fn stamp_offset(template: &[u8]) -> Option<usize> {
    let (body, offset) = template.split_last_chunk::<4>()?;
    let offset = usize::try_from(i32::from_le_bytes(*offset)).ok()?;
    if offset + 10 > body.len() {
        return None;
    }
    Some(offset)
}

/// Completes a template: puts the versionstamp in its place and drops the four offset bytes.
pub(crate) fn complete(template: &[u8], stamp: Versionstamp) -> Vec<u8> {
    let offset = stamp_offset(template).expect("templates are checked when they are staged");
    let mut bytes = template[..template.len() - 4].to_vec();
    bytes[offset..offset + 10].copy_from_slice(stamp.as_bytes());
    bytes
}
