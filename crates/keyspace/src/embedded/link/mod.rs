//! The connection between a client and the owner of a store.
//!
//! Transactions stay in the process that began them: they hold their writes, their conflict ranges and the rows that
//! they have read, as FoundationDB's client does. What crosses the connection is in [`wire`]: reads, commits and
//! watches. The [`Link`] is the client's end, a [`host`] the owner's.
//!
//! # Order
//!
//! The owner takes a client's requests in the order in which they were sent. A read version that was asked for after a
//! commit was sent is therefore not older than what that commit was judged against.
//!
//! # The end
//!
//! Nothing that was sent is sent again. When the connection ends, a read fails with `transaction_too_old`, a commit
//! with `commit_unknown_result`, and a watch fires.

mod frames;
mod host;
pub(super) mod hosts;
#[cfg(unix)]
pub(super) mod socket;
#[cfg(test)]
mod tests;
pub(super) mod wire;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use bytes::Bytes;
use futures::future::{self, Either};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use self::frames::{Incoming, Outgoing};
use self::wire::{Ask, Found, Greeting, Hello, Refusal, Reply, Request, Welcome};
#[cfg(unix)]
use super::disk::presence::Presence;
use super::engine::CommitRequest;
use super::engine::watch::{Registry, WatchFuture, WatchSetter};
use super::options::Durability;
use crate::env::Environment;
use crate::error::{Code, Error, Result, StorageFailure};
use crate::mutation::Versionstamp;
use crate::transaction::Commit;

/// How many bytes may wait to be sent before commits fail.
const MAX_UNSENT_BYTES: usize = 64 << 20;

/// The end of a connection in a process that does not own the store. It has one thread.
pub(crate) struct Link {
    shared: Arc<Shared>,
    runtime: Handle,
    /// The number of outstanding watches.
    watches: Arc<Registry>,
    environment: Environment,
    welcome: Welcome,
    /// Shows this owner of the store, and the next one, that there is a client. `None` after the end.
    #[cfg(unix)]
    presence: Mutex<Option<Presence>>,
}

/// Why there is no connection to an owner.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreachable {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// What the transactions and the thread share.
struct Shared {
    outgoing: Outgoing,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    last_number: u64,
    /// What waits for a reply, by the number of its request.
    waiting: BTreeMap<u64, Waiting>,
    /// Why the connection has ended.
    end: Option<Error>,
}

/// Called with the read version and what a read found.
type OnAnswer = Box<dyn FnOnce(Result<(i64, Found)>) + Send>;

enum Waiting {
    Read(OnAnswer),
    Commit(oneshot::Sender<Result<Committed>>),
    Watch(oneshot::Sender<Result<()>>),
}

/// The result of a commit, and the read version that it used.
pub(crate) struct Committed {
    pub(crate) read_version: i64,
    pub(crate) commit: Commit,
}

