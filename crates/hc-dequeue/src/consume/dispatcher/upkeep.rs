//! Keeps the session alive, and cleans up after dead sessions.

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, try_join};
use microqueue::keyspace::error::chain;
use microqueue::keyspace::limits::TRANSACTION_LIFE;
use microqueue::keyspace::{Isolation, Transaction, Tx};
use microqueue::{Item, ItemId};
use tokio::sync::oneshot;

use super::Dispatcher;
use crate::batches::ended::expire_batches;
use crate::consume::held_item::command::Command;
use crate::consume::holdings::outstanding::Outstanding;
use crate::consume::policy::{Event, Step};
use crate::items::dedupe::expire_dedupe;
use crate::items::end::sweep_done;
use crate::items::error::{Error, Result, skip_corrupt};
use crate::items::expiry::Expiry;
use crate::items::keys::Keys;
use crate::items::record::{Record, Reserve};
use crate::items::settings::Settings;
use crate::items::settings_row::{is_paused, stored_settings};
use crate::lanes::parked::first_parked;
use crate::lanes::sweep::{Sweep, sweep_lanes};
use crate::protocol::confirm::confirm_handed_out;
use crate::protocol::give_back::{GiveBack, When};
use crate::protocol::reclaim::{Reclaimed, held_after, reclaim_step};
use crate::queue::kinds::unknown_kinds;
use crate::queue::stats::{oldest_age, read_stats};
use crate::session::{SessionId, Tick};

/// The divisor of the time between two heartbeats that limits how long a session removes expired rows.
const SWEEPING_SHARE: u32 = 4;

/// The progress of periodic tasks.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    /// Which dedupe ids are checked next.
    dedupe: Expiry,
    /// Which ended batches are checked next.
    batches: Expiry,
    /// The last held item that was compared with the deliveries.
    compared: Option<Vec<u8>>,
    /// The progress of a sweep of the lanes.
    lanes: Option<Sweep>,
    /// Dead sessions that were not removed yet.
    dead: Vec<SessionId>,
    /// Whether no session took some kinds of items that waited when the session has last looked.
    has_unknown_kinds: bool,
    /// From when on the session looks again for kinds that no session takes.
    next_look_at_kinds: Duration,
    /// Whether the session must fulfill before the next step for a dead session, whose requests may be ahead of
    /// others.
    pub(super) fulfills_first: bool,
}

/// How often a session looks at most for kinds that no session takes, for which it may read the kinds of all.
const LOOK_AT_KINDS: Duration = Duration::from_secs(10);

impl Upkeep {
    /// Returns whether a step for a dead session is due.
    pub(super) fn reclaims(&self) -> bool {
        !self.dead.is_empty() && !self.fulfills_first
    }
}

impl Dispatcher {
    /// Performs the periodic tasks.
    pub(super) async fn tick(&mut self) -> Result<()> {
        match self.member.tick().await? {
            Tick::Observed => return Ok(()),
            Tick::Dead => {
                self.report(Event::SessionLost);
                return Ok(());
            }
            Tick::Heartbeat => {}
        }
        // A failure of one of these neither stops the others nor keeps consumers from getting items.
        let followed = self.follow_queue().await;
        let swept = self.sweep().await;
        let lanes_swept = self.sweep_lanes().await;
        let found = self.find_dead().await;
        let recovered = self.recover().await;
        let reported = self.report_unknown_kinds().await;
        for result in [followed, swept, lanes_swept, found, recovered, reported] {
            self.note(result);
        }
        Ok(())
    }

    /// Logs the failure of a task that will be tried again.
    pub(super) fn note(&self, result: Result<()>) {
        if let Err(error) = result {
            log_failure(self.keys(), &error);
        }
    }

