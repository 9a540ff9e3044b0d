//! What moves, as server-sent events: `state` with the part of the page that moves, as HTML in a JSON string; `trouble`
//! with the reason why the store could not be looked at.

use std::convert::Infallible;
use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use futures::StreamExt;
use futures::stream::BoxStream;

use super::live::{OverviewLive, QueueLive};
use super::refusal::Refusal;
use super::sampler::{Listener, News, Tick, Topic};
use super::site::Site;
use export_queue::keyspace::plain::line;

type Events = BoxStream<'static, Result<Event, Infallible>>;

/// `/events`: the overview.
pub(super) async fn overview(State(site): State<Site>) -> Result<Sse<Events>, Refusal> {
    listen(&site, Topic::Overview)
}

/// `/events/queues/{name}`: a queue.
pub(super) async fn queue(
    State(site): State<Site>,
    Path(name): Path<String>,
) -> Result<Sse<Events>, Refusal> {
    // So that one that is not there is refused, and not tried again. A queue may be asked for by another spelling
    // of its name than the one by which looks know it.
    let queue = site.console.queue(&name).await?;
    listen(&site, Topic::Queue(queue.name))
}

fn listen(site: &Site, topic: Topic) -> Result<Sse<Events>, Refusal> {
    let Some(listener) = site.sampler.listen(topic) else {
        let message = "too many pages are open: this one is not updated";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message));
    };
    let base: Arc<str> = site.options.base.as_str().into();
    let rendered = futures::stream::unfold(listener, move |mut listener: Listener| {
        let base = base.clone();
        async move {
            let news = listener.next().await;
            let event = event_of(&base, listener.topic(), &news);
            Some((Ok(event), listener))
        }
    });
    let events: Events = match &site.options.shutdown {
        Some(shutdown) => Box::pin(rendered.take_until(shutdown.clone())),
        None => Box::pin(rendered),
    };
    Ok(Sse::new(events))
}

fn event_of(base: &str, topic: &Topic, news: &News) -> Event {
    let rendered = match (news, topic) {
        (News::Seen(tick), Topic::Overview) => Ok(overview_of(base, tick)),
        (News::Seen(tick), Topic::Queue(name)) => match tick.queue(name) {
            Some(live) => Ok(rendered(&QueueLive::of(base, live)).into()),
            None => Err("the queue no longer exists".into()),
        },
        (News::Failed(reason), _) => Err(reason.clone()),
    };
    match rendered {
        Ok(text) => Event::default().event("state").data(text),
        Err(reason) => {
            let reason = serde_json::Value::from(line(&*reason)).to_string();
            Event::default().event("trouble").data(reason)
        }
    }
}

/// All listeners get the same text.
fn overview_of(base: &str, tick: &Tick) -> Arc<str> {
    let render = || rendered(&OverviewLive::of(base, &tick.overview)).into();
    tick.rendered.get_or_init(render).clone()
}

/// Returns HTML as a JSON string, which has no line breaks.
fn rendered(template: &impl Template) -> String {
    let html = template.render().unwrap_or_default();
    serde_json::Value::from(html).to_string()
}
