//! The pages that show something. None of them changes anything.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use export_queue::hc_dequeue::ItemsOf;
use export_queue::keyspace::names::{bytes_text, parse_bytes};
use serde::Deserialize;

use super::api::OwnerQuery;
use super::live::{OverviewLive, QueueLive};
use super::refusal::Refusal;
use super::site::{QUEUES_PER_PAGE, Site};
use super::text;
use super::view::{
    BatchesPage, Failures, Frame, GroupPage, GroupsPage, ItemPage, ItemRow, ItemsPage,
    OverviewPage, Pager, QueuePage, SchedulesPage, SessionsPage, digits, events_of, page,
};
use crate::error::Result;
use crate::look::parse_items_of;
use crate::report::{Batches, Items, QueueState};

/// How many items or schedules a page of a listing has.
const ROWS_PER_PAGE: usize = 100;

/// How many dead letters are grouped by their reasons.
const MAX_LETTERS_GROUPED: usize = 200;

/// Which items of a place are wanted: all, or those of a group, a batch or a kind.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ItemsQuery {
    group: Option<String>,
    batch: Option<String>,
    kind: Option<String>,
}

impl ItemsQuery {
    /// Returns a page of these items in a place of a queue.
    pub(super) async fn list(
        &self,
        site: &Site,
        (name, place): (&str, &str),
        after: Option<&str>,
        limit: usize,
    ) -> Result<Items> {
        let console = &site.console;
        match self.items()? {
            Some(items) => console.items_of(name, place, &items, after, limit).await,
            None => console.items(name, place, after, limit).await,
        }
    }

    /// Returns the items, or `None` if all are wanted.
    pub(super) fn items(&self) -> Result<Option<ItemsOf>> {
        parse_items_of(
            self.group.as_deref(),
            self.batch.as_deref(),
            self.kind.as_deref(),
        )
    }

    /// Returns the query of an address that asks for these items. It is empty for all.
    fn query(&self) -> String {
        match (&self.group, &self.batch, &self.kind) {
            (Some(group), ..) => format!("group={}", text::query(group)),
            (None, Some(batch), _) => format!("batch={}", text::query(batch)),
            (None, None, Some(kind)) => format!("kind={}", text::query(kind)),
            (None, None, None) => String::new(),
        }
    }

    /// Returns the address of a page of these items: the path of their listing, and where the page begins.
    pub(super) fn address(&self, list: &str, after: Option<&str>) -> String {
        let after = after.map(|after| format!("after={}", text::query(after)));
        let mut parts = vec![self.query(), after.unwrap_or_default()];
        parts.retain(|part| !part.is_empty());
        if parts.is_empty() {
            return list.to_owned();
        }
        format!("{list}?{}", parts.join("&"))
    }

    /// Returns what the items belong to, and its name. Returns `None` for all items.
    fn owner(&self) -> Option<(&'static str, String)> {
        match (&self.group, &self.batch, &self.kind) {
            (Some(group), ..) => Some(("group", bytes_text(&parse_bytes(group)))),
            (None, Some(batch), _) => Some(("batch", batch.clone())),
            (None, None, Some(kind)) => Some(("kind", kind.clone())),
            (None, None, None) => None,
        }
    }
}

/// A page of a listing, and what was changed before.
#[derive(Debug, Default, Deserialize)]
pub(super) struct PageQuery {
    /// Where the page begins, as the page before it said.
    pub(super) after: Option<String>,
    /// The change that led here.
    done: Option<String>,
    /// How many items it has changed.
    count: Option<u64>,
    /// How many items it could not change.
    failed: Option<u64>,
}

