//! What the program refuses, and the exit status that says so.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

#[cfg(target_os = "linux")]
use crate::common::program::Asking;
use crate::common::program::{Filled, OWNS, finish, program, run};
use crate::common::{QUEUES, REASONS};
use export_queue::keyspace::embedded::{Options, Role, Sharing};
use export_queue::keyspace::{self, Subspace};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

#[test]
fn the_exit_status_says_what_became_of_a_command() {
    let store = Filled::embedded();
    let orders = store.json(&["list", "orders"]);
    let foreign = orders["items"][0]["item"].as_str().unwrap();
    let done = &store.items.done[0].to_string();
    let queued = store.json(&["list", "jobs", "--limit", "1"]);
    let token = queued["next"].as_str().unwrap();
    // How a queue stands can be that it is unreadable.
    assert_eq!(store.run(&["stats", "newer"]).status, 0);
    let cases: &[(i32, &[&str], &str)] = &[
        (1, &["configure", "newer"], "cannot be read"),
        (1, &["backup", "."], "there is something at ."),
        (1, &["backup", "/none/copy"], "no file can be made in /none"),
        (2, &[], "Usage"),
        (2, &["frobnicate"], "unrecognized subcommand"),
        (2, &["queues", "--limit", "0"], "--limit"),
        (2, &["queues", "--limit", "1001"], "--limit"),
        (2, &["list", "mail"], "recipe microqueue"),
        (2, &["combine", "jobs", "a"], "recipe hc-dequeue"),
        (
            2,
            &["show", "jobs", "xyz"],
            "expected a reference as `list` prints it",
        ),
        (2, &["show", "jobs", foreign], "another queue"),
        (2, &["cancel", "jobs", foreign], "another queue"),
        (
            2,
            &["list", "jobs", "--place", "dead", "--after", token],
            "the first page",
        ),
        (2, &["list", "jobs", "--after", "zz"], "the first page"),
        (2, &["ls", "a b"], "jobs/i"),
        (2, &["redrive", "jobs"], "or say --all"),
        (
            2,
            &["redrive", "jobs", "--all", done],
            "cannot be used with",
        ),
        (
            2,
            &["purge", "events", "--all", "--subscription", "mirror"],
            "--subscription",
        ),
        (
            2,
            &["redrive", "events", "--subscription", "mirror", "00"],
            "which has the exporter",
        ),
        (
            2,
            &["expedite", "jobs", "--all", "--place", "dead"],
            "expedite changes no item that is dead",
        ),
        (2, &["configure", "jobs", "--lease", "1ms"], "too short"),
        (2, &["release-dedupe", "jobs", ""], "use 1 to "),
        (2, &["prioritize", "jobs", done, "10"], "from -9 to 9"),
        (3, &["prioritize", "jobs", done, "1"], "is not there"),
        (3, &["stats", "none"], "console queues"),
        (3, &["stats", "a b"], "console queues"),
        (3, &["expedite", "jobs", done], "is not there"),
        (
            3,
            &["list", "events", "--subscription", "none"],
            "`exports` lists",
        ),
        (3, &["get", "jobs/none"], "is not there"),
    ];
    for (status, command, reason) in cases {
        store.run(command).assert_refused(*status, reason);
    }
}

#[test]
fn a_file_of_the_store_is_no_target_of_a_backup_whether_it_is_there_or_not() {
    let store = Filled::embedded();
    let path = store.folder.path().join("store");
    let link = store.folder.path().join("link");
    fs::hard_link(&path, &link).unwrap();
    let ends = ["", ".lock", ".socket", ".log.00000000000000ff"].map(|end| format!("store{end}"));
    for name in ends
        .iter()
        .map(String::as_str)
        .chain([".keyspace-a1B2", "link"])
    {
        let target = store.folder.path().join(name).display().to_string();
        let refused = store.run(&["backup", &target]);
        refused.assert_refused(2, "is a file of the store itself: name another file");
    }
    fs::remove_file(&link).unwrap();
    assert_eq!(fs::read_dir(store.folder.path()).unwrap().count(), 1);
    let beside = store.folder.path().join("store.copy").display().to_string();
    assert_eq!(store.run(&["backup", &beside]).status, 0);
}

#[test]
fn an_audit_that_finds_something_has_the_status_4_until_it_is_repaired() {
    let store = Filled::embedded();
    let db = keyspace::open(&store.db).unwrap();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let key = &Subspace::from(("jobs", "c")).pack(&"dead");
        let damage = |tr: keyspace::Tx<_>| async move {
            keyspace::Transaction::set(&tr, key, &9_u64.to_le_bytes());
            Ok::<_, keyspace::Error>(())
        };
        keyspace::Runner::new(db.clone()).run(damage).await.unwrap();
    });
    db.close().unwrap();
    for (command, status, text) in [
        ("audit", 4, "console repair"),
        ("audit", 4, "FOUND"),
        ("repair", 4, "counter-off"),
        ("audit", 0, "everything agrees"),
    ] {
        let finished = store.run(&[command, "jobs"]);
        assert_eq!((finished.status, &*finished.err), (status, ""), "{command}");
        assert!(finished.out.contains(text), "{finished:?}");
    }
}

