//! The console beside applications that share a store with it: it is a viewer, which leaves the store to them.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::{env, thread};

use conformance::process::{get, role};
use console::terminal;
use export_queue::hc_dequeue::Queue;
use export_queue::keyspace::{self, Runner};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::select;

use crate::common::LONG;
use crate::common::program::{Filled, Finished, finish, program};

/// The test that a process of an application runs.
const APPLICATION: &str = "viewers::an_application_submits_a_job_for_each_line_until_it_is_stopped";

/// A process that is stopped like those of services.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    /// Starts a program, and waits for a line that begins with a text. Returns the rest of the line, too.
    #[track_caller]
    fn start(command: &mut Command, begin: &str) -> (Self, String) {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in out.lines().map_while(io::Result::ok) {
                let _ = sender.send(line);
            }
        });
        let process = Self { child, lines };
        let rest = process.wait_for(begin);
        (process, rest)
    }

    #[track_caller]
    fn wait_for(&self, begin: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(LONG).expect("it prints a line");
            // The harness does not end the line that names the test.
            if let Some((_, rest)) = line.split_once(begin) {
                return rest.to_owned();
            }
        }
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = finish(Command::new("kill").args([signal, &id]));
        assert_eq!(sent.status, 0, "{sent:?}");
    }

    /// Asks the process to stop, and waits until it has ended well.
    #[track_caller]
    fn stop(mut self) {
        self.signal("-TERM");
        // Its output ends with it.
        while self.lines.recv_timeout(LONG) != Err(mpsc::RecvTimeoutError::Disconnected) {}
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process of an application.
struct Application {
    process: Process,
    stdin: ChildStdin,
}

impl Application {
    fn start(db: &str) -> Self {
        Self::start_as(Command::new(env::current_exe().unwrap()), db)
    }

    #[track_caller]
    fn start_as(mut command: Command, db: &str) -> Self {
        command.args(["--exact", APPLICATION, "--nocapture"]);
        command.env("TEST_PROCESS_ROLE", db).stdin(Stdio::piped());
        let (mut process, _) = Process::start(&mut command, "opened");
        let stdin = process.child.stdin.take().unwrap();
        Self { process, stdin }
    }

    /// Submits a job.
    #[track_caller]
    fn submit(&mut self) {
        writeln!(self.stdin, "submit").unwrap();
        self.process.wait_for("submitted");
    }
}

#[test]
fn an_application_submits_a_job_for_each_line_until_it_is_stopped() {
    if let Some(db) = role() {
        return Runtime::new().unwrap().block_on(be_an_application(&db));
    }
    let store = Filled::embedded();
    let mut application = Application::start(&store.db);
    application.submit();
    application.process.stop();
    assert_eq!(store.count("queued"), 6);
}

async fn be_an_application(db: &str) {
    let mut stopped = Box::pin(terminal::stopped());
    let store = keyspace::open(db).unwrap();
    let runner = Runner::new(store.clone());
    let jobs: Queue<Value> = Queue::open(&runner, "jobs").await.unwrap();
    println!("opened");
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in io::stdin().lines() {
            let _ = sender.send(line);
        }
    });
    loop {
        select! {
            _ = &mut stopped => break,
            Some(_) = lines.recv() => {
                jobs.submit(&runner, &json!({ "tenant": 1 })).await.unwrap();
                println!("submitted");
            }
        }
    }
    runner.close().await.unwrap();
    store.close().unwrap();
}

/// Starts the console's server. Returns its address, too.
fn serve(store: &Filled, options: &[&str]) -> (Process, String) {
    serve_as(program(), store, options)
}

fn serve_as(mut command: Command, store: &Filled, options: &[&str]) -> (Process, String) {
    command.args(["serve", "--listen", "127.0.0.1:0", "--db", &store.db]);
    let (process, rest) = Process::start(command.args(options), "listening on http://");
    let (address, _) = rest.split_once(';').unwrap();
    (process, address.to_owned())
}

