//! The screenshots of `docs/console.md`.

use std::env;
use std::fs;
use std::path::Path;

use console::WebOptions;

use crate::browser::driver::{Driver, View};
use crate::browser::shop::{STEPS, Shop};
use crate::browser::window::{Window, serve};

in_a_browser!(screenshots_show_a_shop);

/// The folder that the screenshots are written to, if there is one.
const FOLDER: &str = "CONSOLE_SCREENSHOTS";

/// How many bytes a screenshot may have, so that the documentation stays small.
const MAX_BYTES: usize = 150_000;

async fn screenshots_show_a_shop(driver: &Driver) {
    let mut shop = Shop::open().await;
    let options = WebOptions::new().allow_changes(true);
    let base = serve(shop.console(), options).await;
    let wide = |height| View {
        width: 1_000,
        height,
        is_dark: false,
    };

    let overview = driver.open(wide(780)).await;
    overview.go(&base).await;
    watch(&overview, &mut shop).await;
    save(&overview, "overview").await;

    let phone = driver.open(View::PHONE).await;
    phone.go(&base).await;
    save(&phone, "phone").await;

    let queue = driver.open(wide(810).dark()).await;
    queue.go(&base).await;
    queue.click("th a[href$='mails']").await;
    queue.wait("h1", |text| text == "shop/mails").await;
    save(&queue, "queue").await;

    let item = driver.open(wide(900)).await;
    item.go(&base).await;
    item.click("tr[data-key='shop/mails'] a.dead").await;
    item.wait("h1", |text| text.starts_with("dead")).await;
    item.click("tr:nth-child(3) th a").await;
    item.wait("h1", |text| text == "Item").await;
    save(&item, "item").await;
}

/// Lets the shop work while a page watches, until there is a history to draw.
async fn watch(window: &Window, shop: &mut Shop) {
    // The title counts what the page has seen.
    let listen = "const source = new EventSource('/events'); let seen = 0; \
                  source.addEventListener('open', () => { document.title = 0; }); \
                  source.addEventListener('state', () => { document.title = ++seen; })";
    let _: () = window.value(listen).await;
    for step in 0..STEPS {
        let seen = step.to_string();
        window.wait("title", |title| title == seen).await;
        shop.step(step).await;
    }
    let last = STEPS.to_string();
    window.wait("title", |title| title == last).await;
}

/// Checks the size of a screenshot, and writes it if there is a folder for it.
async fn save(window: &Window, name: &str) {
    window
        .wait("#live-status", |text| !text.starts_with("Not"))
        .await;
    let png = window.screenshot().await;
    assert!(png.len() < MAX_BYTES, "{name}: {} bytes", png.len());
    if let Some(folder) = env::var_os(FOLDER) {
        fs::write(Path::new(&folder).join(format!("{name}.png")), png).unwrap();
    }
}
