//! Dedupe ids: names under which an item is enqueued once.
//!
//! While an item with a dedupe id exists, the row of the id contains the item's token, and another row contains the
//! item's id. If the item is enqueued again while a session holds it, the new item takes over the dedupe id, and the
//! first one loses its token. A held item that is cancelled loses its token, too.
//!
//! When an item with a token leaves the queue, both rows are cleared. If the item was completed and the queue retains
//! ids, a third row then contains the time of the completion. The id is refused for as long after this time as the
//! stored settings say when it is enqueued again. After that, the id *expires*: sessions remove it at a heartbeat.

use futures::{TryFutureExt, try_join};
use microqueue::keyspace::record::{Fields, millis};
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    self, Bytes, ConflictKind, Isolation, MutationOp, RangeQuery, StreamingMode, Transaction,
    Versionstamp,
};
use microqueue::{ItemId, StagedId};

use crate::items::error::{Error, Result};
use crate::items::expiry::ExpiryPage;
use crate::items::item_ref::{id_from_bytes, id_to_bytes};
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::record::{End, MAX_DEDUPE_BYTES, Record, Token, group as group_of};
use crate::items::settings::Settings;
use crate::items::settings_row::stored_settings;
use crate::session::wall::wall_millis;

/// The largest number of dedupe ids that one transaction checks.
const MAX_CHECKED_DEDUPE_IDS: usize = 1_000;

/// Why a dedupe id refuses an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Repeated {
    /// An item with the id is queued, delayed, held or dead, and has this claim.
    IsThere(Claim),
    /// An item with the id was completed recently, and the id is retained.
    IsRetained,
}

/// What the row of a dedupe id contains: the token of the item that has the id, the call of its enqueue, and its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) token: Token,
    pub(crate) call: u64,
    /// Empty if the item has none.
    pub(crate) group: Bytes,
}

impl Claim {
    /// Returns the claim of an item with this token and this group.
    pub(crate) fn of(token: Token, id: &ItemId, group: Bytes) -> Self {
        let ItemId::Commit { call, .. } = *id else {
            unreachable!("parts of a queue are in commit order");
        };
        Self { token, call, group }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let call = self.call.to_be_bytes();
        [&self.token.to_bytes()[..], &call, &self.group].concat()
    }

    fn parse(key: &[u8], value: &[u8]) -> Result<Self> {
        let parse = || {
            let mut fields = Fields::new(value);
            let token = Token::parse(&mut fields)?;
            let call = fields.u64()?;
            let group = group_of(Bytes::copy_from_slice(fields.rest()))?;
            Ok(Self { token, call, group })
        };
        Ok(parse().map_err(|reason: String| keyspace::Error::corrupt(key, reason))?)
    }

    /// Returns whether this transaction has staged the item.
    pub(crate) async fn is_own(&self, tr: &impl Transaction) -> Result<bool> {
        Ok(tr.read_version().await? == self.token.read_version)
    }
}

/// Returns an error unless the dedupe id has a valid length.
pub(crate) fn check_dedupe(dedupe: &[u8]) -> Result<()> {
    if (1..=MAX_DEDUPE_BYTES).contains(&dedupe.len()) {
        return Ok(());
    }
    Err(Error::DedupeId {
        bytes: dedupe.len(),
        limit: MAX_DEDUPE_BYTES,
    })
}

/// Returns why an item with the id would be refused, or `None` if it would not be.
///
/// # Conflicts
/// Reads the rows of the id, and the settings by snapshot if the id was retained.
pub(crate) async fn repeated(
    tr: &impl Transaction,
    keys: &Keys,
    dedupe: &[u8],
) -> Result<Option<Repeated>> {
    let row = keys.dedupe(dedupe);
    let retained = keys.retained(dedupe);
    let completed = tr.get(&retained, Isolation::Serializable);
    let (row, completed) = try_join!(tr.get(&row, Isolation::Serializable), completed)?;
    if let Some(row) = row {
        let claim = Claim::parse(&keys.dedupe(dedupe), &row)?;
        return Ok(Some(Repeated::IsThere(claim)));
    }
    let Some(completed) = completed else {
        return Ok(None);
    };
    let completed = parse_completed(&retained, &completed)?;
    // Safe as a snapshot read: a change of the settings at the same time may take effect before or after this.
    let stored = stored_settings(tr, keys, Isolation::Snapshot).await?;
    if is_retained(completed, &stored.settings, wall_millis(&keys.env)) {
        return Ok(Some(Repeated::IsRetained));
    }
    Ok(None)
}

