//! A window of a browser: what a user does in it, and what it shows.

use std::fmt::Debug;
use std::time::Duration;

use conformance::stores::TestStore;
use console::{Console, WebOptions};
use export_queue::keyspace::{Environment, Ids, Subspace};
use fantoccini::key::Key;
use fantoccini::{Client, Locator};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::common::{LONG, World};

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Serves a console until the test ends, and returns where.
pub(crate) async fn serve(console: Console, options: WebOptions) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(console::serve(
        listener,
        console,
        options,
        std::future::pending(),
    ));
    format!("http://{address}")
}

/// A window of a browser.
pub(crate) struct Window {
    client: Client,
}

impl Window {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(crate) async fn go(&self, url: &str) {
        conformance::timeout(LONG, self.client.goto(url))
            .await
            .unwrap();
    }

    /// Returns the path of the page, and what follows it.
    pub(crate) async fn path(&self) -> String {
        self.value("return location.pathname + location.search")
            .await
    }

    /// Runs a script, and returns what it returns.
    pub(crate) async fn value<T: DeserializeOwned>(&self, script: &str) -> T {
        self.value_of(script, &[]).await
    }

    /// Runs a script with arguments, and returns what it returns.
    pub(crate) async fn value_of<T: DeserializeOwned>(&self, script: &str, args: &[&str]) -> T {
        let args = args.iter().map(|arg| Value::from(*arg)).collect();
        let run = self.client.execute(script, args);
        let value = conformance::timeout(LONG, run).await.unwrap();
        serde_json::from_value(value).unwrap()
    }

    /// Returns the text that a user sees of the first element of a selector.
    pub(crate) async fn text(&self, selector: &str) -> String {
        let script = "const found = document.querySelector(arguments[0]); \
                      return found ? found.innerText : ''";
        self.value_of(script, &[selector]).await
    }

    pub(crate) async fn count(&self, selector: &str) -> usize {
        let script = "return document.querySelectorAll(arguments[0]).length";
        self.value_of(script, &[selector]).await
    }

    /// Waits until an element has a text that is as it should be, and returns it.
    pub(crate) async fn wait(&self, selector: &str, is_there: impl Fn(&str) -> bool) -> String {
        let mut text = String::new();
        let wait = async {
            loop {
                text = self.text(selector).await;
                if is_there(&text) {
                    return;
                }
                conformance::let_pass(LOOK).await;
            }
        };
        if Environment::system().timeout(LONG, wait).await.is_none() {
            panic!("{selector} never was as it should be: {text:?}");
        }
        text
    }

    /// Clicks on the only element of a selector.
    pub(crate) async fn click(&self, selector: &str) {
        assert_eq!(self.count(selector).await, 1, "{selector}");
        let element = self.client.find(Locator::Css(selector)).await.unwrap();
        conformance::timeout(LONG, element.click()).await.unwrap();
    }

    /// Presses a key on what has the focus.
    pub(crate) async fn press(&self, key: Key) {
        let focused = self.client.active_element().await.unwrap();
        let key = char::from(key).to_string();
        conformance::timeout(LONG, focused.send_keys(&key))
            .await
            .unwrap();
    }

    /// Returns the text of a dialog, if one is open.
    pub(crate) async fn dialog(&self) -> Option<String> {
        self.client.get_alert_text().await.ok()
    }

    /// Returns a PNG of what is in the window.
    pub(crate) async fn screenshot(&self) -> Vec<u8> {
        conformance::timeout(LONG, self.client.screenshot())
            .await
            .unwrap()
    }

    /// Goes to every page that links lead to, in the order of their discovery, and lets `look` look at it.
    pub(crate) async fn crawl(&self, base: &str, mut look: impl AsyncFnMut(&str)) -> Vec<String> {
        let mut paths = vec!["/".to_owned(), "/nothing".to_owned()];
        let mut next = 0;
        while next < paths.len() {
            let path = paths[next].clone();
            self.go(&format!("{base}{path}")).await;
            look(&path).await;
            let script = "return [...document.links].filter(link => link.origin === location.origin) \
                          .map(link => link.pathname + link.search)";
            let links: Vec<String> = self.value(script).await;
            for link in links {
                if !paths.contains(&link) {
                    paths.push(link);
                }
            }
            next += 1;
        }
        paths
    }
}

/// Panics unless a list is empty.
#[track_caller]
pub(crate) fn assert_none<T: Debug>(found: &[T], context: &str) {
    assert!(found.is_empty(), "{context}: {found:#?}");
}

/// A world that has a store of its own, whose queues have the names that [`QUEUES`](crate::common::QUEUES) lists.
pub(crate) async fn world() -> World {
    let store = TestStore::memory();
    Box::pin(World::on(store.db, Subspace::all(), Ids::default())).await
}
