//! The handle of a queue.

use std::fmt;

use keyspace::codec::{Codec, MessagePack};
use keyspace::names::queue_name;
use keyspace::{Environment, Subspace};

use crate::keys::{Layout, describe_key};
use crate::order::Order;

/// An ordered queue of `T` in a subspace; the codec `C` writes the values.
///
/// Each operation takes a transaction and stages its reads and writes there. The caller commits
/// it, so the operation happens together with everything else in that transaction.
/// To run an operation on its own, call it in a closure of a [`Runner`](keyspace::Runner).
///
/// A handle keeps no state from the store, so cloning it is cheap.
///
/// # Errors
/// An operation that reads items fails with
///
/// - [`ReadAfterWrite`](crate::Error::ReadAfterWrite) in commit order, if its transaction has enqueued into the queue
///   through any handle and has not cleared it since;
/// - [`Corrupt`](keyspace::Error::Corrupt) if a key in the queue's subspace is not the key of an item. A transaction
///   that has set `BypassUnreadable` gets this error instead of `ReadAfterWrite`.
///
/// An operation that takes a value fails with [`ItemTooLarge`](crate::Error::ItemTooLarge),
/// [`PrefixTooLong`](crate::Error::PrefixTooLong) or the codec's [`Encode`](keyspace::Error::Encode), before it stages
/// anything. One that takes an id fails with [`WrongOrder`](crate::Error::WrongOrder) if it is an id of the other
/// order.
///
/// # Cancel safety
/// If the future of an operation on a transaction is dropped before it is ready, the operation has staged nothing but
/// conflict ranges, unless its documentation says otherwise.
pub struct MicroQueue<T, C = MessagePack> {
    pub(crate) layout: Layout<T, C>,
    pub(crate) env: Environment,
}

impl<T, C: Codec<T> + Default> MicroQueue<T, C> {
    /// Returns the queue in `subspace`, in commit order, without reading the store.
    ///
    /// An empty queue is an empty subspace, so there is nothing to create. This does not verify the
    /// order; [`open`](Self::open) does.
    ///
    /// # Examples
    /// A tool that does not know the type or the codec of a queue can use [`Bytes`](keyspace::Bytes) and
    /// [`Raw`](keyspace::codec::Raw): it then sees values as the bytes that the queue's codec wrote. It
    /// must use `new`, since `open` would register the subspace with the codec `Raw`. Before it enqueues,
    /// it must call [`verify_order`](Self::verify_order), and it must enqueue bytes of the queue's codec.
    ///
    /// ```
    /// use keyspace::codec::{Json, Raw};
    /// use keyspace::{Bytes, Database, Runner};
    /// use microqueue::MicroQueue;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let names = &MicroQueue::<String, Json>::new("names");
    /// let name = &"Alice".to_owned();
    /// runner.run(async |tr| names.enqueue(&tr, name).await).await?;
    ///
    /// let stored = MicroQueue::<Bytes, Raw>::new("names");
    /// let items = stored.items(&runner.database().begin()?, None, 10).await?;
    /// assert_eq!(items[0].value.as_ref().unwrap(), &b"\"Alice\""[..]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn new(subspace: impl Into<Subspace>) -> Self {
        Self {
            layout: Layout::new(subspace.into(), Order::Commit, C::default()),
            env: Environment::system(),
        }
    }
}

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Returns the same queue with `codec` for its values. All handles of a queue must use the same
    /// codec.
    ///
    /// ```
    /// use keyspace::codec::Json;
    /// use microqueue::MicroQueue;
    ///
    /// let queue = MicroQueue::<String>::new("jobs").with_codec(Json);
    /// # drop(queue);
    /// ```
    #[must_use]
    pub fn with_codec<Other: Codec<T>>(self, codec: Other) -> MicroQueue<T, Other> {
        MicroQueue {
            layout: self.layout.codec(codec),
            env: self.env,
        }
    }

    /// Sets the order. All handles of a queue must use the same one.
    ///
    /// ```
    /// use microqueue::{MicroQueue, Order};
    ///
    /// let queue = MicroQueue::<String>::new("jobs").with_order(Order::Index);
    /// assert_eq!(queue.order(), Order::Index);
    /// ```
    #[must_use]
    pub fn with_order(mut self, order: Order) -> Self {
        self.layout.order = order;
        self
    }

    /// Sets the environment that supplies call numbers and random suffixes.
    ///
    /// All handles in one process that write to the same queue must share one source of call numbers.
    /// With the default, [`Environment::system`], they do.
    #[must_use]
    pub fn with_environment(mut self, env: Environment) -> Self {
        self.env = env;
        self
    }

    /// Returns the queue's subspace.
    #[must_use]
    pub fn subspace(&self) -> &Subspace {
        &self.layout.subspace
    }

    /// Returns what a key is in this queue, in words. Returns `None` if it is no key of the queue. For the same without
    /// a handle, see [`describe_key`](crate::describe_key).
    ///
    /// ```
    /// use microqueue::MicroQueue;
    ///
    /// let jobs = MicroQueue::<String>::new("jobs");
    /// let item = jobs.subspace().pack(&(1, [7_u8; 20].as_slice()));
    /// assert_eq!(jobs.describe_key(&item), Some("item"));
    /// assert_eq!(jobs.describe_key(b"elsewhere"), None);
    /// ```
    #[must_use]
    pub fn describe_key(&self, key: &[u8]) -> Option<&'static str> {
        describe_key(self.subspace(), key)
    }

    /// Returns the queue's order.
    #[must_use]
    pub fn order(&self) -> Order {
        self.layout.order
    }
}

impl<T, C: Clone> Clone for MicroQueue<T, C> {
    fn clone(&self) -> Self {
        Self {
            layout: self.layout.clone(),
            env: self.env.clone(),
        }
    }
}

impl<T, C> fmt::Debug for MicroQueue<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MicroQueue")
            .field("subspace", &queue_name(&self.layout.subspace))
            .field("order", &self.layout.order)
            .finish_non_exhaustive()
    }
}
