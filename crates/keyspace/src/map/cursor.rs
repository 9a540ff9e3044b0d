//! Where a page of rows has ended.

use std::fmt;
use std::str::FromStr;

use crate::contract::error::MapError;
use crate::text::names::{hex, parse_hex};

/// The first byte of a cursor.
const FORMAT: u8 = 1;

/// Where a [page](super::Page) has ended, and which rows it is a page of.
///
/// Its text, hexadecimal digits, may be handed out, by an HTTP API for example. It contains the key of the last row of
/// the page, and so keeps no secret. It stays valid.
///
/// ```text
/// 0       format, 01
/// 1..9    what it is a page of: the XXH3 (64 bits) of the key of the first row, that of the end, and the direction
/// next    the key of the last row of the page, without the prefix of the map's rows
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    pub(super) rows: [u8; 8],
    pub(super) last: Vec<u8>,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [&[FORMAT][..], &self.rows, &self.last].concat();
        f.write_str(&hex(&bytes))
    }
}

impl FromStr for Cursor {
    type Err = MapError;

    fn from_str(text: &str) -> Result<Self, MapError> {
        let parse = || {
            let bytes = parse_hex(text)?;
            let (rows, last) = bytes.strip_prefix(&[FORMAT])?.split_first_chunk()?;
            Some(Self {
                rows: *rows,
                last: last.to_vec(),
            })
        };
        let text = || text.chars().take(100).collect();
        parse().ok_or_else(|| MapError::MalformedCursor { text: text() })
    }
}
