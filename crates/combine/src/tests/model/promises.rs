//! The properties that must hold in every state.

use std::sync::Arc;

use conformance::checker_store::Rows;
use hc_dequeue::microqueue::blocks::decode_block;
use stateright::Property;

use crate::queue::aside::AsideId;
use crate::tests::model::bug::Bug;
use crate::tests::model::protocol::{Action, Extent, KEYS, Protocol};
use crate::tests::model::state::{State, aside, current, log, state_of_passes, value};
use crate::tests::model::steps::PassModel;

pub(crate) const NEW_IS_SUM: &str =
    "a new value is the sum of all updates committed before its pass began";
pub(crate) const OLD_IS_NEW: &str = "an old value is the new value of the report before";
pub(crate) const ONCE: &str = "every update is in the log, in a value or aside, once";
pub(crate) const CURRENT_DIFFERS: &str =
    "there is a current value if, and only if, it differs from the value";
pub(crate) const WITHHELD_NOTED: &str = "what is withheld is among what was set aside";
pub(crate) const STATE_KNOWS: &str = "the state of the passes knows of all current values";
pub(crate) const END_IS_TRUE: &str = "a pass that says so has left nothing to report";
pub(crate) const FINISHES: &str = "when nothing more happens, passes report everything";

/// The number of passes until everything is reported, if each takes everything. It is two if a block is
/// folded in part, and a restored store has put others before it.
const FULL_PASSES: usize = 2;

/// More passes than it takes until everything is reported, if each takes as little as possible.
const MAX_PASSES: usize = 40;

/// Returns all properties.
pub(crate) fn all() -> Vec<Property<PassModel>> {
    vec![
        Property::always(NEW_IS_SUM, |_, state: &State| !state.has_wrong_new),
        Property::always(OLD_IS_NEW, |_, state: &State| !state.has_wrong_old),
        Property::always(END_IS_TRUE, |_, state: &State| !state.has_false_end),
        Property::always(ONCE, |model: &PassModel, state: &State| {
            is_once(&model.protocol, state)
        }),
        Property::always(CURRENT_DIFFERS, |model: &PassModel, state: &State| {
            (0..KEYS).all(|key| differs(&model.protocol, &state.rows, key))
        }),
        Property::always(WITHHELD_NOTED, |model: &PassModel, state: &State| {
            (0..KEYS).all(|key| is_noted(&model.protocol, &state.rows, key))
        }),
        Property::always(STATE_KNOWS, |model: &PassModel, state: &State| {
            knows(&model.protocol, &state.rows)
        }),
        Property::always(FINISHES, |model: &PassModel, state: &State| {
            // A transaction in flight may never commit, and the state without it is among those that are
            // checked.
            !state.flights.is_empty() || finishes(&model.protocol, state)
        }),
    ]
}

/// Returns whether the values and the pending updates together give the committed sum.
fn is_once(protocol: &Protocol, state: &State) -> bool {
    let rows = &*state.rows;
    let decode = |bytes| protocol.queue.decode_stored(&bytes).unwrap().unwrap_or(0);
    let mut sums = [0; KEYS];
    for (key, sum) in sums.iter_mut().enumerate() {
        *sum = match current(protocol, rows, key) {
            Some(current) => decode(current.bytes),
            None => value(protocol, rows, key).unwrap_or(0),
        };
    }
    let is_update = |id: &AsideId| matches!(id, AsideId::Update { .. });
    let mut broken = aside(protocol, rows).into_iter().filter(is_update).count();
    let position = state_of_passes(protocol, rows).position;
    for (version, block) in log(protocol, rows) {
        let folded = position
            .filter(|at| at.versionstamp.commit_version() == version)
            .map_or(0, |at| at.index.into());
        for entry in decode_block(block).unwrap().into_iter().skip(folded) {
            let key = protocol
                .encoded
                .iter()
                .position(|key| *key == entry.key)
                .expect("there are no other keys");
            match &entry.value[..] {
                b"\xc1" => broken += 1,
                _ => sums[key] += decode(Some(entry.value)),
            }
        }
    }
    sums == state.sums && broken == state.broken
}

fn differs(protocol: &Protocol, rows: &Rows, key: usize) -> bool {
    let decode = |bytes| protocol.queue.decode_stored(&bytes).unwrap();
    let current = current(protocol, rows, key);
    current.is_none_or(|current| decode(current.bytes) != value(protocol, rows, key))
}

fn is_noted(protocol: &Protocol, rows: &Rows, key: usize) -> bool {
    let is_withheld = current(protocol, rows, key).is_some_and(|current| current.is_withheld);
    let row = protocol.queue.keys.withheld(&protocol.encoded[key]);
    rows.contains_key(&row[..]) == is_withheld
}

fn knows(protocol: &Protocol, rows: &Rows) -> bool {
    let state = state_of_passes(protocol, rows);
    let mut currents = (0..KEYS).filter_map(|key| current(protocol, rows, key));
    currents.all(|current| state.has_current && (state.has_to_report || current.is_withheld))
}

/// Returns whether passes over everything report everything, and whether passes that take as little as
/// possible do so, too.
fn finishes(protocol: &Protocol, state: &State) -> bool {
    is_finished_after(protocol, state, Extent::All, FULL_PASSES)
        && is_finished_after(protocol, state, Extent::Least, MAX_PASSES)
}

fn is_finished_after(protocol: &Protocol, state: &State, extent: Extent, passes: usize) -> bool {
    let mut rows = state.rows.clone();
    for _ in 0..passes {
        let pass = Action::Pass(extent, false);
        let Some((staged, _)) = protocol.stage(&rows, state.version, &pass) else {
            break;
        };
        let after = staged.applied(&rows, state.version);
        let is_partial = state_of_passes(protocol, &after).position.is_some();
        if protocol.bug() == Some(Bug::WholeBlocks) && is_partial {
            return false;
        }
        rows = Arc::new(after);
    }
    let is_reported = |key: usize| match current(protocol, &rows, key) {
        Some(current) => current.is_withheld,
        None => value(protocol, &rows, key).unwrap_or(0) == state.sums[key],
    };
    log(protocol, &rows).is_empty() && (0..KEYS).all(is_reported)
}
