//! The clients of an owner.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures::future::{self, Either};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, Semaphore, watch};

use super::host::{Host, MAX_COMMIT_BYTES};
use crate::contract::env::Environment;
use crate::stores::embedded::backend::place::FileId;
use crate::stores::embedded::engine::Engine;
use crate::stores::embedded::options::Durability;
use crate::stores::embedded::processes::Process;
use crate::stores::embedded::threads;
use crate::stores::embedded::wire::frames::{Incoming, Outgoing, is_hang_up};
use crate::stores::embedded::wire::{Greeting, Hello, NAME, PROTOCOL, Refusal, Reply, Welcome};

/// The largest number of clients.
const MAX_CLIENTS: usize = 128;

/// How long a client may take to greet the owner, and to take its last replies.
const PATIENCE: Duration = Duration::from_secs(5);

/// The clients of a store, in the process that owns it. Each has a thread.
pub(crate) struct Hosts {
    engine: Arc<Engine>,
    welcome: Welcome,
    clients: Mutex<BTreeMap<[u8; 16], Client>>,
    /// The handle of this process that was a client before.
    own: OnceLock<[u8; 16]>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    last_thread: AtomicUsize,
    is_closing: AtomicBool,
    /// Notified when `is_closing` is set.
    closing: Notify,
    /// Notified when an application wants the store that a viewer owns. `None` in an application.
    wanted: Option<Notify>,
}

/// A client that was welcomed.
#[derive(Clone)]
struct Client {
    process: Process,
    outgoing: Arc<Outgoing>,
    stop: Arc<Notify>,
    /// Ends with the thread of the client.
    is_served: watch::Receiver<()>,
}

impl Hosts {
    pub(crate) fn new(
        engine: Arc<Engine>,
        file: Option<FileId>,
        alone_since: Option<i64>,
        durability: Durability,
        is_viewer: bool,
    ) -> Self {
        Self {
            welcome: Welcome {
                version: PROTOCOL,
                store: engine.id(),
                file,
                alone_since,
                durability,
            },
            engine,
            clients: Mutex::default(),
            own: OnceLock::new(),
            threads: Mutex::default(),
            last_thread: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
            closing: Notify::new(),
            wanted: if is_viewer { Some(Notify::new()) } else { None },
        }
    }

    /// Returns what the owner says of the store to its clients.
    pub(crate) fn greeting(&self) -> &Welcome {
        &self.welcome
    }

    /// Waits until an application wants the store that a viewer owns.
    pub(crate) async fn wanted(&self) {
        match &self.wanted {
            Some(wanted) => wanted.notified().await,
            None => future::pending().await,
        }
    }

    /// Serves a client on a thread of its own, until it leaves or sends what is no request. Each reply has at most
    /// `reply_rows()` rows.
    pub(crate) fn serve<S: AsyncRead + AsyncWrite>(
        self: &Arc<Self>,
        stream: impl FnOnce() -> io::Result<S> + Send + 'static,
        reply_rows: impl FnMut() -> usize + Send + 'static,
    ) -> io::Result<()> {
        let number = self.last_thread.fetch_add(1, Ordering::Relaxed) + 1;
        let hosts = self.clone();
        let name = format!("keyspace-client-{number}");
        let (_, thread) = threads::spawn_with_runtime(self.environment(), &name, move |runtime| {
            let served = hosts
                .engine
                .or_poison(|| runtime.block_on(async { hosts.greet(stream()?, reply_rows).await }));
            match served {
                Some(Err(error)) if is_hang_up(&error) => {
                    tracing::debug!(%error, "the connection of a client has ended");
                }
                Some(Err(error)) => tracing::warn!(%error, "the connection of a client has ended"),
                Some(Ok(())) | None => {}
            }
        })?;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn environment(&self) -> &Environment {
        self.engine.environment()
    }

    /// Returns the processes that have the store open, this one first.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let mut processes = vec![Process::this()];
        for client in self.clients.lock().values() {
            // One process may have several handles.
            if !processes.contains(&client.process) {
                processes.push(client.process.clone());
            }
        }
        processes
    }

    /// Returns whether this is a thread of a client.
    pub(crate) fn is_here(&self) -> bool {
        let threads = self.threads.lock();
        let is_here = |thread: &JoinHandle<()>| thread.thread().id() == thread::current().id();
        threads.iter().any(is_here)
    }

    /// Serves a handle of this process however many clients there are.
    pub(crate) fn expect(&self, client: [u8; 16]) {
        // There is one.
        let _ = self.own.set(client);
    }

    /// Returns whether no more clients are let in.
    #[cfg(unix)]
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    /// Lets no more clients in, and tells those that are there that the store is being closed.
    pub(crate) fn leave(&self) {
        let clients = self.clients.lock();
        if !self.is_closing.swap(true, Ordering::SeqCst) {
            for client in clients.values() {
                client.outgoing.send(0, &Reply::Leaving);
            }
        }
        self.closing.notify_waiters();
    }

