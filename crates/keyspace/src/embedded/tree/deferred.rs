//! Opens a file for inspection without changing it.

use std::io;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use parking_lot::{RwLock, RwLockReadGuard};
use redb::{BackendError, StorageBackend};

use super::damage::Damage;

/// A storage backend that holds back writes until it is released.
///
/// redb marks a file as in use, and repairs it, before it returns a database whose content can be checked.
/// On this backend, these writes stay in memory. Once the file is known to be a store, they are written to
/// it in redb's order, including the flushes.
#[derive(Debug, Clone)]
pub(crate) struct DeferredBackend(Arc<DeferredFile>);

#[derive(Debug)]
struct DeferredFile {
    file: Box<dyn StorageBackend>,
    /// The calls that were held back, `None` once the backend was released.
    calls: RwLock<Option<Vec<DeferredCall>>>,
    health: Arc<Health>,
}

/// What was found wrong with a file. It can be kept after the file is closed.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// What is damaged. The file is not written again then.
    damage: OnceLock<Damage>,
    /// The first error of a call.
    first_error: OnceLock<io::Error>,
}

impl Health {
    /// Makes all later writes fail. What is written to a damaged file may damage it further.
    pub(crate) fn give_up(&self, reason: &str) {
        self.damage.get_or_init(|| Damage::new(reason));
    }

    /// Returns what redb's error stands for: after one call has failed, redb answers others without calling the
    /// file.
    pub(crate) fn explain(&self, error: redb::Error) -> redb::Error {
        if !matches!(error, redb::Error::PreviousIo) {
            return error;
        }
        if let Some(damage) = self.damage.get() {
            return damage.clone().into();
        }
        self.first_error
            .get()
            .map_or(error, |first| copy(first).into())
    }

    /// Keeps the error of a call, if it is the first one.
    fn note<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        outcome.inspect_err(|error| {
            self.first_error.get_or_init(|| copy(error));
        })
    }
}

fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// A call of redb that changes the file.
#[derive(Debug)]
enum DeferredCall {
    Write { offset: u64, bytes: Vec<u8> },
    SetLen(u64),
    Sync,
}

impl DeferredCall {
    fn make(&self, file: &dyn StorageBackend) -> io::Result<()> {
        match self {
            Self::Write { offset, bytes } => file.write(*offset, bytes),
            Self::SetLen(len) => file.set_len(*len),
            Self::Sync => file.sync_data(),
        }
    }

    /// Applies the effect of the call to `buffer`, which holds the bytes of the file from `start` on.
    fn apply(&self, start: u64, buffer: &mut [u8]) {
        match self {
            Self::Write { offset, bytes } => {
                let skipped = start.saturating_sub(*offset);
                let into = offset.saturating_sub(start);
                let from = bytes.iter().skip(as_index(skipped));
                let into = buffer.iter_mut().skip(as_index(into));
                into.zip(from).for_each(|(byte, written)| *byte = *written);
            }
            Self::SetLen(len) => {
                let kept = as_index(len.saturating_sub(start));
                buffer.iter_mut().skip(kept).for_each(|byte| *byte = 0);
            }
            Self::Sync => {}
        }
    }
}

/// Converts an offset to an index. An offset that is too large for memory is past the end of any buffer.
fn as_index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl DeferredBackend {
    pub(crate) fn new(file: impl StorageBackend) -> Self {
        Self(Arc::new(DeferredFile {
            file: Box::new(file),
            calls: RwLock::new(Some(Vec::new())),
            health: Arc::default(),
        }))
    }

    pub(crate) fn health(&self) -> Arc<Health> {
        self.0.health.clone()
    }

    /// Returns the file as it is without the calls that are held back.
    pub(crate) fn file(&self) -> &dyn StorageBackend {
        &*self.0.file
    }

    /// Makes the calls that were held back. From then on, the backend passes all calls to the file.
    pub(crate) fn release(&self) -> io::Result<()> {
        let mut calls = self.0.calls.write();
        for call in calls.iter().flatten() {
            call.make(&*self.0.file)?;
        }
        *calls = None;
        Ok(())
    }

    /// Holds a call back, or makes it if the backend was released.
    fn hold(&self, call: DeferredCall) -> io::Result<()> {
        let mut calls = self.0.calls.write();
        match &mut *calls {
            Some(calls) => calls.push(call),
            None => call.make(&*self.0.file)?,
        }
        Ok(())
    }

    /// Returns the file if the backend was released, which cannot be undone.
    fn released(&self) -> Option<&dyn StorageBackend> {
        self.calls().is_none().then_some(&*self.0.file)
    }

    /// Returns the file to write to, if the backend was released.
    fn writable(&self) -> io::Result<Option<&dyn StorageBackend>> {
        match self.0.health.damage.get() {
            Some(damage) => Err(io::Error::new(io::ErrorKind::InvalidData, damage.clone())),
            None => Ok(self.released()),
        }
    }

    fn calls(&self) -> RwLockReadGuard<'_, Option<Vec<DeferredCall>>> {
        self.0.calls.read()
    }
}

