//! Settings of a queue. They are stored with the queue and can be changed while it is in use.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use microqueue::keyspace::Subspace;
use microqueue::keyspace::names::queue_name;
use microqueue::keyspace::recipe::StoredSettings;
use microqueue::keyspace::record::{Fields, push_millis};
use parking_lot::Mutex;

use crate::items::record::{Limits, Record};

/// The shortest lease: 30 ms, three heartbeats of 10 ms.
pub const MIN_LEASE: Duration = Duration::from_millis(30);

/// Settings of a queue, shared by all of its handles and sessions.
///
/// They are stored when the queue is created, with durations in milliseconds.
/// [`configure`](crate::Queue::configure) changes the stored settings.
///
/// ```
/// use std::time::Duration;
///
/// use hc_dequeue::Settings;
///
/// let settings = Settings::new().with_lease(Duration::from_secs(5)).with_max_attempts(3);
/// assert_eq!(settings.max_attempts(), 3);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    pub(crate) lease: Duration,
    pub(crate) max_attempts: u32,
    pub(crate) max_deaths: u32,
    pub(crate) max_deliveries: u32,
    pub(crate) dedupe_retention: Duration,
    pub(crate) keep_done: Duration,
    pub(crate) deaths: Option<Subspace>,
}

impl Default for Settings {
    /// A lease of ten seconds, ten attempts, five deaths and 10,000 deliveries. Neither dedupe ids nor done items are
    /// kept.
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            max_attempts: 10,
            max_deaths: 5,
            max_deliveries: 10_000,
            dedupe_retention: Duration::ZERO,
            keep_done: Duration::ZERO,
            deaths: None,
        }
    }
}

impl Settings {
    /// Returns the default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long a session may be silent before other sessions declare it dead: at least [`MIN_LEASE`]. A session
    /// writes a heartbeat every third of its lease.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets after how many failed [attempts](crate::Delivery) an item becomes a dead letter. Zero counts as one.
    #[must_use]
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets after how many deaths of sessions that held it an item becomes a dead letter. Zero counts as one.
    #[must_use]
    pub fn with_max_deaths(mut self, deaths: u32) -> Self {
        self.max_deaths = deaths;
        self
    }

    /// Sets how often an item may be granted before it becomes a dead letter, for whatever reason it comes back. Zero
    /// counts as one. The count begins anew when the item is redriven.
    ///
    /// This limit ends loops that no other limit ends, such as an item that is always snoozed.
    #[must_use]
    pub fn with_max_deliveries(mut self, deliveries: u32) -> Self {
        self.max_deliveries = deliveries;
        self
    }

    /// Sets how long a dedupe id is refused after its item was completed. The time also applies to ids whose items were
    /// completed before it was changed, if they are still retained. Zero retains no id.
    ///
    /// An item that is cancelled or removed frees its id at once, and
    /// [`release_dedupe`](crate::Queue::release_dedupe) frees an id that is retained.
    #[must_use]
    pub fn with_dedupe_retention(mut self, retention: Duration) -> Self {
        self.dedupe_retention = retention;
        self
    }

    /// Sets how long done items are kept with their outcome and result, for
    /// [`status`](crate::Queue::status) and [`await_done`](crate::Queue::await_done).
    /// Zero disables it.
    ///
    /// If enabled, each item costs two writes when it ends (its record and a key of an index) and two clears when it
    /// expires.
    #[must_use]
    pub fn with_keep_done(mut self, time: Duration) -> Self {
        self.keep_done = time;
        self
    }

    /// Names the queue of deaths. Whatever makes an item a dead letter enqueues a [`Death`](crate::Death) there, in the
    /// same commit: failures, a discard, the other limits, or a value that does not decode. Work that queue to send
    /// mail, or to repair what failed.
    ///
    /// It is a `Queue<Death>` with the codec [`MessagePack`], and must exist. Several queues may share it. It may have
    /// a queue of deaths itself, but not one that leads back.
    ///
    /// [`MessagePack`]: microqueue::keyspace::codec::MessagePack
    #[must_use]
    pub fn with_deaths(mut self, queue: impl Into<Subspace>) -> Self {
        self.deaths = Some(queue.into());
        self
    }

