//! One operation and its attempts. The [ledger's](crate::ledger) documentation explains the order of the
//! steps.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::closure::AnyClosure;
use super::{Attempt, RunOptions, Tx};
use crate::contract::error::{Code, Error, Result};
use crate::contract::limits;
use crate::contract::transaction::{
    Commit, Database, OwnedTransaction, Transaction, TransactionOption,
};
use crate::ledger::{EarlierCommit, Receipt};
use crate::stores::store::{Store, StoreTransaction};

pub(super) struct Operation<'a> {
    db: &'a Store,
    options: &'a RunOptions,
    closure: &'a mut dyn AnyClosure,
    deadline: Option<Duration>,
    receipt: Option<Receipt>,
    tx: Tx<StoreTransaction>,
    attempt: Attempt,
    /// The numbers of the attempts whose values the closure keeps.
    kept: Vec<u32>,
    /// The error that the operation will return once a commit of the slot alone has succeeded. While it is
    /// set, attempts write the slot and nothing else.
    refusal: Option<Failure>,
}

/// The end of an attempt: break with the operation's outcome, or continue after a failure.
type AttemptEnd = ControlFlow<Result<Commit, Failure>, Failure>;

/// The reason why an attempt failed.
enum Failure {
    /// The closure returned an error, which has this code. The closure still holds the error.
    Closure(Option<Code>),
    Store(Error),
}

impl<'a> Operation<'a> {
    /// Begins an operation. Without a receipt it may commit more than once.
    pub(super) fn begin(
        db: &'a Store,
        options: &'a RunOptions,
        receipt: Option<Receipt>,
        closure: &'a mut dyn AnyClosure,
    ) -> Result<Self> {
        let now = options.environment.now();
        let deadline = options.time_limit.map(|limit| now.saturating_add(limit));
        Ok(Self {
            db,
            options,
            closure,
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

    /// Makes attempts until there is a result, which the closure holds. Returns the commit, or `None` if the
    /// result is an error.
    pub(super) async fn run(mut self) -> Result<Option<Commit>> {
        match self.outcome().await {
            Ok(commit) => Ok(Some(commit)),
            Err(Failure::Closure(_)) => Ok(None),
            Err(Failure::Store(error)) => Err(error),
        }
    }

    async fn outcome(&mut self) -> Result<Commit, Failure> {
        loop {
            let failure = match self.attempt().await {
                ControlFlow::Break(outcome) => return outcome,
                ControlFlow::Continue(failure) => failure,
            };
            let code = failure.code();
            let stop = match code.filter(|code| code.is_retryable()) {
                Some(code) => match self.retry(code).await {
                    Ok(()) => continue,
                    Err(stop) if stop.code() == Some(code) => failure,
                    Err(stop) => Failure::Store(self.reason(stop)),
                },
                None if self.is_in_doubt() && self.refusal.is_none() => {
                    self.refusal = Some(failure);
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

    async fn attempt(&mut self) -> AttemptEnd {
        self.attempt.number += 1;
        self.tx.begin_attempt(self.attempt);
        if let Some(receipt) = &self.receipt {
            match receipt.resolve(&self.tx).await {
                Ok(None) => {}
                Ok(Some(earlier)) => return ControlFlow::Break(self.answer_of(earlier)),
                Err(swept @ Error::OutcomeUnknown { .. }) => {
                    return ControlFlow::Break(Err(Failure::Store(swept)));
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
        let called = self.closure.call(self.tx.clone()).await;
        if let Err(handle_kept) = self.tx.reclaim() {
            self.closure.discard();
            return ControlFlow::Continue(Failure::Store(handle_kept));
        }
        if let Err(code) = called {
            return ControlFlow::Continue(Failure::Closure(code));
        }
        match self.commit().await {
            Ok(commit) => ControlFlow::Break(Ok(commit)),
            Err(error) => {
                if leaves_commit_unknown(&error) {
                    self.closure.keep();
                    self.kept.push(self.attempt.number);
                } else {
                    self.closure.discard();
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

    /// Returns the outcome of the attempt that has committed.
    fn answer_of(&mut self, earlier: EarlierCommit) -> Result<Commit, Failure> {
        if let Some(index) = self.kept.iter().position(|it| *it == earlier.attempt) {
            self.closure.restore(index);
            return Ok(Commit {
                version: earlier.versionstamp.commit_version(),
                versionstamp: Some(earlier.versionstamp),
            });
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
    fn give_up(&mut self, reason: Failure) -> Failure {
        let outcome_in_doubt = (self.receipt.as_ref()).is_some_and(Receipt::is_outcome_in_doubt);
        match self.refusal.take() {
            _ if outcome_in_doubt => self.unknown(Some(reason)),
            Some(refusal) => refusal,
            None => reason,
        }
    }

    fn unknown(&self, reason: Option<Failure>) -> Failure {
        let cause = reason.and_then(|reason| match reason {
            Failure::Store(error) => Some(error),
            Failure::Closure(code) => code.map(Error::Store),
        });
        Failure::Store(Error::OutcomeUnknown {
            attempts: self.attempt.number,
            cause: cause.map(Arc::new),
        })
    }

    fn is_in_doubt(&self) -> bool {
        self.receipt.as_ref().is_some_and(Receipt::is_in_doubt)
    }
}

impl Failure {
    fn code(&self) -> Option<Code> {
        match self {
            Self::Closure(code) => *code,
            Self::Store(error) => error.code(),
        }
    }
}

fn leaves_commit_unknown(error: &Error) -> bool {
    error.code().is_some_and(Code::leaves_commit_unknown)
}

fn begin_transaction(
    db: &Store,
    options: &RunOptions,
    deadline: Option<Duration>,
) -> Result<Tx<StoreTransaction>> {
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
