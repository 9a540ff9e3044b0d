//! The steps of the policy, one transaction each.

use std::time::Duration;

use futures::try_join;
use microqueue::keyspace::{self, Code, Commit, Transaction, Tx};
use microqueue::{ItemId, StagedId};

use super::Dispatcher;
use super::check::{Check, Checked, Collected, WaitingRequest, check, collect_and_register};
use crate::consume::policy::{Delay, Event, GRACE, Lead, Scope, Step};
use crate::items::MAX_STEP_ITEMS;
use crate::items::error::{Error, Result};
use crate::protocol::fulfill::fulfill;
use crate::protocol::give_back::give_back;
use crate::protocol::request::{Wanted, register, watch_pause, withdraw};
use crate::protocol::{Demand, SessionContext};
use crate::session::Life;
use crate::session::wall::wall_millis;

/// How many times the patience of one rank fits into the lease.
const PATIENCES_PER_LEASE: u32 = 5;

/// Returns whether the transaction may have committed or may still commit.
fn is_in_doubt(error: &Error) -> bool {
    matches!(
        error,
        Error::Keyspace(keyspace::Error::OutcomeUnknown { .. })
    )
}

/// The result of a transaction that may conflict with other sessions.
pub(super) enum Tried<T> {
    Succeeded(T),
    /// It failed with a conflict.
    Conflicted,
}

impl Dispatcher {
    /// Performs a step, and reports its result to the policy.
    ///
    /// # Errors
    /// Those of the step, which were also reported.
    pub(super) async fn perform(&mut self, step: Step<ItemId>) -> Result<()> {
        let began = self.now();
        let ahead = self.ahead.take();
        let registers = self.next_request().is_some();
        let performed = match step {
            Step::Rest => Ok(None),
            Step::OpenSession => self.open_session().await.map(Some),
            Step::GiveBack => self.give_back().await.map(|()| None),
            Step::Reclaim => Ok(Some(self.reclaim().await)),
            Step::Take => self.take(ahead).await.map(Some),
            Step::Register => self.register().await.map(Some),
            Step::WatchPause => self.watch_pause().await.map(Some),
            Step::Check { request, scope } => self.check(request, scope).await.map(Some),
            Step::Collect(request) => self.collect(request).await.map(Some),
            Step::Fulfill { lead, request } => {
                self.upkeep.fulfills_first = false;
                self.fulfill(lead, request).await.map(Some)
            }
            Step::Withdraw(request) => self.withdraw(request).await.map(Some),
        };
        self.pacer.note_step(self.now().saturating_sub(began));
        match performed {
            Ok(event) => event.into_iter().for_each(|event| self.report(event)),
            Err(error) => {
                let registers = match step {
                    Step::Register => true,
                    Step::Check { .. } | Step::Collect(_) => registers,
                    _ => false,
                };
                self.report(if registers && is_in_doubt(&error) {
                    Event::SessionLost
                } else {
                    Event::Failed(step)
                });
                return Err(error);
            }
        }
        Ok(())
    }

    /// Opens a new session. Deliveries of the previous one are lost.
    pub(super) async fn open_session(&mut self) -> Result<Event<ItemId>> {
        self.shared.holdings.lose_all();
        self.member.open().await?;
        self.store_kinds().await?;
        // If this fails, heartbeats find cancelled items.
        let watched = self.find_cancelled().await;
        self.note(watched);
        Ok(Event::SessionOpened)
    }

    /// Stores the kinds that the session takes, by which others find its requests after its death.
    async fn store_kinds(&self) -> Result<()> {
        let Some(kinds) = &self.kinds else {
            return Ok(());
        };
        let keys = self.keys();
        let session = self.session();
        let store = |tr: Tx<_>| async move {
            if keys.sessions.life(&tr, session).await? == Some(Life::Alive) {
                tr.set(&keys.session_kinds(session), kinds);
            }
            Ok::<_, Error>(())
        };
        self.runner.run(store).await
    }

