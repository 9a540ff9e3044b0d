//! The settings of a map, which are stored when it is first opened.

use crate::recipes::recipe::StoredSettings;
use crate::values::record::{Fields, push_text};

/// What a map was created with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MapSettings {
    /// The name of the codec of its values.
    pub(super) codec: String,
}

impl MapSettings {
    pub(super) fn new(codec: &str) -> Self {
        Self {
            codec: codec.to_owned(),
        }
    }
}

impl StoredSettings for MapSettings {
    const RECIPE: &'static str = "map";

    fn codecs(&self) -> Vec<&str> {
        vec![&self.codec]
    }

    fn write(&self, record: &mut Vec<u8>) {
        push_text(record, &self.codec);
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, String> {
        let codec = fields.text()?.to_owned();
        fields.end()?;
        Ok(Self { codec })
    }
}
