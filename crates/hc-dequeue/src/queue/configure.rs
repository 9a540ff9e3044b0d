//! Changes the settings of a queue that is in use.

use microqueue::keyspace::codec::{Codec, MessagePack};
use microqueue::keyspace::recipe::StoredSettings;
use microqueue::keyspace::{Isolation, Transaction};

use crate::items::death::Death;
use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::refusal::DeathsRefusal;
use crate::items::settings::{Settings, SettingsRecord};
use crate::items::settings_row::{current_settings, find_settings, stored_settings};
use crate::queue::handle::{Queue, check_settings};

impl<T, C: Codec<T>> Queue<T, C> {
    /// Stages new settings. The codec of the queue stays the same.
    ///
    /// Sessions adopt the settings at their next heartbeat. If the lease becomes shorter, a session first writes
    /// heartbeats often enough for the new lease and then promises it. If the lease becomes longer, a session first
    /// promises the new lease and then writes heartbeats less often. Operations on a handle use the stored settings.
    ///
    /// # Conflicts
    /// Reads and writes the settings. If there is a queue of deaths, also reads its settings, and those of the queues
    /// to which its own deaths lead.
    ///
    /// # Errors
    /// [`Error::TooShort`] if the lease is shorter than [`MIN_LEASE`](crate::MIN_LEASE); [`Error::Deaths`] if the queue
    /// of deaths cannot be used; [`Corrupt`](microqueue::keyspace::Error::Corrupt) if stored settings do not decode. In
    /// all cases nothing is staged.
    pub async fn configure(&self, tr: &impl Transaction, settings: &Settings) -> Result<()> {
        check_settings(settings)?;
        check_deaths(tr, &self.keys, settings).await?;
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

/// Through how many queues deaths may lead.
const MAX_DEATHS_QUEUES: usize = 8;

/// Returns an error if the queue of deaths does not exist, has another codec, or its own deaths lead back.
///
/// # Conflicts
/// Reads the settings of the queues to which deaths lead.
pub(super) async fn check_deaths(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
) -> Result<()> {
    let Some(deaths) = settings.deaths() else {
        return Ok(());
    };
    let refuse = |reason| Error::Deaths {
        queue: keys.queue.clone(),
        deaths: deaths.clone(),
        reason,
    };
    let mut next = deaths.clone();
    for number in 0..MAX_DEATHS_QUEUES {
        if next == keys.queue {
            return Err(refuse(DeathsRefusal::Ring));
        }
        let queue = Keys::new(next, keys.env.clone());
        let stored = find_settings(tr, &queue, Isolation::Serializable).await?;
        let Some(stored) = stored else {
            return Err(refuse(DeathsRefusal::Missing));
        };
        let codec = stored.codec;
        if number == 0 && codec != <MessagePack as Codec<Death>>::NAME {
            return Err(refuse(DeathsRefusal::Codec { codec }));
        }
        next = match stored.settings.deaths {
            Some(deaths) => deaths,
            None => return Ok(()),
        };
    }
    let limit = MAX_DEATHS_QUEUES;
    Err(refuse(DeathsRefusal::TooLong { limit }))
}
