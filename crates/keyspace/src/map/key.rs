//! The keys of a map.

use foundationdb_tuple::{Subspace, TuplePack, TupleUnpack};

/// The key of a row: a value of the tuple layer, or a tuple of them.
///
/// Integers, strings, byte strings, `bool`, floating-point numbers, `Option`, tuples of these, and with the feature
/// `uuid` a `keyspace::tuple::Uuid`. Rows are in the order of FoundationDB's tuple layer.
pub trait Key: TuplePack + for<'a> TupleUnpack<'a> + Send + Sync + 'static {}

impl<K: TuplePack + for<'a> TupleUnpack<'a> + Send + Sync + 'static> Key for K {}

/// What names a row: a reference to its key or, for a [`String`], a `&str`.
pub trait KeyRef<K>: Send + Sync {
    /// Returns the key of the row in a subspace.
    fn pack_in(&self, subspace: &Subspace) -> Vec<u8>;

    /// Returns the bytes of the key as one element of a tuple.
    fn pack_element(&self) -> Vec<u8>;
}

impl<K: Key> KeyRef<K> for &K {
    fn pack_in(&self, subspace: &Subspace) -> Vec<u8> {
        subspace.pack(*self)
    }

    fn pack_element(&self) -> Vec<u8> {
        (*self,).pack_to_vec()
    }
}

impl KeyRef<String> for &str {
    fn pack_in(&self, subspace: &Subspace) -> Vec<u8> {
        subspace.pack(self)
    }

    fn pack_element(&self) -> Vec<u8> {
        (*self,).pack_to_vec()
    }
}