    /// Ends all connections, once their replies were taken. Blocks until that is done.
    pub(crate) fn close(&self) {
        self.leave();
        for client in self.clients.lock().values() {
            client.stop.notify_one();
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        // A thread that drops the last handle cannot wait for itself.
        let is_other = |thread: &JoinHandle<()>| thread.thread().id() != thread::current().id();
        for thread in threads.into_iter().filter(is_other) {
            // A panic has ended the engine, and was reported there.
            let _ = thread.join();
        }
    }

    async fn greet(
        &self,
        stream: impl AsyncRead + AsyncWrite,
        reply_rows: impl FnMut() -> usize,
    ) -> io::Result<()> {
        let (reader, writer) = tokio::io::split(stream);
        let mut requests = Incoming::new(reader);
        let environment = self.engine.environment();
        let hello = tokio::select! {
            hello = environment.timeout(PATIENCE, requests.next::<Hello>()) => hello,
            () = self.wait_for_closing() => return Ok(()),
        };
        let Some((number, hello)) = hello.ok_or(io::ErrorKind::TimedOut)?? else {
            return Ok(());
        };
        let (serving, is_served) = watch::channel(());
        let client = Client {
            process: hello.process.clone(),
            outgoing: Arc::default(),
            stop: Arc::default(),
            is_served,
        };
        let outgoing = client.outgoing.clone();
        if let Err(refusal) = self.welcome(number, &hello, &client).await {
            outgoing.send(number, &Greeting::Refused(refusal));
            outgoing.close();
            return outgoing.write(writer).await;
        }
        // Also after a panic, so that the next connection of this client does not wait for this one.
        let _served = Served {
            hosts: self,
            stop: &client.stop,
            _serving: serving,
        };
        requests.trust();
        let commit_room = Arc::new(Semaphore::new(MAX_COMMIT_BYTES as usize));
        let mut host = Host::new(self, outgoing.clone(), commit_room.clone(), reply_rows);
        let served = {
            let reading = Box::pin(host.read(requests));
            let ended = std::pin::pin!(self.tell_end(&outgoing, &client.stop));
            let mut writing = std::pin::pin!(outgoing.write(writer));
            let serving = future::select(reading, ended);
            match future::select(serving, &mut writing).await {
                // The client has gone.
                Either::Left((Either::Left((ended, _)), _)) | Either::Right((ended, _)) => ended,
                Either::Left((Either::Right(((), reading)), _)) => {
                    // No request is read any more. One that waits for room for its commit would never get it.
                    drop(reading);
                    let last = async {
                        wait_for_commits(&commit_room).await;
                        outgoing.send(0, &Reply::Left);
                        outgoing.close();
                    };
                    let last = future::join(last, writing);
                    let in_time = environment.timeout(PATIENCE, last).await;
                    in_time.map_or(Err(io::ErrorKind::TimedOut.into()), |((), written)| written)
                }
            }
        };
        // The next connection of this client must not overtake them.
        wait_for_commits(&commit_room).await;
        served
    }

    /// Waits until no more clients are let in.
    async fn wait_for_closing(&self) {
        loop {
            let closing = self.closing.notified();
            if self.is_closing.load(Ordering::SeqCst) {
                return;
            }
            closing.await;
        }
    }

    /// Waits until the connection must end. Tells the client if the store fails before.
    async fn tell_end(&self, outgoing: &Outgoing, stop: &Notify) {
        let failed = std::pin::pin!(self.engine.failed());
        let stopped = std::pin::pin!(stop.notified());
        match future::select(failed, stopped).await {
            Either::Left((error, stopped)) => {
                outgoing.send(0, &Reply::Ended(error.into()));
                stopped.await;
            }
            Either::Right(_) => {}
        }
    }

    /// Welcomes a client, unless it cannot be served. Its former connection ends first.
    async fn welcome(&self, number: u64, hello: &Hello, client: &Client) -> Result<(), Refusal> {
        let (oldest, newest) = hello.versions;
        if hello.protocol != NAME || oldest > PROTOCOL || newest < PROTOCOL {
            return Err(Refusal::Protocol((PROTOCOL, PROTOCOL)));
        }
        if let Some(wanted) = &self.wanted
            && !hello.is_viewer
        {
            wanted.notify_one();
            return Err(Refusal::Yields);
        }
        if (hello.durability).is_some_and(|durability| durability != self.welcome.durability) {
            return Err(Refusal::Durability(self.welcome.durability));
        }
        loop {
            let former = {
                let mut clients = self.clients.lock();
                let is_own = self.own.get() == Some(&hello.client);
                if self.is_closing.load(Ordering::SeqCst) {
                    return Err(Refusal::Leaving);
                }
                match clients.get(&hello.client) {
                    Some(former) => former.clone(),
                    None if clients.len() >= MAX_CLIENTS && !is_own => {
                        return Err(Refusal::Full(MAX_CLIENTS));
                    }
                    None => {
                        let welcome = Greeting::Welcome(self.welcome.clone());
                        client.outgoing.send(number, &welcome);
                        clients.insert(hello.client, client.clone());
                        return Ok(());
                    }
                }
            };
            former.stop.notify_one();
            let mut is_served = former.is_served;
            // Fails when the thread has ended, and nothing else is sent.
            let _ = is_served.changed().await;
        }
    }
}

/// A client that is served.
struct Served<'a> {
    hosts: &'a Hosts,
    stop: &'a Arc<Notify>,
    /// Ends after the client was removed.
    _serving: watch::Sender<()>,
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        let mut clients = self.hosts.clients.lock();
        clients.retain(|_, client| !Arc::ptr_eq(&client.stop, self.stop));
    }
}

/// Waits until no commit of a client waits for its result.
async fn wait_for_commits(commit_room: &Semaphore) {
    // The semaphore is never closed.
    let _all = commit_room.acquire_many(MAX_COMMIT_BYTES).await;
}
