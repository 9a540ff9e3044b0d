//! Returns items that a session no longer holds to the places where they belong.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::try_join_all;
use microqueue::ItemId;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::{Bytes, Environment, Transaction};

use crate::items::MAX_STEP_BYTES;
use crate::items::changes::Changes;
use crate::items::death::{DeadLetter, stage_death};
use crate::items::end::{Ending, Rules, end};
use crate::items::error::{Error, Result, skip_corrupt};
use crate::items::group_limits::KnownLimits;
use crate::items::keys::Keys;
use crate::items::part::Counter;
use crate::items::places::{Destination, put_in};
use crate::items::record::{End, Record, Reserve, StoredFailure};
use crate::items::settings::Settings;
use crate::lanes::settle::give_token_back;
use crate::options::Backoff;
use crate::protocol::SessionContext;
use crate::session::wall::wall_millis;

/// What happens to an item that a session no longer holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GiveBack {
    /// It is done, with a result, and leaves the queue.
    Completed(Bytes),
    /// It goes back at once as if it had not been granted, because it was not handed out.
    Unused,
    /// It goes back without a counted attempt: it was snoozed, or its consumer is shutting down.
    Returned(When),
    /// It has failed. This counts as an attempt.
    Failed(When),
    /// It does not decode, so that no handler got it. Otherwise as if it had failed.
    Undecodable(When),
    /// It goes back because the session that held it died.
    Died,
    /// It becomes a dead letter.
    Discarded,
}

impl GiveBack {
    /// Returns whether the item leaves the queue.
    pub(crate) fn ends(&self) -> bool {
        matches!(self, Self::Completed(_))
    }

    /// Returns whether the item may be granted at once, before others.
    pub(crate) fn is_granted_next(&self) -> bool {
        match self {
            Self::Unused | Self::Died => true,
            Self::Returned(when) | Self::Failed(when) | Self::Undecodable(when) => {
                *when == When::Now
            }
            Self::Completed(_) | Self::Discarded => false,
        }
    }
}

/// When an item that goes back may be granted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// At once, at its place in the queue.
    Now,
    /// At this wall time in milliseconds.
    At(u64),
    /// After a wait that grows with the item's failures.
    Later(Backoff),
}

/// An item to give back, identified by the number of its delivery.
#[derive(Debug, Clone)]
pub(crate) struct Return {
    pub(crate) id: ItemId,
    pub(crate) delivery: u64,
    pub(crate) how: GiveBack,
    /// The reason, if one is to be stored.
    pub(crate) reason: Option<Arc<str>>,
}

/// The result of giving an item back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GivenBack {
    /// It went where it belongs.
    Accepted,
    /// It became a dead letter.
    Dead(DeadLetter),
    /// It had been cancelled, and left the queue.
    Cancelled,
    /// The session no longer holds it by this delivery.
    Lost,
    /// Its record does not decode: the session holds it until it ends.
    Unreadable,
}

/// The largest number of items that are read at the same time.
const MAX_CONCURRENT_READS: usize = 32;

/// Stages the return of items that a session holds by these deliveries: as many of the first ones as fit in a
/// transaction. Returns the result for each of these, and the changes that the caller must stage.
///
/// # Conflicts
/// Reads each item and, of those that have slots, the limits.
pub(crate) async fn give_back(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    returns: &[Return],
) -> Result<(Vec<GivenBack>, Changes)> {
    let keys = context.keys;
    let held = &keys.held(context.session);
    let mut given = Vec::with_capacity(returns.len());
    let mut changes = Changes::default();
    let mut limits = KnownLimits::default();
    let mut met = BTreeSet::new();
    let mut bytes = 0;
    for returns in returns.chunks(MAX_CONCURRENT_READS) {
        if bytes >= MAX_STEP_BYTES {
            break;
        }
        let records = returns.iter().map(|item| async move {
            let record = held.get(tr, &item.id).await;
            skip_corrupt(record.map_err(Error::from))
        });
        let records = try_join_all(records).await?;
        let readable = records.iter().flatten().flatten();
        limits.read(tr, keys, readable).await?;
        for (item, record) in returns.iter().zip(records) {
            let Some(record) = record else {
                given.push(GivenBack::Unreadable);
                continue;
            };
            // An item may appear twice, if its time limit passed while it was dropped. The first entry counts.
            let is_first = met.insert(item.id);
            let record = record.filter(|record| is_first && record.deliveries == item.delivery);
            let Some(record) = record else {
                given.push(GivenBack::Lost);
                continue;
            };
            let was_cancelled = record.cancelled_millis != 0;
            // It was read serializably.
            tr.clear(&item.id.key_in(held.subspace()));
            changes.add(Counter::Held, -1);
            bytes += record.payload.len();
            let back = Back {
                id: &item.id,
                how: &item.how,
                reason: item.reason.as_deref(),
            };
            let rules = context.rules(&limits);
            let dead = back.put(tr, keys, rules, record, &mut changes).await?;
            given.push(match dead {
                _ if was_cancelled => GivenBack::Cancelled,
                Some(letter) => GivenBack::Dead(letter),
                None => GivenBack::Accepted,
            });
        }
    }
    Ok((given, changes))
}

