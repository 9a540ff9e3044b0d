//! A queue that many consumers in many processes take from without colliding: the high-contention dequeue of
//! FoundationDB's *Queues* recipe. Any consumer may die at any moment, and no item is lost.
//!
//! # What it guarantees
//!
//! - No item is lost. If a consumer dies or hangs, another consumer gets its items.
//! - Each item is delivered at least once. It takes effect exactly once if the transaction that does its work also
//!   acknowledges it. A late acknowledgement returns an error, so that its transaction does not commit.
//! - Items are granted in the order in which they were first enqueued. An item that comes back keeps its place, ahead
//!   of all later items.
//! - Enqueues never conflict, and dequeues rarely do: one transaction serves all consumers of a process, and
//!   processes queue up instead of colliding.
//! - The numbers of queued, delayed, held and dead items are exact at every version.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use hc_dequeue::keyspace::{self, Runner, Subspace};
//! use hc_dequeue::{Error, Queue, Settings, WorkerOptions};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let runner = Runner::new(keyspace::open("memory:")?);
//! let subspace = Subspace::from("jobs");
//! let jobs = Queue::<String>::open(&runner, subspace).await?;
//!
//! jobs.submit(&runner, &"resize 17.png".to_owned()).await?;
//!
//! // One consumer per process; each task gets a clone.
//! let consumer = jobs.consumer(&runner, WorkerOptions::default()).await?;
//! if let Some(job) = consumer.dequeue_within(Duration::from_secs(1)).await? {
//!     let job = &job;
//!     runner
//!         .run(|tr| async move {
//!             // Whatever else this transaction writes is committed if, and only if, the job is done.
//!             job.ack(&tr).await?;
//!             Ok::<_, Error>(())
//!         })
//!         .await?;
//! }
//! consumer.shut_down(Duration::ZERO).await?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Worker`] runs that loop for you and adds retries. [`process`](Queue::process) runs a handler in
//! the transaction that completes the item. [`work`](Queue::work) is for handlers that take longer than
//! a transaction may. The example `payments` acknowledges an item, changes application data and enqueues into another
//! queue in one transaction.
//!
//! # How it works
//!
//! 1. A [`Consumer`] owns one *session*: a task that takes items for all clones of the consumer.
//! 2. At first a session uses the *fast path*: it takes the first items in one transaction, which only other
//!    sessions that want items can make fail.
//! 3. If the queue is empty, and for a while after a conflict, the session uses the *registry*: it registers a request
//!    and waits. The session whose request is first in the registry pairs many requests with many items in one
//!    transaction. [The staged registry](#the-staged-registry) lists the steps.
//! 4. An item that a session has been granted is *held* by it until one of three things happens: the item is
//!    acknowledged, it is given back, or the session is declared dead.
//!
//! Each session writes a heartbeat, and the other sessions watch it. They measure its silence by what they themselves
//! observe of the store, not by wall time. A session that stays silent for a whole lease of such observations is
//! declared dead, and its items return to their places in the queue. If the store is unavailable for an hour, no
//! session is declared dead. If the store is slow, it takes longer to find a dead session.
//!
//! # What the caller must do
//!
//! - Acknowledge an item in the transaction that does its work. Effects outside the store happen at least once: make
//!   them idempotent, keyed by the item's [id](Delivery::id).
//! - Commit acknowledging transactions with [`Runner::run`](microqueue::keyspace::Runner::run). If the outcome of
//!   such a commit stays unknown, the item may come back although its work is done.
//! - Keep one [`Consumer`] per process and queue, and clone it for each task. Several sessions in a process work, but
//!   they are slower.
//! - Open a queue with the codec that it was created with. After data was moved to another store, open it before
//!   anything is enqueued: if the store's version is too small, opening fails with
//!   [`StampAhead`](microqueue::Error::StampAhead).
//! - Keep the wall clocks of all processes in step if items are delayed or scheduled: their times are only as
//!   accurate as these clocks. Nothing else depends on wall clocks. If the clock of a process differs by more than [a
//!   minute](session::MAX_CLOCK_ERROR) from the median of all sessions, the process leaves due items and schedules to
//!   the others, logs a warning and reports the difference in a metric. With fewer than three sessions, every clock
//!   is trusted.
//!
//! # Ordering and delivery
//!
//! | operation | reads | conflicts if, after its read version, |
//! |---|---|---|
//! | `enqueue`, `enqueue_all` | nothing | never |
//! | `enqueue_with`, `enqueue_all_with` | the dedupe id, if given, and the item that it replaces | the same id was enqueued, or an item with it ended |
//! | `release_dedupe` | the dedupe id | the same id was enqueued, or an item with it ended |
//! | fast path | the pause key, its session, the first request, the items it takes | another session took one of these items or registered a request, or the queue was paused |
//! | `ack` | the held item | the item was cancelled, it went back because its time limit or its session ended, or another enqueue took over its dedupe id |
//! | `status`, `cancel`, `expedite`, `replace` | the item, and the other places where it could be | the item was granted, went back, was completed or was changed |
//! | `redrive`, `purge` | the dead letter | another transaction redrove or purged it |
//! | `stats`, `len`, `oldest_age` | counters and the first 100 items, by snapshot | never |
//! | `list`, `session_states`, `settings`, `is_paused`, `verify_order` | the rows that they return or check, by snapshot | never |
//! | `peek`, `items`, `dead_letters` | as in [`MicroQueue`](microqueue::MicroQueue) | as in `MicroQueue` |
//! | `pause`, `resume` | nothing | never |
//! | `schedule`, `unschedule` | the schedule | the schedule fired or was changed |
//! | `schedules`, `find_schedule` | the page, the schedule | a schedule on the page fired or was changed |
//!
//! All of these except the fast path run in the caller's transaction. The consumer's own transactions are retried by
//! its runner.
//!
//! `pop` completes an item in the transaction that takes it. That is the fastest way to take items, and delivers each
//! at most once.
//!
//! # Schedules
//!
//! A [`Schedule`] enqueues a value repeatedly, at the times given by a cron expression in a time zone:
//!
//! ```
//! # use hc_dequeue::keyspace::{Database, Runner};
//! use hc_dequeue::{Queue, Missed, Result, Schedule};
//!
//! # async fn example<D: Database>(runner: &Runner<D>, jobs: &Queue<String>) -> Result<()> {
//! let nightly = Schedule::new("30 2 * * *")
//!     .time_zone("America/New_York")
//!     .missed(Missed::All { cap: 7 });
//! let (nightly, job) = (&nightly, &"close the books".to_owned());
//! let schedule = |tr| async move { jobs.schedule(&tr, "books", nightly, job).await };
//! let done = runner.run(schedule).await?;
//! # let _ = done;
//! # Ok(())
//! # }
//! ```
//!
//! Sessions enqueue one item for each time that is due. If several sessions try, or some of them die, each time still
//! yields one item, because the transaction that enqueues it also reads and writes the row of the schedule. The item
//! counts as [enqueued](Delivery::enqueued) at the scheduled time. A schedule keeps firing while its queue is paused,
//! and its items wait. With a dedupe id among its [options](Schedule::enqueue_options), at most one item waits.
//!
//! A time is missed if no session fires it within [a minute](MISSED_AFTER); [`Missed`] decides which missed times are
//! made up for. A session that waits for items notices a schedule made by another process at once; other sessions
//! notice it within ten seconds.
//!
//! If the wall clock of a process was ahead, times may have fired in advance, and the next time may be too far ahead.
//! Sessions log a warning, and [`schedule`](Queue::schedule) sets the next time right. Times that were
//! passed over then fire, and those that fired in advance do not fire again.
//!
//! Cron expressions have the meaning that [croner](https://docs.rs/croner) 4 gives them, and time zones come from the
//! IANA database that `chrono-tz` was built with. For clock changes, croner documents:
//!
//! > **Fixed-Time Jobs**: Jobs with specific numerical values for seconds, minutes, and hours.
//! > **Interval/Wildcard Jobs**: Jobs using wildcards (`*`) or step values (`*/N`) in their seconds,
//! > minutes, or hours fields.
//! >
//! > **DST Gap (Spring Forward)**: Fixed-Time Jobs will execute at the first valid second/minute immediately
//! > following the gap on the same calendar day. Interval/Wildcard Jobs: Occurrences within the gap are
//! > skipped.
//! >
//! > **DST Overlap (Fall Back)**: Fixed-Time Jobs will execute only once, at its first occurrence in wall
//! > clock time. Interval/Wildcard Jobs will execute for each occurrence that matches its pattern in wall
//! > clock time within the duplicated hour.
//!
//! A list or range of hours or minutes, such as `30 2,14 * * *`, does not count as a fixed time: 02:30 is skipped in
//! the gap and fires twice in the overlap. The tests cover both clock changes of 2026 and 2027 in two time zones.
//!
//! # Limits
//!
//! - A payload has at most [`MAX_PAYLOAD_BYTES`]. The remainder of a value is reserved for the item's envelope.
//! - A transaction grants at most 512 items or 1,000,000 bytes. One call takes at most 512 items.
//! - A trace context has at most 512 bytes. A `tracestate` that does not fit is dropped.
//! - A dedupe id has at most [`MAX_DEDUPE_BYTES`]. At each heartbeat, a session removes some of the ids whose
//!   retention after completion is over.
//! - Every enqueue writes one key, the wake stamp, and adds to the counters. On a large cluster, the storage servers
//!   of these keys limit the rate of one queue. Where order does not matter, split the queue over several subspaces.
//!
//! # Testing
//!
//! [`testing`] helps to test an application: it runs handlers until nothing is queued or due, lets a test set the
//! wall clock, and lists what was enqueued. It needs no feature and has no dependencies of its own. Its functions are
//! generic, so that they add nothing to a program that does not call them.
//!
//! # Observing
//!
//! Dispatchers and workers log through [`tracing`], in a span `dispatcher` with the queue and the session. They
//! report these metrics through the [`metrics`](https://docs.rs/metrics) facade, all with the label `queue`:
//!
//! - at each heartbeat: `hc_dequeue_depth`, `_delayed`, `_held`, `_dead`, `_unreadable`, `_paused`,
//!   `_age_seconds`, `_clock_error_seconds`;
//! - as events happen: `_dequeues`, `_conflicts`, `_fulfilled`, `_patience_expiries`, `_reclaimed`, `_fired`, `_skipped`,
//!   `_lost`, `_restarts`, `_waiting_seconds`, `_handler_seconds`, `_outcomes`.
//!
//! A worker calls its handler in a span `handler` of level `INFO`, with the queue, the item and the attempt.
//!
//! With the feature `opentelemetry`, an item carries the W3C trace context of the [`tracing`] span in which it was
//! enqueued, as recorded by the layer of `tracing-opentelemetry`. On the item's first [attempt](Delivery::attempt),
//! that span is the parent of the handler's span; on later attempts, the handler's span links to it. Items of
//! schedules carry no trace context. Without the feature, set a [`TraceContext`] with [`Enqueue::trace_context`] and
//! read it with [`Delivery::trace_context`].
//!
//! # Features
//!
//! | feature | effect |
//! |---|---|
//! | `opentelemetry` | connects the spans of enqueues and handlers, as described above; adds `opentelemetry` and `tracing-opentelemetry` |
//! | `fdb-7_1`, `fdb-7_3`, `fdb-7_4` | FoundationDB with that API version: choose one |
//! | `anyhow`, `bincode` | passed on to [`keyspace`] |
//!
//! # The staged registry
//!
//! All consumers want the same item: the first. If several transactions take it at the same time, only one of them
//! commits. FoundationDB's *Queues* recipe solves this with an extension: a consumer that does not succeed at once
//! registers a request, and then helps to fulfill requests, many in one transaction. This crate adds sessions, so
//! that any participant may die at any moment.
//!
//! ## Steps
//!
//! Each step is one transaction of a session's dispatcher.
//!
//! - *Take*, the fast path: takes the first items for the session's own consumers, without a request. It reads the
//!   first key of the registry serializably and takes nothing if a request is there. A registration at the same time
//!   therefore makes it fail. When takes follow closely on one another, each reads the queue while the one before it
//!   commits.
//! - *Register*: appends a request to the registry. It reads only the session's own state, so that registrations
//!   never conflict with each other.
//! - *Fulfill*: pairs the first requests with the first items. Any session may do it at any time; normally the
//!   session that owns the first request does.
//! - *Check*: reads whether the session's request was answered and whether it is the first one, and sets watches on
//!   the keys that may change this.
//! - *Collect*: takes the granted items over. If the session's consumers want more, the same transaction registers
//!   the next request.
//! - *Withdraw*: removes a request that was not answered.
//!
//! ## Why it is safe
//!
//! 1. `fulfill` reads requests and items by snapshot, and `take` reads items by snapshot. Enqueues therefore never
//!    make them fail, and registrations never make `fulfill` fail. For each request and item that they pair, they add
//!    read conflict keys on the request, the item and the session's state *before* they clear the request and the
//!    item. If two transactions pair the same item or the same request, one of them fails.
//! 2. One transaction clears a request and its items and writes the grant, which contains the items. Another
//!    transaction collects the grant and moves the items out of it. Every item is therefore in exactly one place at
//!    every version.
//! 3. A transaction that adds a held or granted item to a session either reads the session's state serializably or
//!    moves the item out of a grant; while a grant exists, its session is not removed. The transaction that declares
//!    a session dead writes the session's state. After it, nothing more is granted to that session, and each item
//!    that it holds is returned once.
//!
//! ## Why it does not stall
//!
//! 1. The session that owns the first request *leads*: it fulfills. Only this session watches the wake stamp, which
//!    every enqueue, return and redrive writes. An enqueue therefore wakes one session, however many wait.
//! 2. Every other session watches only for its own answer. Each transaction that checks a request also sets the
//!    watches, so that no change is lost between the check and the watch.
//! 3. If `fulfill` leaves another session's request as the first one, it writes a notice to that session, under the
//!    key where the grant would be.
//! 4. One case needs more than a notice. Request B is registered after request A and sees it, A is removed by a
//!    transaction that does not see B, and B's session sleeps because it saw A before it. Therefore, after a session
//!    removes a request (by answering it, withdrawing it, or because its owner is dead), it keeps calling `fulfill`
//!    until a call that started after the removal committed finds nothing to do.
//! 5. Meanwhile, another session's request may become the first. That session waits for the duration of a few
//!    transactions before it leads. If two sessions lead at the same time anyway, one of them fails with a conflict.
//!    From then on it grants nothing and only notifies the owner of the first request, so that the two do not keep
//!    colliding.
//! 6. If the session that owns the first request is dead, the other sessions notice this at their poll interval. They
//!    lose *patience* one after another, in the order of their requests, and lead in its place. While there are no
//!    items, no session loses patience.
//!
//! # Further reading
//!
//! - [Queues](https://apple.github.io/foundationdb/queues.html): the recipe, whose high-contention version this crate
//!   extends.
//! - [Versionstamps](https://apple.github.io/foundationdb/developer-guide.html#versionstamps) and conflict ranges in
//!   FoundationDB's developer guide.

