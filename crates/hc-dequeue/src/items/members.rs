//! The index of the members of batches: which items each batch has, or has had.
//!
//! The row of a member is written when the item becomes one. Nothing touches it when the item ends, becomes a dead
//! letter and leaves, or is redriven: it is cleared together with the batch, or when the ended batch is no longer kept.
//! Items without a batch have none.

use microqueue::keyspace::{MutationOp, Transaction};
use microqueue::{ItemId, StagedId};

use crate::items::batch::BatchMember;
use crate::items::changes::Changes;
use crate::items::keys::Keys;

/// Stages that an item is a new member of a batch, if it has one.
pub(crate) fn add_member(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
    member: Option<BatchMember>,
    changes: &mut Changes,
) {
    if let Some(member) = member {
        changes.join(member);
        tr.set(&id.key_in(&keys.members(member.batch)), b"");
    }
}

/// Stages that a new item is a member of a batch, if it has one.
pub(crate) fn add_new_member(
    tr: &impl Transaction,
    keys: &Keys,
    id: StagedId,
    member: Option<BatchMember>,
    changes: &mut Changes,
) {
    if let Some(member) = member {
        changes.join(member);
        let key = id.key_template_in(&keys.members(member.batch));
        let key = key.expect("parts of a queue are in commit order");
        tr.atomic(MutationOp::SetVersionstampedKey, &key, b"");
    }
}
