//! Tests of the connection: its bytes, its ends, and peers that break the protocol.

mod bounds;
#[cfg(unix)]
mod election;
#[cfg(unix)]
mod failed;
mod messages;
#[cfg(unix)]
mod shortage;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{self, Poll};
use std::time::Duration;
use std::{io, process, thread};

use bytes::{Bytes, BytesMut};
use conformance::timeout;
use futures::FutureExt;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;

use super::Link;
use crate::contract::env::Environment;
use crate::contract::error::{Code, Error, chain};
use crate::contract::mutation::MutationOp;
use crate::contract::selector::{KeySelector, RangeQuery};
use crate::contract::transaction::{
    Database, Isolation, OwnedTransaction, Transaction, TransactionOption,
};
#[cfg(unix)]
use crate::run::Runner;
use crate::stores::embedded::collections::direction::Direction;
use crate::stores::embedded::collections::read_limits::ReadLimits;
use crate::stores::embedded::engine::CommitRequest;
use crate::stores::embedded::engine::queue::Mutation;
use crate::stores::embedded::runs::damage::FileError;
use crate::stores::embedded::wire::frames::{Incoming, Outgoing};
use crate::stores::embedded::wire::{
    self, Ask, Found, Greeting, Hello, MAX_FRAME_BYTES, Refusal, Reply, Request, RequestError,
};
use crate::stores::embedded::{Embedded, Options, Seat};

const LIMIT: Duration = conformance::HANG;

fn key(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

/// Commits a key.
#[cfg(unix)]
async fn write(db: &Embedded) {
    let runner = Runner::new(db.clone());
    let written = runner.run(|tr| async move {
        tr.set(b"a", b"1");
        Ok::<_, crate::Error>(())
    });
    timeout(LIMIT, written).await.unwrap();
}

/// A client that says what a test wants.
struct Peer(DuplexStream);

impl Peer {
    fn of(owner: &Embedded) -> Self {
        let (client, stream) = tokio::io::duplex(64 << 10);
        let Seat::Owner(owner) = &owner.seat else {
            panic!("a store in memory owns itself");
        };
        owner.hosts().serve(|| Ok(stream), || usize::MAX).unwrap();
        Self(client)
    }

    /// A client that was welcomed.
    async fn welcomed(owner: &Embedded) -> Self {
        let mut peer = Self::of(owner);
        let name = Environment::system().random_bytes();
        let greeting = peer.greet(&Hello::new(name, None, false)).await;
        assert!(matches!(greeting, Greeting::Welcome(_)), "{greeting:?}");
        peer
    }

    async fn greet(&mut self, hello: &Hello) -> Greeting {
        self.send(0, hello).await;
        let mut replies = Incoming::new(&mut self.0);
        let (_, greeting) = timeout(LIMIT, replies.next()).await.unwrap().unwrap();
        greeting
    }

    async fn send(&mut self, number: u64, request: &impl Serialize) {
        let mut frame = BytesMut::new();
        wire::put(&mut frame, number, request);
        self.0.write_all(&frame).await.unwrap();
    }

    async fn replies(&mut self, count: usize) -> Vec<(u64, Reply)> {
        let mut replies = Incoming::new(&mut self.0);
        replies.trust();
        let mut received = Vec::new();
        while received.len() < count {
            let reply = timeout(LIMIT, replies.next()).await.unwrap();
            received.push(reply.expect("the owner answers"));
        }
        received
    }

    /// Waits until the owner ends the connection.
    async fn wait_for_end(&mut self) {
        let mut rest = Vec::new();
        let end = timeout(LIMIT, self.0.read_to_end(&mut rest)).await;
        assert!(end.is_ok() && rest.is_empty(), "{rest:?}");
    }
}

fn memory() -> Embedded {
    Options::new().memory().unwrap()
}

/// Returns a client whose owner never answers, and the owner's end.
async fn stalled() -> (Embedded, DuplexStream) {
    let (client, mut owner) = tokio::io::duplex(64 << 10);
    let (sender, link) = oneshot::channel();
    thread::spawn(move || {
        let link = Link::over(client, Environment::system());
        sender.send(link.unwrap()).ok().unwrap();
    });
    let mut requests = Incoming::new(&mut owner);
    let (_, hello) = requests.next::<Hello>().await.unwrap().unwrap();
    assert_eq!(hello.process.pid, process::id());
    let mut frame = BytesMut::new();
    wire::put(&mut frame, 0, &messages::greetings().remove(0));
    owner.write_all(&frame).await.unwrap();
    let link = timeout(LIMIT, link).await.unwrap();
    (Embedded::new(Seat::Client(Arc::new(link))), owner)
}

/// Ends a connection as an owner does that has answered none of this many requests.
async fn end_after(mut owner: DuplexStream, requests: usize, last: Option<Reply>) {
    let mut received = Incoming::new(&mut owner);
    received.trust();
    for _ in 0..requests {
        received.next::<Request>().await.unwrap().unwrap();
    }
    if let Some(last) = last {
        let mut frame = BytesMut::new();
        wire::put(&mut frame, 0, &last);
        owner.write_all(&frame).await.unwrap();
    }
}

fn read(transaction: u64, ask: Ask) -> Request {
    Request::Read {
        transaction,
        at: None,
        ask,
    }
}

fn number(error: &Error) -> i32 {
    error.code().unwrap().number()
}

#[tokio::test]
async fn a_peer_that_sends_no_requests_loses_its_connection_alone() {
    let owner = memory();
    let mut sound = Peer::welcomed(&owner).await;
    let garbage: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 64],
        &[0xff; 64],
        &[1, 0, 0, 0, 0xc1],
    ];
    for bytes in garbage {
        let mut peer = Peer::of(&owner);
        peer.0.write_all(bytes).await.unwrap();
        peer.wait_for_end().await;
        let mut peer = Peer::welcomed(&owner).await;
        peer.0.write_all(bytes).await.unwrap();
        peer.wait_for_end().await;
    }
    let long = Request::Commit {
        transaction: 1,
        request: CommitRequest {
            mutations: vec![Mutation::Clear {
                key: vec![0; 10_001].into(),
            }],
            ..CommitRequest::default()
        },
    };
    let mut peer = Peer::welcomed(&owner).await;
    peer.send(1, &long).await;
    peer.wait_for_end().await;

    sound.send(1, &read(1, Ask::Version)).await;
    sound.replies(1).await;
}

