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
use crate::items::record::Record;
use crate::queue::handle::Queue;
use crate::queue::items_of::ItemsOf;
use crate::queue::status::Status;

/// How many rows a page looks through for some of the items in a place, unless more items are requested.
const MAX_SEARCHED_ROWS: usize = 1_000;

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

/// Which items are listed: all of a place, or some of them. A [`PlaceKind`] alone lists all.
///
/// ```
/// use hc_dequeue::{ItemsOf, Listing, PlaceKind};
///
/// let letters_of_tenant = Listing::new(PlaceKind::Dead).with_items_of(ItemsOf::group("tenant 7"));
/// # drop(letters_of_tenant);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Listing {
    place: PlaceKind,
    items: Option<ItemsOf>,
    last: Option<Cursor>,
}

impl Listing {
    /// Returns the listing of all items in a place.
    #[must_use]
    pub const fn new(place: PlaceKind) -> Self {
        Self {
            place,
            items: None,
            last: None,
        }
    }

    /// Lists only these items. Except for queued items of a group, a page looks for them in up to a thousand rows of
    /// the place, or as many as items are requested. If it finds too few, or none, its cursor says that the place goes
    /// on.
    #[must_use]
    pub fn with_items_of(mut self, items: ItemsOf) -> Self {
        self.items = Some(items);
        self
    }

    /// Ends the listing after the row of a cursor, such as the [end](Queue::end) of the same listing at an earlier
    /// time.
    #[must_use]
    pub fn with_last(mut self, last: Cursor) -> Self {
        self.last = Some(last);
        self
    }

    /// Returns the place.
    #[must_use]
    pub const fn place(&self) -> PlaceKind {
        self.place
    }

    /// Returns which items are listed, if not all.
    #[must_use]
    pub const fn items_of(&self) -> Option<&ItemsOf> {
        self.items.as_ref()
    }

    /// Returns the range of the rows of the listing. If it contains queued items that are in no lane, there are other
    /// rows between these and the lanes.
    fn range(&self, keys: &Keys) -> (Vec<u8>, Vec<u8>) {
        match &self.items {
            Some(ItemsOf::Group(group)) if self.place == PlaceKind::Queued => {
                keys.items_of_lane(group)
            }
            _ => self.place.range(keys),
        }
    }
}

impl From<PlaceKind> for Listing {
    fn from(place: PlaceKind) -> Self {
        Self::new(place)
    }
}

