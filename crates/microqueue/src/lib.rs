//! Keeps ordered items in a subspace of a transactional store, as FoundationDB's *Queues* recipe does:
//! enqueues never conflict, and items leave in order.
//!
//! # What it guarantees
//!
//! - Any number of transactions can enqueue at the same time without conflicting.
//! - Items leave in order. In [`Order::Commit`] this is the order of commits, then of calls within a
//!   transaction. In [`Order::Index`] it is the order of the recipe: items that were enqueued at the same
//!   time leave in random order.
//! - Exactly one committed transaction dequeues each item. If two transactions take the same item, one of
//!   them fails with a conflict.
//! - Operations compose: one transaction can work on several queues, on one queue through several
//!   handles, and on the application's own keys.
//!
//! # Key schema
//!
//! | order | key | value |
//! |---|---|---|
//! | [`Order::Commit`] | `(queue, versionstamp, call)` | format byte 01, the codec's bytes |
//! | [`Order::Index`] | `(queue, index, 20 random bytes)` | the codec's bytes |
//!
//! Keys are tuples under the queue's [`Subspace`](keyspace::Subspace). A
//! [`Codec`](keyspace::codec::Codec) writes the values. The pair `(versionstamp, call)` or `(index,
//! random bytes)` is the item's [id](ItemId). Index order matches FoundationDB's recipe byte for byte:
//! the Python recipe can share a queue that uses [`Raw`](keyspace::codec::Raw), and the Java recipe one
//! that uses [`Tuple`](keyspace::codec::Tuple) with one element.
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
//! let inbox = &inbox;
//! let outbox = &outbox;
//! let name = &"Alice".to_owned();
//! runner.run(|tr| async move { inbox.enqueue(&tr, name).await }).await?;
//!
//! // One commit removes the item from one queue and adds the answer to the other.
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
//! let greeting = runner.run(|tr| async move { outbox.dequeue(&tr).await }).await?;
//! assert_eq!(greeting.unwrap().value, "Hello, Alice!");
//! assert!(runner.run(|tr| async move { inbox.is_empty(&tr).await }).await?);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # What the caller must do
//!
//! - Use the same order and codec for every handle of a queue, since neither is stored. A handle that
//!   reads an item written in another order or codec fails with [`Corrupt`](keyspace::Error::Corrupt) and
//!   changes nothing.
//! - If a transaction both reads and enqueues into one queue in commit order, read first. A read after an
//!   enqueue fails with [`Error::ReadAfterWrite`].
//! - If the rows of a queue in commit order may come from a backup or from another store, open the queue
//!   with [`MicroQueue::open`], or call [`MicroQueue::verify_order`]. If the version of this store is
//!   smaller than the versionstamps of the items, it would place new items before the old ones. Both
//!   methods then return [`Error::StampAhead`].
//! - Expect the code around a composed operation to run more than once. Commit it with
//!   [`Runner::run`](keyspace::run::Runner::run), or stage a [`Receipt`](keyspace::ledger::Receipt) in
//!   your own retry loop. Without either, a transaction whose outcome is unknown may happen twice.
//!
//! # What it never does
//!
//! - It touches no key outside the queue's subspace, except in the registry of ids, where `open` and
//!   `open_with` register the queue, and in the ledger of a runner.
//! - A method that takes a transaction never commits, retries, waits or spawns a task.
//! - No operation polls. To wait for items, watch a key that enqueuing transactions write.
//!
//! # Ordering and delivery
//!
//! | operation | reads | writes | fails with a conflict if, since its read version, |
//! |---|---|---|---|
//! | `enqueue`, `enqueue_all` | nothing; in index order the last item, by snapshot | the new keys | never |
//! | `dequeue`, `dequeue_batch` | from the start of the queue to the last item taken | from the first item taken to the last | another transaction took one of these items |
//! | the same, on an empty queue | the whole queue | nothing | another transaction enqueued, and this one writes anything |
//! | `peek`, `is_empty` | as `dequeue` | nothing | as `dequeue`, if this transaction writes anything |
//! | `items` | from `after` to the last item returned, or to the end | nothing | the same, for the page |
//! | `verify_order` | the last item, by snapshot | nothing | never |
//! | `clear` | nothing | the whole queue | never |
//! | `snapshot`, `count_up_to` | the first items, by snapshot | nothing | never |
//! | `get`, `remove`, `insert` | the item's key (not `insert`) | the item's key (not `get`) | another transaction removed the item |
//!
//! In commit order every read except `get` also reads one key that only `clear` writes. In index order a new item may
//! get the same index as an existing one and sort before it, among items that were already read. That is
//! a conflict, too.
//!
//! A consumer that dequeues an item and acts on it in the same transaction acts exactly once. A consumer
//! that commits the dequeue first acts at most once. Consumers of one queue conflict at its head, so a
//! few consumers that take batches are faster than many that take single items. For many consumers, use
//! the crate `hc-dequeue`.
//!
//! # Limits
//!
//! - A value has up to 100,000 bytes, including the format byte in commit order. A larger one fails with
//!   [`Error::ItemTooLarge`].
//! - The prefix of the subspace has up to 9,949 bytes. A longer one fails with [`Error::PrefixTooLong`].
//! - A transaction has up to 10,000,000 bytes and takes up to five seconds. Beyond that it fails with
//!   `transaction_too_large` or `transaction_too_old`. Within these limits it may contain any number of
//!   enqueues.
//!
//! # Further reading
//!
//! - [Queues](https://apple.github.io/foundationdb/queues.html), FoundationDB's recipe.
//! - [Versionstamps](https://apple.github.io/foundationdb/developer-guide.html#versionstamps) and
//!   conflict ranges in FoundationDB's developer guide.

pub mod blocks;
mod by_id;
mod dequeue;
mod enqueue;
mod error;
mod item;
mod keys;
mod order;
mod queue;
mod read;
mod verify;

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
