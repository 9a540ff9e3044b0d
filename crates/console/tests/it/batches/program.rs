//! The commands of batches.

use super::{add, open, then_call_back, unknown};
use crate::common::assert_valid;
use crate::common::program::Filled;
use export_queue::hc_dequeue::Batch;
use serde_json::Value;

/// Fills a store in which `orders` has a batch of two members, and a batch in it.
fn filled() -> Filled {
    Filled::with(|world| {
        Box::pin(async move {
            let orders = &world.orders().await;
            let parent = open(&world.runner, orders, &Batch::new()).await;
            for _ in 0..2 {
                add(world, orders, &parent).await;
            }
            let nested = then_call_back().with_parent(&parent);
            open(&world.runner, orders, &nested).await;
        })
    })
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_program_lists_closes_and_cancels_batches() {
    let store = filled();
    let listed = store.json(&["batches", "orders"]);
    assert_valid("Batches", &listed);
    let all = listed["batches"].as_array().unwrap();
    let find = |has_callback: bool| {
        let batch = all.iter().find(|one| one["has_callback"] == has_callback);
        batch.unwrap()["batch"].as_str().unwrap()
    };
    let parent = find(false);
    let nested = find(true);
    let table = words(&store.run(&["batches", "orders"]).out);
    for text in [
        "BATCH STATE WAITS FOR PENDING COMPLETED DEAD CANCELLED AGE CALLBACK PARENT",
        &format!("{parent} open to be closed 3 0 0 0"),
        &format!("{nested} open to be closed 0 0 0 0"),
        &format!("yes {parent}"),
    ] {
        assert!(table.contains(text), "{text}: {table}");
    }
    let first = store.run(&["batches", "orders", "--limit", "1"]).out;
    let after = first.lines().last().unwrap();
    let after = after.strip_prefix("more: ").unwrap();
    let rest = store.json(&["batches", "orders", after]);
    assert_eq!(rest["batches"].as_array().unwrap().len(), 1);
    assert_eq!(rest["batches"][0]["batch"], all[1]["batch"]);

    for (command, batch, told) in [
        (
            "close-batch",
            parent,
            "it is complete when no member is left",
        ),
        ("close-batch", parent, "it was closed before"),
        (
            "cancel-batch",
            nested,
            "no callback comes, and its members go on",
        ),
    ] {
        let finished = store.run(&[command, "orders", batch]);
        assert_eq!(finished.out, format!("orders: {command}: {told}\n"));
        assert_valid("Change", &store.json(&[command, "orders", batch]));
    }
    assert_valid("Batch", &store.json(&["batch", "orders", parent]));
    for (batch, texts) in [
        (
            parent,
            &["state closed", "waits for 3 members", "pending 3"][..],
        ),
        (
            nested,
            &["state cancelled", "waits for a session", "opened 2", "age "],
        ),
    ] {
        let shown = words(&store.run(&["batch", "orders", batch]).out);
        for text in texts {
            assert!(shown.contains(text), "{text}: {shown}");
        }
    }
    // Members have the highest priority, so they are listed first.
    let queued = store.json(&["list", "orders"]);
    let item = queued["items"][0]["item"].as_str().unwrap();
    let shown = words(&store.run(&["show", "orders", item]).out);
    assert!(shown.contains(&format!("batch {parent}")), "{shown}");
}

#[test]
fn a_batch_that_is_not_there_has_the_status_of_what_is_wrong() {
    let store = filled();
    let listed = store.json(&["batches", "orders"]);
    let own = listed["batches"][0]["batch"].as_str().unwrap();
    let missing = unknown(&own.parse().unwrap()).to_string();
    for command in ["batch", "close-batch", "cancel-batch"] {
        let refused = |queue: &str, batch: &str, status, reason: &str| {
            let finished = store.run(&[command, queue, batch]);
            finished.assert_refused(status, reason);
        };
        refused("orders", &missing, 3, "it is complete, or it never was");
        refused("orders", "01f4", 2, "as `batches` prints it");
        refused("jobs", own, 2, "another queue");
        refused("mail", own, 2, "recipe microqueue");
        refused("none", own, 3, "console queues");
    }
    let mail = store.run(&["batches", "mail"]);
    mail.assert_refused(2, "recipe microqueue, which has no batches");
    let after = store.run(&["batches", "orders", "--after", "x"]);
    after.assert_refused(2, "as `batches` prints it");
    assert_eq!(listed["batches"], without_age(&store, &listed));
}

/// Returns the batches of `orders` with the ages that were listed before.
fn without_age(store: &Filled, before: &Value) -> Value {
    let mut now = store.json(&["batches", "orders"])["batches"].clone();
    let before = before["batches"].as_array().unwrap();
    for (batch, before) in now.as_array_mut().unwrap().iter_mut().zip(before) {
        batch["age_seconds"] = before["age_seconds"].clone();
    }
    now
}
