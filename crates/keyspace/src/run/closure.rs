//! What the retry loop needs of a closure, whatever its types, so that the loop is compiled once.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;

use super::Tx;
use super::operation::Failure;
use crate::error::{Code, Error};
use crate::store::StoreTransaction;
use crate::transaction::{Commit, Transaction};

/// A future of one call. It is dropped before the next use of the closure.
pub(super) type Call<'a> = Pin<Box<dyn Future<Output = Result<(), Option<Code>>> + Send + 'a>>;

/// A closure of any type, with the results of its calls.
pub(super) trait AnyClosure: Send {
    /// Calls the closure and holds its result until the next call. If that is an error, fails with its code.
    fn call(&mut self, tx: Tx<StoreTransaction>) -> Call<'_>;

    /// Keeps the value of the last call, because the outcome of the attempt's commit is unknown.
    fn keep(&mut self, attempt: u32);

    /// Drops the result of the last call.
    fn discard(&mut self);

    /// Makes the value that was kept of an attempt the result. Returns whether there is one.
    fn restore(&mut self, attempt: u32) -> bool;
}

/// A closure on transactions of the type `T`.
pub(super) struct Closure<F, T, R, E> {
    function: F,
    /// Finds the code in an error of the closure.
    code_of: fn(&E) -> Option<Code>,
    result: Option<Result<R, E>>,
    /// The values of the attempts whose commit has an unknown outcome, by the attempt's number.
    kept: Vec<(u32, R)>,
    transaction: PhantomData<fn(T)>,
}

impl<F, T, R, E: From<Error>> Closure<F, T, R, E> {
    pub(super) fn new(function: F, code_of: fn(&E) -> Option<Code>) -> Self {
        Self {
            function,
            code_of,
            result: None,
            kept: Vec::new(),
            transaction: PhantomData,
        }
    }

    /// Returns the result of the operation.
    pub(super) fn into_result(self, outcome: Result<Commit, Failure>) -> Result<(R, Commit), E> {
        match (outcome, self.result) {
            (Ok(commit), Some(Ok(value))) => Ok((value, commit)),
            (Err(Failure::Closure(_)), Some(Err(error))) => Err(error),
            (Err(Failure::Store(error)), _) => Err(error.into()),
            _ => unreachable!("the outcome is that of the last result"),
        }
    }
}

impl<F, Fut, T, R, E> AnyClosure for Closure<F, T, R, E>
where
    F: Fn(Tx<T>) -> Fut + Send + Sync,
    Fut: Future<Output = Result<R, E>> + Send,
    T: Transaction,
    R: Send,
    E: Send,
{
    fn call(&mut self, tx: Tx<StoreTransaction>) -> Call<'_> {
        self.result = None;
        Box::pin(async move {
            let result = (self.function)(tx.typed()).await;
            let ended = match &result {
                Ok(_) => Ok(()),
                Err(error) => Err((self.code_of)(error)),
            };
            self.result = Some(result);
            ended
        })
    }

    fn keep(&mut self, attempt: u32) {
        if let Some(Ok(value)) = self.result.take() {
            self.kept.push((attempt, value));
        }
    }

    fn discard(&mut self) {
        self.result = None;
    }

    fn restore(&mut self, attempt: u32) -> bool {
        let Some(index) = self.kept.iter().position(|(number, _)| *number == attempt) else {
            return false;
        };
        let (_, value) = self.kept.swap_remove(index);
        self.result = Some(Ok(value));
        true
    }
}
