//! What code warns of in its log, and its errors there.

use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_global_default;
use tracing::{Event, Level, Metadata, Subscriber};

/// Awaits a future. Returns its output, and the warnings and errors that it has logged, each with all of its fields.
/// What other tasks log is not among them.
pub fn with_warnings<F: Future>(future: F) -> impl Future<Output = (F::Output, Vec<String>)> {
    // The box keeps the test's own future small.
    let future = Box::pin(future);
    async move {
        let log = RecordedLog::of(Level::WARN);
        let output = future.with_subscriber(log.clone()).await;
        let warnings = std::mem::take(&mut *log.lines.lock());
        (output, warnings)
    }
}

/// The warnings and errors of this program.
static LOGGED: OnceLock<RecordedLog> = OnceLock::new();

/// Returns the warnings and errors that this program has logged since the first call, those of all tests, and that
/// contain a text, each with all of its fields.
///
/// # Panics
/// If the program has another global subscriber.
pub fn logged_warnings(text: &str) -> Vec<String> {
    let log = LOGGED.get_or_init(|| {
        let log = RecordedLog::of(Level::WARN);
        set_global_default(log.clone()).expect("there is no other one");
        log
    });
    let lines = log.lines.lock();
    let found = lines.iter().filter(|line| line.contains(text));
    found.cloned().collect()
}

/// Records what is logged at a level, or a more severe one.
#[derive(Clone)]
struct RecordedLog {
    level: Level,
    lines: Arc<Mutex<Vec<String>>>,
}

impl RecordedLog {
    fn of(level: Level) -> Self {
        let lines = Arc::default();
        Self { level, lines }
    }
}

/// The fields of an event.
#[derive(Default)]
struct EventFields(Vec<String>);

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push(format!("{field}={value:?}"));
    }
}

impl Subscriber for RecordedLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
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
        self.lines.lock().push(fields.0.join(", "));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