/// An item that no session holds any more.
pub(super) struct Back<'a> {
    pub(super) id: &'a ItemId,
    pub(super) how: &'a GiveBack,
    pub(super) reason: Option<&'a str>,
}

impl Back<'_> {
    /// Stages the item at the place where it belongs, if it stays in the queue. An item that no handler got gives its
    /// token back. One that becomes a dead letter, which is returned, also goes into the queue of deaths.
    ///
    /// # Conflicts
    /// As [`give_token_back`].
    pub(super) async fn put(
        &self,
        tr: &impl Transaction,
        keys: &Keys,
        rules: Rules<'_>,
        mut record: Record,
        changes: &mut Changes,
    ) -> Result<Option<DeadLetter>> {
        let Self { id, how, reason } = *self;
        // Items that have taken tokens are not taken ahead, so such an item of a reserve was not handed out.
        let is_unseen = matches!(how, GiveBack::Unused | GiveBack::Undecodable(_))
            || record.reserve != Reserve::Out;
        if is_unseen {
            let limits = rules.limits.of(&record.group);
            give_token_back(tr, keys, &record, limits, changes).await?;
        }
        record.spent = None;
        let ended = match how {
            _ if record.cancelled_millis != 0 => Some((End::Cancelled, Bytes::new())),
            GiveBack::Completed(result) => Some((End::Completed, result.clone())),
            _ => None,
        };
        if let Some((how, result)) = ended {
            let ending = Ending {
                id,
                record: &record,
                how,
                result,
            };
            end(tr, keys, rules, ending, changes)?;
            return Ok(None);
        }
        let destination = judge(&mut record, how, reason, rules.settings, &keys.env);
        let limits = rules.limits.of(&record.group);
        let keeps_slot = match destination {
            Destination::Dead => limits.dead_letters_block(),
            _ => limits.is_until_end(),
        };
        if !keeps_slot {
            changes.free_slot(&mut record, rules.limits);
        }
        let mut dead = None;
        if destination == Destination::Dead {
            let letter = DeadLetter::new(*id, &record);
            if let Some(deaths) = rules.settings.deaths() {
                stage_death(tr, keys, deaths, &letter, &record).await?;
            }
            dead = Some(letter);
        }
        put_in(tr, keys, id, record, destination, changes)?;
        Ok(dead)
    }
}

/// Counts the return in the record, and decides where the item goes.
fn judge(
    record: &mut Record,
    how: &GiveBack,
    reason: Option<&str>,
    settings: &Settings,
    env: &Environment,
) -> Destination {
    let now = wall_millis(env);
    let limits = settings.limits_of(record);
    let reserve = record.reserve;
    if reserve == Reserve::In {
        record.reserve = Reserve::Out;
    }
    let (when, reason) = match how {
        GiveBack::Completed(_) => (When::Now, None),
        GiveBack::Unused => {
            record.uncounted_deliveries += 1;
            return Destination::Back;
        }
        GiveBack::Returned(when) => (*when, reason),
        GiveBack::Failed(when) | GiveBack::Undecodable(when) => {
            record.attempts += 1;
            (*when, Some(reason.unwrap_or("it was given back")))
        }
        GiveBack::Died => {
            record.reserve = Reserve::Barred;
            if reserve != Reserve::Out {
                // It may not have been handed out, and then the death has another cause.
                return Destination::Queued;
            }
            record.deaths += 1;
            let when = match record.deaths {
                0..SCATTERED_FROM => When::Now,
                deaths => When::At(now.saturating_add(scattered(deaths, settings, env))),
            };
            (when, Some("the session that held it has died"))
        }
        GiveBack::Discarded => (When::Now, Some(reason.unwrap_or("it was discarded"))),
    };
    if let Some(reason) = reason {
        record.failure = Some(StoredFailure::new(now, reason));
    }
    let costs = [
        (record.attempts, limits.attempts),
        (record.deaths, limits.deaths),
    ];
    if *how == GiveBack::Discarded || costs.into_iter().any(|(cost, limit)| cost >= limit.into()) {
        return Destination::Dead;
    }
    if record.recent_deliveries() >= limits.deliveries.into() {
        // Give the limit as the reason, since the other counters may be zero.
        record.failure = Some(StoredFailure::new(now, "it was granted too often"));
        return Destination::Dead;
    }
    match when {
        When::Now => Destination::Queued,
        When::At(ready) => Destination::Delayed(ready),
        When::Later(backoff) => {
            let failures = u32::try_from(record.attempts).unwrap_or(u32::MAX);
            let wait = millis(backoff.after(failures, env));
            Destination::Delayed(now.saturating_add(wait))
        }
    }
}

/// From which death on items come back at random times, so that an item that kills its process meets others less
/// often.
const SCATTERED_FROM: u64 = 2;

/// Returns after how many milliseconds an item comes back after a death of its session: at random, within twice the
/// lease at first, and within twice as long after each further death.
fn scattered(deaths: u64, settings: &Settings, env: &Environment) -> u64 {
    let doublings = u32::try_from(deaths.saturating_sub(1)).unwrap_or(u32::MAX);
    let max_wait = settings.lease.saturating_mul(1 << doublings.min(10));
    millis(max_wait.mul_f64(env.random_unit()))
}
