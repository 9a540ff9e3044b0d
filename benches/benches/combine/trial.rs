//! A trial: one way to add, in one setting, for a time.

use std::sync::Arc;
use std::time::Duration;

use benches::adder::{Added, Adder, BlindSets, Key, ReadModifyWrite, Staged};
use benches::contender::Site;
use benches::figures::Figures;
use benches::load::Sample;
use benches::meter::Metered;
use benches::shift::{self, Act, Work};
use benches::stage::{Stage, runtime};
use keyspace::{Environment, Subspace};

use crate::spread::Spread;

/// How many bytes a worker takes in a pass: its default.
pub(crate) const BYTES_PER_PASS: usize = 1 << 20;

/// The ways to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    BlindSets,
    ReadModifyWrite,
    Staged,
    Added,
    /// Added and combined at the same time, until nothing is left to combine.
    Settled,
}

impl Way {
    /// What the others are measured by.
    pub(crate) const YARDSTICKS: [Self; 2] = [Self::BlindSets, Self::ReadModifyWrite];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BlindSets => "blind sets",
            Self::ReadModifyWrite => "read-modify-write",
            Self::Staged => "added, in a bare transaction",
            Self::Added => "added, exactly once",
            Self::Settled => "added, combined, settled",
        }
    }
}

/// The number of writers, and the keys that they update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) writers: u64,
    pub(crate) spread: Spread,
    /// How many keys each of them adds to in one commit.
    pub(crate) keys_per_commit: usize,
    pub(crate) time: Duration,
}

/// Returns the site of a trial at a place of the store.
pub(crate) fn site(stage: &Stage, place: &Subspace) -> Site {
    Site {
        db: Metered::new(stage.db().clone()),
        root: place.clone(),
    }
}

impl Setting {
    /// Measures a way to add.
    pub(crate) fn measure(&self, way: Way, stage: &Stage) -> Figures {
        let sample = stage.on_a_clean_place(|place| {
            let site = site(stage, place);
            let runtime = runtime();
            match way {
                Way::BlindSets => runtime.block_on(self.run::<BlindSets>(&site)),
                Way::ReadModifyWrite => runtime.block_on(self.run::<ReadModifyWrite>(&site)),
                Way::Staged => runtime.block_on(self.run::<Staged>(&site)),
                Way::Added => runtime.block_on(self.run::<Added>(&site)),
                Way::Settled => runtime.block_on(self.run_until_settled(&site)),
            }
        });
        if matches!(way, Way::Staged | Way::Added) {
            assert_eq!(sample.reading.conflicts, 0, "an addition met a conflict");
        }
        sample.into()
    }

    async fn run<A: Adder>(&self, site: &Site) -> Sample {
        let adder = Arc::new(A::open(site).await);
        let env = Environment::system();
        let before = site.db.reading();
        let burst = shift::work(&env, self.writers(&adder), self.time).await;
        let added = burst.done_in_time * self.keys_per_commit as u64;
        Sample {
            rate: added as f64 / burst.lasted.as_secs_f64(),
            took_micros: burst.took_micros,
            reading: site.db.reading() - before,
        }
    }

    /// Runs a worker that combines at the same time. The time ends when nothing is left to combine.
    async fn run_until_settled(&self, site: &Site) -> Sample {
        let queue = Arc::new(Added::open(site).await);
        let env = Environment::system();
        let worker = queue.work(BYTES_PER_PASS).await;
        let before = site.db.reading();
        let began = env.now();
        let burst = shift::work(&env, self.writers(&queue), self.time).await;
        queue.settle().await;
        let lasted = env.now() - began;
        let reading = site.db.reading() - before;
        let added = (burst.took_micros.len() * self.keys_per_commit) as u64;
        assert_eq!(queue.total().await, added);
        worker.stop().await;
        Sample {
            rate: added as f64 / lasted.as_secs_f64(),
            took_micros: burst.took_micros,
            reading,
        }
    }

    fn writers<A: Adder>(&self, adder: &Arc<A>) -> impl Iterator<Item = impl Work> {
        (0..self.writers).map(|writer| Writer {
            adder: adder.clone(),
            keys: self.spread.keys(writer),
            keys_per_commit: self.keys_per_commit,
        })
    }
}

/// A task that adds.
struct Writer<A, I> {
    adder: Arc<A>,
    keys: I,
    keys_per_commit: usize,
}

impl<A, I> Work for Writer<A, I>
where
    A: Adder,
    I: Iterator<Item = Key> + Send + 'static,
{
    async fn act(&mut self, _deadline: Duration) -> Act {
        let keys: Vec<_> = self.keys.by_ref().take(self.keys_per_commit).collect();
        self.adder.add(&keys).await;
        Act::Done
    }
}
