//! Changes: what they do, and from where they are accepted.

use axum::body::Body;
use axum::http::{Method, StatusCode};
use export_queue::hc_dequeue::{Batch, Enqueue, Stats, WorkerOptions};
use export_queue::keyspace::{Runner, Store, Subspace, Transaction, Tx};
use serde_json::Value;

use crate::common::assert_valid;
use crate::web::site::{
    Answer, JsonJobs, PATIENCE, TestSite, enqueue, evil_queue, evil_segment, open, request, rows,
    runner,
};

async fn stats(runner: &Runner<Store>, queue: &JsonJobs) -> Stats {
    let read = |tr| async move { queue.stats(&tr).await };
    runner.run(read).await.unwrap()
}

async fn items(site: &TestSite, place: &str) -> Vec<String> {
    let path = format!("/api/queues/jobs/items/{place}");
    let page = site.shown(&path).await.json();
    page["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["item"].as_str().unwrap().to_owned())
        .collect()
}

fn location(answer: &Answer) -> &str {
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    answer.headers["location"].to_str().unwrap()
}

#[tokio::test]
async fn forms_change_items_and_come_back_with_a_notice() {
    let runner = runner();
    let queue = open(&runner, Subspace::from("jobs")).await;
    enqueue(&runner, &queue, &["a", "b", "c", "d"]).await;
    let consumer = queue
        .consumer(&runner, WorkerOptions::default())
        .await
        .unwrap();
    for _ in 0..3 {
        let dead = consumer.dequeue_within(PATIENCE).await.unwrap().unwrap();
        dead.discard("no").await.unwrap();
    }
    consumer.shut_down(PATIENCE).await.unwrap();
    let site = TestSite::with_changes(&runner);
    let dead = items(&site, "dead").await;
    let page = site.shown(&format!("/queues/jobs/item/{}", dead[0])).await;
    let token = page.after(r#"name="token" value=""#);

    let path = format!("/queues/jobs/item/{}", dead[0]);
    let answer = site
        .post(&path, &format!("token={token}&action=redrive"))
        .await;
    let page = site.shown(location(&answer)).await;
    assert!(page.text.contains("Put 1 item back into the queue."));

    let list = "/queues/jobs/items/dead";
    let selected = format!(
        "token={token}&item={}&item={}&item={}",
        dead[0], dead[1], dead[2]
    );
    let answer = site.post(list, &format!("{selected}&action=purge")).await;
    let page = site.shown(location(&answer)).await;
    assert!(
        page.text.contains("Removed 2 items for good."),
        "the redriven one is not there"
    );
    let counted = stats(&runner, &queue).await;
    assert_eq!((counted.queued, counted.dead), (2, 0));

    let queued = items(&site, "queued").await;
    let path = format!("/queues/jobs/item/{}", queued[0]);
    site.post(&path, &format!("token={token}&action=cancel"))
        .await;
    assert_eq!(stats(&runner, &queue).await.cancelled, 1);

    let answer = site
        .post("/queues/jobs/pause", &format!("token={token}"))
        .await;
    let page = site.shown(location(&answer)).await;
    assert!(page.text.contains("/queues/jobs/resume"), "the button");
    assert_eq!(site.shown("/api/queues/jobs").await.json()["paused"], true);
    site.post("/queues/jobs/resume", &format!("token={token}"))
        .await;
    assert_eq!(site.shown("/api/queues/jobs").await.json()["paused"], false);

    let answer = site
        .post(list, &format!("token={token}&action=explode"))
        .await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let gone = format!("/queues/jobs/item/{}", dead[1]);
    let answer = site
        .post(&gone, &format!("token={token}&action=redrive"))
        .await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
}

/// Returns a queue with three dead letters of a group, whose name has to be escaped, and one without a group.
async fn letters_of_a_group() -> (Runner<Store>, JsonJobs) {
    let runner = runner();
    let queue = open(&runner, Subspace::from("jobs")).await;
    let jobs = &queue;
    let add = |tr: Tx<_>| async move {
        let of_group = Enqueue::new().with_group("a&b c");
        for value in ["a", "b", "c"] {
            let _ = jobs.enqueue_with(&tr, &value.to_owned(), &of_group).await?;
        }
        let _ = jobs.enqueue(&tr, &"other".to_owned()).await?;
        Ok::<_, export_queue::hc_dequeue::Error>(())
    };
    runner.run(add).await.unwrap();
    let consumer = queue.consumer(&runner, WorkerOptions::default());
    let consumer = consumer.await.unwrap();
    for _ in 0..4 {
        let dead = consumer.dequeue_within(PATIENCE).await.unwrap().unwrap();
        dead.discard("no").await.unwrap();
    }
    consumer.shut_down(PATIENCE).await.unwrap();
    (runner, queue)
}

#[tokio::test]
async fn a_change_on_a_page_of_a_group_returns_to_this_page() {
    let (runner, queue) = letters_of_a_group().await;
    let site = TestSite::with_changes(&runner);
    let list = "/queues/jobs/items/dead?group=a%26b%20c";
    let first = site.shown(&format!("/api{list}&limit=1")).await.json();
    let after = first["next"].as_str().unwrap();
    let here = &format!("{list}&after={after}");
    let page = site.shown(here).await;
    let action = page.after(r#"<form id="selected" method="post" action=""#);
    assert_eq!(action.replace("&#38;", "&"), *here);
    let token = page.after(r#"name="token" value=""#);
    let item = page.after(r#"form="selected" name="item" value=""#);
    let form = format!("token={token}&action=purge&item={item}");
    let answer = site.post(here, &form).await;
    assert_eq!(location(&answer), format!("{here}&done=purge&count=1"));
    let page = site.shown(location(&answer)).await.text;
    for text in ["Removed 1 item for good.", "<code>a&#38;b c</code>"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert_eq!(page.matches("/queues/jobs/item/").count(), 1, "{page}");
    assert_eq!(stats(&runner, &queue).await.dead, 3);
}

#[tokio::test]
async fn all_items_of_a_group_are_changed_from_each_of_its_pages_and_no_others() {
    let (runner, queue) = letters_of_a_group().await;
    let site = TestSite::with_changes(&runner);
    let list = "/queues/jobs/items/dead?group=a%26b%20c";
    let page = site.shown(list).await;
    let path = page.after(r#"<form id="all" method="post" action=""#);
    assert_eq!(path, "/queues/jobs/items?group=a%26b%20c");
    let token = page.after(r#"name="token" value=""#);
    let form = |action: &str| format!("token={token}&place=dead&action={action}");
    for (action, told, (dead, queued)) in [
        ("redrive", "Put 3 items back into the queue.", (1, 3)),
        ("purge", "Removed 0 items for good.", (1, 3)),
        ("clear", "Removed 3 items that waited.", (1, 0)),
        ("cancel", "Cancelled 0 items;", (1, 0)),
    ] {
        assert!(
            page.text
                .contains(&format!(r#"name="action" value="{action}""#))
        );
        let answer = site.post(path, &form(action)).await;
        let shown = site.shown(location(&answer)).await.text;
        for text in [told, "<code>a&#38;b c</code>"] {
            assert!(shown.contains(text), "{text}: {shown}");
        }
        let counted = stats(&runner, &queue).await;
        assert_eq!((counted.dead, counted.queued), (dead, queued), "{action}");
    }
    // A page of all items offers no such change.
    let all = site.shown("/queues/jobs/items/dead").await.text;
    assert!(!all.contains(r#"id="all""#), "{all}");
}

#[tokio::test]
async fn programs_change_all_items_of_a_group_a_batch_or_a_kind() {
    let runner = runner();
    let queue = &open(&runner, Subspace::from("jobs")).await;
    let open = |tr| async move { queue.open_batch(&tr, &Batch::new()).await };
    let batch = runner.run(open).await.unwrap();
    let value = &"a".to_owned();
    for options in [
        &Enqueue::new(),
        &Enqueue::new().with_group("a"),
        &Enqueue::new().with_batch(&batch),
        &Enqueue::new().with_kind("a"),
        &Enqueue::new().with_kind("a").with_delay(PATIENCE),
    ] {
        let add =
            |tr: Tx<_>| async move { queue.enqueue_with(&tr, value, options).await.map(drop) };
        runner.run(add).await.unwrap();
    }
    let site = TestSite::with_changes(&runner);
    let token = site.token().await;
    let batch = format!("batch={batch}");
    for (of, action, changed) in [
        ("group=a", "cancel", 1),
        (&*batch, "clear", 1),
        ("kind=a", "redrive", 0),
        ("kind=a", "purge", 0),
        ("kind=a", "cancel", 2),
    ] {
        let path = format!("/api/queues/jobs/items?{of}");
        let form = format!("token={token}&action={action}");
        let change = site.post(&path, &form).await.json();
        assert_valid("Change", &change);
        let told = (&change["action"], &change["changed"]);
        assert_eq!(told, (&action.into(), &changed.into()), "{of}");
    }
    let counted = stats(&runner, queue).await;
    assert_eq!((counted.queued, counted.delayed), (1, 0));
    for (of, action, told) in [
        ("", "cancel", "name a group, a batch or a kind"),
        ("?group=a&kind=a", "cancel", "not by several"),
        (
            "?kind=a",
            "expedite",
            "an action is cancel, clear, redrive or purge",
        ),
        ("?kind=", "cancel", "1 to 100 bytes"),
    ] {
        for path in [
            format!("/queues/jobs/items{of}"),
            format!("/api/queues/jobs/items{of}"),
        ] {
            let form = format!("token={token}&place=queued&action={action}");
            let answer = site.post(&path, &form).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
            assert!(answer.text.contains(told), "{told}: {}", answer.text);
        }
    }
    let form = format!("token={token}&place=nowhere&action=cancel");
    let nowhere = site.post("/queues/jobs/items?kind=a", &form).await;
    assert_eq!(nowhere.status, StatusCode::BAD_REQUEST);
    assert_eq!(stats(&runner, queue).await, counted);
}

#[tokio::test]
async fn an_item_that_does_not_decode_keeps_no_selected_item_from_being_changed() {
    let runner = runner();
    let queue = open(&runner, Subspace::from("jobs")).await;
    enqueue(&runner, &queue, &["a", "b", "c"]).await;
    let queued = queue.subspace().subspace(&"i");
    let stored = rows(runner.database()).await.into_iter();
    let mut queued = stored
        .map(|(key, _)| key)
        .filter(|key| key.starts_with(queued.bytes()));
    let second = &queued.nth(1).unwrap();
    let damage = |tr: Tx<_>| async move {
        tr.set(second, b"\x63");
        Ok::<_, export_queue::keyspace::Error>(())
    };
    runner.run(damage).await.unwrap();
    let site = TestSite::with_changes(&runner);
    let list = "/queues/jobs/items/queued";
    let found = items(&site, "queued").await;
    let page = site.shown(list).await;
    let can_select: Vec<_> = found
        .iter()
        .map(|item: &String| {
            page.text
                .contains(&format!(r#"name="item" value="{item}""#))
        })
        .collect();
    assert_eq!(can_select, [true, false, true]);

    let token = site.token().await;
    let selected = format!("item={}&item={}&item={}", found[0], found[1], found[2]);
    let form = format!("token={token}&action=cancel&{selected}");
    let answer = site.post(list, &form).await;
    let page = site.shown(location(&answer)).await;
    for text in ["Cancelled 2 items;", "Could not change 1 item."] {
        assert!(page.text.contains(text), "{text}: {}", page.text);
    }
    assert_eq!(items(&site, "queued").await, [found[1].clone()]);
}

#[tokio::test]
async fn a_form_of_http_2_has_its_host_in_the_uri() {
    let runner = runner();
    open(&runner, Subspace::from("jobs")).await;
    let site = TestSite::with_changes(&runner);
    let form = format!("token={}", site.token().await);
    for (origin, status) in [
        ("https://localhost:8080", StatusCode::SEE_OTHER),
        ("https://localhost:8081", StatusCode::FORBIDDEN),
    ] {
        let path = "https://localhost:8080/queues/jobs/pause";
        let mut request = request(Method::POST, path, Body::from(form.clone()));
        let headers = request.headers_mut();
        headers.remove("host");
        let form = "application/x-www-form-urlencoded".parse().unwrap();
        headers.insert("content-type", form);
        headers.insert("origin", origin.parse().unwrap());
        assert_eq!(site.send(request).await.status, status, "{origin}");
    }
}

#[tokio::test]
async fn programs_change_items_with_a_header() {
    let runner = runner();
    let queue = open(&runner, Subspace::from("jobs")).await;
    enqueue(&runner, &queue, &["a"]).await;
    let site = TestSite::with_changes(&runner);
    let token = site.token().await;
    let item = &items(&site, "queued").await[0];
    let send = async |path: String| {
        let mut request = request(Method::POST, &path, Body::empty());
        request
            .headers_mut()
            .insert("x-console-token", token.parse().unwrap());
        site.send(request).await
    };
    let change = send(format!("/api/queues/jobs/item/{item}/cancel"))
        .await
        .json();
    assert_eq!(
        (&change["action"], &change["changed"]),
        (&"cancel".into(), &1.into())
    );
    assert_eq!(stats(&runner, &queue).await.cancelled, 1);
    assert_eq!(
        send("/api/queues/jobs/pause".to_owned()).await.json()["action"],
        "pause"
    );
    assert_eq!(
        send("/api/queues/jobs/resume".to_owned()).await.json()["action"],
        "resume"
    );
    let again = send(format!("/api/queues/jobs/item/{item}/expedite")).await;
    assert_eq!(again.status, StatusCode::NOT_FOUND);
    let unknown = send(format!("/api/queues/jobs/item/{item}/explode")).await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST);
}

/// Every change as (path, form).
async fn all_changes(site: &TestSite) -> Vec<(String, String)> {
    let name = evil_segment();
    let items = site
        .shown(&format!("/api/queues/{name}/items/dead"))
        .await
        .json();
    let dead = items["items"][0]["item"].as_str().unwrap().to_owned();
    let mut changes = vec![
        (format!("/queues/{name}/pause"), String::new()),
        (format!("/queues/{name}/resume"), String::new()),
        (format!("/api/queues/{name}/pause"), String::new()),
        (format!("/api/queues/{name}/resume"), String::new()),
    ];
    for base in ["", "/api"] {
        let path = format!("{base}/queues/{name}/groups");
        changes.push((path, "action=pause&group=a".to_owned()));
        for of in ["group=a", "kind=a"] {
            let path = format!("{base}/queues/{name}/items?{of}");
            changes.push((path, "action=cancel&place=dead".to_owned()));
        }
        let path = format!("{base}/queues/{name}/batches");
        changes.push((path, "action=cancel&batch=00".to_owned()));
    }
    for action in ["cancel", "expedite", "redrive", "purge"] {
        let action = format!("action={action}");
        let selected = format!("&item={dead}");
        changes.push((format!("/queues/{name}/item/{dead}"), action.clone()));
        changes.push((
            format!("/queues/{name}/items/dead"),
            action.clone() + &selected,
        ));
        let action = action.replace("action=", "");
        changes.push((
            format!("/api/queues/{name}/item/{dead}/{action}"),
            String::new(),
        ));
    }
    changes
}

#[tokio::test]
async fn with_changes_off_nothing_changes_and_no_page_has_a_form_that_could() {
    let runner = runner();
    evil_queue(&runner).await;
    let site = TestSite::read_only(&runner);
    let before = rows(runner.database()).await;
    for (path, form) in all_changes(&site).await {
        let answer = site.post(&path, &form).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(site.get("/api/token").await.status, StatusCode::FORBIDDEN);
    assert!(before == rows(runner.database()).await);
    for path in crate::web::security::all_pages(&site).await {
        let page = site.shown(&path).await;
        for tag in ["<button", "<form", "<input", "method=\"post\""] {
            assert!(!page.text.contains(tag), "{tag} on {path}");
        }
    }
}

#[tokio::test]
async fn changes_need_the_token_of_this_router_and_one_of_our_pages() {
    let runner = runner();
    evil_queue(&runner).await;
    let site = TestSite::with_changes(&runner);
    let other = TestSite::with_changes(&runner);
    let token = site.token().await;
    let foreign = other.token().await;
    assert_ne!(token, foreign);
    let before = rows(runner.database()).await;
    let own = ("origin", "http://localhost:8080");
    let headers: [(&str, (&str, &str)); 8] = [
        (&foreign, own),
        ("", own),
        (&token[1..], own),
        (&token, ("origin", "http://evil.example")),
        (&token, ("origin", "null")),
        (&token, ("sec-fetch-site", "cross-site")),
        (&token, ("sec-fetch-site", "same-site")),
        (&token, ("host", "evil.example")),
    ];
    for (path, form) in all_changes(&site).await {
        for (token, (header, value)) in headers {
            let mut request = request(
                Method::POST,
                &path,
                Body::from(format!("token={token}&{form}")),
            );
            let headers = request.headers_mut();
            let form = "application/x-www-form-urlencoded".parse().unwrap();
            headers.insert("content-type", form);
            headers.insert("x-console-token", token.parse().unwrap());
            headers.insert(header, value.parse().unwrap());
            let answer = site.send(request).await;
            let expected = match header {
                "host" => StatusCode::MISDIRECTED_REQUEST,
                _ => StatusCode::FORBIDDEN,
            };
            assert_eq!(answer.status, expected, "{path} with {header}: {value}");
        }
    }
    assert!(before == rows(runner.database()).await);
    let shown: Value = site.shown("/api/queues").await.json();
    assert_eq!(shown["queues"].as_array().unwrap().len(), 1);
}
