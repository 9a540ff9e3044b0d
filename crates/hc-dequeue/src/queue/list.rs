//! Lists items by place, page by page.

use std::fmt;
use std::str::FromStr;

use microqueue::Listed;
use microqueue::keyspace::codec::{Codec, DecodeError};
use microqueue::keyspace::parts::Part as _;
use microqueue::keyspace::{
    self, Bytes, Isolation, KeyValue, RangeQuery, StreamingMode, Transaction, Undecodable,
    key_after,
};

use crate::items::error::{Error, Result};
use crate::items::item_ref::{ItemRef, hex, parse_hex};
use crate::items::item_row::parse_item;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::queue::handle::Queue;
use crate::queue::status::Status;

/// Where listed items are: a [`Place`](crate::Place) without its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PlaceKind {
    /// Items that are waiting to be granted: first those without a group that have not come back, in the order in which
    /// they are granted, then those that have come back, and those with groups, group by group.
    Queued,
    /// Delayed items, in the order of their due times.
    Delayed,
    /// Held items: first those that their session has not collected yet, then the others, session by session.
    Held,
    /// Dead letters, in the order of their first enqueue.
    Dead,
    /// Done items that are kept, in the order of their first enqueue.
    Done,
}

impl PlaceKind {
    /// All places.
    pub const ALL: [Self; 5] = [
        Self::Queued,
        Self::Delayed,
        Self::Held,
        Self::Dead,
        Self::Done,
    ];

    /// Returns the name of the place: `queued`, `delayed`, `held`, `dead` or `done`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Delayed => "delayed",
            Self::Held => "held",
            Self::Dead => "dead",
            Self::Done => "done",
        }
    }

    /// Returns the key range of the place. The range from `"g"` to `"h"` contains no other part of the queue. Between
    /// the two parts of the queued items are dedupe ids.
    fn range(self, keys: &Keys) -> (Vec<u8>, Vec<u8>) {
        match self {
            Self::Queued => (keys.outside_lanes().0, keys.part(Part::Lanes).1),
            Self::Delayed => keys.part(Part::Delayed),
            Self::Held => (keys.part(Part::Grants).0, keys.part(Part::Held).1),
            Self::Dead => keys.part(Part::Dead),
            Self::Done => keys.part(Part::Done),
        }
    }
}

/// A page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ItemPage<T> {
    /// The items. A page with fewer items than requested is not necessarily the last one.
    pub items: Vec<ListedItem<T>>,
    /// The rows on this page that do not say which item they contain. Another program has written or damaged them.
    pub strays: Vec<Undecodable>,
    /// Where the next page begins. `None` if this is the last page.
    pub next: Option<Cursor>,
}

/// An item in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedItem<T> {
    /// The item.
    pub item: ItemRef,
    /// The state of the item, or why its record does not decode.
    pub status: Result<Status<T>, Undecodable>,
}

/// A position in a listing, where the next page begins. It stays valid if the last item of the page moves elsewhere.
///
/// Its text is hexadecimal: four bytes that identify the queue, then the last row's key without the queue's prefix.
/// That is a tuple, which begins with the letter of the place's part as a string.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cursor(Bytes);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bytes = parse_hex(text).filter(|bytes| !bytes.is_empty());
        bytes
            .map(|bytes| Self(bytes.into()))
            .ok_or(Error::MalformedCursor)
    }
}

impl Cursor {
    /// Returns the cursor after a row of a queue.
    fn after(keys: &Keys, row: &[u8]) -> Self {
        Self(
            [&keys.tag, &row[keys.queue.bytes().len()..]]
                .concat()
                .into(),
        )
    }