impl Link {
    /// Connects to the owner of a store. Blocks until it answers, but no longer than `limit`.
    pub(crate) fn connect<S: AsyncRead + AsyncWrite>(
        stream: impl FnOnce() -> io::Result<S> + Send + 'static,
        durability: Option<Durability>,
        environment: Environment,
        limit: Duration,
    ) -> Result<Self, Unreachable> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let shared = Arc::new(Shared {
            outgoing: Outgoing::default(),
            calls: Mutex::default(),
        });
        let hello = Hello::new(environment.random_bytes(), durability);
        let (answer, welcome) = mpsc::channel();
        let thread = thread::Builder::new().name("keyspace-link".to_owned());
        thread.spawn({
            let (shared, env) = (shared.clone(), environment.clone());
            move || {
                let guard = EndOnPanic(&shared);
                runtime.block_on(shared.run(stream, &hello, answer, &env, limit));
                drop(guard);
            }
        })?;
        // A panic of the thread was reported there.
        let welcome = welcome.recv().map_err(io::Error::other)??;
        Ok(Self {
            shared,
            runtime: handle,
            watches: Arc::default(),
            environment,
            welcome,
            #[cfg(unix)]
            presence: Mutex::default(),
        })
    }

    /// Keeps this part in those who have the store open.
    #[cfg(unix)]
    pub(crate) fn among(self, presence: Presence) -> Self {
        *self.presence.lock() = Some(presence);
        self
    }

    /// Returns what the owner has said of the store.
    pub(crate) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Begins a transaction.
    pub(crate) fn begin(&self) -> LinkTransaction {
        LinkTransaction {
            shared: self.shared.clone(),
            number: self.shared.next_number(),
            is_open: false,
        }
    }

    /// Creates a watch, unless `max` watches are outstanding.
    pub(crate) fn create_watch(&self, max: usize) -> Result<(WatchSetter, WatchFuture)> {
        self.watches.create(max)
    }

    /// Makes `setter` fire once the value of `key` differs from `baseline`.
    pub(crate) fn arm(&self, key: Bytes, baseline: Option<Bytes>, setter: WatchSetter) {
        let (sender, changed) = oneshot::channel();
        let sent = self
            .shared
            .send(Request::Watch { key, baseline }, Waiting::Watch(sender));
        let number = match sent {
            Ok(number) => number,
            Err(error) => return setter.fail(error),
        };
        let shared = self.shared.clone();
        let mut armed = Armed(Some(setter));
        self.runtime.spawn(async move {
            let changed = tokio::select! {
                biased;
                changed = changed => changed,
                () = armed.dropped() => return shared.forget_watch(number),
            };
            if let Ok(Err(error)) = changed {
                armed.fail(error);
            }
        });
    }

    /// Ends the connection. Reads under way fail with `transaction_too_old`, commits with `commit_unknown_result`.
    pub(crate) fn close(&self) {
        self.shared.end(Code::TRANSACTION_CANCELLED.into());
        #[cfg(unix)]
        drop(self.presence.lock().take());
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// A transaction, as the owner knows it.
pub(crate) struct LinkTransaction {
    shared: Arc<Shared>,
    number: u64,
    /// Whether the owner keeps something for it.
    is_open: bool,
}

impl LinkTransaction {
    /// Sends a read at the transaction's read version. `answer` is called on the thread of the connection.
    pub(crate) fn read(
        &mut self,
        at: Option<i64>,
        ask: Ask,
        answer: impl FnOnce(Result<(i64, Found)>) + Send + 'static,
    ) -> Result<()> {
        self.is_open = true;
        let read = Request::Read {
            transaction: self.number,
            at,
            ask,
        };
        self.shared.send(read, Waiting::Read(Box::new(answer)))?;
        Ok(())
    }

    /// Sends a commit immediately, and returns a future of its result. The owner then forgets the transaction.
    pub(crate) fn commit(
        &mut self,
        request: CommitRequest,
    ) -> impl Future<Output = Result<Committed>> + Send + use<> {
        self.is_open = false;
        let (sender, committed) = oneshot::channel();
        let sent = if self.shared.outgoing.bytes() > MAX_UNSENT_BYTES {
            Err(Code::COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED.into())
        } else {
            let commit = Request::Commit {
                transaction: self.number,
                request,
            };
            self.shared.send(commit, Waiting::Commit(sender))
        };
        async {
            sent?;
            let unknown = |_| Err(Code::COMMIT_UNKNOWN_RESULT.into());
            committed.await.unwrap_or_else(unknown)
        }
    }
}

impl Drop for LinkTransaction {
    fn drop(&mut self) {
        if self.is_open {
            let end = Request::End {
                transaction: self.number,
            };
            self.shared.outgoing.send_later(0, &end);
        }
    }
}

impl Shared {
    fn next_number(&self) -> u64 {
        self.calls.lock().next_number()
    }

    /// Sends a request, and returns its number.
    fn send(&self, request: Request, waiting: Waiting) -> Result<u64> {
        let number = {
            let mut calls = self.calls.lock();
            if let Some(error) = &calls.end {
                return Err(error.clone());
            }
            let number = calls.next_number();
            calls.waiting.insert(number, waiting);
            number
        };
        self.outgoing.send(number, &request);
        Ok(number)
    }

    fn forget_watch(&self, watch: u64) {
        if self.calls.lock().waiting.remove(&watch).is_some() {
            self.outgoing.send_later(0, &Request::Unwatch { watch });
        }
    }

    /// Serves a connection until it ends. Sends the owner's answer to the greeting, first of all.
    async fn run<S: AsyncRead + AsyncWrite>(
        &self,
        stream: impl FnOnce() -> io::Result<S>,
        hello: &Hello,
        answer: mpsc::Sender<Result<Welcome, Unreachable>>,
        env: &Environment,
        limit: Duration,
    ) {
        let stream = match stream() {
            Ok(stream) => stream,
            Err(error) => return drop(answer.send(Err(error.into()))),
        };
        let (reader, writer) = tokio::io::split(stream);
        let mut replies = Incoming::new(reader);
        self.outgoing.send(0, hello);
        let mut writing = std::pin::pin!(self.outgoing.write(writer));
        let greeted = {
            let greeting = std::pin::pin!(env.timeout(limit, replies.next()));
            match future::select(greeting, &mut writing).await {
                Either::Left((Some(greeting), _)) => greeting,
                Either::Left((None, _)) => Err(io::ErrorKind::TimedOut.into()),
                Either::Right((ended, _)) => ended.map(|()| None),
            }
        };
        let welcome = match greeted {
            Ok(Some((_, Greeting::Welcome(welcome)))) => Ok(welcome),
            Ok(Some((_, Greeting::Refused(refusal)))) => Err(refusal.into()),
            Ok(None) => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
            Err(error) => Err(error.into()),
        };
        let is_welcome = welcome.is_ok();
        // If the opening has panicked, the receiver is gone.
        let _ = answer.send(welcome);
        if !is_welcome {
            return;
        }
        replies.trust();
        let reading = std::pin::pin!(self.read(replies));
        let (Either::Left((ended, _)) | Either::Right((ended, _))) =
            future::select(reading, writing).await;
        let cause = ended.err().unwrap_or_else(|| {
            let reason = "the process that owned the store has ended";
            io::Error::new(io::ErrorKind::ConnectionReset, reason)
        });
        let cause = StorageFailure::new(cause);
        self.end(Error::Poisoned { cause });
    }

    async fn read(&self, mut replies: Incoming<impl AsyncRead + Unpin>) -> io::Result<()> {
        while let Some((number, reply)) = replies.next().await? {
            if let Reply::Ended(failure) = reply {
                // The replies to what was sent still come.
                self.calls.lock().end.get_or_insert(failure.into());
                continue;
            }
            let waiting = self.calls.lock().waiting.remove(&number);
            // A watch may have been dropped in the meantime.
            if let Some(waiting) = waiting {
                waiting.answer(reply);
            }
        }
        Ok(())
    }

    /// Ends the connection. Later requests get `error`, unless it had already ended.
    fn end(&self, error: Error) {
        let waiting = {
            let mut calls = self.calls.lock();
            calls.end.get_or_insert(error);
            std::mem::take(&mut calls.waiting)
        };
        self.outgoing.close();
        for waiting in waiting.into_values() {
            waiting.lose();
        }
    }
}

impl Calls {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

impl Waiting {
    fn answer(self, reply: Reply) {
        match (self, reply) {
            (Self::Read(answer), Reply::Found { version, found }) => answer(Ok((version, found))),
            (Self::Read(answer), Reply::Failed(failure)) => answer(Err(failure.into())),
            (Self::Commit(sender), reply) => {
                // The caller may have stopped waiting, here and below.
                let _ = sender.send(committed(reply));
            }
            (Self::Watch(sender), Reply::Failed(failure)) => drop(sender.send(Err(failure.into()))),
            (Self::Watch(sender), _) => drop(sender.send(Ok(()))),
            (read @ Self::Read(_), _) => read.lose(),
        }
    }

    /// Ends the wait, because there will be no reply.
    fn lose(self) {
        match self {
            Self::Read(answer) => answer(Err(Code::TRANSACTION_TOO_OLD.into())),
            Self::Commit(sender) => drop(sender.send(Err(Code::COMMIT_UNKNOWN_RESULT.into()))),
            Self::Watch(sender) => drop(sender.send(Ok(()))),
        }
    }
}

fn committed(reply: Reply) -> Result<Committed> {
    match reply {
        Reply::Committed {
            read_version,
            versionstamp,
        } => {
            let stamp = Versionstamp::from_bytes(versionstamp);
            Ok(Committed {
                read_version,
                commit: Commit {
                    version: stamp.commit_version(),
                    versionstamp: Some(stamp),
                },
            })
        }
        Reply::Failed(failure) => Err(failure.into()),
        Reply::Found { .. } | Reply::Changed | Reply::Ended(_) => {
            Err(Code::COMMIT_UNKNOWN_RESULT.into())
        }
    }
}

/// A watch that fires when it is dropped: when the value has changed, or the connection has ended.
struct Armed(Option<WatchSetter>);

impl Armed {
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

impl Drop for Armed {
    fn drop(&mut self) {
        if let Some(setter) = self.0.take() {
            setter.fire();
        }
    }
}

/// Ends the connection if its thread panics.
struct EndOnPanic<'a>(&'a Shared);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let cause =
                StorageFailure::new(io::Error::other("the thread of the connection panicked"));
            self.0.end(Error::Poisoned { cause });
        }
    }
}
