//! What code warns of in its log.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Awaits a future. Returns its output, and the warnings and errors that it has logged, each with all of its fields.
/// What other tasks log is not among them.
pub fn with_warnings<F: Future>(future: F) -> impl Future<Output = (F::Output, Vec<String>)> {
    // The box keeps the test's own future small.
    let future = Box::pin(future);
    async move {
        let log = Warnings::default();
        let output = future.with_subscriber(log.clone()).await;
        let warnings = std::mem::take(&mut *log.0.lock());
        (output, warnings)
    }
}

#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

/// The fields of an event.
#[derive(Default)]
struct EventFields(Vec<String>);

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push(format!("{field}={value:?}"));
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = EventFields::default();
        event.record(&mut fields);
        fields.0.sort();
        self.0.lock().push(fields.0.join(", "));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
