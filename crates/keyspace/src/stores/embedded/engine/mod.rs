//! The engine: one version clock, one queue of commits, and four threads: three commit, one merges runs.
//!
//! ```text
//!  transactions                    the engine, one per store
//!  read version, snapshot   <----  Timeline: versions, published states
//!  commit request           ---->  Queue ----> Resolver: 1 take a commit version
//!                                                        2 judge each commit against the History
//!                                                        3 apply its writes to the Window
//!                                                  |
//!                                               Pipeline: the open batch
//!                                                  |
//!                                              Publisher: 4 write the batch to the log, flush
//!                                                         5 publish the state
//!                                                         6 fire watches
//!  verdict                  <---------------------------- 7 answer
//!                                                  |
//!                                             Checkpoints: parts of the window that have ended
//!                                                  |
//!                                           Checkpointer: 8 write each as a run, free the log
//!                                                  |
//!                                                Merger: 9 make fewer runs of many
//! ```
//!
//! Commits that arrive while the publisher writes join one open batch and share one frame and one flush.
//! The caller of a short commit resolves it itself, if no other thread is resolving, and publishes it
//! itself, if it is alone and flushes are short.

pub(super) mod atomic;
mod checkpointer;
mod history;
mod merger;
mod pace;
mod part_growth;
mod pipeline;
mod publisher;
pub(super) mod queue;
mod resolver;
mod shared;
mod snapshot;
mod timeline;
pub(super) mod watch;

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use self::checkpointer::{Checkpointer, Checkpoints};
use self::history::History;
use self::merger::{Merger, Merges};
use self::pipeline::Pipeline;
use self::publisher::Publisher;
use self::queue::{PendingCommit, Queue};
use self::resolver::Resolver;
use self::shared::{EndOnPanic, EngineShared};
use self::timeline::Timeline;
use self::watch::Watches;
use crate::contract::env::Environment;
use crate::contract::error::{Code, Error, OpenError, Result};
use crate::contract::selector::KeyValue;
use crate::contract::transaction::Commit;
use crate::stores::embedded::backend::File;
use crate::stores::embedded::disk::backup::{self, CopyError};
use crate::stores::embedded::disk::location;
use crate::stores::embedded::disk::open::OpenedStore;
use crate::stores::embedded::disk::verify::{self, Verified};
use crate::stores::embedded::layers::Layers;
use crate::stores::embedded::options::Options;
use crate::stores::embedded::runs::RunStoreOptions;
#[cfg(test)]
use crate::stores::embedded::runs::damage::FileError;
use crate::stores::embedded::runs::manifest::Meta;
use crate::stores::embedded::threads;

pub(crate) use self::queue::CommitRequest;
pub(crate) use self::shared::Ending;
pub(crate) use self::snapshot::Snapshot;

/// A running store. Dropping it finishes the commits that were sent, ends the threads and closes the file.
pub(crate) struct Engine {
    shared: Arc<EngineShared>,
    watches: Watches,
    /// The resolver. The caller of a short commit uses it directly; otherwise a thread does. `None` after
    /// the end.
    resolver: Arc<Mutex<Option<Resolver>>>,
    /// The publisher. A lone caller uses it directly; otherwise a thread does. `None` before the threads
    /// have started.
    publisher: Option<Arc<Mutex<Publisher>>>,
    /// Emptied when the engine is shut down.
    threads: Mutex<Vec<JoinHandle<Result<()>>>>,
    /// The version before the first one of this opening.
    opened_at: i64,
    /// The id of the store.
    id: [u8; 16],
}

impl Engine {
    /// Starts the clock and the threads.
    pub(crate) fn start(store: OpenedStore, options: &Options) -> io::Result<Self> {
        let (mut engine, committer) = Self::prepare(store, options);
        let spawned = engine.spawn_all(committer);
        // Threads that have started would wait for the missing ones, so the store ends.
        spawned.inspect_err(|_| drop(engine.shared.end(Code::TRANSACTION_CANCELLED.into())))?;
        Ok(engine)
    }

    /// Starts the clock. Returns the [`Committer`], which the caller runs on threads or step by step.
    pub(crate) fn prepare(store: OpenedStore, options: &Options) -> (Self, Committer) {
        let id = store.files.runs.meta().id;
        let mut window = store.window;
        let timeline = Timeline::new(
            options.environment.clone(),
            store.version,
            window.parts(),
            store.checkpointed,
        );
        let shared = Arc::new(EngineShared {
            timeline,
            queue: Queue::new(options.queue_bytes),
            pipeline: Pipeline::default(),
            checkpoints: Checkpoints::new(options.window_bytes),
            merges: Merges::default(),
            registry: Arc::default(),
            path: store.path,
            runs: store.files.runs.clone(),
            ending: OnceLock::new(),
            ended: Notify::new(),
        });
        let history = History::new(store.version, options.history_bytes);
        let journal = store.journal;
        let durability = options.durability();
        let committer = Committer {
            resolver: Resolver::new(shared.clone(), history, window),
            publisher: Publisher::new(shared.clone(), journal, durability, store.version),
            checkpointer: Checkpointer::new(shared.clone(), store.files),
            merger: Merger::new(shared.clone()),
        };
        for checkpoint in store.replayed {
            shared.checkpoints.push(checkpoint);
        }
        let engine = Self {
            watches: Watches::new(shared.clone()),
            shared,
            resolver: Arc::default(),
            publisher: None,
            threads: Mutex::default(),
            opened_at: store.version,
            id,
        };
        (engine, committer)
    }

