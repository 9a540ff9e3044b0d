//! Changes: from where they are accepted, and carrying them out.

use std::time::Duration;

use axum::Json;
use axum::extract::{Form, FromRequest, Path, Query, Request, State};
use axum::http::header::{HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Redirect;
use export_queue::hc_dequeue::{GroupLimits, Rate};

use super::guard::{FETCH_SITE, single};
use super::pages::{ItemsQuery, PageQuery};
use super::refusal::Refusal;
use super::site::Site;
use super::text::segment;
use crate::change::{Action, ItemsAction, Limit};
use crate::error::Error;
use crate::look::parse_place;
use crate::report::Change;

/// The header in which programs send the token.
const TOKEN: HeaderName = HeaderName::from_static("x-console-token");

/// The fields of a form, in their order. A name may come several times.
type Fields = Vec<(String, String)>;

/// The fields of a form that [may change](allowed) something.
pub(super) struct AllowedForm(Fields);

impl FromRequest<Site> for AllowedForm {
    type Rejection = Refusal;

    async fn from_request(request: Request, site: &Site) -> Result<Self, Refusal> {
        // Before the form, so that what is refused anyway is not explained as malformed.
        check_switch(site)?;
        let headers = request.headers().clone();
        let form = Form::<Fields>::from_request(request, site).await;
        let Form(fields) = form.map_err(|rejection| Refusal::of_status(rejection.status()))?;
        allowed(site, &headers, field(&fields, "token"))?;
        Ok(Self(fields))
    }
}

/// Pauses or resumes a queue.
pub(super) async fn set_paused<const PAUSED: bool>(
    State(site): State<Site>,
    Path(name): Path<String>,
    _: AllowedForm,
) -> Result<Redirect, Refusal> {
    let change = site.console.set_paused(&name, PAUSED).await?;
    let path = format!("/queues/{}", segment(&name));
    Ok(back(&site, &path, &change, 0))
}

/// Changes an item.
pub(super) async fn change_item(
    State(site): State<Site>,
    Path((name, item)): Path<(String, String)>,
    AllowedForm(fields): AllowedForm,
) -> Result<Redirect, Refusal> {
    let action = action_of(&fields)?;
    let change = site.console.change(&name, action, &item).await?;
    let path = match action {
        // There is nothing left to go back to.
        Action::Purge => format!("/queues/{}", segment(&name)),
        _ => format!("/queues/{}/item/{}", segment(&name), segment(&item)),
    };
    Ok(back(&site, &path, &change, 0))
}

/// Changes the items that are selected on a page of a listing, and returns to it. Those that are no longer where the
/// action finds them are left out. One that cannot be changed is counted as failed, and the rest are still changed.
/// Dropping the future, and the time limit of a request, leave those that were changed so far.
pub(super) async fn change_selected(
    State(site): State<Site>,
    Path((name, place)): Path<(String, String)>,
    Query(wanted): Query<PageQuery>,
    Query(of): Query<ItemsQuery>,
    AllowedForm(fields): AllowedForm,
) -> Result<Redirect, Refusal> {
    let action = action_of(&fields)?;
    let mut change = Change::new(&name, action.name(), 0, "");
    let mut failed = 0;
    for (_, item) in fields.iter().filter(|(field, _)| field == "item") {
        match site.console.change(&name, action, item).await {
            Ok(done) => change.changed += done.changed,
            Err(Error::Missing { .. }) => {}
            Err(_) => failed += 1,
        }
    }
    let list = format!("/queues/{}/items/{}", segment(&name), segment(&place));
    let path = of.address(&list, wanted.after.as_deref());
    Ok(back(&site, &path, &change, failed))
}

/// Changes all items of a group, a batch or a kind, and returns to their listing in a place. Dropping the future, and
/// the time limit of a request, leave those that were changed so far.
pub(super) async fn change_items_of(
    State(site): State<Site>,
    Path(name): Path<String>,
    Query(of): Query<ItemsQuery>,
    AllowedForm(fields): AllowedForm,
) -> Result<Redirect, Refusal> {
    let place = parse_place(field(&fields, "place").unwrap_or_default())?;
    let change = change_all_of(&site, &name, &of, &fields).await?;
    let list = format!("/queues/{}/items/{}", segment(&name), place.name());
    Ok(back(&site, &of.address(&list, None), &change, 0))
}

/// Changes all items of a group, a batch or a kind, and returns what came of it as JSON.
pub(super) async fn api_change_items_of(
    State(site): State<Site>,
    Path(name): Path<String>,
    Query(of): Query<ItemsQuery>,
    AllowedForm(fields): AllowedForm,
) -> Result<Json<Change>, Refusal> {
    Ok(Json(change_all_of(&site, &name, &of, &fields).await?))
}

async fn change_all_of(
    site: &Site,
    name: &str,
    of: &ItemsQuery,
    fields: &Fields,
) -> Result<Change, Refusal> {
    let action = ItemsAction::parse(field(fields, "action").unwrap_or_default());
    let action = action.ok_or_else(|| bad_form("an action is cancel, clear, redrive or purge"))?;
    let items = of.items()?;
    let items = items.ok_or_else(|| bad_form("name a group, a batch or a kind in the address"))?;
    Ok(site.console.change_items_of(name, action, &items).await?)
}

/// Changes a group, or the default limits.
pub(super) async fn change_group(
    State(site): State<Site>,
    Path(name): Path<String>,
    AllowedForm(fields): AllowedForm,
) -> Result<Redirect, Refusal> {
    let change = change_group_by(&site, &name, &fields).await?;
    let path = format!("/queues/{}/groups", segment(&name));
    Ok(back(&site, &path, &change, 0))
}

/// Changes a group, or the default limits, and returns what came of it as JSON.
pub(super) async fn api_change_group(
    State(site): State<Site>,
    Path(name): Path<String>,
    AllowedForm(fields): AllowedForm,
) -> Result<Json<Change>, Refusal> {
    Ok(Json(change_group_by(&site, &name, &fields).await?))
}

async fn change_group_by(site: &Site, name: &str, fields: &Fields) -> Result<Change, Refusal> {
    let group = field(fields, "group").ok_or_else(|| bad_form("select a group"))?;
    // No group is empty.
    let group = if group.is_empty() { None } else { Some(group) };
    let console = &site.console;
    let change = match (field(fields, "action"), group) {
        (Some("set"), _) => console.limit(name, group, &limits_in(fields)?).await,
        (Some("remove"), _) => {
            let limit = field(fields, "limit").and_then(Limit::parse);
            let limit = limit.ok_or_else(|| bad_form("select the limit to remove"))?;
            console.remove_limit(name, group, limit).await
        }
        (Some("reset"), Some(group)) => console.reset_limits(name, group).await,
        (Some("pause"), Some(group)) => console.set_group_paused(name, group, true).await,
        (Some("resume"), Some(group)) => console.set_group_paused(name, group, false).await,
        (Some("reset" | "pause" | "resume"), None) => {
            let message =
                "the default limits cannot be reset or paused: select a group, or pause the queue";
            return Err(bad_form(message));
        }
        _ => return Err(bad_form("an action is set, remove, reset, pause or resume")),
    };
    Ok(change?)
}

/// Returns the limits in a form.
fn limits_in(fields: &Fields) -> Result<GroupLimits, Refusal> {
    let mut limits = GroupLimits::new();
    if let Some(items) = number(fields, "at_most")? {
        limits = limits.with_limit(items);
    }
    if let Some(items) = number(fields, "weight")? {
        limits = limits.with_weight(items);
    }
    if has_text(fields, "until_end") {
        limits = limits.with_until_end();
    }
    if has_text(fields, "dead_letters_block") {
        limits = limits.with_dead_letters_blocking();
    }
    if let Some(rate) = rate_in(fields)? {
        limits = limits.with_rate(rate);
    }
    Ok(limits)
}

/// Returns the rate in a form, if it has one.
fn rate_in(fields: &Fields) -> Result<Option<Rate>, Refusal> {
    let burst = number(fields, "burst")?;
    match (number(fields, "starts")?, period(fields)?) {
        (None, None) if burst.is_none() => Ok(None),
        (Some(starts), Some(period)) => {
            let rate = Rate::new(starts, period);
            Ok(Some(burst.map_or(rate, |items| rate.with_burst(items))))
        }
        _ => Err(bad_form("a rate needs both its starts and its period")),
    }
}

/// Closes or cancels a batch.
pub(super) async fn change_batch(
    State(site): State<Site>,
    Path(name): Path<String>,
    AllowedForm(fields): AllowedForm,
) -> Result<Redirect, Refusal> {
    let change = close_or_cancel(&site, &name, &fields).await?;
    let path = format!("/queues/{}/batches", segment(&name));
    Ok(back(&site, &path, &change, 0))
}

/// Closes or cancels a batch, and returns what came of it as JSON.
pub(super) async fn api_change_batch(
    State(site): State<Site>,
    Path(name): Path<String>,
    AllowedForm(fields): AllowedForm,
) -> Result<Json<Change>, Refusal> {
    Ok(Json(close_or_cancel(&site, &name, &fields).await?))
}

async fn close_or_cancel(site: &Site, name: &str, fields: &Fields) -> Result<Change, Refusal> {
    let batch = field(fields, "batch").ok_or_else(|| bad_form("select a batch"))?;
    let change = match field(fields, "action") {
        Some("close") => site.console.close_batch(name, batch).await,
        Some("cancel") => site.console.cancel_batch(name, batch).await,
        _ => return Err(bad_form("an action is close or cancel")),
    };
    Ok(change?)
}

/// Changes an item, and returns what came of it as JSON.
pub(super) async fn api_item(
    State(site): State<Site>,
    Path((name, item, action)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Result<Json<Change>, Refusal> {
    allowed(&site, &headers, None)?;
    let action = parse_action(&action)?;
    Ok(Json(site.console.change(&name, action, &item).await?))
}

/// Pauses or resumes a queue, and returns what came of it as JSON.
pub(super) async fn api_set_paused<const PAUSED: bool>(
    State(site): State<Site>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Change>, Refusal> {
    allowed(&site, &headers, None)?;
    Ok(Json(site.console.set_paused(&name, PAUSED).await?))
}

/// Returns to a page, whose path may have a query, with a notice of what was changed, and of how many items could not
/// be changed.
fn back(site: &Site, path: &str, change: &Change, failed: u64) -> Redirect {
    let base = &site.options.base;
    let action = &change.action;
    let count = change.changed;
    let failed = match failed {
        0 => String::new(),
        failed => format!("&failed={failed}"),
    };
    let joint = if path.contains('?') { '&' } else { '?' };
    Redirect::to(&format!(
        "{base}{path}{joint}done={action}&count={count}{failed}"
    ))
}

/// Returns the value of a field of a form.
fn field<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    let field = fields.iter().find(|(field, _)| field == name);
    field.map(|(_, value)| &**value)
}

/// Returns whether a field is there and not empty.
fn has_text(fields: &Fields, name: &str) -> bool {
    field(fields, name).is_some_and(|value| !value.is_empty())
}

/// Returns the number in a field, unless the field is missing or empty.
fn number(fields: &Fields, name: &str) -> Result<Option<u32>, Refusal> {
    match field(fields, name) {
        None | Some("") => Ok(None),
        Some(text) => {
            let number = text.parse().map_err(|_| bad_form("a limit is no number"))?;
            Ok(Some(number))
        }
    }
}

/// Returns the span of time in the field `period`, unless the field is missing or empty.
fn period(fields: &Fields) -> Result<Option<Duration>, Refusal> {
    match field(fields, "period") {
        None | Some("") => Ok(None),
        Some(text) => {
            let period = humantime::parse_duration(text);
            let message = "a period is a time with its unit: 90s, 2h or 1day";
            Ok(Some(period.map_err(|_| bad_form(message))?))
        }
    }
}

fn bad_form(message: &str) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, message)
}

fn action_of(fields: &Fields) -> Result<Action, Refusal> {
    parse_action(field(fields, "action").unwrap_or_default())
}

fn parse_action(name: &str) -> Result<Action, Refusal> {
    Action::parse(name).ok_or_else(|| bad_form("an action is cancel, expedite, redrive or purge"))
}

/// Refuses a change unless changes are on, the request comes from one of our pages or from no page at all, and it has
/// the token.
fn allowed(site: &Site, headers: &HeaderMap, in_form: Option<&str>) -> Result<(), Refusal> {
    check_switch(site)?;
    if !is_same_origin(headers) {
        return Err(forbidden(
            "changes are accepted from pages of this console only",
        ));
    }
    let token = in_form.or_else(|| single(headers, &TOKEN)).unwrap_or("");
    if same(token.as_bytes(), site.token.as_bytes()) {
        Ok(())
    } else {
        Err(forbidden(
            "the token of the change is missing or not this console's",
        ))
    }
}

fn check_switch(site: &Site) -> Result<(), Refusal> {
    if site.options.changes {
        Ok(())
    } else {
        Err(forbidden("changes are turned off"))
    }
}

fn forbidden(message: &str) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, message)
}

