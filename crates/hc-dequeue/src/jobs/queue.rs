//! The queue of jobs.

use std::fmt;
use std::sync::Arc;

use microqueue::keyspace::codec::{self, Codec, DecodeError, MessagePack};
use microqueue::keyspace::{self, Bytes, Database, OpenOptions, Runner, Subspace, Transaction};

use crate::items::error::Result;
use crate::items::item_ref::{ItemRef, StagedRef};
use crate::items::settings::Settings;
use crate::jobs::handlers::Handlers;
use crate::jobs::job::Job;
use crate::options::WorkerOptions;
use crate::queue::enqueue_options::{Enqueue, Enqueued};
use crate::queue::handle::{Queue, UntypedQueue};
use crate::work::slots::Handle;
use crate::work::worker::Worker;

/// The codec of a queue of jobs, whose values are payloads of any type.
///
/// It has the name of `C` for `()`, so that the queue can also be opened as one of a single type.
#[derive(Debug, Clone, Copy, Default)]
pub struct Payloads<C>(C);

impl<C: Codec<()>> Codec<Bytes> for Payloads<C> {
    const NAME: &'static str = <C as Codec<()>>::NAME;

    fn encode(&self, value: &Bytes, buffer: &mut Vec<u8>) -> keyspace::Result<()> {
        buffer.extend_from_slice(value);
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<Bytes, DecodeError> {
        Ok(bytes)
    }
}

/// A queue with [jobs](Job) of several types, each with a handler of its own.
///
/// A job is an item with a *kind*: the name of its type. It waits, ends and is counted as any other item, in one order
/// with those of other types. A worker takes only the jobs for which it has [`Handlers`], and passes over others: they
/// wait for a worker that has theirs, and nothing is counted. So workers of two versions may run side by side, and each
/// type may have workers of its own.
///
/// ```
/// use std::time::Duration;
///
/// use hc_dequeue::keyspace::{self, Runner, Tx};
/// use hc_dequeue::{Delivery, Handlers, Job, Jobs, WorkerOptions};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail {
///     to: String,
/// }
///
/// impl Job for SendMail {
///     const KIND: &'static str = "send-mail";
/// }
///
/// #[derive(Serialize, Deserialize)]
/// struct Charge {
///     cents: u64,
/// }
///
/// impl Job for Charge {
///     const KIND: &'static str = "charge";
/// }
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let jobs = &Jobs::open(&runner, "jobs").await?;
///
/// let place_order = async |tr: Tx<_>| {
///     jobs.enqueue(&tr, &Charge { cents: 4_200 }).await?;
///     jobs.enqueue(&tr, &SendMail { to: "ada@example.com".to_owned() }).await
/// };
/// runner.run(place_order).await?;
///
/// let handlers = Handlers::new()
///     .work(async |mail: Delivery<SendMail>| println!("to {}", mail.value().to))
///     .process(async |_tr: Tx<_>, charge: Delivery<Charge>| println!("{} cents", charge.value().cents));
/// let worker = jobs.work(&runner, WorkerOptions::new(), handlers).await?;
/// jobs.queue().wait_idle(&runner).await?;
/// worker.shut_down(Duration::from_secs(1)).await?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # What a worker passes over
///
/// - Jobs of other kinds stay where they are. If more than 16 of them are first in the queue, a worker reads them again
///   at most once in a second, and sees a job that comes back to a place among them that much later.
/// - In a group, a worker looks past up to 1,000 jobs of other kinds. In an [ordered](crate::GroupLimits::ordered)
///   group, a job waits for the one before it, whatever their kinds.
/// - If no worker has a handler for a kind, the workers log a warning that names it, and
///   [`kinds`](Queue::kinds) shows it.
///
/// Workers with the same kinds share a registry of requests. Those of two versions therefore answer only their own
/// requests, and may conflict with each other where both take jobs.
pub struct Jobs<C = MessagePack> {
    queue: Queue<Bytes, Payloads<C>>,
}

impl Jobs {
    /// Opens the queue of jobs in `subspace` with the codec [`MessagePack`], as [`Queue::open`] does.
    ///
    /// # Conflicts
    /// As [`Queue::open`].
    ///
    /// # Errors
    /// As [`Queue::open`].
    pub async fn open<D: Database>(
        runner: &Runner<D>,
        subspace: impl Into<Subspace>,
    ) -> Result<Self> {
        let queue = Queue::open(runner, subspace).await?;
        Ok(Self { queue })
    }
}

impl<C: Codec<()>> Jobs<C> {
    /// Opens the queue of jobs in `subspace`, as [`Queue::open_with`] does.
    ///
    /// # Conflicts
    /// As [`Queue::open_with`].
    ///
    /// # Errors
    /// As [`Queue::open_with`].
    pub async fn open_with<D: Database>(
        runner: &Runner<D>,
        subspace: impl Into<Subspace>,
        settings: Settings,
        options: OpenOptions<C>,
    ) -> Result<Self> {
        let codec = Payloads(options.codec().clone());
        let queue = Queue::open_with(runner, subspace, settings, options.with_codec(codec)).await?;
        Ok(Self { queue })
    }

