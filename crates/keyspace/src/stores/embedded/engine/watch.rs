//! Watches: futures that wait until a key differs from an earlier value.
//!
//! A watch is first armed, and then compared with the newest published value. A commit is first published,
//! and then looks for watches on the keys that it wrote. Whichever of the two is second sees the other, so
//! no change is missed.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Bound::{Excluded, Included};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::shared::EngineShared;
use crate::contract::error::{Code, Error, Result};
use crate::stores::embedded::log::effect::Effect;

/// The watches of a store, for its transactions.
pub(crate) struct Watches(Arc<EngineShared>);

impl Watches {
    pub(super) fn new(shared: Arc<EngineShared>) -> Self {
        Self(shared)
    }

    /// Creates a watch, unless `max` watches are outstanding. The transaction's commit arms it later.
    pub(crate) fn create(&self, max: usize) -> Result<(WatchSetter, WatchFuture)> {
        self.0.registry.create(max)
    }

    /// Makes `setter` fire once the published value of `key` differs from `baseline`, or at once if it
    /// already does.
    pub(crate) fn arm(&self, key: Bytes, baseline: Option<Bytes>, setter: WatchSetter) {
        let registry = &self.0.registry;
        registry.arm(key.clone(), baseline, setter);
        match self.0.newest().and_then(|newest| newest.get(&key)) {
            Ok(value) => registry.tell(&key, value.as_ref()),
            Err(error) => registry.fail_all(&error),
        }
    }
}

#[cfg(test)]
impl Watches {
    /// Returns the number of keys on which watches are armed.
    pub(crate) fn armed(&self) -> usize {
        self.0.registry.armed().len()
    }
}

/// The armed watches, and the number of outstanding watches, armed or not.
#[derive(Default)]
pub(crate) struct Registry {
    armed: Mutex<BTreeMap<Bytes, Vec<Armed>>>,
    outstanding: Arc<AtomicUsize>,
}

struct Armed {
    baseline: Option<Bytes>,
    setter: WatchSetter,
}

impl Registry {
    /// Creates a watch, unless `max` watches are outstanding.
    pub(crate) fn create(self: &Arc<Self>, max: usize) -> Result<(WatchSetter, WatchFuture)> {
        let add_one = |count| if count < max { Some(count + 1) } else { None };
        self.outstanding
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add_one)
            .map_err(|_| Code::TOO_MANY_WATCHES)?;
        let watch = Arc::new(Watch {
            armed_on: OnceLock::new(),
            has_ended: AtomicBool::new(false),
            outstanding: self.outstanding.clone(),
        });
        let (sender, receiver) = oneshot::channel();
        let setter = WatchSetter {
            outcome: sender,
            side: Side(watch.clone()),
        };
        let future = WatchFuture {
            outcome: receiver,
            side: Side(watch),
            registry: self.clone(),
        };
        Ok((setter, future))
    }

    fn arm(&self, key: Bytes, baseline: Option<Bytes>, setter: WatchSetter) {
        let mut armed = self.armed();
        // A future that is dropped after this point waits for the lock, and then finds the key.
        if setter.outcome.is_closed() {
            return;
        }
        let armed_on = &setter.side.0.armed_on;
        armed_on
            .set(key.clone())
            .expect("a setter is given away when it is armed");
        armed
            .entry(key)
            .or_default()
            .push(Armed { baseline, setter });
    }

    /// Returns the watched keys that `effects` change.
    pub(super) fn watched<'a>(&self, effects: impl IntoIterator<Item = Effect<'a>>) -> Vec<Bytes> {
        let armed = self.armed();
        let mut watched = Vec::new();
        if armed.is_empty() {
            return watched;
        }
        for effect in effects {
            match effect {
                Effect::Set { key, .. } | Effect::Clear { key } => {
                    watched.extend(armed.get_key_value(key).map(|(key, _)| key.clone()));
                }
                Effect::ClearRange { begin, end } if begin < end => {
                    let keys = armed.range::<[u8], _>((Included(begin), Excluded(end)));
                    watched.extend(keys.map(|(key, _)| key.clone()));
                }
                Effect::ClearRange { .. } => {}
            }
        }
        watched
    }

    /// Fires the watches of a key whose baseline differs from `value`.
    pub(super) fn tell(&self, key: &[u8], value: Option<&Bytes>) {
        let fired: Vec<Armed> = {
            let mut armed = self.armed();
            let Some(watches) = armed.get_mut(key) else {
                return;
            };
            let fired = watches
                .extract_if(.., |watch| watch.baseline.as_ref() != value)
                .collect();
            if watches.is_empty() {
                armed.remove(key);
            }
            fired
        };
        // Do this without the lock: a task that is woken may drop its future, which takes the lock.
        for watch in fired {
            watch.setter.fire();
        }
    }

    /// Fails all watches, because the store has ended.
    pub(super) fn fail_all(&self, error: &Error) {
        let armed = std::mem::take(&mut *self.armed());
        for watch in armed.into_values().flatten() {
            watch.setter.fail(error.clone());
        }
    }

    /// Removes the watches on a key whose futures were dropped.
    fn forget_dropped(&self, watch: &Watch) {
        let mut armed = self.armed();
        let Some(key) = watch.armed_on.get() else {
            return;
        };
        if let Some(watches) = armed.get_mut(key) {
            watches.retain(|watch| !watch.setter.outcome.is_closed());
            if watches.is_empty() {
                armed.remove(key);
            }
        }
    }

    fn armed(&self) -> MutexGuard<'_, BTreeMap<Bytes, Vec<Armed>>> {
        self.armed.lock()
    }
}