mod audit;
mod consume;
mod items;
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

pub use crate::audit::{Audit, Finding};
pub use crate::consume::consumer::Consumer;
pub use crate::consume::delivery::Delivery;
pub use crate::items::error::{BoxError, Error, Result};
pub use crate::items::item_ref::{ItemRef, MalformedRef, StagedRef};
pub use crate::items::record::{
    End, Failure, MAX_DEDUPE_BYTES, MAX_FAILURE_BYTES, MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES,
};
pub use crate::items::settings::{MIN_LEASE, Settings, SettingsRecord};
pub use crate::items::trace_context::TraceContext;
pub use crate::options::{Backoff, WorkerOptions};
pub use crate::queue::change::{Cancelled, Replaced};
pub use crate::queue::enqueue_options::{Enqueue, Enqueued, OnRepeat};
pub use crate::queue::handle::Queue;
pub use crate::queue::inspect::{SessionPage, SessionState};
pub use crate::queue::list::{Cursor, ItemPage, ListedItem, PlaceKind};
pub use crate::queue::stats::Stats;
pub use crate::queue::status::{Place, Status};
pub use crate::schedule::{
    ListedSchedule, MAX_MISSED, MAX_SCHEDULE_NAME_BYTES, MAX_SCHEDULE_TEXT_BYTES, MISSED_AFTER,
    Missed, Schedule, ScheduleEntry, Scheduled,
};
pub use crate::shutdown::{NotEnded, ShutdownReport};
pub use crate::work::outcome::{IntoOutcome, Outcome};
pub use crate::work::worker::Worker;
pub use microqueue::{self, keyspace};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// Compiles the example of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/hc-dequeue.md")]
mod guide {}

/// Compiles and runs the examples of the repository's README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod front_page {}
