//! Records that items were handed out whose records do not say so: from here on, a death of their session counts.
//!
//! - An item is handed out of a reserve without a transaction. Its record says so only when its handler has taken
//!   longer than a transaction lives: a short handler ends before, and a transaction of `process` does not fail because
//!   of it.
//! - An item that is [handed out apart](crate::items::settings::Settings::hands_out_apart) may wait for others in its
//!   session. Its record says that it was handed out just before that happens.

use microqueue::ItemId;
use microqueue::keyspace::Transaction;

use crate::items::MAX_STEP_BYTES;
use crate::items::error::Result;
use crate::items::keys::Records;
use crate::items::record::Reserve;

/// Stages that these deliveries of items that a session holds were handed out: as many of the first ones as fit in a
/// transaction, whose number it returns. Those that the session no longer holds are left out.
///
/// # Conflicts
/// Reads and writes each item.
pub(crate) async fn confirm_handed_out(
    tr: &impl Transaction,
    held: &Records,
    deliveries: &[(ItemId, u64)],
) -> Result<usize> {
    let mut bytes = 0;
    for (number, (id, delivery)) in deliveries.iter().enumerate() {
        if bytes >= MAX_STEP_BYTES {
            return Ok(number);
        }
        let Some(mut record) = held.get(tr, id).await? else {
            continue;
        };
        if record.deliveries == *delivery && record.reserve != Reserve::Out {
            bytes += record.payload.len();
            record.reserve = Reserve::Out;
            held.insert(tr, id, &record)?;
        }
    }
    Ok(deliveries.len())
}
