//! The store at rest: opens, creates, checks and copies its files, and writes to its log.

#[cfg(unix)]
pub(super) mod applications;
pub(super) mod backup;
pub(super) mod checkpoint;
pub(super) mod journal;
pub(super) mod location;
pub(super) mod names;
pub(super) mod open;
pub(super) mod open_errors;
#[cfg(unix)]
pub(super) mod presence;
pub(super) mod verify;
