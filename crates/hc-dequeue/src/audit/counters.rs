//! Checks counters against the items that they count.

use std::ops::ControlFlow;

use microqueue::keyspace::{Isolation, RangeQuery, Runner, Store, Transaction, Tx, visit_rows};

use crate::items::counters::{in_time, stored_count};
use crate::items::error::{Error, Result};
use crate::items::finding::{Finding, Unchecked};
use crate::items::keys::Keys;
use crate::items::part::Counter;
use crate::items::part::Part;
use crate::items::record::is_signal;

/// Compares a counter with the items that it counts.
pub(super) async fn check_counter(
    runner: &Runner<Store>,
    keys: &Keys,
    counter: Counter,
    unchecked: &mut Vec<Unchecked>,
) -> Result<Option<Finding>> {
    let count = |tr: Tx<_>| async move { in_time(&tr, count(&tr, keys, counter)).await };
    let name = counter.name();
    let counted = match runner.run(count).await {
        Err(error) => {
            let key = error.corrupt_key().cloned();
            return Ok(Some(Finding::Undecodable {
                key: key.ok_or(error)?,
            }));
        }
        Ok(counted) => counted,
    };
    let Some((stored, counted)) = counted else {
        unchecked.push(Unchecked::Counter { counter: name });
        return Ok(None);
    };
    if stored == counted {
        return Ok(None);
    }
    Ok(Some(Finding::CounterOff {
        counter: name,
        stored,
        counted,
    }))
}

/// Returns the value of a counter and the number of items.
async fn count(tr: &impl Transaction, keys: &Keys, counter: Counter) -> Result<(i64, i64)> {
    let stored = stored_count(tr, keys, counter).await?;
    let mut counted = 0;
    for part in Part::counted_by(counter) {
        let (begin, end) = keys.part(part);
        let query = RangeQuery::keys(begin, end);
        visit_rows(tr, query, Isolation::Snapshot, |row| {
            let is_state = is_signal(row.value()) || keys.is_lane_state(row.key());
            counted += i64::from(!is_state);
            Ok::<_, Error>(ControlFlow::Continue(()))
        })
        .await?;
    }
    Ok((stored, counted))
}

/// Stages the correction of a counter by the difference that was found, which is the same at every version.
pub(super) fn add(tr: &impl Transaction, keys: &Keys, counter: &str, difference: i64) {
    let counter = Counter::ALL
        .into_iter()
        .find(|known| known.name() == counter)
        .expect("a finding names a counter");
    keys.count(tr, counter, difference);
}
