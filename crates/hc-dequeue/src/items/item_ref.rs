//! References to items, which an application may store.

use std::fmt;
use std::str::FromStr;

use microqueue::keyspace::{Bytes, Subspace, Versionstamp};
use microqueue::{ItemId, StagedId};
use serde::de::{self, Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

/// The tag by which references to items identify the queue.
pub(crate) type QueueTag = [u8; 4];

pub(crate) fn queue_tag(queue: &Subspace) -> QueueTag {
    let [first, second, third, fourth, ..] = xxh3_64(queue.bytes()).to_be_bytes();
    [first, second, third, fourth]
}

/// The format number of a reference.
const FORMAT: u8 = 1;

/// The length of an id in bytes.
pub(crate) const ID_BYTES: usize = 18;

/// Where the versionstamp begins in the bytes of a reference to an item.
pub(crate) const STAMP_OFFSET: u32 = 1 + size_of::<QueueTag>() as u32;

/// A reference to an item, which an application may store. It stays valid wherever the item goes, and identifies the
/// queue that the item belongs to. As text, it is an idempotency key for other services.
///
/// The bytes of a reference are: the format, 01; the first four bytes of the XXH3 hash of the prefix of the queue's
/// subspace; the versionstamp of the item's enqueue in 10 bytes; the call in 8 bytes, big-endian. Its text is these
/// bytes in hexadecimal digits. References to items of one queue sort in the order in which the items were enqueued.
///
/// ```
/// use hc_dequeue::keyspace::{self, Runner};
/// use hc_dequeue::{Cancelled, ItemRef, Queue};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let queue = &Queue::<u64>::open(&runner, "jobs").await?;
///
/// let text = queue.submit(&runner, &7).await?.to_string();
///
/// let item: ItemRef = text.parse()?;
/// let cancel = async |tr| queue.cancel(&tr, &item).await;
/// assert_eq!(runner.run(cancel).await?, Cancelled::Removed);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemRef {
    queue: QueueTag,
    id: ItemId,
}

/// The bytes or the text are not a reference to an item or to a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed reference: {reason}")]
pub struct MalformedRef {
    /// Why they are not.
    reason: String,
}

/// A reference to a staged item, which the commit completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StagedRef {
    queue: QueueTag,
    pub(crate) id: StagedId,
}

impl StagedRef {
    pub(crate) fn new(queue: QueueTag, id: StagedId) -> Self {
        Self { queue, id }
    }

    /// Returns the reference, given the versionstamp of the commit that enqueued the item.
    #[must_use]
    pub fn at(self, versionstamp: Versionstamp) -> ItemRef {
        ItemRef {
            queue: self.queue,
            id: self.id.at(versionstamp),
        }
    }
}

impl ItemRef {
    /// The length of a reference in bytes.
    pub const BYTES: usize = 1 + size_of::<QueueTag>() + ID_BYTES;

    pub(crate) fn new(queue: QueueTag, id: ItemId) -> Self {
        Self { queue, id }
    }

    /// Returns the item's id, assigned by its first enqueue.
    #[must_use]
    pub fn id(&self) -> ItemId {
        self.id
    }

    /// Returns the tag of the queue that the item belongs to.
    pub(crate) fn queue(&self) -> QueueTag {
        self.queue
    }

    /// Returns the bytes of the reference.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        ref_to_bytes(self.queue, &id_to_bytes(&self.id))
    }

    /// Parses the bytes of a reference.
    ///
    /// # Errors
    /// [`MalformedRef`] if the bytes are not a reference.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MalformedRef> {
        let (queue, id) = ref_from_bytes(bytes)?;
        let id = id_from_bytes(id);
        Ok(Self { queue, id })
    }
}

impl fmt::Display for ItemRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.to_bytes(), f)
    }
}

impl FromStr for ItemRef {
    type Err = MalformedRef;

    fn from_str(text: &str) -> Result<Self, MalformedRef> {
        Self::from_bytes(&ref_from_text(text)?)
    }
}

/// A reference is stored as its bytes, and as its text in formats for people.
impl Serialize for ItemRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_bytes(&self.to_bytes())
        }
    }
}

impl<'de> Deserialize<'de> for ItemRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parsed = if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse()
        } else {
            Self::from_bytes(&Bytes::deserialize(deserializer)?)
        };
        parsed.map_err(de::Error::custom)
    }
}

