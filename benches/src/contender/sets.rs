//! Blind sets: the cost of a commit that reads nothing and meets no other transaction.

use keyspace::{
    Bytes, Database, Environment, OwnedTransaction, Store, Subspace, Transaction, tuple,
};

use super::{Contender, ITEM, Site};
use crate::meter::Metered;

/// The yardstick. There is no queue: taking an item sets a row of the same size.
///
/// The keys are as long as those of items and ascend as theirs do.
#[derive(Debug)]
pub struct BlindSets {
    db: Metered<Store>,
    rows: Subspace,
    env: Environment,
    /// Keeps the rows of sessions apart, including those of other processes.
    session: [u8; 2],
}

impl BlindSets {
    fn next_key(&self) -> Vec<u8> {
        let number = self.env.next_calls(1);
        let mut stamp = [0; 10];
        stamp[..8].copy_from_slice(&number.to_be_bytes());
        stamp[8..].copy_from_slice(&self.session);
        self.rows
            .pack(&(tuple::Versionstamp::complete(stamp, 0), number))
    }
}

impl Contender for BlindSets {
    type Site = Site;

    async fn open(site: &Site) -> Self {
        let env = Environment::system();
        Self {
            db: site.db.clone(),
            rows: site.queue(),
            session: env.random_bytes(),
            env,
        }
    }

    async fn enqueue(&self, items: &[Bytes]) {
        let mut tr = self.db.begin().expect("the store serves");
        for item in items {
            tr.set(&self.next_key(), item);
        }
        tr.commit().await.expect("nothing conflicts");
    }

    async fn pop(&self) -> Option<Bytes> {
        self.enqueue(&[ITEM]).await;
        Some(ITEM)
    }
}
