//! A client's transaction, as its owner knows it.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::Shared;
use super::connection::{Committed, Connection, Unanswered, Waiting};
use crate::contract::error::{Code, Result};
use crate::stores::embedded::engine::CommitRequest;
use crate::stores::embedded::wire::{Ask, Found, Request};

/// How many bytes may wait to be sent before reads and commits fail.
const MAX_UNSENT_BYTES: usize = 64 << 20;

/// A transaction, as the owner knows it. All its requests go to one owner, that of its first request.
pub(crate) struct LinkTransaction {
    shared: Arc<Shared>,
    /// `None` before the first request.
    bound: Option<Bound>,
}

/// The connection of a transaction.
struct Bound {
    connection: Arc<Connection>,
    number: u64,
    /// Whether the owner keeps something for the transaction.
    is_open: bool,
}

impl LinkTransaction {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            bound: None,
        }
    }

    /// Sends a read at the transaction's read version. `answer` is called on the thread of the link.
    pub(crate) fn read(
        &mut self,
        at: Option<i64>,
        ask: Ask,
        answer: impl FnOnce(Result<(i64, Found), Unanswered>) + Send + 'static,
    ) -> Result<()> {
        self.send(|bound, _| {
            if bound.connection.outgoing.bytes() > MAX_UNSENT_BYTES {
                return Err(Code::GRV_PROXY_MEMORY_LIMIT_EXCEEDED.into());
            }
            bound.is_open = true;
            let read = Request::Read {
                transaction: bound.number,
                at,
                ask,
            };
            let waiting = Waiting::Read(Box::new(answer));
            bound.connection.send(&read, waiting).map(drop)
        })
    }

    /// Sends a commit immediately, and returns a future of its result. The owner then forgets the transaction.
    pub(crate) fn commit(
        &mut self,
        request: CommitRequest,
    ) -> impl Future<Output = Result<Committed>> + Send + use<> {
        let (sender, committed) = oneshot::channel();
        let is_versionless = request.read_version.is_none();
        let sent = self.send(|bound, is_ordered| {
            if is_versionless && !is_ordered {
                // This process has just become the owner.
                return Err(Code::TRANSACTION_TOO_OLD.into());
            }
            if bound.connection.outgoing.bytes() > MAX_UNSENT_BYTES {
                return Err(Code::COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED.into());
            }
            bound.is_open = false;
            let commit = Request::Commit {
                transaction: bound.number,
                request,
            };
            bound.connection.send(&commit, Waiting::Commit(sender))
        });
        async {
            sent?;
            let unknown = |_| Err(Code::COMMIT_UNKNOWN_RESULT.into());
            committed.await.unwrap_or_else(unknown)
        }
    }

    /// Lets the next owner serve the transaction, if its own has ended. The transaction must have no read version.
    pub(crate) fn leave_lost_owner(&mut self) {
        self.bound.take_if(|bound| bound.connection.is_over());
    }

    /// Sends a request on the connection of the transaction. `send` is also told whether the commits of this handle are
    /// taken in the order in which they were sent.
    fn send<T>(&mut self, send: impl FnOnce(&mut Bound, bool) -> T) -> T {
        if let Some(bound) = &mut self.bound {
            // It has a read version, or its first request will have obtained one.
            return send(bound, true);
        }
        // The connection cannot be replaced before the request is sent.
        let connections = self.shared.connections.lock();
        let connection = connections.next.clone();
        let bound = self.bound.insert(Bound {
            number: connection.next_transaction(),
            connection,
            is_open: false,
        });
        send(bound, !connections.is_second_way)
    }
}

impl Drop for LinkTransaction {
    fn drop(&mut self) {
        if let Some(bound) = &self.bound
            && bound.is_open
        {
            let end = Request::End {
                transaction: bound.number,
            };
            bound.connection.outgoing.send_later(0, &end);
        }
    }
}
