//! Reading: from the overview to a place and to an item.

use console::WebOptions;
use serde_json::Value;

use crate::browser::driver::{Driver, View};
use crate::browser::window::{Window, serve, world};
use crate::common::{REASONS, World};

in_a_browser!(
    items_are_listed_by_place,
    an_item_shows_its_payload_its_session_and_why_it_failed,
);

/// Opens the overview, and follows the link of a queue.
async fn open_queue(driver: &Driver, world: &World) -> Window {
    let base = serve(world.console(), WebOptions::new()).await;
    let window = driver.open(View::DESKTOP).await;
    window.go(&base).await;
    window.click("th a[href='/queues/jobs']").await;
    window.wait("h1", |text| text == "jobs").await;
    window
}

async fn open_place(window: &Window, place: &str) {
    window
        .click(&format!(".tabs a[href='/queues/jobs/items/{place}']"))
        .await;
    window.wait("h1", |text| text.starts_with(place)).await;
}

async fn items_are_listed_by_place(driver: &Driver) {
    let world = world().await;
    let items = &world.items;
    let window = open_queue(driver, &world).await;
    let places = [
        ("queued", &items.queued),
        ("delayed", &items.delayed),
        ("held", &items.held),
        ("dead", &items.dead),
        ("done", &items.done),
    ];
    for (place, items) in places {
        open_place(&window, place).await;
        let script =
            "return [...document.querySelectorAll('tbody th')].map(cell => cell.innerText)";
        let mut shown: Vec<String> = window.value(script).await;
        let mut expected: Vec<_> = items.iter().map(ToString::to_string).collect();
        shown.sort();
        expected.sort();
        assert_eq!(shown, expected, "{place}");
        assert_eq!(window.text("[aria-current=page]").await, place);
    }
}

async fn an_item_shows_its_payload_its_session_and_why_it_failed(driver: &Driver) {
    let world = world().await;
    let window = open_queue(driver, &world).await;
    open_place(&window, "dead").await;
    let dead = &world.items.dead[1];
    window.click(&format!("a[href$='/item/{dead}']")).await;
    window.wait("h1", |text| text == "Item").await;
    let payload: Value = serde_json::from_str(&window.text("pre").await).unwrap();
    assert_eq!(payload, crate::common::job(1));
    let about = window.text("[aria-labelledby=payload] .faint").await;
    assert!(about.starts_with("MessagePack"), "{about}");
    let happened = window.text("[aria-labelledby=life]").await;
    assert!(happened.contains(REASONS[1]), "{happened}");

    window.click(".path a[href$='/items/dead']").await;
    open_place(&window, "held").await;
    let held = &world.items.held[0];
    window.click(&format!("a[href$='/item/{held}']")).await;
    window.wait("h1", |text| text == "Item").await;
    let life = window.text("[aria-labelledby=life]").await;
    assert!(life.contains("3 of 4: greeting <b>"), "{life}");
    let holder = "a[href='/queues/jobs/sessions']";
    let session = window.text(holder).await;
    window.click(holder).await;
    window.wait("h1", |text| text == "Sessions").await;
    assert_eq!(window.text("tbody th").await, session);
    let holds = window.text("tbody .number").await;
    assert_eq!(holds, "2", "items that the session holds");
}
