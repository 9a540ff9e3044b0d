//! Ways out of a session's hands: where items go that it holds no longer.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use microqueue::ItemId;
use microqueue::keyspace::Transaction;

use crate::error::Result;
use crate::keys::{Counter, Keys};
use crate::record::Record;
use crate::registry::fulfill::complete;
use crate::registry::{BYTES_PER_FULFILLMENT, SessionContext};
use crate::settings::Settings;

/// Where an item goes that was held and not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GiveBack {
    /// Back to its place in the queue.
    Now,
    /// There, as if it had not been granted: it was not handed out, or its consumer shuts down.
    Uncounted,
    /// There, at this wall time in milliseconds.
    At(u64),
    /// There at this wall time, as if it had not been granted.
    Snoozed(u64),
    /// To the dead letters.
    Dead,
    /// Out of the queue: it is done.
    Completed,
}

impl GiveBack {
    /// Returns whether the grant is one of the item's attempts, whose number is limited.
    fn counts(self) -> bool {
        !matches!(self, Self::Uncounted | Self::Snoozed(_))
    }
}

/// An item that goes back, by its grant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Return {
    pub(crate) id: ItemId,
    pub(crate) grant: u64,
    pub(crate) how: GiveBack,
}

/// How many items to be given back are read at the same time.
const RETURNS_AT_ONCE: usize = 32;

/// Stages that items which a session holds by these grants go where they go, the first of them as far
/// as fits a transaction. Returns for each whether it does.
///
/// # Conflicts
/// Reads each item.
pub(crate) async fn give_back<T>(
    tr: &impl Transaction,
    context: SessionContext<'_, T>,
    returns: &[Return],
) -> Result<Vec<bool>> {
    let (keys, settings) = (context.keys, context.settings);
    let held = &keys.held(context.session);
    let mut given = Vec::with_capacity(returns.len());
    let mut is_back = false;
    let mut met = BTreeSet::new();
    let mut bytes = 0;
    for returns in returns.chunks(RETURNS_AT_ONCE) {
        if bytes >= BYTES_PER_FULFILLMENT {
            break;
        }
        let records = returns.iter().map(|item| held.get(tr, &item.id));
        let records = try_join_all(records).await?;
        for (item, record) in returns.iter().zip(records) {
            // An item may be named twice: its time was over as it was dropped. The first word counts.
            let is_first = met.insert(item.id);
            let record = record.filter(|record| is_first && record.grant == item.grant);
            given.push(record.is_some());
            if let Some(record) = record {
                held.remove(tr, &item.id)?;
                put(tr, keys, settings, &item.id, &record, item.how)?;
                keys.count(tr, Counter::Held, -1);
                is_back |= item.how != GiveBack::Completed;
                bytes += record.payload.len();
            }
        }
    }
    if is_back {
        keys.wake_all(tr);
    }
    Ok(given)
}

/// Stages an item that no session holds any more at the place where it goes, if it goes anywhere.
pub(crate) fn put(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    id: &ItemId,
    record: &Record,
    how: GiveBack,
) -> Result<()> {
    if how == GiveBack::Completed {
        complete(tr, keys, settings, record);
        return Ok(());
    }
    let mut record = record.clone();
    if !how.counts() {
        record.attempts = record.attempts.saturating_sub(1);
    }
    let was_last = how.counts() && record.attempts >= settings.max_attempts;
    let is_dead = how == GiveBack::Dead || was_last;
    let counter = match how {
        _ if is_dead => {
            keys.dead.insert(tr, id, &record)?;
            Counter::Dead
        }
        GiveBack::At(ready) | GiveBack::Snoozed(ready) => {
            keys.delayed(ready).insert(tr, id, &record)?;
            Counter::Delayed
        }
        GiveBack::Now | GiveBack::Uncounted | GiveBack::Dead | GiveBack::Completed => {
            keys.items.insert(tr, id, &record)?;
            Counter::Queued
        }
    };
    keys.count(tr, counter, 1);
    Ok(())
}
