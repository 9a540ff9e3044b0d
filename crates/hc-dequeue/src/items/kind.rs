//! Kinds: the types of jobs in one queue, by which sessions choose items.
//!
//! A session takes the items of the kinds that it knows, and passes over others as over rows that do not decode: they
//! stay where they are, for other sessions. Sessions that know the same kinds share a registry of requests, so that
//! each of them may answer each of its requests.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use metrics::{Counter, Label, counter};
use microqueue::keyspace::record::Fields;
use parking_lot::Mutex;

/// The largest [kind](crate::Enqueue::with_kind) of an item in bytes.
pub const MAX_KIND_BYTES: usize = 100;

/// The most kinds that a consumer or worker takes.
pub const MAX_KINDS: usize = 500;

/// The format of a row with the kinds of a session.
const FORMAT: u8 = 1;

/// How many kinds that it does not know a session remembers until it reports them.
const MAX_UNKNOWN: usize = MAX_KINDS;

/// A kind, or that of an item without one.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Kind(Option<Arc<str>>);

impl Kind {
    /// The kind of an item that was enqueued without one.
    pub(crate) const NONE: Self = Self(None);

    /// Returns a kind that an application has named, or `None` if the name is empty or too long.
    pub(crate) fn new(name: &str) -> Option<Self> {
        if name.is_empty() || name.len() > MAX_KIND_BYTES {
            return None;
        }
        Some(Self(Some(name.into())))
    }

    /// Reads the field of a record, which is empty for an item without a kind.
    pub(crate) fn parse(field: &[u8]) -> Result<Self, String> {
        if field.len() > MAX_KIND_BYTES {
            return Err(format!("a kind of {} bytes", field.len()));
        }
        let name = std::str::from_utf8(field).map_err(|error| error.to_string())?;
        Ok(Self::new(name).unwrap_or(Self::NONE))
    }

    /// Returns the field of a record, which is empty for an item without a kind.
    pub(crate) fn field(&self) -> &[u8] {
        self.name().as_bytes()
    }

    /// Returns the name, which is empty for an item without a kind.
    pub(crate) fn name(&self) -> &str {
        self.get().unwrap_or_default()
    }

    /// Returns the name, if the item has a kind.
    pub(crate) fn get(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Returns the labels of metrics of items of this kind.
    pub(crate) fn labels(&self, queue: &str) -> Vec<Label> {
        let mut labels = vec![Label::new("queue", queue.to_owned())];
        labels.extend(self.get().map(|kind| Label::new("kind", kind.to_owned())));
        labels
    }

    /// Returns the counter of one outcome of items of this kind.
    pub(crate) fn outcomes(&self, queue: &str, outcome: &'static str) -> Counter {
        let mut labels = self.labels(queue);
        labels.push(Label::from_static_parts("outcome", outcome));
        counter!("hc_dequeue_outcomes", labels)
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(f)
    }
}

/// Which items a session takes.
#[derive(Debug)]
pub(crate) struct Kinds {
    /// The kinds that it takes; `None` for all.
    known: Option<BTreeSet<Kind>>,
    takes_unnamed: bool,
    /// Kinds that it has passed over and not yet reported.
    unknown: Mutex<BTreeSet<Kind>>,
}

impl Kinds {
    pub(crate) fn new(known: BTreeSet<Kind>) -> Self {
        Self {
            takes_unnamed: known.contains(&Kind::NONE),
            known: Some(known),
            unknown: Mutex::default(),
        }
    }

    /// Returns what takes the items of a queue of one type.
    pub(crate) fn unnamed() -> Self {
        Self::new(BTreeSet::from([Kind::NONE]))
    }

    /// Returns what takes all items.
    pub(crate) fn all() -> Self {
        Self {
            known: None,
            takes_unnamed: true,
            unknown: Mutex::default(),
        }
    }

