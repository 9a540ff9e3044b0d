//! The client library's network thread: started once, stopped when the process exits.

#![expect(
    unsafe_code,
    reason = "the network must be stopped before the process exits, which no type can promise"
)]

use std::sync::{Mutex, OnceLock, PoisonError};

use foundationdb::api::{self, FdbApiBuilder, NetworkAutoStop};

use super::error;
use crate::error::{Error, Result};

/// Whether the network has started, or why it never will: the library does not start twice.
static STARTED: OnceLock<Result<()>> = OnceLock::new();

/// Stops the network when it is dropped. Guarded by itself; taken at exit.
static NETWORK: Mutex<Option<NetworkAutoStop>> = Mutex::new(None);

/// Starts the network unless it runs already.
pub(super) fn start() -> Result<()> {
    STARTED.get_or_init(boot).clone()
}

fn boot() -> Result<()> {
    let builder = FdbApiBuilder::default();
    let (wanted, supported) = (builder.runtime_version(), api::get_max_api_version());
    if supported < wanted {
        return Err(Error::ClientVersion { wanted, supported });
    }
    let builder = builder.build().map_err(error)?;
    // SAFETY: what `boot` asks for is that the network is stopped before the process ends. The
    // function registered below does that at every orderly exit; an abort needs nothing.
    let network = unsafe { builder.boot() }.map_err(error)?;
    *NETWORK.lock().unwrap_or_else(PoisonError::into_inner) = Some(network);
    // SAFETY: `stop` is a function of this program, which is not unloaded before its exit.
    // The library's own exit functions were registered when it was loaded, and so run after it.
    let registered = unsafe { libc::atexit(stop) };
    if registered != 0 {
        // Without it the network thread would outlive what it uses.
        stop();
        return Err(crate::Code::PLATFORM_ERROR.into());
    }
    Ok(())
}

/// Stops the network and waits for its thread. Handles may be alive: what they do from here on
/// fails or waits, and the process is about to end.
extern "C" fn stop() {
    let network = NETWORK
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    drop(network);
}