    /// Names no queue of deaths.
    #[must_use]
    pub fn without_deaths(mut self) -> Self {
        self.deaths = None;
        self
    }

    /// Returns how long a session may be silent before it is declared dead.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns after how many failed attempts an item becomes a dead letter.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// Returns after how many deaths an item becomes a dead letter.
    #[must_use]
    pub fn max_deaths(&self) -> u32 {
        self.max_deaths
    }

    /// Returns how often an item may be granted, since its enqueue or its last redrive, before it becomes a dead
    /// letter.
    #[must_use]
    pub fn max_deliveries(&self) -> u32 {
        self.max_deliveries
    }

    /// Returns how long a dedupe id is refused after its item was completed.
    #[must_use]
    pub fn dedupe_retention(&self) -> Duration {
        self.dedupe_retention
    }

    /// Returns how long done items are kept.
    #[must_use]
    pub fn keep_done(&self) -> Duration {
        self.keep_done
    }

    /// Returns the queue of deaths.
    #[must_use]
    pub fn deaths(&self) -> Option<&Subspace> {
        self.deaths.as_ref()
    }

    /// Returns the limits of an item: its own where it has any, otherwise those of the settings.
    pub(crate) fn limits_of(&self, record: &Record) -> Limits {
        let own = record.limits;
        let limit = |own, settings| if own == 0 { settings } else { own };
        Limits {
            attempts: limit(own.attempts, self.max_attempts),
            deaths: limit(own.deaths, self.max_deaths),
            deliveries: limit(own.deliveries, self.max_deliveries),
        }
    }

    /// Returns whether the next death of an item makes it a dead letter, although it has survived others. Such an item
    /// is handed out apart, so that it does not die of the items beside it.
    pub(crate) fn hands_out_apart(&self, record: &Record) -> bool {
        record.deaths > 0 && record.deaths + 1 >= self.limits_of(record).deaths.into()
    }
}

/// The settings as this process knows them. Its sessions read the stored settings at each heartbeat.
#[derive(Debug, Clone)]
pub(crate) struct KnownSettings(Arc<Mutex<Arc<Settings>>>);

impl KnownSettings {
    pub(crate) fn new(settings: Settings) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(settings))))
    }

    pub(crate) fn get(&self) -> Arc<Settings> {
        self.0.lock().clone()
    }

    pub(crate) fn set(&self, settings: Arc<Settings>) {
        *self.0.lock() = settings;
    }
}

/// The stored settings of a queue. `docs/schema.md` specifies the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingsRecord {
    /// The settings.
    pub settings: Settings,
    /// The name of the codec.
    pub codec: String,
}

impl fmt::Display for SettingsRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            lease,
            max_attempts,
            max_deaths,
            max_deliveries,
            dedupe_retention,
            keep_done,
            deaths,
        } = &self.settings;
        write!(
            f,
            "a lease of {lease:?}, at most {max_attempts} attempts, {max_deaths} deaths and \
             {max_deliveries} deliveries, dedupe ids kept for {dedupe_retention:?}, done items for {keep_done:?}, \
             and the codec {}",
            self.codec
        )?;
        match deaths {
            Some(deaths) => write!(f, ", and the queue of deaths `{}`", queue_name(deaths)),
            None => Ok(()),
        }
    }
}

impl StoredSettings for SettingsRecord {
    const RECIPE: &'static str = "hc-dequeue";

    fn codecs(&self) -> Vec<&str> {
        vec![&self.codec]
    }

    /// Settings may change, but the codec must stay the same to decode stored items.
    fn agrees_with(&self, stored: &Self) -> bool {
        self.codec == stored.codec
    }

