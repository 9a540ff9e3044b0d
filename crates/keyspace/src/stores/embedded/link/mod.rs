//! The connection between a client and the owner of a store.
//!
//! Transactions stay in the process that began them: they hold their writes, their conflict ranges and the rows that
//! they have read, as FoundationDB's client does. What crosses the connection is in [`wire`](super::wire): reads,
//! commits and watches. The [`Link`] is the client's end, and [`owner`](super::owner) has the owner's.
//!
//! # Order
//!
//! The owner takes a client's requests in the order in which they were sent. A read version that was asked for after a
//! commit was sent is therefore not older than what that commit was judged against. A new connection of a client is
//! served once all commits of its former one have their results.
//!
//! # The end of an owner
//!
//! When the owner ends, its clients [elect](election) the next one among them. A transaction belongs to one owner, that
//! of its first request. No commit is sent again:
//!
//! - a commit that waits for its result fails with `commit_unknown_result` if the owner was killed, and with
//!   `transaction_too_old` if the owner has closed the store without reading it
//! - a transaction that has a read version fails with `transaction_too_old`
//! - one that has none waits for the next owner, and keeps its writes
//! - a watch fires
//!
//! If the store fails, its clients fail as their owner does, and do not elect another: the disk may not hold what was
//! written to it.

#[cfg(unix)]
pub(super) mod candidate;
mod connection;
#[cfg(unix)]
mod election;
#[cfg(test)]
mod tests;
mod transaction;
mod whole;

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
#[cfg(unix)]
use futures::future;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

#[cfg(unix)]
use self::candidate::{Candidate, Elected};
use self::connection::{Connection, Waiting};
#[cfg(unix)]
use super::disk::open_errors::open_error;
use super::engine::watch::{Registry, WatchFuture, WatchSetter};
use super::owner::Owner;
#[cfg(unix)]
use super::repeats::backoff;
use super::threads;
use super::wire::frames::{Incoming, is_hang_up};
use super::wire::greeting::{Greeted, Unreachable, greet};
use super::wire::{Hello, Reply, Request, Welcome};
use crate::contract::env::Environment;
use crate::contract::error::{Code, Error, OpenError, Result, StorageFailure};

pub(super) use self::connection::Unanswered;
pub(super) use self::transaction::LinkTransaction;

/// How long the last frames of a link may take to be written.
const LAST_WRITE: Duration = Duration::from_secs(1);

/// What a pipe holds, in bytes.
pub(super) const PIPE_BYTES: usize = 64 << 10;

/// How a handle reaches a store that another process owns. It has one thread.
///
/// When the owner ends, this process may become the next one. The transactions that were begun before then reach the
/// store over a pipe to [`owner`](Self::owner).
pub(crate) struct Link {
    shared: Arc<Shared>,
    runtime: Handle,
    /// The number of outstanding watches.
    watches: Arc<Registry>,
    /// `None` after the end.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What an opening has become.
#[cfg(unix)]
pub(crate) enum Joined {
    Owner(Arc<Owner>),
    Client(Link),
}

/// What the transactions and the thread share.
struct Shared {
    environment: Environment,
    connections: Mutex<Connections>,
    /// What the last owner has said of the store, `None` before the first one.
    known: Mutex<Option<Welcome>>,
    /// Set when this process has become the owner.
    owner: OnceLock<Arc<Owner>>,
    /// The store, as long as this process owns it as a viewer. Its transactions reach it over a pipe.
    viewed: Mutex<Option<Arc<Owner>>>,
    /// Why there will be no other owner. Set before the connections get it.
    end: OnceLock<Error>,
    /// Ends the thread.
    stop: Notify,
}

#[derive(Default)]
struct Connections {
    /// The connection for the next transactions: it is open, or will be when there is an owner.
    next: Arc<Connection>,
    /// The connection to an owner that closes the store.
    leaving: Option<Arc<Connection>>,
    /// Whether this process is the owner, so that other transactions reach the store without this link.
    is_second_way: bool,
}

impl Link {
    /// Reaches the owner at the other end of a pipe. Blocks until it answers.
    pub(crate) fn over(pipe: DuplexStream, environment: Environment) -> Result<Self, Unreachable> {
        let hello = Hello::new(environment.random_bytes(), None, false);
        let (answer, greeted) = mpsc::channel();
        let link = Self::start(environment, |shared| async move {
            let owner = match greet(pipe, &hello).await {
                Ok(owner) => owner,
                Err(error) => return drop(answer.send(Err(error))),
            };
            shared.know(&owner.welcome);
            // If the opening has panicked, the receiver is gone.
            let _ = answer.send(Ok(()));
            shared.use_only(owner).await;
        })?;
        // A panic of the thread was reported there.
        greeted.recv().map_err(io::Error::other)??;
        Ok(link)
    }

