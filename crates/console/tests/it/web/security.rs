//! Hostile hosts, contents and requests.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use console::WebOptions;
use export_queue::keyspace::Subspace;
use futures::future::join_all;
use tower::ServiceExt;

use crate::web::site::{
    EVIL, TestSite, enqueue, evil_queue, evil_segment, open, request, rows, runner,
    runner_with_clock,
};

/// Returns the paths of all pages that show something of the evil queue.
pub(crate) async fn all_pages(site: &TestSite) -> Vec<String> {
    let name = evil_segment();
    let mut paths = vec!["/".to_owned()];
    for page in ["", "/groups", "/batches", "/sessions", "/schedules"] {
        paths.push(format!("/queues/{name}{page}"));
    }
    for place in ["queued", "delayed", "held", "dead", "done"] {
        paths.push(format!("/queues/{name}/items/{place}"));
        let items = site
            .shown(&format!("/api/queues/{name}/items/{place}"))
            .await
            .json();
        for item in items["items"].as_array().unwrap() {
            paths.push(format!(
                "/queues/{name}/item/{}",
                item["item"].as_str().unwrap()
            ));
        }
    }
    assert_eq!(
        paths.len(),
        15,
        "an item in each place but `held`: {paths:?}"
    );
    paths
}

fn check_escaped(path: &str, html: &str) {
    let scripts: Vec<_> = html.match_indices("<script").collect();
    assert!(scripts.len() <= 1, "only our own script on {path}: {html}");
    assert!(!html.contains("<img"), "{path}");
    assert!(!html.contains(r#"</script>""#), "{path}");
    for attribute in ["style=", "onclick=", "onload="] {
        assert!(!html.contains(attribute), "{attribute} on {path}");
    }
    // Nothing is loaded from elsewhere.
    for attribute in ["src=\"http", "href=\"http", "src=\"//", "href=\"//"] {
        assert!(!html.contains(attribute), "{attribute} on {path}");
    }
}

#[tokio::test]
async fn what_is_stored_is_shown_as_text_on_every_page() {
    let runner = runner();
    evil_queue(&runner).await;
    for site in [
        TestSite::read_only(&runner),
        TestSite::with_changes(&runner),
    ] {
        for path in all_pages(&site).await {
            let page = site.shown(&path).await;
            check_escaped(&path, &page.text);
            assert!(
                page.text.contains("&#60;script&#62;"),
                "{path} shows it as text"
            );
        }
    }
    // What is wrong with a request is shown too.
    let site = TestSite::read_only(&runner);
    let evil: String = EVIL.bytes().map(|byte| format!("%{byte:02X}")).collect();
    for path in [
        format!("/queues/{evil}"),
        format!("/queues/{}/items/{evil}", evil_segment()),
        format!("/queues/{}/item/{evil}", evil_segment()),
        format!("/queues/{}/items/dead?after={evil}", evil_segment()),
        format!("/?done={evil}"),
    ] {
        check_escaped(&path, &site.get(&path).await.text);
    }
}

#[tokio::test]
async fn reading_changes_nothing() {
    let runner = runner();
    evil_queue(&runner).await;
    let site = TestSite::with_changes(&runner);
    let before = rows(runner.database()).await;
    let pages = all_pages(&site).await;
    let api = pages
        .iter()
        .filter(|path| path.len() > 1)
        .map(|path| format!("/api{path}"));
    let rest = [
        "/api/queues",
        "/api/token",
        "/events",
        "/?done=purge&count=3",
    ]
    .into_iter()
    .map(str::to_owned);
    let name = evil_segment();
    let forms = ["pause", "resume"].map(|verb| format!("/queues/{name}/{verb}?token=x"));
    for path in pages.iter().cloned().chain(api).chain(rest).chain(forms) {
        for method in [Method::HEAD, Method::GET, Method::PUT, Method::DELETE] {
            let is_read = method == Method::HEAD || method == Method::GET;
            if path == "/events" && is_read {
                continue;
            }
            let answer = site.request(method, &path).await;
            let is_refused = answer.status == StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(is_refused, !is_read || path.contains("?token"), "{path}");
        }
    }
    assert!(before == rows(runner.database()).await);
}

#[tokio::test]
async fn every_answer_has_the_headers_that_confine_it() {
    let site = TestSite::read_only(&runner());
    for path in [
        "/",
        "/nothing",
        "/api/queues",
        "/api/nothing",
        "/static/console.js",
    ] {
        let answer = site.get(path).await;
        let header = |name: &str| answer.headers[name].to_str().unwrap();
        let policy = header("content-security-policy");
        for part in [
            "default-src 'none'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(part), "{path}");
        }
        assert!(!policy.contains("unsafe"));
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("referrer-policy"), "same-origin");
        assert_eq!(header("cache-control"), "no-store");
        assert!(!answer.headers.contains_key("access-control-allow-origin"));
    }
}

#[tokio::test]
async fn requests_for_other_hosts_are_refused_with_an_explanation() {
    let site = TestSite::new(&runner(), WebOptions::new().allow_host("ok.example"));
    let get = |hosts: &[&str], uri: &str| {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header("host", *host);
        }
        request.body(Body::empty()).unwrap()
    };
    for host in ["localhost", "127.0.0.1:99", "[::1]:99", "OK.example:443"] {
        let answer = site.send(get(&[host], "/")).await;
        assert_eq!(answer.status, StatusCode::OK, "{host}");
    }
    // HTTP/2 has the host in the URI, and no header.
    for uri in ["http://localhost:99/", "https://ok.example/"] {
        let answer = site.send(get(&[], uri)).await;
        assert_eq!(answer.status, StatusCode::OK, "{uri}");
    }
    let refused: [(&[&str], &str); 8] = [
        (&[], "/"),
        (&[], "http://evil.example/"),
        (&["evil.example"], "http://localhost/"),
        (&["evil.example"], "/api/queues"),
        (&["evil.example"], "/static/console.js"),
        (&["localhost", "evil.example"], "/"),
        (&["localhost"], "http://evil.example/"),
        (&["localhost.evil.example"], "/events"),
    ];
    for (hosts, uri) in refused {
        let answer = site.send(get(hosts, uri)).await;
        assert_eq!(
            answer.status,
            StatusCode::MISDIRECTED_REQUEST,
            "{hosts:?} {uri}"
        );
        assert!(answer.text.contains("host name"));
    }
}

