//! Keys of the store, decoded.

use serde::Serialize;

use super::Payload;

/// A page of keys, in their order.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Keys {
    /// The keys.
    pub keys: Vec<Key>,
    /// What to ask for to see the next page. Missing on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Key {
    /// The key in the form of a queue's name, for `get`.
    pub name: String,
    /// The key, in hexadecimal digits.
    pub hex: String,
    /// The key as a tuple, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuple: Option<String>,
    /// The queue that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// What the queue keeps there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// How many bytes the value has.
    pub value_bytes: usize,
    /// The value, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Payload>,
}
