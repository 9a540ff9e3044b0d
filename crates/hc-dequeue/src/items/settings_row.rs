//! Reads the settings of a queue, and whether it is paused.

use microqueue::keyspace::recipe::StoredSettings;
use microqueue::keyspace::{self, Isolation, Transaction};

use crate::items::error::Result;
use crate::items::keys::Keys;
use crate::items::settings::{Settings, SettingsRecord};

/// Reads the stored settings.
///
/// # Conflicts
/// Reads the settings with the given isolation.
pub(crate) async fn stored_settings(
    tr: &impl Transaction,
    keys: &Keys,
    isolation: Isolation,
) -> Result<SettingsRecord> {
    let stored = find_settings(tr, keys, isolation).await?;
    let missing = || keyspace::Error::corrupt(&keys.settings(), "expected settings");
    Ok(stored.ok_or_else(missing)?)
}

/// Reads the stored settings by snapshot, for an operation that follows them.
pub(crate) async fn current_settings(tr: &impl Transaction, keys: &Keys) -> Result<Settings> {
    let stored = stored_settings(tr, keys, Isolation::Snapshot).await?;
    Ok(stored.settings)
}

/// Reads whether a queue is paused.
///
/// # Conflicts
/// Reads the pause with the given isolation. A snapshot read is safe for what only shows the pause or waits for its
/// end: each transaction that grants items reads it serializably.
pub(crate) async fn is_paused(
    tr: &impl Transaction,
    keys: &Keys,
    isolation: Isolation,
) -> Result<bool> {
    Ok(tr.get(&keys.pause(), isolation).await?.is_some())
}

/// Reads the stored settings. Returns `None` if there is no queue.
///
/// # Conflicts
/// Reads the settings with the given isolation.
pub(crate) async fn find_settings(
    tr: &impl Transaction,
    keys: &Keys,
    isolation: Isolation,
) -> Result<Option<SettingsRecord>> {
    let key = keys.settings();
    let stored = tr.get(&key, isolation).await?;
    let record = stored.map(|stored| SettingsRecord::decode(&key, &stored));
    Ok(record.transpose()?)
}
