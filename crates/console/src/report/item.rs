//! Items, and the values that applications store.

use std::fmt;

use export_queue::hc_dequeue::PlaceKind;
use serde::{Serialize, Serializer};

use super::{Time, is_zero};

/// A page of items.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Items {
    /// The name of the queue.
    pub queue: String,
    /// The place that is listed: `queued`, `delayed`, `held`, `dead` or `done`; of an export queue `dead`.
    #[serde(serialize_with = "place_name")]
    #[cfg_attr(test, schemars(with = "String"))]
    pub place: PlaceKind,
    /// How many items are there by the queue's counter. Missing where nothing counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The items of the page. It may have fewer than were asked for, and even none, though there is a next page.
    pub items: Vec<Item>,
    /// What to ask for to see the next page. Missing on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// An item, wherever it is.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Item {
    /// The reference to the item, which finds it wherever it goes. Empty if a row does not say which item it contains.
    pub item: String,
    /// Where it is: `queued`, `delayed`, `held`, `dead`, `done`, or `unreadable` if its record does not decode.
    #[serde(serialize_with = "place_name")]
    #[cfg_attr(test, schemars(with = "String"))]
    pub place: Option<PlaceKind>,
    /// Until when it is delayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// The session that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Whether it was cancelled while the session holds it: it leaves the queue as soon as the session lets go of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cancelled: bool,
    /// How it left the queue: `completed`, `cancelled` or `removed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<String>,
    /// When it left the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    /// When it was enqueued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enqueued: Option<Time>,
    /// When it was granted last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granted: Option<Time>,
    /// The dedupe id with which it was enqueued, as text or as `0x` and hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe: Option<String>,
    /// Its kind: the name of the type of its job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its priority, from -9 to 9. Missing if it is 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: i8,
    /// The group with which it was enqueued, as text or as `0x` and hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Whether it has a slot of its group.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_slot: bool,
    /// Why it has not started, if it is queued and has a group, or is queued or delayed and no session takes its kind.
    /// Missing in listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_started: Option<String>,
    /// The batch of which it is a member, or was one when it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    /// How often it failed since it was enqueued or redriven.
    pub attempts: u64,
    /// With how many sessions it died since then.
    pub deaths: u64,
    /// How often it was granted since then.
    pub deliveries: u64,
    /// Why it failed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The names of the steps of its handler that are done, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
    /// How far the work for it is, as its handler has said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The encoded key of an entry of an export queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Payload>,
    /// How many of the first entries of a block of an export queue were exported before it became a dead letter. A
    /// redrive exports the others.
    #[serde(skip_serializing_if = "is_zero")]
    pub exported: u16,
    /// What was enqueued. Missing if the record does not decode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Payload>,
    /// The checkpoint that the handler has set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Payload>,
    /// What the handler has set as the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
    /// Why the record does not decode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Items {
    /// Returns whether an item of the page has a kind.
    pub fn have_kinds(&self) -> bool {
        self.items.iter().any(|item| item.kind.is_some())
    }
}

impl Item {
    /// Returns the name of its place, or `unreadable`.
    pub fn place_name(&self) -> &'static str {
        name_of(self.place)
    }
}

fn name_of(place: Option<PlaceKind>) -> &'static str {
    place.map_or("unreadable", PlaceKind::name)
}

/// Writes a place, or one that is not known, by its name.
fn place_name<P, S>(place: &P, serializer: S) -> Result<S::Ok, S::Error>
where
    P: Copy + Into<Option<PlaceKind>>,
    S: Serializer,
{
    serializer.serialize_str(name_of((*place).into()))
}

/// How far the work for an item is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Progress {
    /// How much is done.
    pub done: u64,
    /// How much there is to do, in the same unit.
    pub total: u64,
    /// What is done at present. Missing if the handler has not said it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, total, text } = self;
        write!(f, "{done} of {total}")?;
        if !text.is_empty() {
            write!(f, ": {text}")?;
        }
        Ok(())
    }
}

/// Why an item failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Failure {
    /// When. Missing where it is not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// Why.
    pub reason: String,
}

/// Bytes that an application has stored, decoded as far as their codec describes itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Payload {
    /// The name of the codec.
    pub codec: String,
    /// How many bytes there are.
    pub bytes: usize,
    /// The decoded value. Of MessagePack and tuples, bytes are objects `{"bytes": "<hexadecimal digits>"}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<serde_json::Value>,
    /// The bytes in hexadecimal digits, if they were not decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hex: Option<String>,
    /// Why they were not decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
