//! Ways out of a session's hands: where items go that it holds no longer.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::try_join_all;
use microqueue::ItemId;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::{Bytes, Environment, Transaction};

use crate::done::end;
use crate::error::Result;
use crate::keys::{Counter, Keys};
use crate::record::{End, Record, StoredFailure};
use crate::registry::{BYTES_PER_FULFILLMENT, SessionContext};
use crate::settings::Settings;
use crate::wall::wall_millis;

/// What becomes of an item that a session holds no longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GiveBack {
    /// It is done, with a result, and leaves the queue.
    Completed(Bytes),
    /// It goes back, and this costs it nothing: it was not handed out, it was put off, or its consumer shuts
    /// down.
    Returned(When),
    /// It has failed: this was one of its attempts.
    Failed(When),
    /// It goes back: the session that held it has died.
    Died,
    /// It becomes a dead letter.
    Rejected,
}

impl GiveBack {
    /// Returns whether the item leaves the queue.
    pub(crate) fn ends(&self) -> bool {
        matches!(self, Self::Completed(_))
    }
}

/// When an item that goes back may be granted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// At once, at its place in the queue.
    Now,
    /// At this wall time in milliseconds.
    At(u64),
}

/// An item that goes back, by the number of its delivery.
#[derive(Debug, Clone)]
pub(crate) struct Return {
    pub(crate) id: ItemId,
    pub(crate) delivery: u64,
    pub(crate) how: GiveBack,
    /// Why, if that is to be kept.
    pub(crate) reason: Option<Arc<str>>,
}

/// What became of an item that was to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Given {
    /// It goes where it was to go.
    Back,
    /// It was cancelled meanwhile, and leaves the queue.
    Cancelled,
    /// The session does not hold it by this delivery any more.
    Lost,
}

/// How many items to be given back are read at the same time.
const RETURNS_AT_ONCE: usize = 32;

/// Stages that items which a session holds by these grants go where they go, the first of them as far
/// as fits a transaction. Returns what becomes of each.
///
/// # Conflicts
/// Reads each item.
pub(crate) async fn give_back<T>(
    tr: &impl Transaction,
    context: SessionContext<'_, T>,
    returns: &[Return],
) -> Result<Vec<Given>> {
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
            let record = record.filter(|record| is_first && record.deliveries == item.delivery);
            given.push(match &record {
                None => Given::Lost,
                Some(record) if record.cancelled_millis != 0 => Given::Cancelled,
                Some(_) => Given::Back,
            });
            if let Some(record) = record {
                held.remove(tr, &item.id)?;
                keys.count(tr, Counter::Held, -1);
                is_back |= !item.how.ends();
                bytes += record.payload.len();
                let reason = item.reason.as_deref();
                put(tr, keys, settings, &item.id, record, &item.how, reason)?;
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
    mut record: Record,
    how: &GiveBack,
    reason: Option<&str>,
) -> Result<()> {
    if record.cancelled_millis != 0 {
        let none = Bytes::new();
        return end(tr, keys, settings, id, &record, End::Cancelled, none);
    }
    if let GiveBack::Completed(result) = how {
        let result = result.clone();
        return end(tr, keys, settings, id, &record, End::Completed, result);
    }
    let counter = match judge(&mut record, how, reason, settings, &keys.env) {
        Place::Dead => {
            keys.dead.insert(tr, id, &record)?;
            Counter::Dead
        }
        Place::Delayed(ready) => {
            keys.delay(tr, ready, id, &record)?;
            Counter::Delayed
        }
        Place::Queued => {
            keys.items.insert(tr, id, &record)?;
            Counter::Queued
        }
    };
    keys.count(tr, counter, 1);
    Ok(())
}

/// Where an item goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Queued,
    Delayed(u64),
    Dead,
}

/// Notes in a record what it has cost the item to come back, and decides where the item goes.
fn judge(
    record: &mut Record,
    how: &GiveBack,
    reason: Option<&str>,
    settings: &Settings,
    env: &Environment,
) -> Place {
    let now = wall_millis(env);
    let limits = settings.limits_of(record);
    let (when, reason) = match how {
        GiveBack::Completed(_) => (When::Now, None),
        GiveBack::Returned(when) => (*when, reason),
        GiveBack::Failed(when) => {
            record.attempts += 1;
            (*when, Some(reason.unwrap_or("it was given back")))
        }
        GiveBack::Died => {
            record.deaths += 1;
            let when = match record.deaths {
                0..APART_FROM => When::Now,
                deaths => When::At(now.saturating_add(apart(deaths, settings, env))),
            };
            (when, Some("the session that held it has died"))
        }
        GiveBack::Rejected => (When::Now, Some(reason.unwrap_or("it was rejected"))),
    };
    if let Some(reason) = reason {
        record.failure = Some(StoredFailure::new(now, reason));
    }
    let costs = [
        (record.attempts, limits.attempts),
        (record.deaths, limits.deaths),
    ];
    if *how == GiveBack::Rejected || costs.into_iter().any(|(cost, limit)| cost >= limit.into()) {
        return Place::Dead;
    }
    if record.deliveries >= limits.deliveries.into() {
        // Nothing else may have counted.
        record.failure = Some(StoredFailure::new(now, "it was granted too often"));
        return Place::Dead;
    }
    match when {
        When::Now => Place::Queued,
        When::At(ready) => Place::Delayed(ready),
    }
}

/// From which death on items come back at times of their own, so that one which kills its process is alone at
/// last.
const APART_FROM: u64 = 2;

/// Returns after how many milliseconds an item comes back that sessions have died with: at random, within
/// twice the lease at first, and twice as long each time.
fn apart(deaths: u64, settings: &Settings, env: &Environment) -> u64 {
    let doublings = u32::try_from(deaths.saturating_sub(1)).unwrap_or(u32::MAX);
    let most = settings.lease.saturating_mul(1 << doublings.min(10));
    millis(most.mul_f64(env.random_unit()))
}