impl From<&Self> for Listing {
    fn from(listing: &Self) -> Self {
        listing.clone()
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

    /// Returns the key at which the next page of a range begins.
    fn begin(&self, keys: &Keys, (begin, end): &(Vec<u8>, Vec<u8>)) -> Result<Vec<u8>> {
        let Some(suffix) = self.0.strip_prefix(&keys.tag) else {
            return Err(Error::MalformedCursor);
        };
        let row = [keys.queue.bytes(), suffix].concat();
        if row < *begin || row >= *end {
            return Err(Error::MalformedCursor);
        }
        Ok(key_after(&row))
    }
}

/// Returns whether a listing wants an item that has this record.
type RecordFilter<'a> = &'a (dyn Fn(&Record) -> bool + Sync);

/// Rows to list.
pub(crate) struct ListedRows<'a> {
    pub(crate) range: (Vec<u8>, Vec<u8>),
    /// `None`: all items are wanted, and rows that do not decode, too.
    pub(crate) wants: Option<RecordFilter<'a>>,
    /// How many items a page has at most.
    pub(crate) limit: usize,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Returns a page of the items in a place, or of [some of them](Listing), from up to `limit` rows: those after a
    /// cursor, or the first ones. An item that does not decode is listed with the reason, if all items are.
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
    /// [`Error::MalformedCursor`] for a cursor of another queue or another listing. [`Error::Group`],
    /// [`Error::ForeignRef`] and [`Error::Kind`] for [`ItemsOf`]. [`Error::ReadAfterWrite`] for [`PlaceKind::Queued`]
    /// after an enqueue in the same transaction, and for [`PlaceKind::Delayed`] if the page reaches a delayed item that
    /// the transaction has enqueued.
    pub async fn list(
        &self,
        tr: &impl Transaction,
        listing: impl Into<Listing>,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<ItemPage<T>> {
        let keys = &*self.keys;
        let listing: Listing = listing.into();
        let items = listing.items.as_ref();
        if let Some(items) = items {
            items.check(keys)?;
        }
        let range = listing.range(keys);
        let (mut begin, mut end) = range.clone();
        if let Some(after) = after {
            begin = after.begin(keys, &range)?;
        }
        if let Some(last) = &listing.last {
            end = last.begin(keys, &range)?.max(begin.clone());
        }
        let mut page = ItemPage {
            items: Vec::new(),
            strays: Vec::new(),
            next: after.cloned(),
        };
        if limit == 0 {
            return Ok(page);
        }
        let have = items.map(|items| |record: &Record| items.have(record));
        let wants = have.as_ref().map(|have| have as RecordFilter<'_>);
        let (_, outside_lanes) = keys.outside_lanes();
        if listing.place == PlaceKind::Queued && begin < outside_lanes {
            keys.refuse_after_enqueue(tr).await?;
            let rows = ListedRows {
                range: (begin, end.clone().min(outside_lanes)),
                wants,
                limit,
            };
            self.add_page(tr, rows, &mut page).await?;
            if page.next.is_some() {
                return Ok(page);
            }
            begin = keys.part(Part::Lanes).0;
        }
        let limit = limit - page.items.len();
        if limit == 0 {
            if begin < end {
                // The next page begins with the lanes.
                page.next = Some(Cursor::after(keys, &begin));
            }
        } else if begin < end {
            let range = (begin, end);
            let rows = ListedRows {
                range,
                wants,
                limit,
            };
            self.add_page(tr, rows, &mut page).await?;
        }
        Ok(page)
    }

    /// Adds the items in some rows to a page: from as many rows as it may have items or, if it wants only some of them,
    /// from a thousand.
    pub(crate) async fn add_page(
        &self,
        tr: &impl Transaction,
        rows: ListedRows<'_>,
        page: &mut ItemPage<T>,
    ) -> Result<()> {
        let keys = &*self.keys;
        let (begin, end) = rows.range;
        let max_items = page.items.len() + rows.limit;
        let max_rows = match rows.wants {
            Some(_) => rows.limit.max(MAX_SEARCHED_ROWS),
            None => rows.limit,
        };
        let query = RangeQuery::keys(begin, end)
            .limit(max_rows)
            .mode(StreamingMode::WantAll);
        // One batch is enough: the next page begins where it ends. Safe as a snapshot read: the page shows the place
        // at the read version, and nothing is written.
        let batch = tr.get_range(&query, Isolation::Snapshot).await?;
        page.next = batch.next_after().map(|last| Cursor::after(keys, last));
        for row in &batch.rows {
            match self.parse_item(row, rows.wants) {
                Ok(item) => page.items.extend(item),
                Err(error) => {
                    let stray = undecodable(error, row, "an item")?;
                    if rows.wants.is_none() {
                        page.strays.push(stray);
                    }
                }
            }
            if rows.wants.is_some() && page.items.len() == max_items {
                page.next = Some(Cursor::after(keys, row.key()));
                break;
            }
        }
        Ok(())
    }

    /// Returns the cursor after the last item of a place, or of the rows in which [some of them](Listing) are. Returns
    /// `None` if there are no rows. A walk over a place that grows can stop there.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Error::Group`], [`Error::ForeignRef`] and [`Error::Kind`] for [`ItemsOf`], and those of the store.
    pub async fn end(
        &self,
        tr: &impl Transaction,
        listing: impl Into<Listing>,
    ) -> Result<Option<Cursor>> {
        let keys = &*self.keys;
        let listing: Listing = listing.into();
        if let Some(items) = &listing.items {
            items.check(keys)?;
        }
        let (begin, end) = listing.range(keys);
        let ranges = if begin == keys.outside_lanes().0 {
            vec![keys.part(Part::Lanes), keys.outside_lanes()]
        } else {
            vec![(begin, end)]
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

    /// Returns the item of a row, if it contains one that is wanted, or [`Corrupt`](keyspace::Error::Corrupt) if the
    /// row does not say which one.
    fn parse_item(
        &self,
        row: &KeyValue,
        wants: Option<RecordFilter<'_>>,
    ) -> Result<Option<ListedItem<T>>> {
        let keys = &*self.keys;
        let Some(part) = Part::of(&keys.queue, row.key()) else {
            let reason = "expected a key of an item";
            return Err(keyspace::Error::corrupt(row.key(), reason).into());
        };
        let Some((location, Listed { id, value: record })) = parse_item(keys, part, row)? else {
            return Ok(None);
        };
        if let Some(wants) = wants
            && !record.as_ref().is_ok_and(wants)
        {
            return Ok(None);
        }
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
