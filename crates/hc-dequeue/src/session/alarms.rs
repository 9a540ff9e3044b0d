//! The events that the task of a session waits for besides commands: named timers and one watch.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use microqueue::keyspace;
use microqueue::keyspace::env::{BoxFuture, Environment};
use parking_lot::Mutex;

/// Named timers and one watch. `T` names a timer, and `W` is the meaning of a watch that fires.
///
/// The task does one thing at a time: it starts timers and sets the watch while it decides, and then waits for
/// [`next`](Self::next).
pub struct Alarms<T, W> {
    env: Environment,
    timers: BTreeMap<T, Duration>,
    /// The lock is never taken. It makes the owner `Sync`, so that its futures are `Send`.
    watch: Option<Mutex<BoxFuture<keyspace::Result<W>>>>,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alarm<T, W> {
    /// A timer has run out, and has stopped.
    Elapsed(T),
    /// The watch has fired, and is gone.
    Woken(W),
}

impl<T: Copy + Ord, W> Alarms<T, W> {
    /// Returns alarms without any timer or watch, on the clock of an environment.
    #[must_use]
    pub fn new(env: Environment) -> Self {
        Self {
            env,
            timers: BTreeMap::new(),
            watch: None,
        }
    }

    /// Starts a timer, which replaces one of the same name.
    pub fn start(&mut self, timer: T, delay: Duration) {
        let end = self.env.now().saturating_add(delay);
        self.timers.insert(timer, end);
    }

    /// Stops a timer, if it runs.
    pub fn stop(&mut self, timer: T) {
        self.timers.remove(&timer);
    }

    /// Sets the watch, which replaces the previous one.
    pub fn watch(&mut self, watch: impl Future<Output = keyspace::Result<W>> + Send + 'static) {
        self.watch = Some(Mutex::new(Box::pin(watch)));
    }

    /// Drops the watch.
    pub fn unwatch(&mut self) {
        self.watch = None;
    }

    /// Waits until a timer runs out or the watch fires. Returns `None` if neither happens before `end`, by the clock;
    /// `Duration::MAX` never ends. A watch that fails is dropped: the timers cover for it.
    ///
    /// # Cancel safety
    /// If the future is dropped, no event is lost.
    pub async fn next(&mut self, end: Duration) -> Option<Alarm<T, W>> {
        loop {
            let first = self.timers.iter().min_by_key(|(_, ends)| **ends);
            let first = first.map(|(timer, ends)| (*timer, *ends));
            let wakes = first.map_or(end, |(_, ends)| ends.min(end));
            let sleep = async {
                match wakes {
                    Duration::MAX => std::future::pending().await,
                    _ => {
                        self.env.sleep(wakes.saturating_sub(self.env.now())).await;
                    }
                }
            };
            let watch = async {
                match &mut self.watch {
                    Some(watch) => watch.get_mut().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                woken = watch => {
                    self.watch = None;
                    if let Ok(woken) = woken {
                        return Some(Alarm::Woken(woken));
                    }
                }
                () = sleep => {
                    let now = self.env.now();
                    let elapsed = first.filter(|(_, ends)| *ends <= now);
                    return elapsed.map(|(timer, _)| {
                        self.timers.remove(&timer);
                        Alarm::Elapsed(timer)
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::Arc;

    use microqueue::keyspace::Code;
    use microqueue::keyspace::env::ManualClock;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn alarms() -> Alarms<&'static str, ()> {
        let clock = ManualClock::moved_by_sleepers();
        Alarms::new(Environment::seeded(1, Arc::new(clock)))
    }

    fn in_a_while(alarms: &Alarms<&'static str, ()>) -> Duration {
        alarms.env.now() + 100 * SECOND
    }

    #[tokio::test]
    async fn timers_run_out_in_the_order_of_their_ends_and_once() {
        let mut alarms = alarms();
        let end = in_a_while(&alarms);
        alarms.start("late", 3 * SECOND);
        alarms.start("early", SECOND);
        alarms.start("stopped", 2 * SECOND);
        alarms.stop("stopped");
        assert_eq!(alarms.next(end).await, Some(Alarm::Elapsed("early")));
        alarms.start("late", 5 * SECOND);
        alarms.start("new", 4 * SECOND);
        assert_eq!(alarms.next(end).await, Some(Alarm::Elapsed("new")));
        assert_eq!(alarms.next(end).await, Some(Alarm::Elapsed("late")));
        assert_eq!(alarms.next(end).await, None);
    }

    #[tokio::test]
    async fn a_watch_fires_once_and_one_that_fails_leaves_the_timers() {
        let mut alarms = alarms();
        let end = in_a_while(&alarms);
        alarms.start("timer", SECOND);
        alarms.watch(ready(Ok(())));
        assert_eq!(alarms.next(end).await, Some(Alarm::Woken(())));
        alarms.watch(ready(Err(Code::FUTURE_VERSION.into())));
        assert_eq!(alarms.next(end).await, Some(Alarm::Elapsed("timer")));
        alarms.start("timer", SECOND);
        alarms.watch(pending());
        assert_eq!(alarms.next(end).await, Some(Alarm::Elapsed("timer")));
    }
}
