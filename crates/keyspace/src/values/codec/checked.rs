//! A serializer around that of a codec, which refuses what the decoder of the codec would refuse or change.
//!
//! It looks at each piece of a value on its way to the codec's serializer, so no byte is read a second time.

use std::fmt::Display;
use std::marker::PhantomData;

use serde::ser::{
    Error as _, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::repeats::{FirstNames, MapKeys, repeated};

/// How many arrays, maps and `Some` a value may nest. The decoders of the codecs read no more: they would overflow the
/// stack at some depth.
pub(super) const MAX_DEPTH: u8 = 127;

/// What the decoder of a codec cannot read.
pub(super) trait Rules {
    /// Whether NaN and infinity are read as numbers.
    const HAS_ALL_FLOATS: bool;
    /// Whether byte strings are not written as arrays.
    const HAS_BYTES: bool;
    /// Whether `None` and `()` have the same bytes, so that an `Option` of either is read as `None`.
    const HAS_NULL: bool;
    /// Whether a struct without fields has these bytes, too.
    const UNIT_STRUCT_IS_NULL: bool;
    /// Whether the bytes say where each field and each element is, so that some may be left out.
    const IS_SELF_DESCRIBING: bool;
    /// Whether a number and its text are the same key of a map.
    const KEYS_ARE_TEXT: bool;
}

/// Returns a value whose serialization fails if the rules refuse a piece of it.
pub(super) fn checked<R: Rules, T: Serialize + ?Sized>(value: &T) -> impl Serialize {
    let nesting = Nesting {
        depth: 0,
        is_in_some: false,
    };
    Piece::<T, R>::new(value, nesting)
}

/// Where a piece of a value is.
#[derive(Clone, Copy)]
struct Nesting {
    /// The number of arrays, maps and `Some` around it.
    depth: u8,
    /// Whether it is the content of an `Option`.
    is_in_some: bool,
}

/// A serializer that checks a piece of a value.
struct Checked<S, R> {
    inner: S,
    nesting: Nesting,
    rules: PhantomData<R>,
}

/// A piece of a value, which is serialized by a [`Checked`] around the serializer that it is given.
struct Piece<'a, T: ?Sized, R> {
    value: &'a T,
    nesting: Nesting,
    rules: PhantomData<R>,
}

impl<'a, T: ?Sized, R> Piece<'a, T, R> {
    fn new(value: &'a T, nesting: Nesting) -> Self {
        Self {
            value,
            nesting,
            rules: PhantomData,
        }
    }
}

impl<T: Serialize + ?Sized, R: Rules> Serialize for Piece<'_, T, R> {
    #[inline]
    fn serialize<S: Serializer>(&self, inner: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(Checked::<S, R> {
            inner,
            nesting: self.nesting,
            rules: PhantomData,
        })
    }
}

impl<S: Serializer, R: Rules> Checked<S, R> {
    /// Returns the nesting inside a number of further levels.
    #[inline]
    fn inside(&self, levels: u8) -> Result<Nesting, S::Error> {
        let depth = self.nesting.depth + levels;
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        Ok(Nesting {
            depth,
            is_in_some: false,
        })
    }

    #[inline]
    fn refuse_null(&self) -> Result<(), S::Error> {
        if R::HAS_NULL && self.nesting.is_in_some {
            return Err(S::Error::custom(
                "`Some` of `None` or of a unit is read as `None`: use an enum of your own",
            ));
        }
        Ok(())
    }

    #[inline]
    fn refuse_unless_finite(&self, is_finite: bool) -> Result<(), S::Error> {
        if !R::HAS_ALL_FLOATS && !is_finite {
            return Err(S::Error::custom(
                "NaN and infinity are not JSON numbers: use an `Option`, or another codec",
            ));
        }
        Ok(())
    }

    #[inline]
    fn refuse_unknown_length(&self, len: Option<usize>) -> Result<(), S::Error> {
        if !R::IS_SELF_DESCRIBING && len.is_none() {
            return Err(S::Error::custom(
                "a sequence or map of unknown length, as of `#[serde(flatten)]`, cannot be read: use \
                 another codec",
            ));
        }
        Ok(())
    }
}

