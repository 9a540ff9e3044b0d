//! One queue, two languages: FoundationDB's own Python client, with the recipe from its documentation,
//! works on one end while this crate works on the other.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::common::{Committing, committing};
use conformance::stores::{self, Kind};
use microqueue::keyspace::Bytes;
use microqueue::keyspace::codec::Raw;
use microqueue::{MicroQueue, Order};

const ITEMS: usize = 1_000;

type Queue = Committing<Bytes, microqueue::keyspace::Store, Raw>;

/// Returns a Python interpreter that has the client. The tests share it.
fn python() -> Result<OsString, String> {
    static PYTHON: OnceLock<Result<OsString, String>> = OnceLock::new();
    PYTHON.get_or_init(find_python).clone()
}

/// Finds the system's Python, or creates an environment in a directory below `target`.
fn find_python() -> Result<OsString, String> {
    let has_client = |python: &OsString| {
        let import = Command::new(python).args(["-c", "import fdb"]).output();
        import.is_ok_and(|output| output.status.success())
    };
    let system = OsString::from("python3");
    if has_client(&system) {
        return Ok(system);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let own = folder.join("bin/python").into_os_string();
    if has_client(&own) {
        return Ok(own);
    }
    let run = |command: &mut Command| match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(error.to_string()),
    };
    run(Command::new(&system).args(["-m", "venv"]).arg(&folder))
        .and_then(|()| {
            run(Command::new(&own).args(["-m", "pip", "install", "foundationdb==7.3.*"]))
        })
        .map_err(|error| {
            let reason = error.lines().last().unwrap_or_default();
            format!("no Python with the package `foundationdb` 7.3: {reason}")
        })?;
    Ok(own)
}

/// Starts the recipe on the queue.
fn recipe(python: &OsString, verb: &str, queue: &Queue) -> Child {
    let prefix: String = queue
        .queue()
        .subspace()
        .bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/python/recipe.py"))
        .args([verb, &prefix, &ITEMS.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn expected() -> Vec<String> {
    (0..ITEMS).map(|number| number.to_string()).collect()
}

/// Runs a test with a queue on a cluster and with a Python interpreter, or reports why it cannot.
async fn with_python<F: Future<Output = ()>>(name: &str, test: impl FnOnce(OsString, Queue) -> F) {
    stores::run(Kind::Fdb, name, |store| async move {
        let python = match python() {
            Ok(python) => python,
            Err(reason) => return stores::skip(name, &reason),
        };
        let queue = MicroQueue::new(store.root.subspace(&"queue")).with_order(Order::Index);
        test(python, committing(&queue, &store.runner())).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_fdb_items_from_python_are_dequeued_once_and_in_order() {
    let name = "on_fdb_items_from_python_are_dequeued_once_and_in_order";
    with_python(name, |python, queue| async move {
        let mut producer = recipe(&python, "enqueue", &queue);
        let mut items = Vec::new();
        while items.len() < ITEMS {
            // The items that it enqueued before it ended can be taken.
            let has_ended = producer.try_wait().unwrap().is_some();
            let item = queue.dequeue().await.unwrap();
            assert!(item.is_some() || !has_ended, "{} items came", items.len());
            items.extend(item.map(|item| String::from_utf8(item.value.to_vec()).unwrap()));
        }
        assert!(producer.wait().unwrap().success());
        assert_eq!(items, expected());
        assert!(queue.is_empty().await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_fdb_python_dequeues_items_once_and_in_order() {
    let name = "on_fdb_python_dequeues_items_once_and_in_order";
    with_python(name, |python, queue| async move {
        let consumer = recipe(&python, "dequeue", &queue);
        for item in expected() {
            queue.enqueue(&Bytes::from(item)).await.unwrap();
        }
        let output = consumer.wait_with_output().unwrap();
        assert!(output.status.success());
        let items = String::from_utf8(output.stdout).unwrap();
        assert_eq!(items.lines().collect::<Vec<_>>(), expected());
        assert!(queue.is_empty().await.unwrap());
    })
    .await;
}