impl PageQuery {
    /// Returns what was changed, in our own words: an address must not put words on our pages.
    fn notice(&self) -> Option<String> {
        let items = |count| match count {
            1 => "1 item".to_owned(),
            _ => format!("{} items", text::count(count)),
        };
        let failed = match self.failed {
            None | Some(0) => String::new(),
            Some(failed) => format!(" Could not change {}.", items(failed)),
        };
        let items = items(self.count.unwrap_or_default());
        let done = match self.done.as_deref()? {
            "cancel" => {
                format!(
                    "Cancelled {items}; a held item leaves the queue when its session lets go of it."
                )
            }
            "clear" => format!("Removed {items} that waited."),
            "expedite" => format!("Made {items} ready."),
            "redrive" => format!("Put {items} back into the queue."),
            "purge" => format!("Removed {items} for good."),
            "pause" => "Paused: nothing is granted until the queue is resumed.".to_owned(),
            "resume" => "Resumed: items are granted again.".to_owned(),
            "limit" => "The limits were changed.".to_owned(),
            "pause-group" => {
                "Paused: nothing of the group is granted until it is resumed.".to_owned()
            }
            "resume-group" => "Resumed: items of the group are granted again.".to_owned(),
            "close-batch" => {
                "The batch is closed: it is complete when no member is left.".to_owned()
            }
            "cancel-batch" => {
                "The batch is cancelled: no callback comes, and its members go on.".to_owned()
            }
            _ => return None,
        };
        Some(done + &failed)
    }
}

/// `/`: all queues.
pub(super) async fn overview(
    State(site): State<Site>,
    Query(wanted): Query<PageQuery>,
) -> Result<Response, Refusal> {
    let after = wanted.after.as_deref();
    let queues = site.console.queues(after, QUEUES_PER_PAGE).await?;
    let lives: Vec<_> = queues
        .queues
        .into_iter()
        .map(|queue| site.sampler.live(queue))
        .collect();
    let list = format!("{}/", site.options.base);
    Ok(page(&OverviewPage {
        frame: Frame::of(&site, wanted.notice()),
        live: OverviewLive::of(&site.options.base, &lives),
        pager: Pager::of(list, after, queues.next.as_deref()),
    }))
}

/// `/queues/{name}`: a queue.
pub(super) async fn queue(
    State(site): State<Site>,
    Path(name): Path<String>,
    Query(wanted): Query<PageQuery>,
) -> Result<Response, Refusal> {
    let live = site.sampler.live(site.console.queue(&name).await?);
    let mut settings = None;
    let mut failures = Failures::default();
    let mut kinds = Vec::new();
    if let QueueState::HcDequeue(state) = &live.queue.state {
        settings = Some(site.console.settings(&name).await?);
        kinds = site.console.kinds(&name).await?.kinds;
        if state.dead > 0 {
            let letters = site.console.items(&name, "dead", None, MAX_LETTERS_GROUPED);
            failures = Failures::of(&letters.await?);
        }
    }
    let frame = Frame::of_queue(&site, &name, wanted.notice());
    Ok(page(&QueuePage {
        live: QueueLive::of(&frame.base, &live),
        frame,
        settings,
        failures,
        kinds,
    }))
}

/// `/queues/{name}/items/{place}`: a page of the items in a place.
pub(super) async fn items(
    State(site): State<Site>,
    Path((name, place)): Path<(String, String)>,
    Query(wanted): Query<PageQuery>,
    Query(of): Query<ItemsQuery>,
) -> Result<Response, Refusal> {
    let after = wanted.after.as_deref();
    let items = of.list(&site, (&name, &place), after, ROWS_PER_PAGE);
    let items = items.await?;
    let frame = Frame::of_queue(&site, &name, wanted.notice());
    let rows = items.items.iter();
    let list = format!("items/{}", items.place.name());
    let pager = frame.pager(&list, after, items.next.as_deref());
    Ok(page(&ItemsPage {
        rows: rows.map(|item| ItemRow::of(&frame.href, item)).collect(),
        actions: frame.actions(Some(items.place)),
        pager: pager.with_query(&of.query()),
        query: of.address("", None),
        here: of.address(&format!("{}/{list}", frame.href), after),
        of: of.owner(),
        frame,
        items,
    }))
}

/// `/queues/{name}/item/{ref}`: an item.
pub(super) async fn item(
    State(site): State<Site>,
    Path((name, item)): Path<(String, String)>,
    Query(wanted): Query<PageQuery>,
) -> Result<Response, Refusal> {
    let item = site.console.item(&name, &item).await?;
    let frame = Frame::of_queue(&site, &name, wanted.notice());
    Ok(page(&ItemPage {
        actions: frame.actions(item.place),
        events: events_of(&item),
        frame,
        queue: name,
        item,
    }))
}

