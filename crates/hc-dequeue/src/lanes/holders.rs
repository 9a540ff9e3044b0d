//! The items that have the slots of a group: those that its other items wait for.

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Isolation, Transaction};

use crate::items::counters::parse_count;
use crate::items::error::Result;
use crate::items::keys::check_group;
use crate::items::part::Part;
use crate::items::priority::RANK_OF_SLOT;
use crate::items::record::Record;
use crate::queue::handle::Queue;
use crate::queue::list::{ItemPage, ListedItem, ListedRows};

/// The largest number of items that are named.
const MAX_HOLDERS: usize = 100;

/// The items that have the slots of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotHolders<T> {
    /// Those that were found, up to 100. The [place](crate::Place) of each says what ends its slot: the session that
    /// holds it, the time until which a snooze or a backoff delays it, the turn for which it waits in the queue, or
    /// that it is a dead letter, to be redriven or purged. [`Status`](crate::Status) also has the time of its grant,
    /// and its last failure.
    pub items: Vec<ListedItem<T>>,
    /// Whether no other item has a slot of the group.
    pub is_complete: bool,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Returns the items that have the slots of a group, for which its other items wait if it is at its
    /// [limit](crate::GroupState::AtLimit). Looks for them in up to a thousand rows of each place, until it has found
    /// as many as slots are in use.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{Place, Queue, Result};
    /// /// Says what keeps the items of a tenant waiting.
    /// async fn explain(tr: &impl Transaction, jobs: &Queue<String>, tenant: &str) -> Result<()> {
    ///     for holder in jobs.slot_holders(tr, tenant.as_bytes()).await?.items {
    ///         let Ok(status) = holder.status else { continue };
    ///         match status.place {
    ///             Place::Held { session, .. } => println!("{} runs in {session}", holder.item),
    ///             Place::Delayed { until } => println!("{} is tried again at {until:?}", holder.item),
    ///             Place::Dead => println!("redrive or purge {}", holder.item),
    ///             _ => println!("{} waits for its turn, with its slot", holder.item),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Error::Group`](crate::Error::Group); [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the number of slots
    /// does not decode; [`Error::ReadAfterWrite`](crate::Error::ReadAfterWrite) if it reaches an item that the
    /// transaction has enqueued.
    pub async fn slot_holders(
        &self,
        tr: &impl Transaction,
        group: &[u8],
    ) -> Result<SlotHolders<T>> {
        check_group(group)?;
        let keys = &*self.keys;
        let row = keys.slots(group);
        // Safe as a snapshot read: nothing is written.
        let slots = match tr.get(&row, Isolation::Snapshot).await? {
            Some(value) => usize::try_from(parse_count(&row, &value)?).unwrap_or(0),
            None => 0,
        };
        let places = [
            (keys.part(Part::Grants).0, keys.part(Part::Held).1),
            keys.lane_items(group, RANK_OF_SLOT).subspace().range(),
            keys.part(Part::Dead),
            keys.part(Part::Delayed),
        ];
        let has_slot = |record: &Record| record.has_slot && record.group == group;
        let mut page = ItemPage {
            items: Vec::new(),
            strays: Vec::new(),
            next: None,
        };
        for range in places {
            let limit = slots.min(MAX_HOLDERS) - page.items.len();
            if limit == 0 {
                break;
            }
            let wants = Some(&has_slot as _);
            let rows = ListedRows {
                range,
                wants,
                limit,
            };
            self.add_page(tr, rows, &mut page).await?;
        }
        Ok(SlotHolders {
            is_complete: page.items.len() == slots,
            items: page.items,
        })
    }
}
