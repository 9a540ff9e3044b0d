//! The threads of a store, some with a runtime of their own.
//!
//! A runtime is made and dropped on its own thread: dropping it elsewhere, inside a task, would panic.

use std::io;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle, Runtime};

use crate::contract::env::Environment;

/// Starts a thread.
///
/// # Errors
/// Those of the system, with what to do.
pub(super) fn spawn<T: Send + 'static>(
    env: &Environment,
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let thread = thread::Builder::new().name(name.to_owned());
    let spawned = env.check_room().and_then(|()| thread.spawn(run));
    spawned.map_err(|error| {
        let text = format!(
            "cannot start a thread: end some, or raise the limit of processes and threads (`ulimit -u`): {error}"
        );
        io::Error::new(error.kind(), text)
    })
}

/// Makes a runtime, for this thread.
pub(super) fn runtime(env: &Environment) -> io::Result<Runtime> {
    let built = env
        .check_room()
        .and_then(|()| Builder::new_current_thread().enable_all().build());
    built.map_err(|error| {
        let text = format!("cannot start a runtime: {error}");
        io::Error::new(error.kind(), text)
    })
}

/// Starts a thread with a runtime. Returns once both are there.
///
/// # Errors
/// As those of [`spawn`].
pub(super) fn spawn_with_runtime(
    env: &Environment,
    name: &str,
    run: impl FnOnce(Runtime) + Send + 'static,
) -> io::Result<(Handle, JoinHandle<()>)> {
    let (sender, started) = mpsc::channel();
    let room = env.clone();
    let thread = spawn(env, name, move || {
        match runtime(&room) {
            Ok(runtime) => {
                // The caller waits for it.
                let _ = sender.send(Ok(runtime.handle().clone()));
                run(runtime);
            }
            Err(error) => drop(sender.send(Err(error))),
        }
    })?;
    // A panic of the thread was reported there.
    let built = started.recv().map_err(io::Error::other)?;
    Ok((built?, thread))
}
