//! The end of a history: the remaining items are drained, and the results are compared with the operations.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use conformance::chaos::{Chaos, Faults};
use conformance::let_pass;
use hc_dequeue::session::Sessions;
use hc_dequeue::{Delivery, End, Error, Place, WorkerOptions};
use keyspace::tuple::TupleUnpack;
use keyspace::{Environment, Isolation, RangeQuery, read_all};

use super::{Course, Player, SAME, acknowledge, count_done, is_kept};
use crate::common::LONG;
use crate::model::process::{Process, runner};

impl Player {
    /// Lets one last process finish the remaining work, and checks the results.
    pub(super) async fn end(mut self) -> Result<Course, String> {
        for process in std::mem::take(&mut self.processes) {
            self.graves.push(process.chaos.clone());
        }
        for grave in std::mem::take(&mut self.graves) {
            grave.flush().await;
        }
        self.hasty.database().flush().await;
        while let Some(answer) = self.wishes.join_next().await {
            self.take_in(answer.unwrap());
        }
        let quiet = Faults::default();
        let chaos = Chaos::new(self.store.db.clone(), Environment::system(), quiet.clone());
        self.runner = runner(&self.store, chaos);
        let options = WorkerOptions::default().with_poll_interval(Duration::from_millis(50));
        let last = Process::start(&self.store, &quiet, options, None).await;
        self.held.clear();
        self.configure().await;
        self.close_all().await;
        Box::pin(self.look_at_rows()).await?;
        self.check_starts().await?;
        self.course.starts = self.starts.count();
        if self.play.groups {
            self.unlimit().await;
        }
        let env = Environment::system();
        if env.timeout(LONG, self.followed()).await.is_none() {
            return Err(format!("not all has ended: {}", self.describe().await));
        }
        self.keep_done = Some(self.settings.keep_done());
        let drained = env.timeout(LONG, Box::pin(self.drain(&last))).await;
        if drained.is_none() {
            return Err(format!("not all was delivered: {}", self.describe().await));
        }
        last.consumer
            .clone()
            .shut_down(Duration::ZERO)
            .await
            .unwrap();
        self.judge().await?;
        Ok(self.course)
    }

    /// Returns when the only session has adopted the settings.
    async fn followed(&self) {
        let sessions = &Sessions::new(self.queue.subspace().clone());
        let all = |tr| async move { sessions.all(&tr).await };
        loop {
            let all = self.runner.run(all).await.unwrap();
            if let [(_, Ok(last))] = &all[..]
                && last.lease == self.settings.lease()
            {
                return;
            }
            let_pass(Duration::from_millis(10)).await;
        }
    }

    /// Finishes items until every item is completed, every session but one is gone, and expired rows are removed.
    async fn drain(&self, process: &Process) {
        loop {
            // Read first: the end of a batch enqueues its callback.
            let batch_rows = self.rows("B").await + self.rows("Bs").await;
            let stats = self.stats().await;
            let items = stats.queued + stats.delayed + stats.held + stats.dead;
            // Rows of groups that had waited for their rate.
            let parked = self.rows("hp").await;
            let is_drained = batch_rows + parked == 0 && items == 0;
            if is_drained && self.rows("s").await == 1 && self.is_swept().await {
                return;
            }
            self.redrive().await;
            let wait = Duration::from_millis(50);
            for delivery in process
                .consumer
                .dequeue_batch_within(8, wait)
                .await
                .unwrap()
            {
                match self.finish(&delivery).await {
                    Ok(()) | Err(Error::DeliveryLost { .. } | Error::Cancelled { .. }) => {}
                    Err(error) => panic!("seed {}: {error}", self.play.seed),
                }
            }
        }
    }

    /// Ends the item of a delivery, in a transaction of its own or in one of the session.
    async fn finish(&self, delivery: &Delivery<u64>) -> Result<(), Error> {
        let store = &self.store;
        let keep_done = self.keep_done;
        if delivery.value().is_multiple_of(2) {
            return acknowledge(&self.runner, store, delivery, keep_done).await;
        }
        delivery.complete().await?;
        let counted = |tr| async move {
            count_done(&tr, store, delivery, keep_done);
            Ok(())
        };
        self.runner.run(counted).await
    }

    async fn stats(&self) -> hc_dequeue::Stats {
        let queue = &self.queue;
        let stats = |tr| async move { queue.stats(&tr).await };
        Box::pin(self.runner.run(stats)).await.unwrap()
    }