#[test]
fn an_item_that_is_gone_keeps_no_other_one_from_being_changed() {
    let store = Filled::embedded();
    let [first, second, third] = [0, 1, 2].map(|letter| store.items.dead[letter].to_string());
    assert_eq!(store.run(&["purge", "jobs", &second]).status, 0);
    let purged = store.run(&["purge", "jobs", &first, &second, &third]);
    assert_eq!(purged.status, 3, "{purged:?}");
    assert!(purged.err.contains(&second), "{purged:?}");
    assert_eq!(store.count("dead"), 0);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let store = Filled::embedded();
    let mut list = program();
    list.args(["list", "jobs", "--db", &store.db])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut list = list.spawn().unwrap();
    // The pipe has no reader before the first line is printed.
    drop(list.stdout.take());
    let ended = list.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(String::from_utf8(ended.stderr).unwrap(), OWNS);
}

#[cfg(target_os = "linux")]
#[test]
fn a_bulk_change_on_a_terminal_waits_for_an_answer() {
    let store = Filled::embedded();
    for (typed, status, text, left) in [
        ("\x03", 130, "stopped", 3),
        ("\n", 1, "nothing was changed", 3),
        ("n\n", 1, "nothing was changed", 3),
        ("y\n", 0, "3 of 3", 0),
    ] {
        let finished = Asking::purge(&store).answer(typed);
        assert_eq!(finished.status, status, "{typed:?} {finished:?}");
        assert!(finished.out.contains("3 dead items of `jobs` match"));
        assert!(finished.out.contains(text), "{typed:?} {finished:?}");
        assert_eq!(store.count("dead"), left, "{typed:?}");
    }
}

#[test]
fn a_store_that_its_owner_does_not_share_is_left_alone_and_the_way_in_is_named() {
    let store = Filled::embedded();
    let rows = || store.json(&["ls", "--limit", "1000"]);
    let before = rows();
    let path = store.db.strip_prefix("embedded:").unwrap();
    let alone = Options::new().with_sharing(Sharing::Refuse);
    let open = alone.open(path).unwrap();
    let refused = store.run(&["purge", "jobs", "--all", "--yes"]);
    refused.assert_refused(5, "is open in another process, and cannot be joined");
    refused.assert_refused(5, "console::router");
    open.close().unwrap();
    assert_eq!(rows(), before);
}

#[cfg(unix)]
#[test]
fn commands_work_on_a_store_that_another_process_has_open() {
    let store = Filled::embedded();
    let open = keyspace::open(&store.db).unwrap();
    assert_eq!(store.run(&["queues"]).status, 0);
    assert_eq!(store.run(&["pause", "jobs"]).status, 0);
    let copy = store.folder.path().join("copy");
    assert_eq!(store.run(&["backup", copy.to_str().unwrap()]).status, 0);
    keyspace::open_existing(&format!("embedded:{}", copy.display())).unwrap();
    let checked = store.json(&["check"]);
    assert!(checked["rows"].as_u64().unwrap() > 0, "{checked}");
    let sessions = store.json(&["sessions", "jobs"]);
    let processes = sessions["processes"].as_array().unwrap();
    let of = |place: usize| [&processes[place]["role"], &processes[place]["pid"]];
    assert_eq!(of(0), [&json!("owner"), &json!(std::process::id())]);
    assert_eq!(of(1)[0], "client");
    let shown = store.run(&["sessions", "jobs"]);
    assert!(shown.out.contains("STORE   PID"), "{}", shown.out);
    open.close().unwrap();
}

#[cfg(unix)]
#[test]
fn a_process_that_owns_the_store_serves_others_until_it_is_stopped() {
    let store = Filled::embedded();
    let mut own = program();
    let own = own.args(["own", "--db", &store.db]).stdout(Stdio::piped());
    let mut owner = own.spawn().unwrap();
    let mut said = String::new();
    let mut out = BufReader::new(owner.stdout.take().unwrap());
    out.read_line(&mut said).unwrap();
    assert!(said.starts_with("this process owns the store"), "{said}");
    let path = store.db.strip_prefix("embedded:").unwrap();
    let client = Options::new().with_sharing(Sharing::ClientOnly);
    let client = client.open(path).unwrap();
    assert_eq!(client.role(), Role::Client);
    assert_eq!(store.run(&["queues"]).status, 0);
    let interrupt = ["-INT".to_owned(), owner.id().to_string()];
    Command::new("kill").args(interrupt).status().unwrap();
    assert!(owner.wait().unwrap().success());
}

/// Returns every file of a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|file| {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        (name, fs::read(file.path()).unwrap())
    });
    files.collect()
}

#[test]
fn what_is_no_store_is_refused_and_none_is_made() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("missing");
    let text = folder.path().join("text");
    fs::write(&text, "no store").unwrap();
    let url = |path: &Path| format!("embedded:{}", path.display());
    let before = files(folder.path());
    for (db, status, reason) in [
        (url(&missing), 1, "there is no store at"),
        (url(&text), 1, "is not a store"),
        (
            "memory:".to_owned(),
            2,
            "name an embedded store or a cluster",
        ),
        ("redis:".to_owned(), 2, "names no store"),
    ] {
        run(&["queues", "--db", &db]).assert_refused(status, reason);
    }
    run(&["queues"]).assert_refused(2, "--db");
    assert_eq!(files(folder.path()), before);
}

