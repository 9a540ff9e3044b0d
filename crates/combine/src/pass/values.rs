//! The second step of a pass: which keys it takes, and their values.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use futures::stream::{self, StreamExt};
use futures::{TryStreamExt, try_join};
use hc_dequeue::keyspace::error::chain;
use hc_dequeue::keyspace::names::queue_name;
use hc_dequeue::keyspace::{Bytes, Isolation, RangeQuery, StreamingMode, Transaction, visit_rows};

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::pass::log::{KeyUpdates, Portion};
use crate::record::{Current, PassState, decode_value, refuse_newer};

/// The number of keys whose values a pass reads at the same time. It limits how far they can exceed the
/// budget.
const MAX_CONCURRENT_READS: usize = 100;

/// The bytes that a key costs a transaction in addition to those of its keys and its value.
const OVERHEAD_PER_KEY: usize = 77;

/// The number of times that a transaction contains a key.
const KEYS_PER_KEY: usize = 3;

/// A key of a pass, as it was read.
#[derive(Debug)]
pub(crate) struct ReadKey {
    pub(crate) key: Bytes,
    /// The indexes of its updates in the portion. Without any, the key has waited for its report.
    pub(crate) places: Vec<usize>,
    /// The value as last reported, or the reason why it does not decode.
    pub(crate) reported: Result<Option<Bytes>, String>,
    /// The current value, if it differs from the one last reported.
    pub(crate) current: Result<Option<Current>, String>,
}

impl ReadKey {
    /// Returns the value before the updates.
    pub(crate) fn base(&self) -> Result<Option<Bytes>, String> {
        let reported = self.reported.clone()?;
        Ok(match &self.current {
            Ok(Some(current)) => current.bytes.clone(),
            Ok(None) => reported,
            Err(reason) => return Err(reason.clone()),
        })
    }
}

/// Keys that have waited for their reports.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) keys: Vec<ReadKey>,
    /// Whether there are other keys whose reports are withheld.
    pub(crate) has_withheld: bool,
    /// Whether these are all such keys, apart from those of the portion.
    pub(crate) is_whole: bool,
}

/// Returns the approximate number of transaction bytes that a key takes.
pub(crate) fn cost(key: &[u8], value_bytes: usize) -> usize {
    KEYS_PER_KEY * key.len() + value_bytes + OVERHEAD_PER_KEY
}

/// Reads the values of as many keys of a portion as a budget allows, at least one. Returns the number of
/// updates taken, which end before the first update of the next key, and the keys in the order of the
/// log.
///
/// # Conflicts
/// Reads by snapshot. The pass adds a read conflict range over the bucket's values.
pub(crate) async fn take(
    tr: &impl Transaction,
    keys: &Keys,
    portion: &Portion,
    state: &PassState,
    budget: usize,
) -> Result<(usize, Vec<ReadKey>)> {
    let groups = portion.by_key();
    let read = |group: KeyUpdates| async move {
        let largest_bytes = group.largest_bytes;
        let key = read_key(tr, keys, group.key, state.has_current).await?;
        Ok::<_, Error>((key, group.places, largest_bytes))
    };
    let mut taken = Vec::with_capacity(groups.len());
    let mut left = budget;
    let mut reads = stream::iter(groups.into_iter().map(read)).buffered(MAX_CONCURRENT_READS);
    let mut end = portion.updates.len();
    while let Some((mut key, places, largest_bytes)) = reads.try_next().await? {
        let before = key.base().ok().flatten().map_or(0, |value| value.len());
        // The new value is not known yet. Typically it is as long as the old one, or as an update.
        let bytes = cost(&key.key, before.max(largest_bytes));
        if bytes > left && !taken.is_empty() {
            end = places[0];
            break;
        }
        left = left.saturating_sub(bytes);
        key.places = places;
        taken.push(key);
    }
    for key in &mut taken {
        key.places
            .truncate(key.places.partition_point(|place| *place < end));
    }
    Ok((end, taken))
}