#[tokio::test]
async fn another_site_can_open_pages_and_have_nothing_else_read() {
    let runner = runner();
    open(&runner, Subspace::from("jobs")).await;
    let site = TestSite::with_changes(&runner);
    let send = async |path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::builder().uri(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = site
            .router
            .clone()
            .oneshot(request.body(Body::empty()).unwrap())
            .await;
        answer.unwrap().status()
    };
    let paths = ["/", "/queues/jobs", "/api/queues", "/api/token", "/events"];
    let fetch = |site| [("sec-fetch-site", site), ("sec-fetch-mode", "no-cors")];
    let frame = [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "iframe"),
    ];
    for path in paths {
        for site in ["cross-site", "same-site"] {
            let status = send(path, &fetch(site)).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{path} for {site}");
        }
        assert_eq!(send(path, &frame).await, StatusCode::FORBIDDEN, "{path}");
        for site in ["same-origin", "none"] {
            assert_eq!(send(path, &fetch(site)).await, StatusCode::OK, "{path}");
        }
    }
    let mut link = frame;
    link[2].1 = "document";
    assert_eq!(send("/queues/jobs", &link).await, StatusCode::OK);
}

#[tokio::test]
async fn oversized_and_malformed_requests_are_refused() {
    let runner = runner();
    let queue = open(&runner, Subspace::from("jobs")).await;
    enqueue(&runner, &queue, &["a"]).await;
    let site = TestSite::with_changes(&runner);
    let token = site.token().await;
    let large = format!("token={token}&item={}", "x".repeat(64 * 1024));
    let answer = site.post("/queues/jobs/items/queued", &large).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(answer.text.contains("64 KiB"));
    let no_form = request(Method::POST, "/queues/jobs/pause", Body::from("{}"));
    let answer = site.send(no_form).await;
    assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let answer = site.post("/queues/jobs/pause", "%ff%00=&&==").await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn requests_are_bounded_in_number_and_in_time() {
    let (runner, clock) = runner_with_clock();
    open(&runner, Subspace::from("jobs")).await;
    let site = TestSite::with_changes(&runner);
    let mut slow = Box::pin(join_all((0..64).map(|_| {
        let body = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
        let mut request = request(Method::POST, "/queues/jobs/pause", body);
        let form = "application/x-www-form-urlencoded".parse().unwrap();
        request.headers_mut().insert("content-type", form);
        site.send(request)
    })));
    assert!(futures::poll!(slow.as_mut()).is_pending());
    assert_eq!(site.get("/").await.status, StatusCode::SERVICE_UNAVAILABLE);
    clock.advance(std::time::Duration::from_secs(9));
    assert!(futures::poll!(slow.as_mut()).is_pending());
    clock.advance(std::time::Duration::from_secs(1));
    for answer in slow.await {
        assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
        // A commit may have been sent.
        assert!(answer.text.contains("it may have been carried out"));
        assert!(!answer.text.contains("reload"), "that would repeat it");
    }
    site.shown("/").await;
}
