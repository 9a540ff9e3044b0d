//! Runs code of the application, so that a panic in it becomes a value.
//!
//! The recipes call code that they do not know: handlers, combiners, observers, exporters and codecs, and
//! with them the `Drop`, `Display` and `Into` of the application's own types. A panic in any of these must
//! not end the task that makes the call, since that task also serves other items. All such calls go through
//! this module:
//!
//! - [`call`] runs a closure.
//! - [`run`] runs a future. It covers each poll, and the drop of a future that is dropped early, because
//!   its time is over for example.
//! - [`Guarded`] holds a value of the application, and covers its drop; [`discard`] drops one.
//! - [`codec::decode`](crate::codec::decode) and [`codec::encode`](crate::codec::encode) call a codec.
//! - [`chain`](crate::error::chain) covers the `Display` and the `source` of an error.
//!
//! A panic in a drop has no caller that it could fail, so it is only logged.
//!
//! # Limits
//!
//! Some things cannot be caught, and end the process as in every Rust program: a panic while another panic
//! unwinds the same code (two panicking guards in one handler), a stack overflow, and any panic in a program
//! that is built with `panic = "abort"`.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

/// Code of the application has panicked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it panicked: {message}")]
pub struct Panicked {
    message: String,
}

impl Panicked {
    /// Takes the message of a panic, and drops the rest of it.
    fn new(payload: Box<dyn Any + Send>) -> Self {
        let message = panic_text(&*payload).to_owned();
        if let Err(payload) = catch(|| drop(payload)) {
            // A payload whose drop panics with such a payload would never end.
            std::mem::forget(payload);
        }
        Self { message }
    }

    /// Returns the message of the panic.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the message of the panic.
    #[must_use]
    pub fn into_message(self) -> String {
        self.message
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}

/// The only place that catches panics of the application.
fn catch<R>(code: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    // What the code leaves behind is dropped or belongs to the application.
    catch_unwind(AssertUnwindSafe(code))
}

/// Runs a closure. Its result should own nothing of the application, or be [`Guarded`].
///
/// # Errors
/// [`Panicked`] if it panics.
pub fn call<R>(code: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch(code).map_err(Panicked::new)
}

/// Drops a value of the application. A panic is logged.
pub fn discard<T>(value: T) {
    drop_by(|| drop(value));
}

/// Drops something of the application, and logs a panic.
fn drop_by(drop: impl FnOnce()) {
    if let Err(panicked) = call(drop) {
        let panic = panicked.message();
        tracing::error!(
            panic,
            "code of the application panicked while it was dropped"
        );
    }
}

/// Returns a future that runs a future of the application.
///
/// The call that creates the future, and what becomes of its result, may panic, too. They belong in an
/// `async` block, which is the future to run:
///
/// ```
/// use keyspace::foreign;
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let parse = |text: &'static str| {
///     assert!(!text.is_empty(), "no digits");
///     async move { text.parse::<u32>().map_err(|error| error.to_string()) }
/// };
/// assert_eq!(foreign::run(async { parse("7").await }).await, Ok(Ok(7)));
/// let panicked = foreign::run(async { parse("").await }).await.unwrap_err();
/// assert_eq!(panicked.to_string(), "it panicked: no digits");
/// # });
/// # Ok::<_, std::io::Error>(())
/// ```
/// # Cancel safety
/// The future of the application is dropped with the returned one. A panic in its drop is logged.
pub fn run<F: Future>(future: F) -> Run<F> {
    Run {
        future: Some(future),
    }
}

pin_project! {
    /// The future of [`run`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Run<F> {
        // `None` after it has ended.
        #[pin]
        future: Option<F>,
    }

    impl<F> PinnedDrop for Run<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut future = this.project().future;
            if future.is_some() {
                // If the drop panics, the `None` is stored all the same.
                drop_by(|| future.set(None));
            }
        }
    }
}

impl<F: Future> Future for Run<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut future = self.project().future;
        let mut poll = || {
            let running = future
                .as_mut()
                .as_pin_mut()
                .expect("a future is not polled after its end");
            let output = running.poll(context);
            if output.is_ready() {
                future.set(None);
            }
            output
        };
        match call(&mut poll) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panicked) => {
                drop_by(|| future.set(None));
                Poll::Ready(Err(panicked))
            }
        }
    }
}

impl<F> fmt::Debug for Run<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").finish_non_exhaustive()
    }
}

/// A value of the application. A panic in its drop is logged, and stops there.
pub struct Guarded<T>(Option<T>);

impl<T> Guarded<T> {
    /// Guards the drop of a value.
    pub const fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// Returns the value, whose drop is no longer guarded.
    #[must_use]
    pub fn into_inner(mut self) -> T {
        self.0.take().expect("the value is there until now")
    }
}