/// `/queues/{name}/groups`: a page of the groups of a queue's items.
pub(super) async fn groups(
    State(site): State<Site>,
    Path(name): Path<String>,
    Query(wanted): Query<PageQuery>,
) -> Result<Response, Refusal> {
    let after = wanted.after.as_deref();
    let list = site.console.groups(&name, after, ROWS_PER_PAGE).await?;
    let frame = Frame::of_queue(&site, &name, wanted.notice());
    Ok(page(&GroupsPage {
        pager: frame.pager("groups", after, list.next.as_deref()),
        frame,
        list,
    }))
}

/// `/queues/{name}/group/{group}`: a group, as a page of one, and the items that have its slots.
pub(super) async fn group(
    State(site): State<Site>,
    Path((name, group)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    let group = site.console.group(&name, &group).await?;
    let frame = Frame::of_queue(&site, &name, None);
    let holders = group.holders.iter();
    Ok(page(&GroupPage {
        holders: holders
            .map(|item| (item.place_name().to_owned(), ItemRow::of(&frame.href, item)))
            .collect(),
        digits: digits(&group.group),
        frame,
        queue: name,
        group,
    }))
}

/// `/queues/{name}/batches`: a page of the batches of a queue.
pub(super) async fn batches(
    State(site): State<Site>,
    Path(name): Path<String>,
    Query(wanted): Query<PageQuery>,
) -> Result<Response, Refusal> {
    let after = wanted.after.as_deref();
    let list = site.console.batches(&name, after, ROWS_PER_PAGE).await?;
    let frame = Frame::of_queue(&site, &name, wanted.notice());
    Ok(page(&BatchesPage {
        pager: frame.pager("batches", after, list.next.as_deref()),
        frame,
        list,
        is_one: false,
    }))
}

/// `/queues/{name}/batch/{ref}`: a batch, as a page of one.
pub(super) async fn batch(
    State(site): State<Site>,
    Path((name, batch)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    let batch = site.console.batch(&name, &batch).await?;
    let frame = Frame::of_queue(&site, &name, None);
    Ok(page(&BatchesPage {
        pager: frame.pager("batches", None, None),
        frame,
        list: Batches {
            queue: name,
            batches: vec![batch],
            next: None,
        },
        is_one: true,
    }))
}

/// `/queues/{name}/sessions`: a page of the sessions of a queue, and what each holds.
pub(super) async fn sessions(
    State(site): State<Site>,
    Path(name): Path<String>,
    Query(wanted): Query<PageQuery>,
) -> Result<Response, Refusal> {
    let after = wanted.after.as_deref();
    let list = site.console.sessions(&name, after, ROWS_PER_PAGE).await?;
    let frame = Frame::of_queue(&site, &name, None);
    Ok(page(&SessionsPage {
        pager: frame.pager("sessions", after, list.next.as_deref()),
        frame,
        list,
    }))
}

/// `/queues/{name}/schedules`: a page of the schedules of a queue.
pub(super) async fn schedules(
    State(site): State<Site>,
    Path(name): Path<String>,
    Query(wanted): Query<PageQuery>,
    Query(OwnerQuery { owner }): Query<OwnerQuery>,
) -> Result<Response, Refusal> {
    let after = wanted.after.as_deref();
    let list = site
        .console
        .schedules(&name, owner.as_deref(), after, ROWS_PER_PAGE)
        .await?;
    let frame = Frame::of_queue(&site, &name, None);
    let query = match &owner {
        Some(owner) => format!("owner={}", text::query(owner)),
        None => String::new(),
    };
    Ok(page(&SchedulesPage {
        pager: frame
            .pager("schedules", after, list.next.as_deref())
            .with_query(&query),
        frame,
        list,
        owner,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_page_names_its_items_and_where_it_begins() {
        let of = |group: Option<&str>, kind: Option<&str>| ItemsQuery {
            group: group.map(str::to_owned),
            kind: kind.map(str::to_owned),
            batch: None,
        };
        for (items, after, address) in [
            (of(None, None), None, "/list"),
            (of(None, None), Some("0a"), "/list?after=0a"),
            (of(Some("a&b"), None), None, "/list?group=a%26b"),
            // Only a segment of a path cannot be a dot.
            (of(Some("."), None), None, "/list?group=."),
            (of(None, Some("x#")), Some("?"), "/list?kind=x%23&after=%3F"),
        ] {
            assert_eq!(items.address("/list", after), address);
        }
    }
}
