//! The handle.

use std::fmt;

use keyspace::codec::{Codec, MessagePack};
use keyspace::{Environment, Subspace};

use crate::keys::Layout;
use crate::order::Order;

/// An ordered queue of `T` in a subspace, stored as the codec `C` writes them.
///
/// Every operation takes a transaction, stages its work there and leaves the commit to the
/// transaction's owner, so that it happens together with whatever else the transaction does.
/// [`committing`](Self::committing) gives the operations that commit by themselves.
///
/// A handle holds nothing of the store: clone it freely.
pub struct MicroQueue<T, C = MessagePack> {
    pub(crate) layout: Layout<T, C>,
    pub(crate) env: Environment,
}

impl<T, C: Codec<T> + Default> MicroQueue<T, C> {
    /// Returns the queue in `subspace`, in commit order. A queue without items is an empty
    /// subspace: there is nothing to create. Reads nothing: [`open`](Self::open) verifies the order.
    #[must_use]
    pub fn new(subspace: Subspace) -> Self {
        Self::with_order(subspace, Order::Commit)
    }

    /// Returns the queue in `subspace`, in an order of choice.
    #[must_use]
    pub fn with_order(subspace: Subspace, order: Order) -> Self {
        Self {
            layout: Layout::new(subspace, order, C::default()),
            env: Environment::system(),
        }
    }
}

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Returns the same queue with its values as `codec` writes them. All handles on a queue must name
    /// the same codec.
    ///
    /// ```
    /// use keyspace::Subspace;
    /// use keyspace::codec::Json;
    /// use microqueue::MicroQueue;
    ///
    /// let queue = MicroQueue::<String>::new(Subspace::from("jobs")).codec(Json);
    /// # drop(queue);
    /// ```
    #[must_use]
    pub fn codec<Other: Codec<T>>(self, codec: Other) -> MicroQueue<T, Other> {
        MicroQueue {
            layout: self.layout.codec(codec),
            env: self.env,
        }
    }

    /// Takes call numbers and random suffixes from `env`.
    ///
    /// All handles that write into one queue in one process must share the source of their call
    /// numbers. The default, [`Environment::system`], does.
    #[must_use]
    pub fn environment(mut self, env: Environment) -> Self {
        self.env = env;
        self
    }

    /// Returns the queue's subspace.
    #[must_use]
    pub fn subspace(&self) -> &Subspace {
        &self.layout.subspace
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
            .field("subspace", &self.layout.subspace.to_string())
            .field("order", &self.layout.order)
            .finish_non_exhaustive()
    }
}
