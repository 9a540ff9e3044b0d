//! Passes of tests, without a worker.

use std::sync::Arc;

use hc_dequeue::keyspace::Transaction;
use hc_dequeue::keyspace::codec::Codec;

use crate::bucket::Bucket;
use crate::error::Result;
use crate::pass::observer::{Change, Unobserved};
use crate::pass::typed::QueuePass;
use crate::pass::{Pass, Plan, StagedPass, stage_pass};
use crate::queue::CombineQueue;

/// A pass that is staged, and its changes, which no observer has seen.
#[derive(Debug)]
pub(super) struct TestPass<K, V> {
    pub(super) staged: StagedPass,
    pub(super) changes: Vec<Change<K, V>>,
}

impl<K, V> TestPass<K, V> {
    pub(super) fn pass(&self) -> Pass {
        self.staged.pass
    }
}

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Stages a pass over a bucket.
    pub(super) async fn stage_pass(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
        plan: &Plan,
    ) -> Result<TestPass<K, V>> {
        let mut typed = QueuePass::new(self.clone(), Arc::new(Unobserved));
        let staged = stage_pass(tr, &self.keys, bucket, plan, &mut typed).await?;
        Ok(TestPass {
            staged,
            changes: typed.changes,
        })
    }
}
