//! The client library's network thread: started once, stopped when the process exits.

#![expect(
    unsafe_code,
    reason = "the network must be stopped before the process exits, which no type can promise"
)]

use std::sync::atomic::{AtomicBool, Ordering};
// The exit function must not touch thread-local variables, which other kinds of locks may use.
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use foundationdb::api::{self, FdbApiBuilder};
use foundationdb::{Database, FdbError};
use futures::executor::block_on;

use super::error;
use crate::contract::error::{Code, Error, OpenError};

/// Whether the network has started, or why it failed. The library does not start twice.
static STARTED: OnceLock<Result<(), OpenError>> = OnceLock::new();

/// Signals the thread that stops the network when the process exits. The mutex guards no data.
static EXIT: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// Whether the process is exiting. Set while the lock of [`EXIT`] is held.
static EXITING: AtomicBool = AtomicBool::new(false);

/// The time that calls of other threads get to finish before the network stops.
const GRACE: Duration = Duration::from_millis(10);

/// The thread that stops the network, taken at exit.
///
/// The exiting thread cannot do it. Its thread-local variables are already destroyed when exit functions
/// run, and the library needs its own to write the last line of its log.
static STOPPER: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

fn refused(cause: FdbError) -> OpenError {
    error(cause).into()
}

/// Starts the network, unless it is already running.
pub(super) fn start() -> Result<(), OpenError> {
    STARTED.get_or_init(boot).clone()
}

fn boot() -> Result<(), OpenError> {
    let builder = FdbApiBuilder::default();
    let wanted = builder.runtime_version();
    let supported = api::get_max_api_version();
    if supported < wanted {
        return Err(OpenError::ClientVersion { wanted, supported });
    }
    let builder = builder.build().map_err(refused)?;
    // SAFETY: `boot` requires that the network is stopped before the process ends. The exit function
    // registered below stops it at every orderly exit. An abort does not need it.
    let network = unsafe { builder.boot() }.map_err(refused)?;
    let stopper = thread::Builder::new()
        .name("fdb-stop".to_owned())
        .spawn(move || {
            wait_for_exit();
            // Stops the network and waits for its thread.
            drop(network);
        })
        .map_err(|_| Error::from(Code::PLATFORM_ERROR))?;
    *STOPPER.lock().unwrap_or_else(PoisonError::into_inner) = Some(stopper);
    stop_at_exit()
}

/// Waits until the network has run its loop once, and then registers the function that stops it at exit.
///
/// Exit functions run in the reverse order of their registration, and a library registers one for a static
/// variable when it is first used. The network stops with the help of statics that it first uses in its
/// loop, so it must stop before they are destroyed. Without this wait, a process that opens a cluster and
/// exits at once crashed in one of three runs.
pub(super) fn finish_startup(database: &Database) -> Result<(), OpenError> {
    static FINISHED: OnceLock<Result<(), OpenError>> = OnceLock::new();
    FINISHED.get_or_init(|| turn(database)).clone()
}

fn turn(database: &Database) -> Result<(), OpenError> {
    // The backoff of a retry, some milliseconds, is a timer of the network and needs no cluster. A timer
    // fires in a later turn of the loop than the one that set it.
    let tr = database.create_trx().map_err(refused)?;
    let conflict = FdbError::from_code(Code::NOT_COMMITTED.number());
    block_on(tr.on_error(conflict)).map_err(refused)?;
    stop_at_exit()
}

fn stop_at_exit() -> Result<(), OpenError> {
    // SAFETY: `stop` is a function of this program, so it exists until the program ends.
    match unsafe { libc::atexit(stop) } {
        0 => Ok(()),
        _ => Err(Error::from(Code::PLATFORM_ERROR).into()),
    }
}

/// Returns whether the process is exiting. From then on, no calls go to the network and no transaction is
/// returned to it. While the network stops, it might still process a read of a transaction that was already
/// destroyed.
pub(super) fn is_exiting() -> bool {
    EXITING.load(Ordering::Relaxed)
}

fn wait_for_exit() {
    let (lock, exits) = &EXIT;
    let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
    drop(exits.wait_while(guard, |()| !is_exiting()));
    thread::park_timeout(GRACE);
}

/// Stops the network, if it is still running, and waits until it has ended. Handles may be alive, and other
/// threads may use them. Their calls fail from here on, and the process is about to end.
extern "C" fn stop() {
    let (lock, exits) = &EXIT;
    let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
    EXITING.store(true, Ordering::Relaxed);
    drop(guard);
    exits.notify_all();
    let stopper = STOPPER
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(stopper) = stopper {
        // The thread has already printed its panic, and the process is about to end.
        let _ = stopper.join();
    }
}
