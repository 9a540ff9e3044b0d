//! What one client may take of its owner, and what a connection that was never open sends.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{Peer, memory, number, read};
use crate::contract::error::Code;
use crate::stores::embedded::engine::CommitRequest;
use crate::stores::embedded::link::connection::{Connection, Waiting};
use crate::stores::embedded::owner::host::Verification;
use crate::stores::embedded::wire::{Ask, Reply, Request, RequestError};

#[tokio::test]
async fn a_commit_that_was_answered_before_there_was_an_owner_is_never_sent() {
    let connection = Connection::default();
    let (sender, mut answer) = oneshot::channel();
    let commit = Request::Commit {
        transaction: 1,
        request: CommitRequest::default(),
    };
    connection.send(&commit, Waiting::Commit(sender)).unwrap();
    connection.end(Code::TRANSACTION_CANCELLED.into());
    let refused = answer.try_recv().unwrap().err().unwrap();
    assert_eq!(number(&refused), 1025);
    assert!(!connection.open());
}

#[tokio::test]
async fn the_watches_of_a_client_have_a_limit_in_bytes() {
    let owner = memory();
    let serving = owner.owner().unwrap();
    let mut peer = Peer::welcomed(&owner).await;
    let watch = |key: u8| Request::Watch {
        key: vec![key; 10 << 20].into(),
        baseline: None,
    };
    for number in 0..100_u8 {
        peer.send(number.into(), &watch(number)).await;
    }
    let refused = peer.replies(94).await;
    let is_refused =
        |(_, reply): &(u64, Reply)| matches!(reply, Reply::Failed(RequestError::Code(1032)));
    assert!(refused.iter().all(is_refused), "{refused:?}");
    assert_eq!(serving.engine().watches().armed(), 6);
    // One that ends makes room for another. The same number is the same watch.
    peer.send(0, &Request::Unwatch { watch: 0 }).await;
    for _ in 0..2 {
        peer.send(7, &watch(7)).await;
        peer.send(1, &read(1, Ask::Version)).await;
        peer.replies(1).await;
    }
    while serving.engine().watches().armed() != 6 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_client_has_few_copies_and_verifications_under_way() {
    let owner = memory();
    let mut peer = Peer::welcomed(&owner).await;
    for copy in 0..9 {
        let begin = Bytes::new();
        peer.send(copy, &Request::Copy { copy, begin }).await;
        let (_, reply) = peer.replies(1).await.remove(0);
        let is_refused = matches!(reply, Reply::Failed(RequestError::Code(1078)));
        assert_eq!(is_refused, copy == 8, "{reply:?}");
    }
    let scans = Arc::default();
    let mut under_way: Vec<_> = (0..8)
        .map(|_| Verification::begin(&scans).unwrap())
        .collect();
    assert!(Verification::begin(&scans).is_none());
    under_way.pop();
    assert!(Verification::begin(&scans).is_some());
}
