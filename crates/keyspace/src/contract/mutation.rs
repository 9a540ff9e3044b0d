//! Atomic operations and versionstamps.

use std::array::TryFromSliceError;
use std::fmt;

/// An atomic operation, with FoundationDB's name and number.
///
/// The store applies the operation to the latest value at the commit. The client reads nothing, so an
/// atomic operation adds no read conflict. Below, "param" is the operand and "value" is the stored value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MutationOp {
    /// Adds two little-endian integers, with the length of the param. The final carry is dropped.
    Add,
    /// Bitwise and. A missing value becomes the param.
    BitAnd,
    /// Bitwise or.
    BitOr,
    /// Bitwise exclusive or.
    BitXor,
    /// Appends the param, unless the result would exceed 100,000 bytes.
    AppendIfFits,
    /// Keeps the larger of two little-endian unsigned integers.
    Max,
    /// Keeps the smaller of two little-endian unsigned integers. A missing value becomes the param.
    Min,
    /// Keeps the lexicographically smaller of two byte strings.
    ByteMin,
    /// Keeps the lexicographically larger of two byte strings.
    ByteMax,
    /// Clears the key if its value equals the param.
    CompareAndClear,
    /// Sets a key in which ten bytes are replaced by the commit's versionstamp. The last four bytes of the
    /// given key are the little-endian offset of those ten bytes, and are removed.
    SetVersionstampedKey,
    /// Sets a value in which ten bytes are replaced by the commit's versionstamp. The last four bytes of
    /// the given value are the little-endian offset of those ten bytes, and are removed.
    SetVersionstampedValue,
}

impl MutationOp {
    /// Every operation, in the order of FoundationDB's numbers.
    pub const ALL: [Self; 12] = [
        Self::Add,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
        Self::AppendIfFits,
        Self::Max,
        Self::Min,
        Self::SetVersionstampedKey,
        Self::SetVersionstampedValue,
        Self::ByteMin,
        Self::ByteMax,
        Self::CompareAndClear,
    ];

    /// Returns FoundationDB's number for the operation.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::Add => 2,
            Self::BitAnd => 6,
            Self::BitOr => 7,
            Self::BitXor => 8,
            Self::AppendIfFits => 9,
            Self::Max => 12,
            Self::Min => 13,
            Self::SetVersionstampedKey => 14,
            Self::SetVersionstampedValue => 15,
            Self::ByteMin => 16,
            Self::ByteMax => 17,
            Self::CompareAndClear => 20,
        }
    }
}

/// Writes an operation as FoundationDB's number for it.
pub(crate) mod op_number {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::contract::mutation::MutationOp;

    pub(crate) fn serialize<S: Serializer>(op: &MutationOp, to: S) -> Result<S::Ok, S::Error> {
        op.number().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<MutationOp, D::Error> {
        let number = i32::deserialize(from)?;
        let known = MutationOp::ALL.into_iter().find(|op| op.number() == number);
        known.ok_or_else(|| D::Error::custom(format!("no operation has the number {number}")))
    }
}

/// The position of a commit in the order of all commits of a database.
///
/// Ten bytes: the commit version (eight bytes, big-endian) and the transaction's index in its commit batch
/// (two bytes, big-endian). Versionstamps sort in commit order, both as bytes and as values of this type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Versionstamp([u8; 10]);

impl Versionstamp {
    /// The placeholder for the commit's versionstamp: ten bytes `ff`.
    pub const INCOMPLETE: Self = Self([0xff; 10]);

    /// Returns the versionstamp with a commit version and a batch index.
    #[must_use]
    pub fn new(commit_version: i64, batch_index: u16) -> Self {
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&commit_version.to_be_bytes());
        bytes[8..].copy_from_slice(&batch_index.to_be_bytes());
        Self(bytes)
    }

    /// Returns the versionstamp with these ten stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 10]) -> Self {
        Self(bytes)
    }

    /// Returns the ten bytes that are stored.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 10] {
        &self.0
    }

    /// Returns the commit version.
    #[must_use]
    pub fn commit_version(&self) -> i64 {
        let (version, _) = self
            .0
            .split_first_chunk::<8>()
            .expect("ten bytes hold eight");
        i64::from_be_bytes(*version)
    }

    /// Returns the transaction's index in its commit batch.
    #[must_use]
    pub fn batch_index(&self) -> u16 {
        u16::from_be_bytes([self.0[8], self.0[9]])
    }
}

impl TryFrom<&[u8]> for Versionstamp {
    type Error = TryFromSliceError;

    /// Parses ten stored bytes, and fails for any other number of bytes.
    fn try_from(bytes: &[u8]) -> Result<Self, TryFromSliceError> {
        Ok(Self(bytes.try_into()?))
    }
}

impl fmt::Debug for Versionstamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Versionstamp({self})")
    }
}

impl fmt::Display for Versionstamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
