//! The body of the fuzz target, which a plain test also runs.

use microqueue::blocks::{decode_block, entry_count};
use microqueue::keyspace::Bytes;

/// Decodes a block. Encoding the entries of a valid block must give exactly its bytes.
pub(crate) fn block(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let Ok(entries) = decode_block(&bytes) else {
        return;
    };
    let count = u16::try_from(entries.len()).expect("a count has two bytes");
    assert_eq!(entry_count(input).expect("its header is read"), count);
    let mut written = vec![1, 1];
    written.extend(count.to_be_bytes());
    for entry in &entries {
        for mut length in [entry.key.len(), entry.value.len()] {
            while length >= 0x80 {
                written.push(0x80 | u8::try_from(length % 0x80).expect("seven bits"));
                length /= 0x80;
            }
            written.push(u8::try_from(length).expect("seven bits"));
        }
        written.extend_from_slice(&entry.key);
        written.extend_from_slice(&entry.value);
    }
    assert_eq!(written, input);
}
