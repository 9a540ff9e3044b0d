//! What the models of the protocol share.

pub(super) mod flights;