/// The state that both sides of a watch share.
struct Watch {
    /// The key, once the watch is armed. Written under the registry's lock.
    armed_on: OnceLock<Bytes>,
    has_ended: AtomicBool,
    outstanding: Arc<AtomicUsize>,
}

/// One side of a watch. The watch is outstanding while both sides exist.
struct Side(Arc<Watch>);

impl Drop for Side {
    fn drop(&mut self) {
        if !self.0.has_ended.swap(true, Ordering::Relaxed) {
            self.0.outstanding.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The side of a watch that resolves it. If it is dropped unresolved, the watch fails with
/// `transaction_cancelled`.
pub(crate) struct WatchSetter {
    outcome: oneshot::Sender<Result<()>>,
    side: Side,
}

impl WatchSetter {
    /// Resolves the watch because the value has changed.
    pub(crate) fn fire(self) {
        // The future may have been dropped.
        let _ = self.outcome.send(Ok(()));
    }

    /// Waits until the future is dropped.
    pub(crate) async fn dropped(&mut self) {
        self.outcome.closed().await;
    }

    /// Resolves the watch with an error.
    pub(crate) fn fail(self, error: Error) {
        let _ = self.outcome.send(Err(error));
    }
}

/// The side of a watch that waits. Dropping it cancels the watch.
pub(crate) struct WatchFuture {
    outcome: oneshot::Receiver<Result<()>>,
    side: Side,
    registry: Arc<Registry>,
}

impl Future for WatchFuture {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome)
            .poll(context)
            .map(|outcome| outcome.unwrap_or(Err(Code::TRANSACTION_CANCELLED.into())))
    }
}

impl Drop for WatchFuture {
    fn drop(&mut self) {
        self.outcome.close();
        self.registry.forget_dropped(&self.side.0);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn registry() -> Arc<Registry> {
        Arc::default()
    }

    fn code(error: &Error) -> i32 {
        error.code().unwrap().number()
    }

    /// Resolves to "pending", "fired" or the code of an error.
    fn state(watch: &mut WatchFuture) -> String {
        match Pin::new(watch).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => "pending".to_owned(),
            Poll::Ready(Ok(())) => "fired".to_owned(),
            Poll::Ready(Err(error)) => code(&error).to_string(),
        }
    }

