//! Deaths: what a queue of deaths gets of an item that becomes a dead letter.

use std::sync::Arc;

use microqueue::ItemId;
use microqueue::keyspace::codec::{Codec as _, MessagePack};
use microqueue::keyspace::{Bytes, Subspace, Transaction};
use serde::{Deserialize, Serialize};

use crate::items::changes::Changes;
use crate::items::error::Result;
use crate::items::item_ref::ItemRef;
use crate::items::keys::Keys;
use crate::items::kind::Kind;
use crate::items::places::put_new;
use crate::items::record::{MAX_PAYLOAD_BYTES, Record};
use crate::session::wall::wall_millis;

/// An item that has become a dead letter, as the [queue of deaths](crate::Settings::with_deaths) of its queue gets it.
///
/// It is enqueued by the commit in which the item becomes a dead letter, exactly once. A redriven item that dies again
/// is another death.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Death {
    /// The name of the queue, as logs and the console show it.
    pub queue: String,
    /// The item, which stays in its queue as a dead letter.
    pub item: ItemRef,
    /// Its [kind](crate::Enqueue::with_kind), if it has one.
    pub kind: Option<String>,
    /// Why it died: its last failure, up to 500 bytes.
    pub reason: String,
    /// How often it has failed since it was enqueued or redriven.
    pub attempts: u64,
    /// How many sessions have died with it since then.
    pub deaths: u64,
    /// The encoded value of the item, for the codec of its queue: see
    /// [`Queue::decode_payload`](crate::Queue::decode_payload). `None` if it is so large that this death would not fit
    /// in an item.
    pub payload: Option<Bytes>,
}

/// The outcome as which each death is counted.
pub(crate) const DEAD: &str = "dead";

/// What log and metrics tell of an item that has become a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeadLetter {
    id: ItemId,
    kind: Kind,
    attempts: u64,
    deaths: u64,
    reason: Arc<str>,
}

impl DeadLetter {
    pub(crate) fn new(id: ItemId, record: &Record) -> Self {
        let reason = record.failure.as_ref().map(|failure| failure.text.clone());
        Self {
            id,
            kind: record.kind.clone(),
            attempts: record.attempts,
            deaths: record.deaths,
            reason: reason.unwrap_or_default(),
        }
    }

    /// Logs and counts the death, which has been committed.
    pub(crate) fn report(&self, keys: &Keys) {
        let Self {
            id,
            kind,
            attempts,
            deaths,
            reason,
        } = self;
        kind.outcomes(&keys.name, DEAD).increment(1);
        let item = keys.item_ref(*id);
        let kind = kind.get();
        tracing::error!(queue = %keys.name, %item, kind, attempts, deaths, %reason, "an item is a dead letter");
    }
}

/// Stages the death of an item in a queue of deaths.
///
/// # Conflicts
/// None: it is an enqueue without options.
pub(crate) async fn stage_death(
    tr: &impl Transaction,
    keys: &Keys,
    deaths: &Subspace,
    letter: &DeadLetter,
    record: &Record,
) -> Result<()> {
    let mut death = Death {
        queue: keys.name.clone(),
        item: keys.item_ref(letter.id),
        kind: letter.kind.get().map(str::to_owned),
        reason: letter.reason.as_ref().to_owned(),
        attempts: letter.attempts,
        deaths: letter.deaths,
        payload: Some(record.payload.clone()),
    };
    let mut payload = encode(&death)?;
    if payload.len() > MAX_PAYLOAD_BYTES {
        death.payload = None;
        payload = encode(&death)?;
    }
    let keys = &Keys::new(deaths.clone(), keys.env.clone());
    let mut item = Record::new(wall_millis(&keys.env), payload.into());
    item.trace_context = record.trace_context.clone();
    let mut changes = Changes::default();
    put_new(tr, keys, &item, None, &mut changes).await?;
    changes.stage(tr, keys);
    Ok(())
}

fn encode(death: &Death) -> Result<Vec<u8>> {
    let mut payload = Vec::new();
    MessagePack.encode(death, &mut payload)?;
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: [u8; 23] = *b"\x01queueversionst\0\0\0\0\0\0\0\x09";

    fn death() -> Death {
        Death {
            queue: "shop/mails".to_owned(),
            item: ItemRef::from_bytes(&ITEM).unwrap(),
            kind: Some("mail".to_owned()),
            reason: "no".to_owned(),
            attempts: 10,
            deaths: 300,
            payload: Some(Bytes::from_static(b"\xa3ada")),
        }
    }

    /// Returns the beginning of a map of this many names: those that all deaths have.
    fn map(names: u8, kind: &[u8], payload: &[u8]) -> Vec<u8> {
        [
            &[0x80 | names][..],
            b"\xa5queue\xaashop/mails",
            b"\xa4item\xc4\x17",
            &ITEM,
            b"\xa4kind",
            kind,
            b"\xa6reason\xa2no",
            b"\xa8attempts\x0a",
            b"\xa6deaths\xcd\x01\x2c",
            b"\xa7payload",
            payload,
        ]
        .concat()
    }

    #[test]
    fn a_death_has_the_bytes_of_the_schema() {
        let bare = Death {
            kind: None,
            payload: None,
            ..death()
        };
        for (death, bytes) in [
            (death(), map(7, b"\xa4mail", b"\xc4\x04\xa3ada")),
            (bare, map(7, b"\xc0", b"\xc0")),
        ] {
            assert_eq!(encode(&death).unwrap(), bytes);
            let decoded: Death = MessagePack.decode(bytes.into()).unwrap();
            assert_eq!(decoded, death);
        }
    }

    #[test]
    fn a_death_of_a_later_version_decodes_without_what_is_new() {
        let newer = [&map(8, b"\xa4mail", b"\xc4\x04\xa3ada")[..], b"\xa3new\x01"].concat();
        let decoded: Death = MessagePack.decode(newer.into()).unwrap();
        assert_eq!(decoded, death());
    }
}
