//! Files that are moved, removed or replaced while their store is open, and to whom the files beside a store belong.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, io};

use conformance::stores;
use keyspace::embedded::{self, Embedded, Options, Role, Sharing};
use keyspace::{Code, Database, Error, Isolation, OpenError, OwnedTransaction, Transaction};
use tempfile::TempDir;

/// Only a hang reaches it.
const LIMIT: Duration = Duration::from_secs(300);

const WAS_REPLACED: &str = "was moved, removed or replaced while the store was open";

fn open(path: &Path) -> Embedded {
    Options::new().with_patience(LIMIT).open(path).unwrap()
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().build().unwrap().block_on(future)
}

fn try_set(db: &Embedded, key: &str, value: &[u8]) -> Result<(), Error> {
    let mut tr = db.begin()?;
    tr.set(key.as_bytes(), value);
    block_on(tr.commit()).map(drop)
}

/// Commits a row. The owner may end meanwhile.
fn set(db: &Embedded, key: &str) {
    while let Err(error) = try_set(db, key, b"1") {
        assert!(error.code().is_some_and(Code::is_retryable), "{error:?}");
    }
}

fn has(db: &Embedded, key: &str) -> bool {
    let tr = db.begin().unwrap();
    let value = block_on(tr.get(key.as_bytes(), Isolation::Snapshot)).unwrap();
    value.is_some()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

fn logs(folder: &Path) -> Vec<String> {
    let mut names = names(folder);
    names.retain(|name| name.contains(".log."));
    names
}

fn assert_replaced(error: &Error) {
    assert!(matches!(error, Error::Poisoned { .. }), "{error:?}");
    let text = keyspace::error::chain(error).to_string();
    assert!(text.contains(WAS_REPLACED), "{text}");
}

/// An open store in a folder of its own, with the rows `a` and `b`, and a backup from between them.
struct Opened {
    top: TempDir,
    folder: PathBuf,
    path: PathBuf,
    backup: PathBuf,
    db: Embedded,
}

impl Opened {
    fn with(options: &Options) -> Self {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let path = folder.join("store");
        let backup = top.path().join("backup");
        let db = options.clone().with_patience(LIMIT).open(&path).unwrap();
        set(&db, "a");
        db.backup(&backup).unwrap();
        set(&db, "b");
        Self {
            top,
            folder,
            path,
            backup,
            db,
        }
    }

    fn new() -> Self {
        Self::with(&Options::new())
    }

    fn moved(&self) -> PathBuf {
        self.top.path().join("moved")
    }

    fn change(&self, change: Change) {
        match change {
            Change::Removed => fs::remove_file(&self.path).unwrap(),
            Change::Moved => fs::rename(&self.path, self.moved()).unwrap(),
            Change::Replaced => {
                fs::rename(&self.path, self.moved()).unwrap();
                fs::copy(&self.backup, &self.path).unwrap();
            }
            Change::ReplacedAtOnce => {
                fs::hard_link(&self.path, self.moved()).unwrap();
                let copy = self.top.path().join("copy");
                fs::copy(&self.backup, &copy).unwrap();
                fs::rename(copy, &self.path).unwrap();
            }
            Change::FolderMoved => fs::rename(&self.folder, self.moved()).unwrap(),
            Change::FolderReplaced => {
                fs::rename(&self.folder, self.moved()).unwrap();
                fs::create_dir(&self.folder).unwrap();
                fs::copy(&self.backup, &self.path).unwrap();
            }
        }
    }

    /// Puts the file back that was opened.
    fn put_back(&self, change: Change) {
        match change {
            Change::Removed => panic!("it is gone"),
            Change::Moved | Change::Replaced | Change::ReplacedAtOnce => {
                fs::rename(self.moved(), &self.path).unwrap();
            }
            Change::FolderMoved => fs::rename(self.moved(), &self.folder).unwrap(),
            Change::FolderReplaced => {
                fs::remove_dir_all(&self.folder).unwrap();
                fs::rename(self.moved(), &self.folder).unwrap();
            }
        }
    }
}

/// What happens to the file of an open store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Removed,
    Moved,
    Replaced,
    ReplacedAtOnce,
    FolderMoved,
    FolderReplaced,
}

const CHANGES: [Change; 6] = [
    Change::Removed,
    Change::Moved,
    Change::Replaced,
    Change::ReplacedAtOnce,
    Change::FolderMoved,
    Change::FolderReplaced,
];

#[test]
fn a_store_whose_file_is_no_longer_there_keeps_its_log_when_it_is_closed_and_says_so() {
    for change in CHANGES {
        let opened = Opened::new();
        let before = logs(&opened.folder);
        opened.change(change);
        assert_replaced(&opened.db.close().unwrap_err());
        let folder = match change {
            Change::FolderMoved | Change::FolderReplaced => opened.moved(),
            _ => opened.folder.clone(),
        };
        assert_eq!(logs(&folder), before, "{change:?}");
        if change != Change::Removed {
            opened.put_back(change);
            let db = open(&opened.path);
            assert!(has(&db, "a") && has(&db, "b"), "{change:?}");
            db.close().unwrap();
            assert_eq!(names(&opened.folder), ["store"]);
        }
    }
}

