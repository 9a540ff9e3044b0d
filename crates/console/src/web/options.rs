//! What an application chooses when it mounts the console.

use std::future::Future;

use export_queue::keyspace::foreign;
use futures::future::{BoxFuture, FutureExt, Shared};

/// How the console is served.
///
/// ```
/// use console::WebOptions;
///
/// let options = WebOptions::new()
///     .allow_changes(true)
///     .allow_host("queues.example.com")
///     .mounted_at("/console");
/// # drop(options);
/// ```
#[derive(Debug, Clone, Default)]
pub struct WebOptions {
    pub(super) changes: bool,
    pub(super) hosts: Vec<String>,
    pub(super) base: String,
    /// When the event streams end. `None`: when the pages that listen are closed.
    pub(super) shutdown: Option<Shared<BoxFuture<'static, ()>>>,
}

impl WebOptions {
    /// Returns the defaults: no changes, and only the names of this machine as hosts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether items and queues can be changed. Off by default: every change is refused then.
    #[must_use]
    pub fn allow_changes(mut self, allow: bool) -> Self {
        self.changes = allow;
        self
    }

    /// Accepts requests for another host besides `localhost`, `127.0.0.1`, `[::1]` and, with
    /// [`serve`](crate::serve), the address that it listens at. A name or an address, without a port; an IPv6 address
    /// is in brackets.
    #[must_use]
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into().to_ascii_lowercase());
        self
    }

    /// Sets the path below which an application nests the router, `/console` for example. The links of the pages
    /// begin with it. Empty by default: the router is at the root.
    #[must_use]
    pub fn mounted_at(mut self, path: &str) -> Self {
        path.trim_end_matches('/').clone_into(&mut self.base);
        self
    }

    /// Ends the event streams of open pages when a future is ready.
    ///
    /// A server that is shut down gracefully waits for the end of every response, and a page that is open in a browser
    /// listens until it is closed. So an application that mounts the [`router`](crate::router) passes the signal that
    /// shuts down its server here, too. [`serve`](crate::serve) replaces this future by its own.
    #[must_use]
    pub fn shutdown(mut self, shutdown: impl Future<Output = ()> + Send + 'static) -> Self {
        // A signal that panics has come: it must not end each stream with another panic.
        let shutdown: BoxFuture<'static, ()> = Box::pin(foreign::run(shutdown).map(drop));
        self.shutdown = Some(shutdown.shared());
        self
    }

    /// Returns whether requests for a host are answered. `host` may end with a port.
    pub(super) fn allows_host(&self, host: &str) -> bool {
        let name = name_of(host).to_ascii_lowercase();
        matches!(&*name, "localhost" | "127.0.0.1" | "[::1]") || self.hosts.contains(&name)
    }
}

/// Returns a host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            // The colons of an IPv6 address are inside of its brackets.
            if name.contains(':') && !name.ends_with(']') {
                host
            } else {
                name
            }
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shutdown_that_panics_has_come_for_all_listeners() {
        let options = WebOptions::new().shutdown(async { panic!("no signal") });
        for _ in 0..2 {
            let shutdown = options.shutdown.clone();
            assert_eq!(shutdown.and_then(FutureExt::now_or_never), Some(()));
        }
    }

    #[test]
    fn only_this_machine_and_what_was_allowed_are_hosts() {
        let options = WebOptions::new().allow_host("Queues.example.com");
        let allowed = [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:80",
            "queues.example.com:443",
        ];
        for host in allowed {
            assert!(options.allows_host(host), "{host}");
        }
        let refused = [
            "",
            "example.com",
            "localhost.example.com",
            "localhost:80:80",
            "localhost:80.example.com",
            "127.0.0.1.example.com",
            "evil.com:127.0.0.1",
            "user@localhost",
            "localhost.",
            "::1",
            "[::1]x",
            "127.0.0.2",
        ];
        for host in refused {
            assert!(!options.allows_host(host), "{host}");
        }
    }
}