    /// Returns the key at which the page of a place begins.
    fn begin(&self, keys: &Keys, place: PlaceKind) -> Result<Vec<u8>> {
        let (begin, end) = place.range(keys);
        let Some(suffix) = self.0.strip_prefix(&keys.tag) else {
            return Err(Error::MalformedCursor);
        };
        let row = [keys.queue.bytes(), suffix].concat();
        if row < begin || row >= end {
            return Err(Error::MalformedCursor);
        }
        Ok(key_after(&row))
    }
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Returns a page of the items in a place, from up to `limit` rows: those after a cursor, or the first ones. An
    /// item that does not decode is listed with the reason.
    ///
    /// Each page shows the place as it is when the page is read. An item that stays in its row is on exactly one page.
    /// An item that moves between two pages may be on both or on neither: for example, a session collects a granted
    /// item, or a delayed item is delayed again.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::{Transaction};
    /// # use hc_dequeue::{Queue, PlaceKind, Result};
    /// async fn print_dead(tr: &impl Transaction, jobs: &Queue<String>) -> Result<()> {
    ///     let mut after = None;
    ///     loop {
    ///         let page = jobs.list(tr, PlaceKind::Dead, after.as_ref(), 100).await?;
    ///         for listed in page.items {
    ///             println!("{} {:?}", listed.item, listed.status);
    ///         }
    ///         after = page.next;
    ///         if after.is_none() {
    ///             return Ok(());
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Conflicts
    /// Reads by snapshot, and for [`PlaceKind::Queued`] keys that no operation of this queue writes.
    ///
    /// # Errors
    /// [`Error::MalformedCursor`] for a cursor of another queue or another place.
    /// [`Error::ReadAfterWrite`] for [`PlaceKind::Queued`] after an enqueue in the same transaction, and for
    /// [`PlaceKind::Delayed`] if the page reaches a delayed item that the transaction has enqueued.
    pub async fn list(
        &self,
        tr: &impl Transaction,
        place: PlaceKind,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<ItemPage<T>> {
        self.list_until(tr, place, after, None, limit).await
    }

    /// Returns a page as [`list`](Self::list) does, of the rows up to the one of a cursor, such as the
    /// [end](Self::end) of the place at an earlier time.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub async fn list_until(
        &self,
        tr: &impl Transaction,
        place: PlaceKind,
        after: Option<&Cursor>,
        last: Option<&Cursor>,
        limit: usize,
    ) -> Result<ItemPage<T>> {
        let keys = &*self.keys;
        let (mut begin, mut end) = place.range(keys);
        if let Some(after) = after {
            begin = after.begin(keys, place)?;
        }
        if let Some(last) = last {
            end = last.begin(keys, place)?.max(begin.clone());
        }
        let mut page = ItemPage {
            items: Vec::new(),
            strays: Vec::new(),
            next: after.cloned(),
        };
        if limit == 0 {
            return Ok(page);
        }
        let (_, outside_lanes) = keys.outside_lanes();
        if place == PlaceKind::Queued && begin < outside_lanes {
            keys.refuse_after_enqueue(tr).await?;
            let range = (begin, end.clone().min(outside_lanes));
            self.add_page(tr, range, limit, &mut page).await?;
            if page.next.is_some() {
                return Ok(page);
            }
            begin = keys.part(Part::Lanes).0;
        }
        let left = limit - page.items.len();
        if left == 0 {
            if begin < end {
                // The next page begins with the lanes.
                page.next = Some(Cursor::after(keys, &begin));
            }
        } else if begin < end {
            self.add_page(tr, (begin, end), left, &mut page).await?;
        }
        Ok(page)
    }

    /// Adds the items in a range to a page, from up to `limit` rows.
    async fn add_page(
        &self,
        tr: &impl Transaction,
        (begin, end): (Vec<u8>, Vec<u8>),
        limit: usize,
        page: &mut ItemPage<T>,
    ) -> Result<()> {
        let keys = &*self.keys;
        let query = RangeQuery::keys(begin, end)
            .limit(limit)
            .mode(StreamingMode::WantAll);
        // One batch is enough: the next page begins where it ends. Safe as a snapshot read: the page shows the place
        // at the read version, and nothing is written.
        let batch = tr.get_range(&query, Isolation::Snapshot).await?;
        page.next = batch.next_after().map(|last| Cursor::after(keys, last));
        for row in &batch.rows {
            match self.parse_item(row) {
                Ok(item) => page.items.extend(item),
                Err(error) => page.strays.push(undecodable(error, row, "an item")?),
            }
        }
        Ok(())
    }

    /// Returns the cursor after the last item of a place, or `None` if the place is empty. A walk over a place that
    /// grows can stop there.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn end(&self, tr: &impl Transaction, place: PlaceKind) -> Result<Option<Cursor>> {
        let keys = &*self.keys;
        let ranges = match place {
            PlaceKind::Queued => vec![keys.part(Part::Lanes), keys.outside_lanes()],
            _ => vec![place.range(keys)],
        };
        for (begin, end) in ranges {
            let query = RangeQuery::keys(begin, end).limit(1).reversed();
            // A snapshot read is safe: what comes in later is not part of the walk.
            let batch = tr.get_range(&query, Isolation::Snapshot).await?;
            if let Some(last) = batch.rows.first() {
                return Ok(Some(Cursor::after(keys, last.key())));
            }
        }
        Ok(None)
    }

    /// Returns the item of a row, if it contains one, or [`Corrupt`](keyspace::Error::Corrupt) if the row does not say
    /// which one.
    fn parse_item(&self, row: &KeyValue) -> Result<Option<ListedItem<T>>> {
        let keys = &*self.keys;
        let Some(part) = Part::of(&keys.queue, row.key()) else {
            let reason = "expected a key of an item";
            return Err(keyspace::Error::corrupt(row.key(), reason).into());
        };
        let Some((location, Listed { id, value: record })) = parse_item(keys, part, row)? else {
            return Ok(None);
        };
        let status = match record {
            Ok(record) => match self.status_of(&id, Some((location, record))) {
                Ok(status) => Ok(status.expect("an item was found")),
                Err(error) => Err(undecodable(error, row, "an item")?),
            },
            Err(error) => Err(error),
        };
        let item = self.keys.item_ref(id);
        Ok(Some(ListedItem { item, status }))
    }
}

/// Returns that a row does not decode as what it should be, if that is the error.
pub(crate) fn undecodable(
    error: Error,
    row: &KeyValue,
    codec: &'static str,
) -> Result<Undecodable> {
    match error {
        Error::Keyspace(keyspace::Error::Corrupt { key, reason })
        | Error::Part(microqueue::Error::Keyspace(keyspace::Error::Corrupt { key, reason })) => {
            let error = DecodeError { codec, reason };
            Ok(Undecodable::new(key, row.to_value(), error))
        }
        other => Err(other),
    }
}
