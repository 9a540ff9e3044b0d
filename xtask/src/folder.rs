//! A temporary folder for the files of a server.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::Context;

/// A folder of this process, which is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Creates a folder for one server, which no other user can read. Fails if something has its name.
    pub(crate) fn create(server: &str) -> anyhow::Result<Self> {
        let path = env::temp_dir().join(format!("xtask-{server}-{}", process::id()));
        let mut builder = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let context = || format!("cannot create {}", path.display());
        builder.create(&path).with_context(context)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed remains among the temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_owner_and_is_removed_with_it() {
        let folder = Folder::create("test").unwrap();
        let path = folder.path().to_owned();
        fs::write(path.join("rows"), "1").unwrap();
        assert!(Folder::create("test").is_err());
        drop(folder);
        assert!(!path.exists());
    }
}