    /// Gives items back in a transaction of their own.
    pub(super) async fn give_back(&mut self) -> Result<()> {
        let context = self.context(&[]);
        let returns = &self.returns.next();
        let given = self
            .runner
            .run(|tr| async move {
                let (given, changes) = give_back(&tr, context, returns).await?;
                changes.stage(&tr, context.keys);
                Ok::<_, Error>(given)
            })
            .await?;
        self.returned(&given);
        Ok(())
    }

    async fn register(&mut self) -> Result<Event<ItemId>> {
        let wanted = Wanted::of(&self.demand());
        let context = self.context(&[]);
        let returns = &self.returns.next();
        let registered = self.runner.run_committed(|tr| async move {
            let (registered, (given, changes)) = try_join!(
                register(&tr, context, wanted),
                give_back(&tr, context, returns)
            )?;
            changes.stage(&tr, context.keys);
            Ok::<_, Error>((registered, given))
        });
        let ((registered, given), commit) = registered.await?;
        self.returned(&given);
        Ok(match registered {
            Some(staged) => Event::Registered(self.registered(&staged, &commit)),
            None => Event::SessionLost,
        })
    }

    /// Returns the id of a request that a transaction has registered.
    fn registered(&mut self, staged: &StagedId, commit: &Commit) -> ItemId {
        let stamp = commit
            .versionstamp
            .expect("a transaction that wrote a request has a versionstamp");
        tracing::debug!(queue = %self.keys().name, "registered a request");
        self.pacer.register();
        staged.at(stamp)
    }

    /// Returns how many items the consumers will want after their present demand. Returns `None` if that is unknown,
    /// or if no other session takes items, so that they may not need a request.
    fn next_request(&self) -> Option<Wanted> {
        let pace = self.pacer.pace();
        let wanted = Wanted::of(&self.demand());
        let is_known = pace.asks_again && pace.is_contended && self.callers.len() > 0;
        if !is_known {
            return None;
        }
        Some(wanted)
    }

    /// Checks the request.
    async fn check(&mut self, request: ItemId, scope: Scope) -> Result<Event<ItemId>> {
        let demand = self.callers.demand();
        let context = self.context(&demand);
        let returns = &self.returns.next();
        let details = Check {
            request,
            scope,
            returns,
            next: self.next_request(),
        };
        let check = |tr| async move { check(&tr, context, details).await };
        let (checked, commit) = self.runner.run_committed(check).await?;
        Ok(match checked {
            Checked::Waits(waiting) => self.waits(waiting),
            Checked::Answered(collected) => self.collected(collected, &commit),
            Checked::Gone => Event::Gone,
        })
    }

    fn waits(&mut self, waiting: WaitingRequest) -> Event<ItemId> {
        let WaitingRequest {
            is_first,
            supply,
            precedence,
            watch,
        } = waiting;
        self.alarms.watch(watch);
        if is_first {
            self.check_schedules_soon();
        }
        self.pacer.due = supply.and_then(|supply| supply.due);
        if supply.is_some_and(|supply| supply.has_batches) {
            self.batch_timer.look_at_once();
        }
        let has_items = supply.map(|supply| supply.has_items);
        tracing::trace!(queue = %self.keys().name, is_first, ?has_items, "waits");
        if has_items == Some(false) {
            self.callers.find_none();
        }
        Event::Waits {
            is_first,
            has_items,
            precedence,
        }
    }

    /// Fulfills the first requests. These usually include the session's own request or demand.
    async fn fulfill(&mut self, lead: Lead, request: Option<ItemId>) -> Result<Event<ItemId>> {
        let demand = self.demand();
        let max_items = match lead {
            Lead::Everybody => MAX_STEP_ITEMS,
            Lead::HandOver => 0,
        };
        let context = self.context(&demand);
        let returns = &self.returns.next();
        let tried = self.runner.run(|tr| async move {
            // Another session takes items, too, and has usually answered the request.
            if tr.attempt().after == Some(Code::NOT_COMMITTED) {
                return Ok(Tried::Conflicted);
            }
            let both = fulfill(&tr, context, request, max_items, returns);
            both.await.map(Tried::Succeeded)
        });
        let (fulfilled, given) = match tried.await? {
            Tried::Succeeded(both) => both,
            Tried::Conflicted => {
                self.shared.metrics.conflicts.increment(1);
                tracing::debug!(queue = %self.keys().name, "a fulfillment met a conflict");
                self.pacer.note_contention();
                return Ok(Event::FulfillConflicted);
            }
        };
        self.returned(&given);
        self.shared
            .metrics
            .fulfilled
            .record(fulfilled.granted as f64);
        tracing::debug!(
            queue = %self.keys().name,
            answered = fulfilled.answered,
            granted = fulfilled.granted,
            "fulfilled requests"
        );
        let has_changed = fulfilled.has_changed();
        let own = fulfilled.own.is_some();
        self.hand_out(fulfilled.own.unwrap_or_default());
        Ok(Event::Fulfilled { has_changed, own })
    }

