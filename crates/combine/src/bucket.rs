//! Buckets: ranges of the hashes of keys.

use std::fmt;
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

/// The number of hashes.
const HASHES: u64 = 1 << 16;

/// The hash of a key, which determines where its value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyHash(pub(crate) u16);

impl KeyHash {
    /// Returns the hash of a key, given its encoded bytes.
    pub(crate) fn of(key: &[u8]) -> Self {
        let [first, second, ..] = xxh3_64(key).to_be_bytes();
        Self(u16::from_be_bytes([first, second]))
    }
}

/// A bucket of a queue's keys, numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(pub u32);

impl Bucket {
    /// Returns the bucket of a key, given its encoded bytes and a bucket count from 1 to 65,536.
    ///
    /// Each bucket is a range of the first 16 bits of the keys' XXH3 hashes. All ranges have about the
    /// same size.
    #[must_use]
    pub fn of(key: &[u8], bucket_count: u32) -> Self {
        Self::of_hash(KeyHash::of(key), bucket_count)
    }

    fn of_hash(hash: KeyHash, bucket_count: u32) -> Self {
        let bucket = u64::from(hash.0) * u64::from(bucket_count) / HASHES;
        Self(u32::try_from(bucket).expect("less than a count of 32 bits"))
    }

    /// Returns the hashes of the bucket's keys.
    pub(crate) fn hashes(self, bucket_count: u32) -> Range<u64> {
        let begin = |bucket: u64| (bucket * HASHES).div_ceil(u64::from(bucket_count));
        begin(self.0.into())..begin(u64::from(self.0) + 1)
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_fall_into_these_buckets() {
        // XXH3 of no bytes is 2d06800538d394c2, of "a" e6c632b61e964e1f.
        for (key, hash) in [(&b""[..], 0x2d06_u64), (b"a", 0xe6c6)] {
            for bucket_count in [1, 7, 1009, 65_536] {
                let bucket = (hash * u64::from(bucket_count)) >> 16;
                assert_eq!(u64::from(Bucket::of(key, bucket_count).0), bucket);
            }
        }
    }

    #[test]
    fn the_buckets_divide_the_hashes_between_them() {
        for bucket_count in [1, 2, 3, 7, 1009, 65_535, 65_536] {
            let mut next = 0;
            for bucket in 0..bucket_count {
                let hashes = Bucket(bucket).hashes(bucket_count);
                assert_eq!(hashes.start, next);
                next = hashes.end;
                for hash in [hashes.start, hashes.end - 1] {
                    let hash = KeyHash(hash.try_into().unwrap());
                    assert_eq!(Bucket::of_hash(hash, bucket_count), Bucket(bucket));
                }
            }
            assert_eq!(next, HASHES);
        }
    }
}
