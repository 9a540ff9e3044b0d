//! The fast path: a session takes items for its own demand, without a request.

use futures::{TryFutureExt, try_join};
use microqueue::keyspace::{Isolation, RangeQuery, Transaction};

use super::grantable::Grantable;
use super::ready::{ReadyItems, items_unless_due, ready_items};
use super::{Demand, Granted, Purpose, SessionContext, count_wanted};
use crate::items::MAX_STEP_ITEMS;
use crate::items::changes::Changes;
use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::settings_row::is_paused;
use crate::lanes::Gone;
use crate::lanes::look::Past;
use crate::session::Life;

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

/// When a take reads the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TakeMode<'a> {
    /// When the items are wanted.
    Now,
    /// Before the items are wanted, while another take commits. It may still see what that one has taken.
    Ahead(&'a Gone),
}

/// The state of the queue that a take has read.
pub(crate) struct QueueView {
    life: Option<Life>,
    is_paused: bool,
    has_requests: bool,
    supply: TakeSource,
    /// What the promotion of delayed items has changed.
    promoted: Changes,
}

/// The items that a take has read.
enum TakeSource {
    /// What could be granted. Lanes are read after the returns of the transaction.
    Ready(ReadyItems),
    Ahead(Box<Grantable>),
}

/// Reads the state of the queue for a [`take`], with up to `limit` items.
///
/// # Conflicts
/// Reads the pause, the session's own state, and the registry up to its first request.
pub(crate) async fn view_queue(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    limit: usize,
    mode: TakeMode<'_>,
) -> Result<QueueView> {
    let keys = context.keys;
    let first_request = tr.get_range(&first_request(keys), Isolation::Serializable);
    let supply = async {
        Ok(match mode {
            TakeMode::Now => {
                let (ready, promoted) = ready_items(tr, context, limit).await?;
                (TakeSource::Ready(ready), promoted)
            }
            TakeMode::Ahead(gone) => {
                let mut ready = items_unless_due(tr, context, limit, gone.items.len()).await?;
                ready.items.retain(|item| !gone.items.contains(&item.id));
                let changes = &Changes::default();
                let past = Past { changes, gone };
                let grantable = Grantable::find(tr, context, ready, past, limit).await?;
                (TakeSource::Ahead(Box::new(grantable)), Changes::default())
            }
        })
    };
    let (is_paused, requests, life, (supply, promoted)) = try_join!(
        is_paused(tr, keys, Isolation::Serializable),
        first_request.map_err(Error::from),
        keys.sessions.life(tr, context.session).map_err(Error::from),
        supply
    )?;
    Ok(QueueView {
        life,
        is_paused,
        has_requests: !requests.rows.is_empty(),
        supply,
        promoted,
    })
}

/// Takes items in `view` for the session's own demand, if no request is registered. Stages these changes, which the
/// transaction has made before, and its own.
///
/// Returns `None` if the view is not sufficient: it was read ahead, or shows only a part of what may be there. A view
/// that was read ahead serves only whole demands, since there may be more items than it contains, and none if the
/// transaction has changed lanes.
///
/// # Conflicts
/// Reads the key of each item taken. The transaction therefore fails if, after the view was read, another session
/// took one of these items or registered a request, or if the session was declared dead. For items of lanes, as
/// [`Look::finish`](crate::lanes::look::Look::finish).
pub(crate) async fn take(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    view: QueueView,
    mut changes: Changes,
) -> Result<Option<Taken>> {
    let taken = take_from(tr, context, view, &mut changes).await?;
    changes.stage(tr, context.keys);
    Ok(taken)
}

async fn take_from(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    view: QueueView,
    changes: &mut Changes,
) -> Result<Option<Taken>> {
    let is_alive = view.life == Some(Life::Alive);
    let (ready, has_supply) = match view.supply {
        TakeSource::Ready(ready) => {
            let has_supply = !ready.is_empty() || view.promoted.with_notices().next().is_some();
            changes.merge(view.promoted);
            (ready, has_supply)
        }
        TakeSource::Ahead(grantable) => {
            let is_free = is_alive && !view.is_paused && !view.has_requests;
            let limit = whole_demands(context.demand, grantable.len());
            if !is_free || limit == 0 || changes.with_notices().next().is_some() {
                return Ok(None);
            }
            let taken = grantable.grant_all(tr, context, limit, changes)?;
            return Ok(Some(Taken::Items(taken)));
        }
    };
    if !is_alive {
        return Ok(Some(Taken::SessionLost));
    }
    if view.is_paused {
        return Ok(Some(Taken::Paused));
    }
    if view.has_requests && has_supply {
        return Ok(Some(Taken::HasRequests));
    }
    let past = Past {
        changes,
        gone: &Gone::default(),
    };
    let limit = count_wanted(context.demand).min(MAX_STEP_ITEMS);
    let grantable = Grantable::find(tr, context, ready, past, limit).await?;
    // What was found may be nothing for a reserve.
    let is_sufficient = grantable.is_complete() || grantable.len() > 0;
    let taken = grantable.grant_all(tr, context, limit, changes)?;
    if !is_sufficient {
        return Ok(None);
    }
    Ok(Some(Taken::Items(taken)))
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

fn first_request(keys: &Keys) -> RangeQuery {
    let (begin, end) = keys.requests.subspace().range();
    RangeQuery::keys(begin, end).limit(1)
}
