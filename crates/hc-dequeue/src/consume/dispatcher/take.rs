//! The fast path. Each take reads the queue while the previous one commits, unless that commits at once.

use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::try_join;
use microqueue::ItemId;
use microqueue::keyspace::{Code, Tx};
use parking_lot::Mutex;

use super::Dispatcher;
use super::steps::Tried;
use crate::consume::policy::Event;
use crate::items::MAX_STEP_BYTES;
use crate::items::error::{Error, Result};
use crate::lanes::Gone;
use crate::protocol::give_back::{GivenBack, Return, give_back};
use crate::protocol::take::{TakeMode, Taken, take, view_queue};
use crate::protocol::{Demand, Granted, SessionContext, count_wanted};

/// The order for a take.
#[derive(Debug)]
struct TakeOrder {
    demand: Vec<Demand>,
    returns: Vec<Return>,
}

/// What a take has staged to take, as soon as it has. It changes if the transaction is retried.
type Staged = Mutex<Option<Arc<Gone>>>;

/// The items that a take took, if its view was sufficient, and the results of the items that it gave back.
type TriedTake = Tried<(Option<Taken>, Vec<GivenBack>)>;

/// A take that has begun: it reads the queue and waits for its order. Dropping it before that has no effect.
pub(super) struct Begun {
    /// Until when the view may be used. After that, it might miss items that have come back and must be granted
    /// first.
    pub(super) until: Duration,
    order: Arc<OnceLock<TakeOrder>>,
    staged: Arc<Staged>,
    /// The lock is never taken. It makes the dispatcher `Sync`.
    outcome: Mutex<BoxFuture<'static, Result<TriedTake>>>,
    /// What the previous take has staged to take, if this one has begun ahead.
    gone: Option<Arc<Gone>>,
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
const MAX_BYTES_READ_AHEAD: usize = MAX_STEP_BYTES / 8;

impl Dispatcher {
    /// Takes items by the fast path, using the view that was read ahead.
    pub(super) async fn take(&mut self, ahead: Option<Begun>) -> Result<Event<ItemId>> {
        let now = self.now();
        let last = self.last_take;
        let demand = self.demand();
        let wanted = count_wanted(&demand);
        let begun = ahead.unwrap_or_else(|| self.begin_take(wanted, None));
        // A view cannot give back items that were taken while it was read, since it does not contain them as held.
        let returns = self.returns.next().into_iter().take_while(|item| {
            let gone = begun.gone.as_ref();
            !gone.is_some_and(|gone| gone.items.contains(&item.id))
        });
        let order = TakeOrder {
            demand,
            returns: returns.collect(),
        };
        // The take is polled next. It has no order yet, so this succeeds.
        let _ = begun.order.set(order);
        // If takes follow one another, the next one reads for the consumers served now or for those served before.
        let follows = self.callers.len() > 0
            && now <= last.ended.saturating_add(last.took)
            && last.bytes <= MAX_BYTES_READ_AHEAD;
        let limit = wanted.max(last.wanted);
        let begin_next = |gone| follows.then(|| self.begin_take(limit, Some(gone)));
        let staged = &begun.staged;
        let (tried, next) = finish(begun.outcome.into_inner(), staged, begin_next).await;
        let (taken, given) = match tried? {
            Tried::Succeeded(both) => both,
            Tried::Conflicted => {
                self.shared.metrics.conflicts.increment(1);
                tracing::debug!(queue = %self.keys().name, "a take met a conflict");
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
                // Unless the transaction was retried, and has taken other items.
                let staged = staged.lock().take();
                let is_same = |next: &Begun| {
                    let both = next.gone.as_ref().zip(staged.as_ref());
                    both.is_some_and(|(gone, staged)| Arc::ptr_eq(gone, staged))
                };
                self.ahead = next.filter(is_same);
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

    /// Begins a take of at most `limit` items, ahead if another one that has staged to take others commits.
    fn begin_take(&self, limit: usize, gone: Option<Arc<Gone>>) -> Begun {
        let runner = self.runner.clone();
        let shared = self.shared.clone();
        let session = self.session();
        let decode = self.queue.decode.clone();
        let promotes = self.member.trusts_clock();
        let settings = self.settings.clone();
        let fronts = self.fronts.clone();
        let order = Arc::new(OnceLock::<TakeOrder>::new());
        let ordered = order.clone();
        let staged = Arc::new(Staged::default());
        let stages = staged.clone();
        let begins_after = gone.clone();
        let outcome = async move {
            let take = |tr: Tx<_>| {
                let shared = &shared;
                let decode = &*decode;
                let ordered = &*ordered;
                let settings = &*settings;
                let fronts = &*fronts;
                let stages = &*stages;
                let mode = begins_after
                    .as_deref()
                    .map_or(TakeMode::Now, TakeMode::Ahead);
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
                    let taken = take(&tr, context, view, changes).await?;
                    if let Some(Taken::Items(items)) = &taken {
                        *stages.lock() = Some(Arc::new(Granted::gone(items)));
                    }
                    Ok::<_, Error>(Tried::Succeeded((taken, given)))
                }
            };
            runner.run(take).await
        };
        Begun {
            until: self.now().saturating_add(2 * self.last_take.took),
            order,
            staged,
            outcome: Mutex::new(Box::pin(outcome)),
            gone,
        }
    }
}

/// Waits for the result of a take that has its order. While it commits, the next take reads, unless there is none to
/// begin. Returns the next take, too, if it has begun and has not failed.
async fn finish(
    mut outcome: BoxFuture<'static, Result<TriedTake>>,
    staged: &Staged,
    begin_next: impl FnOnce(Arc<Gone>) -> Option<Begun>,
) -> (Result<TriedTake>, Option<Begun>) {
    // The embedded store commits a lone transaction before the first poll returns.
    let stages = poll_fn(|context| match outcome.as_mut().poll(context) {
        Poll::Ready(tried) => Poll::Ready(Err(tried)),
        Poll::Pending => match &*staged.lock() {
            Some(gone) => Poll::Ready(Ok(gone.clone())),
            None => Poll::Pending,
        },
    });
    let gone = match stages.await {
        Ok(gone) => gone,
        Err(tried) => return (tried, None),
    };
    let Some(mut next) = begin_next(gone) else {
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