/// Returns whether an id is refused at the time `now`, if its item was completed at the time `completed`.
fn is_retained(completed: u64, settings: &Settings, now: u64) -> bool {
    let retention = millis(settings.dedupe_retention);
    retention > 0 && now < completed.saturating_add(retention)
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
    match (&*id).try_into() {
        Ok(id) => Ok(Some(id_from_bytes(id))),
        Err(_) => Err(keyspace::Error::corrupt(&key, "expected the id of an item").into()),
    }
}

/// Stages that a staged item has its dedupe id, which no other item then has.
pub(crate) fn claim(
    tr: &impl Transaction,
    keys: &Keys,
    record: &Record,
    token: Token,
    staged: StagedId,
) {
    let id = staged.at(Versionstamp::INCOMPLETE);
    let dedupe = &record.dedupe;
    let claim = Claim::of(token, &id, record.group.clone());
    tr.set(&keys.dedupe(dedupe), &claim.to_bytes());
    let mut value = id_to_bytes(&id).to_vec();
    // The offset of the versionstamp in the value.
    value.extend_from_slice(&0_u32.to_le_bytes());
    let key = keys.dedupe_item(dedupe);
    tr.atomic(MutationOp::SetVersionstampedValue, &key, &value);
}

/// Stages that an item no longer has its dedupe id. The caller must store the item without its token. The writes are
/// blind.
pub(crate) fn free_dedupe(tr: &impl Transaction, keys: &Keys, id: &ItemId, record: &Record) {
    let dedupe = &record.dedupe;
    let Some(token) = record.token else {
        return;
    };
    let claim = Claim::of(token, id, record.group.clone()).to_bytes();
    tr.atomic(MutationOp::CompareAndClear, &keys.dedupe(dedupe), &claim);
    let named = keys.dedupe_item(dedupe);
    tr.atomic(MutationOp::CompareAndClear, &named, &id_to_bytes(id));
}

/// Stages the end of an item's dedupe id when the item leaves the queue: the id of a completed item is retained if the
/// settings say so, and any other id is free. The writes are blind.
pub(super) fn end_dedupe(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    id: &ItemId,
    record: &Record,
    how: End,
) {
    free_dedupe(tr, keys, id, record);
    let is_retained = how == End::Completed && !settings.dedupe_retention.is_zero();
    if is_retained && record.token.is_some() {
        let completed = wall_millis(&keys.env);
        tr.set(&keys.retained(&record.dedupe), &completed.to_be_bytes());
    }
}

/// Removes expired ids among the next ones after the key `after`: one page.
///
/// # Conflicts
/// Reads the ids that it removes, and the settings by snapshot.
pub(crate) async fn expire_dedupe(
    tr: &impl Transaction,
    keys: &Keys,
    after: Option<&[u8]>,
) -> Result<ExpiryPage> {
    let (begin, end) = keys.part(Part::RetainedIds);
    let begin = after.map_or(begin, key_after);
    let query = RangeQuery::keys(begin, end)
        .limit(MAX_CHECKED_DEDUPE_IDS)
        .mode(StreamingMode::WantAll);
    // Safe as a snapshot read: the key of each removed id is in a conflict range.
    let batch = tr.get_range(&query, Isolation::Snapshot).await?;
    let mut page = ExpiryPage::default();
    if batch.rows.is_empty() {
        return Ok(page);
    }
    // The stored settings, since those that the session knows may be shorter. Safe as a snapshot read, as above.
    let stored = match stored_settings(tr, keys, Isolation::Snapshot).await {
        // A newer version expires ids by settings that do not decode here.
        Err(error) if error.corrupt_key().is_some() => return Ok(page),
        stored => stored?,
    };
    let now = wall_millis(&keys.env);
    for row in &batch.rows {
        // The time of a row that does not decode is not known.
        let completed = parse_completed(row.key(), row.value());
        if completed.is_ok_and(|completed| !is_retained(completed, &stored.settings, now)) {
            tr.add_conflict_key(ConflictKind::Read, row.key())?;
            tr.clear(row.key());
            page.removed += 1;
        }
    }
    page.last = batch.next_after().map(<[u8]>::to_vec);
    Ok(page)
}

/// Returns when the item of a retained dedupe id was completed.
pub(crate) fn parse_completed(key: &[u8], value: &[u8]) -> Result<u64> {
    let completed = value.try_into().map(u64::from_be_bytes);
    completed.map_err(|_| keyspace::Error::corrupt(key, "expected a time of eight bytes").into())
}
