//! A comparison in rounds that alternate.

use std::future::Future;

use benches::statistics::median;
use benches::{processor_time, run_tasks};

use crate::cluster::Cluster;

/// What an operation took, on average over a round.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    /// Processor time of this process, in microseconds: the tasks' and the network thread's.
    pub(crate) cpu_micros: f64,
    /// Time from the first operation of the round to the last, in microseconds, by their number.
    pub(crate) wall_micros: f64,
}

/// How much is run.
#[derive(Clone, Copy)]
pub(crate) struct Transactions {
    pub(crate) rounds: usize,
    pub(crate) tasks: usize,
    /// How many transactions the tasks of a round run, together.
    pub(crate) transactions: u64,
    pub(crate) operations_per_transaction: u64,
}

/// What an operation of the yardstick and one of the subject took in a round.
pub(crate) type Pair = [Cost; 2];

impl Transactions {
    /// Runs rounds of a yardstick and of a subject in turn, after one of each that does not count.
    /// The two sides take turns to begin, so that neither always runs after the other's work.
    pub(crate) fn compare<A, B, FutA, FutB>(
        self,
        cluster: &Cluster,
        yardstick: &A,
        subject: &B,
    ) -> Vec<Pair>
    where
        A: Fn(u64) -> FutA + Clone + Send + 'static,
        B: Fn(u64) -> FutB + Clone + Send + 'static,
        FutA: Future<Output = ()> + Send,
        FutB: Future<Output = ()> + Send,
    {
        let rounds = (0..=self.rounds).map(|round| {
            if round % 2 == 0 {
                let yardstick = self.round(cluster, yardstick);
                [yardstick, self.round(cluster, subject)]
            } else {
                let subject = self.round(cluster, subject);
                [self.round(cluster, yardstick), subject]
            }
        });
        rounds.skip(1).collect()
    }

    fn round<F, Fut>(self, cluster: &Cluster, transaction: &F) -> Cost
    where
        F: Fn(u64) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = ()> + Send,
    {
        let before = processor_time();
        let run = run_tasks(
            &cluster.env,
            self.tasks,
            self.transactions,
            transaction.clone(),
        );
        let wall = cluster.runtime.block_on(run);
        let cpu = processor_time() - before;
        let operations = (self.transactions * self.operations_per_transaction) as f64;
        Cost {
            cpu_micros: cpu.as_secs_f64() * 1e6 / operations,
            wall_micros: wall.as_secs_f64() * 1e6 / operations,
        }
    }
}

/// Returns the median over the rounds of a figure of the yardstick, and that of the subject.
pub(crate) fn medians(pairs: &[Pair], figure: impl Fn(&Cost) -> f64) -> [f64; 2] {
    [0, 1].map(|side| median(pairs.iter().map(|pair| figure(&pair[side]))))
}

/// Returns the median over the rounds of the subject's figure in yardsticks.
pub(crate) fn median_ratio(pairs: &[Pair], figure: impl Fn(&Cost) -> f64) -> f64 {
    let ratios = pairs
        .iter()
        .map(|[yardstick, subject]| figure(subject) / figure(yardstick));
    median(ratios)
}
