//! Waiting for what workers do.

use std::future::Future;
use std::time::Duration;

use hc_dequeue::keyspace::{self, Database, Runner, Transaction, Tx};

/// How long to wait for a watch before looking anyway: watches get lost.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Looks until nothing is found, and meanwhile waits for a change of the key that was: one that every
/// step of a worker sets.
///
/// # Errors
/// Those of [`Runner::run`].
///
/// # Cancel safety
/// Reads only.
pub async fn wait_until_none<D, E, Fut>(
    runner: &Runner<D>,
    find: impl Fn(Tx<D::Transaction>) -> Fut + Send + Sync,
) -> Result<(), E>
where
    D: Database,
    E: std::error::Error + From<keyspace::Error> + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<Vec<u8>>, E>> + Send,
{
    loop {
        let find = &find;
        let look = |tr: Tx<D::Transaction>| async move {
            let found = find(tr.clone()).await?;
            Ok::<_, E>(found.map(|key| tr.watch(&key)))
        };
        let Some(changed) = runner.run(look).await? else {
            return Ok(());
        };
        // A watch that fails is as good as one that fires: the next look is the judge. It may fail at
        // once, again and again.
        let env = runner.environment();
        if let Some(Err(_)) = env.timeout(POLL_INTERVAL, changed).await {
            env.sleep(POLL_INTERVAL / 100).await;
        }
    }
}