impl<T> Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("the value is there until the drop")
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        if std::mem::needs_drop::<T>()
            && let Some(value) = self.0.take()
        {
            discard(value);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Guarded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::FutureExt;
    use futures::future::{join, pending};

    use super::*;
    use crate::contract::error::chain;

    /// Panics when it is dropped, and counts that.
    struct Bomb(Arc<AtomicU32>);

    impl Drop for Bomb {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("dropped");
        }
    }

    fn bomb() -> (Bomb, Arc<AtomicU32>) {
        let drops = Arc::new(AtomicU32::new(0));
        (Bomb(drops.clone()), drops)
    }

    fn drops(drops: &AtomicU32) -> u32 {
        drops.load(Ordering::Relaxed)
    }

    #[test]
    fn a_panic_is_a_value_with_its_message() {
        let message = |code: fn()| call(code).unwrap_err().into_message();
        assert_eq!(call(|| 7), Ok(7));
        assert_eq!(message(|| panic!("no luck")), "no luck");
        assert_eq!(message(|| panic!("{} luck", "no")), "no luck");
        assert_eq!(message(|| panic_any(7)), "without a message");
    }

    #[test]
    fn a_payload_that_panics_when_it_is_dropped_is_dropped_once() {
        /// Panics with another one when it is dropped.
        struct Endless(Arc<AtomicU32>);

        impl Drop for Endless {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
                panic_any(Self(self.0.clone()));
            }
        }

        let dropped = Arc::new(AtomicU32::new(0));
        let payload = Endless(dropped.clone());
        let panicked = call(|| panic_any(payload)).unwrap_err();
        assert_eq!(panicked.to_string(), "it panicked: without a message");
        assert_eq!(drops(&dropped), 1);
    }

    #[tokio::test]
    async fn a_future_that_is_dropped_early_may_panic_and_its_neighbors_are_dropped() {
        let (first, first_drops) = bomb();
        let (second, second_drops) = bomb();
        let hold = |bomb| run(async move { (pending::<()>().await, bomb).0 });
        let mut both = Box::pin(join(hold(first), hold(second)));
        assert!(both.as_mut().now_or_never().is_none());
        drop(both);
        assert_eq!((drops(&first_drops), drops(&second_drops)), (1, 1));
        let (never_polled, its_drops) = bomb();
        drop(run(async move { drop(never_polled) }));
        assert_eq!(drops(&its_drops), 1);
    }

    #[tokio::test]
    async fn a_future_whose_drop_panics_after_its_end_has_failed() {
        struct Ended(#[allow(dead_code, reason = "held for its drop")] Bomb);

        impl Future for Ended {
            type Output = u8;

            fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u8> {
                Poll::Ready(7)
            }
        }

        let (bomb, dropped) = bomb();
        let panicked = run(Ended(bomb)).await.unwrap_err();
        assert_eq!((panicked.message(), drops(&dropped)), ("dropped", 1));
    }

    #[tokio::test]
    async fn a_future_whose_poll_and_drop_both_panic_has_failed() {
        struct Both(#[allow(dead_code, reason = "held for its drop")] Bomb);

        impl Future for Both {
            type Output = ();

            fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
                panic!("polled");
            }
        }

        let (bomb, dropped) = bomb();
        let panicked = run(Both(bomb)).await.unwrap_err();
        assert_eq!((panicked.message(), drops(&dropped)), ("polled", 1));
    }

    #[tokio::test]
    async fn a_nested_runtime_may_be_dropped_with_a_future() {
        let nested = || tokio::runtime::Runtime::new().unwrap();
        let runtime = nested();
        let mut holds = Box::pin(run(async move { (pending::<()>().await, runtime).0 }));
        assert!(holds.as_mut().now_or_never().is_none());
        drop(holds);
        let runtime = nested();
        let panicked = run(async move { drop(runtime) }).await.unwrap_err();
        assert!(panicked.message().contains("runtime"), "{panicked}");
    }

    #[test]
    fn a_guarded_value_is_used_and_dropped_once() {
        let (bomb, dropped) = bomb();
        let guarded = Guarded::new(bomb);
        assert_eq!(drops(&guarded.0.as_ref().unwrap().0), 0);
        drop(guarded);
        assert_eq!(drops(&dropped), 1);
        let number = Guarded::new(7);
        assert_eq!((*number, format!("{number:?}")), (7, "7".to_owned()));
        assert_eq!(number.into_inner(), 7);
    }

    /// An error that panics when it is formatted, or when its source is asked for.
    #[derive(Debug)]
    enum Hostile {
        Text,
        Source,
        OwnSource,
    }

    impl fmt::Display for Hostile {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::Text => panic!("no words"),
                Self::Source | Self::OwnSource => f.write_str("hostile"),
            }
        }
    }

    impl std::error::Error for Hostile {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            match self {
                Self::Text => None,
                Self::Source => panic!("no source"),
                Self::OwnSource => Some(self),
            }
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("wrapped")]
    struct WithSource(#[source] Hostile);

    #[test]
    fn the_text_of_an_error_that_panics_says_so() {
        let panicked = "an error that panicked while it was formatted: no words";
        assert_eq!(chain(&Hostile::Text).to_string(), panicked);
        let wrapped = chain(&WithSource(Hostile::Text)).to_string();
        assert_eq!(wrapped, format!("wrapped: {panicked}"));
        let without_source = chain(&WithSource(Hostile::Source)).to_string();
        assert_eq!(without_source, "wrapped: hostile");
    }

    #[test]
    fn an_error_that_is_its_own_source_has_an_end() {
        let text = chain(&Hostile::OwnSource).to_string();
        assert!(
            text.starts_with("hostile: hostile") && text.len() < 1000,
            "{text}"
        );
        assert_eq!(crate::contract::error::code_of(&Hostile::OwnSource), None);
        assert_eq!(
            crate::contract::error::corrupt_key(&Hostile::OwnSource),
            None
        );
    }
}
