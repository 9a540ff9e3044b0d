//! What can go wrong with a queue.

use keyspace::{Subspace, Versionstamp};

use crate::order::Order;

/// The result of every operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of a queue operation.
///
/// The store's own failures, a damaged record and a value that has no encoding are
/// [`keyspace::Error`]s, kept as the source.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store, or a record in it, refused the operation.
    #[error("queue operation failed")]
    Keyspace(#[from] keyspace::Error),

    /// The queue was read in a transaction that had enqueued into it. The items would only get
    /// their places by the commit, so the read has no answer. Read first and enqueue then, or use
    /// two transactions. This transaction can no longer commit.
    #[error("queue `{queue}` was read after an enqueue in the same transaction")]
    ReadAfterWrite {
        /// The queue's subspace.
        queue: Subspace,
    },

    /// The item is larger than a value can be. Nothing was staged.
    #[error("item of {bytes} bytes does not fit queue `{queue}`, whose items have up to {limit}")]
    ItemTooLarge {
        /// The queue's subspace.
        queue: Subspace,
        /// The size of the encoded item, its format byte included.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },

    /// The prefix of the queue's subspace leaves no room for an item's key. Nothing was staged.
    #[error("prefix of {bytes} bytes is too long for a queue: up to {limit}")]
    PrefixTooLong {
        /// The length of the prefix.
        bytes: usize,
        /// The longest prefix.
        limit: usize,
    },

    /// The id is of an item of a queue with another order.
    #[error("queue `{queue}` is in {order:?} order and has no such id")]
    WrongOrder {
        /// The queue's subspace.
        queue: Subspace,
        /// The queue's order.
        order: Order,
    },

    /// The queue holds an item whose stamp is above the store's version: its rows come from a store
    /// that was further on, by a backup or a copy. New items would go before those. Nothing may be
    /// enqueued until the store's version has passed the stamp: on a cluster,
    /// `fdbcli --exec "advanceversion <version>"` with the stamp's
    /// [commit version](Versionstamp::commit_version) or a larger one.
    #[error(
        "queue `{queue}` holds an item of version {}, and the store is at {read_version}: advance \
         the store's version before anything is enqueued (`advanceversion` in fdbcli)",
        stamp.commit_version()
    )]
    StampAhead {
        /// The queue's subspace.
        queue: Subspace,
        /// The stamp of the queue's last item.
        stamp: Versionstamp,
        /// The store's version, as the transaction sees it.
        read_version: i64,
    },
}
