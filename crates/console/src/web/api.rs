//! The same as JSON, with the fields of [`report`].

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

use super::pages::ItemsQuery;
use super::refusal::Refusal;
use super::site::{QUEUES_PER_PAGE, Site};
use crate::look::Combiner;
use crate::report;

/// How many rows a page of a listing has if none were asked for.
const ROWS: usize = 100;

type ApiResult<T> = Result<Json<T>, Refusal>;

/// Which page of a listing is wanted.
#[derive(Debug, Deserialize)]
pub(super) struct ListingQuery {
    after: Option<String>,
    #[serde(default, deserialize_with = "number")]
    limit: Option<usize>,
}

/// Reads a number of a query. Within a flattened struct serde hands on texts.
fn number<'de, De: Deserializer<'de>>(query: De) -> Result<Option<usize>, De::Error> {
    let text: Option<String> = Option::deserialize(query)?;
    let number = text.map(|text| text.parse());
    number.transpose().map_err(de::Error::custom)
}

impl ListingQuery {
    fn limit(&self, default: usize) -> usize {
        self.limit.unwrap_or(default)
    }
}

pub(super) async fn queues(
    State(site): State<Site>,
    Query(wanted): Query<ListingQuery>,
) -> ApiResult<report::Queues> {
    let limit = wanted.limit(QUEUES_PER_PAGE).min(QUEUES_PER_PAGE);
    let queues = site.console.queues(wanted.after.as_deref(), limit);
    Ok(Json(queues.await?))
}

pub(super) async fn queue(
    State(site): State<Site>,
    Path(name): Path<String>,
) -> ApiResult<report::Queue> {
    Ok(Json(site.console.queue(&name).await?))
}

pub(super) async fn items(
    State(site): State<Site>,
    Path((name, place)): Path<(String, String)>,
    Query(wanted): Query<WantedItems>,
) -> ApiResult<report::Items> {
    let limit = wanted.page.limit(ROWS);
    let after = wanted.page.after.as_deref();
    let items = wanted.of.list(&site, (&name, &place), after, limit);
    Ok(Json(items.await?))
}

/// Which items are wanted.
#[derive(Debug, Deserialize)]
pub(super) struct WantedItems {
    #[serde(flatten)]
    of: ItemsQuery,
    #[serde(flatten)]
    page: ListingQuery,
}

pub(super) async fn item(
    State(site): State<Site>,
    Path((name, item)): Path<(String, String)>,
) -> ApiResult<report::Item> {
    Ok(Json(site.console.item(&name, &item).await?))
}

pub(super) async fn groups(
    State(site): State<Site>,
    Path(name): Path<String>,
    Query(wanted): Query<ListingQuery>,
) -> ApiResult<report::Groups> {
    let limit = wanted.limit(ROWS);
    let groups = site.console.groups(&name, wanted.after.as_deref(), limit);
    Ok(Json(groups.await?))
}

pub(super) async fn group(
    State(site): State<Site>,
    Path((name, group)): Path<(String, String)>,
) -> ApiResult<report::Group> {
    Ok(Json(site.console.group(&name, &group).await?))
}

pub(super) async fn batches(
    State(site): State<Site>,
    Path(name): Path<String>,
    Query(wanted): Query<ListingQuery>,
) -> ApiResult<report::Batches> {
    let limit = wanted.limit(ROWS);
    let batches = site.console.batches(&name, wanted.after.as_deref(), limit);
    Ok(Json(batches.await?))
}

pub(super) async fn batch(
    State(site): State<Site>,
    Path((name, batch)): Path<(String, String)>,
) -> ApiResult<report::Batch> {
    Ok(Json(site.console.batch(&name, &batch).await?))
}

pub(super) async fn kinds(
    State(site): State<Site>,
    Path(name): Path<String>,
) -> ApiResult<report::Kinds> {
    Ok(Json(site.console.kinds(&name).await?))
}

pub(super) async fn sessions(
    State(site): State<Site>,
    Path(name): Path<String>,
    Query(wanted): Query<ListingQuery>,
) -> ApiResult<report::Sessions> {
    let limit = wanted.limit(ROWS);
    let sessions = site.console.sessions(&name, wanted.after.as_deref(), limit);
    Ok(Json(sessions.await?))
}

/// Whose schedules are wanted, if not all.
#[derive(Debug, Deserialize)]
pub(super) struct OwnerQuery {
    pub(super) owner: Option<String>,
}

pub(super) async fn schedules(
    State(site): State<Site>,
    Path(name): Path<String>,
    Query(wanted): Query<ListingQuery>,
    Query(of): Query<OwnerQuery>,
) -> ApiResult<report::Schedules> {
    let (owner, after) = (of.owner.as_deref(), wanted.after.as_deref());
    let limit = wanted.limit(ROWS);
    let schedules = site.console.schedules(&name, owner, after, limit);
    Ok(Json(schedules.await?))
}

pub(super) async fn settings(
    State(site): State<Site>,
    Path(name): Path<String>,
) -> ApiResult<report::Settings> {
    Ok(Json(site.console.settings(&name).await?))
}

/// How a key's exact value is computed.
#[derive(Debug, Deserialize)]
pub(super) struct Exact {
    combiner: Option<Combiner>,
}

pub(super) async fn combine_key(
    State(site): State<Site>,
    Path((name, key)): Path<(String, String)>,
    Query(exact): Query<Exact>,
) -> ApiResult<report::CombineKey> {
    let state = site.console.combine_key(&name, &key, exact.combiner);
    Ok(Json(state.await?))
}

pub(super) async fn set_aside(
    State(site): State<Site>,
    Path(name): Path<String>,
    Query(wanted): Query<ListingQuery>,
) -> ApiResult<report::SetAsidePage> {
    let page = site
        .console
        .set_aside(&name, wanted.after.as_deref(), wanted.limit(ROWS));
    Ok(Json(page.await?))
}

pub(super) async fn letters(
    State(site): State<Site>,
    Path((name, subscription)): Path<(String, String)>,
    Query(wanted): Query<ListingQuery>,
) -> ApiResult<report::Items> {
    let after = wanted.after.as_deref();
    let limit = wanted.limit(ROWS);
    let letters = site.console.letters(&name, &subscription, after, limit);
    Ok(Json(letters.await?))
}

/// Which keys are wanted.
#[derive(Debug, Deserialize)]
pub(super) struct WantedKeys {
    prefix: Option<String>,
    #[serde(flatten)]
    page: ListingQuery,
}

pub(super) async fn keys(
    State(site): State<Site>,
    Query(wanted): Query<WantedKeys>,
) -> ApiResult<report::Keys> {
    let prefix = wanted.prefix.as_deref();
    let after = wanted.page.after.as_deref();
    let keys = site.console.keys(prefix, after, wanted.page.limit(ROWS));
    Ok(Json(keys.await?))
}

pub(super) async fn key(
    State(site): State<Site>,
    Path(key): Path<String>,
) -> ApiResult<report::Key> {
    Ok(Json(site.console.key(&key).await?))
}

/// What a change has to send.
#[derive(Serialize)]
pub(super) struct Token {
    token: String,
}

/// No page of another site can read the answer: none is allowed to by a header, and the host was checked.
pub(super) async fn token(State(site): State<Site>) -> ApiResult<Token> {
    if site.options.changes {
        Ok(Json(Token {
            token: site.token.to_string(),
        }))
    } else {
        Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "changes are turned off",
        ))
    }
}
