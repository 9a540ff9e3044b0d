//! Records that items were handed out that a session had taken into its reserve.
//!
//! An item is handed out of a reserve without a transaction. Its record says so only when its handler has taken longer
//! than a transaction lives: a short handler ends before, and a transaction of `process` does not fail because of it.

use microqueue::ItemId;
use microqueue::keyspace::Transaction;

use crate::items::error::Result;
use crate::items::keys::Keys;
use crate::items::record::Reserve;
use crate::protocol::MAX_FULFILLMENT_BYTES;
use crate::session::SessionId;

/// Stages that these deliveries of a session were handed out: as many of the first ones as fit in a transaction. Those
/// that the session no longer holds are left out.
///
/// # Conflicts
/// Reads and writes each item.
pub(crate) async fn confirm_handed_out(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
    deliveries: &[(ItemId, u64)],
) -> Result<()> {
    let held = keys.held(session);
    let mut bytes = 0;
    for (id, delivery) in deliveries {
        if bytes >= MAX_FULFILLMENT_BYTES {
            break;
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
    Ok(())
}
