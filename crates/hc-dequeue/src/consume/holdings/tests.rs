//! What is in a reserve, and when the dispatcher is woken.

use microqueue::keyspace::{Bytes, Environment, Subspace, Versionstamp};

use super::*;
use crate::items::keys::Keys;
use crate::options::Backoff;
use crate::session::SessionId;

const NOW: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(2);

/// The lifetime of most deliveries.
fn life() -> Lifetime {
    until(100)
}

/// Returns the lifetime of a delivery that ends at this second.
fn until(second: u64) -> Lifetime {
    Lifetime {
        began: NOW,
        time_limit: Duration::from_secs(second) - NOW,
        backoff: Backoff::default(),
    }
}

fn id(number: u64) -> ItemId {
    ItemId::Commit {
        versionstamp: Versionstamp::new(1, 0),
        call: number,
    }
}

/// Returns the items that the session holds, which these tests do not read.
fn held() -> Arc<Records> {
    let keys = Keys::new(Subspace::from("Q"), Environment::system());
    Arc::new(keys.held(SessionId([1; 16])))
}

/// Returns an item whose payload has as many bytes as its number says.
fn ready(number: u64) -> Ready {
    let mut record = Record::new(1, Bytes::new());
    record.deliveries = 1;
    Ready {
        id: id(number),
        record,
        value: Value::new(number),
        bytes: number as usize,
        held: held(),
    }
}

/// Returns holdings whose reserve has the items 1 to `items`.
fn filled(items: u64, size: Size) -> Holdings {
    let holdings = Holdings::default();
    assert!(holdings.resize(size).is_empty());
    holdings.fill((1..=items).map(ready), NOW);
    holdings
}

/// Takes items with the [`life`] of most. Returns their numbers.
fn take(holdings: &Holdings, limit: usize) -> (Vec<u64>, Wake) {
    let (delivered, wake) = holdings.take(limit, |_| life());
    let numbers = delivered
        .into_iter()
        .map(|delivered| number(&delivered.item));
    (numbers.collect(), wake)
}

fn number(item: &Ready) -> u64 {
    item.bytes as u64
}

fn stock(holdings: &Holdings) -> (usize, usize) {
    let stock = holdings.stock();
    (stock.items, stock.bytes)
}

const NEVER_LOW: Size = Size { low: 0, full: 100 };

#[test]
fn items_leave_the_reserve_in_the_order_in_which_they_came() {
    let holdings = filled(3, NEVER_LOW);
    holdings.fill([ready(5), ready(4)], LATER);
    assert_eq!(stock(&holdings), (5, 1 + 2 + 3 + 4 + 5));
    assert_eq!(holdings.stock().since, Some(NOW));
    assert_eq!(take(&holdings, 0), (vec![], Wake::None));
    assert_eq!(take(&holdings, 2), (vec![1, 2], Wake::None));
    assert_eq!(stock(&holdings), (3, 3 + 4 + 5));
    assert_eq!(take(&holdings, 1).0, [3]);
    assert_eq!(holdings.stock().since, Some(LATER));
    assert_eq!(take(&holdings, 9).0, [5, 4]);
    assert_eq!(stock(&holdings), (0, 0));
    assert_eq!(holdings.stock().since, None);
    assert_eq!(take(&holdings, 9), (vec![], Wake::None));
}

#[test]
fn an_item_is_outstanding_from_the_moment_it_leaves_the_reserve() {
    let holdings = filled(2, NEVER_LOW);
    assert!(holdings.is_idle());
    assert!(holdings.delivery(&id(1)).is_none());
    let (delivered, _) = holdings.take(1, |_| life());
    let out = holdings.delivery(&id(1)).unwrap();
    assert!(Arc::ptr_eq(&delivered[0].out, &out));
    assert_eq!((out.delivery, out.life.began), (1, NOW));
    assert_eq!(out.deadline(), Duration::from_secs(100));
    assert!(!holdings.is_idle());
    assert_eq!(
        [1, 2, 3].map(|item| holdings.contains(&id(item))),
        [true, true, false]
    );
    // Of another delivery of the item.
    assert_eq!(holdings.forget(&id(1), 2, NOW), Wake::None);
    assert!(holdings.contains(&id(1)));
    assert_eq!(holdings.forget(&id(1), 1, NOW), Wake::None);
    assert!(holdings.is_idle() && !holdings.contains(&id(1)));
}

#[test]
fn the_dispatcher_is_woken_once_when_the_reserve_runs_low() {
    let low = Size { low: 2, full: 10 };
    let holdings = filled(5, low);
    assert_eq!(take(&holdings, 2), (vec![1, 2], Wake::None));
    assert_eq!(take(&holdings, 1), (vec![3], Wake::Dispatcher));
    assert_eq!(take(&holdings, 1), (vec![4], Wake::None));
    assert_eq!(take(&holdings, 1), (vec![5], Wake::None));
    // Nothing was taken.
    assert_eq!(take(&holdings, 1), (vec![], Wake::None));
    holdings.fill([ready(6), ready(7)], NOW);
    assert_eq!(take(&holdings, 1), (vec![6], Wake::Dispatcher));
    assert_eq!(take(&holdings, 1), (vec![7], Wake::None));
}

