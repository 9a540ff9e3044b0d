//! The processes that have a store open.
//!
//! Each process that has the store at `<path>` open holds a shared lock on the file `<path>.lock`, until it closes the
//! store or ends. One of them, the owner, also holds the lock of the store's file. It checks whether it is alone by
//! taking the lock on `<path>.lock` exclusively for a moment. The last process removes the file.
//!
//! A process that opens the store waits for that moment to end. If the file was removed in the meantime, it starts
//! again with a new one. So all processes lock the same file.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::stores::embedded::backend::place::adopt;
use crate::stores::embedded::log::files::{canonical, folder_of, no_new_file};

/// A part in the file `<path>.lock`.
#[derive(Debug)]
pub(crate) struct Presence {
    file: File,
    /// The path of the store, without links.
    main: PathBuf,
    /// Whether the file was not there before.
    is_new: bool,
}

const LOCK: &str = ".lock";
pub(super) const APPLICATIONS: &str = ".apps";
pub(crate) const SOCKET: &str = ".socket";

impl Presence {
    /// Joins those who have the store at `main` open. The file gets the owner and the permissions of the store's file,
    /// which must exist.
    pub(crate) fn join(main: &Path) -> io::Result<Self> {
        let main = canonical(main)?;
        let path = place(&main, LOCK);
        loop {
            let (file, is_new) = open(&path, &main)?;
            file.lock_shared()?;
            if is_at(&file, &path)? {
                return Ok(Self { file, main, is_new });
            }
        }
    }

    /// Joins those who have the store at `main` open, of whom the owner is one. Fails with `NotFound` if there is none
    /// any more.
    pub(crate) fn join_owner(main: &Path) -> io::Result<Self> {
        let main = canonical(main)?;
        let path = place(&main, LOCK);
        loop {
            let file = File::options().read(true).write(true).open(&path)?;
            file.lock_shared()?;
            if is_at(&file, &path)? {
                let is_new = false;
                return Ok(Self { file, main, is_new });
            }
        }
    }

    /// Returns whether no one else takes part. Only the owner of the store may ask.
    pub(crate) fn is_alone(&self) -> io::Result<bool> {
        let is_alone = match self.file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(error)) => return Err(error),
        };
        // A lock that could not be made exclusive may be gone.
        self.file.lock_shared()?;
        Ok(is_alone)
    }

    /// Leaves after an opening that was refused, and removes the file only if this opening made it. The caller must
    /// hold the lock of the store's file.
    pub(crate) fn withdraw(self) {
        if self.is_new {
            let _ = self.leave();
        }
    }

    /// If no one else takes part, removes what is beside the store: the file, and the socket. Returns whether that is
    /// so, and goes on taking part otherwise. Only the owner of the store may call this.
    pub(crate) fn leave(&self) -> bool {
        let is_last = self.is_last();
        if is_last {
            // Without the permission, they stay. There may be no socket, or files of others with these names.
            let socket = place(&self.main, SOCKET);
            if is_socket(&socket).is_ok_and(|is_socket| is_socket) {
                let _ = fs::remove_file(socket);
            }
            let lock = place(&self.main, LOCK);
            if is_at(&self.file, &lock).is_ok_and(|is_at| is_at)
                && is_lock(&lock).is_ok_and(|is_lock| is_lock)
            {
                let _ = fs::remove_file(lock);
            }
            // A process that waits to join must not wait for the end of the store. It finds that the file is gone.
            let _ = self.file.unlock();
        } else {
            // Without a lock, this process is not seen. If another one leaves meanwhile, the store is still locked.
            let _ = self.file.lock_shared();
        }
        is_last
    }

    /// Ends the part, and returns whether no one else takes part. Of processes that leave at the same moment, one finds
    /// that it is the last.
    pub(crate) fn is_last(&self) -> bool {
        self.file.try_lock().is_ok()
    }
}

/// Returns the path of a file beside the store at `main`.
pub(crate) fn place(main: &Path, extension: &str) -> PathBuf {
    let mut path = main.as_os_str().to_owned();
    path.push(extension);
    path.into()
}