#[cold]
fn too_deep<E: serde::ser::Error>() -> E {
    E::custom(format_args!(
        "it nests more than {MAX_DEPTH} levels, which no decoder reads: store a flatter value"
    ))
}

/// Serializers of values without pieces.
macro_rules! forward {
    ($($method:ident($type:ty);)*) => {
        $(
            #[inline]
            fn $method(self, value: $type) -> Result<S::Ok, S::Error> {
                self.inner.$method(value)
            }
        )*
    };
}

impl<S: Serializer, R: Rules> Serializer for Checked<S, R> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Pieces<S::SerializeSeq, R>;
    type SerializeTuple = Pieces<S::SerializeTuple, R>;
    type SerializeTupleStruct = Pieces<S::SerializeTupleStruct, R>;
    type SerializeTupleVariant = Pieces<S::SerializeTupleVariant, R>;
    type SerializeMap = Pieces<S::SerializeMap, R, MapKeys>;
    type SerializeStruct = Pieces<S::SerializeStruct, R, FirstNames>;
    type SerializeStructVariant = Pieces<S::SerializeStructVariant, R, FirstNames>;

    forward! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_i128(i128);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_u128(u128);
        serialize_char(char);
        serialize_str(&str);
    }

    #[inline]
    fn serialize_bytes(self, value: &[u8]) -> Result<S::Ok, S::Error> {
        if !R::HAS_BYTES {
            self.inside(1)?;
        }
        self.inner.serialize_bytes(value)
    }

    #[inline]
    fn serialize_f32(self, value: f32) -> Result<S::Ok, S::Error> {
        self.refuse_unless_finite(value.is_finite())?;
        self.inner.serialize_f32(value)
    }

    #[inline]
    fn serialize_f64(self, value: f64) -> Result<S::Ok, S::Error> {
        self.refuse_unless_finite(value.is_finite())?;
        self.inner.serialize_f64(value)
    }

    #[inline]
    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.refuse_null()?;
        self.inner.serialize_none()
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        let nesting = Nesting {
            is_in_some: true,
            ..self.inside(1)?
        };
        self.inner
            .serialize_some(&Piece::<T, R>::new(value, nesting))
    }

    #[inline]
    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.refuse_null()?;
        self.inner.serialize_unit()
    }

    #[inline]
    fn serialize_unit_struct(self, name: &'static str) -> Result<S::Ok, S::Error> {
        if R::UNIT_STRUCT_IS_NULL {
            self.refuse_null()?;
        }
        self.inner.serialize_unit_struct(name)
    }

    #[inline]
    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit_variant(name, index, variant)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let piece = Piece::<T, R>::new(value, self.nesting);
        self.inner.serialize_newtype_struct(name, &piece)
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let piece = Piece::<T, R>::new(value, self.inside(1)?);
        self.inner
            .serialize_newtype_variant(name, index, variant, &piece)
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.refuse_unknown_length(len)?;
        let nesting = self.inside(1)?;
        Ok(Pieces::new(self.inner.serialize_seq(len)?, nesting))
    }

    #[inline]
    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        let nesting = self.inside(1)?;
        Ok(Pieces::new(self.inner.serialize_tuple(len)?, nesting))
    }

    #[inline]
    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        let nesting = self.inside(1)?;
        let pieces = self.inner.serialize_tuple_struct(name, len)?;
        Ok(Pieces::new(pieces, nesting))
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        // A map with the variant, and in it an array.
        let nesting = self.inside(2)?;
        let pieces = self
            .inner
            .serialize_tuple_variant(name, index, variant, len)?;
        Ok(Pieces::new(pieces, nesting))
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        self.refuse_unknown_length(len)?;
        let nesting = self.inside(1)?;
        Ok(Pieces::new(self.inner.serialize_map(len)?, nesting))
    }

    #[inline]
    fn serialize_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStruct, S::Error> {
        let nesting = self.inside(1)?;
        Ok(Pieces::new(
            self.inner.serialize_struct(name, len)?,
            nesting,
        ))
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        // A map with the variant, and in it a map.
        let nesting = self.inside(2)?;
        let pieces = self
            .inner
            .serialize_struct_variant(name, index, variant, len)?;
        Ok(Pieces::new(pieces, nesting))
    }

    #[inline]
    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.collect_str(value)
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// The pieces of an array or a map, all with the same nesting.
struct Pieces<S, R, K = ()> {
    inner: S,
    nesting: Nesting,
    /// Those that there were.
    keys: K,
    rules: PhantomData<R>,
}

