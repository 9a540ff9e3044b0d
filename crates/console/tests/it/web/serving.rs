//! The server on real sockets: slow clients, bad bytes and the shutdown.

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::time::Duration;

use console::{Console, WebOptions};
use export_queue::keyspace::Subspace;
use export_queue::keyspace::env::ManualClock;
use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::web::site::{PATIENCE, enqueue, open, runner_with_clock};

const SECOND: Duration = Duration::from_secs(1);

struct Server {
    address: SocketAddr,
    clock: ManualClock,
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Server {
    /// Serves a queue with this many items of 50,000 bytes.
    async fn start(items: usize) -> Self {
        let (runner, clock) = runner_with_clock();
        let queue = open(&runner, Subspace::from("jobs")).await;
        let value = "x".repeat(50_000);
        for _ in 0..items {
            enqueue(&runner, &queue, &[&value]).await;
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let stopped = async { stopped.await.unwrap_or_default() };
            let options = WebOptions::new();
            console::serve(listener, Console::new(&runner), options, stopped).await
        });
        Self {
            address,
            clock,
            stop,
            task,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Moves the clock, and lets a client do something after each second, until the server closes its connection.
    /// Returns how many seconds that took.
    async fn seconds_until_closed(&self, stream: &mut TcpStream, each_second: &[u8]) -> u32 {
        let mut seconds = 0;
        conformance::timeout(PATIENCE, async {
            let mut buffer = [0; 1024];
            loop {
                // The sleeps of the server begin when it has polled the connection.
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                match futures::poll!(Box::pin(stream.read(&mut buffer))) {
                    std::task::Poll::Ready(Ok(0) | Err(_)) => return seconds,
                    std::task::Poll::Ready(Ok(_)) => {}
                    std::task::Poll::Pending => {
                        self.clock.advance(SECOND);
                        seconds += 1;
                        let _ = stream.write_all(each_second).await;
                    }
                }
            }
        })
        .await
    }
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes()
}

/// Reads until the text was seen.
async fn read_until(stream: &mut TcpStream, text: &str) {
    let mut seen = Vec::new();
    conformance::timeout(PATIENCE, async {
        while !String::from_utf8_lossy(&seen).contains(text) {
            let read = stream.read_buf(&mut seen).await.unwrap();
            assert_ne!(read, 0, "{}", String::from_utf8_lossy(&seen));
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_sends_nothing_or_drips_is_closed() {
    let server = Server::start(0).await;
    for (head, each_second) in [(&b""[..], &b""[..]), (b"GET / HTTP/1.1\r\nX-A: ", b"a")] {
        let mut stream = server.connect().await;
        stream.write_all(head).await.unwrap();
        let seconds = server.seconds_until_closed(&mut stream, each_second).await;
        assert!(seconds >= 14, "{seconds}");
    }
    // Others are served meanwhile and afterwards.
    let mut stream = server.connect().await;
    stream.write_all(&get("/")).await.unwrap();
    read_until(&mut stream, "</html>").await;
    let idle = server.seconds_until_closed(&mut stream, b"").await;
    assert!(idle >= 14, "an idle connection is closed after {idle}");
}

#[tokio::test]
async fn a_client_that_never_reads_is_closed() {
    // More than the buffers of two sockets hold.
    const REQUESTS: usize = 200;
    let server = Server::start(20).await;
    let mut stream = server.connect().await;
    let path = "/api/queues/jobs/items/queued";
    stream.write_all(&get(path).repeat(REQUESTS)).await.unwrap();
    let mut head = vec![0; 4096];
    stream.read_exact(&mut head).await.unwrap();
    let head = String::from_utf8(head).unwrap();
    let (_, length) = head.split_once("content-length: ").unwrap();
    let (length, _) = length.split_once("\r\n").unwrap();
    let length: usize = length.parse().unwrap();
    assert!(length > 50_000, "{length}");
    for _ in 0..60 {
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        server.clock.advance(SECOND);
    }
    let mut read = 0;
    conformance::timeout(PATIENCE, async {
        let mut buffer = vec![0; 1 << 20];
        while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
            read += bytes;
        }
    })
    .await;
    assert!(read < REQUESTS * length, "the rest was not sent: {read}");
}

#[tokio::test]
async fn bytes_that_are_no_request_are_refused() {
    let server = Server::start(0).await;
    let long = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX-A: {}\r\n\r\n",
        "a".repeat(100_000)
    );
    let many = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        "X-A: a\r\n".repeat(1_000)
    );
    let table = [
        (b"\x16\x03\x01\x02\x00\x01".to_vec(), " 400 "),
        (b"GET\r\n\r\n".to_vec(), " 400 "),
        (long.into_bytes(), " 431 "),
        (many.into_bytes(), " 431 "),
        (get("/%zz"), " 404 "),
        (get("/queues/%FF"), " 400 "),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), " 421 "),
    ];
    for (bytes, status) in table {
        let mut stream = server.connect().await;
        // The server may have answered and closed before all is sent.
        let _ = stream.write_all(&bytes).await;
        read_until(&mut stream, status).await;
    }
}

#[tokio::test]
async fn a_shutdown_ends_listeners_and_the_server_at_once() {
    let server = Server::start(0).await;
    let mut listener = server.connect().await;
    listener.write_all(&get("/events")).await.unwrap();
    read_until(&mut listener, "event: state").await;
    let mut silent = server.connect().await;
    // The silent one was accepted before this one.
    let mut idle = server.connect().await;
    idle.write_all(&get("/")).await.unwrap();
    read_until(&mut idle, "</html>").await;
    server.stop.send(()).unwrap();
    // The clock stands still: nothing waits for the end of a limit.
    conformance::timeout(PATIENCE, server.task)
        .await
        .unwrap()
        .unwrap();
    for stream in [&mut silent, &mut idle] {
        let mut rest = Vec::new();
        let closed = stream.read_to_end(&mut rest);
        conformance::timeout(PATIENCE, closed).await.unwrap();
    }
}

#[tokio::test]
async fn a_graceful_shutdown_of_an_application_ends_its_open_event_streams() {
    let (runner, _clock) = runner_with_clock();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = stopped.map(drop).shared();
    let options = WebOptions::new()
        .mounted_at("/console")
        .shutdown(stopped.clone());
    let console = console::router(Console::new(&runner), options);
    let application = axum::Router::new().nest("/console", console);
    let served = axum::serve(listener, application).with_graceful_shutdown(stopped);
    let task = tokio::spawn(served.into_future());
    let mut tab = TcpStream::connect(address).await.unwrap();
    tab.write_all(&get("/console/events")).await.unwrap();
    read_until(&mut tab, "event: state").await;
    stop.send(()).unwrap();
    conformance::timeout(PATIENCE, task).await.unwrap().unwrap();
}