#[tokio::test]
async fn a_frame_may_arrive_byte_by_byte() {
    let owner = memory();
    let mut peer = Peer::welcomed(&owner).await;
    let mut frame = BytesMut::new();
    wire::put(&mut frame, 300, &read(1, Ask::Key("k".into())));
    for byte in frame {
        peer.0.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let replies = peer.replies(1).await;
    assert!(
        matches!(
            &replies[..],
            [(
                300,
                Reply::Found {
                    found: Found::Value(None),
                    ..
                }
            )]
        ),
        "{replies:?}"
    );
}

#[tokio::test]
async fn a_client_has_at_most_ten_thousand_transactions_open() {
    let owner = memory();
    let mut peer = Peer::welcomed(&owner).await;
    for transaction in 0..10_001 {
        peer.send(transaction, &read(transaction, Ask::Version))
            .await;
        let (_, reply) = peer.replies(1).await.remove(0);
        let is_refused = matches!(reply, Reply::Failed(RequestError::Code(1078)));
        assert_eq!(is_refused, transaction == 10_000, "{reply:?}");
    }
    peer.send(1, &Request::End { transaction: 5 }).await;
    peer.send(2, &read(10_000, Ask::Version)).await;
    let replies = peer.replies(1).await;
    assert!(matches!(replies[0].1, Reply::Found { .. }), "{replies:?}");
}

#[tokio::test]
async fn a_client_that_reads_no_replies_delays_no_other() {
    let owner = memory();
    let mut tr = owner.begin().unwrap();
    for number in 0..100 {
        tr.set(&key(number), &[0; 10_000]);
    }
    tr.commit().await.unwrap();
    let mut deaf = Peer::welcomed(&owner).await;
    let all = Ask::Rows {
        begin: Bytes::new(),
        end: "\u{7f}".into(),
        limits: ReadLimits::rows(usize::MAX),
        direction: Direction::Forward,
    };
    let flood = async {
        for number in 0.. {
            deaf.send(number, &read(1, all.clone())).await;
        }
    };
    // Its requests stop where the owner's do: at the bytes that wait.
    let env = Environment::system();
    let flooded = env.timeout(Duration::from_millis(300), flood).await;
    assert!(flooded.is_none());
    let mut sound = Peer::welcomed(&owner).await;
    sound.send(1, &read(1, Ask::Version)).await;
    sound.replies(1).await;
}

#[tokio::test]
async fn a_watch_that_nobody_waits_for_is_forgotten_by_the_owner() {
    let owner = memory();
    let client = owner.over_a_pipe(|| 1).unwrap();
    let serving = owner.owner().unwrap();
    let mut tr = client.begin().unwrap();
    let watches: Vec<_> = (0..8).map(|number| tr.watch(&key(number))).collect();
    tr.commit().await.unwrap();
    // The owner takes requests in order.
    client.begin().unwrap().read_version().await.unwrap();
    assert_eq!(serving.engine().watches().armed(), 8);
    drop(watches);
    // What ends them is sent with the next request.
    while serving.engine().watches().armed() > 0 {
        client.begin().unwrap().read_version().await.unwrap();
    }
}

#[tokio::test]
async fn a_read_sees_the_writes_of_its_transaction_as_of_its_call() {
    let owner = memory();
    let client = owner.over_a_pipe(|| 1).unwrap();
    let mut tr = client.begin().unwrap();
    tr.set(b"a", b"1");
    tr.commit().await.unwrap();
    let tr = client.begin().unwrap();
    let isolation = Isolation::Serializable;
    tr.atomic(MutationOp::AppendIfFits, b"a", b"2");
    let first = tr.get(b"a", isolation);
    tr.set(b"a", b"3");
    let second = tr.get(b"a", isolation);
    assert_eq!(second.await.unwrap(), Some("3".into()));
    assert_eq!(first.await.unwrap(), Some("12".into()));
}

#[tokio::test]
async fn a_commit_waits_for_the_reads_that_nobody_awaits() {
    let owner = memory();
    let client = owner.over_a_pipe(|| 1).unwrap();
    let mut tr = client.begin().unwrap();
    let read = tr.get(b"a", Isolation::Serializable);
    tr.set(b"b", b"");
    let mut other = owner.begin().unwrap();
    other.set(b"a", b"");
    // The read has its version once the owner has answered it.
    let _ = read.await.unwrap();
    let unread = tr.get(b"c", Isolation::Serializable);
    other.set(b"c", b"");
    other.commit().await.unwrap();
    let refused = tr.commit().await.unwrap_err();
    assert_eq!(number(&refused), 1020);
    assert_eq!(unread.await.unwrap(), None);
}

#[tokio::test]
async fn frames_that_callers_write_in_part_arrive_whole_and_in_order() {
    const FRAMES: u64 = 2_000;
    let outgoing = Arc::new(Outgoing::default());
    let written = Arc::new(Mutex::new(Vec::new()));
    let last = Arc::new(AtomicU64::new(0));
    outgoing.write_directly(Box::new({
        let written = written.clone();
        let calls = AtomicUsize::new(0);
        let sender = Arc::downgrade(&outgoing);
        let last = last.clone();
        move |bytes| {
            // Another caller sends meanwhile.
            if let Some(sender) = sender.upgrade() {
                let number = last.fetch_add(1, Ordering::Relaxed);
                if number < FRAMES {
                    sender.send(number, &read(number, Ask::Version));
                }
            }
            // Each third call finds the socket full, and others take a part.
            let taken = match calls.fetch_add(1, Ordering::Relaxed) % 3 {
                0 => return Err(io::ErrorKind::WouldBlock.into()),
                1 => bytes.len().div_ceil(2),
                _ => bytes.len(),
            };
            written.lock().extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }
    }));
    let writing = tokio::spawn({
        let outgoing = outgoing.clone();
        let writer = Written(written.clone());
        async move { outgoing.write(writer).await }
    });
    loop {
        let number = last.fetch_add(1, Ordering::Relaxed);
        if number >= FRAMES {
            break;
        }
        outgoing.send(number, &read(number, Ask::Version));
        if number.is_multiple_of(7) {
            tokio::task::yield_now().await;
        }
    }
    outgoing.close();
    timeout(LIMIT, writing).await.unwrap().unwrap();
    let bytes = std::mem::take(&mut *written.lock());
    let mut bytes = BytesMut::from(&bytes[..]);
    for expected in 0..FRAMES {
        let frame = wire::take::<Request>(&mut bytes, MAX_FRAME_BYTES);
        assert_eq!(frame.unwrap().unwrap().0, expected);
    }
    assert!(bytes.is_empty());
}

/// What the thread of a connection writes to.
struct Written(Arc<Mutex<Vec<u8>>>);

impl AsyncWrite for Written {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut task::Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.lock().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_bound_that_is_longer_than_a_frame_ends_no_connection() {
    let owner = memory();
    let client = owner.over_a_pipe(|| 1).unwrap();
    let mut tr = client.begin().unwrap();
    tr.set(b"a", b"");
    let long = vec![b'a'; MAX_FRAME_BYTES + 1];
    let rows = RangeQuery::keys(b"a".to_vec(), long.clone());
    let rows = timeout(LIMIT, tr.get_range(&rows, Isolation::Serializable)).await;
    assert_eq!(rows.unwrap().rows.len(), 1);
    let after = KeySelector::first_greater_than(long);
    let found = timeout(LIMIT, tr.get_key(&after, Isolation::Serializable)).await;
    assert_eq!(found.unwrap(), b"\xff"[..]);
    tr.commit().await.unwrap();
}

#[tokio::test]
async fn a_commit_of_a_client_is_one_request() {
    let (client, mut owner) = stalled().await;
    let mut tr = client.begin().unwrap();
    tr.fix_read_version().await.unwrap();
    tr.set(b"a", b"");
    let mut requests = Incoming::new(&mut owner);
    requests.trust();
    let request = async { timeout(LIMIT, requests.next::<Request>()).await };
    let commit = tr.commit().map(drop);
    let first = futures::future::select(Box::pin(commit), Box::pin(request)).await;
    let futures::future::Either::Right((request, _)) = first else {
        panic!("the owner has not answered");
    };
    let (_, request) = request.unwrap().unwrap();
    let Request::Commit { request, .. } = request else {
        panic!("{request:?}");
    };
    assert_eq!(request.read_version, None);
}

#[tokio::test]
async fn a_stalled_owner_delays_a_transaction_until_its_timeout() {
    let (client, _owner) = stalled().await;
    let tr = client.begin().unwrap();
    let soon = TransactionOption::Timeout(Duration::from_millis(20));
    tr.set_option(soon).unwrap();
    let read = tr.get(b"a", Isolation::Snapshot);
    assert_eq!(number(&timeout(LIMIT, read).await.unwrap_err()), 1031);
    let mut tr = client.begin().unwrap();
    tr.set_option(soon).unwrap();
    tr.set(b"a", b"");
    let commit = timeout(LIMIT, tr.commit()).await;
    assert_eq!(number(&commit.unwrap_err()), 1031);
}

#[tokio::test]
async fn a_cancelled_or_restarted_transaction_ends_its_reads() {
    let (client, _owner) = stalled().await;
    let mut tr = client.begin().unwrap();
    let read = tr.get(b"a", Isolation::Snapshot);
    tr.reset();
    assert_eq!(number(&timeout(LIMIT, read).await.unwrap_err()), 1025);
    let read = tr.get(b"a", Isolation::Snapshot);
    tr.on_error(Code::NOT_COMMITTED.into()).await.unwrap();
    assert_eq!(number(&timeout(LIMIT, read).await.unwrap_err()), 1025);
    let read = tr.get(b"a", Isolation::Snapshot);
    tr.cancel();
    assert_eq!(number(&timeout(LIMIT, read).await.unwrap_err()), 1025);
}

#[tokio::test]
async fn the_end_of_a_connection_is_the_answer_to_what_was_sent() {
    let (client, owner) = stalled().await;
    let reader = client.begin().unwrap();
    reader.set_read_version(5);
    let read = reader.get(b"a", Isolation::Snapshot);
    let fresh = client.begin().unwrap();
    let first_read = fresh.get(b"a", Isolation::Snapshot);
    let mut tr = client.begin().unwrap();
    tr.set(b"a", b"");
    let end = end_after(owner, 3, None);
    let (commit, ()) = timeout(LIMIT, futures::future::join(tr.commit(), end)).await;
    assert_eq!(number(&commit.unwrap_err()), 1021);
    assert_eq!(number(&timeout(LIMIT, read).await.unwrap_err()), 1007);
    // A pipe leads to no other owner.
    for read in [
        first_read.boxed(),
        fresh.get(b"b", Isolation::Snapshot).boxed(),
    ] {
        let refused = timeout(LIMIT, read).await.unwrap_err();
        assert!(matches!(refused, Error::Poisoned { .. }), "{refused:?}");
    }
    let later = reader.get(b"b", Isolation::Snapshot).await.unwrap_err();
    assert_eq!(number(&later), 1007);
}

#[tokio::test]
async fn a_commit_that_an_owner_leaves_unread_did_not_happen() {
    let (client, owner) = stalled().await;
    let mut tr = client.begin().unwrap();
    tr.set(b"a", b"");
    let end = end_after(owner, 1, Some(Reply::Left));
    let (commit, ()) = timeout(LIMIT, futures::future::join(tr.commit(), end)).await;
    assert_eq!(number(&commit.unwrap_err()), 1007);
}

#[tokio::test]
async fn a_client_that_asks_for_nothing_learns_that_the_store_has_failed() {
    let owner = memory();
    let client = owner.over_a_pipe(|| 1).unwrap();
    let mut tr = client.begin().unwrap();
    let watch = tr.watch(b"a");
    tr.commit().await.unwrap();
    let failure = io::Error::other("no disk");
    owner.owner().unwrap().engine().fail(FileError::Io(failure));
    let failed = timeout(LIMIT, watch).await.unwrap_err();
    assert!(matches!(failed, Error::Poisoned { .. }), "{failed:?}");
    drop(owner);
    let tr = client.begin().unwrap();
    let refused = tr.get(b"a", Isolation::Snapshot).await.unwrap_err();
    let texts = [&refused, &failed].map(|error| chain(error).to_string());
    assert_eq!(texts[0], texts[1]);
}

#[cfg(unix)]
#[tokio::test]
async fn a_store_that_has_failed_has_no_next_owner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let owner = Options::new().open(&path).unwrap();
    let client = Options::new().open(&path).unwrap();
    let mut tr = client.begin().unwrap();
    tr.set(b"a", b"1");
    tr.commit().await.unwrap();
    let failure = io::Error::other("no disk");
    owner.owner().unwrap().engine().fail(FileError::Io(failure));
    drop(owner);
    let refused = client.begin().unwrap().get(b"a", Isolation::Snapshot).await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::Poisoned { .. }), "{refused:?}");
    // A new opening finds what was flushed.
    let next = Options::new().open(&path).unwrap();
    let read = next.begin().unwrap().get(b"a", Isolation::Snapshot).await;
    assert_eq!(read.unwrap(), Some("1".into()));
}