    /// Reads the queue to set the gauges. Returns whether it is paused, and the stored settings, if they decode.
    async fn read_queue(&self) -> Result<(bool, Option<Settings>)> {
        let keys = self.keys();
        let read = |tr| async move {
            let tr = &tr;
            let age = oldest_age(tr, keys);
            let settings = stored_settings(tr, keys, Isolation::Snapshot).map(|read| {
                let failure = read.as_ref().err();
                let corrupt = failure.filter(|error| error.corrupt_key().is_some());
                if let Some(error) = corrupt {
                    log_failure(keys, error);
                }
                skip_corrupt(read)
            });
            let is_paused = is_paused(tr, keys, Isolation::Snapshot);
            try_join!(read_stats(tr, keys), is_paused, age, settings)
        };
        let (stats, is_paused, age, stored) = self.runner.run(read).await?;
        self.shared.metrics.look(self.fronts.lanes.take_met());
        let unreadable = self.fronts.unreadable();
        self.shared
            .metrics
            .report(&stats, is_paused, age, unreadable);
        if unreadable > 0 {
            tracing::warn!(
                queue = %keys.name,
                unreadable,
                "records at the front of the queue do not decode and are skipped: upgrade this process if a newer \
                 version has written them, or else look for damage with `audit`"
            );
        }
        Ok((is_paused, stored.map(|stored| stored.settings)))
    }

    /// Reads the queue, and adopts the stored settings. If these do not decode, the session keeps the known ones.
    async fn follow_queue(&mut self) -> Result<()> {
        let (is_paused, stored) = self.read_queue().await?;
        let Some(stored) = stored else {
            return Ok(());
        };
        if is_paused || stored != *self.settings {
            self.return_reserve();
        }
        if stored != *self.settings {
            tracing::info!(queue = %self.keys().name, ?stored, "the settings have changed");
            self.settings = Arc::new(stored);
            self.queue.settings.set(self.settings.clone());
            self.member.set_lease(self.settings.lease);
        }
        Ok(())
    }

    /// Reports the kinds of items that wait and that no session takes, if the session has passed over any or has
    /// reported some before. Sessions of one process that find the same set the gauge to the same number.
    async fn report_unknown_kinds(&mut self) -> Result<()> {
        let now = self.now();
        if now < self.upkeep.next_look_at_kinds {
            return Ok(());
        }
        let met = self.queue.kinds.drain_unknown();
        if met.is_empty() && !self.upkeep.has_unknown_kinds {
            return Ok(());
        }
        self.upkeep.next_look_at_kinds = now.saturating_add(LOOK_AT_KINDS);
        let keys = self.keys();
        let met = &met;
        let look = |tr| async move { unknown_kinds(&tr, keys, met.clone()).await };
        let unknown = self.runner.run(look).await?;
        self.shared.metrics.unknown_kinds.set(unknown.len() as f64);
        if !unknown.is_empty() {
            tracing::warn!(
                queue = %keys.name,
                kinds = ?unknown,
                "no worker knows these kinds of jobs, so that they wait: start a worker that has handlers for them"
            );
        }
        self.upkeep.has_unknown_kinds = !unknown.is_empty();
        Ok(())
    }

    /// Removes expired dedupe ids, ended batches and done items, by a trusted wall clock. The next heartbeat continues
    /// with the rest.
    async fn sweep(&mut self) -> Result<()> {
        let until = self.sweep_until();
        let keys = &*self.shared.keys;
        self.upkeep.dedupe.begin();
        self.upkeep.batches.begin();
        while self.member.trusts_clock() {
            let after_id = self.upkeep.dedupe.after();
            let after_batch = self.upkeep.batches.after();
            let sweep = |tr| async move {
                let tr = &tr;
                try_join!(
                    expire_dedupe(tr, keys, after_id),
                    expire_batches(tr, keys, after_batch),
                    sweep_done(tr, keys)
                )
            };
            let (ids, batches, has_more_done) = self.runner.run(sweep).await?;
            let has_more_ids = self.upkeep.dedupe.note(ids);
            let has_more_batches = self.upkeep.batches.note(batches);
            let has_more = has_more_done || has_more_ids || has_more_batches;
            if !has_more || self.now() >= until {
                break;
            }
        }
        Ok(())
    }

