//! Dedupe ids: names under which an item is enqueued once.
//!
//! The row of an id says until when it refuses repetitions: always, while its item is there, and for the
//! queue's retention once the item is completed. Then it *expires*: sessions remove it at a heartbeat.

use microqueue::keyspace::record::millis;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{self, ConflictKind, Isolation, RangeQuery, StreamingMode, Transaction};

use crate::error::Result;
use crate::keys::Keys;
use crate::record::Record;
use crate::settings::Settings;
use crate::wall::wall_millis;

/// How many dedupe ids one transaction looks at.
const DEDUPE_IDS_PER_STEP: usize = 1_000;

/// Returns whether an item with the id is there, or was completed so lately that the id is still kept.
///
/// # Conflicts
/// Reads the id.
pub(crate) async fn is_repeated(tr: &impl Transaction, keys: &Keys, dedupe: &[u8]) -> Result<bool> {
    let key = keys.dedupe(dedupe);
    let Some(value) = tr.get(&key, Isolation::Serializable).await? else {
        return Ok(false);
    };
    let until = parse_until(&key, &value)?;
    Ok(until == 0 || wall_millis(&keys.env) < until)
}

/// Stages what becomes of an item's dedupe id when the item is completed.
pub(crate) fn retire_dedupe(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    record: &Record,
) {
    if record.dedupe.is_empty() {
        return;
    }
    let key = keys.dedupe(&record.dedupe);
    if settings.dedupe_retention.is_zero() {
        tr.clear(&key);
    } else {
        let until = wall_millis(&keys.env).saturating_add(millis(settings.dedupe_retention));
        tr.set(&key, &until.to_be_bytes());
    }
}

/// Removes the ids whose time is over, among the next ones after the key `after`. Returns the key of the
/// last one looked at; `None` at the end.
///
/// # Conflicts
/// Reads the ids that it removes.
pub(crate) async fn expire_dedupe(
    tr: &impl Transaction,
    keys: &Keys,
    after: Option<&[u8]>,
) -> Result<Option<Vec<u8>>> {
    let (begin, end) = keys.part("k");
    let begin = after.map_or(begin, key_after);
    let query = RangeQuery::keys(begin, end)
        .limit(DEDUPE_IDS_PER_STEP)
        .mode(StreamingMode::WantAll);
    // Safe as a snapshot read: of what is removed, each key is in a conflict range.
    let batch = tr.get_range(&query, Isolation::Snapshot).await?;
    let now = wall_millis(&keys.env);
    for row in &batch.rows {
        let until = parse_until(row.key(), row.value())?;
        if until != 0 && until <= now {
            tr.add_conflict_key(ConflictKind::Read, row.key())?;
            tr.clear(row.key());
        }
    }
    let is_last = batch.rows.len() < DEDUPE_IDS_PER_STEP && !batch.more;
    let last = batch.rows.last().filter(|_| !is_last);
    Ok(last.map(|row| row.key().to_vec()))
}

/// Returns until when a dedupe id is kept; 0 while its item is there.
fn parse_until(key: &[u8], value: &[u8]) -> Result<u64> {
    let until = value.try_into().map(u64::from_be_bytes);
    until.map_err(|_| keyspace::Error::corrupt(key, "expected a time of eight bytes").into())
}
