//! Pages beside the work of a program.

use std::future::pending;
use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::options::WebOptions;
use super::serve::serve;
use crate::look::Console;

/// The console of a program, which is [served](mount()) until this is dropped. All connections are then closed at once.
#[derive(Debug)]
#[must_use = "the console is served until this is dropped"]
pub struct Mounted {
    address: SocketAddr,
    _server: JoinSet<io::Result<()>>,
}

impl Mounted {
    fn new(listener: TcpListener, console: Console, options: WebOptions) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let mut server = JoinSet::new();
        server.spawn(serve(listener, console, options, pending()));
        Ok(Self {
            address,
            _server: server,
        })
    }

    /// Returns the address, with the port that the system has chosen if the program asked for port 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Serves the console at an address, in a task beside the work of the program, as [`serve`] does.
///
/// # Conflicts
/// What is shown is read by snapshot, so it never makes another transaction fail.
///
/// # Errors
/// Those of binding the address: another program may use it. A second call with the same address succeeds once the
/// address is free.
///
/// # Cancel safety
/// If the future is dropped, nothing is served.
pub async fn mount(
    console: Console,
    address: SocketAddr,
    options: WebOptions,
) -> io::Result<Mounted> {
    let listener = TcpListener::bind(address).await?;
    Mounted::new(listener, console, options)
}