/// Returns whether what a browser says of where a request comes from, if it does, is this console itself.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let has_site = headers.contains_key(&FETCH_SITE);
    if has_site && single(headers, &FETCH_SITE) != Some("same-origin") {
        return false;
    }
    if !headers.contains_key(&ORIGIN) {
        return true;
    }
    let origin = single(headers, &ORIGIN).unwrap_or_default();
    match origin.split_once("://") {
        Some(("http" | "https", host)) => single(headers, &HOST) == Some(host),
        _ => false,
    }
}

/// Compares in a time that depends on the lengths only.
fn same(one: &[u8], other: &[u8]) -> bool {
    let differences = one
        .iter()
        .zip(other)
        .map(|(one, other)| one ^ other)
        .fold(0, |all, one| std::hint::black_box(all | one));
    one.len() == other.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_the_same_if_all_bytes_are() {
        assert!(same(b"abc", b"abc"));
        for other in [&b""[..], b"ab", b"abcd", b"abd", b"bbc"] {
            assert!(!same(other, b"abc"));
        }
    }

    #[test]
    fn a_browser_must_say_that_it_is_one_of_our_pages() {
        let site = |name: &str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, "localhost:80".parse().unwrap());
            headers.append(HeaderName::try_from(name).unwrap(), value.parse().unwrap());
            headers
        };
        let allowed = [
            ("x-other", "1"),
            ("origin", "http://localhost:80"),
            ("origin", "https://localhost:80"),
            ("sec-fetch-site", "same-origin"),
        ];
        for (name, value) in allowed {
            assert!(is_same_origin(&site(name, value)), "{name}: {value}");
        }
        let refused = [
            ("origin", "null"),
            ("origin", "http://localhost:81"),
            ("origin", "http://localhost"),
            ("origin", "file://localhost:80"),
            ("origin", "http://localhost:80.example.com"),
            ("origin", ""),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "none"),
        ];
        for (name, value) in refused {
            assert!(!is_same_origin(&site(name, value)), "{name}: {value}");
        }
        let mut twice = site("origin", "http://localhost:80");
        twice.append(ORIGIN, "http://example.com".parse().unwrap());
        assert!(!is_same_origin(&twice));
    }
}
