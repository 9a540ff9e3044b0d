//! References to items in rows of the application.

use microqueue::StagedId;
use microqueue::keyspace::limits::{END_OF_KEYSPACE, MAX_KEY_BYTES};
use microqueue::keyspace::{self, Isolation, MutationOp, Transaction, Versionstamp};

use crate::items::dedupe::{Repeated, holder, repeated};
use crate::items::error::{Error, Result};
use crate::items::item_ref::{ItemRef, STAMP_OFFSET, StagedRef};
use crate::items::keys::Keys;
use crate::queue::enqueue_options::{Enqueue, Enqueued};
use crate::queue::handle::Queue;

impl<T, C> Queue<T, C> {
    /// Returns the reference that an enqueue [with this key](Enqueue::with_ref_key) has written, or `None` if the key
    /// has no value.
    ///
    /// # Conflicts
    /// Reads the key.
    ///
    /// # Errors
    /// [`Error::ForeignRef`] if the item belongs to another queue;
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the value is no reference; [`Error::ReadAfterWrite`] in the
    /// transaction that enqueues the item.
    pub async fn ref_at(&self, tr: &impl Transaction, key: &[u8]) -> Result<Option<ItemRef>> {
        read_ref(tr, &self.keys, key).await
    }
}

async fn read_ref(tr: &impl Transaction, keys: &Keys, key: &[u8]) -> Result<Option<ItemRef>> {
    let Some(value) = tr.get(key, Isolation::Serializable).await? else {
        return Ok(None);
    };
    let item = ItemRef::from_bytes(&value)
        .map_err(|malformed| keyspace::Error::corrupt(key, malformed.to_string()))?;
    item.id_in(keys)?;
    Ok(Some(item))
}

/// Returns an error if no reference can be written under a key.
pub(super) fn check_ref_key(keys: &Keys, key: &[u8]) -> Result<()> {
    let reason = if key.len() > MAX_KEY_BYTES {
        "use at most 10,000 bytes"
    } else if key >= END_OF_KEYSPACE {
        "keys of an application are before ff"
    } else if key.starts_with(keys.queue.bytes()) {
        "this one belongs to the queue: use one of the application"
    } else {
        return Ok(());
    };
    Err(Error::RefKey { reason })
}

/// Stages the reference of an item under the key that its options name, if they name one.
///
/// # Conflicts
/// Writes the key. If the item's dedupe id was refused, reads the rows of the id.
pub(super) async fn stage_ref(
    tr: &impl Transaction,
    keys: &Keys,
    options: &Enqueue,
    enqueued: &Enqueued,
) -> Result<()> {
    let Some(key) = &options.ref_key else {
        return Ok(());
    };
    let named = match enqueued {
        Enqueued::Repeated => of_dedupe_id(tr, keys, options).await?,
        named => *named,
    };
    match named {
        Enqueued::Staged(staged) => stage_incomplete(tr, key, staged),
        Enqueued::Replaced(item) => tr.set(key, &item.to_bytes()),
        Enqueued::Repeated => {}
    }
    Ok(())
}

/// Returns the item that has the dedupe id of the options: as staged, if this transaction has enqueued it.
async fn of_dedupe_id(tr: &impl Transaction, keys: &Keys, options: &Enqueue) -> Result<Enqueued> {
    let Some(dedupe) = options.dedupe() else {
        return Ok(Enqueued::Repeated);
    };
    let Some(Repeated::IsThere(claim)) = repeated(tr, keys, dedupe).await? else {
        return Ok(Enqueued::Repeated);
    };
    if claim.is_own(tr).await? {
        return Ok(Enqueued::Staged(
            keys.staged_ref(StagedId::of_call(claim.call)),
        ));
    }
    let item = holder(tr, keys, dedupe).await?;
    Ok(item.map_or(Enqueued::Repeated, |id| {
        Enqueued::Replaced(keys.item_ref(id))
    }))
}

/// Stages a reference in which the commit fills in its versionstamp.
fn stage_incomplete(tr: &impl Transaction, key: &[u8], staged: StagedRef) {
    let mut value = staged.at(Versionstamp::INCOMPLETE).to_bytes().to_vec();
    value.extend_from_slice(&STAMP_OFFSET.to_le_bytes());
    tr.atomic(MutationOp::SetVersionstampedValue, key, &value);
}
