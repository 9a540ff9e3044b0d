//! The two orders of a queue.

/// Determines the place of an item in the queue.
///
/// The order never changes during the life of a queue: every handle on a subspace must use the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// The order of commits, then of calls within a commit. Enqueuing reads nothing.
    #[default]
    Commit,
    /// The order of FoundationDB's *Queues* recipe, byte for byte: an item goes after the last item that
    /// the enqueuing transaction saw. Items of transactions that saw the same last item are in random
    /// order.
    Index,
}
