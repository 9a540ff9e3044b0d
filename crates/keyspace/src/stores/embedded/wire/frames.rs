//! The frames that one end of a connection sends, and those that it receives.

use std::io;
use std::sync::OnceLock;

use bytes::{Buf, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use super::{MAX_FRAME_BYTES, MAX_GREETING_BYTES, put, take};

/// How many bytes are read at once, at least.
const READ_BYTES: usize = 64 << 10;

/// The frames that wait to be written. Callers append them, and one writer writes all of them with one call: the thread
/// of the connection or, if it has nothing to write, the caller.
#[derive(Default)]
pub(crate) struct Outgoing {
    unsent: Mutex<Unsent>,
    /// How a caller writes. Without it, only the thread does.
    write_now: OnceLock<WriteNow>,
    /// Notified when there is something for the thread to write, and at the end.
    wake: Notify,
    /// Notified when everything was written.
    written: Notify,
}

/// Writes bytes without waiting. Returns how many were written.
pub(crate) type WriteNow = Box<dyn Fn(&[u8]) -> io::Result<usize> + Send + Sync>;

#[derive(Default)]
struct Unsent {
    bytes: BytesMut,
    /// Whether bytes that were taken are being written. The writer takes what comes meanwhile, too.
    is_writing: bool,
    is_closed: bool,
}

impl Outgoing {
    /// Lets callers write.
    pub(crate) fn write_directly(&self, write_now: WriteNow) {
        // A connection has one way to write.
        let _ = self.write_now.set(write_now);
    }

    /// Sends a message.
    pub(crate) fn send(&self, number: u64, message: &impl Serialize) {
        let mut unsent = self.unsent.lock();
        if unsent.is_closed {
            return;
        }
        put(&mut unsent.bytes, number, message);
        if unsent.is_writing {
            return;
        }
        match self.write_now.get() {
            Some(write_now) => self.write_here(unsent, write_now),
            None => self.wake.notify_one(),
        }
    }

    /// Sends a message together with the next one. Does nothing after the end.
    pub(crate) fn send_later(&self, number: u64, message: &impl Serialize) {
        let mut unsent = self.unsent.lock();
        if !unsent.is_closed {
            put(&mut unsent.bytes, number, message);
        }
    }

    /// Writes what waits, as far as that is possible at once. The thread writes the rest.
    fn write_here(&self, mut unsent: MutexGuard<'_, Unsent>, write_now: &WriteNow) {
        let mut bytes = BytesMut::new();
        unsent.is_writing = true;
        while !unsent.bytes.is_empty() {
            std::mem::swap(&mut unsent.bytes, &mut bytes);
            let written = MutexGuard::unlocked(&mut unsent, || write_now(&bytes));
            bytes.advance(written.unwrap_or(0));
            if !bytes.is_empty() {
                // If there was an error, the thread finds it, too.
                bytes.unsplit(unsent.bytes.split());
                unsent.bytes = bytes;
                break;
            }
        }
        unsent.is_writing = false;
        if !unsent.bytes.is_empty() || unsent.is_closed {
            self.wake.notify_one();
        }
    }

    /// Returns how many bytes wait to be written.
    pub(crate) fn bytes(&self) -> usize {
        self.unsent.lock().bytes.len()
    }

    /// Waits until at most `max` bytes wait to be written.
    pub(crate) async fn wait_until(&self, max: usize) {
        while self.bytes() > max {
            self.written.notified().await;
        }
    }

    /// Ends the connection once everything was written.
    pub(crate) fn close(&self) {
        self.unsent.lock().is_closed = true;
        self.wake.notify_one();
    }

    /// Writes what callers do not, until the end.
    pub(crate) async fn write(&self, mut writer: impl AsyncWrite + Unpin) -> io::Result<()> {
        let mut bytes = BytesMut::new();
        loop {
            let is_closed = {
                let mut unsent = self.unsent.lock();
                if !unsent.is_writing {
                    std::mem::swap(&mut unsent.bytes, &mut bytes);
                    unsent.is_writing = !bytes.is_empty();
                }
                unsent.is_closed && !unsent.is_writing
            };
            if bytes.is_empty() && is_closed {
                return writer.shutdown().await;
            }
            if bytes.is_empty() {
                self.wake.notified().await;
                continue;
            }
            writer.write_all(&bytes).await?;
            bytes.clear();
            self.unsent.lock().is_writing = false;
            self.written.notify_one();
        }
    }
}

/// Returns whether an error says that the other end has gone, as it may at any time.
pub(crate) fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

/// The frames that arrive.
pub(crate) struct Incoming<R> {
    reader: R,
    bytes: BytesMut,
    max_bytes: usize,
}

impl<R: AsyncRead + Unpin> Incoming<R> {
    /// Receives a greeting first.
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader,
            bytes: BytesMut::new(),
            max_bytes: MAX_GREETING_BYTES,
        }
    }

    /// Receives frames of any kind from now on.
    pub(crate) fn trust(&mut self) {
        self.max_bytes = MAX_FRAME_BYTES;
    }

    /// Returns the next message with its number, `None` at the end of the connection.
    pub(crate) async fn next<M: DeserializeOwned>(&mut self) -> io::Result<Option<(u64, M)>> {
        loop {
            let frame = take(&mut self.bytes, self.max_bytes);
            if let Some(frame) = frame.map_err(io::Error::other)? {
                return Ok(Some(frame));
            }
            self.bytes.reserve(READ_BYTES);
            if self.reader.read_buf(&mut self.bytes).await? == 0 {
                return Ok(None);
            }
        }
    }
}
