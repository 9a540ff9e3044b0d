//! A driver of browsers for one test.

use std::env;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;

use fantoccini::{Client, ClientBuilder};
use futures::FutureExt;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::browser::window::Window;
use crate::common::LONG;

/// Makes a test of each function that takes a [`Driver`](crate::browser::driver::Driver).
macro_rules! in_a_browser {
    ($($test:ident),+ $(,)?) => {
        mod in_a_browser {
            $(
                #[::tokio::test]
                async fn $test() {
                    let name = concat!(module_path!(), "::", stringify!($test));
                    $crate::browser::driver::run(name, super::$test).await;
                }
            )+
        }
    };
}

/// How a window looks at pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    /// In CSS pixels, like the height.
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) is_dark: bool,
}

impl View {
    pub(crate) const DESKTOP: Self = Self {
        width: 1_200,
        height: 900,
        is_dark: false,
    };
    pub(crate) const PHONE: Self = Self {
        width: 360,
        height: 740,
        is_dark: false,
    };

    pub(crate) fn dark(self) -> Self {
        Self {
            is_dark: true,
            ..self
        }
    }

    fn capabilities(self, chromium: &str) -> Value {
        // Chromium numbers the schemes: 0 is dark, 1 is light.
        let scheme = i32::from(!self.is_dark);
        json!({
            "browserName": "chrome",
            "goog:chromeOptions": {
                "binary": chromium,
                "args": [
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    // As on a phone, where they take no width.
                    "--hide-scrollbars",
                    format!("--blink-settings=preferredColorScheme={scheme}"),
                ],
                // A window itself cannot be as narrow as a phone.
                "mobileEmulation": { "deviceMetrics": {
                    "width": self.width,
                    "height": self.height,
                    "pixelRatio": 1.0,
                    "touch": false,
                    "mobile": false,
                } },
            },
        })
    }
}

/// A process of `chromedriver`, and the browsers that it has started.
pub(crate) struct Driver {
    url: String,
    chromium: PathBuf,
    clients: Mutex<Vec<Client>>,
    /// Killed when it is dropped.
    _process: Child,
    /// Open, so that the process can write to it.
    _output: Lines<BufReader<ChildStdout>>,
}

/// Runs a test, and closes its browsers, also if it panics. Without the programs it is skipped.
pub(crate) async fn run(name: &str, test: impl AsyncFnOnce(&Driver)) {
    let programs = ["chromium", "chromedriver"].map(find);
    let [Some(chromium), Some(chromedriver)] = programs else {
        return conformance::stores::skip(name, "chromium or chromedriver is not on the path");
    };
    let driver = Driver::start(chromium, chromedriver).await;
    let outcome = AssertUnwindSafe(test(&driver)).catch_unwind().await;
    driver.close().await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// Returns where on the path a program is.
fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let mut candidates = env::split_paths(&path).map(|folder| folder.join(program));
    candidates.find(|candidate| candidate.is_file())
}

impl Driver {
    async fn start(chromium: PathBuf, chromedriver: PathBuf) -> Self {
        let (process, output, port) = conformance::timeout(LONG, async {
            loop {
                if let Some(listening) = listen(&chromedriver).await {
                    return listening;
                }
            }
        })
        .await;
        Self {
            url: format!("http://127.0.0.1:{port}"),
            chromium,
            clients: Mutex::default(),
            _process: process,
            _output: output,
        }
    }

    /// Opens the only window of a new browser.
    pub(crate) async fn open(&self, view: View) -> Window {
        let capabilities = view.capabilities(self.chromium.to_str().unwrap());
        let mut builder = ClientBuilder::new(HttpConnector::new());
        builder.capabilities(capabilities.as_object().unwrap().clone());
        let client = conformance::timeout(LONG, builder.connect(&self.url))
            .await
            .unwrap();
        self.clients.lock().unwrap().push(client.clone());
        Window::new(client)
    }

    /// Quits the browsers, which would outlive the driver.
    async fn close(self) {
        let clients = self.clients.into_inner().unwrap();
        for client in clients {
            conformance::timeout(LONG, client.close()).await.unwrap();
        }
    }
}

/// Starts a driver, and returns it with its output and its port. `None` if the driver has ended: it takes any port that
/// is free for IPv6, and ends if another process has the same one for IPv4.
async fn listen(chromedriver: &Path) -> Option<(Child, Lines<BufReader<ChildStdout>>, u16)> {
    let mut process = Command::new(chromedriver)
        .arg("--port=0")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    while let Some(line) = output.next_line().await.unwrap() {
        if let Some((_, port)) = line.split_once("successfully on port ") {
            let port = port.trim_end_matches('.').parse().unwrap();
            return Some((process, output, port));
        }
        said.push(line);
    }
    let is_taken = said
        .iter()
        .any(|line| line.contains("IPv4 port not available"));
    assert!(is_taken, "chromedriver has ended: {said:?}");
    None
}
