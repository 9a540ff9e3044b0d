//! `cargo xtask replay`: recorded traces against a store.
//!
//! Prints each answer that differs and ends with one line `N passed, N failed`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use conformance::replay::Replay;
use conformance::trace::Trace;
use keyspace::{
    Database, Environment, Isolation, RangeQuery, Store, Transaction, error::printable, limits,
};

/// What to replay, and on which store.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayOptions {
    /// A file of traces (`.jsonl` or `.jsonl.gz`), or a folder of such files
    path: PathBuf,
    /// The URL of the store. It must be empty and is empty again afterwards. `fdb:` is the cluster
    /// that `FDB_CLUSTER_FILE` names, or else a private one
    #[arg(long, default_value = "memory:")]
    db: String,
}

/// How long to wait for a watch of the embedded store that must not fire. The store fires its watches before it
/// acknowledges a commit.
const WATCH_LIMIT: Duration = Duration::from_millis(20);

/// Replays the traces.
pub(crate) fn run(options: &ReplayOptions) -> anyhow::Result<ExitCode> {
    let files = trace_files(&options.path)?;
    let db = keyspace::open(&options.db)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .context("cannot start a runtime")?;
    let tally = runtime.block_on(replay(db, &files, &options.db))?;
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(if tally.failed == 0 && tally.passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
}

async fn replay(db: Store, files: &[PathBuf], url: &str) -> anyhow::Result<Tally> {
    let everything = RangeQuery::keys(&b""[..], &b"\xff"[..]).limit(1);
    let tr = db.begin()?;
    let found = tr.get_range(&everything, Isolation::Snapshot).await?;
    if let Some(row) = found.rows.first() {
        let key = printable(row.key());
        anyhow::bail!("{url} holds `{key}`: replaying needs a store of its own, an empty one");
    }
    drop(tr);
    await_history(&db).await?;
    let is_embedded = matches!(db, Store::Embedded(_));
    let mut replay = Replay::new(db, Environment::system());
    if is_embedded {
        replay = replay.watch_limit(WATCH_LIMIT);
    }
    let mut tally = Tally::default();
    for file in files {
        let traces =
            Trace::read_file(file).with_context(|| format!("cannot replay {}", file.display()))?;
        for trace in &traces {
            let differences = replay.check(trace).await?;
            for difference in &differences {
                println!("{difference}");
            }
            if differences.is_empty() {
                tally.passed += 1;
            } else {
                tally.failed += 1;
            }
        }
    }
    replay.clear().await?;
    Ok(tally)
}

/// Waits until a new cluster is old enough: some traces read at a version that is too old.
async fn await_history(db: &Store) -> anyhow::Result<()> {
    while db.begin()?.read_version().await? <= 2 * limits::TRANSACTION_LIFE_VERSIONS {
        Environment::system()
            .sleep(Duration::from_millis(100))
            .await;
    }
    Ok(())
}

/// Returns the file itself, or the trace files of a folder in the order of their names.
fn trace_files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(|| format!("cannot list {}", path.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry?.path();
        let name = file.to_string_lossy();
        if name.ends_with(".jsonl") || name.ends_with(".jsonl.gz") {
            files.push(file);
        }
    }
    ensure!(
        !files.is_empty(),
        "{} holds no .jsonl and no .jsonl.gz",
        path.display()
    );
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = concat!(
        r#"{"id": "one", "init": [], "ops": [[0, "set", {"key": "742f61", "value": "01"}, "ok"], "#,
        r#"[0, "commit", {}, "ok"]], "final": [["742f61", "01"]]}"#
    );

    fn replayed(lines: &str) -> anyhow::Result<Tally> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("a.jsonl"), lines)?;
        let files = trace_files(folder.path())?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        runtime.block_on(replay(keyspace::open("memory:")?, &files, "memory:"))
    }

    #[test]
    fn a_trace_passes_or_fails_as_a_whole() {
        let wrong = TRACE.replace("\"final\": [[\"742f61\", \"01\"]]", "\"final\": []");
        let tally = replayed(&format!("{TRACE}\n{wrong}\n")).unwrap();
        let expected = Tally {
            passed: 1,
            failed: 1,
        };
        assert_eq!(tally, expected);
    }

    #[test]
    fn a_line_that_is_no_trace_names_its_file_and_line() {
        let refused = replayed(&format!("{TRACE}\n[]\n")).unwrap_err();
        let error = format!("{refused:#}");
        assert!(
            error.contains("a.jsonl") && error.contains("line 2"),
            "{error}"
        );
    }

    #[test]
    fn a_folder_without_traces_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(trace_files(folder.path()).is_err());
    }

    #[tokio::test]
    async fn a_store_that_holds_rows_is_refused_and_left_alone() {
        use keyspace::OwnedTransaction;
        let db = keyspace::open("memory:").unwrap();
        let mut tr = db.begin().unwrap();
        tr.set(b"t/mine", b"1");
        tr.commit().await.unwrap();
        let error = replay(db.clone(), &[], "memory:").await.unwrap_err();
        assert!(error.to_string().contains("t/mine"), "{error}");
        let kept = db
            .begin()
            .unwrap()
            .get(b"t/mine", Isolation::Snapshot)
            .await;
        assert_eq!(kept.unwrap().as_deref(), Some(&b"1"[..]));
    }
}