    async fn collect(&mut self, request: ItemId) -> Result<Event<ItemId>> {
        let demand = self.demand();
        let context = self.context(&demand);
        let returns = &self.returns.next();
        let details = Check {
            request,
            scope: Scope::Answer,
            returns,
            next: self.next_request(),
        };
        let collected = self
            .runner
            .run_committed(|tr| async move { collect_and_register(&tr, context, details).await });
        let (collected, commit) = collected.await?;
        Ok(self.collected(collected, &commit))
    }

    /// Hands out the items that answered a request, if it was answered.
    fn collected(&mut self, collected: Collected, commit: &Commit) -> Event<ItemId> {
        self.returned(&collected.given);
        let Some(items) = collected.items else {
            return Event::NotAnswered;
        };
        tracing::debug!(queue = %self.keys().name, items = items.len(), "collected a grant");
        self.hand_out(items);
        let next = collected.next;
        Event::Answered {
            next: next.map(|next| self.registered(&next, commit)),
        }
    }

    /// Withdraws a request that no consumer needs any more.
    async fn withdraw(&mut self, request: ItemId) -> Result<Event<ItemId>> {
        let keys = self.keys();
        let session = self.session();
        let withdrawn = self
            .runner
            .run(|tr| async move { withdraw(&tr, keys, session, &request).await });
        Ok(if withdrawn.await? {
            Event::Withdrawn
        } else {
            Event::NotWithdrawn
        })
    }

    /// Watches for the end of the pause, unless the pause is already over.
    async fn watch_pause(&mut self) -> Result<Event<ItemId>> {
        let keys = self.keys();
        let watch = self.runner.run(|tr| async move {
            let watch = watch_pause(&tr, keys).await?;
            Ok::<_, Error>(watch.map(|watch| Box::pin(watch) as super::Watch))
        });
        Ok(match watch.await? {
            Some(watch) => {
                self.alarms.watch(watch);
                self.pacer.due = None;
                Event::PauseWatched
            }
            None => Event::Resumed,
        })
    }

    /// Returns the duration of a delay of the policy.
    pub(super) fn measure(&self, delay: Delay) -> Duration {
        let poll = self.options.poll_interval;
        match delay {
            // The limit is needed because the last transaction may have waited for an unavailable store.
            Delay::Transactions(count) => self.pacer.took().saturating_mul(count).min(poll),
            Delay::Ranks(rank) => (self.settings.lease / PATIENCES_PER_LEASE).saturating_mul(rank),
            // The leading session needs one transaction to answer the request, or to take the last item.
            Delay::PollInterval if self.callers.is_overdue(self.now()) => {
                self.measure(Delay::Transactions(GRACE))
            }
            Delay::PollInterval => {
                let due = self.pacer.due.map(|due| {
                    let delay = due.saturating_sub(wall_millis(&self.keys().env));
                    Duration::from_millis(delay)
                });
                due.map_or(poll, |due| due.min(poll))
            }
        }
    }

    pub(super) fn context<'a>(&'a self, demand: &'a [Demand]) -> SessionContext<'a> {
        SessionContext {
            keys: &self.shared.keys,
            settings: &self.settings,
            session: self.session(),
            promotes: self.member.trusts_clock(),
            demand,
            decode: &*self.queue.decode,
            fronts: &self.fronts,
        }
    }
}
