//! The commands that consumers and deliveries send to their dispatcher.

use std::sync::Arc;
use std::time::Duration;

use microqueue::Item;
use tokio::sync::{mpsc, oneshot};

use super::HandedOut;
use crate::consume::shared_task::SharedTask;
use crate::items::error::{Error, Result};
use crate::items::value::Value;
use crate::protocol::give_back::Return;

/// The channel from consumers and deliveries to their dispatcher.
pub(crate) type Commands = mpsc::UnboundedSender<Command>;

/// A command for a dispatcher.
pub(crate) enum Command {
    Want(Want),
    GiveBack {
        item: Return,
        done: Option<oneshot::Sender<Result<()>>>,
    },
    /// Nothing but that the session's [holdings](crate::consume::holdings) have changed.
    Wake,
    /// Give the reserve back, and have none from now on.
    EndReserve,
    ShutDown {
        /// How long outstanding deliveries may take to be resolved.
        grace: Duration,
        /// Gets the number of deliveries that were lost.
        done: Option<oneshot::Sender<Result<usize>>>,
    },
}

/// A caller's request for items from its dispatcher.
pub(crate) struct Want {
    pub(crate) wanted: usize,
    /// When the caller's time is over.
    pub(crate) until: Duration,
    /// Whether a transaction has found the queue without an item since the call. Before that, the caller is not
    /// answered that there is none, even if its time is over.
    pub(crate) found_none: bool,
    pub(crate) reply: Reply,
}

/// Where the answer to a caller goes.
pub(crate) enum Reply {
    Deliver(oneshot::Sender<Result<Vec<HandedOut>>>),
    Pop(oneshot::Sender<Result<Vec<Item<Value>>>>),
}

impl Want {
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
            Reply::Deliver(reply) => _ = reply.send(Err(error)),
            Reply::Pop(reply) => _ = reply.send(Err(error)),
        }
    }

    pub(crate) fn answer_none(self) {
        match self.reply {
            Reply::Deliver(reply) => _ = reply.send(Ok(Vec::new())),
            Reply::Pop(reply) => _ = reply.send(Ok(Vec::new())),
        }
    }
}

/// Sends a command to a dispatcher, and waits for the answer. Returns `None` if the dispatcher is gone.
///
/// A dispatcher that ends drops the commands that it has not read, and with each of them the sender of its answer.
/// However, a command that is sent at that very moment may stay in the channel as long as the channel has a sender,
/// and the caller has one.
pub(crate) async fn ask<A>(
    dispatcher: &Arc<SharedTask>,
    commands: &Commands,
    command: impl FnOnce(oneshot::Sender<A>) -> Command,
) -> Option<A> {
    let (reply, mut answer) = oneshot::channel();
    let call = dispatcher.call();
    call.send(|| commands.send(command(reply))).ok()?;
    tokio::select! {
        biased;
        answer = &mut answer => answer.ok(),
        () = commands.closed() => answer.try_recv().ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures::join;

    use super::*;

    #[tokio::test]
    async fn a_dispatcher_that_is_gone_is_not_waited_for_and_its_last_answer_counts() {
        let (commands, received) = mpsc::unbounded_channel::<Command>();
        let dispatcher = SharedTask::new();
        let replies = RefCell::new(Vec::new());
        let ask = || {
            ask(&dispatcher, &commands, |reply| {
                replies.borrow_mut().push(reply);
                Command::ShutDown {
                    grace: Duration::ZERO,
                    done: None,
                }
            })
        };
        let end = async {
            let last = replies.borrow_mut().swap_remove(0);
            last.send(7).unwrap();
            drop(received);
        };
        let answers = join!(ask(), ask(), end);
        assert_eq!(answers, (Some(7), None, ()));
        assert_eq!(ask().await, None);
    }
}