#[track_caller]
fn assert_answers(address: &str) {
    let answer = get(address, "/api/queues/jobs");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// Returns the process id of the owner of a store, as a command of the console reports it.
#[track_caller]
fn owner(store: &Filled) -> u64 {
    let sessions = store.json(&["sessions", "jobs"]);
    let processes = sessions["processes"].as_array().unwrap();
    let owner = processes.iter().find(|process| process["role"] == "owner");
    owner.unwrap()["pid"].as_u64().unwrap()
}

fn files(store: &Filled) -> Vec<PathBuf> {
    let entries = fs::read_dir(store.folder.path()).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn the_console_owns_no_store_that_an_application_has_open_in_any_order_of_ends() {
    // A worker, which owns the store, a web process, and the console.
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let store = Filled::embedded();
        let mut applications = [Some(Application::start(&store.db)), None];
        let (console, address) = serve(&store, &[]);
        let mut console = Some(console);
        applications[1] = Some(Application::start(&store.db));
        for ends in order {
            match applications.get_mut(ends) {
                Some(application) => application.take().unwrap().process.stop(),
                None => console.take().unwrap().stop(),
            }
            let ids = applications.iter_mut().flatten().map(|application| {
                application.submit();
                u64::from(application.process.child.id())
            });
            let ids: Vec<_> = ids.collect();
            assert!(
                ids.is_empty() || ids.contains(&owner(&store)),
                "{order:?}: {ends}"
            );
            if console.is_some() {
                assert_answers(&address);
            }
        }
        assert_eq!(
            files(&store),
            [store.folder.path().join("store")],
            "{order:?}"
        );
    }
}

#[test]
fn a_server_that_is_alone_owns_the_store_says_so_and_hands_it_over_to_an_application() {
    let store = Filled::embedded();
    let told = store.folder.path().with_extension("told");
    let mut command = program();
    command.stderr(fs::File::create(&told).unwrap());
    let (console, address) = serve_as(command, &store, &[]);
    assert_eq!(owner(&store), u64::from(console.child.id()));
    let checked = store.run(&["check"]);
    assert!(
        checked.out.contains("every checksum is right"),
        "{checked:?}"
    );
    assert_eq!(owner(&store), u64::from(console.child.id()));
    let said = fs::read_to_string(&told).unwrap();
    fs::remove_file(&told).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("this one owns it until an application opens it"),
        "{said}"
    );
    for _again in 0..2 {
        let mut application = Application::start(&store.db);
        application.submit();
        assert_eq!(owner(&store), u64::from(application.process.child.id()));
        assert_answers(&address);
        application.process.stop();
        assert_answers(&address);
    }
    console.stop();
    assert_eq!(files(&store), [store.folder.path().join("store")]);
}

#[test]
fn a_command_that_owns_the_store_says_so_but_not_beside_json_nor_beside_an_owner() {
    let store = Filled::embedded();
    let said = |arguments: &[&str]| finish(program().args(arguments).args(["--db", &store.db])).err;
    let notice =
        "no other process has the store open: this one owns it until an application opens it\n";
    assert_eq!(said(&["stats", "jobs"]), notice);
    assert_eq!(said(&["stats", "jobs", "--json"]), "");
    let application = Application::start(&store.db);
    assert_eq!(said(&["stats", "jobs"]), "");
    application.process.stop();
}

#[test]
fn own_and_a_server_that_may_own_keep_the_store_beside_applications() {
    let store = Filled::embedded();
    let own = |store: &Filled| {
        let mut command = program();
        command.args(["own", "--db", &store.db]);
        Process::start(&mut command, "this process owns the store").0
    };
    let serve_own = |store: &Filled| serve(store, &["--own"]).0;
    let owners: [&dyn Fn(&Filled) -> Process; 2] = [&own, &serve_own];
    for start in owners {
        let owning = start(&store);
        for _restart in 0..2 {
            let mut application = Application::start(&store.db);
            application.submit();
            assert_eq!(owner(&store), u64::from(owning.child.id()));
            application.process.stop();
        }
        owning.stop();
    }
}

