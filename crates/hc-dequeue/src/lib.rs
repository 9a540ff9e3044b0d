//! Many consumers take from one queue without colliding, and nothing is lost when one dies: the
//! high-contention dequeue of FoundationDB's *Queues* recipe.
//!
//! # What it guarantees
//!
//! - No item is lost. A consumer that dies, hangs or loses its answer loses an item to another one.
//! - Each item is delivered at least once, and effective exactly once if it is acknowledged in the
//!   transaction that does its work. An acknowledgement that comes too late is refused.
//! - Items are granted in the order of their first enqueue. One that comes back comes first, as soon as
//!   it is seen.
//! - Enqueues never conflict, and dequeues hardly ever: consumers of one process are served together,
//!   and processes queue up instead of colliding.
//! - How many items are queued, delayed, held and dead is known exactly at every version.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use hc_dequeue::keyspace::{self, Runner, Subspace};
//! use hc_dequeue::{ConsumerOptions, Error, HighContentionQueue, Settings};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let runner = Runner::new(keyspace::open("memory:")?);
//! let subspace = Subspace::from("jobs");
//! let jobs = HighContentionQueue::<String>::open(&runner, subspace, Settings::default()).await?;
//!
//! let queue = &jobs;
//! runner
//!     .run(|tr| async move { queue.enqueue(&tr, &"resize 17.png".to_owned()).await })
//!     .await?;
//!
//! // One consumer for each process, cloned for each task.
//! let consumer = jobs.consumer(&runner, ConsumerOptions::default()).await?;
//! if let Some(job) = consumer.dequeue_within(Duration::from_secs(1)).await? {
//!     let job = &job;
//!     runner
//!         .run(|tr| async move {
//!             // What else this transaction does happens if, and only if, the job is done.
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
//! A [`Worker`] is the loop around that, with retries: [`process`](HighContentionQueue::process) handles each item
//! in the transaction that completes it, [`work`](HighContentionQueue::work) is for work that takes longer. The
//! example `payments` acknowledges, changes data
//! and enqueues into another queue in one transaction.
//!
//! # How it works
//!
//! A [`Consumer`] is a session: a task that takes for all of its clones. It takes items by the *fast
//! path*, a transaction that conflicts with others of its kind alone. Once it met a conflict, it goes
//! by the *registry* for a while: it registers a request, and the session whose request is the first
//! answers many requests in one transaction. An item is then *held* by a session until it is
//! acknowledged, given back, or the session is found dead. [Below](#the-staged-registry) are the steps.
//!
//! Sessions show that they live by a heartbeat, which others judge by what they observe of the store: a
//! session that is silent for a lease of their observations is declared dead, and its items go back to
//! their places. A store that is away for an hour costs no session, and one that is slow delays the
//! judgment.
//!
//! # What the caller must do
//!
//! - Acknowledge in the transaction that does the work. What is done beside the store happens at least
//!   once: make it idempotent by the item's [id](Delivery::id).
//! - Let acknowledging transactions be committed by [`Runner::run`](microqueue::keyspace::Runner::run).
//!   One whose outcome stays unknown may leave an item that is done and comes back.
//! - Keep one [`Consumer`] for each process and queue, and clone it. Many sessions work, and are slower.
//! - Open a queue with the settings that it was created with.
//! - Keep the wall clocks of processes together if items are delayed or scheduled: their times are as
//!   exact as the clocks are. Nothing else depends on them. A process whose clock differs by more than
//!   [a minute](session::MAX_CLOCK_ERROR) from the median of those of all sessions leaves what is due to
//!   the others, warns, and says so in a metric. With fewer than three sessions a clock is trusted.
//!
//! # Ordering and delivery
//!
//! | operation | reads | fails with a conflict if, since its read version, |
//! |---|---|---|
//! | `enqueue`, `enqueue_all` | nothing | never |
//! | `enqueue_with` | the dedupe id, if there is one, and the item that it replaces | the same id was enqueued or completed |
//! | fast path | the pause, its session, the first request, the items it takes | another took one of these items, another session registered, the queue was paused |
//! | `ack` | the item that is held | the item went back, since its time or its session was over, or was cancelled |
//! | `status`, `cancel`, `expedite`, `replace` | the item, and where else it might be | it was granted, went back, was done or changed |
//! | `redrive`, `purge` | the dead letter | another did the same |
//! | `stats`, `len`, `oldest_age` | counters and the first item, by snapshot | never |
//! | `peek`, `items`, `dead_letters` | as those of [`MicroQueue`](microqueue::MicroQueue) | as those |
//! | `pause`, `resume` | nothing | never |
//! | `schedule`, `unschedule` | the schedule | it fired, or another changed it |
//! | `schedules` | the page | one of these schedules fired or changed |
//!
//! All of these but the fast path run in the caller's transaction. What a consumer does by itself is
//! retried by its runner.
//!
//! `pop` completes an item with the commit that takes it: fastest, and at most once.
//!
//! # Schedules
//!
//! A [`Schedule`] enqueues a value again and again, at the times of a cron text in a time zone:
//!
//! ```
//! # use hc_dequeue::keyspace::{Database, Runner};
//! use hc_dequeue::{HighContentionQueue, Missed, Result, Schedule};
//!
//! # async fn example<D: Database>(runner: &Runner<D>, jobs: &HighContentionQueue<String>) -> Result<()> {
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
//! Sessions enqueue what is due: one item for each time, whichever of them die, since the transaction that
//! enqueues it reads and writes the row of the schedule. An item counts as [enqueued](Delivery::enqueued) at
//! its time. A queue that is paused goes on firing, and the items wait. A time at which no session lives,
//! and none comes within [a minute](MISSED_AFTER), is missed, and [`Missed`] says what becomes of it. A
//! schedule that another process makes is known at once if a session waits for items, and else within ten
//! seconds.
//!
//! The texts have the meaning that [croner](https://docs.rs/croner) 4 gives them, and the zones are those of
//! the IANA database that `chrono-tz` was built with. Where clocks are set forward or back, croner says:
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
//! A list or range of hours or minutes, such as `30 2,14 * * *`, is no fixed time: 02:30 is skipped in the gap
//! and comes twice in the overlap. The tests have both changes of 2026 and 2027 in two zones.
//!
//! # Limits
//!
//! - A payload takes up to [`MAX_PAYLOAD_BYTES`], so that the item fits everywhere with any envelope.
//! - A transaction grants up to 512 items or 1,000,000 bytes; a call takes up to 512 items.
//! - A trace context takes up to 512 bytes. A tracestate that does not fit is left out.
//! - A dedupe id takes up to [`MAX_DEDUPE_BYTES`]. Sessions remove those that were kept for long enough
//!   after completion, some at each heartbeat.
//! - One key, the wake stamp, is written by every enqueue, and the counters are added to: on a large
//!   cluster the storage servers that have them bound the rate of one queue. Split it over several
//!   subspaces where order is not needed.
//!
//! # Testing
//!
//! [`testing`] has what an application's own tests need: it handles what is queued until there is nothing left, with
//! a wall clock that a test sets, and lists what was enqueued. It needs no feature: it has no dependencies of its
//! own, and since it is generic, it adds nothing to a program that does not call it.
//!
//! # Observing
//!
//! Dispatchers and workers tell what they do to [`tracing`], under the span `dispatcher` with queue
//! and session, and count it for the [`metrics`](https://docs.rs/metrics) facade: `hc_dequeue_depth`,
//! `_held`, `_dead`, `_age_seconds`, `_clock_error_seconds` at each heartbeat; `_dequeues`, `_conflicts`, `_fulfilled`,
//! `_patience_expiries`, `_reclaimed`, `_fired`, `_lost`, `_waiting_seconds`, `_handler_seconds` and `_outcomes` as they
//! happen, all with the label `queue`.
//!
//! A worker calls its handler in a span `handler` of level `INFO`, with queue, item and attempt. With the feature
//! `opentelemetry` an item carries the W3C trace context of the [`tracing`] span in which it was enqueued, as the
//! layer of `tracing-opentelemetry` has it. That span is the parent of the handler's span on the first
//! [attempt](Delivery::attempt), and a link of it on later ones. The item of a schedule carries none. A
//! [`TraceContext`] set by [`Enqueue::trace_context`] needs no feature, and [`Delivery::trace_context`] returns it.
//!
//! # Features
//!
//! | feature | effect |
//! |---|---|
//! | `opentelemetry` | as said above; brings `opentelemetry` and `tracing-opentelemetry` |
//! | `fdb-7_1`, `fdb-7_3`, `fdb-7_4` | FoundationDB with that API version: choose one |
//! | `anyhow`, `bincode` | those of [`keyspace`] |
//!
//! # The staged registry
//!
//! Every consumer wants the same item, the first. Of the transactions that take it at the same time, one
//! commits. FoundationDB's *Queues* recipe answers that with an extension: a consumer that does not succeed
//! at once registers a request and then takes part in fulfilling requests, many in one transaction. This
//! crate adds sessions to it, so that any participant may die at any moment.
//!
//! ## Steps
//!
//! Each step is one transaction of a dispatcher.
//!
//! - *Take*, the fast path: pairs the items at the head with the session's own demand, without a request.
//!   It reads the first key of the registry serializably and does nothing if there is one, so that a
//!   registration stops it. Of takes that follow one another closely, each reads the queue while the one
//!   before it commits.
//! - *Register*: appends a request to the registry. It reads the session's own state alone, so that
//!   registrations never conflict with each other.
//! - *Fulfill*: pairs the first requests with the first items. Any session may do it at any time; as a rule
//!   the owner of the *first* request does.
//! - *Check*: reads whether the request was answered and whether it is the first, and arms watches on what
//!   may change that.
//! - *Collect*: takes over what was granted. A session whose consumers ask again at once registers its next
//!   request in the same transaction.
//! - *Withdraw*: removes a request that was not answered.
//!
//! ## Why it is safe
//!
//! 1. `fulfill` and `take` read requests and items by snapshot, so that enqueues and registrations never
//!    make them fail. For each pair of a request and an item they add read conflicts on the request, the
//!    item and the session's state, *before* they clear the first two. Of two transactions that pair the
//!    same item or the same request, one fails.
//! 2. The transaction that clears request and items writes the grant, with the items in it, and the one that
//!    collects the grant takes them out. An item is at every moment in one place.
//! 3. A transaction that writes something under a session has read the session's state serializably, or
//!    moves it out of a grant, which keeps the session from being removed. The transaction that declares a
//!    session dead writes that state: afterwards nothing more is granted to the session, and what it holds
//!    is returned once.
//!
//! ## Why it does not stall
//!
//! The owner of the first request leads: it fulfills. It alone watches the wake stamp, which every enqueue,
//! return and redrive writes, so that an enqueue wakes one session, however many wait. The others watch for
//! their own answer alone. A transaction that reads how things stand also arms the watches, so that no
//! change falls between.
//!
//! A `fulfill` that leaves the request of another session as the first tells it so, under the key of its
//! grant. But a request that was registered meanwhile may have seen another one before it that is gone by
//! now, and then no transaction tells it. Therefore, after removing a request, be it by answering or
//! withdrawing it or for a dead session, a session keeps calling `fulfill` until a call that started after
//! the removal committed finds nothing to do.
//!
//! During that time another session may become the first: it leaves the lead to this one for as long as a
//! few transactions take. If two lead at the same time all the same, one of them fails. From then on it only
//! tells the first request that it is the first, since two that went on would go on to conflict. If the
//! session of the first request is dead, the others find that at their poll interval, lose *patience* one
//! after the other, by their rank, and lead in its place. While there is no item, no patience is lost.
//!
//! # Further reading
//!
//! - [Queues](https://apple.github.io/foundationdb/queues.html), whose high-contention version this
//!   extends.
//! - [Versionstamps](https://apple.github.io/foundationdb/developer-guide.html#versionstamps) and
//!   conflict ranges in FoundationDB's developer guide.

