//! Items: the bytes of their rows, where they are, and how they end.

pub(crate) mod batch;
pub(crate) mod batch_row;
pub(crate) mod changes;
pub(crate) mod counters;
pub(crate) mod death;
pub(crate) mod dedupe;
pub(crate) mod end;
pub(crate) mod error;
pub(crate) mod expiry;
pub(crate) mod find;
pub(crate) mod finding;
pub(crate) mod front;
pub(crate) mod group_limits;
pub(crate) mod item_ref;
pub(crate) mod item_row;
pub(crate) mod keys;
pub(crate) mod kind;
pub(crate) mod members;
pub(crate) mod part;
pub(crate) mod places;
pub(crate) mod pointer;
pub(crate) mod priority;
pub(crate) mod rate;
pub(crate) mod record;
pub(crate) mod refusal;
pub(crate) mod scan;
pub(crate) mod settings;
pub(crate) mod settings_row;
pub(crate) mod spot;
pub(crate) mod trace_context;
pub(crate) mod value;

/// The largest number of items that one transaction moves or ends, where a call or a session chooses them.
pub(crate) const MAX_STEP_ITEMS: usize = 512;

/// How many bytes of items such a transaction moves or ends. The last item may exceed it.
pub(crate) const MAX_STEP_BYTES: usize = 1_000_000;
