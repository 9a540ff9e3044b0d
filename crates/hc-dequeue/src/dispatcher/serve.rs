//! From a wish to items.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Code, Database};
use microqueue::{Item, ItemId};

use super::{Dispatcher, Patience, Reply, Requested, STAGED_TAKES, Wakers, Watch};
use crate::delivery::{Delivery, GiveBack, Out};
use crate::enqueue::wall_millis;
use crate::error::{Error, Result};
use crate::record::Record;
use crate::registry::fulfill::{Taken, fulfill, take};
use crate::registry::request::{Standing, collect, look, next_due, register, watch, withdraw};
use crate::registry::{Demand, Granted, Own, wanted};

/// Into how many parts the patience of one rank divides the lease.
const PATIENCES_PER_LEASE: u32 = 5;

/// What a try of the fast path came to, as the dispatcher sees it.
enum Tried<T> {
    Taken(Taken<T>),
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
        if self.leads {
            self.lead().await?;
            return Ok(true);
        }
        if self.wants.is_empty() {
            return match self.request.take() {
                Some(request) => self.leave(request.id).await.map(|()| true),
                None => Ok(false),
            };
        }
        if self.wakers.watch.is_some() {
            // Asleep until something happens. Somebody who does not want to wait has come since.
            if self.wants.iter().all(|want| want.waits) {
                return Ok(false);
            }
        }
        match &self.request {
            Some(request) => {
                let request = request.id;
                self.follow(request).await
            }
            None if self.staged > 0 => {
                self.staged -= 1;
                self.register().await?;
                Ok(true)
            }
            None => self.take().await,
        }
    }

    /// Tries the fast path.
    async fn take(&mut self) -> Result<bool> {
        let demand = self.demand();
        let own = self.own(&demand);
        let tried = self.runner.run(|tr, attempt| async move {
            if attempt.after == Some(Code::NOT_COMMITTED) {
                return Ok(Tried::Contended);
            }
            take(&tr, own).await.map(Tried::Taken)
        });
        match tried.await? {
            Tried::Taken(Taken::Items(items)) if !items.is_empty() => self.hand_out(items),
            Tried::Taken(Taken::Items(_)) => {
                self.answer_impatient();
                if !self.wants.is_empty() {
                    self.register().await?;
                }
            }
            Tried::Taken(Taken::Staged) => self.register().await?,
            Tried::Contended => {
                self.staged = STAGED_TAKES;
                self.register().await?;
            }
            Tried::Taken(Taken::Paused) => {
                self.answer_impatient();
                if self.wants.is_empty() {
                    return Ok(true);
                }
                self.watch_for_resumption().await?;
                return Ok(false);
            }
            Tried::Taken(Taken::SessionLost) => self.open_session().await?,
        }
        Ok(true)
    }

    async fn register(&mut self) -> Result<()> {
        let demand = self.demand();
        let wanted = u32::try_from(wanted(&demand)).unwrap_or(u32::MAX);
        let (keys, session) = (self.keys(), self.session);
        let registered = self
            .runner
            .run_committed(|tr, _| async move { register(&tr, keys, session, wanted).await });
        match registered.await? {
            (Some(staged), commit) => {
                let stamp = commit.versionstamp;
                let stamp = stamp.expect("a transaction that wrote a request has a versionstamp");
                self.wakers = Wakers::default();
                self.request = Some(Requested {
                    id: staged.at(stamp),
                    patience: None,
                });
            }
            (None, _) => self.open_session().await?,
        }
        Ok(())
    }

    /// Looks how things stand for the request, and does what they ask for.
    async fn follow(&mut self, request: ItemId) -> Result<bool> {
        let (keys, session) = (self.keys(), self.session);
        let look = self.runner.run(|tr, _| async move {
            // Armed first: what changes after this read wakes.
            let watch = watch(&tr, keys, session, Some(&request));
            let (standing, due) =
                futures::try_join!(look(&tr, keys, session, &request), next_due(&tr, keys))?;
            let watch: Watch = Mutex::new(Box::pin(watch));
            Ok::<_, Error>((standing, due, watch))
        });
        let (standing, due, watch) = Box::pin(look).await?;
        if standing.is_granted {
            self.collect(request).await?;
            return Ok(true);
        }
        if !standing.is_registered {
            self.request = None;
            return Ok(true);
        }
        if standing.has_items && self.may_lead(&standing) {
            self.lead().await?;
            return Ok(true);
        }
        if !standing.has_items {
            self.answer_impatient();
            if self.wants.is_empty() {
                return Ok(true);
            }
        }
        let now = self.now();
        let due = due.map(|due| {
            let delay = due.saturating_sub(wall_millis(self.keys()));
            now.saturating_add(Duration::from_millis(delay))
        });
        let patience = (self.request.as_ref())
            .and_then(|request| request.patience)
            .map(|patience| patience.until);
        let poll = now.saturating_add(self.options.poll_interval);
        let look_at = [due, patience]
            .into_iter()
            .flatten()
            .fold(poll, Duration::min);
        self.wakers = Wakers {
            watch: Some(watch),
            look_at: Some(look_at),
        };
        Ok(false)
    }

    /// Returns whether it is this session's turn to fulfill: its request is the first, or the first
    /// one has had its time.
    fn may_lead(&mut self, standing: &Standing) -> bool {
        if standing.rank == 0 {
            return true;
        }
        let now = self.now();
        let step = self.queue.settings.lease / PATIENCES_PER_LEASE;
        let rank = u32::try_from(standing.rank).unwrap_or(u32::MAX);
        let Some(request) = &mut self.request else {
            return false;
        };
        match request.patience {
            Some(patience) if patience.first == standing.first => {
                let expired = patience.until <= now;
                if expired {
                    tracing::warn!(queue = %self.shared.keys.queue, "the first request waits too long");
                    request.patience = None;
                }
                expired
            }
            _ => {
                request.patience = Some(Patience {
                    first: standing.first,
                    until: now.saturating_add(step.saturating_mul(rank)),
                });
                false
            }
        }
    }

    /// Fulfills the first requests, the own one among them as a rule.
    async fn lead(&mut self) -> Result<()> {
        let demand = self.demand();
        let own = self.own(&demand);
        let request = self.request.as_ref().map(|request| request.id);
        let fulfilled = self
            .runner
            .run(|tr, _| async move { fulfill(&tr, own, request).await })
            .await?;
        tracing::debug!(
            queue = %self.keys().queue,
            answered = fulfilled.answered,
            granted = fulfilled.granted,
            "fulfilled requests"
        );
        // Who leads leaves only after a look that found no pair.
        self.leads = fulfilled.has_changed();
        if let Some(items) = fulfilled.own {
            self.request = None;
            self.hand_out(items);
        }
        Ok(())
    }

    async fn collect(&mut self, request: ItemId) -> Result<()> {
        let demand = self.demand();
        let own = self.own(&demand);
        let collected = self
            .runner
            .run(|tr, _| async move { collect(&tr, own, &request).await })
            .await?;
        self.request = None;
        self.wakers = Wakers::default();
        if let Some(items) = collected {
            self.hand_out(items);
        }
        Ok(())
    }

    /// Takes a request back that nobody waits for any more.
    async fn leave(&mut self, request: ItemId) -> Result<()> {
        self.wakers = Wakers::default();
        let keys = self.keys();
        let withdrawn = self
            .runner
            .run(|tr, _| async move { withdraw(&tr, keys, &request).await });
        match withdrawn.await {
            Ok(true) => Ok(()),
            Ok(false) => self.collect(request).await,
            Err(error) => {
                self.request = Some(Requested {
                    id: request,
                    patience: None,
                });
                Err(error)
            }
        }
    }

    async fn watch_for_resumption(&mut self) -> Result<()> {
        let (keys, session) = (self.keys(), self.session);
        let watch = self.runner.run(|tr, _| async move {
            let watch: Watch = Mutex::new(Box::pin(watch(&tr, keys, session, None)));
            Ok::<_, Error>(watch)
        });
        self.wakers = Wakers {
            watch: Some(Box::pin(watch).await?),
            look_at: Some(self.now().saturating_add(self.options.poll_interval)),
        };
        Ok(())
    }

    /// Tells those who do not wait that there is nothing.
    fn answer_impatient(&mut self) {
        for want in std::mem::take(&mut self.wants) {
            if want.waits {
                self.wants.push_back(want);
            } else {
                want.answer_none();
            }
        }
    }

    /// Gives items to those who want them, in their order. An item that does not decode becomes a dead
    /// letter.
    fn hand_out(&mut self, granted: Vec<Granted<T>>) {
        let (mut popped, mut held) = (VecDeque::new(), VecDeque::new());
        for item in granted {
            let (id, record) = (item.id, item.record);
            match item.value {
                Ok(value) if item.is_popped => popped.push_back(Item { id, value }),
                Ok(value) => held.push_back((id, record, value)),
                Err(error) => {
                    let queue = &self.keys().queue;
                    tracing::error!(%queue, ?id, %error, "an item becomes a dead letter");
                    self.return_later(id, record.grant, GiveBack::Dead);
                }
            }
        }
        for want in std::mem::take(&mut self.wants) {
            if want.is_gone() {
                continue;
            }
            match want.reply {
                Reply::Pop(reply) if !popped.is_empty() => {
                    let count = popped.len().min(want.wanted);
                    if let Err(Ok(items)) = reply.send(Ok(popped.drain(..count).collect())) {
                        // It left at this very moment. Somebody else may want them.
                        for item in items.into_iter().rev() {
                            popped.push_front(item);
                        }
                    }
                }
                Reply::Deliver(reply) if !held.is_empty() => {
                    let count = held.len().min(want.wanted);
                    let items: Vec<_> = held.drain(..count).collect();
                    let deliveries = items.into_iter().filter_map(|item| self.deliver(item));
                    // Deliveries that nobody receives give their items back.
                    let _ = reply.send(Ok(deliveries.collect()));
                }
                _ => self.wants.push_back(want),
            }
        }
        for (id, record, _) in held {
            self.return_later(id, record.grant, GiveBack::Unused);
        }
    }

    fn deliver(&mut self, (id, record, value): (ItemId, Record, T)) -> Option<Delivery<T>> {
        // None: the last consumer is gone, and the session ends with all that it holds.
        let commands = self.sender.upgrade()?;
        let deadline = self.now().saturating_add(self.options.time_limit);
        let out = Arc::new(Out::new(record.grant, deadline));
        self.out.insert(id, out.clone());
        Some(Delivery {
            id,
            value,
            attempts: record.attempts,
            enqueued_millis: record.enqueued_millis,
            out,
            session: self.session,
            shared: self.shared.clone(),
            commands,
            is_acknowledged: AtomicBool::new(false),
            is_settled: false,
        })
    }

    fn own<'a>(&'a self, demand: &'a [Demand]) -> Own<'a, T> {
        Own {
            keys: &self.shared.keys,
            settings: &self.shared.settings,
            session: self.session,
            demand,
            decode: C::decode,
        }
    }
}
