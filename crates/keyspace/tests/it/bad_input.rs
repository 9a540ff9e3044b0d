//! Bad input to the embedded store: each case is a typed error that names what was expected, and no data is
//! lost.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use keyspace::embedded::{Embedded, EmbeddedTransaction, Options, Sharing};
use keyspace::{
    Code, ConflictKind, Database, Error, Isolation, MutationOp, OpenError, OwnedTransaction,
    Runner, Transaction, TransactionOption, limits,
};
use xxhash_rust::xxh3::xxh3_64;

/// The environment variable that gives a child process the path of its store.
const CHILD: &str = "KEYSPACE_BAD_INPUT_CHILD";

/// Runs the test called `name` again in a child process, with `path` as its store.
fn child(program: impl AsRef<OsStr>, name: &str, path: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, path);
    command
}

fn assert_succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
}

fn in_child() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Creates a file with these bytes.
    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Creates a store that holds `a` = `1`, and closes it.
    fn store(&self) -> PathBuf {
        let path = self.path("store");
        let db = open(&path).unwrap();
        set(&db, b"a", b"1");
        db.close().unwrap();
        path
    }
}

fn open(path: &Path) -> Result<Embedded, OpenError> {
    Options::new().open(path)
}

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

fn set(db: &Embedded, key: &[u8], value: &[u8]) {
    commit(db, |tr| tr.set(key, value)).unwrap();
}

fn get(db: &Embedded, key: &[u8]) -> Option<Vec<u8>> {
    let tr = db.begin().unwrap();
    let value = block_on(tr.get(key, Isolation::Snapshot)).unwrap();
    value.map(|value| value.to_vec())
}

fn commit(db: &Embedded, stage: impl FnOnce(&EmbeddedTransaction)) -> keyspace::Result<()> {
    let mut tr = db.begin().unwrap();
    stage(&tr);
    block_on(tr.commit()).map(drop)
}

/// Asserts that a file is refused as not a store, for a reason that contains `found`, and that it is
/// unchanged.
fn assert_no_store(path: &Path, found: &str) {
    let before = fs::read(path).unwrap_or_default();
    let error = open(path).unwrap_err();
    assert!(
        matches!(&error, OpenError::NotAStore { path: named, .. } if named == path),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("expected a file written by this library"),
        "{text}"
    );
    assert!(text.contains(found), "{text}");
    assert!(
        fs::read(path).unwrap_or_default() == before,
        "the file has changed"
    );
}

#[test]
fn a_path_that_is_no_store_is_left_as_it_is() {
    let folder = Folder::new();
    let directory = folder.path("directory");
    fs::create_dir(&directory).unwrap();
    assert_no_store(&directory, "a directory");
    assert_no_store(&folder.file("empty", b""), "an empty file");
    assert_no_store(&folder.file("text", b"no store at all"), "another one");
    assert_no_store(&folder.file("zeros", &[0; 100_000]), "another one");
    let database = [&b"SQLite format 3\0"[..], &[1; 100_000]].concat();
    assert_no_store(&folder.file("database", &database), "another one");
}

#[cfg(unix)]
#[test]
fn a_path_that_is_no_regular_file_is_no_store() {
    let error = open(Path::new("/dev/null")).unwrap_err();
    assert!(matches!(&error, OpenError::NotAStore { .. }), "{error:?}");
}

/// Changes both manifests, and makes their checksums right again.
fn rewrite_manifests(path: &Path, rewrite: impl Fn(&mut Vec<u8>)) {
    const PLACES: [usize; 2] = [0, 1 << 20];
    let mut file = fs::read(path).unwrap();
    for place in PLACES {
        let length = file[place + 20..place + 24].try_into().unwrap();
        let end = place + u32::from_be_bytes(length) as usize;
        let mut manifest = file[place..end - 8].to_vec();
        rewrite(&mut manifest);
        manifest.extend_from_slice(&xxh3_64(&manifest).to_be_bytes());
        file[place..end].copy_from_slice(&manifest);
    }
    fs::write(path, file).unwrap();
}

