//! A future that a test polls itself, and may drop between an answer and the poll that would have returned it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A future that is polled only by calls of [`poll`](Self::poll).
///
/// ```
/// use conformance::by_hand::ByHand;
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let (sender, receiver) = tokio::sync::oneshot::channel();
/// let mut received = ByHand::new(receiver);
/// assert_eq!(received.poll(), None);
/// sender.send(7).unwrap();
/// received.until_woken().await;
/// assert_eq!(received.poll(), Some(Ok(7)));
/// # });
/// # Ok::<_, std::io::Error>(())
/// ```
pub struct ByHand<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + 'a>>,
    woken: Arc<Woken>,
}

/// Whether a future was woken since its last poll began.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl<'a, T> ByHand<'a, T> {
    /// Takes a future, which is not polled yet.
    pub fn new(future: impl Future<Output = T> + 'a) -> Self {
        Self {
            // Without the budget of the task, it is woken only by what it waits for.
            future: Box::pin(tokio::task::unconstrained(future)),
            woken: Arc::default(),
        }
    }

    /// Polls the future once. Returns its output if it is ready.
    pub fn poll(&mut self) -> Option<T> {
        self.woken.0.store(false, Ordering::Release);
        let waker = Waker::from(self.woken.clone());
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Waits, without a poll, until the future was woken since its last poll began.
    pub async fn until_woken(&self) {
        while !self.woken.0.load(Ordering::Acquire) {
            tokio::task::yield_now().await;
        }
    }
}

impl<T> fmt::Debug for ByHand<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByHand").finish_non_exhaustive()
    }
}
