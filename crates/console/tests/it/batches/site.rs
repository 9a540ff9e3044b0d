//! The pages of batches.

use super::{add, keys_of, open, then_call_back, unknown};
use crate::common::{World, assert_valid};
use crate::web::site::TestSite;
use axum::http::StatusCode;
use conformance::stores::TestStore;
use console::WebOptions;
use export_queue::hc_dequeue::{Batch, BatchRef};
use export_queue::keyspace::{Ids, Subspace};
use serde_json::Value;

#[tokio::test]
async fn the_page_of_batches_closes_and_cancels_them() {
    let store = TestStore::memory().db;
    let world = World::on(store, Subspace::all(), Ids::default()).await;
    let orders = &world.orders().await;
    let parent = open(&world.runner, orders, &Batch::new()).await;
    let item = add(&world, orders, &parent).await;
    let nested = then_call_back().with_parent(&parent);
    let nested = open(&world.runner, orders, &nested).await;
    let damaged = open(&world.runner, orders, &Batch::new()).await;
    let [damaged_row, _] = keys_of(orders, &damaged);
    world.set(&damaged_row, b"\x63\x1b[2J<b>").await;
    let options = WebOptions::new().allow_changes(true);
    let router = console::router(world.console(), options);
    let site = TestSite { router };
    let token = site.token().await;
    let batches = "/queues/orders/batches";
    let queue = site.shown("/queues/orders").await;
    assert!(queue.text.contains(&format!(r#"href="{batches}""#)));
    let shown = site.shown(&format!("/queues/orders/item/{item}")).await;
    let link = format!("/queues/orders/batch/{parent}");
    assert!(shown.text.contains(&format!(r#"href="{link}""#)));
    let shown = site.shown(&link).await.text;
    assert!(shown.contains("to be closed") && !shown.contains(&nested.to_string()));

    let shown = site.shown(batches).await.text;
    let can_select = |batch: &BatchRef| {
        shown.contains(&format!(r#"form="batches" name="batch" value="{batch}""#))
    };
    let selectable = [&parent, &nested, &damaged].map(can_select);
    assert_eq!(selectable, [true, true, false]);
    assert!(shown.contains("format 99 is newer"), "{shown}");
    for (fields, notice, text) in [
        (
            format!("batch={parent}&action=close"),
            "The batch is closed",
            "2 members",
        ),
        (
            format!("batch={nested}&action=cancel"),
            "The batch is cancelled",
            "<td>cancelled</td>",
        ),
    ] {
        assert!(!site.shown(batches).await.text.contains(text), "{text}");
        let answer = site.post(batches, &format!("token={token}&{fields}")).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
        let next = answer.headers["location"].to_str().unwrap();
        let page = site.shown(next).await.text;
        assert!(page.contains(notice) && page.contains(text), "{page}");
    }
    let missing = unknown(&parent);
    let foreign = open(&world.runner, &world.jobs, &Batch::new()).await;
    for (fields, status, text) in [
        ("action=close".to_owned(), 400, "select a batch"),
        ("action=close&batch=".to_owned(), 400, "is malformed"),
        (
            format!("action=explode&batch={parent}"),
            400,
            "an action is close or cancel",
        ),
        (
            format!("action=close&batch={missing}"),
            404,
            "it is complete",
        ),
        (
            format!("action=cancel&batch={foreign}"),
            404,
            "another queue",
        ),
        (format!("action=close&batch={damaged}"), 409, "newer"),
    ] {
        for base in ["", "/api"] {
            let form = format!("token={token}&{fields}");
            let answer = site.post(&format!("{base}{batches}"), &form).await;
            assert_eq!(answer.status, status, "{base} {fields}");
            assert!(answer.text.contains(text), "{text}: {}", answer.text);
        }
    }
    let fields = format!("token={token}&batch={parent}&action=cancel");
    let change = site.post(&format!("/api{batches}"), &fields).await.json();
    assert_valid("Change", &change);
    let batch = site.shown(&format!("/api{link}")).await.json();
    assert_valid("Batch", &batch);
    assert_eq!(batch["state"], "cancelled");
    let first = site.shown(&format!("/api{batches}?limit=2")).await.json();
    assert_valid("Batches", &first);
    let next = first["next"].as_str().unwrap();
    let rest = site
        .shown(&format!("/api{batches}?after={next}&limit=2"))
        .await
        .json();
    let count = |page: &Value| page["batches"].as_array().unwrap().len();
    assert_eq!((count(&first), count(&rest)), (2, 1));
    let last = site.shown(&format!("{batches}?after={next}")).await.text;
    assert!(last.contains("First page") && !last.contains("Next page"));
    for (path, status) in [
        (format!("/queues/orders/batch/{missing}"), 404),
        (format!("/queues/orders/batch/{foreign}"), 404),
        ("/queues/orders/batch/xyz".to_owned(), 400),
        (format!("{batches}?after=xyz"), 400),
        ("/queues/mail/batches".to_owned(), 409),
        ("/queues/none/batches".to_owned(), 404),
    ] {
        for base in ["", "/api"] {
            let answer = site.get(&format!("{base}{path}")).await;
            assert_eq!(answer.status, status, "{base}{path}");
        }
    }
}
