//! Reads the counters of a queue, and counts what they count.

use microqueue::keyspace::store::StoreTransaction;
use microqueue::keyspace::{self, Code, Isolation, Transaction, Tx};

use crate::items::error::Result;
use crate::items::keys::Keys;
use crate::items::part::Counter;

/// The largest number of times that a count is started which does not finish in time.
const MAX_COUNTS: u32 = 3;

/// Reads a counter by snapshot. The value is exact at the read version.
pub(crate) async fn stored_count(
    tr: &impl Transaction,
    keys: &Keys,
    counter: Counter,
) -> Result<i64> {
    let key = keys.counter(counter);
    let Some(value) = tr.get(&key, Isolation::Snapshot).await? else {
        return Ok(0);
    };
    Ok(parse_count(&key, &value)?)
}

/// Returns the number in a row that is changed by atomic additions.
pub(crate) fn parse_count(key: &[u8], value: &[u8]) -> keyspace::Result<i64> {
    let count = value.try_into().map(i64::from_le_bytes);
    count.map_err(|_| keyspace::Error::corrupt(key, "expected a count of eight bytes"))
}

/// Reads a counter that cannot be negative.
pub(crate) async fn read_counter(
    tr: &impl Transaction,
    keys: &Keys,
    counter: Counter,
) -> Result<u64> {
    let count = stored_count(tr, keys, counter).await?;
    u64::try_from(count).map_err(|_| {
        let reason = format!("{count} items: `audit` finds what contradicts it");
        keyspace::Error::corrupt(&keys.counter(counter), reason).into()
    })
}

/// Returns the result of a count, or `None` if it has not finished in time too often.
pub(crate) async fn in_time<T>(
    tr: &Tx<StoreTransaction>,
    count: impl Future<Output = Result<T>>,
) -> Result<Option<T>> {
    let attempt = tr.attempt();
    let had_no_time = attempt.after == Some(Code::TRANSACTION_TOO_OLD);
    if had_no_time && attempt.number >= MAX_COUNTS {
        return Ok(None);
    }
    count.await.map(Some)
}

/// Returns whether a number contradicts a count. If there are rows that do not decode, these may be what is missing
/// from the count.
pub(crate) fn is_off(stored: i64, counted: i64, has_unreadable: bool) -> bool {
    stored < counted || (stored > counted && !has_unreadable)
}
