//! Pairs items with requests and with a session's own demand.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::vec::IntoIter;

use futures::{TryFutureExt, try_join};
use microqueue::keyspace::{Isolation, KeyValue, RangeQuery, Transaction};
use microqueue::{Item, ItemId};

use super::front::{Head, ReadLimit, first_items};
use super::grant::{answer, notify_first};
use super::{
    Demand, Granted, MAX_FULFILLMENT_BYTES, MAX_FULFILLMENT_ITEMS, MAX_FULFILLMENT_PROMOTIONS,
    MAX_FULFILLMENT_REQUESTS, Purpose, SessionContext, count_wanted, purposes,
};
use crate::items::counters::Counts;
use crate::items::error::{Error, Result};
use crate::items::find::Location;
use crate::items::keys::{Counter, Keys};
use crate::items::places::{put_queued, take_out, take_queued};
use crate::items::record::{Record, Request, Reserve};
use crate::items::settings::is_paused;
use crate::session::wall::wall_millis;
use crate::session::{Life, Lives};

/// The result of a take.
#[derive(Debug)]
pub(crate) enum Taken {
    /// The items taken, in the order of the demand; empty if the queue is empty.
    Items(Vec<Granted>),
    /// Other sessions have registered requests, and there are items.
    HasRequests,
    /// The queue is paused.
    Paused,
    /// The session is dead.
    SessionLost,
}

/// The result of a fulfillment.
#[derive(Debug)]
pub(crate) struct Fulfilled {
    /// The items granted to the session's own request, or `None` if it was not answered.
    pub(crate) own: Option<Vec<Granted>>,
    /// How many requests were answered, including the session's own.
    pub(crate) answered: usize,
    /// How many requests of dead sessions were removed.
    pub(crate) removed: usize,
    /// How many items were granted.
    pub(crate) granted: usize,
    /// Whether the request that is the first after this fulfillment was notified.
    pub(crate) has_notified: bool,
    /// Whether there may be items after the rows that were read, none of which decodes.
    pub(crate) has_more_to_read: bool,
}

impl Fulfilled {
    fn nothing() -> Self {
        Self {
            own: None,
            answered: 0,
            removed: 0,
            granted: 0,
            has_notified: false,
            has_more_to_read: false,
        }
    }

    /// Returns whether there may be more to do: only a fulfillment that changed nothing, and that has read to the first
    /// item, shows that there is not.
    pub(crate) fn has_changed(&self) -> bool {
        self.answered + self.granted + self.removed > 0
            || self.has_notified
            || self.has_more_to_read
    }
}

/// When a take reads the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TakeMode {
    /// When the items are wanted.
    Now,
    /// Before the items are wanted, while another take may take the items that this one reads.
    Ahead,
}

/// The state of the queue that a take has read.
#[derive(Debug)]
pub(crate) struct QueueView {
    mode: TakeMode,
    life: Option<Life>,
    is_paused: bool,
    has_requests: bool,
    head: Head<Item<Record>>,
}

/// Reads the state of the queue for a [`take`], with up to `limit` items.
///
/// # Conflicts
/// Reads the pause, the session's own state, and the registry up to its first request.
pub(crate) async fn view_queue(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    limit: usize,
    mode: TakeMode,
) -> Result<QueueView> {
    let keys = context.keys;
    let first_request = tr.get_range(&first_request(keys), Isolation::Serializable);
    let head = async {
        match mode {
            TakeMode::Now => ready_items(tr, context, limit).await,
            TakeMode::Ahead => items_unless_due(tr, context, limit).await,
        }
    };
    let (is_paused, requests, life, head) = try_join!(
        is_paused(tr, keys, Isolation::Serializable),
        first_request.map_err(Error::from),
        keys.sessions.life(tr, context.session).map_err(Error::from),
        head
    )?;
    Ok(QueueView {
        mode,
        life,
        is_paused,
        has_requests: !requests.rows.is_empty(),
        head,
    })
}

