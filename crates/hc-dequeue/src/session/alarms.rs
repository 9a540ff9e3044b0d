//! The events that the task of a session waits for besides commands: named timers and one watch.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use futures::future::BoxFuture;
use microqueue::keyspace;
use microqueue::keyspace::env::Environment;
use parking_lot::Mutex;

/// Named timers and one watch. `T` names a timer, and `W` is the meaning of a watch that fires.
///
/// The task does one thing at a time: it starts timers and sets the watch while it decides, and then waits for
/// [`next`](Self::next).
pub struct Alarms<T, W> {
    env: Environment,
    timers: BTreeMap<T, Duration>,
    /// The lock is never taken. It makes the owner `Sync`, so that its futures are `Send`.
    watch: Option<Mutex<BoxFuture<'static, keyspace::Result<W>>>>,
    /// A sleep of an earlier call, which is used again if it does not end too late: a new sleep usually wakes a
    /// thread of the runtime. The lock is never taken.
    sleep: Option<Mutex<Sleep>>,
}

struct Sleep {
    /// When it ends, by the clock.
    end: Duration,
    future: BoxFuture<'static, ()>,
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
            sleep: None,
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
            let first = self
                .timers
                .iter()
                .min_by_key(|(_, ends)| **ends)
                .map(|(timer, ends)| (*timer, *ends));
            let wakes = first.map_or(end, |(_, ends)| ends.min(end));
            let sleep = Self::sleep_until(wakes, &mut self.sleep, &self.env);
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
                    self.sleep = None;
                    let now = self.env.now();
                    if let Some((timer, _)) = first.filter(|(_, ends)| *ends <= now) {
                        self.timers.remove(&timer);
                        return Some(Alarm::Elapsed(timer));
                    }
                    if end <= now {
                        return None;
                    }
                }
            }
        }
    }

    /// Sleeps until `time` or, if there is a sleep that ends earlier, until that ends.
    async fn sleep_until(time: Duration, sleep: &mut Option<Mutex<Sleep>>, env: &Environment) {
        let kept = sleep.take_if(|sleep| sleep.get_mut().end <= time);
        *sleep = match kept {
            None if time < Duration::MAX => {
                let future = env.sleep(time.saturating_sub(env.now()));
                Some(Mutex::new(Sleep { end: time, future }))
            }
            kept => kept,
        };
        match sleep {
            Some(sleep) => (&mut sleep.get_mut().future).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::SystemTime;

    use futures::FutureExt;
    use microqueue::keyspace::Code;
    use microqueue::keyspace::env::{Clock, ManualClock};

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

    #[tokio::test]
    async fn a_sleep_of_an_earlier_call_ends_no_later_call() {
        let clock = ManualClock::new();
        let env = Environment::seeded(1, Arc::new(clock.clone()));
        let mut alarms: Alarms<_, ()> = Alarms::new(env);
        assert_eq!(alarms.next(SECOND).now_or_never(), None);
        alarms.start("timer", 3 * SECOND);
        let mut next = Box::pin(alarms.next(Duration::MAX));
        assert_eq!((&mut next).now_or_never(), None);
        clock.advance(SECOND);
        assert_eq!((&mut next).now_or_never(), None);
        clock.advance(2 * SECOND);
        assert_eq!(next.await, Some(Alarm::Elapsed("timer")));
        assert_eq!(alarms.next(4 * SECOND).now_or_never(), None);
        clock.advance(SECOND);
        assert_eq!(alarms.next(4 * SECOND).now_or_never(), Some(None));
    }

    /// A clock that counts sleeps.
    #[derive(Debug, Default)]
    struct Counting {
        clock: ManualClock,
        sleeps: AtomicUsize,
    }

    impl Clock for Counting {
        fn now(&self) -> Duration {
            self.clock.now()
        }

        fn wall(&self) -> SystemTime {
            self.clock.wall()
        }

        fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
            self.sleeps.fetch_add(1, Relaxed);
            self.clock.sleep(duration)
        }
    }

    #[test]
    fn calls_that_end_later_share_a_sleep() {
        let clock = Arc::new(Counting::default());
        let mut alarms: Alarms<(), ()> = Alarms::new(Environment::seeded(1, clock.clone()));
        for end in [2, 2, 3, 1, 2] {
            assert_eq!(alarms.next(end * SECOND).now_or_never(), None);
        }
        // The first one, and the one that must end earlier.
        assert_eq!(clock.sleeps.load(Relaxed), 2);
    }
}
