//! The console beside the work: pages that show the queues while they are in use.

use std::net::SocketAddr;

use console::{Console, Mounted, WebOptions};

use crate::corpus::Corpus;
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Serves the console at an address until the result is dropped. Its pages change nothing.
pub(crate) async fn serve(
    store: &Corpus,
    address: SocketAddr,
    progress: &Progress,
) -> Result<Mounted> {
    let console = Console::new(&store.runner);
    let pages = console::mount(console, address, WebOptions::new())
        .await
        .map_err(|cause| Error::Listen { address, cause })?;
    progress.line(format!("the console is at http://{}", pages.address()));
    Ok(pages)
}
