//! A deserializer around that of a codec, which refuses values that nest deeper than a [`checked`](super::checked)
//! value.
//!
//! Bytes that nest deeper are damaged or hostile, and would overflow the stack. The decoders of the codecs do not count
//! every level, or none.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use super::checked::MAX_DEPTH;

/// A value that was decoded within the limit.
pub(super) struct Bounded<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Bounded<T> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(inner: D) -> Result<Self, D::Error> {
        T::deserialize(Inside { inner, depth: 0 }).map(Self)
    }
}

/// A part of serde's protocol, inside a number of levels.
struct Inside<T> {
    inner: T,
    depth: u8,
}

impl<T> Inside<T> {
    /// Returns something else at the same depth.
    #[inline]
    fn with<U>(&self, inner: U) -> Inside<U> {
        let depth = self.depth;
        Inside { inner, depth }
    }

    /// Returns something one level deeper.
    #[inline]
    fn deeper<U, E: Error>(&self, inner: U) -> Result<Inside<U>, E> {
        if self.depth == MAX_DEPTH {
            return Err(too_deep());
        }
        let depth = self.depth + 1;
        Ok(Inside { inner, depth })
    }
}

#[cold]
fn too_deep<E: Error>() -> E {
    E::custom(format_args!("it nests more than {MAX_DEPTH} levels"))
}

/// Methods of [`Deserializer`], with the parameters before the visitor.
macro_rules! deserialize {
    ($($method:ident($($name:ident: $type:ty),*);)*) => {
        $(
            #[inline]
            fn $method<V: Visitor<'de>>(self, $($name: $type,)* visitor: V) -> Result<V::Value, D::Error> {
                let visitor = self.with(visitor);
                self.inner.$method($($name,)* visitor)
            }
        )*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Inside<D> {
    type Error = D::Error;

    deserialize! {
        deserialize_any();
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_i128();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_u128();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_seq();
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_map();
        deserialize_struct(name: &'static str, fields: &'static [&'static str]);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// Methods of [`Visitor`] for values without parts.
macro_rules! visit {
    ($($method:ident($type:ty);)*) => {
        $(
            #[inline]
            fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
                self.inner.$method(value)
            }
        )*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Inside<V> {
    type Value = V::Value;

    visit! {
        visit_bool(bool);
        visit_i8(i8);
        visit_i16(i16);
        visit_i32(i32);
        visit_i64(i64);
        visit_i128(i128);
        visit_u8(u8);
        visit_u16(u16);
        visit_u32(u32);
        visit_u64(u64);
        visit_u128(u128);
        visit_f32(f32);
        visit_f64(f64);
        visit_char(char);
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
        visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]);
        visit_byte_buf(Vec<u8>);
    }

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    #[inline]
    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    #[inline]
    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    #[inline]
    fn visit_some<D: Deserializer<'de>>(self, content: D) -> Result<V::Value, D::Error> {
        let content = self.deeper(content)?;
        self.inner.visit_some(content)
    }

    #[inline]
    fn visit_newtype_struct<D: Deserializer<'de>>(self, content: D) -> Result<V::Value, D::Error> {
        let content = self.with(content);
        self.inner.visit_newtype_struct(content)
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<V::Value, A::Error> {
        let elements = self.deeper(elements)?;
        self.inner.visit_seq(elements)
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        let entries = self.deeper(entries)?;
        self.inner.visit_map(entries)
    }

    #[inline]
    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        let variant = self.with(variant);
        self.inner.visit_enum(variant)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Inside<S> {
    type Value = S::Value;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, part: D) -> Result<S::Value, D::Error> {
        let part = self.with(part);
        self.inner.deserialize(part)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Inside<A> {
    type Error = A::Error;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = self.with(seed);
        self.inner.next_element_seed(seed)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Inside<A> {
    type Error = A::Error;

    #[inline]
    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = self.with(seed);
        self.inner.next_key_seed(seed)
    }

    #[inline]
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.with(seed);
        self.inner.next_value_seed(seed)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Inside<A> {
    type Error = A::Error;
    type Variant = Inside<A::Variant>;

    #[inline]
    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let Self { inner, depth } = self;
        let (name, content) = inner.variant_seed(Inside { inner: seed, depth })?;
        Ok((
            name,
            Inside {
                inner: content,
                depth,
            },
        ))
    }
}

/// The content of a variant is one level deeper. If it is an array or a map, its parts are two levels deeper.
impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Inside<A> {
    type Error = A::Error;

    #[inline]
    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    #[inline]
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.deeper(seed)?;
        self.inner.newtype_variant_seed(seed)
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let visitor = self.deeper(visitor)?;
        self.inner.tuple_variant(len, visitor)
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let visitor = self.deeper(visitor)?;
        self.inner.struct_variant(fields, visitor)
    }
}
