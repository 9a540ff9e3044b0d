//! Blind sets: the cost of a commit that reads nothing and meets no other transaction.

use keyspace::{Database, Environment, OwnedTransaction, Store, Subspace, Transaction, tuple};

use super::combined::{Queue, open};
use super::{Adder, Key, ONE, encode};
use crate::contender::Site;
use crate::meter::Metered;

/// The yardstick. Nothing is counted: adding sets one row per update, with its bucket, its key and a stamp, like a log
/// of rows.
#[derive(Debug)]
pub struct BlindSets {
    db: Metered<Store>,
    /// Knows the buckets.
    queue: Queue,
    rows: Subspace,
    env: Environment,
}

impl Adder for BlindSets {
    async fn open(site: &Site) -> Self {
        let queue = open(site).await.queue;
        Self {
            db: site.db.clone(),
            queue,
            rows: site.queue().subspace(&("u", 0)),
            env: Environment::system(),
        }
    }

    async fn add(&self, keys: &[Key]) {
        let mut tr = self.db.begin().expect("the store serves");
        for key in keys {
            let number = self.env.next_calls(1);
            let mut stamp = [0; 10];
            stamp[..8].copy_from_slice(&number.to_be_bytes());
            let stamp = tuple::Versionstamp::complete(stamp, 0);
            let bucket = self.queue.bucket(key).expect("the key is short");
            let row = self.rows.pack(&(bucket.0, &encode(key)[..], stamp, number));
            tr.set(&row, &[&[1][..], &encode(&ONE)].concat());
        }
        tr.commit().await.expect("nothing conflicts");
    }
}
