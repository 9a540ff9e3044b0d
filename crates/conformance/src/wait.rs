//! How a test waits: for something that happens, and never for a time after which it should have happened.
//!
//! A test passes on a machine that is busy with other programs, where anything may take a hundred times as long. So
//! it waits [until](until) a condition holds or a [future is ready](timeout), and the bound of the wait is one that
//! only a [hang](HANG) reaches.

use std::panic::Location;
use std::time::Duration;

use keyspace::Environment;

/// The bound of a wait. Only what hangs takes this long, however busy the machine is.
pub const HANG: Duration = Duration::from_secs(15 * 60);

/// The pause between two looks, in which other programs do what the wait is for.
const PAUSE: Duration = Duration::from_millis(5);

/// Awaits a future, and panics if it takes longer than `limit`, so that a test fails instead of hanging. The limit of a
/// test is [`HANG`].
///
/// # Panics
/// If the future is not ready within `limit`. The message names the place of the call.
#[track_caller]
pub fn timeout<F: Future>(limit: Duration, future: F) -> impl Future<Output = F::Output> {
    let caller = Location::caller();
    // The box keeps the test's own future small.
    let future = Box::pin(future);
    async move {
        let output = Environment::system().timeout(limit, future).await;
        output.unwrap_or_else(|| panic!("not ready within {limit:?}, at {caller}"))
    }
}

/// Looks again and again until a condition holds, up to [`HANG`].
///
/// # Panics
/// If the condition does not hold by then. The message names the place of the call.
#[track_caller]
pub fn until(mut holds: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    timeout(HANG, async move {
        while !holds().await {
            let_pass(PAUSE).await;
        }
    })
}

/// Lets time pass, where that is a part of what a test tries: a handler that is slow, or a pause before the next kill.
/// What must have happened before the test goes on is a condition, for [`until`].
pub async fn let_pass(time: Duration) {
    Environment::system().sleep(time).await;
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn a_future_that_is_ready_in_time_passes_its_output_on() {
        assert_eq!(timeout(HANG, ready(7)).await, 7);
    }

    #[tokio::test]
    #[should_panic(expected = "not ready within 1ms, at crates/conformance/src/wait.rs")]
    async fn a_future_that_is_never_ready_fails_the_test() {
        timeout(Duration::from_millis(1), pending::<()>()).await;
    }

    #[tokio::test]
    async fn a_condition_is_looked_at_until_it_holds() {
        let mut looks = 0;
        until(async || {
            looks += 1;
            looks == 3
        })
        .await;
        assert_eq!(looks, 3);
    }
}
