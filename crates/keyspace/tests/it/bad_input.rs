//! Bad input to the embedded store: each case is a typed error that names what was expected, and no data is
//! lost.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use keyspace::embedded::{Embedded, EmbeddedTransaction, Options};
use keyspace::{
    Code, ConflictKind, Database, Error, Isolation, MutationOp, OpenError, OwnedTransaction,
    Runner, Transaction, TransactionOption, limits,
};
use redb::{ReadableDatabase, TableDefinition};
use xxhash_rust::xxh3::xxh3_64;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("keyspace.meta");
const OTHER: TableDefinition<'_, u64, u64> = TableDefinition::new("other");

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
        let path = self.path("store.redb");
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
    let names = b"a text about keyspace.meta and keyspace.rows";
    assert_no_store(&folder.file("names", names), "another one");
}

#[cfg(unix)]
#[test]
fn a_path_that_is_no_regular_file_is_no_store() {
    let error = open(Path::new("/dev/null")).unwrap_err();
    assert!(matches!(&error, OpenError::NotAStore { .. }), "{error:?}");
}

#[test]
fn a_database_of_another_application_is_left_as_it_is() {
    let folder = Folder::new();
    let path = folder.path("other.redb");
    let database = redb::Database::create(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(OTHER).unwrap().insert(1, 2).unwrap();
    transaction.commit().unwrap();
    // The file is as a crash of the other application would leave it: redb wants to repair it.
    let crashed = folder.file("crashed.redb", &fs::read(&path).unwrap());
    drop(database);
    for path in [path, crashed] {
        assert_no_store(&path, "keyspace.meta");
        let database = redb::Database::open(&path).unwrap();
        let table = database.begin_read().unwrap().open_table(OTHER).unwrap();
        assert_eq!(table.get(1).unwrap().unwrap().value(), 2);
    }
}

/// Changes the store's own record, and makes its checksum right again.
fn rewrite_meta(path: &Path, rewrite: impl FnOnce(&mut Vec<u8>)) {
    let database = redb::Database::open(path).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut table = transaction.open_table(META).unwrap();
        let mut meta = table.get_mut("store").unwrap().unwrap();
        let mut bytes = meta.value().to_vec();
        bytes.truncate(bytes.len() - 8);
        rewrite(&mut bytes);
        bytes.extend_from_slice(&xxh3_64(&bytes).to_be_bytes());
        meta.insert(&bytes[..]).unwrap();
    }
    transaction.commit().unwrap();
}

#[test]
fn a_store_of_a_newer_format_is_left_as_it_is() {
    let folder = Folder::new();
    let path = folder.store();
    rewrite_meta(&path, |meta| meta[3] = 2);
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
    rewrite_meta(&path, |meta| meta[3] = 1);
    assert_eq!(get(&open(&path).unwrap(), b"a"), Some(b"1".into()));
}

#[test]
fn a_damaged_record_is_named_and_left_as_it_is() {
    let folder = Folder::new();
    let path = folder.store();
    rewrite_meta(&path, |meta| meta.truncate(20));
    let before = fs::read(&path).unwrap();
    let error = open(&path).unwrap_err();
    let expected = "is damaged: its record is not valid: it ends 8 bytes early: restore a backup, or run \
                    `console check`";
    assert!(error.to_string().ends_with(expected), "{error}");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    assert!(fs::read(&path).unwrap() == before);
}

fn assert_in_use(path: &Path) {
    let error = open(path).unwrap_err();
    assert!(
        matches!(&error, OpenError::StoreInUse { path: named } if named == path),
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

/// Commits until the disk is full, and checks how the store fails.
#[cfg(unix)]
fn fill_the_disk(path: &Path) {
    let db = open(path).unwrap();
    let early = db.begin().unwrap();
    block_on(early.read_version()).unwrap();
    let error = (0..1000_u32)
        .find_map(|row| commit(&db, |tr| tr.set(&row.to_be_bytes(), &[0; 50_000])).err())
        .expect("the limit is below 50 MB");
    assert_eq!(error.code(), Some(Code::COMMIT_UNKNOWN_RESULT), "{error:?}");
    let later = commit(&db, |tr| tr.set(b"later", b""));
    let read = block_on(early.get(b"a", Isolation::Snapshot)).map(drop);
    for error in [later, read, db.close()].map(Result::unwrap_err) {
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
    if let Some(path) = in_child() {
        return fill_the_disk(&path);
    }
    let folder = Folder::new();
    let path = folder.store();
    let name = "bad_input::a_full_disk_stops_the_store_and_loses_nothing";
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
    assert_cannot_open(&folder.path("missing/store.redb"), io::ErrorKind::NotFound);
    assert!(!folder.path("missing").exists());
}

#[test]
fn a_store_that_is_to_be_there_and_is_not_is_named_and_nothing_is_made() {
    let folder = Folder::new();
    let mistyped = folder.path("mistyped.redb");
    let link = folder.path("link");
    #[cfg(unix)]
    std::os::unix::fs::symlink(folder.path("nowhere"), &link).unwrap();
    for path in [mistyped, folder.path("missing/store.redb"), link] {
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
    let error = open_existing(&store).unwrap_err();
    assert!(matches!(error, OpenError::StoreInUse { .. }), "{error:?}");
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
    assert_cannot_open(
        Path::new("/sys/store.redb"),
        io::ErrorKind::PermissionDenied,
    );
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
