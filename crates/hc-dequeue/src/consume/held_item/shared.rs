//! State that a dispatcher, its consumers and all deliveries share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use microqueue::keyspace::{Environment, Runner, Store};

use super::command::{Command, Commands};
use crate::consume::holdings::outstanding::Lifetime;
use crate::consume::holdings::{Holdings, Wake};
use crate::consume::metrics::Metrics;
use crate::consume::shared_task::SharedTask;
use crate::items::keys::Keys;
use crate::items::kind::Kind;
use crate::items::record::Record;
use crate::items::settings::KnownSettings;
use crate::options::{Backoff, Handling};

/// State that a dispatcher, its consumers and all deliveries share.
pub(crate) struct Shared {
    pub(crate) keys: Arc<Keys>,
    /// The runner of the [steps](crate::Delivery::step) of handlers. It keeps no ledger: the row of the held item says
    /// which steps are done.
    pub(crate) runner: Runner<Store>,
    /// The environment of the dispatcher, by whose clock time limits pass. The one of the keys may have another clock.
    pub(crate) env: Environment,
    pub(crate) settings: KnownSettings,
    pub(crate) handling: Arc<BTreeMap<Kind, Handling>>,
    /// The time limit and the backoff of items whose kind has none.
    pub(crate) time_limit: Duration,
    pub(crate) backoff: Backoff,
    /// Whether the consumer is shutting down: a delivery dropped from then on counts no attempt.
    pub(crate) shuts_down: AtomicBool,
    /// Whether a delivery of a member of a batch has ended since the dispatcher has last looked here.
    pub(crate) let_go_of_member: AtomicBool,
    /// How many items were granted whose values do not decode.
    pub(crate) undecodable: AtomicU64,
    pub(crate) dispatcher: Arc<SharedTask>,
    pub(crate) holdings: Holdings,
    pub(crate) metrics: Metrics,
}

impl Shared {
    /// Returns the lifetime of the delivery of an item that begins at this time.
    pub(super) fn lifetime(&self, began: Duration, record: &Record) -> Lifetime {
        let handling = self.handling(record);
        Lifetime {
            began,
            time_limit: handling.time_limit.unwrap_or(self.time_limit),
            backoff: handling.backoff.unwrap_or(self.backoff),
        }
    }

    /// Returns how long an item waits after a failure for which no other time was chosen.
    pub(crate) fn backoff(&self, record: &Record) -> Backoff {
        self.handling(record).backoff.unwrap_or(self.backoff)
    }

    fn handling(&self, record: &Record) -> Handling {
        self.handling.get(&record.kind).copied().unwrap_or_default()
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
