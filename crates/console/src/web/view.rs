//! The pages, as typed templates in `templates/`. What comes from the store is escaped by the template engine.

use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use export_queue::hc_dequeue::PlaceKind;
use export_queue::keyspace::names::{hex, parse_bytes};

use super::live::{OverviewLive, QueueLive};
use super::options::WebOptions;
use super::refusal::Refusal;
use super::site::Site;
use super::text;
use crate::change::{Action, ItemsAction, Limit};
use crate::report::{self, Item, Life, Payload, Time};

/// How many characters of a payload or a reason a row of a listing shows.
const MAX_ROW_CHARS: usize = 160;

/// Renders a page.
pub(super) fn page(template: &impl Template) -> Response {
    match template.render() {
        Ok(text) => Html(text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// What is around every page.
#[derive(Debug, Default)]
pub(super) struct Frame {
    /// What the links begin with.
    pub(super) base: String,
    /// What forms have to send. `None`: changes are off, and there are no forms.
    pub(super) token: Option<String>,
    /// What was changed by the form that led here.
    pub(super) notice: Option<String>,
    /// The address of the queue that the page is about. Empty if it is about none.
    pub(super) href: String,
}

impl Frame {
    /// Returns a frame without forms.
    pub(super) fn plain(options: &WebOptions) -> Self {
        Self {
            base: options.base.clone(),
            ..Self::default()
        }
    }

    /// Returns the frame of a page with forms if changes are on.
    pub(super) fn of(site: &Site, notice: Option<String>) -> Self {
        let mut frame = Self::plain(&site.options);
        if site.options.changes {
            frame.token = Some(site.token.to_string());
        }
        frame.notice = notice;
        frame
    }

    /// Returns the frame of a page about a queue.
    pub(super) fn of_queue(site: &Site, name: &str, notice: Option<String>) -> Self {
        let mut frame = Self::of(site, notice);
        frame.href = format!("{}/queues/{}", frame.base, text::segment(name));
        frame
    }

    /// Returns the links from a page of a list of the queue, which begins and ends after these rows.
    pub(super) fn pager(&self, list: &str, after: Option<&str>, next: Option<&str>) -> Pager {
        Pager::of(format!("{}/{list}", self.href), after, next)
    }

    /// Returns the actions that the page offers for the items in a place: none if changes are off.
    pub(super) fn actions(&self, place: Option<PlaceKind>) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(place) = place
            && self.token.is_some()
        {
            actions.extend(Action::ALL);
            actions.retain(|action| action.places().contains(&place));
        }
        actions
    }
}

/// The links from a page of a list to the first page and to the next one.
#[derive(Template)]
#[template(path = "pager.html")]
pub(super) struct Pager {
    /// The address of the list.
    list: String,
    /// The query of the address, without the place of the page. Empty if there is none.
    query: String,
    pub(super) is_first: bool,
    /// What the address of the next page says it comes after.
    pub(super) next: Option<String>,
}

impl Pager {
    /// `after` and `next` are where the page begins and where the next one does.
    pub(super) fn of(list: String, after: Option<&str>, next: Option<&str>) -> Self {
        Self {
            list,
            query: String::new(),
            is_first: after.is_none(),
            next: next.map(text::segment),
        }
    }

    /// Adds the query of the list's address.
    pub(super) fn with_query(mut self, query: &str) -> Self {
        query.clone_into(&mut self.query);
        self
    }
}

/// Why a request was not carried out.
#[derive(Template)]
#[template(path = "refusal.html")]
pub(super) struct RefusalPage<'a> {
    pub(super) frame: Frame,
    pub(super) refusal: &'a Refusal,
    pub(super) next_step: &'static str,
}

/// All queues.
#[derive(Template)]
#[template(path = "overview.html")]
pub(super) struct OverviewPage {
    pub(super) frame: Frame,
    pub(super) live: OverviewLive,
    /// Only the first page moves.
    pub(super) pager: Pager,
}

/// One queue.
#[derive(Template)]
#[template(path = "queue.html")]
pub(super) struct QueuePage {
    pub(super) frame: Frame,
    pub(super) live: QueueLive,
    /// Those of a queue with consumers.
    pub(super) settings: Option<report::Settings>,
    pub(super) failures: Failures,
    /// The kinds of the first items that wait, and those that sessions take.
    pub(super) kinds: Vec<report::Kind>,
}

/// Why the first dead letters of a queue failed.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// How many were looked at.
    pub(super) letters: usize,
    /// Whether there are more.
    pub(super) has_more: bool,
    /// Their reasons, the most frequent first, with their numbers.
    pub(super) reasons: Vec<(String, usize)>,
}

