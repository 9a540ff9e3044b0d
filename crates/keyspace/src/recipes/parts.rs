//! The parts of a recipe's subspace, as a type.
//!
//! The key of a row begins with the prefix of its recipe's subspace. The element after it, a string, is the name of
//! the part to which the row belongs. [`parts!`](crate::parts!) defines an enum of them, so the compiler knows what has
//! to change with a new part.

use foundationdb_tuple::Subspace;

/// The byte with which the tuple layer begins a string.
const STRING: u8 = 2;

/// The byte after a zero that does not end a string.
const ESCAPE: u8 = 0xff;

/// A part of a subspace: the rows whose keys begin with its name.
pub trait Part: Copy + 'static {
    /// All parts, in the order of their keys.
    const ALL: &'static [Self];

    /// Returns the name with which the keys of the part begin.
    fn name(self) -> &'static str;

    /// Returns what a row of the part is, in words.
    fn text(self) -> &'static str;

    /// Returns the part with a name.
    #[must_use]
    fn named(name: &str) -> Option<Self> {
        let mut parts = Self::ALL.iter().copied();
        parts.find(|part| part.name() == name)
    }

    /// Returns the part of a subspace that a key belongs to.
    #[must_use]
    fn of(subspace: &Subspace, key: &[u8]) -> Option<Self> {
        let [STRING, name @ ..] = key.strip_prefix(subspace.bytes())? else {
            return None;
        };
        let end = name.iter().position(|byte| *byte == 0)?;
        // A zero within a string is escaped, and no name has one.
        let is_escaped = name.get(end + 1) == Some(&ESCAPE);
        let name = str::from_utf8(&name[..end]).ok()?;
        if is_escaped { None } else { Self::named(name) }
    }
}

/// Defines an enum of [`Part`](crate::parts::Part)s: for each its variant, its name and its text, in the order of
/// their names. As an element of a tuple, a part is its name.
///
/// ```
/// use keyspace::Subspace;
/// use keyspace::parts::Part;
///
/// keyspace::parts! {
///     /// The parts of a shop.
///     enum Shop {
///         Customers "c" "customer",
///         Orders "o" "order of a customer",
///     }
/// }
///
/// let shop = Subspace::from("shop");
/// let order = shop.pack(&(Shop::Orders, 17));
/// assert_eq!(order, shop.pack(&("o", 17)));
/// let part = Shop::of(&shop, &order);
/// assert_eq!(part.map(Shop::text), Some("order of a customer"));
/// ```
#[macro_export]
macro_rules! parts {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $Parts:ident {
            $($part:ident $name:literal $text:literal,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        $visibility enum $Parts {
            $(#[doc = $text] $part,)*
        }

        impl $crate::parts::Part for $Parts {
            const ALL: &'static [Self] = &[$(Self::$part),*];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$part => $name,)*
                }
            }

            fn text(self) -> &'static str {
                match self {
                    $(Self::$part => $text,)*
                }
            }
        }

        impl $crate::tuple::TuplePack for $Parts {
            fn pack<W: ::std::io::Write>(
                &self,
                writer: &mut W,
                depth: $crate::tuple::TupleDepth,
            ) -> ::std::io::Result<$crate::tuple::VersionstampOffset> {
                $crate::tuple::TuplePack::pack(&$crate::parts::Part::name(*self), writer, depth)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::parts! {
        enum Rows {
            One "a" "one",
            Two "ab" "two",
        }
    }

    #[test]
    fn a_key_belongs_to_the_part_with_the_whole_of_its_first_element() {
        let subspace = Subspace::from("s");
        let key = |name: &str| subspace.pack(&(name, 1));
        for (key, part) in [
            (key("a"), Some(Rows::One)),
            (key("ab"), Some(Rows::Two)),
            (subspace.pack(&Rows::One), Some(Rows::One)),
            (key("b"), None),
            (key("abc"), None),
            (key("a\0"), None),
            (subspace.pack(&b"a".to_vec()), None),
            (subspace.bytes().to_vec(), None),
            (Subspace::from("other").pack(&"a"), None),
        ] {
            assert_eq!(Rows::of(&subspace, &key), part);
        }
    }

    #[test]
    fn parts_are_in_the_order_of_their_keys() {
        let keys = Rows::ALL.iter().map(|part| Subspace::all().pack(part));
        assert!(keys.is_sorted());
    }
}
