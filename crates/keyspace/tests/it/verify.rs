//! Checks of open stores.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use keyspace::embedded::{self, Embedded, Options, Sharing};
use keyspace::{Code, Database, Error, Isolation, OpenError, OwnedTransaction, Transaction};

const ROWS: u64 = 3_000;

/// The bytes of a value.
const VALUE: &[u8] = &[0xa7; 100];

/// Creates a closed store at `path`.
async fn create(path: &Path) {
    let db = Options::new().open(path).unwrap();
    let mut tr = db.begin().unwrap();
    for number in 0..ROWS {
        tr.set(&number.to_be_bytes(), VALUE);
    }
    tr.commit().await.unwrap();
    db.close().unwrap();
}

async fn is_in_use(db: &Embedded) -> Result<bool, Error> {
    let tr = db.begin()?;
    let value = tr.get(&0_u64.to_be_bytes(), Isolation::Snapshot).await?;
    Ok(value.is_some_and(|value| value == VALUE))
}

#[tokio::test]
async fn a_sound_store_is_checked_while_it_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    create(&path).await;
    let db = Options::new().open(&path).unwrap();
    let mut calls = Vec::new();
    let verified = db.verify(|rows, of| calls.push((rows, of))).unwrap();
    assert_eq!(verified.rows, ROWS);
    assert_eq!(verified.bytes, ROWS * (8 + VALUE.len() as u64));
    assert_eq!(verified.log_batches, 0);
    assert!(calls.len() > 1 && calls.is_sorted(), "{calls:?}");
    assert_eq!(calls.last(), Some(&(ROWS, ROWS)));
    assert!(is_in_use(&db).await.unwrap());
    db.close().unwrap();
    let closed = db.verify(|_, _| {}).unwrap_err();
    assert_eq!(closed.code(), Some(Code::TRANSACTION_CANCELLED));
}

#[tokio::test]
async fn a_damaged_store_refuses_all_work_after_a_check() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    create(&path).await;
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(VALUE.len()).position(|found| found == VALUE);
    bytes[at.unwrap()] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let db = Options::new().open(&path).unwrap();
    let error = db.verify(|_, _| {}).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error:?}");
    let later = is_in_use(&db).await.unwrap_err();
    assert_eq!(later.code(), Some(Code::FILE_CORRUPT));
    let closed = db.close().unwrap_err();
    assert!(matches!(closed, Error::Damaged { .. }), "{closed:?}");
}

#[tokio::test]
async fn a_panic_of_the_caller_during_a_check_is_not_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    create(&path).await;
    let db = Options::new().open(&path).unwrap();
    let panicking = || db.verify(|_, _| panic!("it is planned"));
    let panicked = catch_unwind(AssertUnwindSafe(panicking)).unwrap_err();
    assert_eq!(panicked.downcast_ref(), Some(&"it is planned"));
    assert!(is_in_use(&db).await.unwrap());
    db.verify(|_, _| {}).unwrap();
    db.close().unwrap();
}

/// Returns the flags of each open file whose path begins with `prefix`.
#[cfg(target_os = "linux")]
fn open_flags(prefix: &Path) -> Vec<u32> {
    let mut flags = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        if !fs::read_link(&path).is_ok_and(|target| target.starts_with(prefix)) {
            continue;
        }
        let number = path.file_name().unwrap().to_str().unwrap();
        let texts = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
        let octal = texts.lines().find_map(|line| line.strip_prefix("flags:"));
        flags.push(u32::from_str_radix(octal.unwrap().trim(), 8).unwrap());
    }
    flags
}

#[tokio::test]
async fn a_closed_store_is_only_read_by_a_check_and_no_writer_opens_it_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    create(&path).await;
    let mut calls = 0;
    let progress = |_, _| {
        calls += 1;
        let opened = Options::new().with_sharing(Sharing::Refuse).open(&path);
        assert!(matches!(opened, Err(OpenError::StoreInUse { .. })));
        #[cfg(target_os = "linux")]
        {
            const ACCESS_MODE: u32 = 3;
            let flags = open_flags(&fs::canonicalize(folder.path()).unwrap());
            assert_eq!(flags.len(), 1);
            assert!(flags.iter().all(|flags| flags & ACCESS_MODE == 0));
        }
    };
    let verified = embedded::verify(&path, progress).unwrap();
    assert_eq!(verified.rows, ROWS);
    assert!(calls > 0);
    let db = Options::new().open(&path).unwrap();
    let refused = embedded::verify(&path, |_, _| {}).unwrap_err();
    assert!(
        matches!(refused, OpenError::StoreInUse { .. }),
        "{refused:?}"
    );
    db.close().unwrap();
}