    fn spawn_all(&mut self, committer: Committer) -> io::Result<()> {
        let Committer {
            resolver,
            publisher,
            checkpointer,
            merger,
        } = committer;
        self.spawn("keyspace-checkpointer", || checkpointer.run())?;
        self.shared.merges.start();
        let spawned = self.spawn("keyspace-merger", || merger.run());
        // The checkpointer waits for the merger.
        spawned.inspect_err(|_| self.shared.merges.end())?;
        let shared = self.shared.clone();
        let publisher = Arc::new(Mutex::new(publisher));
        self.publisher = Some(publisher.clone());
        self.spawn("keyspace-publisher", move || {
            Publisher::run(&shared, &publisher)
        })?;
        *self.resolver.lock() = Some(resolver);
        let shared = self.shared.clone();
        let resolver = self.resolver.clone();
        self.spawn("keyspace-resolver", move || resolve(&shared, &resolver))
    }

    fn spawn(
        &self,
        name: &str,
        run: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let shared = self.shared.clone();
        let thread = threads::spawn(self.environment(), name, move || {
            let guard = EndOnPanic(&shared);
            let ended = run();
            drop(guard);
            ended
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Returns the version before the first one of this opening.
    pub(crate) fn opened_at(&self) -> i64 {
        self.opened_at
    }

    /// Returns a read version that is at least every acknowledged commit version, and its state.
    pub(crate) fn read_version(&self) -> Result<(i64, Snapshot)> {
        let (version, state) = self.shared.timeline.read_version()?;
        if self.shared.timeline.wants_clock_frame() {
            self.shared.pipeline.call_publisher();
        }
        Ok((version, Snapshot::new(version, state, self.shared.clone())))
    }

    /// Returns the state to read at a version that was obtained elsewhere.
    ///
    /// # Errors
    /// `transaction_too_old` if the version is older than five seconds, or its state is no longer kept.
    /// `future_version`, at once, if the version was not assigned yet.
    pub(crate) fn snapshot_at(&self, version: i64) -> Result<Snapshot> {
        let state = self.shared.timeline.state_at(version)?;
        Ok(Snapshot::new(version, state, self.shared.clone()))
    }

    /// Gives a turn to a commit of `bytes` bytes. Returns how long the commit must wait before it is sent,
    /// because checkpoints do not keep up with commits.
    pub(crate) fn wait_for_turn(&self, bytes: usize) -> Duration {
        let now = self.environment().now();
        self.shared.checkpoints.pace(now, bytes)
    }

    /// Sends a commit immediately, and returns a future of its result.
    ///
    /// # Errors
    /// - `not_committed`, `transaction_too_old`
    /// - `commit_proxy_memory_limit_exceeded` if too many commits wait
    /// - `commit_unknown_result` if the store fails during this commit
    /// - [`Error::Poisoned`](crate::Error::Poisoned) if the store failed before it
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the commit.
    pub(crate) fn commit(
        &self,
        request: CommitRequest,
    ) -> impl Future<Output = Result<Commit>> + Send + use<> {
        let sent = self.send(request);
        async {
            sent?
                .await
                .unwrap_or(Err(Code::COMMIT_UNKNOWN_RESULT.into()))
        }
    }

    /// Copies the newest state to a new store at `path`. Blocks until the copy is done.
    pub(crate) fn backup(&self, path: &Path) -> Result<(), OpenError> {
        location::write_copy(path, |file| self.copy_to(file, path))
    }

    /// Reads all blocks of the runs, and checks them. If one is damaged, the store ends.
    pub(crate) fn verify(&self, progress: impl FnMut(u64, u64)) -> Result<Verified> {
        let (_, layers) = self.newest_layers()?;
        let verified = verify::runs(layers.runs(), progress);
        verified.map_err(|cause| self.shared.fail(cause))
    }

    /// Returns the newest state, which can then be read for any time, and its version.
    pub(crate) fn newest_layers(&self) -> Result<(i64, Layers)> {
        let (_, state) = self.shared.timeline.read_version()?;
        let Some(layers) = state.layers() else {
            self.shared.timeline.check()?;
            return Err(Code::TRANSACTION_TOO_OLD.into());
        };
        Ok((state.version(), layers))
    }

    /// Copies the newest state to an empty file, which becomes the file of a store at `path`.
    pub(crate) fn copy_to(&self, file: File, path: &Path) -> Result<(), OpenError> {
        let (version, rows) = self.newest_layers()?;
        let meta = Meta {
            last_version: version,
            id: self.id,
            log: None,
        };
        let options = RunStoreOptions {
            cache_bytes: 0,
            ..self.shared.runs.options().clone()
        };
        backup::write(file, path, options, meta, |add| {
            let failed = |cause| CopyError::Read(OpenError::Store(self.shared.fail(cause)));
            let mut merge = rows.all_rows();
            while let Some((key, value)) = merge.next_row().map_err(failed)? {
                add(key, value)?;
            }
            Ok(())
        })
    }

    /// Reads the first rows of a state from a key on, about `max_bytes` bytes of them, from the store's file and not
    /// from the cache. Returns them, and whether there are more.
    pub(crate) fn copy_rows(
        &self,
        state: &Layers,
        begin: &[u8],
        max_bytes: usize,
    ) -> Result<(Vec<KeyValue>, bool)> {
        let rows = state.rows_from(begin, max_bytes);
        rows.map_err(|cause| self.shared.fail(cause))
    }

    /// Returns the random name of the store.
    pub(crate) fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Waits until the store fails, and returns the error of every operation from then on.
    pub(crate) async fn failed(&self) -> Error {
        loop {
            let ended = self.shared.ended.notified();
            match self.shared.timeline.check() {
                Err(error) if error.code() != Some(Code::TRANSACTION_CANCELLED) => return error,
                _ => ended.await,
            }
        }
    }

    /// Runs what must not panic, on a thread that serves the store. If it panics, ends the store.
    pub(crate) fn or_poison<T>(&self, serve: impl FnOnce() -> T) -> Option<T> {
        self.shared.or_poison(serve)
    }

    pub(crate) fn watches(&self) -> &Watches {
        &self.watches
    }

    pub(crate) fn environment(&self) -> &Environment {
        self.shared.timeline.environment()
    }

    /// Returns whether this is a thread of the engine.
    pub(crate) fn is_here(&self) -> bool {
        let is_here = |thread: &JoinHandle<_>| thread.thread().id() == thread::current().id();
        // Another thread that ends the engine holds the lock.
        self.threads
            .try_lock()
            .is_some_and(|threads| threads.iter().any(is_here))
    }

    /// Finishes the commits that were sent, ends the threads, and closes the file. Blocks until that is
    /// done. Fails if the store has failed, or fails while it closes. A second call does nothing.
    pub(crate) fn shut_down(&self, ending: Ending) -> Result<()> {
        let _ = self.shared.ending.set(ending);
        // Hold the lock until the threads have ended, so that a second call waits, too.
        let mut threads = self.threads.lock();
        self.shared.queue.close();
        self.shared.pipeline.hurry();
        self.shared.merges.hurry();
        let is_here = |thread: &JoinHandle<_>| thread.thread().id() == thread::current().id();
        // A thread of the engine may wake a task that drops the last handle. It cannot wait for itself, so
        // the threads end on their own.
        if threads.iter().any(is_here) {
            return Ok(());
        }
        let ended: Vec<_> = threads.drain(..).map(JoinHandle::join).collect();
        ended.into_iter().try_for_each(|ended| match ended {
            Ok(ended) => ended,
            Err(_panic) => self.shared.timeline.check(),
        })
    }

    fn send(&self, request: CommitRequest) -> Result<oneshot::Receiver<Result<Commit>>> {
        let read_version = match request.read_version {
            Some(version) => {
                self.shared.timeline.check()?;
                version
            }
            None => self.shared.timeline.read_version()?.0,
        };
        let (verdict, receiver) = oneshot::channel();
        let commit = PendingCommit {
            request,
            read_version,
            verdict,
        };
        self.shared.queue.push(commit).or_else(|refusal| {
            self.shared.timeline.check()?;
            Err(refusal)
        })?;
        if !self.resolve_here() {
            self.shared.queue.wake();
        } else if !self.publish_here() {
            self.shared.pipeline.offer();
        }
        Ok(receiver)
    }

    /// Resolves the waiting commits on the caller's thread, which saves waking the resolver's thread.
    /// Returns false if that might take long, or if another thread is resolving.
    fn resolve_here(&self) -> bool {
        let shared = &*self.shared;
        let Some(mut resolver) = self.resolver.try_lock() else {
            return false;
        };
        let Some(resolver) = resolver.as_mut() else {
            return false;
        };
        let is_quick =
            shared.queue.is_short() && shared.pipeline.has_room() && shared.checkpoints.has_room();
        if !is_quick {
            return false;
        }
        // If it fails, the store has ended.
        let _ = shared.or_poison(|| resolver.step());
        true
    }

    /// Publishes the open batch on the caller's thread, which saves waking the publisher's thread and, when
    /// that has published, the caller's. Returns false if that might take long, if more commits might join
    /// the batch, or if another thread is publishing.
    fn publish_here(&self) -> bool {
        let Some(mut publisher) = self.publisher.as_ref().and_then(|it| it.try_lock()) else {
            return false;
        };
        let stepped = self.shared.or_poison(|| publisher.step_here());
        stepped.unwrap_or(true)
    }
}

/// Resolves commits until the queue is closed and empty, or the store has ended.
fn resolve(shared: &EngineShared, resolver: &Mutex<Option<Resolver>>) -> Result<()> {
    while shared.pipeline.wait_for_room()
        && shared.checkpoints.wait_for_room()
        && shared.queue.wait()
    {
        resolver.lock().as_mut().map_or(Ok(()), Resolver::step)?;
        shared.pipeline.offer();
    }
    let last = resolver.lock().take();
    if let Some(last) = last {
        last.finish();
    }
    Ok(())
}

/// Runs the steps of committing and of merging, on four threads or one step at a time.
pub(crate) struct Committer {
    resolver: Resolver,
    publisher: Publisher,
    checkpointer: Checkpointer,
    merger: Merger,
}

#[cfg(test)]
impl Engine {
    /// Lets callers resolve their commits. Returns the publisher.
    pub(crate) fn resolve_on_callers(&self, committer: Committer) -> Publisher {
        *self.resolver.lock() = Some(committer.resolver);
        committer.publisher
    }

    pub(crate) fn pipeline(&self) -> &Pipeline {
        &self.shared.pipeline
    }

    /// Ends the store, as an error of its file does.
    pub(crate) fn fail(&self, cause: FileError) {
        drop(self.shared.fail(cause));
    }
}

#[cfg(test)]
impl Committer {
    /// Only resolves the commits that wait.
    pub(crate) fn resolve(&mut self) -> Result<()> {
        self.resolver.step()
    }

    /// Resolves the commits that wait, after the store has ended in the meantime.
    pub(crate) fn resolve_late(&mut self, end: impl FnOnce()) -> Result<()> {
        let commits = self.resolver.shared().queue.take();
        end();
        self.resolver.resolve_taken(commits)
    }

    /// Publishes the open batch, after the store has ended in the meantime.
    pub(crate) fn publish_late(&mut self, end: impl FnOnce()) -> Result<()> {
        let batch = self
            .resolver
            .shared()
            .pipeline
            .take()
            .expect("a commit waits");
        end();
        self.publisher.commit(batch)
    }

    /// Writes the store's record to its file.
    pub(crate) fn write_record(&mut self) -> Result<(), FileError> {
        self.checkpointer.write_record()
    }

    /// Only publishes the open batch.
    pub(crate) fn publish(&mut self) -> Result<()> {
        self.publisher.step()
    }

    /// Only publishes the open batch, as the publisher's thread does.
    pub(crate) fn publish_on_thread(&mut self) -> Result<()> {
        self.publisher.step_on_thread()
    }

    /// Only publishes the open batch, as its caller does. Returns false if the caller leaves that to the
    /// thread.
    pub(crate) fn publish_here(&mut self) -> bool {
        self.publisher.step_here()
    }

    /// Only writes a clock frame, so that the clock can continue.
    pub(crate) fn write_clock(&mut self) -> Result<()> {
        self.publisher.write_clock()
    }

    /// Does all pending work on this thread.
    pub(crate) fn step(&mut self) -> Result<()> {
        self.resolve()?;
        self.publish()?;
        while self.checkpointer.step()? {
            while self.merge()? {}
        }
        Ok(())
    }

    /// Does what the merger does in a store at rest, and lets go of states that are too old.
    pub(crate) fn rest(&mut self, lets_window_go: bool) -> Result<()> {
        let mut has_merged = false;
        while self.merger.step_or_fail(true)? {
            has_merged = true;
        }
        if has_merged && lets_window_go {
            self.merger.let_window_go();
            self.resolve()?;
            self.publish()?;
        }
        self.merger.expire();
        Ok(())
    }

    fn merge(&self) -> Result<bool> {
        self.merger.step_or_fail(false)
    }

    /// Closes the store, on this thread.
    pub(crate) fn close(mut self) -> Result<()> {
        self.step()?;
        self.resolver.finish();
        self.publisher.finish()?;
        while self.checkpointer.step()? {}
        self.checkpointer.finish()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The failure was logged, and `Embedded::close` would return it.
        let _ = self.shut_down(Ending::Drop);
    }
}
