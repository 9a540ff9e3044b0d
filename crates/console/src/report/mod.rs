//! What the commands print with `--json` and the pages serve under `/api`: one set of types, whose field names are
//! stable. `docs/console.md` lists them, and `schema.json` in the folder of this crate is their JSON Schema.
//!
//! - A [time](Time) is a text in RFC 3339, in UTC, with milliseconds, or null if RFC 3339 cannot write it.
//! - A span of time is a number of seconds, and its name ends with `_seconds`.
//! - A field that is not known or does not apply is missing.

mod batch;
mod change;
mod group;
mod item;
mod key;
mod kind;
mod map;
mod queue;
#[cfg(test)]
mod tests;
mod time;
mod work;

use std::fmt::Display;

use serde::Serializer;

pub use self::batch::{Batch, Batches};
pub use self::change::{Change, StoreCheck};
pub use self::group::{Group, Groups, Limits, Rate};
pub use self::item::{Failure, Item, Items, Payload, Progress};
pub use self::key::{Key, Keys};
pub use self::kind::{Kind, Kinds};
pub use self::map::{Map, MapIndex, Maps};
pub use self::queue::{
    CombineState, DequeueState, ExportState, MicroqueueState, Queue, QueueState, Queues,
    Subscription,
};
pub use self::time::Time;
pub use self::work::{
    Audit, CombineKey, Finding, Life, Process, Schedule, Schedules, Session, Sessions, SetAside,
    SetAsidePage, Settings,
};

/// Writes a field by the text that is shown of it.
fn as_text<S: Serializer>(shown: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(shown)
}

/// Returns whether a field has nothing to say.
fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}
