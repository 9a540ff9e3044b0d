//! Looking at the keys of items: how they stand, and why an item with a key has not started.

use export_queue::hc_dequeue::{
    ItemPage, ItemRef, KeyLimits, KeyState, KeyStatus, ListedItem, Place, PlaceKind, Rate, Status,
};
use export_queue::keyspace::error::corrupt_key;
use export_queue::keyspace::names::{bytes_text, parse_bytes};
use export_queue::keyspace::{Bytes, Transaction, Tx};

use super::console::{Console, MAX_RECORDS, MAX_ROWS, next_page};
use super::found::Dequeue;
use crate::error::{Error, Result};
use crate::report;

/// What a queue of another recipe does not have.
pub(crate) const ITEM_KEYS: &str = "keys of items";

impl Console {
    /// Returns a page of the keys of a queue's items: up to `limit`, and at most 100, after a key, which is text, or
    /// `0x` and hexadecimal digits.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], and those of the store.
    pub async fn item_keys(
        &self,
        name: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<report::ItemKeys> {
        let found = &self.find_dequeue(name, ITEM_KEYS).await?;
        let after = &after.map(parse_bytes);
        let limit = limit.clamp(1, MAX_RECORDS);
        let read = |tr: Tx<_>| async move {
            let default = read_default_limits(&tr, found).await?;
            let page = found.queue.keys(&tr, after.as_deref(), limit + 1).await?;
            Ok::<_, Error>((default, page.keys))
        };
        let (default, mut keys) = self.reader.run(read).await?;
        let next = next_page(&mut keys, limit).map(|last| bytes_text(&last.key));
        Ok(report::ItemKeys {
            queue: found.name.clone(),
            default_limits: default.as_ref().map(limits_of),
            keys: keys.iter().map(key_of).collect(),
            next,
        })
    }

    /// Returns how a key stands, of which no item need exist. It is text, or `0x` and hexadecimal digits.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], a key of an invalid length, and those of the store.
    pub async fn item_key(&self, name: &str, key: &str) -> Result<report::ItemKey> {
        let found = &self.find_dequeue(name, ITEM_KEYS).await?;
        let key = &parse_bytes(key);
        let read = |tr| async move { found.queue.key(&tr, key).await };
        Ok(key_of(&self.reader.run(read).await?))
    }

    /// Returns the limits of keys that have none of their own.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], limits that do not decode, and those of the store.
    pub async fn default_limits(&self, name: &str) -> Result<report::Limits> {
        let found = &self.find_dequeue(name, ITEM_KEYS).await?;
        let read = |tr| async move { found.queue.default_key_limits(&tr).await };
        Ok(limits_of(&self.reader.run(read).await?))
    }
}

/// Reads the limits of keys that have none of their own. `None`: they do not decode.
pub(crate) async fn read_default_limits(
    tr: &impl Transaction,
    found: &Dequeue,
) -> Result<Option<KeyLimits>> {
    match found.queue.default_key_limits(tr).await {
        Err(error) if corrupt_key(&error).is_some() => Ok(None),
        limits => Ok(Some(limits?)),
    }
}

fn key_of(status: &KeyStatus) -> report::ItemKey {
    let next_start = match status.state {
        KeyState::UntilRate(at) => Some(at.into()),
        _ => None,
    };
    let state = match status.state {
        KeyState::Idle => "idle",
        KeyState::Ready => "ready",
        KeyState::AtLimit => "at its limit",
        KeyState::UntilRate(_) => "waits for its rate",
        KeyState::Paused => "paused",
        _ => "unreadable",
    };
    let limits = match status.state {
        KeyState::Unreadable => None,
        _ => Some(limits_of(&status.limits)),
    };
    report::ItemKey {
        key: bytes_text(&status.key),
        state: state.to_owned(),
        next_start,
        slots: status.slots,
        waiting: status.waiting,
        has_more: status.waits_more,
        limits,
        own_limits: status.has_own_limits,
    }
}

pub(crate) fn limits_of(limits: &KeyLimits) -> report::Limits {
    report::Limits {
        limit: limits.limit(),
        until_end: limits.is_until_end(),
        dead_letters_block: limits.dead_letters_block(),
        rate: limits.rate().as_ref().map(rate_of),
        weight: limits.weight(),
    }
}

fn rate_of(rate: &Rate) -> report::Rate {
    report::Rate {
        starts: rate.starts(),
        period_seconds: rate.period().as_secs_f64(),
        burst: rate.burst(),
    }
}

/// Returns why an item has not started, if it is queued and has a key.
pub(super) async fn why_not_started(
    tr: &impl Transaction,
    found: &Dequeue,
    item: &Status<Bytes>,
) -> Result<Option<String>> {
    if item.place != Place::Queued || item.key.is_empty() {
        return Ok(None);
    }
    if found.queue.is_paused(tr).await? {
        return Ok(Some("the queue is paused".to_owned()));
    }
    let key = found.queue.key(tr, &item.key).await?;
    let reason = match key.limits.limit() {
        _ if key.state == KeyState::Unreadable => {
            "the limits or the number of slots of its key do not decode".to_owned()
        }
        // An item that already has a slot does not start either.
        Some(0) => "its key is paused".to_owned(),
        Some(limit) if key.slots >= u64::from(limit) && !item.has_slot => {
            match dead_letter_with_slot(tr, found, &item.key).await? {
                Some(letter) => {
                    format!("a dead letter of its key keeps a slot: redrive or purge {letter}")
                }
                None => format!("its key is at its limit ({} of {limit})", key.slots),
            }
        }
        _ => match key.state {
            KeyState::UntilRate(at) => {
                let at = report::Time::from(at).moment();
                format!("its key waits for its rate, and starts the next item at about {at}")
            }
            _ => "it waits for its turn".to_owned(),
        },
    };
    Ok(Some(reason))
}

/// Returns a dead letter that has a slot of a key, among the first 1,000 dead letters, or among fewer if they are
/// large.
async fn dead_letter_with_slot(
    tr: &impl Transaction,
    found: &Dequeue,
    key: &Bytes,
) -> Result<Option<ItemRef>> {
    let letters: ItemPage<Bytes> = found
        .queue
        .list(tr, PlaceKind::Dead, None, MAX_ROWS)
        .await?;
    let has_slot = |letter: &&ListedItem<Bytes>| {
        let status = letter.status.as_ref();
        status.is_ok_and(|status| status.has_slot && status.key == *key)
    };
    let letter = letters.items.iter().find(has_slot);
    Ok(letter.map(|letter| letter.item))
}
