//! What keeps a session alive, and what it does for those that are not.

use futures::future::try_join_all;
use futures::try_join;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Database, Transaction, Tx};
use tokio::sync::oneshot;

use super::{Command, Dispatcher, Lead, TICKS_PER_LEASE};
use crate::delivery::{GiveBack, Return};
use crate::enqueue::sweep_dedupe;
use crate::error::{Error, Result};
use crate::keys::SessionId;
use crate::reclaim::{Progress, declare_dead, reclaim_some, retire, suspects, unknown};
use crate::session;

/// How many sessions look for dead ones in the time from one heartbeat to the next.
const LOOKS_PER_BEAT: f64 = 4.0;

/// How many sessions one transaction declares dead at most.
const DEATHS_PER_STEP: usize = 100;

/// How many pages of dedupe ids are looked at from one heartbeat to the next.
const SWEEPS_PER_BEAT: u32 = 10;

/// Every how many ticks the heart beats.
const TICKS_PER_BEAT: u32 = 2;

impl<T, D, C> Dispatcher<T, D, C>
where
    T: Send + Sync + 'static,
    D: Database,
    C: Codec<T>,
{
    /// Does what is due from time to time.
    pub(super) async fn tick(&mut self) -> Result<()> {
        self.next_tick = self.now() + self.queue.settings.lease / TICKS_PER_LEASE;
        self.ticks = self.ticks.wrapping_add(1);
        let read = |tr: Tx<_>, _| async move { Ok::<_, Error>(tr.read_version().await?) };
        self.clock.observe(self.runner.run(read).await?);
        if !self.ticks.is_multiple_of(TICKS_PER_BEAT) {
            return Ok(());
        }
        let (keys, session) = (self.keys(), self.session);
        let alive = self
            .runner
            .run(|tr, _| async move { session::beat(&tr, keys, session).await })
            .await?;
        if !alive {
            tracing::warn!(queue = %keys.queue, %session, "the session was declared dead");
            return self.open_session().await;
        }
        // None of these keeps the others from their work, nor anybody from items.
        let (reported, swept) = (self.report().await, self.sweep().await);
        let (looked, recovered) = (self.look_for_dead().await, self.recover().await);
        for result in [reported, swept, looked, recovered] {
            self.note(result);
        }
        Ok(())
    }

    /// Notes that something failed that is tried again.
    fn note(&self, result: Result<()>) {
        if let Err(error) = result {
            tracing::warn!(queue = %self.keys().queue, %error, "upkeep failed");
        }
    }

    /// Tells the gauges how things stand.
    async fn report(&mut self) -> Result<()> {
        let queue = &self.queue;
        let read = |tr, _| async move { try_join!(queue.stats(&tr), queue.oldest_age(&tr)) };
        let (stats, age) = self.runner.run(read).await?;
        self.metrics.report(&stats, age);
        Ok(())
    }

    /// Removes some of the dedupe ids that were kept for long enough.
    async fn sweep(&mut self) -> Result<()> {
        if self.queue.settings.dedupe_retention.is_zero() {
            return Ok(());
        }
        for _ in 0..SWEEPS_PER_BEAT {
            let (keys, after) = (self.keys(), self.swept.as_deref());
            let sweep = |tr, _| async move { sweep_dedupe(&tr, keys, after).await };
            self.swept = self.runner.run(sweep).await?;
            if self.swept.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Declares those dead that have shown no sign of life for a lease. Of many that live a few look at
    /// each heartbeat, so that together they read each other some times and not as often as there are
    /// sessions.
    pub(super) async fn look_for_dead(&mut self) -> Result<()> {
        let share = LOOKS_PER_BEAT / self.living.max(1) as f64;
        if self.runner.environment().random_unit() >= share {
            return Ok(());
        }
        // Sessions of earlier openings of a store that one process owns are gone, however lately.
        let owned_since = self.runner.database().owned_since();
        let ago = self.clock.version_ago().max(owned_since);
        let (keys, session) = (self.keys(), self.session);
        let seen = self
            .runner
            .run(|tr, _| async move { suspects(&tr, keys, session, ago).await })
            .await?;
        self.living = seen.living;
        for suspects in seen.suspects.chunks(DEATHS_PER_STEP) {
            let keys = self.keys();
            let are_dead = self.runner.run(|tr, _| async move {
                let tr = &tr;
                let declare = |session: &SessionId| declare_dead(tr, keys, *session, ago);
                try_join_all(suspects.iter().map(declare)).await
            });
            for (session, is_dead) in suspects.iter().zip(are_dead.await?) {
                if is_dead && !self.dead.contains(session) {
                    tracing::info!(queue = %self.keys().queue, %session, "found a dead session");
                    self.dead.push(*session);
                    // First of all, their requests may stand before others.
                    self.leads = Some(Lead::Everybody);
                }
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

    /// Gives back what the session holds without a delivery and without a grant that is still to be
    /// collected: whose acknowledgement did not commit, or what was lost with an answer.
    async fn recover(&mut self) -> Result<()> {
        let (keys, session, after) = (self.keys(), self.session, self.compared.as_deref());
        let (unknown, last) = self
            .runner
            .run(|tr, _| async move { unknown(&tr, keys, session, after).await })
            .await?;
        self.compared = last;
        for item in unknown {
            let returns = |(returned, _): &(Return, _)| returned.id == item.id;
            if !self.out.contains_key(&item.id) && !self.returns.iter().any(returns) {
                self.return_later(item.id, item.value.grant, GiveBack::Now);
            }
        }
        Ok(())
    }

    /// Ends the session.
    pub(super) async fn close(mut self, mut done: Vec<oneshot::Sender<Result<()>>>) {
        for out in self.out.values() {
            out.lose();
        }
        for want in std::mem::take(&mut self.wants) {
            want.fail(Error::ShutDown {
                queue: self.keys().queue.clone(),
            });
        }
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
            let (keys, session) = (self.keys(), self.session);
            let retire = |tr, _| async move { retire(&tr, keys, session).await };
            self.runner.run(retire).await?;
            while !self.bury_partly(session).await? {}
            // Nobody of this session leads any more: it has no request by now.
            Ok(())
        };
        let ended = ended.await;
        tracing::debug!(queue = %self.keys().queue, session = %self.session, "ended a session");
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            if let Command::ShutDown(another) = command {
                done.extend(another);
            }
        }
        for done in done {
            // Whoever asked may have gone.
            let _ = done.send(ended.clone());
        }
    }
}
