//! Threads for what blocks. Those of the runtime are not for this: if the system refuses one, the runtime panics, or
//! waits for a thread that never comes.

use std::thread;

use tokio::sync::oneshot;

use crate::failure::{CommandFailure, Result};

/// Does something on a thread of its own, so that a signal ends the wait for it.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    let work = move || drop(sender.send(work()));
    let started = thread::Builder::new().spawn(work);
    started.map_err(CommandFailure::Threads)?;
    Ok(receiver
        .await
        .expect("what runs on a thread does not panic"))
}
