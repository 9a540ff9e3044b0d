//! Settings that all handles of a queue share.

use std::fmt;
use std::time::Duration;

use hc_dequeue::MIN_LEASE;
use hc_dequeue::keyspace::recipe::StoredSettings;
use hc_dequeue::keyspace::record::{Fields, push_millis, push_text};

/// An element of the keys of updates, values and passes, and a field of the settings. It is always 0, and its place
/// is reserved for another division of the same queue into buckets.
pub(crate) const RESERVED: u32 = 0;

/// The largest bucket count.
const MAX_BUCKETS: u32 = 1 << 16;

/// Settings that all handles of a queue with buckets share. They are stored when the queue is created, and never
/// change.
///
/// ```
/// use std::time::Duration;
///
/// use combine::Settings;
///
/// let settings = Settings::new().with_bucket_count(64).with_lease(Duration::from_secs(5));
/// assert_eq!(settings.bucket_count(), 64);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    pub(crate) bucket_count: u32,
    pub(crate) lease: Duration,
}

impl Default for Settings {
    /// Sixteen buckets, and a lease of ten seconds.
    fn default() -> Self {
        Self {
            bucket_count: 16,
            lease: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// Returns the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of buckets into which the keys are divided, from 1 to 65,536.
    ///
    /// Only one worker at a time works on a bucket. In a combine queue, a transaction that adds to
    /// several buckets writes one small row for each of them.
    #[must_use]
    pub fn with_bucket_count(mut self, buckets: u32) -> Self {
        self.bucket_count = buckets;
        self
    }

    /// Sets the time after which a worker's session without a heartbeat may be declared dead, at least
    /// [`MIN_LEASE`]. The lease is stored in milliseconds. A heartbeat is written three times per lease.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Returns the number of buckets into which the keys are divided.
    #[must_use]
    pub fn bucket_count(&self) -> u32 {
        self.bucket_count
    }

    /// Returns the time after which a worker's session without a heartbeat may be declared dead.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Verifies that the settings are in range.
    ///
    /// # Errors
    /// [`InvalidSettings`].
    pub fn check(&self) -> Result<(), InvalidSettings> {
        if self.bucket_count == 0 || self.bucket_count > MAX_BUCKETS {
            return Err(InvalidSettings::BucketCount {
                given: self.bucket_count,
                limit: MAX_BUCKETS,
            });
        }
        if self.lease < MIN_LEASE {
            return Err(InvalidSettings::LeaseTooShort {
                given: self.lease,
                least: MIN_LEASE,
            });
        }
        Ok(())
    }

    /// Appends the settings to the record of a recipe: the bucket count in 4 bytes, and the lease in
    /// milliseconds in 8 bytes.
    pub fn write(&self, record: &mut Vec<u8>) {
        record.extend_from_slice(&self.bucket_count.to_be_bytes());
        push_millis(record, self.lease);
    }

    /// Reads the settings that [`write`](Self::write) appends.
    ///
    /// # Errors
    /// The reason, if there are too few bytes, or if the settings are [out of range](Self::check).
    pub fn read(fields: &mut Fields<'_>) -> Result<Self, String> {
        let settings = Self {
            bucket_count: fields.u32()?,
            lease: fields.millis()?,
        };
        // A damaged bucket count could be arbitrarily large.
        settings.check().map_err(|error| error.to_string())?;
        Ok(settings)
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            bucket_count,
            lease,
        } = self;
        write!(f, "{bucket_count} buckets, a lease of {lease:?}")
    }
}

/// The reasons why [`Settings`] are out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSettings {
    /// The bucket count is not from 1 to 65,536.
    #[error("a bucket count of {given} is out of range: choose from 1 to {limit}")]
    BucketCount {
        /// The given bucket count.
        given: u32,
        /// The largest bucket count.
        limit: u32,
    },

    /// The lease is too short for three heartbeats.
    #[error("lease of {given:?} is too short: choose at least {least:?}")]
    LeaseTooShort {
        /// The given lease.
        given: Duration,
        /// The shortest lease.
        least: Duration,
    },
}

/// The settings and codecs that a queue was created or opened with.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingsRecord {
    /// The settings.
    pub settings: Settings,
    /// The names of the codecs of keys, updates and values.
    pub codecs: [String; 3],
}

impl fmt::Display for SettingsRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [key, update, value] = &self.codecs;
        write!(
            f,
            "{}, and the codecs {key} for keys, {update} for updates and {value} for values",
            self.settings
        )
    }
}

impl StoredSettings for SettingsRecord {
    const RECIPE: &'static str = "combine";

    fn codecs(&self) -> Vec<&str> {
        self.codecs.iter().map(String::as_str).collect()
    }

    /// A handle uses the stored settings, but its codec must be the one that wrote the rows.
    fn agrees_with(&self, stored: &Self) -> bool {
        self.codecs == stored.codecs
    }

    fn write(&self, record: &mut Vec<u8>) {
        record.extend_from_slice(&RESERVED.to_be_bytes());
        self.settings.write(record);
        for codec in &self.codecs {
            push_text(record, codec);
        }
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, String> {
        let _reserved = fields.u32()?;
        let settings = Settings::read(fields)?;
        let codecs = [fields.text()?, fields.text()?, fields.text()?].map(str::to_owned);
        fields.end()?;
        Ok(Self { settings, codecs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_these_bytes() {
        let stored = SettingsRecord {
            settings: Settings {
                bucket_count: 7,
                lease: Duration::from_millis(0x0102),
            },
            codecs: ["K", "", "Val"].map(str::to_owned),
        };
        let bytes = b"\x01\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\x01\x02\x01K\0\x03Val";
        assert_eq!(stored.encode(), bytes);
        assert_eq!(SettingsRecord::decode(b"key", bytes).unwrap(), stored);
        for length in 0..bytes.len() {
            assert!(SettingsRecord::decode(b"key", &bytes[..length]).is_err());
        }
    }
}
