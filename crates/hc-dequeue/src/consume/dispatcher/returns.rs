//! The items that the session will give back.

use microqueue::{ItemId, keyspace};
use tokio::sync::oneshot;

use crate::consume::policy::Returns;
use crate::items::MAX_STEP_ITEMS;
use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::protocol::give_back::{GivenBack, Return};
use crate::session::SessionId;

/// The items to give back, in their order, with the callers that wait for the results.
pub(super) struct PendingReturns(Vec<(Return, Option<oneshot::Sender<Result<()>>>)>);

impl PendingReturns {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn push(&mut self, item: Return, done: Option<oneshot::Sender<Result<()>>>) {
        self.0.push((item, done));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, id: &ItemId) -> bool {
        self.0.iter().any(|(item, _)| item.id == *id)
    }

    /// Returns the fact for the policy.
    pub(super) fn fact(&self) -> Returns {
        if self.0.is_empty() {
            Returns::Nothing
        } else if self.0.iter().any(|(item, _)| item.how.is_granted_next()) {
            Returns::ToFront
        } else {
            Returns::Away
        }
    }

    /// Returns the items that the next transaction gives back. Transactions that take items also give items back: a
    /// caller that completes one item and wants the next one then needs only one commit.
    pub(super) fn next(&self) -> Vec<Return> {
        self.0
            .iter()
            .take(MAX_STEP_ITEMS)
            .map(|(item, _)| item.clone())
            .collect()
    }

    /// Removes the first items, of which these are the results, and answers their callers.
    pub(super) fn finish(&mut self, given: &[GivenBack], keys: &Keys, session: SessionId) {
        for ((returned, done), given) in self.0.drain(..given.len()).zip(given) {
            let outcome = outcome(&returned, given, keys, session);
            if let Some(done) = done {
                // The caller may have gone.
                let _ = done.send(outcome);
            }
        }
    }

    /// Returns the error to all callers. The items stay: they are tried again, which has no effect on those that were
    /// already given back.
    pub(super) fn fail(&mut self, error: &Error) {
        for (_, done) in &mut self.0 {
            if let Some(done) = done.take() {
                let _ = done.send(Err(error.clone()));
            }
        }
    }
}

/// Returns what the caller learns of the result of giving an item back.
fn outcome(returned: &Return, given: &GivenBack, keys: &Keys, session: SessionId) -> Result<()> {
    let queue = &keys.name;
    let item = keys.item_ref(returned.id);
    match given {
        GivenBack::Accepted => Ok(()),
        GivenBack::Dead(letter) => {
            letter.report(keys);
            Ok(())
        }
        // For the caller, an acknowledgement failed; any other way to give up the item has succeeded.
        GivenBack::Cancelled if returned.how.ends() => Err(Error::Cancelled { item }),
        GivenBack::Cancelled => Ok(()),
        GivenBack::Lost => {
            tracing::debug!(queue, %item, "a delivery had been resolved or lost before");
            Err(Error::DeliveryLost { item })
        }
        GivenBack::Unreadable => {
            let key = returned.id.key_in(keys.held(session).subspace());
            let error = keyspace::Error::corrupt(&key, "expected the record of an item");
            tracing::error!(queue, %item, %error, "an item that this session holds does not decode");
            Err(error.into())
        }
    }
}
