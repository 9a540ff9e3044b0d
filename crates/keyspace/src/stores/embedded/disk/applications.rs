//! The applications that have a store open, which keep viewers from owning it.
//!
//! Each application holds a shared lock on the file `<path>.apps`, from before it first reaches the store until it
//! closes the store or ends. A viewer holds that lock exclusively as long as it owns the store, and takes it before the
//! lock of the store's file. So a viewer finds out whether there are applications without a lock that one of these may
//! need: a viewer that is stopped keeps no application waiting that has the store open.
//!
//! The last one to leave removes the file, while it holds the lock exclusively. If the file was removed before it was
//! locked, a process starts again with a new one. So all processes lock the same file.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::presence::{self, APPLICATIONS};
use crate::stores::embedded::log::files::canonical;

/// A lock on the file `<path>.apps`.
#[derive(Debug)]
pub(crate) struct Hold {
    file: File,
    path: PathBuf,
    /// Whether the file was not there before.
    is_new: bool,
    /// Whether the file stays.
    stays: bool,
}

impl Hold {
    /// Notes that an application has the store at `main` open. `None` while a viewer owns the store, or tries to.
    pub(crate) fn application(main: &Path) -> io::Result<Option<Self>> {
        Self::take(main, File::try_lock_shared)
    }

    /// Keeps applications waiting. `None` if there are any, or if another viewer owns the store.
    pub(crate) fn viewer(main: &Path) -> io::Result<Option<Self>> {
        Self::take(main, File::try_lock)
    }

    fn take(main: &Path, lock: fn(&File) -> Result<(), TryLockError>) -> io::Result<Option<Self>> {
        let main = canonical(main)?;
        let path = presence::place(&main, APPLICATIONS);
        loop {
            if !presence::is_lock(&path)? {
                let text = format!(
                    "{} is not a file of the store: move it away",
                    path.display()
                );
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
            let (file, is_new) = presence::open(&path, &main)?;
            match lock(&file) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            if presence::is_at(&file, &path)? {
                return Ok(Some(Self {
                    file,
                    path,
                    is_new,
                    stays: false,
                }));
            }
        }
    }

    /// Ends after an opening that was refused, and removes the file only if this opening made it.
    pub(crate) fn withdraw(mut self) {
        self.stays = !self.is_new;
    }
}

impl Drop for Hold {
    /// Ends the lock. A child process that has not begun its program yet has the file open, too.
    fn drop(&mut self) {
        let is_last = !self.stays && self.file.try_lock().is_ok();
        // One that has left while this lock changed has removed the file, and there may be a new one.
        let is_ours = || presence::is_at(&self.file, &self.path).unwrap_or(false);
        if is_last && is_ours() && presence::is_lock(&self.path).unwrap_or(false) {
            // Without the permission, it stays.
            let _ = fs::remove_file(&self.path);
        }
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    fn store() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        fs::write(&store, "").unwrap();
        (folder, store)
    }

    #[test]
    fn a_viewer_waits_for_all_applications_and_applications_for_a_viewer() {
        let (folder, store) = store();
        let application = || Hold::application(&store).unwrap();
        let viewer = || Hold::viewer(&store).unwrap();
        let one = application().unwrap();
        let other = application().unwrap();
        assert!(viewer().is_none());
        drop(one);
        assert!(viewer().is_none());
        drop(other);
        let only = viewer().unwrap();
        assert!(viewer().is_none());
        assert!(application().is_none());
        drop(only);
        application().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_file_is_one_for_all_while_it_is_removed_and_made_again() {
        let (folder, store) = store();
        let viewers = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..conformance::scale(1_000, 50_000) {
                        if round % 2 == 1 {
                            let hold = Hold::application(&store).unwrap();
                            assert!(hold.is_none() || viewers.load(Ordering::SeqCst) == 0);
                        } else if let Some(hold) = Hold::viewer(&store).unwrap() {
                            assert_eq!(viewers.fetch_add(1, Ordering::SeqCst), 0);
                            viewers.fetch_sub(1, Ordering::SeqCst);
                            drop(hold);
                        }
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
