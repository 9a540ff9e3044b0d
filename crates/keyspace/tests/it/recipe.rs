//! The stored settings of recipes.

use std::fmt;

use conformance::stores::TestStore;
use keyspace::recipe::{SettingsDiffer, StoredSettings, read_settings, stored_settings};
use keyspace::record::Fields;
use keyspace::{Database, Error, Ids, Isolation, OpenOptions, OwnedTransaction, Transaction};

conformance::on_every_store!(
    stored_settings_are_read_by_their_key_alone,
    a_read_of_settings_fails_for_no_other_transaction,
);

/// The settings of a recipe, and the name of its codec.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Size(u32);

impl StoredSettings for Size {
    const RECIPE: &'static str = "test";

    fn codecs(&self) -> Vec<&str> {
        vec!["Raw"]
    }

    fn write(&self, record: &mut Vec<u8>) {
        record.extend_from_slice(&self.0.to_be_bytes());
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, String> {
        let size = fields.u32()?;
        fields.end()?;
        Ok(Self(size))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "size {}", self.0)
    }
}

/// The reason why a recipe was not opened.
#[derive(Debug, thiserror::Error)]
#[error("refused")]
enum Refused {
    Differ(#[from] Box<SettingsDiffer<Size>>),
    Keyspace(#[from] Error),
}

/// Sets a row in a transaction of its own.
async fn write(store: &TestStore, key: &[u8], value: &[u8]) {
    let mut tr = store.db.begin().unwrap();
    tr.set(key, value);
    tr.commit().await.unwrap();
}

async fn stored_settings_are_read_by_their_key_alone(store: TestStore) {
    let subspace = store.root.subspace(&"recipe");
    let key = subspace.pack(&"m");
    let runner = store.runner();
    let read = || read_settings::<_, Size>(&runner, &key);
    assert_eq!(read().await.unwrap(), None);

    let ids = Ids::new(store.root.subspace(&"ids"));
    let options = OpenOptions::new().with_ids(ids);
    let opened: Result<_, Refused> = options
        .open(&store.runner(), &subspace, &key, &Size(7))
        .await;
    assert_eq!(opened.unwrap(), Size(7));
    assert_eq!(read().await.unwrap(), Some(Size(7)));

    for damaged in [
        &b"\x02\0\0\0\x07"[..],
        b"\x01\0\0\0",
        b"\x01\0\0\0\x07\0",
        b"",
    ] {
        write(&store, &key, damaged).await;
        let refused = read().await.unwrap_err();
        assert!(
            matches!(&refused, Error::Corrupt { key: at, .. } if at[..] == key),
            "{refused}"
        );
    }
}

async fn a_read_of_settings_fails_for_no_other_transaction(store: TestStore) {
    let key = store.root.pack(&"m");
    let mut tr = store.db.begin().unwrap();
    assert_eq!(
        stored_settings::<Size>(&tr, &key, Isolation::Snapshot)
            .await
            .unwrap(),
        None
    );
    write(&store, &key, &Size(7).encode()).await;
    // A transaction that only reads never fails here.
    tr.set(&store.root.pack(&"other"), b"");
    tr.commit().await.unwrap();
}
