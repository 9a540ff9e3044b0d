//! From a wish to items.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::try_join;
use microqueue::StagedId;
use microqueue::keyspace::codec::{Codec, DecodeError};
use microqueue::keyspace::env::BoxFuture;
use microqueue::keyspace::{self, Bytes, Code, Commit, Database};
use parking_lot::Mutex;

use super::inquiry::{
    Collected, Inquiry, RequestView, Scope, Waits, collect_and_ask, view_request,
};
use super::{Dispatcher, Lead, Patience, Requested, STAGED_TAKES, Sleep};
use crate::error::{Error, Result};
use crate::give_back::give_back;
use crate::registry::fulfill::fulfill;
use crate::registry::request::{Precedence, Woken, register, watch_pause, withdraw};
use crate::registry::{Demand, ITEMS_PER_FULFILMENT, SessionContext, count_wanted};
use crate::wall::wall_millis;

/// After how many of its own transactions a session that has registered looks for the answer, while
/// others take items, too: more often than not it is there, and nothing had to be watched.
const ANSWER: u32 = 1;

/// For how many of its own transactions a session that has become the first leaves the lead to
/// somebody else, while others take items, too. Who leads needs one of them to answer its request, and
/// the answer needs another to be noticed.
const GRACE: u32 = 2;

/// The same while consumers ask again at once: then who leads goes on as a rule, and each of its
/// fulfilments is for many.
const GRACE_OF_MANY: u32 = 4;

/// Into how many parts the patience of one rank divides the lease.
const PATIENCES_PER_LEASE: u32 = 5;

/// Decodes an item. A codec that panics would do so in every process that meets the item.
pub(super) fn decode<T, C: Codec<T>>(codec: &C, bytes: Bytes) -> Result<T, DecodeError> {
    let decoded = catch_unwind(AssertUnwindSafe(|| codec.decode(bytes)));
    decoded.unwrap_or_else(|_| {
        Err(DecodeError {
            codec: C::NAME,
            reason: "the codec panicked".to_owned(),
        })
    })
}

/// Returns whether what the transaction was to do may have been done, or still be.
fn is_in_doubt(error: &Error) -> bool {
    matches!(
        error,
        Error::Keyspace(keyspace::Error::OutcomeUnknown { .. })
    )
}

/// What became of an attempt to take items at the same time as others.
pub(super) enum Tried<T> {
    Did(T),
    /// It met a conflict.
    Contended,
}

