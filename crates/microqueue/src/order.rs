//! The two orders of a queue.

/// What decides the place of an item. Fixed for the life of a queue: every handle on a subspace
/// must name the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// The order of commits, and of calls within a commit. Enqueuing reads nothing.
    #[default]
    Commit,
    /// FoundationDB's *Queues* recipe, byte for byte: items go behind the last one that the
    /// enqueuing transaction saw, and those that saw the same one are in random order.
    Index,
}
