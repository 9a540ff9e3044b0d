//! The place of an entry in the order of all commits.

use std::fmt;
use std::str::FromStr;

use combine::keyspace::Versionstamp;
use combine::microqueue::blocks::{ENTRY_ID_BYTES, EntryId, EntryIdError, WHOLE_BLOCK};

/// The number of bytes of a sequence.
pub const SEQUENCE_BYTES: usize = ENTRY_ID_BYTES;

/// The place of an entry in the order of commits: 10 bytes of versionstamp, 8 bytes of call number, and 2
/// bytes of the entry's index in its block, all big-endian.
///
/// Sequences sort in the order of the commits that added the entries. Entries of one key in the same
/// commit sort in the order in which they were added. Values, bytes and texts all sort the same way. No
/// two entries of a database have the same sequence.
///
/// ```
/// use export_queue::Sequence;
///
/// let text = "00000000000003e8000000000000000000aa0002";
/// let sequence: Sequence = text.parse()?;
/// assert_eq!(sequence.to_string(), text);
/// assert_eq!(Sequence::try_from(&sequence.to_bytes()[..])?, sequence);
/// assert_eq!(sequence.versionstamp().commit_version(), 1000);
/// # Ok::<(), export_queue::SequenceError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(EntryId);

/// The bytes or the text are not a sequence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a sequence: {SEQUENCE_BYTES} bytes, or twice as many hexadecimal digits in lower case"
)]
pub struct SequenceError;

impl Sequence {
    pub(crate) fn of(id: EntryId) -> Self {
        Self(id)
    }

    pub(crate) fn id(&self) -> EntryId {
        self.0
    }

    /// Returns whether this is the place of a whole block, after all its entries. The dead letter of a
    /// block that does not decode has such a sequence.
    #[must_use]
    pub fn is_of_block(&self) -> bool {
        self.0.index == WHOLE_BLOCK
    }

    /// Returns the sequence after all entries of a commit.
    pub(crate) fn after_commit(versionstamp: Versionstamp) -> Self {
        Self(EntryId {
            versionstamp,
            call: u64::MAX,
            index: WHOLE_BLOCK,
        })
    }

    /// Returns the sequence after all commits up to `version`, and before all later commits.
    ///
    /// Use it for a receiver that is first filled from the data itself and then receives entries. Store
    /// this sequence with the rows that were read at a read version: an entry is newer than such a row if
    /// and only if its sequence is larger.
    ///
    /// ```
    /// use export_queue::Sequence;
    /// use export_queue::keyspace::{self, Database, Transaction};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tr = keyspace::open("memory:")?.begin()?;
    /// let sequence = Sequence::after_version(tr.read_version().await?);
    /// # let _ = sequence;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn after_version(version: i64) -> Self {
        Self::after_commit(Versionstamp::new(version, u16::MAX))
    }

    /// Returns the versionstamp of the commit that added the entry.
    #[must_use]
    pub fn versionstamp(&self) -> Versionstamp {
        self.0.versionstamp
    }

    /// Returns the bytes of the sequence, which sort as sequences do.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; SEQUENCE_BYTES] {
        self.0.to_bytes()
    }
}

impl TryFrom<&[u8]> for Sequence {
    type Error = SequenceError;

    fn try_from(bytes: &[u8]) -> Result<Self, SequenceError> {
        let id = EntryId::try_from(bytes).map_err(|EntryIdError| SequenceError)?;
        Ok(Self(id))
    }
}

impl FromStr for Sequence {
    type Err = SequenceError;

    fn from_str(text: &str) -> Result<Self, SequenceError> {
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Ok(digit - b'0'),
            b'a'..=b'f' => Ok(digit - b'a' + 10),
            _ => Err(SequenceError),
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(SequenceError);
        }
        let bytes: Vec<u8> = pairs
            .iter()
            .map(|[high, low]| Ok(16 * digit(*high)? + digit(*low)?))
            .collect::<Result<_, _>>()?;
        Self::try_from(&bytes[..])
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.to_bytes() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequence({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(version: i64, batch_index: u16, call: u64, index: u16) -> Sequence {
        Sequence::of(EntryId {
            versionstamp: Versionstamp::new(version, batch_index),
            call,
            index,
        })
    }

    #[test]
    fn values_bytes_and_texts_are_in_the_same_order() {
        let ordered = [
            sequence(1, 0, 9, 7),
            sequence(1, 1, 0, 0),
            sequence(1, 1, 255, 0),
            sequence(1, 1, 255, 255),
            sequence(1, 1, 255, 256),
            sequence(1, 1, 255, WHOLE_BLOCK),
            sequence(1, 1, 256, 0),
            sequence(256, 0, 0, 0),
            sequence(i64::MAX, u16::MAX, u64::MAX, u16::MAX),
        ];
        assert!(ordered.is_sorted());
        assert!(ordered.map(|sequence| sequence.to_bytes()).is_sorted());
        assert!(ordered.map(|sequence| sequence.to_string()).is_sorted());
        for sequence in ordered {
            assert_eq!(sequence.to_string().parse(), Ok(sequence));
            assert_eq!(Sequence::try_from(&sequence.to_bytes()[..]), Ok(sequence));
            assert_eq!(sequence.is_of_block(), sequence.id().index == u16::MAX);
        }
    }

    #[test]
    fn the_sequence_after_a_version_parts_its_commits_from_later_ones() {
        let after = Sequence::after_version(0x0102);
        assert_eq!(
            after.to_string(),
            "0000000000000102ffffffffffffffffffffffff"
        );
        assert!(sequence(0x0101, u16::MAX, u64::MAX, u16::MAX) < after);
        assert!(sequence(0x0102, u16::MAX, u64::MAX, u16::MAX - 1) < after);
        assert!(after < sequence(0x0103, 0, 0, 0));
        assert!(after < Sequence::after_version(0x0103));
    }

    #[test]
    fn an_invalid_sequence_is_refused() {
        let text = "0".repeat(2 * SEQUENCE_BYTES);
        for text in [
            "",
            "0",
            // A text without the index.
            &text[4..],
            &text[1..],
            &format!("{text}00"),
            &text.replace('0', "A"),
        ] {
            assert_eq!(text.parse::<Sequence>(), Err(SequenceError), "{text}");
        }
        for length in [0, 10, 17, 18, 19, 21] {
            let bytes = vec![0; length];
            assert_eq!(
                Sequence::try_from(&bytes[..]),
                Err(SequenceError),
                "{length}"
            );
        }
        assert_eq!(text.parse::<Sequence>(), Ok(sequence(0, 0, 0, 0)));
    }
}