/// Takes items for the session's own demand, if no request is registered. It takes items in `view` that are not in
/// `gone`.
///
/// Returns `None` if the view is not sufficient: it was read ahead, or has only met rows that do not decode. A view
/// that was read ahead serves only whole demands, since there may be more items than it contains.
///
/// # Conflicts
/// Reads the key of each item taken. The transaction therefore fails if, after the view was read, another session
/// took one of these items or registered a request, or if the session was declared dead.
pub(crate) fn take(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    view: QueueView,
    gone: &BTreeSet<ItemId>,
) -> Result<Option<Taken>> {
    let Head {
        mut items,
        is_complete,
    } = view.head;
    items.retain(|item| !gone.contains(&item.id));
    let mut limit = count_wanted(context.demand).min(MAX_FULFILLMENT_ITEMS);
    if view.mode == TakeMode::Ahead {
        let is_free = view.life == Some(Life::Alive) && !view.is_paused && !view.has_requests;
        limit = whole_demands(context.demand, items.len());
        if !is_free || limit == 0 {
            return Ok(None);
        }
    }
    Ok(Some(if view.life != Some(Life::Alive) {
        Taken::SessionLost
    } else if view.is_paused {
        Taken::Paused
    } else if items.is_empty() && !is_complete {
        return Ok(None);
    } else if items.is_empty() {
        Taken::Items(Vec::new())
    } else if view.has_requests {
        Taken::HasRequests
    } else {
        let items = &mut items.into_iter().peekable();
        Taken::Items(grant_own(tr, context, items, limit)?)
    }))
}

/// Returns how many items the first demands want together, counting as many demands as `items` items can serve
/// completely. A reserve is served by any number.
fn whole_demands(demand: &[Demand], items: usize) -> usize {
    let mut served = 0;
    for one in demand {
        let left = items - served;
        served += match one.purpose {
            Purpose::Reserve => one.wanted.min(left),
            _ if one.wanted <= left => one.wanted,
            _ => break,
        };
    }
    served
}

/// Answers the first requests with the first items.
///
/// If the session's own request is among them, its items are taken over at once. Without a request, the session's own
/// demand comes after all requests. If another session's request is the first of the remaining ones, it is notified.
/// Grants at most `max_items` items, which may be zero.
///
/// # Conflicts
/// Reads the pause, the states of the sessions whose requests it reads, the key of each request that it answers or
/// notifies, and the key of each item that it grants.
pub(crate) async fn fulfill(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    own_request: Option<ItemId>,
    max_items: usize,
) -> Result<Fulfilled> {
    let keys = context.keys;
    let requests = first_requests(tr, keys, MAX_FULFILLMENT_REQUESTS);
    let paused = is_paused(tr, keys, Isolation::Serializable);
    let (paused, requests) = try_join!(paused, requests)?;
    let of_requests: usize = requests.iter().map(|item| item.value.wanted as usize).sum();
    let of_own = match own_request {
        None => count_wanted(context.demand),
        Some(_) => 0,
    };
    let asked = (of_requests + of_own).min(MAX_FULFILLMENT_ITEMS);
    if asked == 0 {
        return Ok(Fulfilled::nothing());
    }
    let head = async {
        match asked.min(max_items) {
            0 => Ok(Head::none()),
            // The first request is notified even during a pause: its session watches for the end of the pause.
            _ if paused => Ok(Head::none()),
            asked => ready_items(tr, context, asked).await,
        }
    };
    let sessions = requests
        .iter()
        .map(|request| request.value.session)
        .chain([context.session])
        .collect();
    let lives = keys.sessions.lives(tr, sessions).map_err(Error::from);
    let (lives, head) = try_join!(lives, head)?;
    // Without a request, the session's own demand is one more to answer, if the session is alive.
    let takes_last = of_own > 0 && lives.is_alive(&context.session);
    let mut pairing = Pairing {
        context,
        own_request,
        lives,
        fulfilled: Fulfilled {
            has_more_to_read: head.items.is_empty() && !head.is_complete,
            ..Fulfilled::nothing()
        },
        items: head.items.into_iter().peekable(),
    };
    pairing
        .answer(tr, requests, usize::from(takes_last))
        .await?;
    if takes_last && pairing.items.len() > 0 {
        pairing.take_over(tr, of_own)?;
    }
    Ok(pairing.fulfilled)
}