/// How many reasons a page shows.
const MAX_REASONS: usize = 20;

impl Failures {
    /// Groups the dead letters of a page by their reasons.
    pub(super) fn of(letters: &report::Items) -> Self {
        let mut reasons: Vec<(String, usize)> = Vec::new();
        for item in &letters.items {
            let failure = item.failure.as_ref().map(|failure| &*failure.reason);
            let reason = text::short(
                failure
                    .or(item.problem.as_deref())
                    .unwrap_or("no reason is recorded"),
                MAX_ROW_CHARS,
            );
            match reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, count)) => *count += 1,
                None => reasons.push((reason, 1)),
            }
        }
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        reasons.truncate(MAX_REASONS);
        Self {
            letters: letters.items.len(),
            has_more: letters.next.is_some(),
            reasons,
        }
    }
}

/// A page of the items in a place.
#[derive(Template)]
#[template(path = "items.html")]
pub(super) struct ItemsPage {
    pub(super) frame: Frame,
    pub(super) items: report::Items,
    /// What the addresses of the other places end with, to list the same items.
    pub(super) query: String,
    /// The address of this page, to which a change of selected items returns.
    pub(super) here: String,
    /// What the items belong to, and its name, unless all are listed.
    pub(super) of: Option<(&'static str, String)>,
    pub(super) rows: Vec<ItemRow>,
    pub(super) actions: Vec<Action>,
    pub(super) pager: Pager,
}

impl ItemsPage {
    /// Returns the name of the column with what matters of an item in this place.
    fn detail(&self) -> &'static str {
        match self.items.place {
            PlaceKind::Dead => "Why",
            _ => "Detail",
        }
    }
}

/// An item in a listing.
pub(super) struct ItemRow {
    pub(super) item: String,
    /// Whether it can be selected: no action changes an item whose record does not decode.
    pub(super) is_selectable: bool,
    pub(super) href: String,
    /// Its kind. Empty if it has none.
    pub(super) kind: String,
    pub(super) enqueued: String,
    pub(super) attempts: String,
    /// What matters of an item in this place.
    pub(super) detail: String,
    pub(super) payload: String,
}

impl ItemRow {
    pub(super) fn of(queue_href: &str, item: &Item) -> Self {
        let payload = item.payload.as_ref();
        let time = |time: &Option<Time>| time.map(Time::moment).unwrap_or_default();
        let failure = item.failure.as_ref();
        let reason = failure.map(|failure| text::short(&failure.reason, MAX_ROW_CHARS));
        let detail = match item.place {
            Some(PlaceKind::Delayed) => format!("until {}", time(&item.until)),
            Some(PlaceKind::Held) => {
                let asked = if item.cancelled { ", cancelled" } else { "" };
                let session = item.session.as_deref().unwrap_or_default();
                let progress = item.progress.as_ref();
                let far = progress.map(|progress| {
                    format!(", {}", text::short(&progress.to_string(), MAX_ROW_CHARS))
                });
                format!(
                    "by {} since {}{asked}{}",
                    text::short(session, 8),
                    time(&item.granted),
                    far.unwrap_or_default()
                )
            }
            Some(PlaceKind::Done) => format!(
                "{} {}",
                item.end.as_deref().unwrap_or("ended"),
                time(&item.ended)
            ),
            _ => item.problem.clone().or(reason).unwrap_or_default(),
        };
        Self {
            href: format!("{queue_href}/item/{}", text::segment(&item.item)),
            item: item.item.clone(),
            is_selectable: item.place.is_some(),
            kind: item.kind.clone().unwrap_or_default(),
            enqueued: time(&item.enqueued),
            attempts: text::count(item.attempts),
            detail,
            payload: payload
                .map(|one| text::short_payload(one, MAX_ROW_CHARS))
                .unwrap_or_default(),
        }
    }
}

/// One item.
#[derive(Template)]
#[template(path = "item.html")]
pub(super) struct ItemPage {
    pub(super) frame: Frame,
    pub(super) queue: String,
    pub(super) item: Item,
    /// What happened to it: the time, if it is recorded, and what.
    pub(super) events: Vec<(String, String)>,
    pub(super) actions: Vec<Action>,
}

