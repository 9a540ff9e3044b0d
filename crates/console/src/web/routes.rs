//! Which path leads where.

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use super::options::WebOptions;
use super::site::{MAX_BODY_BYTES, Site};
use super::{api, change, events, files, guard, pages};
use crate::look::Console;

/// Returns the console as a router that an application serves, at its root or [below a
/// path](WebOptions::mounted_at).
///
/// It bounds its requests by itself. The server that it is given to bounds the connections, as
/// [`serve`](crate::serve) does. A server that shuts down gracefully waits for the pages that are open in browsers,
/// unless their event streams end with [`WebOptions::shutdown`].
///
/// ```
/// use console::{Console, WebOptions};
/// use export_queue::keyspace::{self, Runner};
/// use futures::FutureExt;
/// use tokio::net::TcpListener;
/// use tokio::sync::oneshot;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // The application sends the signal when it ends. Clones of `stopped` are ready at the same time.
/// let (stop, stopped) = oneshot::channel::<()>();
/// let stopped = stopped.map(drop).shared();
///
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let options = WebOptions::new().mounted_at("/console").shutdown(stopped.clone());
/// let console = console::router(Console::new(&runner), options);
/// let application = axum::Router::new().nest("/console", console);
/// let listener = TcpListener::bind("127.0.0.1:0").await?;
/// # stop.send(()).unwrap();
/// axum::serve(listener, application).with_graceful_shutdown(stopped).await?;
/// # Ok(())
/// # }
/// ```
pub fn router(console: Console, options: WebOptions) -> Router {
    let site = Site::new(console, options);
    page_routes()
        .merge(api_routes())
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn_with_state(site.clone(), guard::guard))
        .with_state(site)
}

fn page_routes() -> Router<Site> {
    Router::new()
        .route("/", get(pages::overview))
        .route("/queues/{name}", get(pages::queue))
        .route("/queues/{name}/pause", post(change::set_paused::<true>))
        .route("/queues/{name}/resume", post(change::set_paused::<false>))
        .route("/queues/{name}/items", post(change::change_items_of))
        .route(
            "/queues/{name}/items/{place}",
            get(pages::items).post(change::change_selected),
        )
        .route(
            "/queues/{name}/item/{item}",
            get(pages::item).post(change::change_item),
        )
        .route(
            "/queues/{name}/groups",
            get(pages::groups).post(change::change_group),
        )
        .route("/queues/{name}/group/{group}", get(pages::group))
        .route(
            "/queues/{name}/batches",
            get(pages::batches).post(change::change_batch),
        )
        .route("/queues/{name}/batch/{batch}", get(pages::batch))
        .route("/queues/{name}/sessions", get(pages::sessions))
        .route("/queues/{name}/schedules", get(pages::schedules))
        .route("/events", get(events::overview))
        .route("/events/queues/{name}", get(events::queue))
        .route("/static/console.css", get(files::style))
        .route("/static/console.js", get(files::script))
        .route("/static/icon.svg", get(files::icon))
}

fn api_routes() -> Router<Site> {
    Router::new()
        .route("/api/queues", get(api::queues))
        .route("/api/queues/{name}", get(api::queue))
        .route(
            "/api/queues/{name}/items",
            post(change::api_change_items_of),
        )
        .route("/api/queues/{name}/items/{place}", get(api::items))
        .route("/api/queues/{name}/item/{item}", get(api::item))
        .route(
            "/api/queues/{name}/groups",
            get(api::groups).post(change::api_change_group),
        )
        .route("/api/queues/{name}/group/{group}", get(api::group))
        .route(
            "/api/queues/{name}/batches",
            get(api::batches).post(change::api_change_batch),
        )
        .route("/api/queues/{name}/batch/{batch}", get(api::batch))
        .route("/api/queues/{name}/kinds", get(api::kinds))
        .route("/api/queues/{name}/sessions", get(api::sessions))
        .route("/api/queues/{name}/schedules", get(api::schedules))
        .route("/api/queues/{name}/settings", get(api::settings))
        .route("/api/queues/{name}/key/{key}", get(api::combine_key))
        .route("/api/queues/{name}/set-aside", get(api::set_aside))
        .route(
            "/api/queues/{name}/letters/{subscription}",
            get(api::letters),
        )
        .route("/api/keys", get(api::keys))
        .route("/api/key/{key}", get(api::key))
        .route("/api/token", get(api::token))
        .route(
            "/api/queues/{name}/pause",
            post(change::api_set_paused::<true>),
        )
        .route(
            "/api/queues/{name}/resume",
            post(change::api_set_paused::<false>),
        )
        .route(
            "/api/queues/{name}/item/{item}/{action}",
            post(change::api_item),
        )
}