#[test]
fn the_dispatcher_is_woken_again_when_a_reserve_of_another_size_runs_low() {
    let holdings = filled(9, Size { low: 8, full: 10 });
    assert_eq!(take(&holdings, 1), (vec![1], Wake::Dispatcher));
    let smaller = Size { low: 4, full: 10 };
    assert!(holdings.resize(smaller).is_empty());
    assert_eq!(take(&holdings, 3), (vec![2, 3, 4], Wake::None));
    assert_eq!(take(&holdings, 1), (vec![5], Wake::Dispatcher));
    assert_eq!(take(&holdings, 1), (vec![6], Wake::None));
    // The dispatcher that leaves the size as it is knows that the reserve is low.
    assert!(holdings.resize(smaller).is_empty());
    assert_eq!(take(&holdings, 1), (vec![7], Wake::None));
}

#[test]
fn the_dispatcher_is_woken_by_a_deadline_before_the_end_of_its_sleep() {
    let at = Duration::from_secs;
    let holdings = filled(4, NEVER_LOW);
    assert_eq!(holdings.sleep(at(50)), at(50));
    assert_eq!(holdings.take(1, |_| until(50)).1, Wake::None);
    assert_eq!(holdings.take(1, |_| until(49)).1, Wake::Dispatcher);
    assert_eq!(holdings.deliver(ready(8), until(51)).1, Wake::None);
    assert_eq!(holdings.deliver(ready(9), until(48)).1, Wake::Dispatcher);
    // The next sleep ends in time for all of them.
    assert_eq!(holdings.sleep(at(60)), at(48));
    assert_eq!(holdings.take(1, |_| until(48)).1, Wake::None);
    assert_eq!(holdings.sleep(at(40)), at(40));
    let over = holdings.take_over(at(48));
    assert_eq!(
        over.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        [id(3), id(9)]
    );
    assert_eq!(holdings.sleep(at(60)), at(49));
}

#[test]
fn the_end_of_the_last_delivery_wakes_a_dispatcher_that_is_closing() {
    let holdings = filled(3, NEVER_LOW);
    assert_eq!(take(&holdings, 3).0, [1, 2, 3]);
    assert_eq!(holdings.forget(&id(1), 1, NOW), Wake::None);
    holdings.close();
    assert_eq!(holdings.forget(&id(2), 1, NOW), Wake::None);
    assert_eq!(holdings.forget(&id(3), 1, NOW), Wake::Dispatcher);
}

#[test]
fn an_item_is_removed_from_the_reserve_but_not_from_a_handler() {
    let holdings = filled(4, NEVER_LOW);
    assert_eq!(take(&holdings, 1).0, [1]);
    assert_eq!(number(&holdings.remove(&id(3)).unwrap()), 3);
    assert!(holdings.remove(&id(3)).is_none() && !holdings.contains(&id(3)));
    assert!(holdings.remove(&id(1)).is_none() && holdings.contains(&id(1)));
    assert_eq!(stock(&holdings), (2, 2 + 4));
    assert_eq!(take(&holdings, 9).0, [2, 4]);
}

#[test]
fn a_reserve_without_a_size_has_no_items() {
    let holdings = filled(3, NEVER_LOW);
    assert_eq!(take(&holdings, 1).0, [1]);
    assert!(holdings.resize(Size { low: 0, full: 1 }).is_empty());
    assert_eq!(stock(&holdings), (2, 2 + 3));
    let returned = holdings.resize(Size::NONE);
    assert_eq!(returned.iter().map(number).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(stock(&holdings), (0, 0));
    assert_eq!(take(&holdings, 9).0, [0; 0]);
    // What was handed out stays.
    assert!(holdings.contains(&id(1)));
}

#[test]
fn a_lost_session_has_no_items() {
    let holdings = filled(3, NEVER_LOW);
    assert_eq!(take(&holdings, 2).0, [1, 2]);
    // It counts what was handed out.
    assert_eq!(holdings.lose_all().len(), 2);
    assert!(holdings.is_idle());
    assert_eq!(stock(&holdings), (0, 0));
    assert_eq!(take(&holdings, 9).0, [0; 0]);
    assert_eq!(holdings.lose_all().len(), 0);
}

#[test]
fn the_duration_of_a_delivery_is_measured_from_its_hand_out() {
    let holdings = filled(3, NEVER_LOW);
    assert_eq!(take(&holdings, 2).0, [1, 2]);
    assert_eq!(holdings.stock().handling, None);
    let after = |millis| NOW + Duration::from_millis(millis);
    let handling = || holdings.stock().handling.unwrap().as_millis();
    let _ = holdings.forget(&id(1), 1, after(80));
    assert_eq!(handling(), 80);
    let _ = holdings.forget(&id(2), 1, after(160));
    assert_eq!(handling(), 90);
    // It is forgotten already.
    let _ = holdings.forget(&id(2), 1, after(999));
    assert_eq!(handling(), 90);
    holdings.note_handling(Duration::from_millis(89));
    assert_eq!(handling(), 90);
    holdings.note_handling(Duration::from_millis(200));
    assert_eq!(handling(), 200);
}