    /// Returns the queue without the types of its jobs, for all that does not depend on them: the status of an item,
    /// listings, pauses, limits, batches, schedules.
    #[must_use]
    pub fn queue(&self) -> &Queue<Bytes, Payloads<C>> {
        &self.queue
    }

    /// Encodes a job, and completes the options of its enqueue with its kind and those of its [type](Job::options).
    ///
    /// For what takes values of one type, but jobs of several: [`Queue::enqueue_all_with`], the callback of a
    /// [batch](crate::Batch::with_callback), a [schedule](Queue::schedule).
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{Enqueue, Job, Jobs, Result, Schedule};
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(Serialize, Deserialize)]
    /// struct Report;
    ///
    /// impl Job for Report {
    ///     const KIND: &'static str = "report";
    /// }
    ///
    /// async fn report_daily(tr: &impl Transaction, jobs: &Jobs) -> Result<()> {
    ///     let (report, options) = jobs.prepare(&Report, Enqueue::new())?;
    ///     let daily = Schedule::new("0 6 * * *").with_enqueue_options(options);
    ///     let _ = jobs.queue().schedule(tr, "daily report", &daily, &report).await?;
    ///     Ok(())
    /// }
    /// ```
    /// # Errors
    /// [`Encode`](microqueue::keyspace::Error::Encode) of the codec.
    pub fn prepare<J: Job>(&self, job: &J, options: Enqueue) -> Result<(Bytes, Enqueue)>
    where
        C: Codec<J>,
    {
        let mut payload = Vec::new();
        codec::encode(&self.queue.codec.0, job, &mut payload)?;
        Ok((payload.into(), J::options().complete(options, J::KIND)))
    }

    /// Decodes a job of a type from the payload of its item, for example from its [status](Queue::status).
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are none of the codec for this type.
    pub fn decode<J: Job>(&self, payload: &Bytes) -> Result<J, DecodeError>
    where
        C: Codec<J>,
    {
        codec::decode(&self.queue.codec.0, payload.clone())
    }

    /// Stages a job at the end of the queue.
    ///
    /// # Conflicts
    /// As [`Queue::enqueue`]; with the priority of its [type](Job::options), it also writes a pointer.
    ///
    /// # Errors
    /// As [`Queue::enqueue`], and [`Error::Kind`](crate::Error::Kind) and [`Error::Priority`](crate::Error::Priority)
    /// if the type has an invalid one. Nothing is staged then.
    pub async fn enqueue<J: Job>(&self, tr: &impl Transaction, job: &J) -> Result<StagedRef>
    where
        C: Codec<J>,
    {
        match self.enqueue_with(tr, job, Enqueue::new()).await? {
            Enqueued::Staged(staged) => Ok(staged),
            Enqueued::Replaced(_) | Enqueued::Repeated => unreachable!("it has no dedupe id"),
        }
    }

