//! The errors of queue operations.

use keyspace::names::queue_name;
use keyspace::{Subspace, Versionstamp};

use crate::order::Order;

/// The result of every operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a queue operation.
///
/// A failure of the store, a damaged record and a value that cannot be encoded are [`keyspace::Error`]s,
/// available as the source of this error.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store, or a record in it, refused the operation.
    #[error("queue operation failed")]
    Keyspace(#[from] keyspace::Error),

    /// The transaction read the queue after it had enqueued into it.
    ///
    /// The new items get their places only at the commit, so the read has no answer. Read before the
    /// first enqueue, or use two transactions. This transaction can no longer commit.
    #[error(
        "queue `{queue}` was read after an enqueue in the same transaction: read first",
        queue = queue_name(queue)
    )]
    ReadAfterWrite {
        /// The queue's subspace.
        queue: Subspace,
    },

    /// The encoded item is larger than a value can be. Nothing was staged.
    #[error(
        "item of {bytes} bytes is too large for queue `{queue}`: the limit is {limit} bytes",
        queue = queue_name(queue)
    )]
    ItemTooLarge {
        /// The queue's subspace.
        queue: Subspace,
        /// The size of the encoded item, including its format byte.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },

    /// The prefix of the queue's subspace is too long for the key of an item. Nothing was staged.
    #[error("prefix of {bytes} bytes is too long for a queue: the limit is {limit} bytes")]
    PrefixTooLong {
        /// The length of the prefix.
        bytes: usize,
        /// The longest prefix.
        limit: usize,
    },

    /// The id belongs to an item of a queue in another order.
    #[error(
        "queue `{queue}` is in {order:?} order, but the id is of the other order",
        queue = queue_name(queue)
    )]
    WrongOrder {
        /// The queue's subspace.
        queue: Subspace,
        /// The queue's order.
        order: Order,
    },

    /// The queue contains an item whose versionstamp is larger than the version of the store.
    ///
    /// The rows come from a store with a larger version, through a backup or a copy. New items would be
    /// placed before them. Do not enqueue until the version of the store has passed the versionstamp: on
    /// a cluster, run `fdbcli --exec "advanceversion <version>"` with the [commit
    /// version](Versionstamp::commit_version) of the stamp, or a larger one.
    #[error(
        "queue `{queue}` contains an item of version {}, but the store is at version {read_version}: \
         advance the store's version before you enqueue (`advanceversion` in fdbcli)",
        stamp.commit_version(),
        queue = queue_name(queue)
    )]
    StampAhead {
        /// The queue's subspace.
        queue: Subspace,
        /// The versionstamp of the queue's last item.
        stamp: Versionstamp,
        /// The version of the store, as the transaction reads it.
        read_version: i64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_a_queue_as_the_console_does() {
        let queue = Subspace::from(("orders", "a b", 7));
        let errors = [
            Error::ReadAfterWrite {
                queue: queue.clone(),
            },
            Error::ItemTooLarge {
                queue: queue.clone(),
                bytes: 2,
                limit: 1,
            },
            Error::WrongOrder {
                queue: queue.clone(),
                order: Order::Index,
            },
            Error::StampAhead {
                queue: queue.clone(),
                stamp: Versionstamp::INCOMPLETE,
                read_version: 1,
            },
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.contains(r#"`orders/"a b"/7`"#), "{text}");
        }
    }
}
