//! Lets the time pass that rates of groups count.

use std::time::Duration;

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Database, Isolation, KeyValue, Runner, Transaction, Tx};

use crate::items::changes::Changes;
use crate::items::error::Result;
use crate::items::keys::Keys;
use crate::items::priority::RANK_OF_SLOT;
use crate::lanes::rows::parse_level;
use crate::lanes::settle::stage_gate;
use crate::lanes::versions_in;
use crate::queue::handle::Queue;

/// Gives all groups of the queue the tokens that their [rates](crate::GroupLimits::with_rate) let come back in `time`,
/// as if it had passed.
///
/// Rates count the store's time, which no clock of a test moves. So this changes what the queue has stored of the
/// tokens, and works on every store: in memory, in a file, on a cluster. The store's own time also goes on: use rates
/// whose next token comes later than the test ends, such as one in an hour.
///
/// It does not move a [`ManualWall`](super::ManualWall): advance that, too, if the test has delays.
///
/// ```
/// use std::time::Duration;
///
/// use hc_dequeue::keyspace::{self, Runner};
/// use hc_dequeue::testing::{advance_rates, drain};
/// use hc_dequeue::{Enqueue, GroupLimits, Queue, Rate};
///
/// const HOUR: Duration = Duration::from_secs(60 * 60);
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let queue = &Queue::<u64>::open(&runner, "calls").await?;
/// let limits = &GroupLimits::new().with_rate(Rate::new(2, HOUR));
/// let acme = Enqueue::new().with_group("acme");
/// let calls = &[(1, acme.clone()), (2, acme)];
/// runner
///     .run(async |tr| {
///         queue.configure_groups(&tr, limits).await?;
///         queue.enqueue_all_with(&tr, calls).await
///     })
///     .await?;
///
/// let call = async |_| ();
/// assert_eq!(drain(&runner, queue, call).await?.completed, 1);
/// assert_eq!(drain(&runner, queue, call).await?.completed, 0);
/// advance_rates(&runner, queue, HOUR / 2).await?;
/// assert_eq!(drain(&runner, queue, call).await?.completed, 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// All groups are changed in one transaction, which is enough for the queue of a test.
///
/// # Conflicts
/// With the start of an item of a group that lacks tokens, and the other way round.
///
/// # Errors
/// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the tokens of a group do not decode, and those of
/// [`Runner::run`].
///
/// # Cancel safety
/// If the future is dropped, the time may or may not have passed.
pub async fn advance_rates<T, C, D>(
    runner: &Runner<D>,
    queue: &Queue<T, C>,
    time: Duration,
) -> Result<()>
where
    T: Send + Sync,
    C: Codec<T>,
    D: Database,
{
    let keys = &*queue.keys;
    let advance = |tr: Tx<_>| async move { advance_levels(&tr, keys, versions_in(time)).await };
    runner.run(advance).await
}

/// Stages that this many versions pass for the tokens of all groups. A lane may now be parked for longer than it needs,
/// so it gets a notice.
pub(crate) async fn advance_levels(
    tr: &impl Transaction,
    keys: &Keys,
    versions: i64,
) -> Result<()> {
    let mut changes = Changes::default();
    let mut last = None;
    while let Some(group) = keys.next_lane(tr, last.as_ref()).await? {
        let row = keys.level(&group);
        // Safe as a snapshot read: each transaction that changes the row writes the gate.
        if let Some(value) = tr.get(&row, Isolation::Snapshot).await? {
            let mut level = parse_level(&KeyValue::new(&row, &value))?;
            level.pass(versions);
            stage_gate(tr, keys, &group)?;
            tr.set(&row, &level.to_bytes());
            changes.add_notice(&group, RANK_OF_SLOT);
            changes.wake();
        }
        last = Some(group);
    }
    changes.stage(tr, keys);
    Ok(())
}
