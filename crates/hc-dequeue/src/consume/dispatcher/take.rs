//! The fast path. Each take reads the queue while the previous one commits, unless that commits at once.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{poll, try_join};
use microqueue::ItemId;
use microqueue::keyspace::{Code, Tx};
use parking_lot::Mutex;

use super::Dispatcher;
use super::steps::Tried;
use crate::consume::policy::Event;
use crate::items::error::{Error, Result};
use crate::protocol::give_back::{GivenBack, Return, give_back};
use crate::protocol::take::{TakeMode, Taken, take, view_queue};
use crate::protocol::{Demand, MAX_FULFILLMENT_BYTES, SessionContext, count_wanted};

/// The order for a take.
#[derive(Debug)]
struct TakeOrder {
    demand: Vec<Demand>,
    returns: Vec<Return>,
    /// Items that the previous take took, which this one may have read.
    gone: BTreeSet<ItemId>,
}

/// The items that a take took, if its view was sufficient, and the results of the items that it gave back.
type TriedTake = Tried<(Option<Taken>, Vec<GivenBack>)>;

/// A take that has begun: it reads the queue and waits for its order. Dropping it before that has no effect.
pub(super) struct Begun {
    /// Until when the view may be used. After that, it might miss items that have come back and must be granted
    /// first.
    pub(super) until: Duration,
    order: Arc<OnceLock<TakeOrder>>,
    /// The lock is never taken. It makes the dispatcher `Sync`.
    outcome: Mutex<BoxFuture<'static, Result<TriedTake>>>,
    gone: BTreeSet<ItemId>,
}

/// The last completed take.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LastTake {
    ended: Duration,
    took: Duration,
    wanted: usize,
    bytes: usize,
}

/// The next take begins ahead only if the last one took no more bytes of items than this, because it reads these
/// items again.
const MAX_BYTES_READ_AHEAD: usize = MAX_FULFILLMENT_BYTES / 8;

impl Dispatcher {
    /// Takes items by the fast path, using the view that was read ahead.
    pub(super) async fn take(&mut self, ahead: Option<Begun>) -> Result<Event<ItemId>> {
        let now = self.now();
        let last = self.last_take;
        let demand = self.demand();
        let wanted = count_wanted(&demand);
        let begun = ahead.unwrap_or_else(|| self.begin_take(wanted, TakeMode::Now));
        // A view cannot give back items that were taken while it was read, since it does not contain them as held.
        let returns = self
            .returns
            .next()
            .into_iter()
            .take_while(|item| !begun.gone.contains(&item.id));
        let order = TakeOrder {
            demand,
            returns: returns.collect(),
            gone: begun.gone,
        };
        // The take is polled next. It has no order yet, so this succeeds.
        let _ = begun.order.set(order);
        // If takes follow one another, the next one reads for the consumers served now and for those served before.
        let follows = self.callers.len() > 0
            && now <= last.ended.saturating_add(last.took)
            && last.bytes <= MAX_BYTES_READ_AHEAD
            && !self.fronts.lanes.saw_stamps();
        let limit = wanted + wanted.max(last.wanted);
        let begin_next = || follows.then(|| self.begin_take(limit, TakeMode::Ahead));
        let (tried, mut next) = finish(begun.outcome.into_inner(), begin_next).await;
        let (taken, given) = match tried? {
            Tried::Succeeded(both) => both,
            Tried::Conflicted => {
                self.shared.metrics.conflicts.increment(1);
                tracing::debug!(queue = %self.keys().queue, "a take met a conflict");
                self.pacer.note_contention();
                return Ok(Event::Contended);
            }
        };
        self.returned(&given);
        Ok(match taken {
            // The view that was read ahead is not sufficient.
            None => Event::Taken { is_short: false },
            Some(Taken::Items(items)) if items.is_empty() => {
                self.callers.find_none();
                Event::NoItem
            }
            Some(Taken::Items(items)) => {
                let ended = self.now();
                self.last_take = LastTake {
                    ended,
                    took: ended.saturating_sub(now),
                    wanted,
                    bytes: items.iter().map(|item| item.record.payload.len()).sum(),
                };
                if let Some(next) = &mut next {
                    next.gone = items.iter().map(|item| item.id).collect();
                }
                self.ahead = next;
                let is_short = items.len() < wanted;
                self.hand_out(items);
                Event::Taken { is_short }
            }
            Some(Taken::HasRequests) => {
                self.pacer.note_contention();
                Event::Contended
            }
            Some(Taken::Paused) => {
                self.callers.find_none();
                Event::IsPaused
            }
            Some(Taken::SessionLost) => Event::SessionLost,
        })
    }

    /// Begins a take of at most `limit` items.
    fn begin_take(&self, limit: usize, mode: TakeMode) -> Begun {
        let runner = self.runner.clone();
        let shared = self.shared.clone();
        let session = self.session();
        let decode = self.queue.decode.clone();
        let promotes = self.member.trusts_clock();
        let settings = self.settings.clone();
        let fronts = self.fronts.clone();
        let order = Arc::new(OnceLock::<TakeOrder>::new());
        let ordered = order.clone();
        let outcome = async move {
            let take = |tr: Tx<_>| {
                let shared = &shared;
                let decode = &*decode;
                let ordered = &*ordered;
                let settings = &*settings;
                let fronts = &*fronts;
                async move {
                    if tr.attempt().after == Some(Code::NOT_COMMITTED) {
                        return Ok(Tried::Conflicted);
                    }
                    let context = SessionContext {
                        keys: &shared.keys,
                        settings,
                        session,
                        promotes,
                        demand: &[],
                        decode,
                        fronts,
                    };
                    let order = async {
                        // No waker: the dispatcher polls the take as soon as it has set the order.
                        let ordered = poll_fn(|_| ordered.get().map_or(Poll::Pending, Poll::Ready));
                        let order = ordered.await;
                        let given = give_back(&tr, context, &order.returns).await?;
                        Ok((order, given))
                    };
                    let view = view_queue(&tr, context, limit, mode);
                    let (view, (order, (given, changes))) = try_join!(view, order)?;
                    let demand = &order.demand;
                    let context = SessionContext { demand, ..context };
                    let taken = take(&tr, context, view, &order.gone, changes).await?;
                    Ok::<_, Error>(Tried::Succeeded((taken, given)))
                }
            };
            runner.run(take).await
        };
        Begun {
            until: self.now().saturating_add(2 * self.last_take.took),
            order,
            outcome: Mutex::new(Box::pin(outcome)),
            gone: BTreeSet::new(),
        }
    }
}

/// Waits for the result of a take that has its order. While it commits, the next take reads, unless there is none to
/// begin. Returns the next take, too, if it has begun and has not failed.
async fn finish(
    mut outcome: BoxFuture<'static, Result<TriedTake>>,
    begin_next: impl FnOnce() -> Option<Begun>,
) -> (Result<TriedTake>, Option<Begun>) {
    // The embedded store commits a lone transaction before the first poll returns.
    if let Poll::Ready(tried) = poll!(&mut outcome) {
        return (tried, None);
    }
    let Some(mut next) = begin_next() else {
        return (outcome.await, None);
    };
    let tried = tokio::select! {
        biased;
        tried = &mut outcome => Some(tried),
        // Without an order, the next take ends only if it fails.
        _ = next.outcome.get_mut() => None,
    };
    match tried {
        Some(tried) => (tried, Some(next)),
        None => (outcome.await, None),
    }
}
