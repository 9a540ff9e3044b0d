//! Ordered items in a subspace: enqueues that never conflict, FIFO dequeue (FoundationDB's
//! *Queues* recipe).
//!
//! # What it guarantees
//!
//! - Any number of transactions enqueue at the same time and none of them conflicts.
//! - Items leave in order. In [`Order::Commit`] that is the order of commits, and of calls within
//!   a transaction; in [`Order::Index`] it is the recipe's: items that were enqueued at the same
//!   time are in random order.
//! - Each item is dequeued by exactly one transaction that commits. Of two that take the same item
//!   one fails with a conflict.
//! - Everything composes: several queues, several handles of one queue and the application's own
//!   keys, in one transaction, by whoever committed.
//! - The operations of [`CommittingQueue`] happen exactly once, also when the outcome of a commit
//!   is unknown.
//!
//! # Key schema
//!
//! | order | key | value |
//! |---|---|---|
//! | [`Order::Commit`] | `(queue, versionstamp, call)` | format byte 01, the codec's bytes |
//! | [`Order::Index`] | `(queue, index, 20 random bytes)` | the codec's bytes |
//!
//! Keys are tuples under the queue's [`Subspace`](keyspace::Subspace); values are written by a
//! [`Codec`](keyspace::codec::Codec). The pair `(versionstamp, call)` or `(index, random bytes)` is
//! the item's [id](ItemId). Index order is FoundationDB's recipe byte for byte: with
//! [`Raw`](keyspace::codec::Raw) a queue is shared with the Python recipe, with
//! [`Tuple`](keyspace::codec::Tuple) and one element with the Java recipe.
//!
//! # Example
//!
//! ```
//! use keyspace::Subspace;
//! use keyspace::run::Runner;
//! use microqueue::{Error, MicroQueue};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let runner = Runner::new(keyspace::open("memory:")?);
//! let inbox = MicroQueue::<String>::new(Subspace::from("inbox"));
//! let outbox = MicroQueue::<String>::new(Subspace::from("outbox"));
//!
//! // By itself: one call, one commit.
//! inbox.committing(&runner).enqueue(&"Alice".to_owned()).await?;
//!
//! // Composed: the item leaves one queue and its answer enters the other in one commit.
//! let (inbox, outbox) = (&inbox, &outbox);
//! runner
//!     .run(|tr| async move {
//!         if let Some(name) = inbox.dequeue(&tr).await? {
//!             let greeting = format!("Hello, {}!", name.value);
//!             outbox.enqueue(&tr, &greeting).await?;
//!         }
//!         Ok::<_, Error>(())
//!     })
//!     .await?;
//!
//! let greeting = outbox.committing(&runner).dequeue().await?.unwrap();
//! assert_eq!(greeting.value, "Hello, Alice!");
//! assert!(inbox.committing(&runner).is_empty().await?);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # What the caller must do
//!
//! - Name the same order and codec at every handle of a queue: they are not stored. A handle that
//!   meets another's items fails with [`Corrupt`](keyspace::Error::Corrupt) and changes nothing.
//! - Read first and enqueue then, if a transaction does both to one queue in commit order. The
//!   other way round is refused with [`Error::ReadAfterWrite`].
//! - Open a queue in commit order with [`MicroQueue::open`], or call [`MicroQueue::verify_order`],
//!   when its rows may come from another store, by a backup or a copy. A store whose version is
//!   behind the items' stamps would put new items before them; that is [`Error::StampAhead`].
//! - Expect the code around a composed operation to run more than once, and have it committed by
//!   [`Runner::run`](keyspace::run::Runner::run), or stage a
//!   [`Receipt`](keyspace::ledger::Receipt) in a retry loop of one's own. Without either, a
//!   transaction whose outcome is unknown may happen twice.
//!
//! # What it never does
//!
//! It touches no key outside the queue's subspace, except in the registry of ids that `open_with` is given
//! and in the ledger of a runner. A method that takes a transaction never commits,
//! retries, waits or spawns. No operation polls: to wait for items, watch a key that enqueuing transactions
//! write.
//!
//! # Ordering and delivery
//!
//! | operation | reads | writes | fails with a conflict if, since its read version, |
//! |---|---|---|---|
//! | `enqueue`, `enqueue_all` | nothing; in index order the last item, by snapshot | the new keys | never |
//! | `dequeue`, `dequeue_batch` | from the begin to the last item taken | from the first item taken to the last | another took one of these items |
//! | the same, on an empty queue | the whole queue | nothing | another enqueued, if the transaction writes anything |
//! | `peek`, `is_empty` | as `dequeue` | nothing | as `dequeue`, if the transaction writes anything |
//! | `items` | from `after` to the last item returned, or to the end | nothing | the same, for the page |
//! | `verify_order` | the last item, by snapshot | nothing | never |
//! | `clear` | nothing | the whole queue | never |
//! | `snapshot` | the first items, by snapshot | nothing | never |
//! | `get`, `remove`, `insert` | the item's key (not `insert`) | the item's key (not `get`) | another removed the item |
//!
//! In commit order every read adds one more key, which only `clear` writes. In index order an item
//! may tie with one that is there and land among items already read, which is a conflict too.
//!
//! A consumer that dequeues, acts and commits in one transaction acts exactly once for each item.
//! One that commits the dequeue first acts at most once. Consumers of one queue conflict with each
//! other at its head, so batches serve better than many consumers; the crate `hc-dequeue` is for
//! those.
//!
//! # Limits
//!
//! - A value takes up to 100,000 bytes, in commit order with the format byte;
//!   [`Error::ItemTooLarge`] otherwise.
//! - The prefix of the subspace takes up to 9,949 bytes; [`Error::PrefixTooLong`] otherwise.
//! - A transaction takes up to 10,000,000 bytes and five seconds: `transaction_too_large` and
//!   `transaction_too_old` otherwise. In a transaction there may be any number of enqueues that
//!   fits.
//!
//! # Further reading
//!
//! - [Queues](https://apple.github.io/foundationdb/queues.html), the recipe.
//! - [Versionstamps](https://apple.github.io/foundationdb/developer-guide.html#versionstamps) and
//!   conflict ranges in FoundationDB's developer guide.

pub mod blocks;
mod by_id;
mod committing;
mod dequeue;
mod enqueue;
mod error;
mod item;
mod keys;
mod order;
mod queue;
mod read;
mod verify;

pub use crate::committing::CommittingQueue;
pub use crate::error::{Error, Result};
pub use crate::item::{Item, ItemId, Listed, SUFFIX_BYTES, StagedId};
pub use crate::keys::MAX_PREFIX_BYTES;
pub use crate::order::Order;
pub use crate::queue::MicroQueue;
pub use keyspace;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// Compiles and runs the example of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/microqueue.md")]
mod guide {}

/// Compiles and runs the example of the repository's README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod front_page {}
