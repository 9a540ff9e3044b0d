//! The high-contention queue with members of a batch.

use hc_dequeue::{BatchRef, Enqueue};
use keyspace::Bytes;

use super::{Contender, HighContention, Site};

/// A session of a queue whose items are members of a batch, which it opens and never closes.
#[derive(Debug)]
pub struct Members<const ACKNOWLEDGES: bool> {
    session: HighContention<ACKNOWLEDGES>,
    batch: BatchRef,
}

impl<const ACKNOWLEDGES: bool> Contender for Members<ACKNOWLEDGES> {
    type Site = Site;

    async fn open(site: &Site) -> Self {
        let session = HighContention::open(site).await;
        let batch = session.open_batch().await;
        Self { session, batch }
    }

    async fn enqueue(&self, items: &[Bytes]) {
        let member = Enqueue::new().with_batch(&self.batch);
        let items: Vec<_> = items
            .iter()
            .map(|item| (item.clone(), member.clone()))
            .collect();
        self.session.enqueue_with(&items).await;
    }

    async fn pop(&self) -> Option<Bytes> {
        self.session.pop().await
    }
}