/// Returns the bytes of a reference: the format, the queue, and the id.
pub(crate) fn ref_to_bytes<const BYTES: usize>(queue: QueueTag, id: &[u8]) -> [u8; BYTES] {
    let mut bytes = [FORMAT; BYTES];
    bytes[1..5].copy_from_slice(&queue);
    bytes[5..].copy_from_slice(id);
    bytes
}

/// Returns the queue and the id in the bytes of a reference.
pub(crate) fn ref_from_bytes<const ID: usize>(
    bytes: &[u8],
) -> Result<(QueueTag, [u8; ID]), MalformedRef> {
    let malformed = |reason: &str| MalformedRef {
        reason: reason.to_owned(),
    };
    let parts = bytes.split_first_chunk::<5>();
    let parts = parts.and_then(|(head, id)| Some((head, id.try_into().ok()?)));
    let Some(([format, queue @ ..], id)) = parts else {
        return Err(malformed(&format!("it has {} bytes", bytes.len())));
    };
    match *format {
        FORMAT => Ok((*queue, id)),
        newer if newer > FORMAT => Err(malformed("it was made by a newer version of the library")),
        _ => Err(malformed("its first byte is not a known format")),
    }
}

/// Returns the bytes in the text of a reference.
pub(crate) fn ref_from_text(text: &str) -> Result<Vec<u8>, MalformedRef> {
    parse_hex(text).ok_or_else(|| MalformedRef {
        reason: "expected pairs of hexadecimal digits".to_owned(),
    })
}

/// Writes bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Parses hexadecimal digits. Returns `None` if the text does not consist of pairs of digits.
pub(crate) fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let bytes = pairs
        .iter()
        .map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    bytes.collect()
}

/// Returns an id in the form in which values contain it.
pub(crate) fn id_to_bytes(id: &ItemId) -> [u8; ID_BYTES] {
    let mut bytes = [0; ID_BYTES];
    if let ItemId::Commit { versionstamp, call } = id {
        bytes[..10].copy_from_slice(versionstamp.as_bytes());
        bytes[10..].copy_from_slice(&call.to_be_bytes());
    }
    bytes
}

pub(crate) fn id_from_bytes(bytes: [u8; ID_BYTES]) -> ItemId {
    let (versionstamp, call) = bytes.split_at(10);
    ItemId::Commit {
        versionstamp: Versionstamp::from_bytes(versionstamp.try_into().expect("ten bytes")),
        call: u64::from_be_bytes(call.try_into().expect("eight bytes")),
    }
}

#[cfg(test)]
mod tests {
    use microqueue::keyspace::Environment;

    use super::*;
    use crate::items::error::Error;
    use crate::items::keys::Keys;

    fn item(queue: &[u8], call: u64) -> (Keys, ItemRef) {
        let keys = Keys::new(Subspace::from_bytes(queue), Environment::system());
        let id = ItemId::Commit {
            versionstamp: Versionstamp::from_bytes([8; 10]),
            call,
        };
        let item = keys.item_ref(id);
        (keys, item)
    }

    #[test]
    fn a_reference_has_the_bytes_that_are_documented() {
        let (_, item) = item(b"Q", 9);
        let hash = &xxh3_64(b"Q").to_be_bytes()[..4];
        let expected = [&[1], hash, &[8; 10], &[0, 0, 0, 0, 0, 0, 0, 9]].concat();
        assert_eq!(item.to_bytes()[..], expected);
        assert_eq!(ItemRef::from_bytes(&expected).unwrap(), item);
        let text = item.to_string();
        assert_eq!(text.len(), 2 * ItemRef::BYTES);
        assert_eq!(text.parse::<ItemRef>().unwrap(), item);
        assert_eq!(text.to_uppercase().parse::<ItemRef>().unwrap(), item);
    }

    #[test]
    fn a_reference_of_another_queue_and_a_malformed_one_have_different_errors() {
        let (keys, own) = item(b"Q", 9);
        let (_, foreign) = item(b"R", 9);
        assert_eq!(own.id_in(&keys).unwrap(), own.id());
        let refused = foreign.id_in(&keys);
        assert!(matches!(refused, Err(Error::ForeignRef { .. })));
        let text = own.to_string();
        let long = format!("{text}00");
        let newer = format!("02{}", &text[2..]);
        let older = format!("00{}", &text[2..]);
        for malformed in [
            "",
            "0",
            "xx",
            &text[2..],
            &text[1..],
            &long,
            &newer,
            &older,
            "ä",
        ] {
            let refused = malformed.parse::<ItemRef>();
            assert!(matches!(refused, Err(MalformedRef { .. })), "{malformed}");
        }
    }
}
