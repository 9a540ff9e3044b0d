//! The JSON Schema of the reports, which the file `schema.json` of this crate has.

use std::borrow::Cow;
use std::path::Path;
use std::{env, fs};

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::{
    Audit, Batch, Batches, Change, CombineKey, Group, Groups, Item, Items, Key, Keys, Kinds,
    Limits, Maps, Queue, Queues, Schedules, Sessions, SetAsidePage, Settings, StoreCheck, Time,
};

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A time in RFC 3339, in UTC, with milliseconds. Null if it is outside of the years 0 to 9999.",
            "type": ["string", "null"],
            "format": "date-time",
        })
    }
}

/// Returns one document with the schema of each report under its name in `$defs`.
fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut generator = settings.into_generator();
    // The reports that commands print. What they consist of is added by the generator.
    generator.subschema_for::<Queues>();
    generator.subschema_for::<Queue>();
    generator.subschema_for::<Items>();
    generator.subschema_for::<Item>();
    generator.subschema_for::<Groups>();
    generator.subschema_for::<Group>();
    generator.subschema_for::<Limits>();
    generator.subschema_for::<Batches>();
    generator.subschema_for::<Batch>();
    generator.subschema_for::<Kinds>();
    generator.subschema_for::<Sessions>();
    generator.subschema_for::<Schedules>();
    generator.subschema_for::<Settings>();
    generator.subschema_for::<Change>();
    generator.subschema_for::<Audit>();
    generator.subschema_for::<SetAsidePage>();
    generator.subschema_for::<CombineKey>();
    generator.subschema_for::<Maps>();
    generator.subschema_for::<Keys>();
    generator.subschema_for::<Key>();
    generator.subschema_for::<StoreCheck>();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Reports of the console",
        "$defs": generator.take_definitions(true),
    })
}

#[test]
fn the_file_has_the_schema_of_the_reports() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema.json");
    let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(&file, &text).unwrap();
    }
    assert!(
        fs::read_to_string(&file).unwrap_or_default() == text,
        "{} is not what the reports say. If they are as they should be, run \
         `UPDATE_SCHEMA=1 cargo test -p fdbq-console --lib schema`",
        file.display()
    );
}
