//! Changing the settings of a queue that is in use.

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::recipe::StoredSettings;
use microqueue::keyspace::{self, Isolation, Transaction};

use crate::error::Result;
use crate::keys::Keys;
use crate::queue::{HighContentionQueue, check_settings};
use crate::settings::{Settings, SettingsRecord};

impl<T, C: Codec<T>> HighContentionQueue<T, C> {
    /// Stages other settings, which the queue has from the commit on. The codec stays.
    ///
    /// Sessions follow with their next heartbeat: until then they use the settings that they know. One that
    /// gets a shorter lease beats in time for it before it promises it, and one that gets a longer lease beats
    /// in time for the shorter one until it has promised the longer one. Operations on a handle use the stored
    /// settings.
    ///
    /// # Conflicts
    /// Reads and writes the settings.
    ///
    /// # Errors
    /// [`Error::TooShort`](crate::Error::TooShort) for a lease that leaves no time for three heartbeats;
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the stored settings do not decode. Nothing is staged.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn configure(&self, tr: &impl Transaction, settings: &Settings) -> Result<()> {
        check_settings(settings)?;
        let stored = stored_settings(tr, &self.keys, Isolation::Serializable).await?;
        let settings = settings.clone();
        let record = SettingsRecord { settings, ..stored };
        tr.set(&self.keys.settings(), &record.encode());
        Ok(())
    }

    /// Returns the settings that are stored.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if they do not decode, or there is no queue any more.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn settings(&self, tr: &impl Transaction) -> Result<Settings> {
        let stored = stored_settings(tr, &self.keys, Isolation::Snapshot).await?;
        Ok(stored.settings)
    }
}

/// Reads the settings that are stored.
///
/// # Conflicts
/// As the isolation says.
pub(crate) async fn stored_settings(
    tr: &impl Transaction,
    keys: &Keys,
    isolation: Isolation,
) -> Result<SettingsRecord> {
    let key = keys.settings();
    let stored = tr.get(&key, isolation).await?;
    let stored = stored.ok_or_else(|| keyspace::Error::corrupt(&key, "expected settings"))?;
    Ok(SettingsRecord::decode(&key, &stored)?)
}