impl Drop for Presence {
    /// Ends the lock. A child process that has not begun its program yet has the file open, too.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// Returns the path of a file beside the store at `main` that has the name of its socket or of a lock and is none.
///
/// A folder with the name of the socket is left alone: the store is then not shared.
pub(crate) fn foreign(main: &Path) -> io::Result<Option<PathBuf>> {
    for lock in [LOCK, APPLICATIONS].map(|name| place(main, name)) {
        if !is_lock(&lock)? {
            return Ok(Some(lock));
        }
    }
    let socket = place(main, SOCKET);
    let is_free = is_socket(&socket)? || fs::symlink_metadata(&socket)?.is_dir();
    Ok(if is_free { None } else { Some(socket) })
}

/// Returns whether a path is that of a lock: an empty file. It may be free, too.
pub(super) fn is_lock(path: &Path) -> io::Result<bool> {
    check(path, |file| file.is_file() && file.len() == 0)
}

/// Returns whether a path is that of a socket. It may be free, too.
pub(crate) fn is_socket(path: &Path) -> io::Result<bool> {
    check(path, |file| file.file_type().is_socket())
}

fn check(path: &Path, is_right: impl Fn(&fs::Metadata) -> bool) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(file) => Ok(is_right(&file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Opens a file beside the store at `main`, and creates it if it is not there. Returns whether it is new.
pub(super) fn open(path: &Path, main: &Path) -> io::Result<(File, bool)> {
    let mut options = File::options();
    options.read(true).write(true);
    let new = options.clone().create_new(true).mode(0o600).open(path);
    match new {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => open(path, main),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let text = format!("{} must be readable and writable: {error}", path.display());
                Err(io::Error::new(error.kind(), text))
            }
            opened => Ok((opened?, false)),
        },
        Err(error) => Err(no_new_file(folder_of(path), error)),
        Ok(file) => {
            let adopted = fs::metadata(main).and_then(|store| adopt(&file, &store));
            adopted.inspect_err(|_| drop(fs::remove_file(path)))?;
            Ok((file, true))
        }
    }
}

/// Returns whether this file is the one at the path.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let file = file.metadata()?;
    match fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (file.dev(), file.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
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
    fn one_is_alone_until_another_joins_and_after_it_has_left() {
        let (folder, store) = store();
        let one = Presence::join(&store).unwrap();
        assert!(one.is_alone().unwrap());
        let other = Presence::join(&store).unwrap();
        assert!(!one.is_alone().unwrap());
        drop(other);
        assert!(one.is_alone().unwrap());
        one.leave();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_file_stays_while_others_take_part() {
        let (folder, store) = store();
        let one = Presence::join(&store).unwrap();
        let other = Presence::join(&store).unwrap();
        assert!(!one.leave());
        drop(one);
        assert!(folder.path().join("store.lock").exists());
        let late = Presence::join(&store).unwrap();
        assert!(!late.is_alone().unwrap());
        drop(other);
        assert!(late.is_alone().unwrap());
    }

    #[test]
    fn a_process_that_joins_does_not_wait_for_the_end_of_the_last_one() {
        let (folder, store) = store();
        let last = Presence::join(&store).unwrap();
        // Opened by a process that has not locked it yet.
        let joining = File::open(folder.path().join("store.lock")).unwrap();
        assert!(last.leave());
        joining.try_lock_shared().unwrap();
        assert!(!is_at(&joining, &folder.path().join("store.lock")).unwrap());
        let gone = Presence::join_owner(&store).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        let next = Presence::join(&store).unwrap();
        assert!(next.is_alone().unwrap());
        drop(last);
    }

    #[test]
    fn the_file_has_the_permissions_of_the_store() {
        let (folder, store) = store();
        fs::set_permissions(&store, fs::Permissions::from_mode(0o660)).unwrap();
        let _one = Presence::join(&store).unwrap();
        let file = fs::metadata(folder.path().join("store.lock")).unwrap();
        assert_eq!(file.mode() & 0o777, 0o660);
    }

    #[test]
    fn a_process_that_joins_while_others_leave_is_seen() {
        const THREADS: usize = 4;
        let (_folder, store) = store();
        // Odd while a thread takes part.
        let turns = [const { AtomicUsize::new(0) }; THREADS];
        let all_turns = || turns.each_ref().map(|turn| turn.load(Ordering::SeqCst));
        // Stands for the lock of the store's file.
        let owner = parking_lot::Mutex::new(());
        thread::scope(|scope| {
            for me in 0..THREADS {
                let store = &store;
                let turns = &turns;
                let owner = &owner;
                scope.spawn(move || {
                    for _ in 0..conformance::scale(500, 50_000) {
                        let presence = Presence::join(store).unwrap();
                        turns[me].fetch_add(1, Ordering::SeqCst);
                        let owned = owner.lock();
                        let before = all_turns();
                        let is_alone = presence.is_alone().unwrap();
                        let after = all_turns();
                        let is_there =
                            |other| before[other] == after[other] && after[other] % 2 == 1;
                        let others = (0..THREADS).filter(|&other| other != me && is_there(other));
                        assert!(!is_alone || others.count() == 0);
                        drop(owned);
                        thread::yield_now();
                        let _owned = owner.lock();
                        turns[me].fetch_add(1, Ordering::SeqCst);
                        presence.leave();
                    }
                });
            }
        });
        assert!(!store.with_extension("lock").exists());
    }
}
