//! The outstanding deliveries, and a time before which none of them has passed its time limit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use microqueue::ItemId;

use super::outstanding::Outstanding;

/// The outstanding deliveries.
#[derive(Debug)]
pub(super) struct Deliveries {
    out: BTreeMap<ItemId, Arc<Outstanding>>,
    /// No deadline is before this time. Extending a delivery does not change it, since deadlines only move to later
    /// times.
    earliest: Duration,
}

impl Default for Deliveries {
    fn default() -> Self {
        Self {
            out: BTreeMap::new(),
            earliest: Duration::MAX,
        }
    }
}

impl Deliveries {
    pub(super) fn insert(&mut self, id: ItemId, out: Arc<Outstanding>) {
        self.earliest = self.earliest.min(out.deadline());
        self.out.insert(id, out);
    }

    /// Removes and returns a delivery. The item may have been delivered again since.
    pub(super) fn forget(&mut self, id: &ItemId, delivery: u64) -> Option<Arc<Outstanding>> {
        let out = self.out.get(id)?;
        if out.delivery == delivery {
            self.out.remove(id)
        } else {
            None
        }
    }

    pub(super) fn get(&self, id: &ItemId) -> Option<&Arc<Outstanding>> {
        self.out.get(id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Returns a time before which no delivery has passed its time limit.
    pub(super) fn earliest(&self) -> Duration {
        self.earliest
    }

    /// Removes and returns the deliveries that have passed their time limit. Checks each of them only if one may
    /// have.
    pub(super) fn take_over(&mut self, now: Duration) -> Vec<(ItemId, Arc<Outstanding>)> {
        let mut over = Vec::new();
        if now < self.earliest {
            return over;
        }
        self.earliest = Duration::MAX;
        self.out.retain(|id, out| {
            let deadline = out.deadline();
            let is_over = deadline <= now;
            if is_over {
                over.push((*id, out.clone()));
            } else {
                self.earliest = self.earliest.min(deadline);
            }
            !is_over
        });
        over
    }

    /// Marks all deliveries as lost, forgets them, and returns them.
    pub(super) fn lose_all(&mut self) -> BTreeMap<ItemId, Arc<Outstanding>> {
        let lost = std::mem::take(self).out;
        lost.values().for_each(|out| out.lose());
        lost
    }
}

#[cfg(test)]
mod tests {
    use microqueue::keyspace::Versionstamp;

    use super::*;
    use crate::consume::holdings::outstanding::Lifetime;
    use crate::options::Backoff;

    #[test]
    fn a_delivery_is_over_at_its_deadline_to_wherever_that_was_moved() {
        let at = Duration::from_secs;
        let id = |call| ItemId::Commit {
            versionstamp: Versionstamp::new(1, 0),
            call,
        };
        let mut deliveries = Deliveries::default();
        assert_eq!(deliveries.earliest(), Duration::MAX);
        let within = |seconds| Lifetime {
            began: Duration::ZERO,
            time_limit: at(seconds),
            backoff: Backoff::default(),
        };
        let kept_alive = Arc::new(Outstanding::new(1, within(10)));
        deliveries.insert(id(1), kept_alive.clone());
        deliveries.insert(id(2), Arc::new(Outstanding::new(1, within(20))));
        let mut over = |now| {
            let over: Vec<_> = deliveries
                .take_over(now)
                .into_iter()
                .map(|(id, _)| id)
                .collect();
            (over, deliveries.earliest())
        };
        assert_eq!(over(at(9)), (vec![], at(10)));
        kept_alive.restart(at(20));
        assert_eq!(over(at(10)), (vec![], at(20)));
        // A late restart at an earlier time has no effect.
        kept_alive.restart(at(5));
        assert_eq!(over(at(29)), (vec![id(2)], at(30)));
        assert_eq!(over(at(30)), (vec![id(1)], Duration::MAX));
    }
}
