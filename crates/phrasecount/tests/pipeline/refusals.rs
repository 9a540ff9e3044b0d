//! Refusals: their messages, and that the next call continues.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use export_queue::combine::hc_dequeue::microqueue::keyspace::{
    Database, Isolation, KeyValue, OwnedTransaction, RangeQuery, Transaction, embedded, limits,
    read_all,
};
use rusqlite::Connection;

use crate::program::{Finished, Running, World, finish, program};

const TEXT: &str = "one two three four five";

#[test]
fn what_cannot_run_is_refused_by_name() {
    let world = World::new();
    world.write("file", TEXT);
    let path = world.path("file");
    let file = path.to_str().unwrap();
    let directory = world.directory.path().to_str().unwrap();
    let not_a_store = format!("embedded:{file}");
    // The store is not there yet: nothing is made.
    let store = world.place.path().join("store");
    let log = store.with_file_name("store.log.0000000000000001");
    let [store, log] = [&store, &log].map(|path| path.to_str().unwrap());
    let itself = format!("embedded:{store}");
    let side_file = format!("embedded:{store}-wal");
    let by_another_way = format!("{}/./store", world.place.path().display());
    for (arguments, status, reason) in [
        (&["load", "/no/such/directory"][..], 1, "/no/such/directory"),
        (&["load", file], 2, "is not a directory"),
        (
            &["load", directory, "--db", "redis:"],
            2,
            "`redis:` names no store",
        ),
        (
            &["load", directory, "--db", &not_a_store],
            1,
            "is not a store",
        ),
        (
            &["stats", "--db", "embedded:/no/such/place"],
            1,
            "/no/such/place",
        ),
        (
            &["get", "three words only"],
            2,
            "a phrase has 4 words, not 3",
        ),
        (&["work", "--workers", "0"], 2, "--workers"),
        (&["stats", "--quiet", "--verbose"], 2, "--verbose"),
        (
            &["run", directory, "--db", &itself, "--out", store],
            2,
            "is a file of the store itself: name another file with --out",
        ),
        (
            &["run", directory, "--db", &itself, "--out", &by_another_way],
            2,
            "is a file of the store itself",
        ),
        (
            &["export", "--db", &itself, "--out", log],
            2,
            "is a file of the store itself",
        ),
        (
            &["export", "--db", &side_file, "--out", store],
            2,
            "is a file of the store itself",
        ),
        (
            &["run", directory, "--out", directory],
            2,
            "is no regular file",
        ),
        (&["run", directory, "--out", "."], 2, "is no regular file"),
        (
            &["run", directory, "--out", "/no/such/place"],
            2,
            "there is no folder /no/such: make it",
        ),
        (
            &["export", "--out", "a/b"],
            2,
            "there is no folder a: make it",
        ),
        (
            &["stats", "--db", "memory:"],
            2,
            "memory: is empty in each program",
        ),
        (
            &["work", "--console", "8080"],
            2,
            "expected an IP address and a port, such as 127.0.0.1:8080",
        ),
        (&["count", directory], 2, "count"),
        (&[], 2, "Usage"),
    ] {
        let mut command = Command::new(program());
        let refused = finish(command.args(arguments).current_dir(world.place.path()));
        refused.assert_refused(status, reason);
    }
    assert_eq!(fs::read(file).unwrap(), TEXT.as_bytes());
    assert_eq!(fs::read_dir(world.place.path()).unwrap().count(), 0);
}

#[test]
fn the_sqlite_file_is_not_taken_for_the_store_once_both_are_there() {
    let world = World::new();
    world.write("a", TEXT);
    world.run();
    let store = world.place.path().join("store");
    let link = world.place.path().join("link");
    std::os::unix::fs::symlink(&store, &link).unwrap();
    let before = fs::read(&store).unwrap();
    let hard_link = world.place.path().join("hard link");
    fs::hard_link(&store, &hard_link).unwrap();
    let to_come = world.place.path().join("to come");
    std::os::unix::fs::symlink("store.lock", &to_come).unwrap();
    for out in [&store, &link, &hard_link, &to_come] {
        let mut command = world.command(&["export", "--until-idle"]);
        let refused = finish(command.arg("--out").arg(out));
        refused.assert_refused(2, "is a file of the store itself");
    }
    assert_eq!(fs::read(&store).unwrap(), before);
    // A neighbor whose name begins like that of the store is none of its files.
    let beside = world.place.path().join("store.sqlite");
    let mut command = world.command(&["export", "--until-idle"]);
    let exported = finish(command.arg("--out").arg(beside));
    assert_eq!(exported.status, Some(0), "{exported:?}");
}

