//! Dedupe ids: names under which an item is enqueued once.
//!
//! While an item with the id is there, the row of the id holds the item's token, and another row the item's
//! id. An item that is enqueued in its place while a session holds it takes the id over: the first one loses
//! its token. Once an item with a token is done, both rows are cleared. If the queue retains ids, a third row says until when
//! the id goes on refusing items. Then it *expires*: sessions remove it at a heartbeat.

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

/// How many dedupe ids one transaction looks at.
const DEDUPE_IDS_PER_STEP: usize = 1_000;

/// Why a dedupe id refuses an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeated {
    /// An item with the id is queued, delayed, held or dead.
    IsThere,
    /// One was done so lately that the id is still kept.
    WasDone,
}

/// Returns why an item with the id would be refused. `None`: it would not.
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

/// Returns the item that has a dedupe id, if one has.
///
/// # Conflicts
/// Reads the row that names it.
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

/// Stages that an item which is staged has its dedupe id, and no other item.
pub(crate) fn claim(
    tr: &impl Transaction,
    keys: &Keys,
    dedupe: &[u8],
    token: [u8; TOKEN_BYTES],
    staged: StagedId,
) {
    tr.set(&keys.dedupe(dedupe), &token);
    let mut id = id_to_bytes(&staged.at(Versionstamp::INCOMPLETE)).to_vec();
    // Where in the value the versionstamp goes.
    id.extend_from_slice(&0_u32.to_le_bytes());
    let key = keys.dedupe_item(dedupe);
    tr.atomic(MutationOp::SetVersionstampedValue, &key, &id);
}

/// Stages what becomes of an item's dedupe id when the item is done. Writes blindly.
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

/// Removes the retained ids whose time is over, among the next ones after the key `after`. Returns the key of
/// the last one looked at; `None` at the end.
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
    // Safe as a snapshot read: of what is removed, each key is in a conflict range.
    let batch = tr.get_range(&query, Isolation::Snapshot).await?;
    let now = wall_millis(&keys.env);
    for row in &batch.rows {
        if parse_until(row.key(), row.value())? <= now {
            tr.add_conflict_key(ConflictKind::Read, row.key())?;
            tr.clear(row.key());
        }
    }
    let is_last = batch.rows.len() < DEDUPE_IDS_PER_STEP && !batch.more;
    let last = batch.rows.last().filter(|_| !is_last);
    Ok(last.map(|row| row.key().to_vec()))
}

/// Returns until when a dedupe id is kept.
fn parse_until(key: &[u8], value: &[u8]) -> Result<u64> {
    let until = value.try_into().map(u64::from_be_bytes);
    until.map_err(|_| keyspace::Error::corrupt(key, "expected a time of eight bytes").into())
}
