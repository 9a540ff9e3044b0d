//! The owner's side of a connection: answers the requests of one client.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use parking_lot::Mutex;
use tokio::io::AsyncRead;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use super::hosts::Hosts;
use crate::contract::error::{Code, Error, Result};
use crate::contract::transaction::Commit;
use crate::stores::embedded::checks;
use crate::stores::embedded::engine::{CommitRequest, Engine, Snapshot};
use crate::stores::embedded::layers::Layers;
use crate::stores::embedded::threads;
use crate::stores::embedded::wire::frames::{Incoming, Outgoing};
use crate::stores::embedded::wire::{Ask, Found, Malformed, Reply, Request, WireRow};

/// The largest number of transactions that a client may have open.
const MAX_TRANSACTIONS: usize = 10_000;

/// How many copies and verifications a client may have under way.
const MAX_SCANS: usize = 8;

/// How many bytes of keys and values the watches of a client may have.
const MAX_WATCH_BYTES: usize = 64 << 20;

/// What a watch counts for besides its key and its value, in bytes.
const WATCH_BYTES: usize = 256;

/// The size at which a reply with rows ends, in bytes.
const MAX_REPLY_BYTES: usize = 1 << 20;

/// How many bytes of replies may wait before the next request is read.
const MAX_UNSENT_BYTES: usize = 8 << 20;

/// How many bytes of commits may wait before the next request is read.
pub(super) const MAX_COMMIT_BYTES: u32 = 32 << 20;

/// What the owner keeps for a client.
pub(super) struct Host<'a, N> {
    hosts: &'a Hosts,
    engine: Arc<Engine>,
    outgoing: Arc<Outgoing>,
    /// The open transactions that have a read version, with it.
    transactions: BTreeMap<u64, (i64, Snapshot)>,
    /// The states that are being copied.
    copies: BTreeMap<u64, (i64, Layers)>,
    watches: Arc<Mutex<Watched>>,
    /// The number of verifications under way.
    verifications: Arc<AtomicUsize>,
    /// One permit per byte.
    commit_room: Arc<Semaphore>,
    reply_rows: N,
}

impl<'a, N: FnMut() -> usize> Host<'a, N> {
    pub(super) fn new(
        hosts: &'a Hosts,
        outgoing: Arc<Outgoing>,
        commit_room: Arc<Semaphore>,
        reply_rows: N,
    ) -> Self {
        Self {
            hosts,
            engine: hosts.engine().clone(),
            outgoing,
            copies: BTreeMap::new(),
            transactions: BTreeMap::new(),
            watches: Arc::default(),
            verifications: Arc::default(),
            commit_room,
            reply_rows,
        }
    }

    /// Answers requests until the client leaves.
    pub(super) async fn read(
        &mut self,
        mut requests: Incoming<impl AsyncRead + Unpin>,
    ) -> io::Result<()> {
        while let Some((number, request)) = requests.next().await? {
            self.answer(number, request).await?;
            self.outgoing.wait_until(MAX_UNSENT_BYTES).await;
        }
        Ok(())
    }

    async fn answer(&mut self, number: u64, request: Request) -> io::Result<()> {
        match request {
            Request::Read {
                transaction,
                at,
                ask,
            } => {
                let found = self.find(transaction, at, ask);
                self.reply(number, found);
            }
            Request::Copy { copy, begin } => {
                let found = self.copy(copy, &begin);
                self.reply(number, found);
            }
            Request::Commit {
                transaction,
                request,
            } => {
                checks::check_commit(&request)
                    .map_err(|code| io::Error::other(Malformed::Limit(code)))?;
                self.commit(number, transaction, request).await;
            }
            Request::Watch { key, baseline } => self.watch(number, key, baseline),
            Request::Unwatch { watch } => {
                if let Some(task) = self.watches.lock().remove(watch) {
                    task.abort();
                }
            }
            Request::End { transaction } => {
                self.transactions.remove(&transaction);
                self.copies.remove(&transaction);
            }
            Request::Verify => self.verify(number),
            Request::Processes => {
                let processes = Reply::Processes(self.hosts.processes());
                self.outgoing.send(number, &processes);
            }
        }
        Ok(())
    }