    fn can_create(registry: &Arc<Registry>, max: usize) -> bool {
        match registry.create(max) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(code(&error), 1032);
                false
            }
        }
    }

    #[test]
    fn a_watch_is_outstanding_until_it_is_resolved_or_dropped() {
        let registry = registry();
        let (setter, future) = registry.create(1).unwrap();
        assert!(!can_create(&registry, 1));
        drop(future);
        assert!(can_create(&registry, 1));
        drop(setter);
        assert_eq!(registry.outstanding.load(Ordering::Relaxed), 0);

        let (setter, mut future) = registry.create(1).unwrap();
        registry.arm("k".into(), None, setter);
        assert!(!can_create(&registry, 1));
        registry.tell(b"k", Some(&"v".into()));
        assert!(can_create(&registry, 1));
        assert_eq!(state(&mut future), "fired");
    }

    #[test]
    fn only_watches_whose_baseline_differs_fire() {
        let registry = registry();
        let (setter, mut absent) = registry.create(9).unwrap();
        registry.arm("k".into(), None, setter);
        let (setter, mut present) = registry.create(9).unwrap();
        registry.arm("k".into(), Some("v".into()), setter);
        registry.tell(b"k", Some(&"v".into()));
        registry.tell(b"l", None);
        assert_eq!(state(&mut absent), "fired");
        assert_eq!(state(&mut present), "pending");
        registry.tell(b"k", None);
        assert_eq!(state(&mut present), "fired");
        assert!(registry.armed().is_empty());
    }

    #[test]
    fn a_watch_whose_setter_is_dropped_is_cancelled() {
        let (setter, mut watch) = registry().create(1).unwrap();
        drop(setter);
        assert_eq!(state(&mut watch), "1025");
    }

    #[test]
    fn a_dropped_future_leaves_nothing_armed() {
        let registry = registry();
        let (setter, future) = registry.create(9).unwrap();
        registry.arm("k".into(), None, setter);
        let (setter, other) = registry.create(9).unwrap();
        registry.arm("k".into(), None, setter);
        drop(future);
        assert_eq!(registry.armed()[&b"k"[..]].len(), 1);
        drop(other);
        assert!(registry.armed().is_empty());

        let (setter, dropped_before) = registry.create(9).unwrap();
        drop(dropped_before);
        registry.arm("k".into(), None, setter);
        assert!(registry.armed().is_empty());
    }

    #[test]
    fn every_kind_of_effect_finds_the_watches_it_may_concern() {
        let registry = registry();
        let _watches: Vec<_> = ["a", "b", "c"]
            .map(|key| {
                let (setter, future) = registry.create(9).unwrap();
                registry.arm(key.into(), None, setter);
                future
            })
            .into();
        let watched = |effect| registry.watched([effect]);
        let set = |key: &'static str| Effect::Set {
            key: key.as_bytes(),
            value: b"",
        };
        let clear = |key: &'static str| Effect::Clear {
            key: key.as_bytes(),
        };
        let clear_range = |begin: &'static str, end: &'static str| Effect::ClearRange {
            begin: begin.as_bytes(),
            end: end.as_bytes(),
        };
        assert_eq!(watched(set("a")), ["a"]);
        assert!(watched(set("aa")).is_empty());
        assert_eq!(watched(clear("b")), ["b"]);
        assert_eq!(watched(clear_range("a", "c")), ["a", "b"]);
        assert!(watched(clear_range("c", "a")).is_empty());
    }

    #[test]
    fn the_end_of_the_store_fails_what_is_armed() {
        let registry = registry();
        let (setter, mut watch) = registry.create(1).unwrap();
        registry.arm("k".into(), None, setter);
        registry.fail_all(&Code::IO_ERROR.into());
        assert_eq!(state(&mut watch), "1510");
    }
}