    /// Becomes a client of the owner of a store, or its owner. Blocks until that is so, up to `limit`.
    #[cfg(unix)]
    pub(crate) fn join(mut candidate: Candidate, limit: Duration) -> Result<Joined, OpenError> {
        let (answer, elected) = mpsc::channel();
        let path = candidate.path().to_owned();
        let failed = |cause| open_error(&path, cause);
        let link = Self::start(candidate.environment().clone(), move |shared| async move {
            let first = match candidate.elect(Some(limit)).await {
                Ok(Elected::Owner(owner)) if !candidate.is_viewer() => {
                    return drop(answer.send(Ok(Some(owner))));
                }
                Ok(seat) => seat,
                Err(error) => return drop(answer.send(Err(error))),
            };
            shared.know(first.welcome());
            if let Elected::Owner(owner) = &first {
                *shared.viewed.lock() = Some(owner.clone());
            }
            let _ = answer.send(Ok(None));
            shared.follow(candidate, first).await;
        });
        let link = link.map_err(failed)?;
        // A panic of the thread was reported there.
        let elected = elected
            .recv()
            .map_err(|gone| failed(io::Error::other(gone)))?;
        Ok(match elected? {
            Some(owner) => Joined::Owner(owner),
            None => Joined::Client(link),
        })
    }