    /// Stages a job with the given options, completed with those of its [type](Job::options).
    ///
    /// # Conflicts
    /// As [`Queue::enqueue_with`].
    ///
    /// # Errors
    /// As [`Queue::enqueue_with`], and [`Error::Kind`](crate::Error::Kind).
    pub async fn enqueue_with<J: Job>(
        &self,
        tr: &impl Transaction,
        job: &J,
        options: Enqueue,
    ) -> Result<Enqueued>
    where
        C: Codec<J>,
    {
        let (payload, options) = self.prepare(job, options)?;
        self.queue.enqueue_with(tr, &payload, &options).await
    }

    /// Enqueues a job in a transaction of its own, as [`Queue::submit`] does.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue), and those of [`Runner::run`].
    pub async fn submit<J: Job, D: Database>(&self, runner: &Runner<D>, job: &J) -> Result<ItemRef>
    where
        C: Codec<J>,
    {
        let item = self.submit_with(runner, job, Enqueue::new()).await?;
        Ok(item.expect("it has no dedupe id"))
    }

    /// Enqueues a job with options in a transaction of its own, as [`Queue::submit_with`] does.
    ///
    /// # Errors
    /// As [`enqueue_with`](Self::enqueue_with), and those of [`Runner::run`].
    pub async fn submit_with<J: Job, D: Database>(
        &self,
        runner: &Runner<D>,
        job: &J,
        options: Enqueue,
    ) -> Result<Option<ItemRef>>
    where
        C: Codec<J>,
    {
        let (payload, options) = self.prepare(job, options)?;
        self.queue.submit_with(runner, &payload, &options).await
    }

    /// Opens a session, and calls the handler of its type for each job. Jobs of other types stay for other workers.
    ///
    /// # Errors
    /// - [`Error::Kind`](crate::Error::Kind) if a kind is empty or too long
    /// - [`Error::HandledTwice`](crate::Error::HandledTwice) if two handlers are for the same kind
    /// - [`Error::NoHandlers`](crate::Error::NoHandlers)
    /// - [`Error::TooHigh`](crate::Error::TooHigh) if there are more kinds than [`MAX_KINDS`](crate::MAX_KINDS), or if
    ///   the concurrency is more than [`MAX_CONCURRENCY`](crate::MAX_CONCURRENCY)
    /// - those of [`Queue::consumer`]
    ///
    /// # Cancel safety
    /// Dropping the future may leave a session without heartbeats, which other sessions remove.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub async fn work<D: Database>(
        &self,
        runner: &Runner<D>,
        options: WorkerOptions,
        handlers: Handlers<D, C>,
    ) -> Result<Worker<Bytes>> {
        let (queue, handle) = self.handled_by(runner, handlers)?;
        Worker::open(queue, runner.on_store(), &options, handle).await
    }

    /// Returns the queue as a worker with these handlers sees it, and what calls them.
    ///
    /// # Errors
    /// As [`work`](Self::work).
    pub(crate) fn handled_by<D: Database>(
        &self,
        runner: &Runner<D>,
        handlers: Handlers<D, C>,
    ) -> Result<(UntypedQueue, Box<Handle>)> {
        let table = handlers.into_table(&self.queue.codec.0, runner)?;
        let queue = UntypedQueue {
            keys: self.queue.keys.clone(),
            settings: self.queue.settings.clone(),
            kinds: table.kinds(),
            handling: Arc::new(table.handling.clone()),
            decode: table.decode(),
        };
        Ok((queue, table.handle()))
    }
}

impl<C: Clone> Clone for Jobs<C> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
        }
    }
}

impl<C> fmt::Debug for Jobs<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Jobs").field(&self.queue).finish()
    }
}
