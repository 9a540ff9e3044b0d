//! The console beside the work: pages that show the queues while they are in use.

use std::net::SocketAddr;

use console::{Console, WebOptions};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::corpus::Corpus;
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Serves the console at an address until the set is dropped. Its pages change nothing.
pub(crate) async fn serve(
    store: &Corpus,
    address: SocketAddr,
    progress: &Progress,
) -> Result<JoinSet<()>> {
    let cannot_listen = |cause| Error::Listen { address, cause };
    let listener = TcpListener::bind(address).await.map_err(cannot_listen)?;
    let bound = listener.local_addr().map_err(cannot_listen)?;
    progress.line(format!("the console is at http://{bound}"));
    let console = Console::new(store.runner.clone());
    let mut pages = JoinSet::new();
    pages.spawn(async move {
        let never = std::future::pending();
        // The work goes on without its pages.
        let _ = console::serve(listener, console, WebOptions::new(), never).await;
    });
    Ok(pages)
}
