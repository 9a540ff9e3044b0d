//! Keys with a UUID, by the feature `uuid`.

use keyspace::tuple::{Uuid, unpack};
use keyspace::{Codec, Subspace, Tuple};

const UUID: Uuid = Uuid::from_u128(0xbaff_ffff_ff5e_ba11_0000_0000_5ca1_ab1e);

/// The type code of a UUID in FoundationDB's tuple layer, and the UUID.
const BYTES: &[u8] = b"\x30\xba\xff\xff\xff\xff\x5e\xba\x11\0\0\0\0\x5c\xa1\xab\x1e";

#[test]
fn a_uuid_in_a_key_has_the_bytes_of_foundationdbs_tuple_layer() {
    let orders = Subspace::from("orders");
    let key = orders.pack(&UUID);
    assert_eq!(key, [&b"\x02orders\0"[..], BYTES].concat());
    assert_eq!(orders.unpack::<Uuid>(&key).unwrap(), UUID);
    assert_eq!(
        unpack::<(Uuid, u32)>(&[BYTES, b"\x15\x07"].concat()).unwrap(),
        (UUID, 7)
    );
}

#[test]
fn the_codec_of_tuples_encodes_a_uuid() {
    let mut encoded = Vec::new();
    Tuple.encode(&UUID, &mut encoded).unwrap();
    assert_eq!(encoded, BYTES);
    let decoded: Uuid = Tuple.decode(encoded.into()).unwrap();
    assert_eq!(decoded, UUID);
}