#[test]
fn a_store_whose_file_is_no_longer_there_keeps_its_log_when_it_is_dropped() {
    for change in CHANGES {
        let opened = Opened::new();
        let before = logs(&opened.folder);
        opened.change(change);
        let Opened {
            top,
            folder,
            path,
            backup,
            db,
        } = opened;
        drop(db);
        let folder = match change {
            Change::FolderMoved | Change::FolderReplaced => top.path().join("moved"),
            _ => folder,
        };
        assert_eq!(logs(&folder), before, "{change:?}");
        drop((path, backup));
    }
}

#[test]
fn a_store_whose_file_is_no_longer_there_is_handed_over_to_no_client() {
    for change in CHANGES {
        let opened = Opened::new();
        let client = open(&opened.path);
        assert!(has(&client, "b"));
        opened.change(change);
        assert_replaced(&opened.db.close().unwrap_err());
        let tr = client.begin();
        let read = tr.and_then(|tr| block_on(tr.get(b"a", Isolation::Snapshot)));
        let error = read.unwrap_err();
        assert!(
            matches!(error, Error::Poisoned { .. }),
            "{change:?}: {error:?}"
        );
    }
}

#[test]
fn a_store_whose_file_is_no_longer_there_stops_before_it_frees_a_part_of_its_log() {
    for change in [Change::Removed, Change::Replaced] {
        let opened = Opened::with(&Options::new().with_window_bytes(64 << 10));
        opened.change(change);
        let first = opened.folder.join("store.log.0000000000000001");
        // More than what is in the window, and in a segment of the log.
        let stopped = (0..10_000)
            .find_map(|row: u32| try_set(&opened.db, &row.to_string(), &[0; 50_000]).err());
        assert!(stopped.is_some(), "{change:?}");
        assert_replaced(&opened.db.close().unwrap_err());
        assert!(first.exists());
    }
}

#[test]
fn an_opening_beside_a_store_whose_file_is_no_longer_there_is_refused_and_removes_nothing() {
    for change in [
        Change::Removed,
        Change::Moved,
        Change::Replaced,
        Change::ReplacedAtOnce,
    ] {
        for sharing in [Sharing::Share, Sharing::Refuse] {
            let opened = Opened::with(&Options::new().with_sharing(sharing));
            opened.change(change);
            let before = names(&opened.folder);
            let impatient = Options::new().with_patience(Duration::ZERO);
            let openings = [
                impatient.open(&opened.path).map(drop),
                impatient.open_existing(&opened.path).map(drop),
                impatient
                    .clone()
                    .with_sharing(Sharing::Refuse)
                    .open(&opened.path)
                    .map(drop),
                embedded::verify(&opened.path, |_, _| ()).map(drop),
            ];
            for refused in openings.map(Result::unwrap_err) {
                let OpenError::StoreInUse { reason, .. } = &refused else {
                    panic!("{change:?}: {refused:?}");
                };
                let expected = "the file that it was opened with was moved, removed or replaced";
                assert_eq!(reason.as_deref(), Some(expected), "{change:?}");
            }
            assert_eq!(names(&opened.folder), before, "{change:?}");
            set(&opened.db, "c");
            assert_replaced(&opened.db.close().unwrap_err());
        }
    }
}

#[test]
fn a_link_that_leads_elsewhere_by_now_does_not_concern_an_open_store() {
    let top = tempfile::tempdir().unwrap();
    let [one, other, link] = ["one", "other", "link"].map(|name| top.path().join(name));
    open(&other).close().unwrap();
    open(&one).close().unwrap();
    symlink(&one, &link).unwrap();
    let db = open(&link);
    set(&db, "a");
    fs::remove_file(&link).unwrap();
    symlink(&other, &link).unwrap();
    let second = open(&link);
    assert!(!has(&second, "a"));
    second.close().unwrap();
    db.close().unwrap();
    assert!(has(&open(&one), "a"));
}

#[test]
fn a_store_whose_log_was_removed_while_it_was_open_moves_all_rows_to_its_file_at_its_end() {
    type End = fn(Embedded);
    let ends: [End; 2] = [|db| db.close().unwrap(), drop];
    for end in ends {
        for has_client in [false, true] {
            let Opened {
                top: _top,
                folder,
                path,
                backup: _,
                db,
            } = Opened::new();
            let client = has_client.then(|| open(&path));
            for log in logs(&folder) {
                fs::remove_file(folder.join(log)).unwrap();
            }
            end(db);
            let db = client.unwrap_or_else(|| open(&path));
            assert!(has(&db, "a") && has(&db, "b"), "{has_client}");
            db.close().unwrap();
            assert_eq!(names(&folder), ["store"]);
        }
    }
}