    fn reply(&self, number: u64, found: Result<(i64, Found)>) {
        match found {
            Ok((version, found)) => {
                let reply = Reply::Found { version, found };
                self.outgoing.send(number, &reply);
            }
            Err(error) => refuse(&self.outgoing, number, error),
        }
    }

    /// Reads the next rows of a copy.
    fn copy(&mut self, copy: u64, begin: &[u8]) -> Result<(i64, Found)> {
        let is_full = self.copies.len() >= MAX_SCANS;
        let (version, state) = match self.copies.entry(copy) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(_) if is_full => {
                return Err(Code::GRV_PROXY_MEMORY_LIMIT_EXCEEDED.into());
            }
            Entry::Vacant(new) => new.insert(self.engine.newest_layers()?),
        };
        let (rows, more) = self.engine.copy_rows(state, begin, MAX_REPLY_BYTES)?;
        let rows = rows.into_iter().map(WireRow::from).collect();
        Ok((*version, Found::Rows { rows, more }))
    }

    /// Checks the store's file, on a thread of its own.
    fn verify(&self, number: u64) {
        let Some(scan) = Verification::begin(&self.verifications) else {
            let error = Code::GRV_PROXY_MEMORY_LIMIT_EXCEEDED.into();
            return refuse(&self.outgoing, number, error);
        };
        let engine = self.engine.clone();
        let outgoing = self.outgoing.clone();
        let verify = move || {
            let _scan = scan;
            let progress = |read, of| outgoing.send(number, &Reply::Progress { read, of });
            match engine.verify(progress) {
                Ok(verified) => outgoing.send(number, &Reply::Verified(verified)),
                Err(error) => refuse(&outgoing, number, error),
            }
        };
        let spawned = threads::spawn(self.hosts.environment(), "keyspace-verify", verify);
        if let Err(error) = spawned {
            tracing::warn!(%error, "a client cannot verify the store");
            refuse(&self.outgoing, number, Code::PLATFORM_ERROR.into());
        }
    }

    fn find(&mut self, transaction: u64, at: Option<i64>, ask: Ask) -> Result<(i64, Found)> {
        let is_full = self.transactions.len() >= MAX_TRANSACTIONS;
        let (version, snapshot) = match self.transactions.entry(transaction) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(_) if is_full => {
                return Err(Code::GRV_PROXY_MEMORY_LIMIT_EXCEEDED.into());
            }
            Entry::Vacant(new) => new.insert(match at {
                Some(version) => (version, self.engine.snapshot_at(version)?),
                None => self.engine.read_version()?,
            }),
        };
        let found = match ask {
            Ask::Version => Found::Version,
            Ask::Key(key) => Found::Value(snapshot.get(&key)?),
            Ask::Rows {
                begin,
                end,
                mut limits,
                direction,
            } => {
                limits.rows = limits.rows.min((self.reply_rows)()).max(1);
                limits.bytes = limits.bytes.clamp(1, MAX_REPLY_BYTES);
                let rows = snapshot.take_rows((&begin, &end), &mut limits, direction)?;
                Found::Rows {
                    rows: rows.into_iter().map(WireRow::from).collect(),
                    more: limits.is_reached(),
                }
            }
        };
        Ok((*version, found))
    }

    /// Sends a commit to the engine, and its result to the client when it is there. Waits while too many commits of
    /// the client have no result.
    async fn commit(&mut self, number: u64, transaction: u64, mut request: CommitRequest) {
        let read = self.transactions.remove(&transaction);
        let version = match (read, request.read_version) {
            (Some((version, _)), _) | (None, Some(version)) => Ok(version),
            (None, None) => self.engine.read_version().map(|(version, _)| version),
        };
        let read_version = match version {
            Ok(version) => *request.read_version.insert(version),
            Err(error) => return self.outgoing.send(number, &committed(0, Err(error))),
        };
        let bytes = request.operand_bytes();
        // Also its conflict ranges take memory.
        let permits = u32::try_from(request.bytes()).unwrap_or(u32::MAX);
        let permits = permits.clamp(1, MAX_COMMIT_BYTES);
        let room = self.commit_room.clone().acquire_many_owned(permits).await;
        let wait = self.engine.wait_for_turn(bytes);
        let mut commit = if wait.is_zero() {
            self.engine.commit(request).boxed()
        } else {
            let engine = self.engine.clone();
            async move {
                engine.environment().sleep(wait).await;
                engine.commit(request).await
            }
            .boxed()
        };
        if let Some(outcome) = (&mut commit).now_or_never() {
            self.outgoing
                .send(number, &committed(read_version, outcome));
            return;
        }
        let outgoing = self.outgoing.clone();
        tokio::spawn(async move {
            let outcome = commit.await;
            outgoing.send(number, &committed(read_version, outcome));
            drop(room);
        });
    }

    fn watch(&mut self, number: u64, key: Bytes, baseline: Option<Bytes>) {
        let bytes = WATCH_BYTES + key.len() + baseline.as_ref().map_or(0, Bytes::len);
        if self.watches.lock().bytes + bytes > MAX_WATCH_BYTES {
            return refuse(&self.outgoing, number, Code::TOO_MANY_WATCHES.into());
        }
        // The client limits the number of its watches.
        let (setter, changed) = match self.engine.watches().create(usize::MAX) {
            Ok(watch) => watch,
            Err(error) => return refuse(&self.outgoing, number, error),
        };
        self.engine.watches().arm(key, baseline, setter);
        let outgoing = self.outgoing.clone();
        let watches = self.watches.clone();
        // Holds the lock until the watch has its number, and the task waits for it.
        let mut armed = self.watches.lock();
        let task = tokio::spawn(async move {
            let changed = changed.await;
            watches.lock().remove(number);
            match changed {
                Ok(()) => outgoing.send(number, &Reply::Changed),
                Err(error) => refuse(&outgoing, number, error),
            }
        });
        armed.bytes += bytes;
        let former = armed.tasks.insert(number, (task.abort_handle(), bytes));
        if let Some((task, bytes)) = former {
            // A client that uses a number twice has one watch of that number.
            armed.bytes -= bytes;
            task.abort();
        }
    }
}

