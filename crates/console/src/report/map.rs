//! Maps: an application's own data.

use serde::Serialize;

use super::is_zero;

/// A page of maps, in the order of their names.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Maps {
    /// The maps.
    pub maps: Vec<Map>,
    /// What to ask for to see the next page. Missing on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A map of an application's own data.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Map {
    /// The name of the map.
    pub name: String,
    /// The prefix of its keys, in hexadecimal digits.
    pub prefix: String,
    /// The name of the codec of its values.
    pub codec: String,
    /// How many rows it has, as far as they were counted: up to 1,000,000 bytes of them.
    pub rows: usize,
    /// Whether it has more.
    #[serde(skip_serializing_if = "is_zero")]
    pub has_more: bool,
    /// Its indexes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<MapIndex>,
    /// Why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// An index of a map.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MapIndex {
    /// The name of the index.
    pub name: String,
    /// The version of its function.
    pub version: u32,
    /// Whether at most one row has a key.
    pub is_unique: bool,
    /// How many rows were looked at, while it is being built.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_looked_at: Option<u64>,
}

impl MapIndex {
    /// Returns what the index is, in words.
    #[must_use]
    pub fn text(&self) -> String {
        let unique = if self.is_unique { ", unique" } else { "" };
        let building = match self.rows_looked_at {
            Some(rows) => format!(", not built: {rows} rows looked at"),
            None => String::new(),
        };
        format!("{}{unique}{building}", self.name)
    }
}
