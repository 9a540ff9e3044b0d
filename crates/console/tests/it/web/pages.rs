//! What the pages and the JSON show.

use std::time::Duration;

use axum::http::StatusCode;
use console::WebOptions;
use export_queue::hc_dequeue::WorkerOptions;
use export_queue::keyspace::{Ids, Subspace};
use serde_json::json;

use crate::web::site::{PATIENCE, TestSite, enqueue, open, runner};

#[tokio::test]
async fn an_empty_store_has_an_overview() {
    let site = TestSite::read_only(&runner());
    let page = site.shown("/").await;
    assert!(page.text.contains("No queue is registered"));
    assert_eq!(
        site.shown("/api/queues").await.json()["queues"],
        serde_json::json!([])
    );
    for path in [
        "/static/console.css",
        "/static/console.js",
        "/static/icon.svg",
    ] {
        site.shown(path).await;
    }
}

#[tokio::test]
async fn the_overview_names_every_queue_and_what_stands_against_it() {
    let runner = runner();
    let open_orders = open(&runner, Subspace::from(("orders", "open"))).await;
    open(&runner, Subspace::from("jobs")).await;
    enqueue(&runner, &open_orders, &["a", "b", "c"]).await;
    let strange = |tr| async move {
        Ids::default()
            .register(&tr, &Subspace::from("strange"), "telepathy", &[])
            .await
    };
    runner.run(strange).await.unwrap();
    let site = TestSite::new(&runner, WebOptions::new().mounted_at("/console/"));
    let page = site.shown("/").await;
    for text in [
        r#"href="/console/queues/orders%2Fopen""#,
        r#"href="/console/queues/jobs""#,
        r#"data-events="/console/events""#,
        "no consumers",
        "telepathy",
        "3 queues: 1 unreadable, 1 without consumers.",
    ] {
        assert!(page.text.contains(text), "{text}: {}", page.text);
    }
    let queues = site.shown("/api/queues").await.json();
    let names: Vec<_> = queues["queues"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 3);
    assert_eq!(names[1]["name"], "orders/open");
    assert_eq!(names[1]["recipe"], "hc-dequeue");
    assert_eq!(names[1]["queued"], 3);
    let strange = site.shown("/queues/strange").await;
    assert!(strange.text.contains("telepathy"));
    let refused = site.get("/queues/strange/sessions").await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn a_queue_shows_which_session_holds_what_and_what_fails_and_why() {
    let runner = runner();
    let queue = open(&runner, Subspace::from("jobs")).await;
    enqueue(&runner, &queue, &["held", "dead", "dead", "dead", "queued"]).await;
    let consumer = queue
        .consumer(&runner, WorkerOptions::default())
        .await
        .unwrap();
    let held = consumer.dequeue_within(PATIENCE).await.unwrap().unwrap();
    let at_work = &held;
    let progress = |tr| async move { at_work.set_progress(&tr, 7, 9, "sorting").await };
    runner.run(progress).await.unwrap();
    for reason in ["no route", "disk full", "disk full"] {
        let dead = consumer.dequeue_within(PATIENCE).await.unwrap().unwrap();
        dead.discard(reason).await.unwrap();
    }
    let site = TestSite::read_only(&runner);
    let page = site.shown("/queues/jobs").await;
    let (_, reasons) = page.text.split_once("What fails and why").unwrap();
    let frequent = reasons.find("disk full").unwrap();
    assert!(frequent < reasons.find("no route").unwrap());
    assert!(
        reasons.contains(r#"<td class="number">2</td><td>disk full</td>"#),
        "{reasons}"
    );
    for place in ["queued", "delayed", "held", "dead", "done"] {
        let page = site.shown(&format!("/queues/jobs/items/{place}")).await;
        assert!(page.text.contains(r#"aria-current="page""#));
        let json = site
            .shown(&format!("/api/queues/jobs/items/{place}"))
            .await
            .json();
        assert_eq!(json["place"], place);
        let items = json["items"].as_array().unwrap();
        for item in items {
            let item = item["item"].as_str().unwrap();
            assert!(page.text.contains(item), "{place}");
            let shown = site.shown(&format!("/queues/jobs/item/{item}")).await;
            assert!(shown.text.contains(item));
            let json = site
                .shown(&format!("/api/queues/jobs/item/{item}"))
                .await
                .json();
            assert_eq!(json["place"], place);
        }
        let expected = [("held", 1), ("dead", 3), ("queued", 1)]
            .iter()
            .find(|(one, _)| *one == place);
        assert_eq!(
            items.len(),
            expected.map_or(0, |(_, count)| *count),
            "{place}"
        );
    }
    let held = held.item_ref().to_string();
    let item = site.shown(&format!("/queues/jobs/item/{held}")).await;
    let sessions = site.shown("/api/queues/jobs/sessions").await.json();
    let session = sessions["sessions"][0]["session"].as_str().unwrap();
    assert!(item.text.contains(session), "the holder");
    let far = "7 of 9: sorting";
    assert!(item.text.contains(&format!("<dd>{far}</dd>")));
    let listing = site.shown("/queues/jobs/items/held").await;
    assert!(listing.text.contains(far));
    let json = site
        .shown(&format!("/api/queues/jobs/item/{held}"))
        .await
        .json();
    let expected = json!({ "done": 7, "total": 9, "text": "sorting" });
    assert_eq!(json["progress"], expected);
    let sessions = site.shown("/queues/jobs/sessions").await;
    assert!(sessions.text.contains(session) && sessions.text.contains("alive"));
    consumer.shut_down(Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn listings_are_paged_by_cursors_and_bounded() {
    let runner = runner();
    let queue = open(&runner, Subspace::from("jobs")).await;
    let jobs: Vec<String> = (0..250).map(|number| format!("job {number}")).collect();
    let values: Vec<&str> = jobs.iter().map(|value| &**value).collect();
    enqueue(&runner, &queue, &values).await;
    let site = TestSite::read_only(&runner);
    let mut path = "/queues/jobs/items/queued".to_owned();
    let mut found = Vec::new();
    for rows in [100, 100, 50] {
        let page = site.shown(&path).await;
        let items: Vec<_> = page
            .text
            .split(r#"scope="row"><a href=""#)
            .skip(1)
            .map(|row| row[..row.find('"').unwrap()].to_owned())
            .collect();
        assert_eq!(items.len(), rows);
        found.extend(items);
        if rows == 100 {
            let next = page.after("items/queued?after=");
            path = format!("/queues/jobs/items/queued?after={next}");
        } else {
            assert!(!page.text.contains("Next page"));
        }
    }
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 250);
    let page = site
        .shown("/api/queues/jobs/items/queued?limit=7")
        .await
        .json();
    assert_eq!(page["items"].as_array().unwrap().len(), 7);
    assert_eq!(page["count"], 250);
    let next = page["next"].as_str().unwrap();
    let page = site
        .shown(&format!(
            "/api/queues/jobs/items/queued?limit=1000000&after={next}"
        ))
        .await
        .json();
    assert_eq!(page["items"].as_array().unwrap().len(), 243);
}

#[tokio::test]
async fn what_is_not_there_or_malformed_has_a_status_and_the_next_step() {
    let runner = runner();
    let queue = open(&runner, Subspace::from("jobs")).await;
    enqueue(&runner, &queue, &["a", "b"]).await;
    open(&runner, Subspace::from("other")).await;
    let site = TestSite::read_only(&runner);
    let items = site
        .shown("/api/queues/jobs/items/queued?limit=1")
        .await
        .json();
    let item = items["items"][0]["item"].as_str().unwrap();
    let token = items["next"].as_str().unwrap();
    let table = [
        ("/nothing".to_owned(), StatusCode::NOT_FOUND),
        ("/queues/none".to_owned(), StatusCode::NOT_FOUND),
        ("/queues/%22".to_owned(), StatusCode::NOT_FOUND),
        ("/queues/%FF".to_owned(), StatusCode::BAD_REQUEST),
        ("/queues/none/items/dead".to_owned(), StatusCode::NOT_FOUND),
        (
            "/queues/jobs/items/limbo".to_owned(),
            StatusCode::BAD_REQUEST,
        ),
        ("/queues/jobs/item/xyz".to_owned(), StatusCode::BAD_REQUEST),
        (format!("/queues/other/item/{item}"), StatusCode::NOT_FOUND),
        (
            "/queues/jobs/items/queued?after=old".to_owned(),
            StatusCode::BAD_REQUEST,
        ),
        (
            format!("/queues/jobs/items/dead?after={token}"),
            StatusCode::BAD_REQUEST,
        ),
        (
            "/queues/jobs/items/queued?count=x".to_owned(),
            StatusCode::BAD_REQUEST,
        ),
        (
            "/queues/jobs/pause".to_owned(),
            StatusCode::METHOD_NOT_ALLOWED,
        ),
        // An audit reads the whole queue: only the command does it.
        ("/queues/jobs/audit".to_owned(), StatusCode::NOT_FOUND),
    ];
    for (path, status) in table {
        let page = site.get(&path).await;
        assert_eq!(page.status, status, "{path}: {}", page.text);
        assert!(page.text.contains("Overview of all queues"), "{path}");
        assert!(
            page.headers["content-type"]
                .to_str()
                .unwrap()
                .starts_with("text/html")
        );
        if path.contains("count=") {
            continue;
        }
        let json = site.get(&format!("/api{path}")).await;
        assert_eq!(json.status, status, "/api{path}");
        assert!(json.json()["error"].is_string() && json.json()["causes"].is_array());
    }
    let events = site.get("/events/queues/none").await;
    assert_eq!(events.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn settings_and_schedules_are_shown() {
    let runner = runner();
    crate::web::site::evil_queue(&runner).await;
    let site = TestSite::read_only(&runner);
    let name = crate::web::site::evil_segment();
    let schedules = site
        .shown(&format!("/api/queues/{name}/schedules"))
        .await
        .json();
    assert_eq!(schedules["schedules"][0]["name"], crate::web::site::EVIL);
    let schedules = site.shown(&format!("/queues/{name}/schedules")).await;
    assert!(schedules.text.contains("0 4 * * *"));
    let owner = crate::web::site::EVIL;
    let owner: String = owner.bytes().map(|byte| format!("%{byte:02X}")).collect();
    for (owner, rows) in [(&*owner, 1), ("nobody", 0)] {
        let path = format!("queues/{name}/schedules?owner={owner}");
        let listed = site.shown(&format!("/api/{path}")).await.json();
        assert_eq!(listed["schedules"].as_array().unwrap().len(), rows);
        let listed = site.shown(&format!("/{path}")).await;
        assert_eq!(listed.text.contains("0 4 * * *"), rows > 0);
    }
    let settings = site
        .shown(&format!("/api/queues/{name}/settings"))
        .await
        .json();
    assert_eq!(settings["keep_done_seconds"], 3_600.0);
    let queue = site.shown(&format!("/queues/{name}")).await;
    assert!(queue.text.contains("Done items are kept for</dt><dd>1 h"));
}
