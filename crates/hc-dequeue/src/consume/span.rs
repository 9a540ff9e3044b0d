//! The span in which an item is handled.

use tracing::Span;

#[cfg(feature = "opentelemetry")]
use crate::consume::delivery::Delivery;
use crate::consume::held_item::HeldItem;
#[cfg(feature = "opentelemetry")]
use crate::items::trace_context::bridge;

impl HeldItem {
    /// Returns a span for the handler of the item.
    pub(crate) fn handler_span(&self) -> Span {
        let span = tracing::info_span!(
            "handler",
            queue = self.queue_name(),
            item = %self.item_ref(),
            kind = self.record.kind.get(),
            attempt = self.attempt(),
        );
        #[cfg(feature = "opentelemetry")]
        self.continue_trace(&span);
        span
    }

    #[cfg(feature = "opentelemetry")]
    fn continue_trace(&self, span: &Span) {
        if let Some(context) = self.trace_context() {
            bridge::continue_trace(span, &context, self.attempt() == 1);
        }
    }
}

#[cfg(feature = "opentelemetry")]
impl<T> Delivery<T> {
    /// Makes a span part of the trace in which the item was enqueued. On the item's first [attempt](Self::attempt),
    /// the span of the enqueue becomes the parent of `span`; on later attempts, `span` links to it. Handlers of a
    /// [`Worker`](crate::Worker) run in a span for which this was done.
    ///
    /// The span can only get a parent before it has been entered; after that, it gets a link. The call does nothing
    /// if the item has no trace context or the span's subscriber has no layer of `tracing-opentelemetry`.
    ///
    /// ```
    /// use hc_dequeue::Delivery;
    /// use tracing::Instrument;
    ///
    /// async fn handle(delivery: &Delivery<String>) {
    ///     let span = tracing::info_span!("resize");
    ///     delivery.continue_trace(&span);
    ///     async { /* .. */ }.instrument(span).await;
    /// }
    /// ```
    pub fn continue_trace(&self, span: &Span) {
        self.item().continue_trace(span);
    }
}
