//! The handle and its verbs: what an application does with a queue inside its own transactions.

pub(crate) mod await_done;
pub(crate) mod bulk;
pub(crate) mod change;
pub(crate) mod clear;
pub(crate) mod configure;
pub(crate) mod dead_letters;
pub(crate) mod dedupe;
pub(crate) mod enqueue;
pub(crate) mod enqueue_options;
pub(crate) mod handle;
pub(crate) mod inspect;
pub(crate) mod items_of;
pub(crate) mod kinds;
pub(crate) mod list;
pub(crate) mod refs;
pub(crate) mod stage;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod submit;
