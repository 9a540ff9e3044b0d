//! The stored state and heartbeat of a session.

use std::time::Duration;

use microqueue::keyspace::record::{self, Fields, push_millis};
use microqueue::keyspace::{self, Result, Versionstamp};

use super::SessionId;

/// The format of a session's state.
const FORMAT: u8 = 1;

/// Whether items may be granted to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Items may be granted to it.
    Alive,
    /// It was silent for its lease and was declared dead. Nothing is granted to it again, and the items that it held
    /// are being returned.
    Dead,
    /// Its process has ended it. Nothing is granted to it again, and the items that it held are being returned.
    Ended,
}

/// The stored state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct State {
    /// Whether it is alive.
    pub life: Life,
    /// The lease within which it promises heartbeats.
    pub lease: Duration,
}

impl State {
    pub(crate) fn encode(self) -> Vec<u8> {
        let life = match self.life {
            Life::Dead => 0,
            Life::Alive => 1,
            Life::Ended => 2,
        };
        let mut value = vec![FORMAT, life];
        push_millis(&mut value, self.lease);
        value
    }

    /// Returns whether a stored state is that of a living session, or may be because a newer version has written it.
    pub(crate) fn says_alive(key: &[u8], value: &[u8]) -> bool {
        match Self::decode(key, value) {
            Ok(state) => state.life == Life::Alive,
            Err(_) => record::refuse_newer(key, value, FORMAT).is_err(),
        }
    }

    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Self> {
        record::decode(key, value, FORMAT, |fields| {
            let life = match fields.array()? {
                [0] => Life::Dead,
                [1] => Life::Alive,
                [2] => Life::Ended,
                [other] => return Err(format!("session state {other} is unknown")),
            };
            let lease = fields.millis()?;
            fields.end()?;
            Ok(Self { life, lease })
        })
    }
}

/// The last heartbeat of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Heartbeat {
    /// The session.
    pub session: SessionId,
    /// The version of the commit that wrote the heartbeat.
    pub version: i64,
    /// The wall time of the session's process at the heartbeat, in milliseconds since the Unix epoch.
    pub wall_millis: u64,
}

/// Parses the heartbeat of a session from its row.
pub(super) fn parse_heartbeat(session: SessionId, key: &[u8], value: &[u8]) -> Result<Heartbeat> {
    let mut fields = Fields::new(value);
    let heartbeat = (|| {
        let heartbeat = Heartbeat {
            session,
            version: Versionstamp::from_bytes(fields.array()?).commit_version(),
            wall_millis: fields.u64()?,
        };
        fields.end()?;
        Ok(heartbeat)
    })();
    heartbeat.map_err(|reason: String| keyspace::Error::corrupt(key, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_heartbeats_have_the_bytes_of_the_schema() {
        let session = SessionId([7; 16]);
        let lease = Duration::from_millis(0x0304);
        for (life, number) in [(Life::Dead, 0), (Life::Alive, 1), (Life::Ended, 2)] {
            let state = State { life, lease };
            let bytes = [1, number, 0, 0, 0, 0, 0, 0, 3, 4];
            assert_eq!(state.encode(), bytes);
            assert_eq!(State::decode(b"key", &bytes).unwrap(), state);
        }
        let other = [1, 3, 0, 0, 0, 0, 0, 0, 3, 4];
        let newer = [2, 1, 0, 0, 0, 0, 0, 0, 3, 4];
        for state in [&b""[..], &[1], &[1, 1], &[1; 9], &[1; 11], &other, &newer] {
            assert!(State::decode(b"key", state).is_err());
        }
        let bytes = [
            &[0, 0, 0, 0, 0, 0, 0, 8, 0, 9][..],
            &[0, 0, 0, 0, 0, 0, 1, 2],
        ]
        .concat();
        let heartbeat = Heartbeat {
            session,
            version: 8,
            wall_millis: 0x0102,
        };
        let parsed = parse_heartbeat(session, b"key", &bytes);
        assert_eq!(parsed.unwrap(), heartbeat);
        for length in [0, 10, 17, 19] {
            assert!(parse_heartbeat(session, b"key", &vec![1; length]).is_err());
        }
    }
}
