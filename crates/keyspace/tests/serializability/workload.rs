//! Random transactions on a few keys, so that most of them touch the same keys.

use std::time::Duration;

use keyspace::tuple::Versionstamp as TupleVersionstamp;
use keyspace::{
    Code, Database, DatabaseOption, Isolation, KeySelector, MutationOp, OwnedTransaction,
    RangeQuery, Result, StreamingMode, Subspace, Transaction, read_all,
};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

pub(crate) const TASKS: usize = 8;
pub(crate) const TRANSACTIONS_PER_TASK: usize = 40;

/// The number of keys that are not versionstamped.
const KEY_COUNT: u8 = 12;
const KEYS: &[u8] = b"k/";
const KEYS_END: &[u8] = b"k0";

/// The operations of the tasks, without their timing.
#[derive(Clone, Copy)]
pub(crate) struct Workload {
    pub(crate) seed: u64,
}

impl Workload {
    /// Runs all tasks to the end.
    pub(crate) async fn run<D: Database>(self, db: &D) {
        // Each wait moves the clock. With longer waits, most transactions would be too old.
        let patience = DatabaseOption::TransactionMaxRetryDelay(Duration::from_millis(100));
        db.set_option(patience).unwrap();
        let mut tasks = JoinSet::new();
        for task in 0..TASKS as u64 {
            let rng = StdRng::seed_from_u64(self.seed * TASKS as u64 + task);
            tasks.spawn(Task { rng, old: None }.run(db.clone()));
        }
        tasks.join_all().await;
    }
}

struct Task {
    rng: StdRng,
    /// The read version of an earlier transaction.
    old: Option<i64>,
}

impl Task {
    async fn run<D: Database>(mut self, db: D) {
        for _ in 0..TRANSACTIONS_PER_TASK {
            let mut tr = db.begin().unwrap();
            let read_only = self.rng.random_bool(0.25);
            while let Err(error) = self.attempt(&mut tr, read_only).await {
                if error.code() == Some(Code::ACCESSED_UNREADABLE) {
                    tr.reset();
                } else {
                    tr.on_error(error).await.unwrap();
                }
            }
        }
    }

    async fn attempt(&mut self, tr: &mut impl OwnedTransaction, read_only: bool) -> Result<()> {
        match self.old.take() {
            Some(version) if self.rng.random_bool(0.1) => tr.set_read_version(version),
            _ => {}
        }
        for _ in 0..self.rng.random_range(1..7) {
            if read_only || self.rng.random_bool(0.4) {
                self.read(tr).await?;
            } else {
                self.write(tr);
            }
            for _ in 0..self.rng.random_range(0..3) {
                tokio::task::yield_now().await;
            }
        }
        if read_only {
            self.old = Some(tr.read_version().await?);
        }
        tr.commit().await?;
        Ok(())
    }

    async fn read(&mut self, tr: &impl Transaction) -> Result<()> {
        let isolation = self.isolation();
        match self.rng.random_range(0..4) {
            0 => drop(tr.get(&self.key(), isolation).await?),
            1 => drop(tr.get_key(&self.selector(), isolation).await?),
            2 => {
                let query = RangeQuery::selectors(self.selector(), self.selector());
                drop(read_all(tr, self.cut(query), isolation).await?);
            }
            _ => {
                let (begin, end) = stamped().range();
                let query = self.cut(RangeQuery::keys(begin, end));
                drop(read_all(tr, query, isolation).await?);
            }
        }
        Ok(())
    }

    fn write(&mut self, tr: &impl Transaction) {
        let key = self.key();
        match self.rng.random_range(0..10) {
            0..3 => tr.set(&key, &self.value()),
            3 => tr.clear(&key),
            4 => {
                let mut bounds = [key, self.key()];
                bounds.sort();
                tr.clear_range(&bounds[0], &bounds[1]);
            }
            5 => {
                let mut param = TupleVersionstamp::incomplete(0).as_bytes().to_vec();
                param.extend([0; 4]);
                tr.atomic(MutationOp::SetVersionstampedValue, &key, &param);
            }
            6 => {
                let user_version = self.rng.random();
                let item = (TupleVersionstamp::incomplete(user_version),);
                let template = stamped().pack_with_versionstamp(&item);
                tr.atomic(MutationOp::SetVersionstampedKey, &template, &self.value());
            }
            7 if self.rng.random_bool(0.2) => {
                let (begin, end) = stamped().range();
                tr.clear_range(&begin, &end);
            }
            _ => {
                let ops = MutationOp::ALL.into_iter().filter(|op| !is_stamped(*op));
                let op = ops.choose(&mut self.rng).unwrap();
                tr.atomic(op, &key, &self.value());
            }
        }
    }

    fn isolation(&mut self) -> Isolation {
        if self.rng.random_bool(0.2) {
            Isolation::Snapshot
        } else {
            Isolation::Serializable
        }
    }

    fn key(&mut self) -> Vec<u8> {
        [KEYS, &[self.rng.random_range(0..KEY_COUNT)]].concat()
    }

    fn value(&mut self) -> Vec<u8> {
        (0..self.rng.random_range(0..4))
            .map(|_| self.rng.random_range(0..4))
            .collect()
    }

    fn selector(&mut self) -> KeySelector {
        let key = match self.rng.random_range(0..8) {
            0 => KEYS.to_vec(),
            1 => KEYS_END.to_vec(),
            _ => self.key(),
        };
        KeySelector {
            key: key.into(),
            or_equal: self.rng.random(),
            offset: self.rng.random_range(-2..4),
        }
    }

    /// Draws a limit, a direction and a size of batches.
    fn cut(&mut self, mut query: RangeQuery) -> RangeQuery {
        query.limit = self.rng.random_range(0..5);
        query.reverse = self.rng.random();
        query.mode = *[StreamingMode::Small, StreamingMode::Iterator]
            .choose(&mut self.rng)
            .unwrap();
        query
    }
}

/// The prefix of the keys that end in versionstamps.
fn stamped() -> Subspace {
    Subspace::from("stamped")
}

fn is_stamped(op: MutationOp) -> bool {
    matches!(
        op,
        MutationOp::SetVersionstampedKey | MutationOp::SetVersionstampedValue
    )
}