impl<S, R, K: Default> Pieces<S, R, K> {
    fn new(inner: S, nesting: Nesting) -> Self {
        Self {
            inner,
            nesting,
            keys: K::default(),
            rules: PhantomData,
        }
    }

    fn piece<'a, T: ?Sized>(&self, value: &'a T) -> Piece<'a, T, R> {
        Piece::new(value, self.nesting)
    }
}

/// Arrays, whose pieces have no names.
macro_rules! array {
    ($($of:ident, $method:ident;)*) => {
        $(
            impl<S: $of, R: Rules> $of for Pieces<S, R> {
                type Ok = S::Ok;
                type Error = S::Error;

                #[inline]
                fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
                    let piece = self.piece(value);
                    self.inner.$method(&piece)
                }

                #[inline]
                fn end(self) -> Result<S::Ok, S::Error> {
                    self.inner.end()
                }
            }
        )*
    };
}

array! {
    SerializeSeq, serialize_element;
    SerializeTuple, serialize_element;
    SerializeTupleStruct, serialize_field;
    SerializeTupleVariant, serialize_field;
}

/// Maps whose keys are the names of fields.
macro_rules! named {
    ($($of:ident;)*) => {
        $(
            impl<S: $of, R: Rules> $of for Pieces<S, R, FirstNames> {
                type Ok = S::Ok;
                type Error = S::Error;

                #[inline]
                fn serialize_field<T: Serialize + ?Sized>(
                    &mut self,
                    key: &'static str,
                    value: &T,
                ) -> Result<(), S::Error> {
                    if R::IS_SELF_DESCRIBING && self.keys.has(key) {
                        return Err(repeated(key));
                    }
                    let piece = self.piece(value);
                    self.inner.serialize_field(key, &piece)
                }

                #[inline]
                fn skip_field(&mut self, key: &'static str) -> Result<(), S::Error> {
                    if !R::IS_SELF_DESCRIBING {
                        return Err(left_out(key));
                    }
                    self.inner.skip_field(key)
                }

                #[inline]
                fn end(self) -> Result<S::Ok, S::Error> {
                    self.inner.end()
                }
            }
        )*
    };
}

named! {
    SerializeStruct;
    SerializeStructVariant;
}

#[cold]
fn left_out<E: serde::ser::Error>(field: &str) -> E {
    E::custom(format_args!(
        "field `{field}` is left out, and the rest cannot be read: remove `skip_serializing_if`, or use \
         another codec"
    ))
}

impl<S, R: Rules> Pieces<S, R, MapKeys> {
    /// Refuses a key that the map has already. The key was serialized before, so that it does not nest too deep.
    #[inline]
    fn refuse_repeated<E: serde::ser::Error>(
        &mut self,
        key: &(impl Serialize + ?Sized),
    ) -> Result<(), E> {
        if !R::IS_SELF_DESCRIBING {
            return Ok(());
        }
        match self.keys.add(key, R::KEYS_ARE_TEXT) {
            Ok(()) => Ok(()),
            Err(key) => Err(repeated(&key)),
        }
    }
}

impl<S: SerializeMap, R: Rules> SerializeMap for Pieces<S, R, MapKeys> {
    type Ok = S::Ok;
    type Error = S::Error;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), S::Error> {
        let piece = self.piece(key);
        self.inner.serialize_key(&piece)?;
        self.refuse_repeated(key)
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        let piece = self.piece(value);
        self.inner.serialize_value(&piece)
    }

    #[inline]
    fn serialize_entry<K: Serialize + ?Sized, V: Serialize + ?Sized>(
        &mut self,
        key: &K,
        value: &V,
    ) -> Result<(), S::Error> {
        let key_piece = self.piece(key);
        let value = self.piece(value);
        self.inner.serialize_entry(&key_piece, &value)?;
        self.refuse_repeated(key)
    }

    #[inline]
    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}