#[test]
fn the_environment_can_name_the_store() {
    let store = Filled::embedded();
    let named = finish(program().arg("queues").env("CONSOLE_DB", &store.db));
    assert_eq!(named.status, 0, "{named:?}");
    assert!(QUEUES.iter().all(|queue| named.out.contains(queue)));
}

#[test]
fn a_bulk_change_says_how_many_and_changes_nothing_unless_it_is_confirmed() {
    let store = Filled::embedded();
    let filters: &[(&[&str], u64)] = &[
        (&["--all"], 3),
        (&["--reason", "connection"], 2),
        (&["--attempts", "2"], 1),
        (&["--payload", "\"tenant\":2"], 1),
        (&["--older-than", "1h"], 1),
        (&["--older-than", "3h"], 0),
        (&["--older-than", "500000000000years", "--attempts", "0"], 0),
        (&["--older-than", "1h", "--reason", REASONS[0]], 1),
    ];
    for (filter, count) in filters {
        let finished = store.run(&[&["redrive", "jobs"], *filter].concat());
        let said = format!("{count} dead items of `jobs` match");
        assert!(finished.err.contains(&said), "{filter:?}: {finished:?}");
        match count {
            0 => assert_eq!(finished.status, 0, "{filter:?}"),
            _ => finished.assert_refused(2, "nothing was changed: add --yes"),
        }
        assert_eq!(store.count("dead"), 3);
    }
    let filter = ["--reason", "connection", "--yes"];
    let finished = store.run(&[&["redrive", "jobs"][..], &filter].concat());
    assert_eq!(finished.out, "jobs: redrive: 2: done\n", "{finished:?}");
    assert_eq!((store.count("dead"), store.count("queued")), (1, 7));
    let cancel = [
        "cancel", "jobs", "--all", "--place", "delayed", "--yes", "--json",
    ];
    let finished = store.run(&cancel);
    let change: Value = serde_json::from_str(&finished.out).unwrap();
    assert_eq!((&change["changed"], store.count("delayed")), (&2.into(), 0));
    assert_eq!(store.count("queued"), 7);
}

#[test]
fn a_check_says_what_it_has_read_and_a_damaged_store_is_found() {
    let store = Filled::embedded();
    let checked = store.run(&["check"]);
    assert_eq!((checked.status, &*checked.err), (0, ""), "{checked:?}");
    assert!(
        checked.out.contains("every checksum is right"),
        "{checked:?}"
    );
    let json = store.json(&["check"]);
    crate::common::assert_valid("StoreCheck", &json);
    assert!(json["rows"].as_u64().unwrap() > 10, "{json}");

    let path = store.folder.path().join("store");
    let mut bytes = fs::read(&path).unwrap();
    bytes.truncate(bytes.len() / 2);
    fs::write(&path, &bytes).unwrap();
    for arguments in [&["check"][..], &["check", "--json"]] {
        let found = store.run(arguments);
        found.assert_refused(4, "is damaged");
        // Not that this check is what to run next.
        assert!(found.err.ends_with(": restore a backup\n"), "{found:?}");
        assert!(!found.err.contains("panic"));
    }
    assert!(fs::read(&path).unwrap() == bytes);
    let copy = store.folder.path().join("copy");
    let copied = store.run(&["backup", copy.to_str().unwrap()]);
    assert_ne!(copied.status, 0, "{copied:?}");
    assert!(!copy.exists());
}

#[test]
fn damage_that_a_copy_finds_has_the_status_of_damage() {
    let store = Filled::embedded();
    let path = store.folder.path().join("store");
    let mut bytes = fs::read(&path).unwrap();
    let text = REASONS[0].as_bytes();
    let places: Vec<_> = bytes
        .windows(text.len())
        .enumerate()
        .filter(|(_, window)| *window == text)
        .map(|(place, _)| place)
        .collect();
    assert!(!places.is_empty());
    for place in places {
        bytes[place] ^= 1;
    }
    fs::write(&path, &bytes).unwrap();
    let listed = store.run(&["list", "jobs", "--place", "dead"]);
    listed.assert_refused(4, "is damaged");
    let copy = store.folder.path().join("copy");
    let copied = store.run(&["backup", copy.to_str().unwrap()]);
    copied.assert_refused(4, "error: cannot copy the store: ");
    copied.assert_refused(4, "is damaged");
    assert!(!copy.exists());
}

#[test]
fn only_the_files_of_an_embedded_store_are_checked() {
    let store = Filled::embedded();
    run(&["check", "--db", "memory:"]).assert_refused(2, "memory: is empty");
    run(&["check", "--db", "fdb:"]).assert_refused(2, "a cluster checks its own");
    let text = store.folder.path().join("text");
    fs::write(&text, "no store").unwrap();
    let db = format!("embedded:{}", text.display());
    run(&["check", "--db", &db]).assert_refused(1, "is not a store");
}