/// The path of the store of a process of another user.
const CHILD: &str = "KEYSPACE_PLACES_CHILD";

/// Another user and its group.
const USER: u32 = 65_534;

#[test]
fn the_files_beside_a_store_are_those_of_its_user_whoever_makes_them() {
    const NAME: &str = "places::the_files_beside_a_store_are_those_of_its_user_whoever_makes_them";
    if let Some(path) = env::var_os(CHILD) {
        return take_over(Path::new(&path));
    }
    let folder = tempfile::tempdir().unwrap();
    if fs::metadata(folder.path()).unwrap().uid() != 0 {
        return stores::skip(NAME, "only root can start a process of another user");
    }
    // The program of the test may be where another user cannot reach it.
    let program = folder.path().join("program");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for mode in [0o600, 0o660] {
        let place = folder.path().join(format!("{mode:o}"));
        fs::create_dir(&place).unwrap();
        chown(&place, Some(USER), Some(USER)).unwrap();
        let path = place.join("store");
        open(&path).close().unwrap();
        chown(&path, Some(USER), Some(USER)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let db = open(&path);
        set(&db, "a");
        let made = names(&place);
        assert_eq!(made.len(), 5, "{made:?}");
        for name in made {
            let file = fs::metadata(place.join(&name)).unwrap();
            let found = (file.uid(), file.gid(), file.mode() & 0o777);
            assert_eq!(found, (USER, USER, mode), "{name}");
        }
        let mut child = Command::new(&program);
        child
            .args(["--exact", NAME, "--nocapture"])
            .env(CHILD, &path);
        child
            .uid(USER)
            .gid(USER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(
            said.by_ref()
                .map(Result::unwrap)
                .any(|line| line == "a client")
        );
        db.close().unwrap();
        drop(child.stdin.take());
        let said: Vec<_> = said.map(Result::unwrap).collect();
        assert!(child.wait().unwrap().success(), "{said:#?}");
        assert_eq!(names(&place), ["store"]);
    }
}

/// Becomes a client, and then the owner, of a store that a process of root has had open.
fn take_over(path: &Path) {
    let db = open(path);
    assert_eq!(db.role(), Role::Client);
    assert!(has(&db, "a"));
    println!("\na client");
    // Until the parent has closed the store.
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
    set(&db, "b");
    assert!(has(&db, "a") && has(&db, "b"));
    db.close().unwrap();
}

#[test]
fn a_store_in_a_folder_that_its_user_may_not_change_is_refused_with_what_it_needs() {
    const NAME: &str =
        "places::a_store_in_a_folder_that_its_user_may_not_change_is_refused_with_what_it_needs";
    if let Some(path) = env::var_os(CHILD) {
        let path = Path::new(&path);
        let error = Options::new().open(path).unwrap_err();
        let text = keyspace::error::chain(&error).to_string();
        let folder = path.parent().unwrap().display();
        let expected = format!(
            "no file can be made in {folder}, which must exist and be writable: Permission"
        );
        assert!(text.contains(&expected), "{text}");
        let kept = path.with_file_name("kept");
        let error = Options::new().open(&kept).unwrap_err();
        let text = keyspace::error::chain(&error).to_string();
        let expected = format!("{}.apps must be readable and writable", kept.display());
        assert!(text.contains(&expected), "{text}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    if fs::metadata(folder.path()).unwrap().uid() != 0 {
        return stores::skip(NAME, "only root can start a process of another user");
    }
    let program = folder.path().join("program");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    for name in ["store", "kept"] {
        let path = place.join(name);
        open(&path).close().unwrap();
        chown(&path, Some(USER), Some(USER)).unwrap();
    }
    let lock = place.join("kept.apps");
    fs::write(&lock, "").unwrap();
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o600)).unwrap();
    let before = names(&place);
    let mut child = Command::new(&program);
    child
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, place.join("store"));
    let output = child.uid(USER).gid(USER).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert_eq!(names(&place), before);
}

#[test]
fn too_many_open_files_are_named_with_their_limit() {
    const NAME: &str = "places::too_many_open_files_are_named_with_their_limit";
    let Some(path) = env::var_os(CHILD) else {
        let folder = tempfile::tempdir().unwrap();
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]);
        limited.arg(env::current_exe().unwrap());
        limited.args(["--exact", NAME, "--nocapture"]);
        let output = limited
            .env(CHILD, folder.path().join("store"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        return;
    };
    let path = Path::new(&path);
    let db = open(path);
    let held: Vec<_> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
    let copy = path.with_file_name("copy");
    for error in [
        db.backup(&copy).unwrap_err(),
        Options::new().open(path.with_file_name("new")).unwrap_err(),
    ] {
        let text = keyspace::error::chain(&error).to_string();
        let expected = "too many open files: raise the limit (`ulimit -n`)";
        assert!(text.contains(expected), "{text}");
    }
    drop(held);
    db.backup(&copy).unwrap();
}
