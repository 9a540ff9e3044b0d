//! Checkpoints in a history: each is committed together with what it says, so that the two agree at every version.

use conformance::stores::TestStore;
use hc_dequeue::{Error, ItemRef, Place};
use keyspace::codec::MessagePack;
use keyspace::{Isolation, Transaction, Tx, typed};
use rand::seq::{IndexedRandom, IteratorRandom};

use super::Player;

/// Returns the key of the number of parts of an item that are done.
pub(super) fn parts_of(store: &TestStore, item: &ItemRef) -> Vec<u8> {
    store.root.pack(&("parts", item.to_string()))
}

/// Forgets what was done for an item that gets another value.
pub(super) fn begin_anew(tr: &impl Transaction, store: &TestStore, item: &ItemRef) {
    tr.clear(&parts_of(store, item));
}

impl Player {
    /// Does a part of the work of a delivery, which may be lost, and sets a checkpoint.
    pub(super) async fn do_part(&mut self) {
        let Some(delivery) = self.held.choose(&mut self.rng) else {
            return;
        };
        let item = delivery.item_ref();
        let key = &parts_of(&self.store, &item);
        let part = async |tr: Tx<_>| {
            let done = typed::get(&tr, &MessagePack, key, Isolation::Serializable).await?;
            let done = 1 + done.unwrap_or(0_u64);
            typed::set(&tr, &MessagePack, key, &done)?;
            delivery.set_checkpoint_as(&tr, &done).await
        };
        match self.runner.run(part).await {
            Ok(()) => {
                self.parted.insert(item);
                self.course.parts += 1;
            }
            Err(Error::DeliveryLost { .. } | Error::Cancelled { .. }) => {}
            Err(error) => panic!("seed {}: {error}", self.play.seed),
        }
    }

    /// Compares the checkpoint of an item with the number of its parts that are done.
    pub(super) async fn check_parts(&mut self) -> Result<(), String> {
        let Some(item) = self.parted.iter().choose(&mut self.rng) else {
            return Ok(());
        };
        let queue = &self.queue;
        let key = &parts_of(&self.store, item);
        let read = async |tr: Tx<_>| {
            let done: Option<u64> = typed::get(&tr, &MessagePack, key, Isolation::Snapshot).await?;
            let status = queue.status(&tr, item).await?;
            Ok::<_, Error>((done, status))
        };
        let (done, status) = self.runner.run(read).await.unwrap();
        let is_done = |place: &Place| matches!(place, Place::Done { .. });
        let Some(status) = status.filter(|status| !is_done(&status.place)) else {
            return Ok(());
        };
        let mut expected = Vec::new();
        if let Some(done) = done {
            keyspace::codec::encode(&MessagePack, &done, &mut expected).unwrap();
        }
        if status.checkpoint != expected {
            return Err(format!("{done:?} parts of {item} are done: {status:?}"));
        }
        Ok(())
    }
}