    /// Compares the results with the operations.
    async fn judge(&mut self) -> Result<(), String> {
        let audit = self.queue.audit(&self.runner).await.unwrap();
        if !audit.is_clean() {
            return Err(format!("{audit:?}"));
        }
        let done = self.effects("done").await;
        let cancelled = self.effects("cancelled").await;
        let merged = self.effects("merged").await;
        let without_callback = self.effects("without callback").await;
        let mut missing = 0;
        for value in 0..self.next_value {
            let acknowledged = done.get(&value).copied().unwrap_or_default();
            let popped = self.popped.get(&value).copied().unwrap_or_default();
            let ended: usize = [&cancelled, &merged, &without_callback]
                .map(|ended| ended.get(&value).copied())
                .into_iter()
                .flatten()
                .sum();
            match acknowledged + popped + ended {
                0 => missing += 1,
                1 => {}
                times => return Err(format!("item {value} was effective {times} times")),
            }
        }
        if missing > self.course.unanswered_pops {
            return Err(format!(
                "{missing} items were lost, {} may have been",
                self.course.unanswered_pops
            ));
        }
        let stats = self.stats().await;
        let sum = |ended: &BTreeMap<u64, usize>| ended.values().sum::<usize>() as u64;
        self.course.cancelled = sum(&cancelled);
        self.course.merged = sum(&merged);
        self.course.cancelled_batches = sum(&without_callback);
        let ended = self.course.cancelled + self.course.merged + self.course.cancelled_batches;
        let expected = (self.next_value - ended, self.course.cancelled);
        if (stats.completed, stats.cancelled) != expected {
            return Err(format!("{stats:?}, not {expected:?}"));
        }
        for part in [
            "i", "t", "h", "g", "r", "d", "s", "b", "o", "k", "n", "a", "y", "B", "Bs",
        ] {
            let left = self.rows(part).await;
            if left != 0 {
                return Err(format!("{left} keys are left under `{part}`"));
            }
        }
        let queue = &self.queue;
        let read = |tr| async move { queue.settings(&tr).await };
        let stored = self.runner.run(read).await.unwrap();
        if stored != self.settings {
            return Err(format!("{stored:?}, not {:?}", self.settings));
        }
        self.judge_batches(&done).await?;
        self.judge_deaths().await?;
        self.find_kept_callbacks().await;
        self.judge_kept(&cancelled, &merged).await
    }

    /// Compares the kept done items with how each of them ended.
    async fn judge_kept(
        &mut self,
        cancelled: &BTreeMap<u64, usize>,
        merged: &BTreeMap<u64, usize>,
    ) -> Result<(), String> {
        let kept = self.effects::<u64>("kept").await;
        let not_kept = self.effects::<u64>("not kept").await;
        let always = match self.play.keeps[..] {
            [time] => is_kept(Some(time)),
            _ => None,
        };
        let mut found = 0;
        for (value, item) in self
            .items
            .iter()
            .filter(|(value, _)| !merged.contains_key(value))
        {
            let expected_end = if cancelled.contains_key(value) {
                End::Cancelled
            } else {
                End::Completed
            };
            let expected = match (kept.contains_key(value), not_kept.contains_key(value)) {
                (false, false) => always,
                (is_kept, _) => Some(is_kept),
            };
            let queue = &self.queue;
            let read = |tr| async move { queue.status(&tr, item).await };
            let status = Box::pin(self.runner.run(read)).await.unwrap();
            let end = status.as_ref().map(|status| match status.place {
                Place::Done { end, .. } => (Some(end), *status.value.as_ref().unwrap() % SAME),
                _ => (None, 0),
            });
            let is_right = end.is_none_or(|end| end == (Some(expected_end), *value));
            if !is_right || expected.is_some_and(|expected| expected != end.is_some()) {
                return Err(format!(
                    "item {value}: {status:?}, not {expected_end:?}, kept: {expected:?}"
                ));
            }
            found += usize::from(end.is_some());
        }
        let rows = self.rows("x").await;
        if rows != found {
            return Err(format!(
                "{rows} items are kept, {found} of them were enqueued"
            ));
        }
        self.course.kept = found;
        Ok(())
    }

    /// Returns whether all expired rows were removed.
    async fn is_swept(&self) -> bool {
        let index = self.queue.subspace().subspace(&"z");
        let now = self
            .runner
            .environment()
            .wall()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        let begin = index.range().0;
        let end = index.pack(&(now.as_millis() as u64,));
        self.count(begin, end).await == 0
    }

    /// Returns how often each item was counted under a name.
    pub(super) async fn effects<K>(&self, what: &str) -> BTreeMap<K, usize>
    where
        K: for<'de> TupleUnpack<'de> + Ord,
    {
        let part = self.store.root.subspace(&what);
        let (begin, end) = part.range();
        let query = &RangeQuery::keys(begin, end);
        let read = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
        let rows = self.runner.run(read).await.unwrap();
        let effect = |row: &keyspace::KeyValue| {
            let count = u64::from_le_bytes(row.value().try_into().unwrap());
            (part.unpack(row.key()).unwrap(), count as usize)
        };
        rows.iter().map(effect).collect()
    }

    async fn rows(&self, part: &str) -> usize {
        let (begin, end) = self.queue.subspace().subspace(&part).range();
        self.count(begin, end).await
    }

    async fn count(&self, begin: Vec<u8>, end: Vec<u8>) -> usize {
        let query = &RangeQuery::keys(begin, end);
        let read = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
        self.runner.run(read).await.unwrap().len()
    }

    async fn describe(&self) -> String {
        let mut parts = format!("{:?}", self.stats().await);
        for part in ["r", "g", "h", "s", "z", "t", "B", "Bs"] {
            parts += &format!(", {part}: {}", self.rows(part).await);
        }
        parts
    }
}