#[test]
fn a_store_of_a_newer_format_is_left_as_it_is() {
    let folder = Folder::new();
    let path = folder.store();
    rewrite_manifests(&path, |manifest| manifest[19] = 2);
    let before = fs::read(&path).unwrap();
    let error = open(&path).unwrap_err();
    let expected = "has format 2, this version reads up to 1: upgrade the library";
    assert!(error.to_string().ends_with(expected), "{error}");
    assert!(matches!(
        error,
        OpenError::NewerFormat {
            found: 2,
            supported: 1,
            ..
        }
    ));
    assert!(fs::read(&path).unwrap() == before);
    rewrite_manifests(&path, |manifest| manifest[19] = 1);
    assert_eq!(get(&open(&path).unwrap(), b"a"), Some(b"1".into()));
}

#[test]
fn a_damaged_manifest_is_named_and_left_as_it_is() {
    let folder = Folder::new();
    let path = folder.store();
    // Its record says that there are 7 logs.
    rewrite_manifests(&path, |manifest| manifest[60] = 7);
    let before = fs::read(&path).unwrap();
    let error = open(&path).unwrap_err();
    let expected = "is damaged: it has no valid manifest: restore a backup, or run `console check`";
    assert!(error.to_string().ends_with(expected), "{error}");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    assert!(fs::read(&path).unwrap() == before);
}

fn assert_in_use(path: &Path) {
    let alone = Options::new().with_sharing(Sharing::Refuse);
    let error = alone.open(path).unwrap_err();
    assert!(
        matches!(&error, OpenError::StoreInUse { path: named, .. } if named == path),
        "{error:?}"
    );
}

#[test]
fn a_second_opener_in_the_process_waits_for_the_first_to_close() {
    let folder = Folder::new();
    let path = folder.store();
    let first = open(&path).unwrap();
    assert_in_use(&path);
    set(&first, b"b", b"2");

    // A transaction keeps the store open. Dropping the last holder, or a close, releases it.
    let transaction = first.begin().unwrap();
    drop(first);
    assert_in_use(&path);
    drop(transaction);
    let second = open(&path).unwrap();
    let transaction = second.begin().unwrap();
    second.close().unwrap();
    let third = open(&path).unwrap();
    assert_eq!(get(&third, b"b"), Some(b"2".into()));
    let closed = block_on(transaction.get(b"b", Isolation::Snapshot)).unwrap_err();
    assert_eq!(closed.code(), Some(Code::TRANSACTION_CANCELLED));
}

#[test]
fn a_second_opener_in_another_process_is_refused() {
    if let Some(path) = in_child() {
        return assert_in_use(&path);
    }
    let folder = Folder::new();
    let path = folder.store();
    let db = open(&path).unwrap();
    let name = "bad_input::a_second_opener_in_another_process_is_refused";
    assert_succeeds(&mut child(std::env::current_exe().unwrap(), name, &path));
    assert_eq!(get(&db, b"a"), Some(b"1".into()));
}

/// Commits until the disk is full, in the owner of the store or in a client, and checks how the store fails.
#[cfg(unix)]
fn fill_the_disk(path: &Path, in_client: bool) {
    let owner = open(path).unwrap();
    let db = if in_client {
        open(path).unwrap()
    } else {
        owner.clone()
    };
    let early = db.begin().unwrap();
    block_on(early.read_version()).unwrap();
    let error = (0..1000_u32)
        .find_map(|row| commit(&db, |tr| tr.set(&row.to_be_bytes(), &[0; 50_000])).err())
        .expect("the limit is below 50 MB");
    assert_eq!(error.code(), Some(Code::COMMIT_UNKNOWN_RESULT), "{error:?}");
    let later = commit(&db, |tr| tr.set(b"later", b""));
    let read = block_on(early.get(b"a", Isolation::Snapshot)).map(drop);
    for error in [later, read, owner.close()].map(Result::unwrap_err) {
        assert!(matches!(&error, Error::Poisoned { .. }), "{error:?}");
        assert_eq!(error.code(), Some(Code::IO_ERROR));
        assert!(
            error
                .to_string()
                .contains("remove the cause and open the store again")
        );
    }
}

#[cfg(unix)]
#[test]
fn a_full_disk_stops_the_store_and_loses_nothing() {
    match in_child() {
        Some(path) => fill_the_disk(&path, false),
        None => run_on_a_full_disk("bad_input::a_full_disk_stops_the_store_and_loses_nothing"),
    }
}

