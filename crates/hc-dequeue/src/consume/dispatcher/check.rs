//! How a session checks its request and collects the answer.

use futures::try_join;
use microqueue::keyspace::Transaction;
use microqueue::{ItemId, StagedId};

use super::Watch;
use crate::consume::policy::Scope;
use crate::items::error::Result;
use crate::protocol::give_back::{Given, Return, give_back};
use crate::protocol::grant::is_answered;
use crate::protocol::request::{
    Precedence, Standing, Supply, append, check_request, collect, precedence, supply, watch_request,
};
use crate::protocol::{Granted, SessionContext};

/// A session's question about its request, and what the transaction does if there is an answer.
#[derive(Clone, Copy)]
pub(super) struct Inquiry<'a> {
    pub(super) request: ItemId,
    pub(super) scope: Scope,
    /// The items to give back with the answer.
    pub(super) returns: &'a [Return],
    /// The size of the request to register with the answer, if any.
    pub(super) next: Option<u32>,
}

/// The result of collecting an answer.
pub(super) struct Collected<T> {
    /// `None` if the request was not answered.
    pub(super) items: Option<Vec<Granted<T>>>,
    /// The results of the items that were given back.
    pub(super) given: Vec<Given>,
    /// The request that was registered in the same transaction.
    pub(super) next: Option<StagedId>,
}

/// Stages the collection of an answer, the return of items, and the registration of the next request. A session whose
/// consumers ask again needs only one commit for all of this.
pub(super) async fn collect_and_ask<T>(
    tr: &impl Transaction,
    context: SessionContext<'_, T>,
    inquiry: Inquiry<'_>,
) -> Result<Collected<T>> {
    let (items, given) = try_join!(
        collect(tr, context, &inquiry.request),
        give_back(tr, context, inquiry.returns)
    )?;
    let next = match inquiry.next {
        // This is safe even if the session is dead: it is not removed while it has a grant, and the session that
        // removes it also removes its requests.
        Some(wanted) if items.is_some() => Some(append(tr, context, wanted).await?),
        _ => None,
    };
    Ok(Collected { items, given, next })
}

/// The state of a session's request.
pub(super) enum RequestView<T> {
    /// It was answered, and the answer was collected.
    Granted(Collected<T>),
    Gone,
    Waits(Waits),
}

/// A request that is waiting.
pub(super) struct Waits {
    pub(super) is_first: bool,
    /// Whether there are items, if that was read.
    pub(super) supply: Option<Supply>,
    /// Which request is the first, if that was read.
    pub(super) precedence: Option<Precedence>,
    pub(super) watch: Watch,
}

/// Reads the state of a request, sets a watch on the keys that may change it, and collects the answer if there is
/// one.
pub(super) async fn view_request<T>(
    tr: &impl Transaction,
    context: SessionContext<'_, T>,
    inquiry: Inquiry<'_>,
) -> Result<RequestView<T>> {
    let (keys, session, request) = (context.keys, context.session, &inquiry.request);
    let watch = |is_first| Box::pin(watch_request(tr, keys, session, request, is_first)) as Watch;
    if inquiry.scope == Scope::Answer && !is_answered(tr, keys, session, request).await? {
        return Ok(RequestView::Waits(Waits {
            is_first: false,
            supply: None,
            precedence: None,
            watch: watch(false),
        }));
    }
    let is_first = match check_request(tr, keys, session, request).await? {
        Standing::Waits { is_first } => is_first,
        Standing::Gone => return Ok(RequestView::Gone),
        Standing::Granted => {
            let collected = collect_and_ask(tr, context, inquiry).await?;
            return Ok(RequestView::Granted(collected));
        }
    };
    let watch = watch(is_first);
    let (supply, precedence) = match inquiry.scope {
        _ if is_first => (Some(supply(tr, context).await?), None),
        // The session with the first request is left time to lead.
        Scope::Answer | Scope::Turn => (None, None),
        Scope::Precedence => {
            let both = try_join!(supply(tr, context), precedence(tr, keys, request))?;
            (Some(both.0), Some(both.1))
        }
    };
    Ok(RequestView::Waits(Waits {
        is_first,
        supply,
        precedence,
        watch,
    }))
}
