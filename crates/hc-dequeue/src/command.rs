//! The commands that consumers and deliveries send to their dispatcher.

use std::time::Duration;

use microqueue::{Item, ItemId};
use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, Result};
use crate::give_back::Return;

/// A command for a dispatcher. `D` is the type of deliveries, which this module cannot name because deliveries send
/// commands themselves.
pub(crate) enum Command<T, D> {
    Want(Want<T, D>),
    GiveBack {
        item: Return,
        done: Option<oneshot::Sender<Result<()>>>,
    },
    /// Forget a delivery whose item has left the queue, as far as its process knows.
    Forget {
        id: ItemId,
        delivery: u64,
    },
    ShutDown {
        /// How long outstanding deliveries may take to be resolved.
        grace: Duration,
        done: Option<oneshot::Sender<Result<()>>>,
    },
}

/// A caller's request for items from its dispatcher.
pub(crate) struct Want<T, D> {
    pub(crate) wanted: usize,
    /// When the caller's time is over.
    pub(crate) until: Duration,
    /// Whether a transaction has found the queue without an item since the call. Before that, the caller is not
    /// answered that there is none, even if its time is over.
    pub(crate) found_none: bool,
    pub(crate) reply: Reply<T, D>,
}

/// Where the answer to a caller goes.
pub(crate) enum Reply<T, D> {
    Deliver(oneshot::Sender<Result<Vec<D>>>),
    Pop(oneshot::Sender<Result<Vec<Item<T>>>>),
}

impl<T, D> Want<T, D> {
    /// Returns whether the caller is gone.
    pub(crate) fn is_gone(&self) -> bool {
        match &self.reply {
            Reply::Deliver(reply) => reply.is_closed(),
            Reply::Pop(reply) => reply.is_closed(),
        }
    }

    pub(crate) fn fail(self, error: Error) {
        // The caller may have gone.
        match self.reply {
            Reply::Deliver(reply) => drop(reply.send(Err(error))),
            Reply::Pop(reply) => drop(reply.send(Err(error))),
        }
    }

    pub(crate) fn answer_none(self) {
        match self.reply {
            Reply::Deliver(reply) => drop(reply.send(Ok(Vec::new()))),
            Reply::Pop(reply) => drop(reply.send(Ok(Vec::new()))),
        }
    }
}

/// Waits for the answer to a command. Returns `None` if the dispatcher is gone.
///
/// A dispatcher that ends drops the commands that it has not read, and with each of them the sender of its answer.
/// However, a command that is sent at that very moment may stay in the channel as long as the channel has a sender,
/// and the caller has one.
pub(crate) async fn wait_for_answer<T, D, A>(
    commands: &mpsc::UnboundedSender<Command<T, D>>,
    mut answer: oneshot::Receiver<A>,
) -> Option<A> {
    tokio::select! {
        biased;
        answer = &mut answer => answer.ok(),
        () = commands.closed() => answer.try_recv().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dispatcher_that_is_gone_is_not_waited_for_and_its_last_answer_counts() {
        let (commands, received) = mpsc::unbounded_channel::<Command<(), ()>>();
        let (reply, last) = oneshot::channel();
        let (_unread, never) = oneshot::channel();
        reply.send(7).unwrap();
        drop(received);
        assert_eq!(wait_for_answer(&commands, last).await, Some(7));
        assert_eq!(wait_for_answer::<_, _, u8>(&commands, never).await, None);
    }
}
