//! A temporary folder for the files of a server.

use anyhow::Context;
use tempfile::{Builder, TempDir};

/// Creates a folder for one server, which no other user can read. It is removed when it is dropped.
pub(crate) fn create(server: &str) -> anyhow::Result<TempDir> {
    let prefix = format!("xtask-{server}-");
    let mut builder = Builder::new();
    builder.prefix(&prefix);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o700));
    }
    let folder = builder.tempdir();
    folder.context("cannot create a temporary folder")
}