impl<T, D, C> Dispatcher<T, D, C>
where
    T: Send + Sync + 'static,
    D: Database,
    C: Codec<T>,
{
    /// Does one step for those who want items. False: there is nothing to do for now.
    pub(super) async fn serve(&mut self) -> Result<bool> {
        if self.wants.is_empty() {
            return match self.request.take() {
                Some(request) => self.leave(request).await.map(|()| true),
                None => Ok(false),
            };
        }
        // Asleep until something happens, or somebody comes who does not want to wait.
        if self.sleep.is_some() && self.wants.iter().all(|want| want.waits) {
            return Ok(false);
        }
        match self.request {
            Some(request) if request.woken == Some(Woken::Granted) => {
                self.collect(request).await?;
                Ok(true)
            }
            Some(request) if self.now() < request.look_at => Ok(false),
            Some(request) => self.follow(request).await,
            None if self.staged > 0 => {
                self.staged -= 1;
                self.register().await?;
                Ok(true)
            }
            None => self.take().await,
        }
    }

    pub(super) async fn register(&mut self) -> Result<()> {
        let demand = self.demand();
        let wanted = u32::try_from(count_wanted(&demand)).unwrap_or(u32::MAX);
        let (context, returns, began) = (self.context(&[]), &self.next_returns(), self.now());
        let registered = self.runner.run_committed(|tr| async move {
            try_join!(
                register(&tr, context, wanted),
                give_back(&tr, context, returns)
            )
        });
        let registered = registered.await;
        let ((registered, given), commit) = self.unless_in_doubt(registered, true).await?;
        self.returned(&given);
        let Some(staged) = registered else {
            return self.open_session().await;
        };
        self.registered(&staged, &commit, began);
        Ok(())
    }

    /// Begins a new session if it is not known whether a transaction that registers a request has
    /// committed: the request would be answered, and nobody would look for the answer.
    async fn unless_in_doubt<R>(&mut self, outcome: Result<R>, registers: bool) -> Result<R> {
        if registers && outcome.as_ref().is_err_and(is_in_doubt) {
            self.open_session().await?;
        }
        outcome
    }

    /// Notes the request that a transaction has registered which began at a time.
    fn registered(&mut self, staged: &StagedId, commit: &Commit, began: Duration) {
        let stamp = commit.versionstamp;
        let stamp = stamp.expect("a transaction that wrote a request has a versionstamp");
        tracing::debug!(queue = %self.keys().queue, "registered a request");
        self.sleep = None;
        let (look_at, lead_at) = match self.staged {
            0 => (began, began),
            _ => (self.after(began, ANSWER), self.after(began, self.grace())),
        };
        let request = Requested::new(staged.at(stamp), lead_at);
        self.request = Some(Requested { look_at, ..request });
    }

    /// Returns how many items the consumers will want once they have what they want. `None`: that is not
    /// known, or nobody else takes items, so that they may find some without a request.
    fn next(&self, demand: &[Demand]) -> Option<u32> {
        let is_known = self.asks_again && self.staged > 0 && !demand.is_empty();
        is_known.then(|| u32::try_from(count_wanted(demand)).unwrap_or(u32::MAX))
    }

    /// Looks how things stand for the request, and does what they ask for. Before its time to lead it
    /// looks and watches for the answer alone: there is nothing else to do.
    async fn follow(&mut self, request: Requested) -> Result<bool> {
        let demand = self.demand();
        let began = self.now();
        let scope = if began < request.lead_at {
            Scope::Answer
        } else if request.woken.is_none() {
            Scope::Precedence
        } else if self.wants.iter().any(|want| !want.waits) {
            Scope::Supply
        } else {
            Scope::Turn
        };
        let (context, returns) = (self.context(&demand), &self.next_returns());
        let inquiry = Inquiry {
            request: request.id,
            scope,
            returns,
            next: self.next(&demand),
        };
        let view = self
            .runner
            .run_committed(|tr| async move { view_request(&tr, context, inquiry).await });
        let view = Box::pin(view).await;
        let (view, commit) = self.unless_in_doubt(view, inquiry.next.is_some()).await?;
        match view {
            RequestView::Waits(waits) => self.wait_or_lead(request, waits, scope).await,
            RequestView::Granted(collected) => {
                self.collected(request, collected, &commit, began);
                Ok(true)
            }
            RequestView::Gone => {
                self.request = None;
                Ok(true)
            }
        }
    }

    /// Fulfills if it is this session's turn and there are items; else goes to sleep until something
    /// changes.
    async fn wait_or_lead(
        &mut self,
        request: Requested,
        waits: Waits,
        scope: Scope,
    ) -> Result<bool> {
        let is_first = waits.is_first;
        let has_items = waits.supply.map(|supply| supply.has_items);
        if has_items == Some(true) && self.may_lead(is_first, waits.precedence) {
            return self.lead().await.map(|()| true);
        }
        if let Some(request) = &mut self.request
            && (is_first || has_items == Some(false))
        {
            // There is nothing to lead with, or no other session has to.
            request.patience = None;
        }
        if has_items == Some(false) {
            self.answer_impatient();
            if self.wants.is_empty() {
                return Ok(true);
            }
        }
        let is_early = scope == Scope::Answer;
        let until = self.look_again_at(request, &waits, is_early);
        tracing::trace!(queue = %self.keys().queue, is_early, is_first, ?has_items, "waits");
        if is_early && let Some(request) = &mut self.request {
            request.look_at = until;
        }
        self.sleep = Some(Sleep {
            watch: Some(waits.watch),
            until,
            then: is_early.then_some(Woken::Changed),
        });
        Ok(false)
    }

    /// Returns when to look again at a request that waits, although nothing woke the session: when an item
    /// is due, when its turn may have come, and after the poll interval.
    fn look_again_at(&self, request: Requested, waits: &Waits, is_early: bool) -> Duration {
        let now = self.now();
        let due = waits.supply.and_then(|supply| supply.due).map(|due| {
            let delay = due.saturating_sub(wall_millis(&self.keys().env));
            now.saturating_add(Duration::from_millis(delay))
        });
        let has_items = waits.supply.is_some_and(|supply| supply.has_items);
        let turn = match has_items && waits.is_first {
            true => Some(request.lead_at),
            false => self
                .request
                .and_then(|request| request.patience)
                .map(|patience| patience.until),
        };
        let early = is_early.then_some(request.lead_at);
        let poll = now.saturating_add(self.options.poll_interval);
        [due, turn, early]
            .into_iter()
            .flatten()
            .fold(poll, Duration::min)
    }

    /// Returns whether it is this session's turn to fulfill: its request is the first, or the first
    /// one has had its time.
    fn may_lead(&mut self, is_first: bool, precedence: Option<Precedence>) -> bool {
        let now = self.now();
        let step = self.queue.settings.lease / PATIENCES_PER_LEASE;
        let Some(request) = &mut self.request else {
            return false;
        };
        let Some(precedence) = precedence else {
            return is_first && request.lead_at <= now;
        };
        match request.patience {
            Some(patience) if patience.first == precedence.first => {
                let is_over = patience.until <= now;
                if is_over {
                    self.metrics.patience_expiries.increment(1);
                    tracing::warn!(queue = %self.shared.keys.queue, "the first request waits too long");
                    request.patience = None;
                }
                is_over
            }
            _ => {
                request.patience = Some(Patience {
                    first: precedence.first,
                    until: now.saturating_add(step.saturating_mul(precedence.rank)),
                });
                false
            }
        }
    }

    /// Fulfills the first requests, the own one or the own demand among them as a rule.
    pub(super) async fn lead(&mut self) -> Result<()> {
        let demand = self.demand();
        // What it went to sleep for may change.
        self.sleep = None;
        let (most, then) = match self.leads {
            Some(Lead::HandOver) => (0, Lead::HandOver),
            _ => (ITEMS_PER_FULFILMENT, Lead::Everybody),
        };
        // Also if this step ends in doubt.
        self.leads = Some(then);
        let (context, returns) = (self.context(&demand), &self.next_returns());
        let request = self.request.map(|request| request.id);
        let began = self.now();
        let tried = self.runner.run(|tr| async move {
            // Somebody else takes items, too, and has answered the request as a rule.
            if tr.attempt().after == Some(Code::NOT_COMMITTED) {
                return Ok(Tried::Contended);
            }
            let both = try_join!(
                fulfill(&tr, context, request, most),
                give_back(&tr, context, returns)
            );
            both.map(Tried::Did)
        });
        let (fulfilled, given) = match tried.await? {
            Tried::Did(both) => both,
            Tried::Contended => {
                self.metrics.conflicts.increment(1);
                tracing::debug!(queue = %self.keys().queue, "a fulfilment met a conflict");
                // Two that lead would go on to meet. This one owes the others no more than a look.
                self.leads = Some(Lead::HandOver);
                self.staged = STAGED_TAKES;
                let lead_at = self.after(began, self.grace());
                self.request = request.map(|id| Requested::new(id, lead_at));
                return Ok(());
            }
        };
        self.returned(&given);
        self.metrics.fulfilled.record(fulfilled.granted as f64);
        tracing::debug!(
            queue = %self.keys().queue,
            answered = fulfilled.answered,
            granted = fulfilled.granted,
            "fulfilled requests"
        );
        // Who leads leaves only after a look that found no pair.
        self.leads = fulfilled.has_changed().then_some(then);
        if let Some(items) = fulfilled.own {
            self.request = None;
            self.sleep = None;
            self.hand_out(items);
        }
        Ok(())
    }

    async fn collect(&mut self, request: Requested) -> Result<()> {
        let demand = self.demand();
        let (context, returns, began) = (self.context(&demand), &self.next_returns(), self.now());
        let inquiry = Inquiry {
            request: request.id,
            scope: Scope::Answer,
            returns,
            next: self.next(&demand),
        };
        let collected = self
            .runner
            .run_committed(|tr| async move { collect_and_ask(&tr, context, inquiry).await });
        let collected = collected.await;
        let registers = inquiry.next.is_some();
        let (collected, commit) = self.unless_in_doubt(collected, registers).await?;
        self.collected(request, collected, &commit, began);
        Ok(())
    }

    /// Hands out what a request was answered with, if it was.
    fn collected(
        &mut self,
        request: Requested,
        collected: Collected<T>,
        commit: &Commit,
        began: Duration,
    ) {
        self.returned(&collected.given);
        self.sleep = None;
        match collected.items {
            Some(items) => {
                tracing::debug!(queue = %self.keys().queue, items = items.len(), "collected a grant");
                self.request = None;
                if let Some(next) = collected.next {
                    self.staged -= 1;
                    self.registered(&next, commit, began);
                }
                self.hand_out(items);
            }
            // It was told that it is the first, by somebody who may still be leading.
            None => {
                let lead_at = match self.staged {
                    0 => request.lead_at,
                    _ => self.after(began, self.grace()),
                };
                self.request = Some(Requested::new(request.id, lead_at));
            }
        }
    }

    /// Takes a request back that nobody waits for any more.
    pub(super) async fn leave(&mut self, request: Requested) -> Result<()> {
        self.sleep = None;
        // The next one may be asleep behind it. Also if this step ends in doubt.
        self.leads = Some(Lead::Everybody);
        let (keys, session) = (self.keys(), self.session());
        let withdrawn = self
            .runner
            .run(|tr| async move { withdraw(&tr, keys, session, &request.id).await });
        match withdrawn.await {
            Ok(true) => Ok(()),
            Ok(false) => {
                // Until it is collected: what is granted is held.
                self.request = Some(request);
                self.collect(request).await?;
                // Neither answered nor there: somebody has removed it.
                self.request = None;
                Ok(())
            }
            Err(error) => {
                self.request = Some(request);
                Err(error)
            }
        }
    }

    /// Goes to sleep until the pause is over, unless it is already.
    pub(super) async fn sleep_until_resumed(&mut self) -> Result<()> {
        let keys = self.keys();
        let watch = self.runner.run(|tr| async move {
            let watch = watch_pause(&tr, keys).await?;
            Ok::<_, Error>(watch.map(|watch| Mutex::new(Box::pin(watch) as BoxFuture<_>)))
        });
        let until = self.now().saturating_add(self.options.poll_interval);
        self.sleep = Box::pin(watch).await?.map(|watch| Sleep {
            watch: Some(watch),
            until,
            then: None,
        });
        Ok(())
    }

    /// Returns when so many more transactions could have been made one after the other as the one that
    /// began at a time; the poll interval later at most, should that one have waited for the store.
    fn after(&self, began: Duration, transactions: u32) -> Duration {
        let now = self.now();
        let took = now.saturating_sub(began).saturating_mul(transactions);
        now.saturating_add(took.min(self.options.poll_interval))
    }

    fn grace(&self) -> u32 {
        match self.asks_again {
            true => GRACE_OF_MANY,
            false => GRACE,
        }
    }

    /// Tells those who do not wait that there is nothing.
    pub(super) fn answer_impatient(&mut self) {
        for want in std::mem::take(&mut self.wants) {
            if want.waits {
                self.wants.push_back(want);
            } else {
                want.answer_none();
            }
        }
    }

    pub(super) fn context<'a>(&'a self, demand: &'a [Demand]) -> SessionContext<'a, T> {
        SessionContext {
            keys: &self.shared.keys,
            settings: &self.shared.settings,
            session: self.session(),
            demand,
            decode: &*self.decode,
        }
    }
}
