//! Reads the counters of a queue.

use microqueue::keyspace::{self, Isolation, Transaction};

use crate::items::error::Result;
use crate::items::keys::{Counter, Keys};

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
