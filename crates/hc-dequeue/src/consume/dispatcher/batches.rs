//! Looks for batches that are complete, and ends them.

use super::Dispatcher;
use crate::batches::end::finish_batches;

impl Dispatcher {
    /// Ends batches that are complete.
    pub(super) async fn finish_batches(&mut self) {
        let after = self.batch_timer.begin();
        let keys = self.keys();
        let after = after.as_deref();
        let trusts_clock = self.member.trusts_clock();
        let settings = &*self.settings;
        let finish =
            |tr| async move { finish_batches(&tr, keys, settings, after, trusts_clock).await };
        let finished = match self.runner.run(finish).await {
            Ok(finished) => finished,
            Err(error) => {
                let now = self.now();
                self.batch_timer.failed(now);
                return self.note(Err(error));
            }
        };
        let count = finished.batches as u64;
        self.shared.metrics.batches_finished.increment(count);
        let now = self.now();
        if let Some(unreadable) = self.batch_timer.ended(now, finished) {
            tracing::warn!(
                queue = %self.shared.keys.name,
                batches = unreadable,
                "batches do not decode: a newer version may end them"
            );
        }
    }
}