/// Items to grant, in their order.
type Items = Peekable<IntoIter<Item<Record>>>;

/// The state of one fulfillment.
struct Pairing<'a> {
    context: SessionContext<'a>,
    own_request: Option<ItemId>,
    /// The sessions of the requests.
    lives: Lives,
    items: Items,
    fulfilled: Fulfilled,
}

impl Pairing<'_> {
    /// Answers the first requests with the first items, and removes requests of dead sessions. If the items run out,
    /// notifies the next request that it is the first. `others` is the number of demands that come after the
    /// requests.
    async fn answer(
        &mut self,
        tr: &impl Transaction,
        requests: Vec<Item<Request>>,
        others: usize,
    ) -> Result<()> {
        let keys = self.context.keys;
        let mut unanswered = requests.len() + others;
        for Item { id, value: request } in requests {
            unanswered -= 1;
            if self.lives.is_unreadable(&request.session) {
                continue;
            }
            if !self.lives.is_alive(&request.session) {
                keys.requests.remove(tr, &id)?;
                self.fulfilled.removed += 1;
                continue;
            }
            if self.items.len() == 0 {
                if Some(id) != self.own_request {
                    self.fulfilled.has_notified =
                        notify_first(tr, keys, request.session, &id).await?;
                }
                break;
            }
            // Every request gets some items before any request gets all that it wants.
            let share = (self.items.len() - 1) / (unanswered + 1) + 1;
            let limit = share.min(request.wanted as usize);
            keys.requests.remove(tr, &id)?;
            self.fulfilled.answered += 1;
            if Some(id) == self.own_request {
                // The grant may contain the notice that the request is the first.
                tr.clear(&keys.grant(self.context.session, &id));
                self.take_over(tr, limit)?;
            } else {
                let items = self.items.by_ref().take(limit);
                self.fulfilled.granted += grant(tr, keys, &request, &id, items)?;
            }
        }
        Ok(())
    }

    /// Takes the next items for the session's own demand.
    fn take_over(&mut self, tr: &impl Transaction, limit: usize) -> Result<()> {
        let taken = grant_own(tr, self.context, &mut self.items, limit)?;
        self.fulfilled.granted += taken.len();
        self.fulfilled.own = Some(taken);
        Ok(())
    }
}

fn first_request(keys: &Keys) -> RangeQuery {
    let (begin, end) = keys.requests.subspace().range();
    RangeQuery::keys(begin, end).limit(1)
}

/// Reads the first requests by snapshot, and skips those that do not decode: a newer version may answer them.
pub(super) async fn first_requests(
    tr: &impl Transaction,
    keys: &Keys,
    limit: usize,
) -> Result<Vec<Item<Request>>> {
    let max = ReadLimit {
        items: limit,
        row_bytes: MAX_FULFILLMENT_BYTES,
    };
    let decode = |row: &KeyValue| keys.requests.decode(row).ok();
    first_items(tr, keys.part("r"), max, decode).await
}

/// Promotes delayed items that are due, and returns the first items.
async fn ready_items(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    limit: usize,
) -> Result<Head<Item<Record>>> {
    let (promoted, head) = try_join!(promote(tr, context), queued(tr, context, limit))?;
    let mut head = match promoted.count {
        0 => head,
        _ => queued(tr, context, limit).await?,
    };
    head.is_complete &= promoted.is_complete;
    Ok(head)
}

/// Returns the first items, or none if a delayed item would have to be promoted first.
async fn items_unless_due(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    limit: usize,
) -> Result<Head<Item<Record>>> {
    let max = ReadLimit {
        items: 1,
        row_bytes: MAX_FULFILLMENT_BYTES,
    };
    let due = delayed(tr, context, context.keys.due(context.due_until()), max);
    let (due, items) = try_join!(due, queued(tr, context, limit))?;
    Ok(if due.items.is_empty() && due.is_complete {
        items
    } else {
        Head::none()
    })
}

