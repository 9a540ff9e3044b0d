//! How a client greets an owner.

use std::fmt;
use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

use super::frames::{Incoming, WriteNow};
use super::{Greeting, Hello, Refusal, Welcome, put};

/// A connection whose owner serves this client.
pub(crate) struct Greeted<S> {
    pub(crate) welcome: Welcome,
    pub(crate) replies: Incoming<ReadHalf<S>>,
    pub(crate) writer: WriteHalf<S>,
    /// How callers write, if they can.
    pub(crate) write_now: Option<WriteNow>,
}

/// The process at the other end of a connection. Empty if the system does not say.
#[derive(Debug)]
pub(crate) struct Peer(pub(crate) String);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why there is no connection to an owner.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreachable {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(
        "its owner{0} does not answer: it may be stopped, or out of file descriptors; continue or end it"
    )]
    Silent(Peer),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Greets the owner at the other end, and waits for its answer.
pub(crate) async fn greet<S: AsyncRead + AsyncWrite>(
    stream: S,
    hello: &Hello,
) -> Result<Greeted<S>, Unreachable> {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut frame = BytesMut::new();
    put(&mut frame, 0, hello);
    writer.write_all(&frame).await?;
    let mut replies = Incoming::new(reader);
    match replies.next().await? {
        Some((_, Greeting::Welcome(welcome))) => {
            replies.trust();
            Ok(Greeted {
                welcome,
                replies,
                writer,
                write_now: None,
            })
        }
        Some((_, Greeting::Refused(refusal))) => Err(refusal.into()),
        None => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
    }
}
