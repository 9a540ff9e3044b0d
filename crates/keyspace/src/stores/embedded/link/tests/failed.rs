//! An owner whose store has failed, while its process lives on.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use conformance::until;

use super::{LIMIT, write};
use crate::stores::embedded::{Embedded, Options, Role, Seat};

fn open(path: &Path) -> Embedded {
    Options::new().with_patience(LIMIT).open(path).unwrap()
}

#[tokio::test]
async fn an_owner_whose_store_has_failed_leaves_the_socket_to_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let socket = folder.path().join("store.socket");
    let aside = folder.path().join("aside");
    let failed = open(&path);
    write(&failed).await;
    // Leads to its listener, whatever becomes of the name.
    fs::hard_link(&socket, &aside).unwrap();
    UnixStream::connect(&aside).unwrap();
    let Seat::Owner(owner) = &failed.seat else {
        panic!("the first process owns the store");
    };
    assert!(
        owner
            .engine()
            .or_poison(|| panic!("a test lets the store fail"))
            .is_none()
    );
    until(async || UnixStream::connect(&aside).is_err()).await;

    let next = open(&path);
    assert_eq!(next.role(), Role::Owner);
    let name = fs::symlink_metadata(&socket).unwrap().ino();
    let client = open(&path);
    assert_eq!(client.role(), Role::Client);
    write(&client).await;
    write(&next).await;
    // Not even its end takes the name away.
    assert!(failed.close().is_err());
    assert_eq!(fs::symlink_metadata(&socket).unwrap().ino(), name);
    write(&open(&path)).await;
}