#[tokio::test]
async fn a_second_connection_of_a_client_ends_the_first() {
    let owner = memory();
    let name = Environment::system().random_bytes();
    let mut first = Peer::of(&owner);
    first.greet(&Hello::new(name, None, false)).await;
    let mut second = Peer::of(&owner);
    second.greet(&Hello::new(name, None, false)).await;
    let last = first.replies(1).await;
    assert!(matches!(last[..], [(0, Reply::Left)]), "{last:?}");
    first.wait_for_end().await;
    second.send(1, &read(1, Ask::Version)).await;
    second.replies(1).await;
}

#[tokio::test]
async fn a_client_that_speaks_another_protocol_is_told_so() {
    let owner = memory();
    for (protocol, versions) in [("http", (1, 1)), ("keyspace", (2, 9)), ("keyspace", (0, 0))] {
        let mut peer = Peer::of(&owner);
        let greeting = peer
            .greet(&Hello {
                protocol: protocol.to_owned(),
                versions,
                ..Hello::new([1; 16], None, false)
            })
            .await;
        let is_refused = matches!(greeting, Greeting::Refused(Refusal::Protocol((1, 1))));
        assert!(is_refused, "{greeting:?}");
        peer.wait_for_end().await;
    }
}

#[tokio::test]
async fn a_closed_client_refuses_all_work_and_its_owner_none() {
    let owner = memory();
    let client = owner.over_a_pipe(|| 1).unwrap();
    client.close().unwrap();
    let tr = client.begin().unwrap();
    let refused = tr.get(b"a", Isolation::Snapshot).await.unwrap_err();
    assert_eq!(number(&refused), 1025);
    let mut tr = owner.begin().unwrap();
    tr.set(b"a", b"");
    tr.commit().await.unwrap();
}
