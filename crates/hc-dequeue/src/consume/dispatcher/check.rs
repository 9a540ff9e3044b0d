//! How a session checks its request and collects the answer.

use futures::try_join;
use microqueue::keyspace::Transaction;
use microqueue::{ItemId, StagedId};

use super::Watch;
use crate::consume::policy::Scope;
use crate::items::error::Result;
use crate::protocol::give_back::{GivenBack, Return, give_back};
use crate::protocol::grant::is_answered;
use crate::protocol::request::{
    Precedence, Supply, Wanted, append, collect, is_first, precedence, supply, watch_request,
};
use crate::protocol::{Granted, SessionContext};

/// What a session checks of its request, and what the transaction does if there is an answer.
#[derive(Clone, Copy)]
pub(in crate::consume) struct Check<'a> {
    pub(in crate::consume) request: ItemId,
    pub(in crate::consume) scope: Scope,
    /// The items to give back with the answer.
    pub(in crate::consume) returns: &'a [Return],
    /// The size of the request to register with the answer, if any.
    pub(in crate::consume) next: Option<Wanted>,
}

/// The result of collecting an answer.
pub(in crate::consume) struct Collected {
    /// `None` if the request was not answered.
    pub(in crate::consume) items: Option<Vec<Granted>>,
    /// The results of the items that were given back.
    pub(in crate::consume) given: Vec<GivenBack>,
    /// The request that was registered in the same transaction.
    pub(in crate::consume) next: Option<StagedId>,
}

/// Stages the collection of an answer, the return of items, and the registration of the next request. A session whose
/// consumers ask again needs only one commit for all of this.
pub(in crate::consume) async fn collect_and_register(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    check: Check<'_>,
) -> Result<Collected> {
    let (items, (given, changes)) = try_join!(
        collect(tr, context, &check.request),
        give_back(tr, context, check.returns)
    )?;
    changes.stage(tr, context.keys);
    let next = match check.next {
        // This is safe even if the session is dead: it is not removed while it has a grant, and the session that
        // removes it also removes its requests.
        Some(wanted) if items.is_some() => Some(append(tr, context, wanted).await?),
        _ => None,
    };
    Ok(Collected { items, given, next })
}

/// The result of a check.
pub(in crate::consume) enum Checked {
    /// The request was answered, and the answer was collected.
    Answered(Collected),
    /// It was not answered, and another session has removed it.
    Gone,
    Waits(WaitingRequest),
}

/// A request that is waiting.
pub(in crate::consume) struct WaitingRequest {
    pub(in crate::consume) is_first: bool,
    /// Whether there are items, if that was read.
    pub(in crate::consume) supply: Option<Supply>,
    /// Which request is the first, if that was read.
    pub(in crate::consume) precedence: Option<Precedence>,
    pub(in crate::consume) watch: Watch,
}

/// Checks a request: collects the answer if there is one, and otherwise sets a watch on the keys that may change this.
pub(in crate::consume) async fn check(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    check: Check<'_>,
) -> Result<Checked> {
    let keys = context.keys;
    let session = context.session;
    let request = &check.request;
    // Read first, since usually nothing else needs to be read.
    if is_answered(tr, keys, session, request).await? {
        let collected = collect_and_register(tr, context, check).await?;
        return Ok(Checked::Answered(collected));
    }
    let is_first = match check.scope {
        Scope::Answer => false,
        Scope::First | Scope::Precedence => match is_first(tr, keys, request).await? {
            Some(is_first) => is_first,
            None => return Ok(Checked::Gone),
        },
    };
    let watch = Box::pin(watch_request(tr, keys, session, request, is_first));
    let (supply, precedence) = match check.scope {
        _ if is_first => (Some(supply(tr, context).await?), None),
        // The session with the first request is left time to lead.
        Scope::Answer | Scope::First => (None, None),
        Scope::Precedence => {
            let both = try_join!(supply(tr, context), precedence(tr, keys, request))?;
            (Some(both.0), Some(both.1))
        }
    };
    Ok(Checked::Waits(WaitingRequest {
        is_first,
        supply,
        precedence,
        watch,
    }))
}