#[test]
fn no_file_beside_an_open_store_is_taken_for_the_sqlite_file() {
    let world = World::new();
    world.write("a", TEXT);
    let mut working = Running::start(&mut world.command(&["work"]));
    assert!(working.wait_until("working"));
    let entries = fs::read_dir(world.place.path()).unwrap();
    let files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    for end in ["store", "store.lock", "store.socket"] {
        assert!(files.contains(&world.place.path().join(end)), "{files:?}");
    }
    for out in &files {
        let mut command = world.command(&["export", "--until-idle"]);
        let refused = finish(command.arg("--out").arg(out));
        refused.assert_refused(2, "is a file of the store itself");
    }
    assert_eq!(working.interrupt().status, Some(130));
    // Also while they are not there.
    for end in ["store.lock", "store.socket", ".keyspace-a1B2"] {
        let mut command = world.command(&["export", "--until-idle"]);
        let refused = finish(command.arg("--out").arg(world.place.path().join(end)));
        refused.assert_refused(2, "is a file of the store itself");
    }
    let left = fs::read_dir(world.place.path()).unwrap().count();
    assert_eq!(left, 1);
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let world = World::new();
    world.write("a", TEXT);
    let folder = world.place.path().join("folder");
    fs::create_dir(&folder).unwrap();
    set_mode(&folder, 0o555);
    let directory = world.directory.path().display();
    let folder = folder.display();
    let run = |db: &str, out: &str| {
        let arguments: Vec<_> = format!("run {directory} --db {db} --out {out}")
            .split(' ')
            .map(str::to_owned)
            .collect();
        unprivileged_call(&world, &arguments)
    };
    let refused = run(&world.db, &format!("{folder}/out"));
    let reason = format!("the file and its folder {folder} must be writable");
    refused.assert_refused(1, &reason);
    let refused = run(&format!("embedded:{folder}/store"), "out");
    refused.assert_refused(1, &format!("no file can be made in {folder}"));
}

#[test]
fn looking_at_a_store_that_is_not_there_says_so_and_makes_nothing() {
    let world = World::new();
    let commands: [&[&str]; 3] = [&["stats"], &["top"], &["get", "one two three four"]];
    for arguments in commands {
        let refused = finish(&mut world.command(arguments));
        let path = world.place.path().join("store");
        let reason = format!("there is no store at {}: check --db", path.display());
        refused.assert_refused(1, &reason);
        assert_eq!(refused.stdout, "");
        assert_eq!(fs::read_dir(world.place.path()).unwrap().count(), 0);
    }
    world.write("a", TEXT);
    world.run();
    for arguments in commands {
        let looked = finish(&mut world.command(arguments));
        assert_eq!(looked.status, Some(0), "{looked:?}");
    }
}

#[test]
fn looking_at_a_store_of_another_application_says_so_and_changes_nothing() {
    let world = World::new();
    let path = world.place.path().join("store");
    let open = || embedded::Options::new().open(&path).unwrap();
    let mut tr = open().begin().unwrap();
    tr.set(b"theirs", b"1");
    block_on(tr.commit()).unwrap();
    drop(tr);
    for arguments in [&["stats"][..], &["top"], &["get", "one two three four"]] {
        let refused = finish(&mut world.command(arguments));
        let reason = format!("nothing was counted in embedded:{}", path.display());
        refused.assert_refused(1, &reason);
    }
    let tr = open().begin().unwrap();
    let all = RangeQuery::keys(&b""[..], limits::END_OF_KEYSPACE);
    let rows = block_on(read_all(&tr, all, Isolation::Snapshot)).unwrap();
    let keys: Vec<_> = rows.iter().map(KeyValue::key).collect();
    assert_eq!(keys, [b"theirs"]);
}

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

#[test]
fn a_store_that_another_program_has_open_is_shared() {
    let world = World::new();
    let mut working = Running::start(&mut world.command(&["work"]));
    assert!(working.wait_until("working"));
    assert_eq!(finish(&mut world.command(&["stats"])).status, Some(0));
    assert_eq!(working.interrupt().status, Some(130));
    assert_eq!(finish(&mut world.command(&["stats"])).status, Some(0));
}

#[test]
fn looking_at_a_store_does_not_take_it_from_a_process_that_waits_for_it() {
    let world = World::new();
    world.write("a", TEXT);
    world.run();
    let path = world.place.path().join("store");
    let waits = thread::spawn(move || {
        let client = embedded::Options::new().with_sharing(embedded::Sharing::ClientOnly);
        client.with_patience(Duration::from_secs(60)).open(path)
    });
    // Its part in the store is there before it waits.
    while !world.place.path().join("store.apps").exists() {
        thread::yield_now();
    }
    let looked = finish(&mut world.command(&["stats"]));
    looked.assert_refused(1, "is already open");
    let mut working = Running::start(&mut world.command(&["work"]));
    assert!(working.wait_until("working"));
    let client = waits.join().unwrap().unwrap();
    assert_eq!(finish(&mut world.command(&["stats"])).status, Some(0));
    client.close().unwrap();
    assert_eq!(working.interrupt().status, Some(130));
}

