//! Keys and values of the rows.

use rand::Rng;
use rand::rngs::StdRng;

/// The value of a row.
pub(crate) const VALUE: [u8; 100] = [7; 100];

/// The bytes of a row.
pub(crate) const ROW_BYTES: u64 = 16 + VALUE.len() as u64;

/// Returns a key by its place in the order of keys. All are larger than those of [`spread`].
pub(crate) fn ascending(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[0] = 0x80;
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Returns the key of row `number` of `rows` rows whose keys are evenly spaced.
pub(crate) fn spread(number: u64, rows: u64) -> [u8; 16] {
    let mut key = [0; 16];
    // Half of the space: the other half holds what applications may not write.
    key[..8].copy_from_slice(&(number * (i64::MAX as u64 / rows)).to_be_bytes());
    key
}

/// Returns the keys of all `rows` rows, in ascending order.
pub(crate) fn all_spread(rows: u64) -> impl Iterator<Item = [u8; 16]> {
    (0..rows).map(move |number| spread(number, rows))
}

/// Returns the key of a random one of the `rows` rows.
pub(crate) fn any_spread(rng: &mut StdRng, rows: u64) -> [u8; 16] {
    spread(rng.random_range(0..rows), rows)
}

/// Returns a random key that applications may write.
pub(crate) fn random(rng: &mut StdRng) -> [u8; 16] {
    let mut key: [u8; 16] = rng.random();
    key[0] >>= 1;
    key
}
