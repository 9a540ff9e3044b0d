//! Pairs items with requests and with a session's own demand.

use futures::{TryFutureExt, try_join};
use microqueue::keyspace::{Isolation, KeyValue, Transaction};
use microqueue::{Item, ItemId};

use super::give_back::{GivenBack, Return, give_back};
use super::grant::notify_first;
use super::grantable::Grantable;
use super::ready::{ReadyItems, ready_items};
use super::{Granted, MAX_FULFILLMENT_REQUESTS, SessionContext, count_wanted};
use crate::items::changes::Changes;
use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::record::Request;
use crate::items::scan::{ReadLimit, first_items};
use crate::items::settings_row::is_paused;
use crate::items::{MAX_STEP_BYTES, MAX_STEP_ITEMS};
use crate::lanes::Gone;
use crate::lanes::look::Past;
use crate::session::Lives;

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
    /// Whether there may be items after the rows that were read, all of which were skipped.
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

/// Gives items back, and answers the first requests with the first items.
///
/// If the session's own request is among them, its items are taken over at once. Without a request, the session's own
/// demand comes after all requests. If another session's request is the first of the remaining ones, it is notified.
/// Grants at most `max_items` items, which may be zero.
///
/// # Conflicts
/// Reads the pause, the states of the sessions whose requests it reads, the key of each request that it answers or
/// notifies, and the key of each item that it grants or gives back. For items of lanes, as
/// [`Look::finish`](crate::lanes::look::Look::finish).
pub(crate) async fn fulfill(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    own_request: Option<ItemId>,
    max_items: usize,
    returns: &[Return],
) -> Result<(Fulfilled, Vec<GivenBack>)> {
    let keys = context.keys;
    let requests = first_requests(tr, keys, MAX_FULFILLMENT_REQUESTS);
    let paused = is_paused(tr, keys, Isolation::Serializable);
    // Lanes are read after the items have gone back to them.
    let (paused, requests, (given, mut changes)) =
        try_join!(paused, requests, give_back(tr, context, returns))?;
    let max_items = if paused { 0 } else { max_items };
    let fulfilled = answer_first(tr, context, own_request, max_items, requests, &mut changes);
    let fulfilled = fulfilled.await?;
    changes.stage(tr, keys);
    Ok((fulfilled, given))
}

async fn answer_first(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    own_request: Option<ItemId>,
    max_items: usize,
    requests: Vec<Item<Request>>,
    changes: &mut Changes,
) -> Result<Fulfilled> {
    let keys = context.keys;
    let of_requests: usize = requests.iter().map(|item| item.value.wanted as usize).sum();
    let of_own = match own_request {
        None => count_wanted(context.demand),
        Some(_) => 0,
    };
    let asked = (of_requests + of_own).min(MAX_STEP_ITEMS);
    if asked == 0 {
        return Ok(Fulfilled::nothing());
    }
    let ready = async {
        match asked.min(max_items) {
            // The first request is notified even during a pause: its session watches for the end of the pause.
            0 => Ok((ReadyItems::nothing(), Changes::default())),
            asked => ready_items(tr, context, asked).await,
        }
    };
    let sessions = requests
        .iter()
        .map(|request| request.value.session)
        .chain([context.session])
        .collect();
    let lives = keys.sessions.lives(tr, sessions).map_err(Error::from);
    let (lives, (ready, promoted)) = try_join!(lives, ready)?;
    changes.merge(promoted);
    let items = match asked.min(max_items) {
        0 => Grantable::outside_lanes(ready),
        asked => {
            let past = Past {
                changes,
                gone: &Gone::default(),
            };
            Grantable::find(tr, context, ready, past, asked).await?
        }
    };
    // Without a request, the session's own demand is one more to answer, if the session is alive.
    let takes_last = of_own > 0 && lives.is_alive(&context.session);
    let mut pairing = Pairing {
        context,
        own_request,
        lives,
        fulfilled: Fulfilled {
            has_more_to_read: items.len() == 0 && !items.is_complete(),
            ..Fulfilled::nothing()
        },
        items,
        changes,
    };
    pairing
        .answer(tr, requests, usize::from(takes_last))
        .await?;
    if takes_last && pairing.items.len() > 0 {
        pairing.take_over(tr, of_own)?;
    }
    pairing.items.finish(tr, context, pairing.changes)?;
    Ok(pairing.fulfilled)
}

/// The state of one fulfillment.
struct Pairing<'a> {
    context: SessionContext<'a>,
    own_request: Option<ItemId>,
    /// The sessions of the requests.
    lives: Lives,
    items: Grantable,
    changes: &'a mut Changes,
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
                // The grant may contain the signal that the request is the first.
                tr.clear(&keys.grant(self.context.session, &id));
                self.take_over(tr, limit)?;
            } else {
                let items = &mut self.items;
                let granted = items.grant(tr, self.context, &request, &id, limit, self.changes)?;
                self.fulfilled.granted += granted;
            }
        }
        Ok(())
    }

    /// Takes the next items for the session's own demand.
    fn take_over(&mut self, tr: &impl Transaction, limit: usize) -> Result<()> {
        let items = &mut self.items;
        let taken = items.grant_own(tr, self.context, limit, self.changes)?;
        self.fulfilled.granted += taken.len();
        self.fulfilled.own = Some(taken);
        Ok(())
    }
}

/// Reads the first requests by snapshot, and skips those that do not decode: a newer version may answer them.
pub(super) async fn first_requests(
    tr: &impl Transaction,
    keys: &Keys,
    limit: usize,
) -> Result<Vec<Item<Request>>> {
    let max = ReadLimit {
        items: limit,
        row_bytes: MAX_STEP_BYTES,
    };
    let decode = |row: &KeyValue| keys.requests.decode(row).ok();
    first_items(tr, keys.requests.subspace().range(), max, decode).await
}