#[test]
fn a_server_that_is_stopped_beside_applications_stops_none_of_them() {
    let store = Filled::embedded();
    let mut worker = Application::start(&store.db);
    let (console, address) = serve(&store, &[]);
    let mut web = Application::start(&store.db);
    console.signal("-STOP");
    worker.submit();
    worker.process.stop();
    web.submit();
    assert_eq!(owner(&store), u64::from(web.process.child.id()));
    let mut next = Application::start(&store.db);
    web.process.stop();
    next.submit();
    console.signal("-CONT");
    assert_answers(&address);
    next.process.stop();
    console.stop();
    assert_eq!(files(&store), [store.folder.path().join("store")]);
}

/// A user that is not root, and that no other test uses.
const USER: u32 = 65_533;

/// Gives a store to the user. Returns `false`, and says so, if this process may not.
fn give_away(store: &Filled, test: &str) -> bool {
    let paths = [
        store.folder.path().to_owned(),
        store.folder.path().join("store"),
    ];
    let given = paths
        .iter()
        .all(|path| chown(path, Some(USER), Some(USER)).is_ok());
    if !given {
        let _ = writeln!(
            io::stderr(),
            "skipped: {test}: only root can give a store to another user"
        );
    }
    given
}

/// Copies a program for the user, who may not be able to read the folder of this one. Returns where it is, beside the
/// folder of the store.
fn copy_for_the_user(store: &Filled, program: &Path) -> PathBuf {
    let copy = store
        .folder
        .path()
        .with_extension(program.file_name().unwrap());
    let copied = finish(Command::new("cp").arg(program).arg(&copy));
    assert_eq!(copied.status, 0, "{copied:?}");
    copy
}

/// Prepares a call as the user.
fn as_the_user(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .uid(USER)
        .gid(USER)
        .current_dir("/")
        .stdin(Stdio::null());
    command
}

#[test]
fn roots_console_keeps_no_application_of_another_user_from_its_store() {
    let store = Filled::embedded();
    if !give_away(
        &store,
        "roots_console_keeps_no_application_of_another_user_from_its_store",
    ) {
        return;
    }
    let program = copy_for_the_user(&store, &env::current_exe().unwrap());
    let start = || Application::start_as(as_the_user(&program), &store.db);
    let mut worker = start();
    let (console, address) = serve(&store, &[]);
    let mut web = start();
    for _restart in 0..3 {
        worker.submit();
        worker.process.stop();
        web.submit();
        assert_eq!(store.run(&["pause", "jobs"]).status, 0);
        assert_answers(&address);
        worker = start();
        std::mem::swap(&mut worker, &mut web);
    }
    console.signal("-KILL");
    drop(console);
    worker.process.stop();
    web.process.stop();
    let mut application = start();
    application.submit();
    application.process.stop();
    assert_eq!(files(&store), [store.folder.path().join("store")]);
    fs::remove_file(program).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_of_threads_ends_a_command_with_an_error_that_names_it() {
    let store = Filled::embedded();
    if !give_away(
        &store,
        "a_limit_of_threads_ends_a_command_with_an_error_that_names_it",
    ) {
        return;
    }
    let copy = copy_for_the_user(&store, Path::new(env!("CARGO_BIN_EXE_console")));
    let run = |threads: u32, arguments: &[&str]| -> Finished {
        let mut command = as_the_user("prlimit");
        command.arg(format!("--nproc={threads}")).arg(&copy);
        finish(command.args(arguments).args(["--db", &store.db]))
    };
    // The limit counts what the user runs beside the command, too: other tests have processes of this user.
    for threads in 1.. {
        let finished = run(threads, &["stats", "jobs"]);
        assert!(
            !finished.err.contains("panicked"),
            "{threads}: {finished:?}"
        );
        if finished.status == 0 {
            assert!(threads > 1, "no limit ends the command");
            break;
        }
        assert_eq!(finished.status, 1, "{threads}");
        assert!(threads < 1_000, "{finished:?}");
    }
    let refused = run(1, &["serve"]);
    refused.assert_refused(1, "raise the limit of processes and threads (`ulimit -u`)");
    fs::remove_file(copy).unwrap();
}