    /// Starts the thread.
    fn start<F: Future<Output = ()>>(
        environment: Environment,
        run: impl FnOnce(Arc<Shared>) -> F + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            environment: environment.clone(),
            connections: Mutex::default(),
            known: Mutex::default(),
            owner: OnceLock::new(),
            viewed: Mutex::default(),
            end: OnceLock::new(),
            stop: Notify::new(),
        });
        let (runtime, thread) = threads::spawn_with_runtime(&environment, "keyspace-link", {
            let shared = shared.clone();
            move |runtime| {
                let guard = EndWithThread(&shared);
                runtime.block_on(run(shared.clone()));
                drop(guard);
            }
        })?;
        Ok(Self {
            shared,
            runtime,
            watches: Arc::default(),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Returns the store, if this process has become its owner.
    pub(crate) fn owner(&self) -> Option<&Arc<Owner>> {
        self.shared.owner.get()
    }

    /// Returns whether this process owns the store as a viewer.
    pub(crate) fn is_viewed_here(&self) -> bool {
        self.shared.viewed.lock().is_some()
    }

    /// Returns the version before which all writers have ended, if one is known.
    pub(crate) fn alone_since(&self) -> Option<i64> {
        let known = self.shared.known.lock();
        known.as_ref().and_then(|known| known.alone_since)
    }

    /// Returns the random name of the store.
    fn store_id(&self) -> Option<[u8; 16]> {
        let known = self.shared.known.lock();
        known.as_ref().map(|known| known.store)
    }

    /// Returns whether the owner takes the commits of this handle in the order in which they are sent: all are sent
    /// here.
    pub(crate) fn orders_commits(&self) -> bool {
        !self.shared.connections.lock().is_second_way
    }

    pub(crate) fn environment(&self) -> &Environment {
        &self.shared.environment
    }

    /// Begins a transaction.
    pub(crate) fn begin(&self) -> LinkTransaction {
        LinkTransaction::new(self.shared.clone())
    }

    /// Creates a watch, unless `max` watches are outstanding.
    pub(crate) fn create_watch(&self, max: usize) -> Result<(WatchSetter, WatchFuture)> {
        self.watches.create(max)
    }

    /// Makes `setter` fire once the value of `key` differs from `baseline`.
    pub(crate) fn arm(&self, key: Bytes, baseline: Option<Bytes>, setter: WatchSetter) {
        let (sender, changed) = oneshot::channel();
        let watch = Request::Watch { key, baseline };
        let (connection, sent) = {
            let connections = self.shared.connections.lock();
            let sent = connections.next.send(&watch, Waiting::Watch(sender));
            (connections.next.clone(), sent)
        };
        let number = match sent {
            Ok(number) => number,
            Err(error) => return setter.fail(error),
        };
        let mut armed = WatchGuard(Some(setter));
        self.runtime.spawn(async move {
            let changed = tokio::select! {
                biased;
                changed = changed => changed,
                () = armed.dropped() => return connection.forget_watch(number),
            };
            if let Ok(Err(error)) = changed {
                armed.fail(error);
            }
        });
    }

    /// Ends the link. If this process has become the owner, closes the store. Otherwise reads under way fail with
    /// `transaction_cancelled`, and commits with `commit_unknown_result`.
    pub(crate) fn close(&self) -> Result<()> {
        // Set first: when the connection ends, there is no other one.
        let _ = self.shared.end.set(Code::TRANSACTION_CANCELLED.into());
        // Answers the commits that were sent to it.
        let closed = self.close_owner();
        self.end();
        // The thread may have opened the store in the meantime.
        closed.and_then(|()| self.close_owner())
    }

    fn close_owner(&self) -> Result<()> {
        let viewed = self.shared.viewed.lock().clone();
        let owner = self.owner().cloned().or(viewed);
        owner.map_or(Ok(()), |owner| owner.close())
    }

    /// Ends the connection, and the thread.
    fn end(&self) {
        self.shared.end(Code::TRANSACTION_CANCELLED.into());
        let thread = self.thread.lock().take();
        // A thread that drops the last handle cannot wait for itself.
        let is_other = |thread: &JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(thread) = thread.filter(is_other) {
            // A panic was reported there.
            let _ = thread.join();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Uses one connection, and then ends.
    async fn use_only<S: AsyncRead + AsyncWrite>(&self, owner: Greeted<S>) {
        let _ = self.talk(owner).await;
        let reason = "the process that owned the store has ended";
        self.end(poisoned(io::Error::other(reason)));
    }

    /// Follows one owner after the other. If this process becomes the owner, uses that one from then on.
    #[cfg(unix)]
    async fn follow(&self, mut candidate: Candidate, first: Elected) {
        let mut seat = first;
        loop {
            match seat {
                Elected::Client(owner) => {
                    let was_answered = self.talk(owner).await;
                    candidate.note_end(was_answered);
                }
                Elected::Owner(owner) if candidate.is_viewer() => {
                    self.own_alone(owner, &mut candidate).await;
                }
                Elected::Owner(owner) => return self.take_over(owner).await,
            }
            if self.end.get().is_some() {
                return self.close_after(candidate);
            }
            let elected = tokio::select! {
                elected = candidate.elect(None) => Some(elected),
                () = self.stop.notified() => None,
            };
            let Some(elected) = elected else {
                return self.close_after(candidate);
            };
            seat = match elected {
                Ok(next) => next,
                Err(error) => return self.end(poisoned(error)),
            };
            self.know(seat.welcome());
        }
    }

    /// Owns the store until an application wants it. All transactions reach it over a pipe, so those that can go on
    /// with the next owner.
    #[cfg(unix)]
    async fn own_alone(&self, owner: Arc<Owner>, candidate: &mut Candidate) {
        *self.viewed.lock() = Some(owner.clone());
        // Ends with the connection, as that to another owner does.
        let using = async {
            if let Some(greeted) = self.reach_here(&owner, true).await {
                self.talk(greeted).await;
            }
        };
        let handing_over = async {
            owner.hosts().wanted().await;
            candidate.hand_over(&owner).await;
            future::pending::<()>().await;
        };
        tokio::select! {
            () = using => {}
            () = handing_over => {}
        }
        *self.viewed.lock() = None;
    }

    /// Leaves the store when this handle was closed. If it is the last one, ends the store that an owner has left.
    #[cfg(unix)]
    fn close_after(&self, candidate: Candidate) {
        let end = self.end.get().and_then(Error::code);
        if end == Some(Code::TRANSACTION_CANCELLED) {
            candidate.leave();
        }
    }

    fn know(&self, welcome: &Welcome) {
        *self.known.lock() = Some(welcome.clone());
    }

    /// Lets transactions use the store in this process. Those that were begun before go on over a pipe.
    ///
    /// A commit that waits for an owner may have no read version. It must get one before another way to the store is
    /// open, on which a later commit could overtake it:
    ///
    /// 1. From now on, a commit without a read version is not sent over the pipe.
    /// 2. Those that were sent are in the engine once a later request has its reply.
    /// 3. New transactions use the owner.
    #[cfg(unix)]
    async fn take_over(&self, owner: Arc<Owner>) {
        tracing::info!("this process owns the store now");
        let Some(greeted) = self.reach_here(&owner, false).await else {
            return;
        };
        let (sender, taken) = oneshot::channel();
        let sent = {
            let mut connections = self.connections.lock();
            connections.is_second_way = true;
            let waiting = Waiting::Processes(sender);
            connections.next.send(&Request::Processes, waiting)
        };
        let open_second_way = async {
            if sent.is_ok() && taken.await.is_ok_and(|reply| reply.is_ok()) {
                // It was not set before.
                let _ = self.owner.set(owner);
            }
        };
        future::join(self.use_only(greeted), open_second_way).await;
    }

    /// Connects to the owner in this process, and tries again as long as there is no thread for that. `None` if this
    /// link ends, or the owner.
    #[cfg(unix)]
    async fn reach_here(&self, owner: &Owner, is_viewer: bool) -> Option<Greeted<DuplexStream>> {
        let hello = Hello::new(self.environment.random_bytes(), None, is_viewer);
        owner.hosts().expect(hello.client);
        let mut failures = 0;
        loop {
            let error = match greet_here(owner, &hello).await {
                Ok(greeted) => return Some(greeted),
                Err(_) if owner.hosts().is_closing() => return None,
                Err(error) => error,
            };
            if failures == 0 {
                tracing::warn!(%error, "this process owns the store, and its own handle waits");
            }
            tokio::select! {
                () = self.environment.sleep(backoff(failures)) => failures += 1,
                () = self.stop.notified() => return None,
            }
        }
    }

    /// Uses a connection until its end. Returns whether the owner has answered anything.
    async fn talk<S: AsyncRead + AsyncWrite>(&self, owner: Greeted<S>) -> bool {
        let connection = self.connections.lock().next.clone();
        if !connection.open() {
            // This link was closed meanwhile. What waits was answered, and must not be sent.
            return true;
        }
        if let Some(write_now) = owner.write_now {
            connection.outgoing.write_directly(write_now);
        }
        let was_answered = Cell::new(false);
        let reading = self.read(&connection, owner.replies, &was_answered);
        let mut reading = std::pin::pin!(reading);
        let mut writing = std::pin::pin!(connection.outgoing.write(owner.writer));
        let ended = tokio::select! {
            ended = &mut reading => ended,
            ended = &mut writing => match ended {
                // There may be last replies.
                Err(error) if is_hang_up(&error) => reading.await,
                ended => ended,
            },
            () = self.stop.notified() => {
                let written = self.environment.timeout(LAST_WRITE, writing).await;
                written.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
            }
        };
        match ended {
            Err(error) if is_hang_up(&error) => {
                tracing::debug!(%error, "the connection to the owner of the store has ended");
            }
            Err(error) => {
                tracing::warn!(%error, "the connection to the owner of the store has ended");
            }
            Ok(()) => {}
        }
        self.lose(&connection);
        was_answered.get()
    }

    async fn read(
        &self,
        connection: &Arc<Connection>,
        mut replies: Incoming<impl AsyncRead + Unpin>,
        was_answered: &Cell<bool>,
    ) -> io::Result<()> {
        while let Some((number, reply)) = replies.next().await? {
            was_answered.set(true);
            match reply {
                Reply::Leaving => self.connections.lock().leave(connection),
                Reply::Left => connection.note_end(),
                Reply::Ended(failure) => self.refuse(connection, failure.into()),
                reply => connection.answer(number, reply),
            }
        }
        Ok(())
    }

    /// Ends a connection whose owner has ended.
    fn lose(&self, connection: &Arc<Connection>) {
        let error = {
            let mut connections = self.connections.lock();
            connections.leave(connection);
            connections.leaving = None;
            let end = self.end.get();
            end.map_or(Code::TRANSACTION_TOO_OLD.into(), Error::clone)
        };
        connection.end(error);
    }

    /// Refuses what was not sent yet, because the store has failed. The replies to what was sent still come.
    fn refuse(&self, connection: &Arc<Connection>, error: Error) {
        let error = self.end.get_or_init(|| error).clone();
        let next = self.connections.lock().next.clone();
        if Arc::ptr_eq(&next, connection) {
            next.refuse(error);
        } else {
            next.end(error);
        }
    }

    /// Ends the link. Later requests get `error`, unless it had already ended.
    fn end(&self, error: Error) {
        let error = self.end.get_or_init(|| error).clone();
        let (next, leaving) = {
            let connections = self.connections.lock();
            (connections.next.clone(), connections.leaving.clone())
        };
        next.end(error.clone());
        if let Some(leaving) = leaving {
            leaving.end(error);
        }
        self.stop.notify_one();
    }
}

impl Connections {
    /// Lets no more transactions begin on a connection.
    fn leave(&mut self, connection: &Arc<Connection>) {
        if Arc::ptr_eq(&self.next, connection) {
            self.leaving = Some(std::mem::take(&mut self.next));
        }
    }
}

/// Connects to the owner in this process.
#[cfg(unix)]
async fn greet_here(owner: &Owner, hello: &Hello) -> Result<Greeted<DuplexStream>, Unreachable> {
    let (pipe, stream) = tokio::io::duplex(PIPE_BYTES);
    owner.hosts().serve(|| Ok(stream), || usize::MAX)?;
    greet(pipe, hello).await
}

fn poisoned(cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    let cause = StorageFailure::new(cause);
    Error::Poisoned { cause }
}

/// A watch that fires when it is dropped: when the value has changed, or the connection has ended.
struct WatchGuard(Option<WatchSetter>);

impl WatchGuard {
    /// Waits until the future of the watch is dropped.
    async fn dropped(&mut self) {
        if let Some(setter) = &mut self.0 {
            setter.dropped().await;
        }
    }

    fn fail(&mut self, error: Error) {
        if let Some(setter) = self.0.take() {
            setter.fail(error);
        }
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        if let Some(setter) = self.0.take() {
            setter.fire();
        }
    }
}

/// Ends the link when its thread does: nothing would answer what is sent then.
struct EndWithThread<'a>(&'a Shared);

impl Drop for EndWithThread<'_> {
    fn drop(&mut self) {
        self.0.end(if thread::panicking() {
            poisoned(io::Error::other("the thread of the link panicked"))
        } else {
            Code::TRANSACTION_CANCELLED.into()
        });
    }
}