#[cfg(unix)]
#[test]
fn a_full_disk_stops_the_clients_of_a_store_and_loses_nothing() {
    const NAME: &str = "bad_input::a_full_disk_stops_the_clients_of_a_store_and_loses_nothing";
    match in_child() {
        Some(path) => fill_the_disk(&path, true),
        None => run_on_a_full_disk(NAME),
    }
}

/// Runs the test called `name` in a child process whose files cannot grow far, and checks what it has left behind.
#[cfg(unix)]
fn run_on_a_full_disk(name: &str) {
    let folder = Folder::new();
    let path = folder.store();
    let test = std::env::current_exe().unwrap();
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 16384; exec \"$0\" \"$@\""]);
    let inner = child(test, name, &path);
    limited
        .arg(inner.get_program())
        .args(inner.get_args())
        .env(CHILD, &path);
    assert_succeeds(&mut limited);

    let db = open(&path).unwrap();
    assert_eq!(get(&db, b"a"), Some(b"1".into()));
    assert_eq!(get(&db, &0_u32.to_be_bytes()).unwrap().len(), 50_000);
    set(&db, b"later", b"1");
}

fn assert_cannot_open(path: &Path, expected: io::ErrorKind) {
    let OpenError::Open { path: named, cause } = open(path).unwrap_err() else {
        panic!("the path is that of a file");
    };
    assert_eq!(named, path);
    assert_eq!(cause.downcast_ref::<io::Error>().unwrap().kind(), expected);
}

#[test]
fn a_folder_that_is_missing_is_not_made() {
    let folder = Folder::new();
    assert_cannot_open(&folder.path("missing/store"), io::ErrorKind::NotFound);
    assert!(!folder.path("missing").exists());
}

#[test]
fn a_store_that_is_to_be_there_and_is_not_is_named_and_nothing_is_made() {
    let folder = Folder::new();
    let mistyped = folder.path("mistyped");
    let link = folder.path("link");
    #[cfg(unix)]
    std::os::unix::fs::symlink(folder.path("nowhere"), &link).unwrap();
    for path in [mistyped, folder.path("missing/store"), link] {
        let url = format!("embedded:{}", path.display());
        let error = keyspace::open_existing(&url).unwrap_err();
        assert!(
            matches!(&error, OpenError::NoStore { path: named } if *named == path),
            "{error:?}"
        );
        let expected = format!("there is no store at {}", path.display());
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert!(!path.exists());
    }
    let made: Vec<_> = fs::read_dir(folder.path(""))
        .unwrap()
        .map(Result::unwrap)
        .map(|entry| entry.file_name())
        .collect();
    assert!(made.iter().all(|name| name == "link"), "{made:?}");
}

#[test]
fn an_existing_store_opens_and_other_files_are_refused() {
    let folder = Folder::new();
    let store = folder.store();
    let open_existing = |path: &Path| Options::new().open_existing(path);
    let db = open_existing(&store).unwrap();
    assert_eq!(get(&db, b"a"), Some(b"1".into()));
    assert_in_use(&store);
    for path in [folder.path(""), folder.file("empty", b"")] {
        let error = open_existing(&path).unwrap_err();
        assert!(matches!(error, OpenError::NotAStore { .. }), "{error:?}");
    }
    keyspace::open_existing("memory:").unwrap();
    let error = keyspace::open_existing("redis:").unwrap_err();
    assert!(matches!(error, OpenError::Url { .. }), "{error:?}");
}

#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_reported_with_its_cause() {
    let folder = Folder::new();
    let link = folder.path("link");
    std::os::unix::fs::symlink(folder.path("nowhere"), &link).unwrap();
    assert_cannot_open(&link, io::ErrorKind::NotFound);
}

