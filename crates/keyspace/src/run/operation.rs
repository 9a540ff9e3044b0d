//! One operation and its attempts. The [ledger's](crate::ledger) documentation explains the order of the
//! steps.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::{Attempt, RunOptions, Tx};
use crate::error::{Code, Error, Result};
use crate::ledger::{EarlierCommit, Receipt};
use crate::limits;
use crate::transaction::{Commit, Database, OwnedTransaction, Transaction, TransactionOption};

pub(super) struct Operation<'a, D: Database, R, E> {
    db: &'a D,
    options: &'a RunOptions,
    /// Finds the code in an error of the closure.
    code_of: fn(&E) -> Option<Code>,
    deadline: Option<Duration>,
    receipt: Option<Receipt>,
    tx: Tx<D::Transaction>,
    attempt: Attempt,
    /// The closure's results in the attempts whose commit has an unknown outcome, by the attempt's number.
    kept: Vec<(u32, R)>,
    /// The error that the operation will return once a commit of the slot alone has succeeded. While it is
    /// set, attempts write the slot and nothing else.
    refusal: Option<E>,
}

/// The end of an attempt: break with the operation's result, or continue after a failure.
type AttemptEnd<R, E> = ControlFlow<Result<(R, Commit), E>, Failure<E>>;

/// The reason why an attempt failed.
enum Failure<E> {
    Closure(E),
    Store(Error),
}