    fn write(&self, record: &mut Vec<u8>) {
        push_millis(record, self.settings.lease);
        let settings = &self.settings;
        for limit in [
            settings.max_attempts,
            settings.max_deaths,
            settings.max_deliveries,
        ] {
            record.extend_from_slice(&limit.to_be_bytes());
        }
        push_millis(record, self.settings.dedupe_retention);
        push_millis(record, self.settings.keep_done);
        let deaths = settings.deaths.as_ref().map_or(&[][..], Subspace::bytes);
        record.extend_from_slice(&(deaths.len() as u16).to_be_bytes());
        record.extend_from_slice(deaths);
        record.extend_from_slice(self.codec.as_bytes());
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, String> {
        let settings = Settings {
            lease: fields.millis()?,
            max_attempts: fields.u32()?,
            max_deaths: fields.u32()?,
            max_deliveries: fields.u32()?,
            dedupe_retention: fields.millis()?,
            keep_done: fields.millis()?,
            deaths: read_deaths(fields)?,
        };
        if settings.lease < MIN_LEASE {
            return Err(format!("a lease of {:?}", settings.lease));
        }
        let codec = std::str::from_utf8(fields.rest())
            .map_err(|error| error.to_string())?
            .to_owned();
        Ok(Self { settings, codec })
    }
}

/// Reads the prefix of the queue of deaths, which is empty if there is none.
fn read_deaths(fields: &mut Fields<'_>) -> Result<Option<Subspace>, String> {
    let length = u16::from_be_bytes(fields.array()?);
    let prefix = fields.take(length.into())?;
    if prefix.is_empty() {
        return Ok(None);
    }
    Ok(Some(Subspace::from_bytes(prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_handed_out_apart_between_its_first_and_its_last_death() {
        let is_apart = |deaths, max_deaths, own| {
            let mut record = Record::default();
            record.deaths = deaths;
            record.limits.deaths = own;
            let settings = Settings::new().with_max_deaths(max_deaths);
            settings.hands_out_apart(&record)
        };
        assert!(!is_apart(0, 0, 0) && !is_apart(0, 1, 0));
        assert!(!is_apart(0, 2, 0) && is_apart(1, 2, 0));
        assert!(!is_apart(3, 5, 0) && is_apart(4, 5, 0));
        // The limit may have become lower since.
        assert!(is_apart(7, 5, 0));
        assert!(is_apart(1, 5, 2) && !is_apart(1, 2, 5));
    }

    #[test]
    fn settings_have_the_bytes_of_the_schema() {
        let settings = Settings {
            lease: Duration::from_millis(30),
            max_attempts: 3,
            max_deaths: 5,
            max_deliveries: 6,
            dedupe_retention: Duration::from_millis(4),
            keep_done: Duration::from_millis(7),
            deaths: Some(Subspace::from_bytes("D")),
        };
        let codec = "codec".to_owned();
        let stored = SettingsRecord { settings, codec };
        let mut expected = vec![1, 0, 0, 0, 0, 0, 0, 0, 30];
        expected.extend([0, 0, 0, 3, 0, 0, 0, 5, 0, 0, 0, 6]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 7]);
        expected.extend(b"\x00\x01Dcodec");
        assert_eq!(stored.encode(), expected);
        assert_eq!(SettingsRecord::decode(b"key", &expected).unwrap(), stored);
        let without = SettingsRecord {
            settings: stored.settings.clone().without_deaths(),
            ..stored.clone()
        };
        assert_eq!(
            without.encode(),
            [&expected[..37], b"\x00\x00codec"].concat()
        );
        assert_eq!(
            SettingsRecord::decode(b"key", &without.encode()).unwrap(),
            without
        );
        // No session can follow a shorter lease.
        expected[8] = 29;
        let error = SettingsRecord::decode(b"key", &expected).unwrap_err();
        assert!(error.to_string().contains("a lease of 29ms"), "{error}");
    }
}