impl StorageBackend for DeferredBackend {
    fn len(&self) -> io::Result<u64> {
        let calls = self.calls();
        let set = calls.iter().flatten().rev().find_map(|call| match call {
            DeferredCall::SetLen(len) => Some(*len),
            DeferredCall::Write { .. } | DeferredCall::Sync => None,
        });
        set.map_or_else(|| self.0.file.len(), Ok)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if let Some(file) = self.released() {
            return self.0.health.note(file.read(offset, out));
        }
        let end = offset.saturating_add(out.len() as u64);
        if end > self.len()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let in_file = self.0.file.len()?.clamp(offset, end) - offset;
        let (from_file, grown) = out.split_at_mut(as_index(in_file));
        if !from_file.is_empty() {
            self.0.file.read(offset, from_file)?;
        }
        grown.fill(0);
        for call in self.calls().iter().flatten() {
            call.apply(offset, out);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match self.writable()? {
            Some(file) => self.0.health.note(file.set_len(len)),
            None => self.hold(DeferredCall::SetLen(len)),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.writable()? {
            Some(file) => self.0.health.note(file.sync_data()),
            None => self.hold(DeferredCall::Sync),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.writable()? {
            Some(file) => self.0.health.note(file.write(offset, data)),
            None => {
                let bytes = data.to_vec();
                self.hold(DeferredCall::Write { offset, bytes })
            }
        }
    }

    fn close(&self) -> io::Result<()> {
        self.0.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.0.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use redb::backends::InMemoryBackend;

    use super::*;

    fn contents(backend: &dyn StorageBackend) -> Vec<u8> {
        let mut bytes = vec![0; backend.len().unwrap() as usize];
        backend.read(0, &mut bytes).unwrap();
        bytes
    }

    fn file() -> InMemoryBackend {
        let file = InMemoryBackend::new();
        file.set_len(100).unwrap();
        file.write(0, &[7; 100]).unwrap();
        file
    }

    #[test]
    fn a_damaged_file_is_not_written_again() {
        let deferred = DeferredBackend::new(file());
        deferred.release().unwrap();
        deferred.health().give_up("its pages are gone");
        for error in [
            deferred.write(0, &[1]).unwrap_err(),
            deferred.set_len(1).unwrap_err(),
            deferred.sync_data().unwrap_err(),
        ] {
            assert_eq!(error.to_string(), "its pages are gone");
        }
        assert_eq!(contents(&deferred), vec![7; 100]);
    }

    #[test]
    fn reads_see_what_is_held_back_and_the_file_does_not_until_the_release() {
        for seed in 0..200 {
            let mut rng = StdRng::seed_from_u64(seed);
            let plain = file();
            let deferred = DeferredBackend::new(file());
            for _ in 0..rng.random_range(1..20) {
                if rng.random_bool(0.2) {
                    let len = rng.random_range(0..200);
                    plain.set_len(len).unwrap();
                    deferred.set_len(len).unwrap();
                } else {
                    let len = plain.len().unwrap();
                    let from = rng.random_range(0..=len);
                    let bytes =
                        vec![rng.random(); rng.random_range(from..=len) as usize - from as usize];
                    plain.write(from, &bytes).unwrap();
                    deferred.write(from, &bytes).unwrap();
                }
                let len = plain.len().unwrap();
                let from = rng.random_range(0..=len);
                let mut expected = vec![0; rng.random_range(from..=len) as usize - from as usize];
                let mut found = expected.clone();
                plain.read(from, &mut expected).unwrap();
                deferred.read(from, &mut found).unwrap();
                assert_eq!(found, expected, "seed {seed}");
                assert!(deferred.read(len, &mut [0]).is_err());
            }
            assert_eq!(contents(&*deferred.0.file), vec![7; 100], "seed {seed}");
            deferred.release().unwrap();
            assert_eq!(contents(&*deferred.0.file), contents(&plain), "seed {seed}");
            deferred.set_len(1).unwrap();
            deferred.write(0, &[9]).unwrap();
            assert_eq!(contents(&*deferred.0.file), [9]);
        }
    }
}
