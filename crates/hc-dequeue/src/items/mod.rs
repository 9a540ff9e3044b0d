//! Items: the bytes of their rows, where they are, and how they end.

pub(crate) mod batch;
pub(crate) mod changes;
pub(crate) mod counters;
pub(crate) mod dedupe;
pub(crate) mod end;
pub(crate) mod error;
pub(crate) mod find;
pub(crate) mod item_ref;
pub(crate) mod key_limits;
pub(crate) mod keys;
pub(crate) mod part;
pub(crate) mod places;
pub(crate) mod pointer;
pub(crate) mod priority;
pub(crate) mod rate;
pub(crate) mod record;
pub(crate) mod settings;
pub(crate) mod spot;
pub(crate) mod trace_context;
pub(crate) mod value;