/// Reads the first queued items.
pub(crate) async fn queued(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    limit: usize,
) -> Result<Head<Item<Record>>> {
    let keys = context.keys;
    let max = ReadLimit {
        items: limit,
        row_bytes: MAX_FULFILLMENT_BYTES,
    };
    let front = &context.fronts.queued;
    let decode = |row: &KeyValue| keys.decode_queued(row).ok();
    front
        .read(tr, keys.env.now(), keys.all_queued(), max, decode)
        .await
}

/// A delayed item.
pub(crate) struct DelayedItem {
    pub(crate) ready_millis: u64,
    item: Item<Record>,
}

/// Reads the first delayed items between two keys.
pub(crate) async fn delayed(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    range: (Vec<u8>, Vec<u8>),
    max: ReadLimit,
) -> Result<Head<DelayedItem>> {
    let keys = context.keys;
    let decode = |row: &KeyValue| {
        let ready_millis = keys.parse_ready(row).ok()?;
        let item = keys.delayed(ready_millis).decode(row).ok()?;
        Some(DelayedItem { ready_millis, item })
    };
    let front = &context.fronts.delayed;
    front.read(tr, keys.env.now(), range, max, decode).await
}

/// The delayed items that a transaction has promoted.
struct Promoted {
    count: usize,
    is_complete: bool,
}

/// Moves delayed items that are due to their places in the queue.
///
/// # Conflicts
/// Reads the key of each of these items.
async fn promote(tr: &impl Transaction, context: SessionContext<'_>) -> Result<Promoted> {
    let keys = context.keys;
    let max = ReadLimit {
        items: MAX_FULFILLMENT_PROMOTIONS,
        row_bytes: usize::MAX,
    };
    // Safe as a snapshot read: the key of each promoted item is in a conflict range.
    let due = delayed(tr, context, keys.due(context.due_until()), max).await?;
    let count = due.items.len();
    let mut counts = Counts::default();
    for delayed in due.items {
        let DelayedItem {
            ready_millis,
            mut item,
        } = delayed;
        item.value.become_ready(ready_millis);
        let id = &item.id;
        take_out(tr, keys, id, &Location::Delayed(ready_millis), &mut counts)?;
        put_queued(tr, keys, id, &item.value, &mut counts)?;
    }
    counts.stage(tr, keys);
    Ok(Promoted {
        count,
        is_complete: due.is_complete,
    })
}

/// Takes items off the queue for the session's own demand. A reserve ends before an item that is barred from it.
fn grant_own(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    items: &mut Items,
    limit: usize,
) -> Result<Vec<Granted>> {
    let held = context.keys.held(context.session);
    let granted_millis = wall_millis(&context.keys.env);
    let mut granted = Vec::new();
    let mut counts = Counts::default();
    for purpose in purposes(context.demand).take(limit) {
        let may_take = |item: &Item<Record>| {
            purpose != Purpose::Reserve || item.value.reserve != Reserve::Barred
        };
        let Some(mut item) = items.next_if(may_take) else {
            break;
        };
        let priority = item.value.priority;
        take_queued(tr, context.keys, &item.id, priority, &mut counts)?;
        item.value.deliveries += 1;
        item.value.granted_millis = granted_millis;
        let item = Granted::new(context, item.id, item.value, purpose);
        if item.is_popped {
            context.end_popped(tr, &item)?;
        } else {
            held.insert(tr, &item.id, &item.record)?;
            counts.add(Counter::Held, 1);
        }
        granted.push(item);
    }
    counts.stage(tr, context.keys);
    Ok(granted)
}

/// Grants items to the session of a request. Returns how many.
fn grant(
    tr: &impl Transaction,
    keys: &Keys,
    request: &Request,
    id: &ItemId,
    items: impl Iterator<Item = Item<Record>>,
) -> Result<usize> {
    let granted_millis = wall_millis(&keys.env);
    let mut granted: Vec<_> = items.collect();
    let mut counts = Counts::default();
    for item in &mut granted {
        take_queued(tr, keys, &item.id, item.value.priority, &mut counts)?;
        item.value.deliveries += 1;
        item.value.granted_millis = granted_millis;
    }
    let count = granted.len();
    answer(tr, keys, request.session, id, granted)?;
    counts.add(Counter::Held, count as i64);
    counts.stage(tr, keys);
    Ok(count)
}
