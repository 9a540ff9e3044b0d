//! What keeps a session alive, and what it does for those that are not.

use futures::try_join;
use microqueue::keyspace::Database;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::error::chain;
use tokio::sync::oneshot;

use super::{Dispatcher, Lead};
use crate::command::Command;
use crate::dedupe::expire_dedupe;
use crate::error::Result;
use crate::give_back::{GiveBack, Return};
use crate::reclaim::{Progress, held_after, reclaim_some};
use crate::session::{SessionId, Tick};

/// How many pages of dedupe ids are found at from one heartbeat to the next.
const DEDUPE_PAGES_PER_BEAT: u32 = 10;

impl<T, D, C> Dispatcher<T, D, C>
where
    T: Send + Sync + 'static,
    D: Database,
    C: Codec<T>,
{
    /// Does what is due from time to time.
    pub(super) async fn tick(&mut self) -> Result<()> {
        match self.member.tick().await? {
            Tick::Observed => return Ok(()),
            Tick::Dead => return self.open_session().await,
            Tick::Beaten => {}
        }
        // None of these keeps the others from their work, nor anybody from items.
        let (reported, expired) = (self.report().await, self.expire_dedupe().await);
        let (found, recovered) = (self.find_dead().await, self.recover().await);
        for result in [reported, expired, found, recovered] {
            self.note(result);
        }
        Ok(())
    }

    /// Notes that something failed that is tried again.
    fn note(&self, result: Result<()>) {
        if let Err(error) = result {
            tracing::warn!(queue = %self.keys().queue, error = %chain(&error), "upkeep failed");
        }
    }

    /// Tells the gauges how things stand.
    async fn report(&mut self) -> Result<()> {
        let queue = &self.queue;
        let read = |tr| async move { try_join!(queue.stats(&tr), queue.oldest_age(&tr)) };
        let (stats, age) = self.runner.run(read).await?;
        self.metrics.report(&stats, age);
        Ok(())
    }

    /// Removes some of the dedupe ids whose time is over.
    async fn expire_dedupe(&mut self) -> Result<()> {
        if self.queue.settings.dedupe_retention.is_zero() {
            return Ok(());
        }
        for _ in 0..DEDUPE_PAGES_PER_BEAT {
            let (keys, after) = (self.keys(), self.deduped.as_deref());
            let expire = |tr| async move { expire_dedupe(&tr, keys, after).await };
            self.deduped = self.runner.run(expire).await?;
            if self.deduped.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Looks for sessions that are dead, to be buried step by step.
    pub(super) async fn find_dead(&mut self) -> Result<()> {
        for session in self.member.find_dead().await? {
            if !self.dead.contains(&session) {
                tracing::info!(queue = %self.keys().queue, %session, "found a dead session");
                self.dead.push(session);
                // First of all, their requests may stand before others.
                self.leads = Some(Lead::Everybody);
            }
        }
        Ok(())
    }

    /// Does one step for a dead session. False: there is none.
    pub(super) async fn reclaim(&mut self) -> bool {
        let Some(session) = self.dead.pop() else {
            return false;
        };
        match self.bury_partly(session).await {
            Ok(true) => {}
            Ok(false) => self.dead.push(session),
            // The next look finds it again.
            Err(error) => self.note(Err(error)),
        }
        true
    }

    /// Returns items of a dead session or, if there are none, removes it. True: it is gone.
    async fn bury_partly(&mut self, session: SessionId) -> Result<bool> {
        // Another one may be asleep behind a request of the dead. Also if this step ends in doubt.
        self.leads = Some(Lead::Everybody);
        let (keys, settings) = (&self.shared.keys, &self.queue.settings);
        let progress = reclaim_some(&self.runner, keys, settings, session).await?;
        if let Progress::Returned(items) = progress {
            self.metrics.reclaimed.increment(items as u64);
        }
        Ok(progress == Progress::Buried)
    }

    /// Gives back what the session holds without a delivery: whose acknowledgement did not commit, or what was lost with an answer.
    async fn recover(&mut self) -> Result<()> {
        let (keys, session, after) = (self.keys(), self.session(), self.compared.as_deref());
        let (held, last) = self
            .runner
            .run(|tr| async move { held_after(&tr, keys, session, after).await })
            .await?;
        self.compared = last;
        for item in held {
            let returns = |(returned, _): &(Return, _)| returned.id == item.id;
            if !self.deliveries.contains(&item.id) && !self.returns.iter().any(returns) {
                self.return_later(item.id, item.value.grant, GiveBack::Now);
            }
        }
        Ok(())
    }

    /// Gives back some of what the session holds. False: it holds nothing.
    async fn release(&mut self) -> Result<bool> {
        let (keys, session) = (self.keys(), self.session());
        let held = |tr| async move { held_after(&tr, keys, session, None).await };
        let (held, _) = self.runner.run(held).await?;
        for item in &held {
            self.return_later(item.id, item.value.grant, GiveBack::Uncounted);
        }
        while !self.returns.is_empty() {
            self.give_back().await?;
        }
        Ok(!held.is_empty())
    }

    /// Ends the session.
    pub(super) async fn close(mut self, mut done: Vec<oneshot::Sender<Result<()>>>) {
        self.deliveries.lose_all();
        let ended = async {
            while !self.returns.is_empty() {
                // They keep the time at which they go back, or that they are dead.
                self.give_back().await?;
            }
            if let Some(request) = self.request.take() {
                self.leave(request).await?;
            }
            while self.leads.is_some() {
                self.leads = Some(Lead::HandOver);
                self.lead().await?;
            }
            // While it lives: what others return of a session that is dead counts as an attempt.
            while self.release().await? {}
            self.member.retire().await?;
            while !self.bury_partly(self.session()).await? {}
            // Nobody of this session leads any more: it has no request by now.
            Ok(())
        };
        let ended = ended.await;
        tracing::debug!(queue = %self.keys().queue, session = %self.session(), "ended a session");
        while let Ok(command) = self.commands.try_recv() {
            if let Command::ShutDown { done: another, .. } = command {
                done.extend(another);
            }
        }
        for done in done {
            // The caller may have gone.
            let _ = done.send(ended.clone());
        }
    }
}
