//! The fast path: takes, of which each looks what there is while the one before it commits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, try_join};
use microqueue::ItemId;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::env::BoxFuture;
use microqueue::keyspace::{Code, Database, Tx};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Dispatcher;
use super::steps::Tried;
use crate::error::{Error, Result};
use crate::give_back::{Given, Return, give_back};
use crate::policy::Event;
use crate::registry::fulfill::{TakeMode, TakeOutcome, take, view_queue};
use crate::registry::{BYTES_PER_FULFILLMENT, Demand, SessionContext, count_wanted};

/// What a take is for.
#[derive(Debug)]
struct TakeOrder {
    demand: Vec<Demand>,
    returns: Vec<Return>,
    /// What the take before it took, which this one may have seen.
    gone: BTreeSet<ItemId>,
}

/// What a take did, if what it saw was enough to do anything, and which items it gave back.
type TriedTake<T> = Tried<(Option<TakeOutcome<T>>, Vec<Given>)>;

/// A take that has begun: it looks what there is, and waits for its order. Dropped before it has that,
/// it leaves nothing.
pub(super) struct Begun<T> {
    /// Until when it is of use. Later it may have missed what came back meanwhile, and comes first.
    pub(super) until: Duration,
    order: oneshot::Sender<Arc<TakeOrder>>,
    /// The lock is never contended, nor taken: it makes the dispatcher `Sync`.
    outcome: Mutex<BoxFuture<Result<TriedTake<T>>>>,
    gone: BTreeSet<ItemId>,
}

/// The last take that was done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LastTake {
    ended: Duration,
    took: Duration,
    wanted: usize,
    bytes: usize,
}

/// Up to how many bytes of items the next take is begun ahead: it reads them again.
const BYTES_READ_AHEAD: usize = BYTES_PER_FULFILLMENT / 8;

impl<T, D, C> Dispatcher<T, D, C>
where
    T: Send + Sync + 'static,
    D: Database,
    C: Codec<T>,
{
    /// Tries the fast path, with what was seen ahead.
    pub(super) async fn take(&mut self, ahead: Option<Begun<T>>) -> Result<Event<ItemId>> {
        let (now, last) = (self.now(), self.last_take);
        let demand = self.demand();
        let wanted = count_wanted(&demand);
        let begun = ahead.unwrap_or_else(|| self.begin_take(wanted, TakeMode::Now));
        // It cannot give back what was taken while it looked: it does not see that as held.
        let returns = self.next_returns().into_iter();
        let returns = returns.take_while(|item| !begun.gone.contains(&item.id));
        let order = TakeOrder {
            demand,
            returns: returns.collect(),
            gone: begun.gone,
        };
        // The task that receives it is polled next.
        let _ = begun.order.send(Arc::new(order));
        // If takes follow one another: for those who are served now, and for those who were before.
        let follows = now <= last.ended.saturating_add(last.took) && last.bytes <= BYTES_READ_AHEAD;
        let limit = wanted + wanted.max(last.wanted);
        let mut next = follows.then(|| self.begin_take(limit, TakeMode::Ahead));
        let (taken, given) = match finish(begun.outcome, &mut next).await? {
            Tried::Did(both) => both,
            Tried::Contended => {
                self.metrics.conflicts.increment(1);
                tracing::debug!(queue = %self.keys().queue, "a take met a conflict");
                self.pacer.meet_others();
                return Ok(Event::MetOthers);
            }
        };
        self.returned(&given);
        Ok(match taken {
            // What was seen ahead is not enough.
            None => Event::Taken,
            Some(TakeOutcome::Items(items)) if items.is_empty() => {
                self.answer_impatient();
                Event::NoItem
            }
            Some(TakeOutcome::Items(items)) => {
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
                self.hand_out(items);
                Event::Taken
            }
            Some(TakeOutcome::Staged) => {
                self.pacer.meet_others();
                Event::MetOthers
            }
            Some(TakeOutcome::Paused) => {
                self.answer_impatient();
                Event::IsPaused
            }
            Some(TakeOutcome::SessionLost) => Event::SessionLost,
        })
    }

    /// Begins a take of so many items at most.
    fn begin_take(&self, limit: usize, mode: TakeMode) -> Begun<T> {
        let (runner, shared, session) = (self.runner.clone(), self.shared.clone(), self.session());
        let (decode, promotes) = (self.decode.clone(), self.member.trusts_clock());
        let settings = self.settings.clone();
        let (order, ordered) = oneshot::channel::<Arc<TakeOrder>>();
        let ordered = ordered.shared();
        let outcome = async move {
            let take = |tr: Tx<_>| {
                let (shared, decode, ordered) = (&shared, &*decode, ordered.clone());
                let settings = &*settings;
                async move {
                    if tr.attempt().after == Some(Code::NOT_COMMITTED) {
                        return Ok(Tried::Contended);
                    }
                    let context = SessionContext {
                        keys: &shared.keys,
                        settings,
                        session,
                        promotes,
                        demand: &[],
                        decode,
                    };
                    let order = async {
                        // Without an order nobody waits for the outcome.
                        let Ok(order) = ordered.await else {
                            return Ok(None);
                        };
                        let given = give_back(&tr, context, &order.returns).await?;
                        Ok(Some((order, given)))
                    };
                    let view = view_queue(&tr, context, limit, mode);
                    let (view, ordered) = try_join!(view, order)?;
                    let Some((order, given)) = ordered else {
                        return Ok(Tried::Did((None, Vec::new())));
                    };
                    let demand = &order.demand;
                    let taken = take(&tr, SessionContext { demand, ..context }, view, &order.gone)?;
                    Ok::<_, Error>(Tried::Did((taken, given)))
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

/// Waits for what comes of a take that has its order, while the next one looks.
async fn finish<T>(
    outcome: Mutex<BoxFuture<Result<TriedTake<T>>>>,
    next: &mut Option<Begun<T>>,
) -> Result<TriedTake<T>> {
    let mut outcome = outcome.into_inner();
    if let Some(looks) = next {
        let looks = looks.outcome.get_mut();
        tokio::select! {
            biased;
            outcome = &mut outcome => return outcome,
            // It ends without an order only if it fails.
            _ = looks => {}
        }
        *next = None;
    }
    outcome.await
}