/// The watches of a client that have not fired, by the numbers of their requests.
#[derive(Default)]
struct Watched {
    tasks: BTreeMap<u64, (AbortHandle, usize)>,
    bytes: usize,
}

impl Watched {
    fn remove(&mut self, watch: u64) -> Option<AbortHandle> {
        let (task, bytes) = self.tasks.remove(&watch)?;
        self.bytes -= bytes;
        Some(task)
    }
}

/// A verification under way.
pub(crate) struct Verification(Arc<AtomicUsize>);

impl Verification {
    /// `None` if too many are under way.
    pub(crate) fn begin(scans: &Arc<AtomicUsize>) -> Option<Self> {
        let begun = scans.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |scans| {
            if scans < MAX_SCANS {
                Some(scans + 1)
            } else {
                None
            }
        });
        begun.ok().map(|_| Self(scans.clone()))
    }
}

impl Drop for Verification {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers a read or a watch that has failed. If the store was closed, the end of the connection is the answer.
fn refuse(outgoing: &Outgoing, number: u64, error: Error) {
    if !is_closed(&error) {
        outgoing.send(number, &Reply::Failed(error.into()));
    }
}

fn is_closed(error: &Error) -> bool {
    error.code() == Some(Code::TRANSACTION_CANCELLED)
}

fn committed(read_version: i64, outcome: Result<Commit>) -> Reply {
    let stamp = outcome.and_then(|commit| {
        let stamp = commit.versionstamp;
        stamp.ok_or(Error::from(Code::NO_COMMIT_VERSION))
    });
    match stamp {
        Ok(stamp) => Reply::Committed {
            read_version,
            versionstamp: *stamp.as_bytes(),
        },
        // It was not committed, and the next owner has another version.
        Err(error) if is_closed(&error) => {
            Reply::Failed(Error::from(Code::TRANSACTION_TOO_OLD).into())
        }
        Err(error) => Reply::Failed(error.into()),
    }
}