    /// Looks for parked lanes, and writes notices of lanes after a change of the default limits. The next heartbeat
    /// continues with the rest.
    async fn sweep_lanes(&mut self) -> Result<()> {
        let keys = self.keys();
        let lanes = &self.fronts.lanes;
        let look = |tr| async move { first_parked(&tr, keys, lanes).await };
        self.runner.run(look).await?;
        let until = self.sweep_until();
        loop {
            let lanes = self.upkeep.lanes.take();
            self.upkeep.lanes = sweep_lanes(&self.runner, self.keys(), lanes).await?;
            if self.upkeep.lanes.is_none() || self.now() >= until {
                return Ok(());
            }
        }
    }

    /// Returns until when one task may remove or write rows.
    fn sweep_until(&self) -> Duration {
        let time = self.member.next_tick().saturating_sub(self.now()) / SWEEPING_SHARE;
        self.now().saturating_add(time)
    }

    /// Finds dead sessions, which are then removed step by step.
    pub(super) async fn find_dead(&mut self) -> Result<()> {
        let trusted_clock = self.member.trusts_clock();
        let found = self.member.find_dead().await?;
        let error = self.member.clock_error_seconds();
        self.shared.metrics.clock_error.set(error);
        if trusted_clock && !self.member.trusts_clock() {
            tracing::warn!(
                queue = %self.keys().name,
                seconds = error,
                "the wall clock differs from those of other processes: this process promotes no delayed \
                 items and fires no schedules"
            );
        }
        for session in found {
            if !self.upkeep.dead.contains(&session) {
                tracing::info!(queue = %self.keys().name, %session, "found a dead session");
                self.upkeep.dead.push(session);
                self.upkeep.fulfills_first = true;
                self.report(Event::FoundDead);
            }
        }
        Ok(())
    }

    /// Performs one step for a dead session.
    pub(super) async fn reclaim(&mut self) -> Event<ItemId> {
        self.upkeep.fulfills_first = true;
        if let Some(session) = self.upkeep.dead.pop() {
            match self.reclaim_step(session).await {
                Ok(Reclaimed::Returned(_)) => self.upkeep.dead.push(session),
                Ok(Reclaimed::Removed) => {}
                // The next census finds the session again.
                Ok(Reclaimed::Undecodable) => tracing::warn!(
                    queue = %self.keys().name,
                    %session,
                    "a dead session holds items that do not decode"
                ),
                Err(error) => self.note(Err(error)),
            }
        }
        Event::Reclaimed
    }

    /// Returns items of a dead session or, if there are none, removes it.
    async fn reclaim_step(&mut self, session: SessionId) -> Result<Reclaimed> {
        let keys = &self.shared.keys;
        let settings = &self.settings;
        let reclaimed = reclaim_step(&self.runner, keys, settings, session).await?;
        if let Reclaimed::Returned(items) = reclaimed {
            self.shared.metrics.reclaimed.increment(items as u64);
        }
        Ok(reclaimed)
    }

    /// Gives back items that the session holds without a delivery: their acknowledgement did not commit, or the
    /// answer that contained them was lost.
    async fn recover(&mut self) -> Result<()> {
        let keys = self.keys();
        let session = self.session();
        let after = self.upkeep.compared.as_deref();
        let (held, last) = self
            .runner
            .run(|tr| async move { held_after(&tr, keys, session, after).await })
            .await?;
        self.upkeep.compared = last;
        self.confirm_handed_out(&held).await?;
        for item in held {
            if item.value.cancelled_millis != 0 {
                self.drop_cancelled(&item.id);
            }
            let holdings = &self.shared.holdings;
            if !holdings.contains(&item.id) && !self.returns.contains(&item.id) {
                let how = GiveBack::Failed(When::Later(self.shared.backoff(&item.value)));
                let reason = Some("its acknowledgement was not committed");
                self.return_later(item.id, item.value.deliveries, how, reason);
            }
        }
        Ok(())
    }

