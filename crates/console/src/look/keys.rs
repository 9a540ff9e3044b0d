//! Keys of the store, decoded by the schema of the queue that they belong to.

use export_queue::combine;
use export_queue::keyspace::ids::RegisteredRecipe;
use export_queue::keyspace::limits::END_OF_KEYSPACE;
use export_queue::keyspace::names::{hex, parse_hex, parse_queue_name, queue_name, tuple_text};
use export_queue::keyspace::{
    Bytes, Isolation, KeyValue, Listed, RangeQuery, StreamingMode, Subspace, Transaction, Tx,
    key_after, map,
};
use export_queue::{hc_dequeue, microqueue};

use super::console::{Console, MAX_QUEUES, MAX_ROWS, next_page};
use super::payload::{decode, guess};
use crate::error::{Error, Result};
use crate::report;

impl Console {
    /// Returns a page of the keys that begin with the elements of a name, or of all keys: up to `limit` after the key
    /// of these hexadecimal digits.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a name or digits that are none, and those of the store.
    pub async fn keys(
        &self,
        prefix: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<report::Keys> {
        let prefix = prefix.map_or(Ok(Subspace::all()), parse_key)?;
        let mut begin = prefix.bytes().to_vec();
        let mut end = end_of(prefix.bytes());
        if end.is_empty() {
            end = END_OF_KEYSPACE.to_vec();
        }
        if let Some(after) = after {
            let after = parse_hex(after).ok_or_else(|| Error::Malformed {
                what: "page",
                given: after.to_owned(),
                reason: "begin with the first page".to_owned(),
            })?;
            begin = begin.max(key_after(&after));
        }
        if begin >= end {
            return Ok(report::Keys {
                keys: Vec::new(),
                next: None,
            });
        }
        let limit = limit.clamp(1, MAX_ROWS);
        let query = &RangeQuery::keys(begin, end)
            .limit(limit + 1)
            .mode(StreamingMode::WantAll);
        let read = |tr: Tx<_>| async move {
            let batch = tr.get_range(query, Isolation::Snapshot).await?;
            Ok::<_, Error>(batch)
        };
        let mut batch = self.reader.run(read).await?;
        // A batch may end early because of its bytes.
        let after_batch = batch.next_after().map(hex);
        let after_page = next_page(&mut batch.rows, limit).map(|last| hex(last.key()));
        let recipes = self.all_recipes().await?;
        let keys = batch.rows.iter();
        Ok(report::Keys {
            keys: keys.map(|row| key_of(&recipes, row, false)).collect(),
            next: after_page.or(after_batch),
        })
    }

    /// Returns a key with its value. The key is a name as [`keys`](Self::keys) takes it.
    ///
    /// # Errors
    /// [`Error::Missing`] if the store has no such key, and as [`keys`](Self::keys).
    pub async fn key(&self, name: &str) -> Result<report::Key> {
        let key = &parse_key(name)?.bytes().to_vec();
        let read = |tr: Tx<_>| async move {
            // What comes after belongs to the store.
            let value = if &key[..] < END_OF_KEYSPACE {
                tr.get(key, Isolation::Snapshot).await?
            } else {
                None
            };
            Ok::<_, Error>(value.map(|value| KeyValue::new(key, &value)))
        };
        let found: Option<KeyValue> = self.reader.run(read).await?;
        let row = found.ok_or_else(|| Error::Missing {
            what: "key",
            given: name.to_owned(),
            hint: "`ls` lists those that there are",
        })?;
        Ok(key_of(&self.all_recipes().await?, &row, true))
    }

    /// Returns what is registered, by prefix, up to a bound.
    async fn all_recipes(&self) -> Result<Vec<RegisteredRecipe>> {
        let ids = &self.ids;
        let read = |tr| async move { ids.recipes(&tr, None, MAX_QUEUES).await };
        let recipes: Vec<Listed<_, _>> = self.reader.run(read).await?;
        Ok(recipes
            .into_iter()
            .filter_map(|listed| listed.value.ok())
            .collect())
    }
}

/// Returns the bytes of a key, or of what keys begin with, as a name has them.
fn parse_key(name: &str) -> Result<Subspace> {
    parse_queue_name(name).ok_or_else(|| malformed(name))
}

fn malformed(given: &str) -> Error {
    Error::Malformed {
        what: "key",
        given: given.to_owned(),
        reason: "expected elements with slashes between them, such as jobs/i, or raw: and hexadecimal digits"
            .to_owned(),
    }
}

/// Returns the key after all that begin with a prefix. Empty: there is none.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while end.pop_if(|last| *last == u8::MAX).is_some() {}
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn key_of(recipes: &[RegisteredRecipe], row: &KeyValue, with_value: bool) -> report::Key {
    let recipe = recipes
        .iter()
        .find(|recipe| row.key().starts_with(recipe.subspace.bytes()));
    let part = recipe.and_then(|recipe| part_of(recipe, row.key()));
    let codec = recipe.and_then(|recipe| payload_codec(recipe, part));
    let is_record = part.is_some() || is_own(row.key());
    let value = || match codec {
        Some((codec, skipped)) if row.value().len() >= skipped => {
            decode(codec, &row.to_value().slice(skipped..))
        }
        _ if is_record => record_bytes(row.to_value()),
        _ => guess(row.to_value()),
    };
    report::Key {
        name: queue_name(&Subspace::from_bytes(row.key())),
        hex: hex(row.key()),
        tuple: tuple_text(row.key()),
        queue: recipe.map(|recipe| queue_name(&recipe.subspace)),
        part: part.map(str::to_owned),
        value_bytes: row.value().len(),
        value: with_value.then(value),
    }
}

/// Returns what a recipe keeps under a key.
fn part_of(recipe: &RegisteredRecipe, key: &[u8]) -> Option<&'static str> {
    let describe = match &*recipe.name {
        "microqueue" => microqueue::describe_key,
        "hc-dequeue" => hc_dequeue::describe_key,
        "combine" => combine::describe_key,
        "export-queue" => export_queue::describe_key,
        "map" => map::describe_key,
        _ => return None,
    };
    describe(&recipe.subspace, key)
}

/// Returns the codec that has written the value under a key, and how many bytes come before what it has written.
fn payload_codec<'a>(recipe: &'a RegisteredRecipe, part: Option<&str>) -> Option<(&'a str, usize)> {
    let codec = |index: usize| recipe.codecs.get(index).map(String::as_str);
    match (&*recipe.name, part?) {
        ("microqueue", _) => Some((codec(0)?, 1)),
        ("combine", "reported value") => Some((codec(2)?, 1)),
        ("combine", "current value") => Some((codec(2)?, 2)),
        ("map", "row of a map") => Some((codec(0)?, 0)),
        _ => None,
    }
}

/// Returns whether a key is one of the library's own that belongs to no recipe: of a ledger, or of the registry.
fn is_own(key: &[u8]) -> bool {
    let own = ["keyspace.ledger", "keyspace.ids"];
    own.iter()
        .any(|name| Subspace::from((*name,)).is_start_of(key))
}

/// Returns the value of a record of the recipe's own.
fn record_bytes(bytes: Bytes) -> report::Payload {
    report::Payload {
        codec: "record".to_owned(),
        bytes: bytes.len(),
        value: None,
        hex: Some(hex(&bytes)),
        problem: Some("docs/schema.md has its layout".to_owned()),
    }
}
