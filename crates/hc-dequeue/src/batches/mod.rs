//! Batches: items whose ends are awaited together.
//!
//! A batch has a row, a row while it is open, and a counter for each [`Tally`](crate::items::batch::Tally). The members
//! of a batch do not lie together: the record of each names its batch, an [index](crate::items::members) has the ids of
//! all that ever were, and the commit that ends a member changes the counters. At every version, the number of pending
//! ones is the number of records that name the batch, and of batches whose parent it is.
//!
//! - [`stored`]: reads batches.
//! - [`operations`]: opens, closes, cancels and awaits them.
//! - [`end`]: ends those that are complete.
//! - [`ended`]: keeps the counts of those that have ended.
//! - [`members`]: reads members, by this index.
//! - [`timer`]: when a session looks for batches that are complete.
//! - [`audit`]: compares their numbers with their members.

pub(crate) mod audit;
pub(crate) mod end;
pub(crate) mod ended;
pub(crate) mod members;
pub(crate) mod operations;
pub(crate) mod stored;
#[cfg(test)]
mod tests;
pub(crate) mod timer;
