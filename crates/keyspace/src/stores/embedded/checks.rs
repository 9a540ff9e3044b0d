//! The limits of single operations. A transaction checks them at each call, and the owner of a store in each commit of
//! a client.

use super::engine::CommitRequest;
use super::engine::queue::Mutation;
use crate::contract::error::Code;
use crate::contract::limits;
use crate::contract::mutation::MutationOp;

/// The bytes of the offset at the end of a versionstamp template.
pub(super) const OFFSET_BYTES: usize = 4;

/// The bytes of a versionstamp.
pub(super) const STAMP_BYTES: usize = 10;

pub(super) fn check_key(key: &[u8]) -> Result<(), Code> {
    if key >= limits::END_OF_KEYSPACE {
        Err(Code::KEY_OUTSIDE_LEGAL_RANGE)
    } else if key.len() > limits::MAX_KEY_BYTES {
        Err(Code::KEY_TOO_LARGE)
    } else {
        Ok(())
    }
}

pub(super) fn check_value(value: &[u8]) -> Result<(), Code> {
    if value.len() > limits::MAX_VALUE_BYTES {
        Err(Code::VALUE_TOO_LARGE)
    } else {
        Ok(())
    }
}

pub(super) fn check_range(begin: &[u8], end: &[u8]) -> Result<(), Code> {
    if begin > end {
        Err(Code::INVERTED_RANGE)
    } else if begin > limits::END_OF_KEYSPACE || end > limits::END_OF_KEYSPACE {
        Err(Code::KEY_OUTSIDE_LEGAL_RANGE)
    } else {
        Ok(())
    }
}

pub(super) fn check_atomic(op: MutationOp, key: &[u8], param: &[u8]) -> Result<(), Code> {
    check_key(key)?;
    check_value(param)?;
    let template = match op {
        MutationOp::SetVersionstampedKey => key,
        MutationOp::SetVersionstampedValue => param,
        _ => return Ok(()),
    };
    match stamp_offset(template) {
        Some(_) => Ok(()),
        None => Err(Code::CLIENT_INVALID_OPERATION),
    }
}

/// Checks the writes of a commit that another process has sent. Its conflict ranges may have any bounds.
pub(super) fn check_commit(request: &CommitRequest) -> Result<(), Code> {
    if request.operand_bytes() > limits::MAX_TRANSACTION_BYTES {
        return Err(Code::TRANSACTION_TOO_LARGE);
    }
    for mutation in &request.mutations {
        match mutation {
            Mutation::Set { key, value } => check_key(key).and_then(|()| check_value(value))?,
            Mutation::Clear { key } => check_key(key)?,
            Mutation::ClearRange { begin, end } => check_range(begin, end)?,
            Mutation::Atomic { op, key, param } => check_atomic(*op, key, param)?,
        }
    }
    Ok(())
}

/// Returns the offset of the stamp's ten bytes in a versionstamp template, or `None` if the template is too
/// short or the stamp would not fit.
pub(super) fn stamp_offset(template: &[u8]) -> Option<usize> {
    let (body, offset) = template.split_last_chunk::<OFFSET_BYTES>()?;
    let offset = usize::try_from(i32::from_le_bytes(*offset)).ok()?;
    if offset + STAMP_BYTES <= body.len() {
        Some(offset)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_checked_for_room() {
        let mut template = b"ab".to_vec();
        template.extend([0xff; STAMP_BYTES]);
        template.extend(2u32.to_le_bytes());
        assert_eq!(stamp_offset(&template), Some(2));
        assert_eq!(stamp_offset(b"abc"), None);
        assert_eq!(stamp_offset(&[0xff; 14]), None, "negative offset");
        template[12] = 3;
        assert_eq!(stamp_offset(&template), None);
    }
}
