//! State that a dispatcher, its consumers and all deliveries share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use microqueue::keyspace::Environment;

use super::command::{Command, Commands};
use crate::consume::holdings::{Holdings, Lifetime, Wake};
use crate::consume::metrics::Metrics;
use crate::consume::shared_task::SharedTask;
use crate::items::keys::Keys;
use crate::items::settings::KnownSettings;
use crate::options::Backoff;

/// State that a dispatcher, its consumers and all deliveries share.
pub(crate) struct Shared {
    pub(crate) keys: Arc<Keys>,
    /// The environment of the dispatcher, by whose clock time limits pass. The one of the keys may have another clock.
    pub(crate) env: Environment,
    pub(crate) settings: KnownSettings,
    pub(crate) time_limit: Duration,
    pub(crate) backoff: Backoff,
    /// Whether the consumer is shutting down: a delivery dropped from then on counts no attempt.
    pub(crate) shuts_down: AtomicBool,
    /// Whether a delivery of a member of a batch has ended since the dispatcher has last looked here.
    pub(crate) let_go_of_member: AtomicBool,
    pub(crate) dispatcher: Arc<SharedTask>,
    pub(crate) holdings: Holdings,
    pub(crate) metrics: Metrics,
}

impl Shared {
    /// Returns the lifetime of a delivery that begins now.
    pub(super) fn lifetime(&self) -> Lifetime {
        let began = self.env.now();
        let deadline = began.saturating_add(self.time_limit);
        Lifetime { began, deadline }
    }
}

impl Wake {
    /// Wakes the dispatcher, if that is needed.
    pub(crate) fn dispatcher(self, commands: &Commands) {
        if self == Self::Dispatcher {
            // The dispatcher may have ended.
            let _ = commands.send(Command::Wake);
        }
    }
}
