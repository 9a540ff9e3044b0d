//! What every request passes: the host it is for, how many there are, how long it takes; and what every response has.

use std::pin::pin;

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::options::WebOptions;
use super::refusal::Refusal;
use super::site::{REQUEST_LIMIT, Site};
use super::view::{Frame, RefusalPage, page};

/// The header in which browsers say where a request comes from.
pub(super) const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The header in which browsers say how they ask.
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// The header in which browsers say what they do with the answer.
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// What every response has.
///
/// The referrer policy is not `no-referrer`: with it, browsers send `Origin: null` with the forms of our own pages,
/// and no origin could be checked. No other site gets a referrer by this one either.
const HEADERS: [(HeaderName, &str); 4] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
         img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "same-origin"),
    (CACHE_CONTROL, "no-store"),
];

/// Lets a request pass, or refuses it.
pub(super) async fn guard(State(site): State<Site>, request: Request, next: Next) -> Response {
    let is_api = request.uri().path().starts_with("/api");
    let mut response = written(
        match admit(&site, request, next).await {
            Ok(response) => response,
            Err(refusal) => refusal.into_response(),
        },
        is_api,
        &site.options,
    );
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

async fn admit(site: &Site, mut request: Request, next: Next) -> Result<Response, Refusal> {
    add_host(&mut request);
    check_host(&site.options, &request)?;
    check_origin(request.headers())?;
    let changes = request.method() == Method::POST;
    // Listeners leave this as soon as their response begins.
    let Ok(_permit) = site.requests.try_acquire() else {
        let message = "too many requests are being answered";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message));
    };
    let answered = site
        .env
        .timeout(REQUEST_LIMIT, pin!(next.run(request)))
        .await;
    answered.ok_or_else(|| {
        let message = if changes {
            // A commit that was sent is not stopped.
            "the change was not finished within 10 seconds; it may have been carried out, in \
                 part or in full: look before you repeat it"
        } else {
            "the request was not finished within 10 seconds and was given up"
        };
        Refusal::new(StatusCode::GATEWAY_TIMEOUT, message)
    })
}

/// Gives a request of HTTP/2, which has its host in the URI, the header that one of HTTP/1 has.
fn add_host(request: &mut Request) {
    let authority = request.uri().authority();
    let host = authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().entry(HOST).or_insert(host);
    }
}

/// A page of another site can have its name point to this machine. Its requests name that site as their host.
fn check_host(options: &WebOptions, request: &Request) -> Result<(), Refusal> {
    let host = single(request.headers(), &HOST);
    let in_path = request
        .uri()
        .authority()
        .map(|authority| authority.as_str());
    let hosts = [Some(host.unwrap_or_default()), in_path];
    if hosts
        .into_iter()
        .flatten()
        .all(|host| options.allows_host(host))
    {
        Ok(())
    } else {
        let message = "this console does not answer requests for this host name";
        Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, message))
    }
}

/// A page of another site cannot read what it has a browser ask for here, but the store would be read for it, and
/// listeners would take the places of others. Such a page may only open one of ours, by a link for example.
fn check_origin(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut sites = headers.get_all(&FETCH_SITE).iter();
    let is_other = sites.any(|site| site == "cross-site" || site == "same-site");
    let is_page = single(headers, &FETCH_MODE) == Some("navigate")
        && single(headers, &FETCH_DEST) == Some("document");
    if is_other && !is_page {
        let message = "another site may open the pages of this console, and nothing else";
        Err(Refusal::new(StatusCode::FORBIDDEN, message))
    } else {
        Ok(())
    }
}

/// Returns the value of a header that is there once.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    match values.next() {
        None => Some(value),
        Some(_) => None,
    }
}

/// An error under `/api`.
#[derive(Serialize)]
struct ApiError {
    error: String,
    causes: Vec<String>,
}

/// Writes the body of a refusal, and of an error that the router has answered by itself.
fn written(mut response: Response, is_api: bool, options: &WebOptions) -> Response {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let refusal = response
        .extensions_mut()
        .remove::<Refusal>()
        .unwrap_or_else(|| Refusal::of_status(status));
    let body = if is_api {
        axum::Json(ApiError {
            error: refusal.message,
            causes: refusal.causes,
        })
        .into_response()
    } else {
        page(&RefusalPage {
            frame: Frame::plain(options),
            next_step: refusal.next_step(),
            refusal: &refusal,
        })
    };
    let mut parts = response.into_parts().0;
    let body = body.into_parts();
    for name in [CONTENT_TYPE, axum::http::header::CONTENT_LENGTH] {
        parts.headers.remove(&name);
    }
    parts.headers.extend(body.0.headers);
    Response::from_parts(parts, body.1)
}