mod audit;
mod change;
mod clear;
mod command;
mod configure;
mod consumer;
mod counters;
mod dedupe;
mod delivery;
mod dispatcher;
mod done;
mod enqueue;
mod error;
mod find;
mod give_back;
mod handler;
mod item_ref;
mod keys;
mod letters;
#[cfg(test)]
mod life;
mod metrics;
mod options;
mod outcome;
#[cfg(test)]
mod pairs;
mod policy;
mod process;
mod queue;
mod read;
mod reclaim;
mod record;
mod registry;
mod schedule;
pub mod session;
mod settings;
mod span;
pub mod testing;
mod trace_context;
mod wall;
mod worker;

pub use crate::audit::{Audit, Finding};
pub use crate::change::{Cancelled, Replaced};
pub use crate::consumer::Consumer;
pub use crate::delivery::{Delivery, ack_all};
pub use crate::enqueue::{Enqueue, Enqueued, OnRepeat};
pub use crate::error::{BoxError, Error, Result};
pub use crate::find::{Place, Status};
pub use crate::item_ref::{ItemRef, StagedRef};
pub use crate::letters::DeadLetter;
pub use crate::options::{Backoff, ConsumerOptions, WorkerOptions};
pub use crate::outcome::Outcome;
pub use crate::queue::HighContentionQueue;
pub use crate::read::Stats;
pub use crate::record::{
    End, Failure, MAX_DEDUPE_BYTES, MAX_FAILURE_BYTES, MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES,
};
pub use crate::schedule::{
    ListedSchedule, MAX_MISSED, MAX_SCHEDULE_NAME_BYTES, MAX_SCHEDULE_TEXT_BYTES, MISSED_AFTER,
    Missed, Schedule, ScheduleEntry, Scheduled,
};
pub use crate::settings::{MIN_LEASE, Settings, SettingsRecord};
pub use crate::trace_context::TraceContext;
pub use crate::worker::Worker;
pub use microqueue::{self, keyspace};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// Compiles the example of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/hc-dequeue.md")]
mod guide {}