/// Reads keys that have waited for their reports and are not in `but`, up to `limit` keys, or up to the
/// key with which they reach `bytes`. `turn` determines with which key it begins.
///
/// # Conflicts
/// As [`take`].
pub(crate) async fn waiting(
    tr: &impl Transaction,
    keys: &Keys,
    bucket: Bucket,
    but: &[ReadKey],
    turn: u64,
    (limit, bytes): (usize, usize),
) -> Result<Waiting> {
    let but: BTreeSet<&[u8]> = but.iter().map(|key| &*key.key).collect();
    let mut waiting = Waiting {
        is_whole: true,
        ..Waiting::default()
    };
    let mut found = Vec::new();
    let mut left = bytes;
    for (begin, end) in keys.currents_in_turn(bucket, turn) {
        let query = RangeQuery::keys(begin, end).mode(StreamingMode::WantAll);
        visit_rows(tr, query, Isolation::Snapshot, |row| {
            let key = match keys.parse_current(row.key()) {
                Ok(key) => key,
                // It belongs to no key, so it must not keep those of the bucket from being reported.
                Err(error) => {
                    tracing::warn!(queue = %queue_name(&keys.queue), %bucket, error = %chain(&error), "left out a row");
                    return Ok(ControlFlow::Continue(()));
                }
            };
            if but.contains(&key[..]) {
                return Ok(ControlFlow::Continue(()));
            }
            refuse_newer(row.key(), row.value())?;
            let current = Current::decode(row.key(), &row.to_value());
            if current.as_ref().is_ok_and(|current| current.is_withheld) {
                waiting.has_withheld = true;
                return Ok(ControlFlow::Continue(()));
            }
            if found.len() == limit || left == 0 {
                waiting.is_whole = false;
                return Ok(ControlFlow::Break(()));
            }
            left = left.saturating_sub(cost(&key, row.value().len()));
            found.push((key, current.map_err(|error| error.to_string())));
            Ok::<_, Error>(ControlFlow::Continue(()))
        })
        .await?;
        if !waiting.is_whole {
            break;
        }
    }
    let read = |(key, current): (Vec<u8>, Result<Current, String>)| async move {
        let key = read_key(tr, keys, key.into(), false).await?;
        let current = current.map(Some);
        Ok::<_, Error>(ReadKey { current, ..key })
    };
    let reads = stream::iter(found.into_iter().map(read)).buffered(MAX_CONCURRENT_READS);
    waiting.keys = reads.try_collect().await?;
    Ok(waiting)
}

/// Reads the value of a key as last reported and, if there may be one, its current value.
async fn read_key(
    tr: &impl Transaction,
    keys: &Keys,
    key: Bytes,
    may_have_current: bool,
) -> Result<ReadKey> {
    let value_key = keys.value(&key);
    let reported = tr.get(&value_key, Isolation::Snapshot);
    let current_key = keys.current(&key);
    let stored_current = async {
        if !may_have_current {
            return Ok(None);
        }
        tr.get(&current_key, Isolation::Snapshot).await
    };
    let (stored_value, stored_current) = try_join!(reported, stored_current)?;
    // The updates of a key whose value is damaged are set aside. Those of a key whose value is of a newer
    // version must wait.
    let mut reported = Ok(None);
    if let Some(stored) = stored_value {
        refuse_newer(&value_key, &stored)?;
        reported = decode_value(&value_key, &stored).map(Some);
    }
    let mut current = Ok(None);
    if let Some(stored) = stored_current {
        refuse_newer(&current_key, &stored)?;
        current = Current::decode(&current_key, &stored).map(Some);
    }
    Ok(ReadKey {
        key,
        places: Vec::new(),
        reported: reported.map_err(|error| error.to_string()),
        current: current.map_err(|error| error.to_string()),
    })
}
