//! The high-contention queue with items of keys.

use std::time::Duration;

use hc_dequeue::{Enqueue, KeyLimits, MAX_RATE_PER_SECOND, Rate};
use keyspace::Bytes;

use super::{Contender, HighContention, Site, number_of};

/// More starts than a benchmark has.
const MANY: Rate = Rate::new(MAX_RATE_PER_SECOND, Duration::from_secs(1)).with_burst(u32::MAX);

/// The `LIMIT` that stands for a rate which keeps no item waiting.
pub const RATED: u32 = u32::MAX;

/// A session of a queue whose items have keys. A `LIMIT` of zero stands for none, and one of 1 for an ordered key.
#[derive(Debug)]
pub struct Keyed<const ACKNOWLEDGES: bool, const KEYS: u64, const LIMIT: u32, const WEIGHT: u32>(
    HighContention<ACKNOWLEDGES>,
);

impl<const ACKNOWLEDGES: bool, const KEYS: u64, const LIMIT: u32, const WEIGHT: u32> Contender
    for Keyed<ACKNOWLEDGES, KEYS, LIMIT, WEIGHT>
{
    type Site = Site;

    async fn open(site: &Site) -> Self {
        let session = HighContention::open(site).await;
        let limits = match LIMIT {
            0 => KeyLimits::new(),
            1 => KeyLimits::ordered(),
            RATED => KeyLimits::new().with_rate(MANY),
            limit => KeyLimits::new().with_limit(limit),
        };
        let limits = limits.with_weight(WEIGHT);
        // Otherwise, sessions would look at all keys again.
        if limits != KeyLimits::new() {
            session.limit_keys(&limits).await;
        }
        Self(session)
    }

    async fn enqueue(&self, items: &[Bytes]) {
        let keyed = |item: &Bytes| {
            let key = number_of(item) % KEYS;
            let options = Enqueue::new().with_key(key.to_be_bytes());
            (item.clone(), options)
        };
        let items: Vec<_> = items.iter().map(keyed).collect();
        self.0.enqueue_with(&items).await;
    }

    async fn pop(&self) -> Option<Bytes> {
        self.0.pop().await
    }
}
