//! The files that the pages load. They are part of the program.

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

pub(super) async fn style() -> impl IntoResponse {
    let text = include_str!("../../static/console.css");
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], text)
}

pub(super) async fn script() -> impl IntoResponse {
    let text = include_str!("../../static/console.js");
    ([(CONTENT_TYPE, "text/javascript; charset=utf-8")], text)
}

pub(super) async fn icon() -> impl IntoResponse {
    let text = include_str!("../../static/icon.svg");
    ([(CONTENT_TYPE, "image/svg+xml")], text)
}
