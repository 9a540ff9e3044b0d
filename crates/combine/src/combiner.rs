//! Combiners: functions that fold updates into a value.

use std::collections::BTreeSet;

use num_traits::{CheckedAdd, Zero};

/// Folds the updates of a key into its value.
///
/// A function `Fn(&K, Option<V>, Vec<U>) -> Option<V>` is a combiner. It must depend only on its
/// arguments: it may run several times for one commit, and reading the
/// [exact](crate::CombineQueue::exact) value of a key runs it, too.
///
/// # Panics
/// If a combiner panics in a pass, the updates that it was called with are [set aside](crate::SetAside).
/// The value does not change, and the pass continues with other updates.
pub trait Combiner<K, U, V>: Send + Sync + 'static {
    /// Returns the value of a key after some more updates.
    ///
    /// `current` is the value after all earlier updates, or `None` if the key has no value. `updates` are
    /// in the order of their commits, then of calls within a commit. Returning `None` removes the value.
    ///
    /// Updates come in portions of any size, so the result must not depend on how they are divided.
    fn fold(&self, key: &K, current: Option<V>, updates: Vec<U>) -> Option<V>;
}

impl<K, U, V, F> Combiner<K, U, V> for F
where
    F: Fn(&K, Option<V>, Vec<U>) -> Option<V> + Send + Sync + 'static,
{
    fn fold(&self, key: &K, current: Option<V>, updates: Vec<U>) -> Option<V> {
        self(key, current, updates)
    }
}

/// Adds numbers. A key whose sum is zero has no value.
///
/// # Panics
/// If a sum overflows its type, in which case the updates are set aside.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sum;

impl<K, V: CheckedAdd + Zero> Combiner<K, V, V> for Sum {
    fn fold(&self, _key: &K, current: Option<V>, updates: Vec<V>) -> Option<V> {
        let sum = (updates.iter()).fold(current.unwrap_or_else(V::zero), |sum, update| {
            sum.checked_add(update).expect("the sum fits its type")
        });
        if sum.is_zero() { None } else { Some(sum) }
    }
}

/// Keeps the smallest update.
#[derive(Debug, Clone, Copy, Default)]
pub struct Min;

impl<K, V: Ord> Combiner<K, V, V> for Min {
    fn fold(&self, _key: &K, current: Option<V>, updates: Vec<V>) -> Option<V> {
        current.into_iter().chain(updates).min()
    }
}

/// Keeps the largest update.
#[derive(Debug, Clone, Copy, Default)]
pub struct Max;

impl<K, V: Ord> Combiner<K, V, V> for Max {
    fn fold(&self, _key: &K, current: Option<V>, updates: Vec<V>) -> Option<V> {
        current.into_iter().chain(updates).max()
    }
}

/// Keeps the update that was committed last. An update of `None` removes the value.
#[derive(Debug, Clone, Copy, Default)]
pub struct LastWriter;

impl<K, V> Combiner<K, Option<V>, V> for LastWriter {
    fn fold(&self, _key: &K, current: Option<V>, updates: Vec<Option<V>>) -> Option<V> {
        updates.into_iter().next_back().unwrap_or(current)
    }
}

/// Keeps the union of sets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Union;

impl<K, T: Ord> Combiner<K, BTreeSet<T>, BTreeSet<T>> for Union {
    fn fold(
        &self,
        _key: &K,
        current: Option<BTreeSet<T>>,
        updates: Vec<BTreeSet<T>>,
    ) -> Option<BTreeSet<T>> {
        let all = current.into_iter().chain(updates);
        all.reduce(|mut union, mut other| {
            union.append(&mut other);
            union
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold<U, V>(
        combiner: impl Combiner<(), U, V>,
        current: Option<V>,
        updates: Vec<U>,
    ) -> Option<V> {
        combiner.fold(&(), current, updates)
    }

    #[test]
    fn the_provided_combiners_combine() {
        assert_eq!(fold(Sum, Some(5), vec![-2, 4]), Some(7));
        assert_eq!(fold(Sum, None, vec![3, -3]), None);
        assert_eq!(fold(Min, Some(2), vec![5, 3]), Some(2));
        assert_eq!(fold(Max, Some(2), vec![5, 3]), Some(5));
        assert_eq!(fold(LastWriter, Some(1), vec![Some(2), None]), None);
        assert_eq!(fold(LastWriter, Some(1), vec![None, Some(3)]), Some(3));
        assert_eq!(fold(LastWriter, Some(1), vec![]), Some(1));
        let set = |values: &[u8]| values.iter().copied().collect::<BTreeSet<_>>();
        let united = fold(Union, Some(set(&[1, 2])), vec![set(&[2, 3]), set(&[9])]);
        assert_eq!(united, Some(set(&[1, 2, 3, 9])));
    }

    #[test]
    #[should_panic(expected = "the sum fits its type")]
    fn a_sum_that_does_not_fit_is_refused() {
        fold(Sum, Some(u8::MAX), vec![1]);
    }

    #[test]
    fn how_updates_are_divided_makes_no_difference() {
        let updates: Vec<i64> = (-7..10).collect();
        for at in 0..=updates.len() {
            let (first, second) = updates.split_at(at);
            let whole = fold(Sum, None, updates.clone());
            assert_eq!(
                fold(Sum, fold(Sum, None, first.to_vec()), second.to_vec()),
                whole
            );
        }
    }
}
