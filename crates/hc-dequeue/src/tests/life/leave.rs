//! What handlers leave in their items, and rules of it that are broken.

use std::sync::Arc;

use microqueue::keyspace::{Isolation, MutationOp, Subspace, Transaction, Tx};

use super::STEP_NAMES;
use super::model::Said;
use super::program::Left;
use super::world::LifeWorld;
use crate::consume::delivery::Delivery;
use crate::consume::held_item::HandedOut;
use crate::items::error::{Error, Result};
use crate::items::record::Checkpoint;
use crate::items::value::Value;
use crate::session::SessionId;
use crate::tests::held::held_item;

/// The total of all progress.
pub(super) const TOTAL: u64 = 100;

/// A broken rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// An older delivery may leave something.
    OlderDelivery,
    /// A step is recorded in a transaction of its own, before which its process dies.
    RecordedApart,
    /// An item comes back with the record that its session remembers.
    RememberedRecord,
    /// Sessions take items of any kind, and give those back as failed that they do not know.
    UnknownKindCounted,
}

impl Bug {
    pub(super) const ALL: [Self; 4] = [
        Self::OlderDelivery,
        Self::RecordedApart,
        Self::RememberedRecord,
        Self::UnknownKindCounted,
    ];
}

/// Returns the key that counts the steps of an item that have run.
fn effects(item: usize) -> Vec<u8> {
    Subspace::from("effects").pack(&(item as u64))
}

impl LifeWorld {
    /// Returns the present delivery of an item, or an earlier one, as the dispatcher would have made it.
    pub(super) async fn delivery(&self, item: usize, is_late: bool) -> Result<Delivery<u64>> {
        let held_by = self.held_by(item, is_late).await?;
        let id = self.items[item].id();
        let item = held_item(&self.runner, &self.queue, id, held_by);
        let handed_out = HandedOut {
            item: Arc::new(item),
            value: Value::new(0_u64),
        };
        Ok(Delivery::receive(handed_out).expect("it was not taken back"))
    }

    pub(super) async fn leave_in(&self, item: usize, what: Left, is_late: bool) -> Result<Said> {
        let is_refused = is_late && self.bug != Some(Bug::OlderDelivery);
        let delivery = self.delivery(item, is_refused).await?;
        let effects = &effects(item);
        let take_effect = |tr: &Tx<_>| tr.atomic(MutationOp::Add, effects, &1_u64.to_le_bytes());
        let left = match what {
            Left::Checkpoint(byte) => {
                let own = &[byte][usize::from(byte == 0)..];
                let set = async |tr| delivery.set_checkpoint(&tr, own).await;
                self.runner.run(set).await.map(|()| None)
            }
            Left::Progress(done) => {
                let set = async |tr| delivery.set_progress(&tr, done, TOTAL, "on it").await;
                self.runner.run(set).await.map(|()| None)
            }
            Left::Step(_, value) if self.bug == Some(Bug::RecordedApart) => {
                let step = async |tr| {
                    take_effect(&tr);
                    Ok::<_, Error>(())
                };
                self.runner.run(step).await.map(|()| Some(value))
            }
            Left::Step(name, value) => {
                let step = async |tr| {
                    take_effect(&tr);
                    Ok(value)
                };
                delivery.step(STEP_NAMES[name], step).await.map(Some)
            }
        };
        match left {
            Ok(result) => Ok(Said::Left(result)),
            Err(Error::DeliveryLost { .. } | Error::Cancelled { .. }) => Ok(Said::Refused),
            Err(error) => Err(error),
        }
    }

    /// Returns how often a step of an item has run.
    pub(super) async fn effects(&self, item: usize) -> Result<u64> {
        let key = &effects(item);
        let read = async |tr: Tx<_>| tr.get(key, Isolation::Snapshot).await;
        let count = self.runner.run(read).await?;
        Ok(count.map_or(0, |count| {
            u64::from_le_bytes(count[..].try_into().expect("it has eight bytes"))
        }))
    }

    /// Writes the record of a held item as it was when the item was granted.
    pub(super) async fn forget_what_was_left(&self, item: usize, session: SessionId) -> Result<()> {
        let held = &self.queue.keys.held(session);
        let id = &self.items[item].id();
        let forget = async |tr| {
            if let Some(mut record) = held.get(&tr, id).await? {
                record.checkpoint = Checkpoint::default();
                held.insert(&tr, id, &record)?;
            }
            Ok::<_, Error>(())
        };
        self.runner.run(forget).await
    }
}
