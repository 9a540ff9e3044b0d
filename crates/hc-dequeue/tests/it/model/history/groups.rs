//! Groups in a history: items get them, their limits change, and slots and notices are right at every version.

use std::time::Duration;

use hc_dequeue::{Enqueue, Error, Finding, GroupLimits, Rate};
use keyspace::{Runner, Store};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::Player;

/// The groups of a history whose limits change.
const CHANGING: [&str; 3] = ["a", "b", "c"];

/// The group whose limits are [`FIXED_LIMITS`] all the time.
const FIXED: &str = "fixed";

const FIXED_LIMITS: GroupLimits = GroupLimits::new().with_limit(2);

/// The group whose items start at the rate [`PACE`] all the time.
pub(super) const PACED: &str = "paced";

/// Slower than items come.
pub(super) const PACE: Rate = Rate::new(1, Duration::from_millis(500)).with_burst(2);

impl Player {
    /// Returns the group of the next items, if they get one.
    pub(super) fn some_group(&mut self) -> Option<&'static str> {
        if !self.play.groups || self.rng.random_range(0..3) == 0 {
            return None;
        }
        let [a, b, c] = CHANGING;
        [a, b, c, FIXED, PACED].choose(&mut self.rng).copied()
    }

    /// Gives items a group, if there is one, and a priority.
    pub(super) fn with_group(&mut self, options: Enqueue, group: Option<&'static str>) -> Enqueue {
        let Some(group) = group else {
            return options;
        };
        let priority = *[0, 0, 3].choose(&mut self.rng).unwrap();
        options.with_group(group).with_priority(priority)
    }

    /// Sets the limits that never change.
    pub(super) async fn fix_limits(&self) {
        let queue = &self.queue;
        let fix = |tr| async move {
            let tr = &tr;
            let paced = Some(&GroupLimits::new().with_rate(PACE));
            queue.configure_group(tr, PACED.as_bytes(), paced).await?;
            let fixed = Some(&FIXED_LIMITS);
            queue.configure_group(tr, FIXED.as_bytes(), fixed).await
        };
        self.runner.run(fix).await.unwrap();
    }

    /// Changes the limits of a group, or the default ones.
    pub(super) async fn limit(&mut self) {
        let limit = GroupLimits::new().with_limit(self.rng.random_range(0..4));
        let limits = [
            GroupLimits::new(),
            limit,
            limit.with_until_end().with_weight(3),
            limit.with_until_end().with_dead_letters_blocking(),
        ];
        let limits = *limits.choose(&mut self.rng).unwrap();
        let group = CHANGING.choose(&mut self.rng).copied();
        let is_default = self.rng.random_range(0..4) == 0;
        let is_reset = self.rng.random_range(0..4) == 0;
        let queue = &self.queue;
        let change = |tr| async move {
            match group {
                Some(group) if !is_default => {
                    let limits = if is_reset { None } else { Some(&limits) };
                    queue.configure_group(&tr, group.as_bytes(), limits).await
                }
                _ => queue.configure_groups(&tr, &limits).await,
            }
        };
        self.runner.run(change).await.unwrap();
        self.course.limited += 1;
    }

    /// Removes all limits, so that every item can be finished.
    pub(super) async fn unlimit(&self) {
        let queue = &self.queue;
        let unlimit = |tr| async move {
            for group in CHANGING.into_iter().chain([FIXED, PACED]) {
                queue.configure_group(&tr, group.as_bytes(), None).await?;
            }
            queue.configure_groups(&tr, &GroupLimits::new()).await
        };
        self.runner.run(unlimit).await.unwrap();
    }

    /// Checks slots and batches while everything goes on.
    pub(super) async fn look_at_rows(&mut self) -> Result<(), String> {
        let queue = &self.queue;
        let runner: Runner<Store> = self.store.runner();
        let audit = queue.audit(&runner).await.unwrap();
        for finding in audit.findings {
            // A notice of a group may be missing until a session has seen the mark of new default limits.
            if let Finding::SlotsOff { .. }
            | Finding::BatchOff { .. }
            | Finding::NoBatchNotice { .. }
            | Finding::StrayBatch { .. } = finding
            {
                return Err(format!("{finding}"));
            }
        }
        let read = |tr| async move { Ok::<_, Error>(queue.groups(&tr, None, 100).await?.groups) };
        for group in runner.run(read).await.unwrap() {
            if group.group == FIXED {
                let most = FIXED_LIMITS.limit().map(u64::from).unwrap_or(0);
                if group.slots > most {
                    return Err(format!("{} slots of {most} are in use", group.slots));
                }
                self.course.most_slots = self.course.most_slots.max(group.slots);
            }
        }
        Ok(())
    }
}