    /// Records which of these items were handed out of the reserve long ago.
    async fn confirm_handed_out(&self, held: &[Item<Record>]) -> Result<()> {
        let now = self.now();
        let mut deliveries = Vec::new();
        for Item { id, value: record } in held {
            let is_handed_out = |out: &Arc<Outstanding>| {
                out.is_received()
                    && out.delivery == record.deliveries
                    && out.life.began + TRANSACTION_LIFE <= now
            };
            if record.reserve != Reserve::Out
                && self
                    .shared
                    .holdings
                    .delivery(id)
                    .is_some_and(|out| is_handed_out(&out))
            {
                deliveries.push((*id, record.deliveries));
            }
        }
        if deliveries.is_empty() {
            return Ok(());
        }
        let held = &self.keys().held(self.session());
        let deliveries = &deliveries;
        // The next heartbeat continues with the rest.
        let confirm = |tr| async move { confirm_handed_out(&tr, held, deliveries).await };
        self.runner.run(confirm).await.map(drop)
    }

    /// Notifies the delivery of an item that was cancelled, or gives the item back if it is in the reserve.
    fn drop_cancelled(&mut self, id: &ItemId) {
        // In this order: a handler may take the item out of the reserve at any time.
        if let Some(item) = self.shared.holdings.remove(id) {
            self.return_unused(item.id, item.record.deliveries);
        } else if let Some(out) = self.shared.holdings.delivery(id) {
            out.cancel();
        }
    }

    /// Notifies the deliveries whose items were cancelled, and watches for further cancellations.
    pub(super) async fn find_cancelled(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let keys = &*shared.keys;
        let session = self.member.id();
        let stamp = &keys.cancels(session);
        let mut after: Option<Vec<u8>> = None;
        loop {
            let after_last = after.as_deref();
            let read = |tr: Tx<_>| async move {
                let cancelled = tr.watch(stamp);
                let held = held_after(&tr, keys, session, after_last).await?;
                Ok::<_, Error>((cancelled, held))
            };
            let (cancelled, (held, last)) = self.runner.run(read).await?;
            if after.is_none() {
                // The watch was set before the pages were read: they contain every cancellation that it does not
                // report.
                self.cancels.watch(cancelled);
            }
            for item in held.iter().filter(|item| item.value.cancelled_millis != 0) {
                self.drop_cancelled(&item.id);
            }
            if last.is_none() {
                return Ok(());
            }
            after = last;
        }
    }

    /// Gives back some of the items that the session holds. Returns `false` if it holds none.
    async fn release(&mut self) -> Result<bool> {
        let keys = self.keys();
        let session = self.session();
        let held = |tr| async move { held_after(&tr, keys, session, None).await };
        let (held, _) = self.runner.run(held).await?;
        for item in &held {
            let how = GiveBack::Returned(When::Now);
            self.return_later(item.id, item.value.deliveries, how, None);
        }
        while !self.returns.is_empty() {
            self.give_back().await?;
        }
        Ok(!held.is_empty())
    }

    /// Ends the session.
    pub(super) async fn close(mut self, mut done: Vec<oneshot::Sender<Result<usize>>>) {
        let lost = self.shared.holdings.lose_all();
        for (id, out) in &lost {
            if out.take_back() {
                self.return_unused(*id, out.delivery);
            }
        }
        // Other sessions will remove them.
        self.upkeep.dead.clear();
        self.report(Event::Closing);
        let end = async {
            // Pending returns come first: they contain when each item goes back, or that it is a dead letter.
            loop {
                match self.policy.next(self.facts()) {
                    Step::Rest => break,
                    step => self.perform(step).await?,
                }
            }
            // The items must go back while the session is alive: if it were declared dead, they would count a death.
            while self.release().await? {}
            self.member.end().await?;
            while let Reclaimed::Returned(_) = self.reclaim_step(self.session()).await? {}
            // The session need not lead any more, since it has no request. No heartbeat of it sets the gauges again.
            let read = self.read_queue().await;
            self.note(read.map(drop));
            Ok(lost.len())
        };
        let ended = end.await;
        self.shared.metrics.forget_session();
        tracing::debug!(queue = %self.keys().name, session = %self.session(), "ended a session");
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

fn log_failure(keys: &Keys, error: &Error) {
    tracing::warn!(queue = %keys.name, error = %chain(error), "upkeep failed");
}