impl<'a, D, R, E> Operation<'a, D, R, E>
where
    D: Database,
    R: Send,
    E: From<Error> + Send,
{
    /// Begins an operation. Without a receipt it may commit more than once.
    pub(super) fn begin(
        db: &'a D,
        options: &'a RunOptions,
        receipt: Option<Receipt>,
        code_of: fn(&E) -> Option<Code>,
    ) -> Result<Self> {
        let now = options.environment.now();
        let deadline = options.time_limit.map(|limit| now.saturating_add(limit));
        Ok(Self {
            db,
            options,
            code_of,
            deadline,
            receipt,
            tx: begin_transaction(db, options, deadline)?,
            attempt: Attempt {
                number: 0,
                after: None,
            },
            kept: Vec::new(),
            refusal: None,
        })
    }

    /// Makes attempts until there is a result.
    pub(super) async fn run<F, Fut>(mut self, closure: F) -> Result<(R, Commit), E>
    where
        F: Fn(Tx<D::Transaction>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<R, E>> + Send,
    {
        loop {
            let failure = match self.attempt(&closure).await {
                ControlFlow::Break(answer) => return answer,
                ControlFlow::Continue(failure) => failure,
            };
            let code = failure.code(self.code_of);
            let stop = match code.filter(|code| code.is_retryable()) {
                Some(code) => match self.retry(code).await {
                    Ok(()) => continue,
                    Err(stop) if stop.code() == Some(code) => failure,
                    Err(stop) => Failure::Store(self.reason(stop)),
                },
                None if self.is_in_doubt() && self.refusal.is_none() => {
                    self.refusal = Some(failure.into_error());
                    match begin_transaction(self.db, self.options, self.deadline) {
                        Ok(tx) => {
                            self.tx = tx;
                            continue;
                        }
                        Err(stop) => Failure::Store(stop),
                    }
                }
                None => match failure {
                    Failure::Store(stop) => Failure::Store(self.reason(stop)),
                    closure => closure,
                },
            };
            return Err(self.give_up(stop));
        }
    }

    async fn attempt<F, Fut>(&mut self, closure: &F) -> AttemptEnd<R, E>
    where
        F: Fn(Tx<D::Transaction>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<R, E>> + Send,
    {
        self.attempt.number += 1;
        self.tx.begin_attempt(self.attempt);
        if let Some(receipt) = &self.receipt {
            match receipt.resolve(&self.tx).await {
                Ok(None) => {}
                Ok(Some(earlier)) => return ControlFlow::Break(self.answer_of(earlier)),
                Err(swept @ Error::OutcomeUnknown { .. }) => {
                    return ControlFlow::Break(Err(swept.into()));
                }
                Err(error) => return ControlFlow::Continue(Failure::Store(error)),
            }
        }
        if let Some(refusal) = self.refusal.take() {
            return match self.commit().await {
                Ok(_) => ControlFlow::Break(Err(refusal)),
                Err(error) => {
                    self.refusal = Some(refusal);
                    ControlFlow::Continue(Failure::Store(error))
                }
            };
        }
        let answer = closure(self.tx.clone()).await;
        if let Err(handle_kept) = self.tx.reclaim() {
            return ControlFlow::Continue(Failure::Store(handle_kept));
        }
        let value = match answer {
            Ok(value) => value,
            Err(error) => return ControlFlow::Continue(Failure::Closure(error)),
        };
        match self.commit().await {
            Ok(commit) => ControlFlow::Break(Ok((value, commit))),
            Err(error) => {
                if leaves_commit_unknown(&error) {
                    self.kept.push((self.attempt.number, value));
                }
                ControlFlow::Continue(Failure::Store(error))
            }
        }
    }

    /// Stages the slot if it must be written, and commits.
    async fn commit(&mut self) -> Result<Commit> {
        if let Some(receipt) = &self.receipt
            && (self.tx.wrote() || receipt.is_in_doubt())
        {
            receipt.stage(&self.tx)?;
        }
        let result = self.tx.reclaim()?.commit().await;
        match &result {
            Ok(_) => {
                if let Some(receipt) = self.receipt.take() {
                    receipt.complete();
                }
            }
            Err(error) if leaves_commit_unknown(error) => {}
            Err(_) => {
                if let Some(receipt) = &self.receipt {
                    receipt.not_committed();
                }
            }
        }
        result
    }

    /// Returns the result of the attempt that has committed.
    fn answer_of(&mut self, earlier: EarlierCommit) -> Result<(R, Commit), E> {
        let is_earlier = |(number, _): &(u32, R)| *number == earlier.attempt;
        if let Some(index) = self.kept.iter().position(is_earlier) {
            let (_, value) = self.kept.swap_remove(index);
            let commit = Commit {
                version: earlier.versionstamp.commit_version(),
                versionstamp: Some(earlier.versionstamp),
            };
            return Ok((value, commit));
        }
        // The attempt that committed wrote the slot alone.
        Err(self.refusal.take().unwrap_or_else(|| self.unknown(None)))
    }

    /// Waits for FoundationDB's backoff and resets the transaction, within the limits.
    async fn retry(&mut self, code: Code) -> Result<()> {
        let limit = self.options.attempt_limit;
        if limit.is_some_and(|attempts| self.attempt.number >= attempts) {
            return Err(code.into());
        }
        time_left(self.options, self.deadline)?;
        self.attempt.after = Some(code);
        if code == Code::CLUSTER_VERSION_CHANGED {
            // This code is retryable, but `on_error` returns it, so the attempt gets a new transaction.
            self.options
                .environment
                .sleep(limits::INITIAL_BACKOFF)
                .await;
            self.tx = begin_transaction(self.db, self.options, self.deadline)?;
            return Ok(());
        }
        self.tx.reclaim()?.on_error(code.into()).await
    }

    /// Returns the reason why the time ran out, if it is one that an operator can act on.
    fn reason(&self, stop: Error) -> Error {
        let timed_out = stop.code() == Some(Code::TRANSACTION_TIMED_OUT);
        match self.attempt.after {
            Some(Code::DATABASE_LOCKED) if timed_out => Code::DATABASE_LOCKED.into(),
            _ => stop,
        }
    }

    /// Ends the operation without a successful attempt.
    fn give_up(mut self, reason: Failure<E>) -> E {
        let outcome_in_doubt = (self.receipt.as_ref()).is_some_and(Receipt::is_outcome_in_doubt);
        match self.refusal.take() {
            _ if outcome_in_doubt => self.unknown(Some(reason)),
            Some(refusal) => refusal,
            None => reason.into_error(),
        }
    }

    fn unknown(&self, reason: Option<Failure<E>>) -> E {
        let cause = reason.and_then(|reason| match reason {
            Failure::Store(error) => Some(error),
            Failure::Closure(error) => (self.code_of)(&error).map(Error::Store),
        });
        E::from(Error::OutcomeUnknown {
            attempts: self.attempt.number,
            cause: cause.map(Arc::new),
        })
    }

    fn is_in_doubt(&self) -> bool {
        self.receipt.as_ref().is_some_and(Receipt::is_in_doubt)
    }
}

impl<E: From<Error>> Failure<E> {
    fn code(&self, code_of: fn(&E) -> Option<Code>) -> Option<Code> {
        match self {
            Self::Closure(error) => code_of(error),
            Self::Store(error) => error.code(),
        }
    }

    fn into_error(self) -> E {
        match self {
            Self::Closure(error) => error,
            Self::Store(error) => error.into(),
        }
    }
}

fn leaves_commit_unknown(error: &Error) -> bool {
    error.code().is_some_and(Code::leaves_commit_unknown)
}

fn begin_transaction<D: Database>(
    db: &D,
    options: &RunOptions,
    deadline: Option<Duration>,
) -> Result<Tx<D::Transaction>> {
    let tr = db.begin()?;
    if let Some(delay) = options.max_retry_delay {
        tr.set_option(TransactionOption::MaxRetryDelay(delay))?;
    }
    if let Some(time) = time_left(options, deadline)? {
        tr.set_option(TransactionOption::Timeout(time))?;
    }
    Ok(Tx::new(tr))
}

/// Returns the remaining time, or `None` if it is not limited.
fn time_left(options: &RunOptions, deadline: Option<Duration>) -> Result<Option<Duration>> {
    let Some(deadline) = deadline else {
        return Ok(None);
    };
    match deadline.saturating_sub(options.environment.now()) {
        // A transaction would take a timeout of zero for none.
        Duration::ZERO => Err(Code::TRANSACTION_TIMED_OUT.into()),
        time => Ok(Some(time)),
    }
}
