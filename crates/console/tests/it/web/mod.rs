//! The pages, the JSON and the server-sent events, on stores in memory; and the server on real sockets.

mod changes;
mod events;
mod pages;
mod security;
mod serving;
pub(crate) mod site;
