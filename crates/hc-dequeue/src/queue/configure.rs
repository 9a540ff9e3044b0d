//! Changes the settings of a queue that is in use.

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::recipe::StoredSettings;
use microqueue::keyspace::{Isolation, Transaction};

use crate::items::error::Result;
use crate::items::settings::{Settings, SettingsRecord};
use crate::items::settings_row::{current_settings, stored_settings};
use crate::queue::handle::{Queue, check_settings};

impl<T, C: Codec<T>> Queue<T, C> {
    /// Stages new settings. The codec of the queue stays the same.
    ///
    /// Sessions adopt the settings at their next heartbeat. If the lease becomes shorter, a session first writes
    /// heartbeats often enough for the new lease and then promises it. If the lease becomes longer, a session first
    /// promises the new lease and then writes heartbeats less often. Operations on a handle use the stored settings.
    ///
    /// # Conflicts
    /// Reads and writes the settings.
    ///
    /// # Errors
    /// [`Error::TooShort`](crate::Error::TooShort) if the lease is shorter than [`MIN_LEASE`](crate::MIN_LEASE);
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the stored settings do not decode. In both cases nothing
    /// is staged.
    pub async fn configure(&self, tr: &impl Transaction, settings: &Settings) -> Result<()> {
        check_settings(settings)?;
        let stored = stored_settings(tr, &self.keys, Isolation::Serializable).await?;
        let settings = settings.clone();
        let record = SettingsRecord { settings, ..stored };
        tr.set(&self.keys.settings(), &record.encode());
        Ok(())
    }

    /// Returns the stored settings.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if they do not decode or the queue no longer exists.
    pub async fn settings(&self, tr: &impl Transaction) -> Result<Settings> {
        current_settings(tr, &self.keys).await
    }
}