    /// Returns whether the session takes an item of a kind. If not, notes the kind.
    pub(crate) fn admit(&self, kind: &Kind) -> bool {
        if *kind == Kind::NONE {
            return self.takes_unnamed;
        }
        if self.known.as_ref().is_none_or(|known| known.contains(kind)) {
            return true;
        }
        let mut unknown = self.unknown.lock();
        if unknown.len() < MAX_UNKNOWN {
            unknown.insert(kind.clone());
        }
        false
    }

    /// Returns the kinds that the session takes, unless it takes all.
    pub(crate) fn known(&self) -> impl Iterator<Item = &Kind> {
        self.known.iter().flatten()
    }

    /// Returns the kinds that the session has passed over since the last call.
    pub(crate) fn drain_unknown(&self) -> BTreeSet<Kind> {
        std::mem::take(&mut self.unknown.lock())
    }

    /// Returns what the session stores. `None` if it takes the items without a kind only, or all items.
    pub(crate) fn to_row(&self) -> Option<Vec<u8>> {
        let known = self.known.as_ref()?;
        if known.len() == 1 && self.takes_unnamed {
            return None;
        }
        let mut row = vec![FORMAT];
        for kind in known {
            row.push(u8::try_from(kind.field().len()).expect("kinds are shorter"));
            row.extend_from_slice(kind.field());
        }
        Some(row)
    }
}

/// Reads the kinds that a session has stored.
pub(crate) fn parse_kinds(row: &[u8]) -> Result<Vec<Kind>, String> {
    let mut fields = Fields::new(row);
    fields.format(FORMAT)?;
    let mut kinds = Vec::new();
    while !fields.rest().is_empty() {
        let [length] = fields.array()?;
        let kind = Kind::parse(fields.take(length.into())?)?;
        if kinds.last().is_some_and(|last| *last >= kind) {
            return Err("expected kinds in ascending order".to_owned());
        }
        if kinds.len() == MAX_KINDS {
            return Err(format!("more than {MAX_KINDS} kinds"));
        }
        kinds.push(kind);
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(names: &[&str]) -> BTreeSet<Kind> {
        let kind = |name: &&str| Kind::new(name).unwrap_or(Kind::NONE);
        names.iter().map(kind).collect()
    }

    #[test]
    fn the_kinds_of_a_session_have_the_bytes_of_the_schema() {
        for (names, row) in [
            (
                &["mail", "", "invoice"][..],
                &b"\x01\0\x07invoice\x04mail"[..],
            ),
            (&["mail"], b"\x01\x04mail"),
        ] {
            let known = kinds(names);
            assert_eq!(Kinds::new(known.clone()).to_row().as_deref(), Some(row));
            let parsed: BTreeSet<Kind> = parse_kinds(row).unwrap().into_iter().collect();
            assert_eq!(parsed, known);
        }
        for without_row in [Kinds::unnamed(), Kinds::all()] {
            assert_eq!(without_row.to_row(), None);
        }
    }

    #[test]
    fn the_most_kinds_that_a_session_takes_decode_and_one_more_does_not() {
        let row_of = |count: usize| {
            let names: Vec<_> = (0..count).map(|number| format!("{number:03}")).collect();
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            Kinds::new(kinds(&names)).to_row().unwrap()
        };
        assert_eq!(parse_kinds(&row_of(MAX_KINDS)).unwrap().len(), MAX_KINDS);
        assert!(parse_kinds(&row_of(MAX_KINDS + 1)).is_err());
    }

    #[test]
    fn kinds_that_no_session_stores_do_not_decode() {
        let long = [&[1, 101][..], &[b'a'; 101]].concat();
        for row in [
            &b""[..],
            b"\x02\x04mail",
            b"\x01\x05mail",
            b"\x01\x04mail\x07invoice",
            b"\x01\x04mail\x04mail",
            b"\x01\x01\xff",
            &long,
        ] {
            assert!(parse_kinds(row).is_err(), "{row:?}");
        }
    }
}