#[test]
fn a_sqlite_file_of_somebody_else_is_refused_and_left_as_it_is() {
    let world = World::new();
    world.write("a", TEXT);
    let other = Connection::open(world.out()).unwrap();
    other.execute_batch("CREATE TABLE phrases (mine)").unwrap();
    drop(other);
    let before = fs::read(world.out()).unwrap();
    let refused = finish(&mut world.run_command());
    refused.assert_refused(
        1,
        "is not a file of phrasecount: it has the tables of another program",
    );
    assert_eq!(fs::read(world.out()).unwrap(), before);

    fs::write(
        world.out(),
        "text, and long enough to have a header of SQLite's size".repeat(20),
    )
    .unwrap();
    let refused = finish(&mut world.run_command());
    refused.assert_refused(1, "it is not a SQLite file");

    fs::remove_file(world.out()).unwrap();
    world.run();
    world.assert_exported();
    let newer = Connection::open(world.out()).unwrap();
    newer.pragma_update(None, "user_version", 2).unwrap();
    drop(newer);
    let refused = finish(&mut world.run_command());
    refused.assert_refused(1, "its tables have version 2");
}

#[test]
fn a_sqlite_file_of_another_store_is_refused() {
    let world = World::new();
    let other = World::new();
    world.write("a", TEXT);
    world.run();
    let before = world.exported();
    let mut command = other.command(&["export", "--until-idle"]);
    let refused = finish(command.arg("--out").arg(world.out()));
    refused.assert_refused(1, "has the counts of another store");
    assert_eq!(world.exported(), before);
}

#[test]
fn a_locked_sqlite_file_is_refused_and_a_later_run_completes_the_job() {
    let world = World::new();
    world.write("a", TEXT);
    world.run();
    world.write("b", "five six seven eight");
    let other = Connection::open(world.out()).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let refused = finish(&mut world.run_command());
    refused.assert_refused(1, "is locked by another program");
    other.execute_batch("ROLLBACK").unwrap();
    drop(other);
    world.run();
    world.assert_exported();
}

/// Runs the program on a terminal that says that it has a number of columns.
#[cfg(target_os = "linux")]
fn on_a_terminal(columns: u16, command: &Command) -> Finished {
    let words: Vec<_> = command
        .get_args()
        .map(|word| word.to_str().unwrap())
        .collect();
    let program = command.get_program().to_str().unwrap();
    let call = format!(
        "stty cols {columns} rows {columns}; {program} {}",
        words.join(" ")
    );
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &call, "/dev/null"]);
    terminal.stdin(std::process::Stdio::null());
    finish(&mut terminal)
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_terminal_without_columns_everything_is_printed() {
    let world = World::new();
    world
        .write("a", TEXT)
        .write("binary\u{1b}[2J\nforged", b"\0");
    let mut command = world.run_command();
    command.arg("--verbose");
    for columns in [0, 1, 80] {
        let finished = on_a_terminal(columns, &command);
        assert_eq!(finished.status, Some(0), "{columns}: {finished:?}");
        for text in [
            "counted: ",
            "one two three four",
            r"binary\u001b[2J\nforged: it is binary",
        ] {
            assert!(
                finished.stdout.contains(text),
                "{columns}: {text}: {finished:?}"
            );
        }
    }
}

#[test]
fn names_of_files_and_arguments_do_nothing_to_a_terminal() {
    let hostile = "\u{1b}[2J\r\nforged\u{9b}\u{202e}gpj\u{200b}";
    let world = World::new();
    world.write(&format!("{hostile}.txt"), TEXT);
    world.write(&format!("{hostile}.md"), b"\0");
    let path = world.path(hostile);
    let folder = path.to_str().unwrap();
    let no_store = format!("embedded:{folder}/store");
    let mut run = world.run_command();
    run.arg("--verbose");
    let mut outputs = vec![finish(&mut run)];
    assert_eq!(outputs[0].status, Some(0), "{outputs:?}");
    assert!(
        outputs[0]
            .stdout
            .contains(r"\u202egpj\u200b.md: it is binary")
    );
    assert!(outputs[0].stderr.contains(r"gpj\u200b.txt"), "{outputs:?}");
    let json = finish(world.run_command().arg("--json"));
    assert_eq!(json.json()["skipped"][0]["uri"], format!("{hostile}.md"));
    outputs.push(json);
    for arguments in [
        &["load", folder][..],
        &[
            "run",
            world.directory.path().to_str().unwrap(),
            "--out",
            folder,
            "--db",
            &no_store,
        ],
        &["stats", "--db", &no_store],
        &["stats", "--db", hostile],
        &["get", hostile],
        &[hostile],
        &["work", "--console", hostile],
    ] {
        let refused = finish(Command::new(program()).args(arguments));
        assert_ne!(refused.status, Some(0), "{refused:?}");
        outputs.push(refused);
    }
    for finished in &outputs {
        for output in [&finished.stdout, &finished.stderr] {
            let acts = |char: char| {
                (char.is_control() && char != '\n') || "\u{202e}\u{200b}".contains(char)
            };
            assert!(!output.contains(acts), "{finished:?}");
            let forged = output.lines().find(|line| line.starts_with("forged"));
            assert_eq!(forged, None, "{finished:?}");
        }
    }
}

