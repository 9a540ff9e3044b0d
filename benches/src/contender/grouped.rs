//! The high-contention queue with items of groups.

use std::time::Duration;

use hc_dequeue::{Enqueue, GroupLimits, MAX_RATE_PER_SECOND, Rate};
use keyspace::Bytes;

use super::{Contender, HighContention, Site, number_of};

/// More starts than a benchmark has.
const MANY: Rate = Rate::new(MAX_RATE_PER_SECOND, Duration::from_secs(1)).with_burst(u32::MAX);

/// The `LIMIT` that stands for a rate which keeps no item waiting.
pub const RATED: u32 = u32::MAX;

/// A session of a queue whose items have groups. A `LIMIT` of zero stands for none, and one of 1 for an ordered group.
#[derive(Debug)]
pub struct Grouped<const ACKNOWLEDGES: bool, const GROUPS: u64, const LIMIT: u32, const WEIGHT: u32>(
    HighContention<ACKNOWLEDGES>,
);

impl<const ACKNOWLEDGES: bool, const GROUPS: u64, const LIMIT: u32, const WEIGHT: u32> Contender
    for Grouped<ACKNOWLEDGES, GROUPS, LIMIT, WEIGHT>
{
    type Site = Site;

    async fn open(site: &Site) -> Self {
        let session = HighContention::open(site).await;
        let limits = match LIMIT {
            0 => GroupLimits::new(),
            1 => GroupLimits::ordered(),
            RATED => GroupLimits::new().with_rate(MANY),
            limit => GroupLimits::new().with_limit(limit),
        };
        let limits = limits.with_weight(WEIGHT);
        // Otherwise, sessions would look at all groups again.
        if limits != GroupLimits::new() {
            session.limit_groups(&limits).await;
        }
        Self(session)
    }

    async fn enqueue(&self, items: &[Bytes]) {
        let grouped = |item: &Bytes| {
            let group = number_of(item) % GROUPS;
            let options = Enqueue::new().with_group(group.to_be_bytes());
            (item.clone(), options)
        };
        let items: Vec<_> = items.iter().map(grouped).collect();
        self.0.enqueue_with(&items).await;
    }

    async fn pop(&self) -> Option<Bytes> {
        self.0.pop().await
    }
}
