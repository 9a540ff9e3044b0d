//! Handlers: what an application does with items.

use std::future::Future;

use microqueue::keyspace::{Transaction, Tx};

use crate::consume::delivery::Delivery;
use crate::work::outcome::IntoOutcome;

/// Handles deliveries outside a transaction, for [`Queue::work_by`](crate::Queue::work_by) and
/// [`Handlers::work`](crate::Handlers::work).
///
/// A closure that names the type of the delivery is a handler: `async |mail: Delivery<Mail>| ..`. A type with state
/// implements the trait, and its handler borrows the state:
///
/// ```
/// use hc_dequeue::{Delivery, Handler};
///
/// struct Mailer {
///     sender: String,
/// }
///
/// impl Handler<String> for Mailer {
///     type Output = std::io::Result<()>;
///
///     async fn handle(&self, mail: Delivery<String>) -> Self::Output {
///         println!("from {}: {}", self.sender, mail.value());
///         Ok(())
///     }
/// }
/// # drop(Mailer { sender: String::new() });
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle deliveries of `{T}`",
    note = "a closure must name the type: `async |job: Delivery<{T}>| ..`",
    note = "its future must be `Send`, and return `()`, an `Outcome`, or a `Result` of one of them"
)]
pub trait Handler<T>: Send + Sync + 'static {
    /// What a call returns: `()`, an [`Outcome`](crate::Outcome), or a `Result` of one of them.
    type Output: IntoOutcome + Send + 'static;

    /// Handles a delivery.
    fn handle(&self, delivery: Delivery<T>) -> impl Future<Output = Self::Output> + Send;
}

impl<T, F, Fut> Handler<T> for F
where
    F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome + Send + 'static> + Send,
{
    type Output = Fut::Output;

    fn handle(&self, delivery: Delivery<T>) -> impl Future<Output = Self::Output> + Send {
        self(delivery)
    }
}

/// Handles deliveries in the transactions that complete their items, for
/// [`Queue::process_by`](crate::Queue::process_by) and [`Handlers::process`](crate::Handlers::process).
///
/// A closure that names the type of the delivery is a handler: `async |tr: Tx<_>, payment: Delivery<Payment>| ..`. A
/// type with state implements the trait:
///
/// ```
/// use hc_dequeue::keyspace::{Transaction, Tx};
/// use hc_dequeue::{Delivery, TransactionHandler};
///
/// struct Ledger {
///     prefix: Vec<u8>,
/// }
///
/// impl<Tr: Transaction> TransactionHandler<String, Tr> for Ledger {
///     type Output = ();
///
///     async fn handle(&self, tr: Tx<Tr>, entry: Delivery<String>) {
///         let key = [&self.prefix, entry.value().as_bytes()].concat();
///         tr.set(&key, b"");
///     }
/// }
/// # drop(Ledger { prefix: Vec::new() });
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle deliveries of `{T}` in a transaction",
    note = "a closure must name the type: `async |tr: Tx<_>, job: Delivery<{T}>| ..`",
    note = "its future must be `Send`, and return `()`, an `Outcome`, or a `Result` of one of them"
)]
pub trait TransactionHandler<T, Tr>: Send + Sync + 'static {
    /// What a call returns: `()`, an [`Outcome`](crate::Outcome), or a `Result` of one of them.
    type Output: IntoOutcome + Send + 'static;

    /// Handles a delivery in a transaction, which the worker commits.
    fn handle(
        &self,
        tr: Tx<Tr>,
        delivery: Delivery<T>,
    ) -> impl Future<Output = Self::Output> + Send;
}

impl<T, Tr, F, Fut> TransactionHandler<T, Tr> for F
where
    Tr: Transaction,
    F: Fn(Tx<Tr>, Delivery<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome + Send + 'static> + Send,
{
    type Output = Fut::Output;

    fn handle(
        &self,
        tr: Tx<Tr>,
        delivery: Delivery<T>,
    ) -> impl Future<Output = Self::Output> + Send {
        self(tr, delivery)
    }
}