/// No process can create a file in `/sys`, whatever its privileges.
#[cfg(target_os = "linux")]
#[test]
fn a_read_only_folder_is_reported_with_its_cause() {
    assert_cannot_open(Path::new("/sys/store"), io::ErrorKind::PermissionDenied);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_write_over_a_limit_is_refused_with_its_code_and_has_no_effect() {
    let db = Options::new().memory().unwrap();
    set(&db, b"a", b"1");
    let long_key = vec![b'k'; limits::MAX_KEY_BYTES + 1];
    let long_value = vec![0; limits::MAX_VALUE_BYTES + 1];
    let value = vec![0; limits::MAX_VALUE_BYTES];
    let stamped = |op, key: &[u8], param: &[u8], offset: u32| {
        let offset = offset.to_le_bytes();
        let (key, param) = match op {
            MutationOp::SetVersionstampedKey => ([key, &offset].concat(), param.to_vec()),
            _ => (key.to_vec(), [param, &offset].concat()),
        };
        move |tr: &EmbeddedTransaction| tr.atomic(op, &key, &param)
    };
    type Stage<'a> = Box<dyn Fn(&EmbeddedTransaction) + 'a>;
    let cases: [(&str, Code, Stage<'_>); 10] = [
        (
            "key",
            Code::KEY_TOO_LARGE,
            Box::new(|tr| tr.set(&long_key, b"")),
        ),
        (
            "value",
            Code::VALUE_TOO_LARGE,
            Box::new(|tr| tr.set(b"b", &long_value)),
        ),
        (
            "param",
            Code::VALUE_TOO_LARGE,
            Box::new(|tr| tr.atomic(MutationOp::ByteMax, b"b", &long_value)),
        ),
        (
            "transaction",
            Code::TRANSACTION_TOO_LARGE,
            Box::new(|tr| (0..101_u8).for_each(|row| tr.set(&[row], &value))),
        ),
        (
            "size limit",
            Code::TRANSACTION_TOO_LARGE,
            Box::new(|tr| {
                tr.set_option(TransactionOption::SizeLimit(100)).unwrap();
                tr.set(b"b", &[0; 100]);
            }),
        ),
        (
            "range",
            Code::INVERTED_RANGE,
            Box::new(|tr| tr.clear_range(b"b", b"a")),
        ),
        (
            "system key",
            Code::KEY_OUTSIDE_LEGAL_RANGE,
            Box::new(|tr| tr.set(b"\xff", b"")),
        ),
        (
            "offset in key",
            Code::CLIENT_INVALID_OPERATION,
            Box::new(stamped(
                MutationOp::SetVersionstampedKey,
                b"k..........",
                b"",
                2,
            )),
        ),
        (
            "offset in value",
            Code::CLIENT_INVALID_OPERATION,
            Box::new(stamped(
                MutationOp::SetVersionstampedValue,
                b"k",
                b"..........",
                u32::MAX,
            )),
        ),
        (
            "template",
            Code::CLIENT_INVALID_OPERATION,
            Box::new(|tr| tr.atomic(MutationOp::SetVersionstampedKey, b"k", b"")),
        ),
    ];
    for (name, code, stage) in cases {
        let refused = commit(&db, |tr| {
            tr.set(b"a", b"2");
            stage(tr);
        });
        assert_eq!(refused.unwrap_err().code(), Some(code), "{name}");
        assert_eq!(get(&db, b"a"), Some(b"1".into()), "{name}");
    }
    let tr = db.begin().unwrap();
    let inverted = tr
        .add_conflict_range(ConflictKind::Read, b"b", b"a")
        .unwrap_err();
    assert_eq!(inverted.code(), Some(Code::INVERTED_RANGE));
}

#[test]
fn a_handle_kept_past_its_transaction_commits_nothing() {
    let db = Options::new().memory().unwrap();
    let runner = Runner::new(db.clone());
    let kept = Arc::new(Mutex::new(None));
    let outcome = block_on(runner.run(|tr| {
        let kept = kept.clone();
        async move {
            tr.set(b"a", b"1");
            *kept.lock().unwrap() = Some(tr);
            Ok::<_, Error>(())
        }
    }));
    assert!(matches!(outcome, Err(Error::HandleKept)), "{outcome:?}");
    assert_eq!(get(&db, b"a"), None);
}

#[test]
fn a_malformed_url_is_refused_with_the_expected_form() {
    for (url, expected) in [
        ("postgres:x", "expected `memory:`, `embedded:<path>`"),
        ("embedded:", "needs the path of its file"),
        #[cfg(not(feature = "fdb"))]
        ("fdb:", "no support for FoundationDB"),
    ] {
        let error = keyspace::open(url).unwrap_err();
        assert!(matches!(error, OpenError::Url { .. }));
        assert!(error.to_string().contains(expected), "{error}");
    }
}
