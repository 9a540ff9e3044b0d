//! What a session asks about its request, and what it takes over with the answer.

use futures::try_join;
use microqueue::keyspace::Transaction;
use microqueue::{ItemId, StagedId};

use super::Watch;
use crate::error::Result;
use crate::give_back::{Given, Return, give_back};
use crate::policy::Scope;
use crate::registry::grant::is_answered;
use crate::registry::request::{
    Precedence, Standing, Supply, append, check_request, collect, precedence, supply,
    supply_counted, watch_request,
};
use crate::registry::{Granted, SessionContext};

/// What a session asks about its request, and what goes with the answer if there is one.
#[derive(Clone, Copy)]
pub(super) struct Inquiry<'a> {
    pub(super) request: ItemId,
    pub(super) scope: Scope,
    /// What is given back with the answer.
    pub(super) returns: &'a [Return],
    /// For how many items the next request is, if one is registered with the answer.
    pub(super) next: Option<u32>,
}

/// What came of taking over an answer.
pub(super) struct Collected<T> {
    /// `None`: there was none.
    pub(super) items: Option<Vec<Granted<T>>>,
    /// What was given back with it.
    pub(super) given: Vec<Given>,
    /// The request that was registered with it.
    pub(super) next: Option<StagedId>,
}

/// Stages to take over an answer, to give items back, and to register a request for as many items as
/// will be wanted next: a session whose consumers ask again needs one commit for all of it.
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
        // Should the session be dead: it is not buried while it has a grant, and the session that buries
        // it removes its requests.
        Some(wanted) if items.is_some() => Some(append(tr, context, wanted).await?),
        _ => None,
    };
    Ok(Collected { items, given, next })
}

/// What a session has seen of its request.
pub(super) enum RequestView<T> {
    /// It was answered, and the answer taken over at once.
    Granted(Collected<T>),
    Gone,
    Waits(Waits),
}

/// A request that waits.
pub(super) struct Waits {
    pub(super) is_first: bool,
    /// What there is, if that was looked at.
    pub(super) supply: Option<Supply>,
    /// Which request is the first, if that was looked at.
    pub(super) precedence: Option<Precedence>,
    pub(super) watch: Watch,
}

/// Reads how things stand for a request, arms a watch on what may change them, and takes over the answer
/// if there is one.
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
        // The first one has its time to lead.
        Scope::Answer | Scope::Turn => (None, None),
        Scope::Supply => (Some(supply_counted(tr, context).await?), None),
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
