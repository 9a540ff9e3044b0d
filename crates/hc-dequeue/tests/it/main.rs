//! The integration tests, as one program: it is compiled in a fraction of the time that a program for each file takes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod ages;
mod apart;
mod attempts;
mod audit;
mod backoff;
mod batches;
mod checkpoints;
mod clear;
mod configure;
mod costs;
mod deaths;
mod dedupe;
mod deploy;
mod done;
mod extreme_times;
mod fairness;
mod foreign;
mod groups;
mod handled_item_changed;
mod inspect;
mod items;
mod items_of;
mod kinds;
mod listings;
mod metrics;
mod model;
mod operations;
mod overruns;
mod own_enqueues;
mod priorities;
mod process;
mod processes;
mod read_ahead;
mod refs;
mod refusals;
mod reopening;
mod reserve;
mod schedules;
mod shutdown;
mod slow_store;
mod submit;
mod testing;
mod unreadable;
mod unseen;
mod versions;
mod worker;
