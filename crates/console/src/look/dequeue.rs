//! Looking at queues with consumers: items, sessions, schedules and settings.

use std::time::Duration;

use export_queue::hc_dequeue::{
    Cursor, End, Enqueue, Failure, ItemPage, ItemRef, ItemsOf, ListedItem, ListedSchedule, Listing,
    Missed, OnRepeat, Place, PlaceKind, Schedule, ScheduleEntry, Stats, Status,
};
use export_queue::keyspace::error::{chain, corrupt_key};
use export_queue::keyspace::names::{bytes_text, parse_bytes, queue_name};
use export_queue::keyspace::{Bytes, Tx, Undecodable};
use futures::try_join;

use super::batches::parse_batch;
use super::console::{Console, MAX_ROWS, next_page};
use super::found::Dequeue;
use super::groups::why_not_started;
use super::payload::decode;
use crate::error::{Error, Result};
use crate::report::{self, QueueState, Time};

impl Console {
    /// Returns a page of the items in a place: those in up to `limit` rows after a cursor.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Malformed`] for a place or a cursor that is none, and
    /// those of the store.
    pub async fn items(
        &self,
        name: &str,
        place: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<report::Items> {
        let listing = Listing::new(parse_place(place)?);
        self.listed(name, listing, after, limit).await
    }

    /// Returns a page of those items in a place that belong to a group, a batch or a kind: up to `limit` after a
    /// cursor. If the page has fewer, or none, there may be more on the next one.
    ///
    /// # Errors
    /// As [`items`](Self::items), a group name or a kind of an invalid length, and a batch of another queue.
    pub async fn items_of(
        &self,
        name: &str,
        place: &str,
        items: &ItemsOf,
        after: Option<&str>,
        limit: usize,
    ) -> Result<report::Items> {
        let listing = Listing::new(parse_place(place)?).with_items_of(items.clone());
        self.listed(name, listing, after, limit).await
    }

    async fn listed(
        &self,
        name: &str,
        listing: Listing,
        after: Option<&str>,
        limit: usize,
    ) -> Result<report::Items> {
        let found = &self.find_dequeue(name, "items by place").await?;
        let listing = &listing;
        let cursor = after.map(parse_cursor).transpose()?;
        let after = cursor.as_ref();
        let limit = limit.clamp(1, MAX_ROWS);
        let read = |tr: Tx<_>| async move {
            let stats = found.queue.stats(&tr).await?;
            let mut page = found.queue.list(&tr, listing, after, limit).await?;
            if page.next.is_some() {
                let rest = found
                    .queue
                    .list(&tr, listing, page.next.as_ref(), 1)
                    .await?;
                let has_more = !rest.items.is_empty() || !rest.strays.is_empty();
                if !has_more && rest.next.is_none() {
                    page.next = None;
                }
            }
            Ok::<_, Error>((stats, page))
        };
        let (stats, page) = self.reader.run(read).await?;
        let items = page
            .items
            .into_iter()
            .map(|item| listed_item(&found.codec, item));
        let strays = page
            .strays
            .into_iter()
            .map(|stray| unreadable_item(String::new(), &stray));
        Ok(report::Items {
            queue: found.name.clone(),
            place: listing.place(),
            count: match listing.items_of() {
                Some(_) => None,
                None => count_of(listing.place(), &stats),
            },
            items: items.chain(strays).collect(),
            next: page.next.map(|cursor| cursor.to_string()),
        })
    }

    /// Returns an item, wherever it is.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Missing`], a malformed reference or one of another queue,
    /// and those of the store.
    pub async fn item(&self, name: &str, item: &str) -> Result<report::Item> {
        let found = &self.find_dequeue(name, "items").await?;
        let reference = &parse_item(item)?;
        let read = |tr: Tx<_>| async move {
            let Some(status) = found.queue.status(&tr, reference).await? else {
                return Ok(None);
            };
            let not_started = why_not_started(&tr, found, &status).await?;
            let mut report = item_of(&found.codec, reference, status);
            report.not_started = not_started;
            Ok::<_, Error>(Some(report))
        };
        let report = self.reader.run(read).await?;
        report.ok_or_else(|| missing_item(item))
    }

    /// Returns the kinds of the first items of a queue that wait, and those that sessions take.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], and those of the store.
    pub async fn kinds(&self, name: &str) -> Result<report::Kinds> {
        let found = &self.find_dequeue(name, "kinds of items").await?;
        let read = |tr: Tx<_>| async move { found.queue.kinds(&tr).await };
        let kinds = self.reader.run(read).await?.into_iter();
        Ok(report::Kinds {
            queue: found.name.clone(),
            kinds: kinds
                .map(|state| report::Kind {
                    kind: state.kind,
                    sessions: state.sessions,
                    waiting: state.waiting,
                })
                .collect(),
        })
    }

    /// Returns a page of the schedules of a queue, or of one of their owners: up to `limit` after the one of this name.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], and those of the store.
    pub async fn schedules(
        &self,
        name: &str,
        owner: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<report::Schedules> {
        let found = &self.find_dequeue(name, "schedules").await?;
        let queue = &found.queue;
        let limit = limit.clamp(1, MAX_ROWS);
        let read = async |tr| match owner {
            Some(owner) => queue.schedules_of(&tr, owner, after, limit + 1).await,
            None => queue.schedules(&tr, after, limit + 1).await,
        };
        let mut listed = self.reader.run(read).await?;
        let next = next_page(&mut listed, limit).map(|last| last.name.clone());
        let listed = listed.into_iter();
        Ok(report::Schedules {
            queue: found.name.clone(),
            schedules: listed
                .map(|schedule| schedule_of(&found.codec, schedule))
                .collect(),
            next,
        })
    }

    /// Returns the settings of a queue.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], and those of the store.
    pub async fn settings(&self, name: &str) -> Result<report::Settings> {
        let found = &self.find_dequeue(name, "settings").await?;
        let read = |tr| async move { found.queue.settings(&tr).await };
        let settings = self.reader.run(read).await?;
        Ok(report::Settings {
            queue: found.name.clone(),
            lease_seconds: settings.lease().as_secs_f64(),
            max_attempts: settings.max_attempts(),
            max_deaths: settings.max_deaths(),
            max_deliveries: settings.max_deliveries(),
            dedupe_retention_seconds: settings.dedupe_retention().as_secs_f64(),
            keep_done_seconds: settings.keep_done().as_secs_f64(),
            deaths: settings.deaths().map(queue_name),
        })
    }

    pub(super) async fn dequeue_state(&self, found: &Dequeue) -> Result<QueueState> {
        let queue = &found.queue;
        let read = |tr: Tx<_>| async move {
            let (stats, paused) = try_join!(queue.stats(&tr), queue.is_paused(&tr))?;
            let (oldest, unknown) = try_join!(queue.oldest_age(&tr), queue.unknown_kinds(&tr))?;
            // Sessions skip a first item that does not decode, so that nothing else shows it.
            let problem = match queue.list(&tr, PlaceKind::Queued, None, 1).await {
                Ok(page) => problem_of(&page),
                Err(error) if corrupt_key(&error).is_some() => Some(chain(&error).to_string()),
                Err(error) => return Err(Error::from(error)),
            };
            Ok((stats, paused, oldest, unknown, problem))
        };
        let (stats, paused, oldest, unknown_kinds, problem) = self.reader.run(read).await?;
        Ok(QueueState::HcDequeue(report::DequeueState {
            paused,
            queued: stats.queued,
            delayed: stats.delayed,
            held: stats.held,
            dead: stats.dead,
            completed: stats.completed,
            cancelled: stats.cancelled,
            removed: stats.removed,
            oldest_seconds: oldest.map(|age| age.as_secs_f64()),
            problem,
            unknown_kinds,
            sessions: self.living(queue.sessions()).await?,
        }))
    }
}

/// Returns the place that has a name: `queued`, `delayed`, `held`, `dead` or `done`.
///
/// # Errors
/// [`Error::Malformed`] for another name.
pub fn parse_place(place: &str) -> Result<PlaceKind> {
    let mut places = PlaceKind::ALL.into_iter();
    places
        .find(|kind| kind.name() == place)
        .ok_or_else(|| Error::Malformed {
            what: "place",
            given: place.to_owned(),
            reason: "expected queued, delayed, held, dead or done".to_owned(),
        })
}

/// Returns the items of a group, which is text, or `0x` and hexadecimal digits, the members of a batch, or the items of
/// a kind, if one of these was given.
///
/// # Errors
/// [`Error::Malformed`] for a batch that is none, and if several were given.
pub fn parse_items_of(
    group: Option<&str>,
    batch: Option<&str>,
    kind: Option<&str>,
) -> Result<Option<ItemsOf>> {
    match (group, batch, kind) {
        (None, None, None) => Ok(None),
        (Some(group), None, None) => Ok(Some(ItemsOf::group(parse_bytes(group)))),
        (None, Some(batch), None) => Ok(Some(ItemsOf::batch(&parse_batch(batch)?))),
        (None, None, Some(kind)) => Ok(Some(ItemsOf::kind(kind))),
        (group, batch, kind) => {
            let given = [group, batch, kind].into_iter().flatten();
            Err(Error::Malformed {
                what: "selection",
                given: given.collect::<Vec<_>>().join(", "),
                reason: "select by a group, by a batch or by a kind, not by several".to_owned(),
            })
        }
    }
}

/// Returns the reference that a listing has given.
pub(crate) fn parse_item(text: &str) -> Result<ItemRef> {
    text.parse().map_err(|_| Error::Malformed {
        what: "item",
        given: text.to_owned(),
        reason: "expected a reference as `list` prints it".to_owned(),
    })
}

/// Returns the cursor that a page has given.
pub(crate) fn parse_cursor(text: &str) -> Result<Cursor> {
    text.parse().map_err(|_| Error::Malformed {
        what: "page",
        given: text.to_owned(),
        reason: "begin with the first page".to_owned(),
    })
}

pub(crate) fn missing_item(item: &str) -> Error {
    Error::Missing {
        what: "item",
        given: item.to_owned(),
        hint: "it is done and not kept, or it never was",
    }
}

/// Returns how many items a place has, by the counter of the queue. `None`: nothing counts them.
pub(crate) fn count_of(place: PlaceKind, stats: &Stats) -> Option<u64> {
    match place {
        PlaceKind::Queued => Some(stats.queued),
        PlaceKind::Delayed => Some(stats.delayed),
        PlaceKind::Held => Some(stats.held),
        PlaceKind::Dead => Some(stats.dead),
        _ => None,
    }
}

/// Returns an item as a listing has it.
pub(crate) fn listed_item(codec: &str, listed: ListedItem<Bytes>) -> report::Item {
    match listed.status {
        Ok(status) => item_of(codec, &listed.item, status),
        Err(error) => unreadable_item(listed.item.to_string(), &error),
    }
}

fn unreadable_item(item: String, problem: &Undecodable) -> report::Item {
    report::Item {
        item,
        problem: Some(problem.to_string()),
        ..report::Item::default()
    }
}

fn item_of(codec: &str, item: &ItemRef, status: Status<Bytes>) -> report::Item {
    let payload = match status.value {
        Ok(bytes) => bytes,
        Err(error) => error.bytes,
    };
    let mut report = report::Item {
        item: item.to_string(),
        enqueued: Some(status.enqueued.into()),
        granted: status.granted.map(Time::from),
        dedupe: text_unless_empty(&status.dedupe),
        kind: status.kind,
        priority: status.priority,
        group: text_unless_empty(&status.group),
        has_slot: status.has_slot,
        batch: status.batch.map(|batch| batch.to_string()),
        attempts: status.attempts,
        deaths: status.deaths,
        deliveries: status.deliveries,
        failure: status.failure.map(failure_of),
        steps: status.steps,
        progress: status.progress.map(|progress| report::Progress {
            done: progress.done,
            total: progress.total,
            text: progress.text,
        }),
        payload: Some(decode(codec, &payload)),
        ..report::Item::default()
    };
    if !status.result.is_empty() {
        // Results and checkpoints are bytes of the handler's choice.
        report.result = Some(decode("Raw", &status.result));
    }
    if !status.checkpoint.is_empty() {
        report.checkpoint = Some(decode("Raw", &status.checkpoint));
    }
    let place = match status.place {
        Place::Queued => PlaceKind::Queued,
        Place::Delayed { until } => {
            report.until = Some(until.into());
            PlaceKind::Delayed
        }
        Place::Held {
            session,
            is_cancelled,
        } => {
            report.session = Some(session.to_string());
            report.cancelled = is_cancelled;
            PlaceKind::Held
        }
        Place::Done { end, at } => {
            report.end = Some(end_text(end).to_owned());
            report.ended = Some(at.into());
            PlaceKind::Done
        }
        _ => PlaceKind::Dead,
    };
    report.place = Some(place);
    report
}

fn text_unless_empty(bytes: &Bytes) -> Option<String> {
    if bytes.is_empty() {
        return None;
    }
    Some(bytes_text(bytes))
}

fn failure_of(failure: Failure) -> report::Failure {
    report::Failure {
        time: Some(failure.time.into()),
        reason: failure.reason,
    }
}

fn end_text(end: End) -> &'static str {
    match end {
        End::Completed => "completed",
        End::Cancelled => "cancelled",
        _ => "removed",
    }
}

fn schedule_of(codec: &str, listed: ListedSchedule<Bytes>) -> report::Schedule {
    let name = listed.name;
    match listed.entry {
        Ok(entry) => schedule_entry(codec, name, entry),
        Err(error) => report::Schedule {
            name,
            problem: Some(error.to_string()),
            ..report::Schedule::default()
        },
    }
}

fn schedule_entry(codec: &str, name: String, entry: ScheduleEntry<Bytes>) -> report::Schedule {
    let schedule: &Schedule = &entry.schedule;
    let missed = match schedule.missed() {
        Missed::Skip => "skip".to_owned(),
        Missed::All { cap } => format!("all, up to {cap}"),
        _ => "latest".to_owned(),
    };
    let payload = match &entry.payload {
        Ok(bytes) => bytes,
        Err(error) => &error.bytes,
    };
    report::Schedule {
        name,
        owner: entry.owner,
        cron: Some(schedule.cron().to_owned()),
        time_zone: Some(schedule.time_zone().to_owned()),
        missed: Some(missed),
        options: options_text(schedule.enqueue_options()),
        next: entry.next.map(Time::from),
        expected: entry.expected.map(Time::from),
        last: entry.last.map(Time::from),
        payload: Some(decode(codec, payload)),
        problem: entry.error,
    }
}

/// Returns what the options of an enqueue say, or `None` if they are the default ones.
fn options_text(options: &Enqueue) -> Option<String> {
    let span = |time: Duration| format!("{time:?}");
    let number = |number: i64| match number {
        0 => None,
        other => Some(other.to_string()),
    };
    let repeats = match options.on_repeat() {
        OnRepeat::Replace => Some("replace".to_owned()),
        OnRepeat::Debounce => Some("debounce".to_owned()),
        _ => None,
    };
    let dedupe = options.dedupe().map(|id| bytes_text(id));
    let group = options.group().map(|group| bytes_text(group));
    let depth = options.max_depth().map(|items| items.to_string());
    let parts: Vec<_> = [
        ("kind", options.kind().map(str::to_owned)),
        ("after", options.delay().map(span)),
        ("priority", number(options.priority().into())),
        ("group", group),
        ("dedupe", dedupe),
        ("on repeat", repeats),
        ("max wait", options.max_wait().map(span)),
        ("max depth", depth),
        ("max attempts", number(options.max_attempts().into())),
        ("max deaths", number(options.max_deaths().into())),
        ("max deliveries", number(options.max_deliveries().into())),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some(format!("{name} {}", value?)))
    .collect();
    if parts.is_empty() {
        return None;
    }
    Some(parts.join(", "))
}

/// Returns why the first row of a page does not decode, or `None` if it does.
fn problem_of<T>(page: &ItemPage<T>) -> Option<String> {
    if let Some(stray) = page.strays.first() {
        return Some(stray.to_string());
    }
    match &page.items.first()?.status {
        Ok(status) => Some(status.value.as_ref().err()?.to_string()),
        Err(undecodable) => Some(undecodable.to_string()),
    }
}
