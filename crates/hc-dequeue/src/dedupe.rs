//! Dedupe ids: names under which an item is enqueued once.
//!
//! While an item with a dedupe id exists, the row of the id contains the item's token, and another row contains the
//! item's id. If the item is enqueued again while a session holds it, the new item takes over the dedupe id, and the
//! first one loses its token. When an item with a token is done, both rows are cleared. If the queue retains ids, a
//! third row then contains the time until which the id is refused. After that time, the id *expires*: sessions remove
//! it at a heartbeat.

use futures::{TryFutureExt, try_join};
use microqueue::keyspace::record::millis;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    self, ConflictKind, Isolation, MutationOp, RangeQuery, StreamingMode, Transaction, Versionstamp,
};
use microqueue::{ItemId, StagedId};

use crate::error::{Error, Result};
use crate::item_ref::{id_from_bytes, id_to_bytes};
use crate::keys::Keys;
use crate::record::{Record, TOKEN_BYTES};
use crate::settings::Settings;
use crate::wall::wall_millis;

/// How many dedupe ids one transaction checks.
const DEDUPE_IDS_PER_STEP: usize = 1_000;

/// Why a dedupe id refuses an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeated {
    /// An item with the id is queued, delayed, held or dead.
    IsThere,
    /// An item with the id has ended recently, and the id is still kept.
    WasDone,
}

/// Returns why an item with the id would be refused, or `None` if it would not be.
///
/// # Conflicts
/// Reads the rows of the id.
pub(crate) async fn repeated(
    tr: &impl Transaction,
    keys: &Keys,
    dedupe: &[u8],
) -> Result<Option<Repeated>> {
    let (row, retained) = (keys.dedupe(dedupe), keys.retained(dedupe));
    let until = tr.get(&retained, Isolation::Serializable);
    let (row, until) = try_join!(tr.get(&row, Isolation::Serializable), until)?;
    if row.is_some() {
        return Ok(Some(Repeated::IsThere));
    }
    let until = until.map(|until| parse_until(&retained, &until));
    let is_kept = until
        .transpose()?
        .is_some_and(|until| wall_millis(&keys.env) < until);
    Ok(is_kept.then_some(Repeated::WasDone))
}

/// Returns the item that has a dedupe id, if there is one.
///
/// # Conflicts
/// Reads the row that names the item.
pub(crate) async fn holder(
    tr: &impl Transaction,
    keys: &Keys,
    dedupe: &[u8],
) -> Result<Option<ItemId>> {
    let key = keys.dedupe_item(dedupe);
    let get = tr.get(&key, Isolation::Serializable).map_err(Error::from);
    let Some(id) = get.await? else {
        return Ok(None);
    };
    let id = (&*id).try_into().map(id_from_bytes);
    let id = id.map_err(|_| keyspace::Error::corrupt(&key, "expected the id of an item"));
    Ok(Some(id?))
}

/// Stages that a staged item has its dedupe id, which no other item then has.
pub(crate) fn claim(
    tr: &impl Transaction,
    keys: &Keys,
    dedupe: &[u8],
    token: [u8; TOKEN_BYTES],
    staged: StagedId,
) {
    tr.set(&keys.dedupe(dedupe), &token);
    let mut id = id_to_bytes(&staged.at(Versionstamp::INCOMPLETE)).to_vec();
    // The offset of the versionstamp in the value.
    id.extend_from_slice(&0_u32.to_le_bytes());
    let key = keys.dedupe_item(dedupe);
    tr.atomic(MutationOp::SetVersionstampedValue, &key, &id);
}

/// Stages the end of an item's dedupe id when the item is done: the id is kept or released. The writes are blind.
pub(crate) fn retire_dedupe(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    id: &ItemId,
    record: &Record,
) {
    let (dedupe, Some(token)) = (&record.dedupe, record.token) else {
        return;
    };
    for (key, value) in [
        (keys.dedupe(dedupe), &token[..]),
        (keys.dedupe_item(dedupe), &id_to_bytes(id)),
    ] {
        tr.atomic(MutationOp::CompareAndClear, &key, value);
    }
    if !settings.dedupe_retention.is_zero() {
        let until = wall_millis(&keys.env).saturating_add(millis(settings.dedupe_retention));
        tr.set(&keys.retained(dedupe), &until.to_be_bytes());
    }
}

/// Removes expired ids among the next ones after the key `after`. Returns the key of the last id that was checked, or
/// `None` at the end.
///
/// # Conflicts
/// Reads the ids that it removes.
pub(crate) async fn expire_dedupe(
    tr: &impl Transaction,
    keys: &Keys,
    after: Option<&[u8]>,
) -> Result<Option<Vec<u8>>> {
    let (begin, end) = keys.part("y");
    let begin = after.map_or(begin, key_after);
    let query = RangeQuery::keys(begin, end)
        .limit(DEDUPE_IDS_PER_STEP)
        .mode(StreamingMode::WantAll);
    // Safe as a snapshot read: the key of each removed id is in a conflict range.
    let batch = tr.get_range(&query, Isolation::Snapshot).await?;
    let now = wall_millis(&keys.env);
    for row in &batch.rows {
        // The time of a row that does not decode is not known.
        if parse_until(row.key(), row.value()).is_ok_and(|until| until <= now) {
            tr.add_conflict_key(ConflictKind::Read, row.key())?;
            tr.clear(row.key());
        }
    }
    Ok(batch.next_after().map(<[u8]>::to_vec))
}

/// Returns when a dedupe id expires.
fn parse_until(key: &[u8], value: &[u8]) -> Result<u64> {
    let until = value.try_into().map(u64::from_be_bytes);
    until.map_err(|_| keyspace::Error::corrupt(key, "expected a time of eight bytes").into())
}
