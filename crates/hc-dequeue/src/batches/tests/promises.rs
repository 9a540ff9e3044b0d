//! What must hold at every state, and for every step.

use conformance::checker_store::{Rows, rows_of};
use microqueue::Item;
use microqueue::keyspace::KeyValue;
use stateright::Property;

use super::world::{BATCH, BATCHES, BatchModel, BatchState, batch_id};
use crate::batches::stored::{StoredBatch, parse_batch};
use crate::items::batch::Tally;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::record::Record;

/// The number of pending members is the number of items and batches that are members. A batch that is over has none.
pub(super) const EXACT: &str = "pending members are exact";
/// A batch that is complete has a notice.
pub(super) const COVERED: &str = "complete batches are covered";
/// A batch has one callback.
pub(super) const ONCE: &str = "a callback comes once";
/// A member that exists is in the index of its batch. A batch that is over has no index.
pub(super) const INDEXED: &str = "members are indexed";
/// No callback comes while a batch is open, or has members.
pub(super) const EARLY: &str = "no callback comes early";
/// A batch that was closed takes members only from its own ones.
pub(super) const CLOSED: &str = "closed means closed";
/// A callback has the counts of all members that ever were.
pub(super) const COUNTED: &str = "all members are counted";

pub(super) fn properties() -> Vec<Property<BatchModel>> {
    vec![
        Property::always(EXACT, |model: &BatchModel, state: &BatchState| {
            let BatchState { rows, .. } = state;
            (0..BATCHES).all(|batch| {
                let stored = stored_batch(&model.keys, rows, batch);
                let pending = stored.map_or(0, |stored| stored.tally(Tally::Pending));
                pending == members(&model.keys, rows, batch).len() as i64
            })
        }),
        Property::always(COVERED, |model: &BatchModel, state: &BatchState| {
            let BatchState { rows, .. } = state;
            (0..BATCHES).all(|batch| {
                let stored = stored_batch(&model.keys, rows, batch);
                let notice = model.keys.batch_notice(batch_id(batch));
                let is_complete = stored.is_some_and(|stored| stored.is_complete());
                !is_complete || rows.contains_key(&*notice)
            })
        }),
        Property::always(INDEXED, |model: &BatchModel, state: &BatchState| {
            let BatchState { rows, .. } = state;
            let keys = &model.keys;
            let is_indexed = |item: &Item<Record>| {
                let member = item.value.member;
                member.is_none_or(|member| {
                    let row = item.id.key_in(&keys.members(member.batch));
                    rows.contains_key(&*row)
                })
            };
            items(keys, rows).iter().all(is_indexed)
                && (0..BATCHES).all(|batch| {
                    let index = keys.members(batch_id(batch)).range();
                    let is_empty = rows_of(rows, &index).next().is_none();
                    is_empty || stored_batch(keys, rows, batch).is_some()
                })
        }),
        Property::always(ONCE, |_, state: &BatchState| state.broken != Some(ONCE)),
        Property::always(EARLY, |_, state: &BatchState| state.broken != Some(EARLY)),
        Property::always(CLOSED, |_, state: &BatchState| state.broken != Some(CLOSED)),
        Property::always(COUNTED, |_, state: &BatchState| {
            state.broken != Some(COUNTED)
        }),
        Property::sometimes("a callback comes", |_, state: &BatchState| {
            state.fired.contains(&1)
        }),
    ]
}

/// Returns a batch, if it exists.
pub(super) fn stored_batch(keys: &Keys, rows: &Rows, batch: usize) -> Option<StoredBatch> {
    let id = batch_id(batch);
    let rows: Vec<_> = rows_of(rows, &keys.batch(id))
        .map(|(key, value)| KeyValue::new(key, value))
        .collect();
    parse_batch(keys, id, &rows).unwrap()
}

/// Returns the items that exist: those that are queued, and dead letters.
pub(super) fn items(keys: &Keys, rows: &Rows) -> Vec<Item<Record>> {
    let queued = rows_of(rows, &keys.outside_lanes());
    let queued = queued.map(|(key, value)| keys.decode_queued(&KeyValue::new(key, value)).unwrap());
    let dead = rows_of(rows, &keys.part(Part::Dead));
    let dead = dead.map(|(key, value)| keys.dead.decode(&KeyValue::new(key, value)).unwrap());
    queued.chain(dead).collect()
}

/// Returns the members of a batch: the numbers of items, and those of batches after [`BATCH`].
pub(super) fn members(keys: &Keys, rows: &Rows, batch: usize) -> Vec<u8> {
    let id = batch_id(batch);
    let items = items(keys, rows).into_iter().filter_map(|item| {
        let member = item.value.member?;
        (member.batch == id).then(|| item.value.payload[0])
    });
    let batches = (0..BATCHES).filter_map(|other| {
        let parent = stored_batch(keys, rows, other)?.row.parent?;
        (parent.batch == id).then_some((BATCH + other) as u8)
    });
    items.chain(batches).collect()
}
