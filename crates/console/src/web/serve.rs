//! Serving on an address: connections that are bounded in number and that no slow client keeps.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use export_queue::hc_dequeue::shutdown::end_tasks;
use export_queue::keyspace::{Database, Environment};
use futures::future::BoxFuture;
use hyper::rt::{Sleep, Timer};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use super::options::WebOptions;
use super::routes::router;
use crate::look::Console;

/// How many connections there are at most. More wait to be accepted.
const MAX_CONNECTIONS: usize = 256;

/// How long a client may take to send the head of a request, and how long a connection may be idle.
const HEADER_LIMIT: Duration = Duration::from_secs(15);

/// How long a client may take none of what is sent to it.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// How many bytes the head of a request may have.
const MAX_HEADER_BYTES: usize = 16 * 1024;

/// How many headers a request may have.
const MAX_HEADERS: usize = 64;

/// How long requests may go on after the shutdown.
const GRACE: Duration = Duration::from_secs(2);

/// How long to wait after a connection could not be accepted, for want of file descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Serves the console at an address until `shutdown` is ready. Requests that are under way then may go on for two
/// seconds. The call returns a second later at the latest, if one thread of the runtime is free.
///
/// The address is accepted as a [host](WebOptions::allow_host).
///
/// # Errors
/// Those of the listener when it is asked for its address.
///
/// # Cancel safety
/// Dropping the future closes all connections at once.
pub async fn serve<D: Database>(
    listener: TcpListener,
    console: Console<D>,
    mut options: WebOptions,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let address = listener.local_addr()?.ip();
    if !address.is_unspecified() {
        options = options.allow_host(if address.is_ipv6() {
            format!("[{address}]")
        } else {
            address.to_string()
        });
    }
    let closing = watch::Sender::new(());
    let mut closed = closing.subscribe();
    let options = options.shutdown(async move { closed.changed().await.unwrap_or_default() });
    let env = console.runner.environment().clone();
    let router = router(console, options);
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, permit) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accept(&listener, &permits, &env) => accepted,
        };
        let connection = Connection {
            env: env.clone(),
            closing: closing.subscribe(),
            _permit: permit,
        };
        connections.spawn(connection.serve(stream, router.clone()));
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    closing.send_replace(());
    end_tasks(&env, &mut connections, GRACE, || ()).await;
    Ok(())
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
    env: &Environment,
) -> (TcpStream, OwnedSemaphorePermit) {
    let permit = permits
        .clone()
        .acquire_owned()
        .await
        .expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(_) => env.sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// One connection, which counts as long as it lives.
struct Connection {
    env: Environment,
    /// Changes at the shutdown.
    closing: watch::Receiver<()>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    async fn serve(mut self, stream: TcpStream, router: Router) {
        let stream = Impatient {
            stream,
            env: self.env.clone(),
            stalled: None,
        };
        let mut builder = http1::Builder::new();
        builder
            .timer(EnvironmentTimer(self.env.clone()))
            .header_read_timeout(HEADER_LIMIT)
            .max_header_size(MAX_HEADER_BYTES)
            .max_headers(MAX_HEADERS);
        let service = TowerToHyperService::new(router);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        // That a client went away is no failure of ours.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = self.closing.changed() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
}

/// A stream that fails if its peer takes nothing of what is written for [`WRITE_LIMIT`].
struct Impatient {
    stream: TcpStream,
    env: Environment,
    stalled: Option<BoxFuture<'static, ()>>,
}

impl Impatient {
    /// Returns the outcome of a write, or that the peer has stalled for too long.
    fn bounded<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let env = &self.env;
        let stalled = self.stalled.get_or_insert_with(|| env.sleep(WRITE_LIMIT));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buffer);
        self.bounded(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Sleeps of the environment as hyper's timer. Hyper asks for a deadline right before it waits for it.
struct EnvironmentTimer(Environment);

impl Timer for EnvironmentTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(Sleeping(Mutex::new(self.0.sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(deadline.saturating_duration_since(self.now()))
    }
}

/// A sleep that threads may share, as hyper asks for. The mutex is never locked.
struct Sleeping(Mutex<BoxFuture<'static, ()>>);

impl Future for Sleeping {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.0.get_mut() {
            Ok(sleep) => sleep.as_mut().poll(cx),
            Err(_) => Poll::Ready(()),
        }
    }
}

impl Sleep for Sleeping {}
