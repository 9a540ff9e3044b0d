//! [back]: ../../../docs/guarantees.md#items-that-come-back
//! [composition]: ../../../docs/composition.md
//! [conflicts]: ../../../docs/schema.md#conflicts-of-hc-dequeue
//! [console]: ../../../docs/console.md
//! [item]: ../../../docs/diagrams/item.svg
//! [keys]: ../../../docs/guarantees.md#hc-dequeue
//! [microqueue]: ../microqueue/index.html
//! [recipes]: ../../../docs/recipes.md
//! [records]: ../../../docs/guarantees.md#records-that-do-not-decode
//! [registry]: ../../../docs/diagrams/registry.svg
//! [restore]: ../../../docs/foundationdb.md#restoring-a-backup
//! [schema]: ../../../docs/schema.md#hc-dequeue
//! [shutting-down]: ../../../docs/guarantees.md#shutting-down
//! [stuck]: ../../../docs/console.md#a-queue-is-stuck
//! [tutorial]: ../../../docs/tutorial.md
// Where the links of the README lead from the pages of `cargo doc`: the first definition of a link counts.
#![doc = include_str!("../README.md")]

mod audit;
mod batches;
mod consume;
mod items;
mod jobs;
mod lanes;
mod options;
mod protocol;
mod queue;
mod schedule;
pub mod session;
pub mod shutdown;
pub mod testing;
#[cfg(test)]
mod tests;
mod work;

pub use crate::audit::Audit;
pub use crate::batches::members::{MemberPage, MemberStatus};
pub use crate::batches::operations::{Batch, BatchEnd, BatchPage, BatchStatus};
pub use crate::consume::consumer::Consumer;
pub use crate::consume::delivery::Delivery;
pub use crate::items::batch::{BatchCounts, BatchRef};
pub use crate::items::death::Death;
pub use crate::items::error::{BoxError, Error, Result};
pub use crate::items::finding::{Finding, Unchecked};
pub use crate::items::group_limits::{GroupLimits, MAX_WEIGHT};
pub use crate::items::item_ref::{ItemRef, MalformedRef, StagedRef};
pub use crate::items::kind::{MAX_KIND_BYTES, MAX_KINDS};
pub use crate::items::part::describe_key;
pub use crate::items::priority::MAX_PRIORITY;
pub use crate::items::rate::{MAX_RATE_PER_SECOND, MAX_RATE_PERIOD, Rate};
pub use crate::items::record::{
    End, Failure, MAX_CHECKPOINT_BYTES, MAX_DEDUPE_BYTES, MAX_FAILURE_BYTES, MAX_GROUP_BYTES,
    MAX_PAYLOAD_BYTES, MAX_PROGRESS_TEXT_BYTES, MAX_RESULT_BYTES, MAX_STEP_NAME_BYTES, MAX_STEPS,
    Progress,
};
pub use crate::items::refusal::{DeathsRefusal, StepRefusal};
pub use crate::items::settings::{MIN_LEASE, Settings, SettingsRecord};
pub use crate::items::trace_context::TraceContext;
pub use crate::jobs::handlers::{Call, Handlers};
pub use crate::jobs::job::{Job, JobOptions};
pub use crate::jobs::queue::{Jobs, Payloads};
pub use crate::lanes::holders::SlotHolders;
pub use crate::lanes::operations::{GroupPage, GroupState, GroupStatus};
pub use crate::options::{Backoff, MAX_CONCURRENCY, WorkerOptions};
pub use crate::queue::await_done::Awaited;
pub use crate::queue::change::{Cancelled, Replaced};
pub use crate::queue::clear::{CancelledItems, Cleared};
pub use crate::queue::enqueue_options::{Enqueue, Enqueued, OnRepeat};
pub use crate::queue::handle::Queue;
pub use crate::queue::inspect::{SessionPage, SessionState};
pub use crate::queue::items_of::ItemsOf;
pub use crate::queue::kinds::KindState;
pub use crate::queue::list::{Cursor, ItemPage, ListedItem, Listing, PlaceKind};
pub use crate::queue::stats::Stats;
pub use crate::queue::status::{Place, Status};
pub use crate::schedule::{
    ChangedSchedule, ListedSchedule, MAX_MISSED, MAX_OWNED_SCHEDULES, MAX_SCHEDULE_NAME_BYTES,
    MAX_SCHEDULE_OWNER_BYTES, MAX_SCHEDULE_TEXT_BYTES, MAX_SET_BYTES, MISSED_AFTER, Missed,
    Schedule, ScheduleChanges, ScheduleEntry, Scheduled,
};
pub use crate::shutdown::{NotEnded, ShutdownReport};
pub use crate::work::handler::{Handler, TransactionHandler};
pub use crate::work::outcome::{IntoOutcome, Outcome};
pub use crate::work::worker::Worker;
pub use microqueue::{self, keyspace};

/// Compiles and runs the examples of the repository's README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod front_page {}