/// Returns what is recorded of an item's life, in the order of time; at the same time, a cause is before its effect.
pub(super) fn events_of(item: &Item) -> Vec<(String, String)> {
    let failure = item.failure.as_ref();
    let failed = failure.map(|failure| (failure.time, format!("failed: {}", failure.reason)));
    let end = item.end.as_deref().unwrap_or("ended");
    let mut events: Vec<_> = [
        item.enqueued
            .map(|time| (Some(time), "enqueued".to_owned())),
        item.granted
            .map(|time| (Some(time), "last granted to a session".to_owned())),
        failed,
        item.ended.map(|time| (Some(time), end.to_owned())),
        item.until
            .map(|time| (Some(time), "becomes ready".to_owned())),
    ]
    .into_iter()
    .flatten()
    .collect();
    // The sort is stable.
    events.sort_by_key(|(time, _)| *time);
    let shown = events.into_iter();
    shown
        .map(|(time, what)| (time.map(Time::moment).unwrap_or_default(), what))
        .collect()
}

/// A page of the groups of a queue's items.
#[derive(Template)]
#[template(path = "groups.html")]
pub(super) struct GroupsPage {
    pub(super) frame: Frame,
    pub(super) list: report::Groups,
    pub(super) pager: Pager,
}

/// A group of a queue's items.
#[derive(Template)]
#[template(path = "group.html")]
pub(super) struct GroupPage {
    pub(super) frame: Frame,
    pub(super) queue: String,
    pub(super) group: report::Group,
    /// The group as addresses name it.
    pub(super) digits: String,
    /// The items that have its slots, with the names of their places.
    pub(super) holders: Vec<(String, ItemRow)>,
}

/// Returns a group as a form sends it: in hexadecimal digits, of which a page shows none as a code.
pub(super) fn digits(group: &str) -> String {
    format!("0x{}", hex(&parse_bytes(group)))
}

/// A page of the batches of a queue, or one batch.
#[derive(Template)]
#[template(path = "batches.html")]
pub(super) struct BatchesPage {
    pub(super) frame: Frame,
    pub(super) list: report::Batches,
    /// Whether the page shows one batch, and not the list.
    pub(super) is_one: bool,
    pub(super) pager: Pager,
}

/// The sessions of a queue.
#[derive(Template)]
#[template(path = "sessions.html")]
pub(super) struct SessionsPage {
    pub(super) frame: Frame,
    pub(super) list: report::Sessions,
    pub(super) pager: Pager,
}

/// A page of the schedules of a queue.
#[derive(Template)]
#[template(path = "schedules.html")]
pub(super) struct SchedulesPage {
    pub(super) frame: Frame,
    pub(super) list: report::Schedules,
    /// The owner whose schedules it has, or `None` if it has all.
    pub(super) owner: Option<String>,
    pub(super) pager: Pager,
}

/// A value of an application, on a page.
#[derive(Template)]
#[template(path = "payload.html")]
pub(super) struct PayloadBlock<'a> {
    pub(super) payload: &'a Payload,
}

/// Returns a payload as a block of a page.
pub(super) fn payload_block(payload: &Payload) -> PayloadBlock<'_> {
    PayloadBlock { payload }
}

/// Returns an optional time of a report, or a dash.
pub(super) fn moment_or_dash(time: &Option<Time>) -> String {
    time.map_or_else(|| "–".to_owned(), Time::moment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Failure;

    #[test]
    fn a_next_page_has_the_query_of_its_list() {
        for (query, next) in [
            ("", "/schedules?after=b%3F"),
            ("owner=a%26", "/schedules?owner=a%26&amp;after=b%3F"),
        ] {
            let pager = Pager::of("/schedules".to_owned(), None, Some("b?")).with_query(query);
            let text = pager.render().unwrap();
            assert!(text.contains(&format!("href=\"{next}\"")), "{text}");
        }
    }

    #[test]
    fn what_happened_at_the_same_time_is_told_in_causal_order() {
        let at = |second: u64| Some(Time::from_millis(second * 1_000));
        let item = Item {
            enqueued: at(0),
            granted: at(0),
            failure: Some(Failure {
                time: at(0),
                reason: "no".to_owned(),
            }),
            ended: at(0),
            end: Some("cancelled".to_owned()),
            ..Item::default()
        };
        let told = |item: &Item| -> Vec<String> {
            let events = events_of(item).into_iter();
            events.map(|(_, what)| what).collect()
        };
        let granted = "last granted to a session";
        assert_eq!(
            told(&item),
            ["enqueued", granted, "failed: no", "cancelled"]
        );
        let again = Item {
            granted: at(1),
            ended: None,
            ..item
        };
        assert_eq!(told(&again), ["enqueued", "failed: no", granted]);
    }
}
