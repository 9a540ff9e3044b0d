//! A closure without its types, as the retry loop calls it: so the loop is compiled once.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use pin_project_lite::pin_project;

use super::Tx;
use crate::contract::error::Code;
use crate::contract::transaction::Transaction;
use crate::stores::store::StoreTransaction;

/// A closure of any type, with the results of its calls.
pub(super) trait AnyClosure: Send {
    /// Calls the closure and holds its result until the next call. If that is an error, fails with its code.
    fn call(&mut self, tx: Tx<StoreTransaction>) -> BoxFuture<'_, Result<(), Option<Code>>>;

    /// Keeps the value of the last call after those kept before, because the outcome of its commit is
    /// unknown.
    fn keep(&mut self);

    /// Drops the result of the last call.
    fn discard(&mut self);

    /// Makes a value that was kept the result.
    fn restore(&mut self, index: usize);
}

/// A closure on transactions of the type `T`, which returns a `Fut`.
pub(super) struct Closure<F, Fut, T, R, E> {
    function: F,
    /// Finds the code in an error of the closure.
    code_of: fn(&E) -> Option<Code>,
    result: Option<Result<R, E>>,
    /// The values of the calls whose commits have an unknown outcome.
    kept: Vec<R>,
    types: PhantomData<fn(T) -> Fut>,
}

impl<F, Fut, T, R, E> Closure<F, Fut, T, R, E> {
    pub(super) fn new(function: F, code_of: fn(&E) -> Option<Code>) -> Self {
        Self {
            function,
            code_of,
            result: None,
            kept: Vec::new(),
            types: PhantomData,
        }
    }

    /// Returns the result of the last call, or the one that was restored.
    pub(super) fn into_result(self) -> Result<R, E> {
        self.result.expect("an operation ends after a call")
    }
}

pin_project! {
    /// A call of a closure, which stores its result. It is smaller than an async block, which would hold the
    /// arguments too, and is copied into a box for each call.
    struct Call<'a, Fut, R, E> {
        #[pin]
        future: Fut,
        code_of: fn(&E) -> Option<Code>,
        result: &'a mut Option<Result<R, E>>,
    }
}

impl<Fut, R, E> Future for Call<'_, Fut, R, E>
where
    Fut: Future<Output = Result<R, E>>,
{
    type Output = Result<(), Option<Code>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = this.result.insert(ready!(this.future.poll(cx)));
        Poll::Ready(match result {
            Ok(_) => Ok(()),
            Err(error) => Err((this.code_of)(error)),
        })
    }
}

impl<F, Fut, T, R, E> AnyClosure for Closure<F, Fut, T, R, E>
where
    F: Fn(Tx<T>) -> Fut + Send + Sync,
    Fut: Future<Output = Result<R, E>> + Send,
    T: Transaction,
    R: Send,
    E: Send,
{
    fn call(&mut self, tx: Tx<StoreTransaction>) -> BoxFuture<'_, Result<(), Option<Code>>> {
        self.result = None;
        Box::pin(Call {
            future: (self.function)(tx.typed()),
            code_of: self.code_of,
            result: &mut self.result,
        })
    }

    fn keep(&mut self) {
        if let Some(Ok(value)) = self.result.take() {
            self.kept.push(value);
        }
    }

    fn discard(&mut self) {
        self.result = None;
    }

    fn restore(&mut self, index: usize) {
        let value = self.kept.swap_remove(index);
        self.result = Some(Ok(value));
    }
}