#[test]
fn binary_files_are_skipped_named_and_counted() {
    let world = World::new();
    world
        .write("text", TEXT)
        .write("turns", "six seven eight nine")
        .write("image", b"one two three four\0")
        .write("late", [TEXT.repeat(1_000).as_bytes(), b"\0"].concat());
    let run = world.run();
    assert_eq!(run["files"], 3);
    assert_eq!(run["skipped"].as_array().unwrap().len(), 1);
    assert_eq!(run["skipped"][0]["uri"], "image");
    assert_eq!(run["skipped"][0]["reason"], "it is binary");
    world.assert_exported();

    // A file that becomes binary stops being a document.
    world.write("turns", "six seven eight nine\0");
    let run = finish(&mut world.run_command());
    assert!(run.stdout.contains("skipped 2 files:"), "{run:?}");
    assert!(run.stdout.contains("  turns: it is binary"), "{run:?}");
    world.assert_exported();
}

#[test]
fn what_has_no_extension_and_is_not_utf_8_is_skipped_named_and_counted() {
    let world = World::new();
    let latin = b"na\xefve, one two three four";
    world
        .write("README", TEXT)
        .write("latin", latin)
        .write("latin.txt", latin)
        .write(
            "cut",
            "one two three four \u{20ac}"
                .as_bytes()
                .split_last()
                .unwrap()
                .1,
        );
    let run = world.run();
    assert_eq!(run["files"], 2);
    let skipped = run["skipped"].as_array().unwrap();
    for (file, uri) in skipped.iter().zip(["cut", "latin"]) {
        assert_eq!(file["uri"], uri);
        assert_eq!(file["reason"], "it is not UTF-8, and has no extension");
    }
    assert_eq!(skipped.len(), 2);
    world.assert_exported();
}

#[test]
fn what_cannot_be_read_is_skipped_and_stays_as_it_was_counted() {
    let world = World::new();
    world
        .write("text", TEXT)
        .write("below/b", "six seven eight nine");
    world
        .write("secret", "ten eleven twelve thirteen")
        .write("goes", "a b c d");
    unprivileged(&world, &world.run_command_of_anybody());
    let before = world.exported();
    assert_eq!(before.len(), 5);

    world.remove("goes");
    for name in ["secret", "below"] {
        set_mode(&world.path(name), 0o000);
    }
    let run = unprivileged(&world, &world.run_command_of_anybody());
    let skipped: Vec<_> = run["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["uri"].as_str().unwrap())
        .collect();
    assert_eq!(skipped, ["below", "secret"]);
    for name in ["secret", "below"] {
        set_mode(&world.path(name), 0o755);
    }
    let mut expected = before;
    expected.remove("a b c d");
    assert_eq!(world.exported(), expected);
}

impl World {
    /// Returns the arguments of `run`.
    fn run_command_of_anybody(&self) -> Vec<String> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let mut arguments = vec!["run".to_owned(), text(self.directory.path())];
        arguments.extend(["--db".to_owned(), self.db.clone(), "--json".to_owned()]);
        arguments.extend(["--out".to_owned(), text(&self.out())]);
        arguments
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn unprivileged(world: &World, arguments: &[String]) -> serde_json::Value {
    unprivileged_call(world, arguments).json()
}

/// Runs the program as a user without the right to read and write everything, which root has.
fn unprivileged_call(world: &World, arguments: &[String]) -> Finished {
    let copy = world.place.path().join("program");
    // Another process writes it: a file that this one has open for writing, as a child that another test
    // starts meanwhile would too, cannot be run.
    let copied = Command::new("cp").arg(program()).arg(&copy).status();
    assert!(copied.unwrap().success());
    for open in [world.place.path(), world.directory.path()] {
        set_mode(open, 0o777);
    }
    let mut command = Command::new(copy);
    command.args(arguments).current_dir(world.place.path());
    let probe = world.path("probe");
    fs::write(&probe, "").unwrap();
    set_mode(&probe, 0o000);
    if fs::read(&probe).is_ok() {
        command.uid(65_534).gid(65_534);
    }
    fs::remove_file(probe).unwrap();
    finish(&mut command)
}
