//! A disk that loses power, tears writes, fills up and fails.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::Rng;
use redb::StorageBackend;

/// What a disk writes whole or not at all, in bytes.
const SECTOR_BYTES: usize = 512;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The call does not come back, and none after it does.
    PowerLoss,
    /// The call fails without effect. Later ones succeed.
    Error,
    /// The call fails, and so does every later one that writes: the disk is full.
    Full,
    /// The call, if it is a write, fails after half of its bytes. Later ones succeed.
    ShortWrite,
}

/// A disk with a cache. Clones are the same disk.
#[derive(Clone)]
pub(super) struct Disk(Arc<Mutex<State>>);

struct State {
    /// What survives a power loss for certain.
    durable: Vec<u8>,
    /// What reads see.
    current: Vec<u8>,
    /// What leads from `durable` to `current`.
    cached: Vec<Change>,
    /// How many changes and flushes are left before the fault.
    countdown: usize,
    fault: Fault,
    keeps_failing: bool,
    ignores_flushes: bool,
    flushes: usize,
}

enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
}

impl Disk {
    /// Returns a disk without faults that holds `image`.
    pub(super) fn new(image: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(State {
            durable: image.clone(),
            current: image,
            cached: Vec::new(),
            countdown: usize::MAX,
            fault: Fault::Error,
            keeps_failing: false,
            ignores_flushes: false,
            flushes: 0,
        })))
    }

    /// Lets the change or flush after the next `calls` meet a fault.
    pub(super) fn fail_after(&self, calls: usize, fault: Fault) {
        let mut state = self.state();
        state.countdown = calls;
        state.fault = fault;
    }

    /// Lets every call fail from now on.
    pub(super) fn lose_power(&self) {
        let mut state = self.state();
        state.fault = Fault::PowerLoss;
        state.keeps_failing = true;
    }

    /// Returns true once the fault has happened.
    pub(super) fn has_failed(&self) -> bool {
        self.state().countdown == 0
    }

    /// Makes flushes do nothing and report success.
    pub(super) fn ignore_flushes(&self) {
        self.state().ignores_flushes = true;
    }

    /// Returns how often the disk was flushed.
    pub(super) fn flushes(&self) -> usize {
        self.state().flushes
    }

    /// Returns what survives a power loss for certain.
    pub(super) fn flushed(&self) -> Vec<u8> {
        self.state().durable.clone()
    }

    /// Returns what reads see.
    pub(super) fn contents(&self) -> Vec<u8> {
        self.state().current.clone()
    }

    /// Returns what may be left after a power loss: of each cached change all, nothing, or some
    /// of its sectors.
    pub(super) fn after_power_loss(&self, rng: &mut impl Rng) -> Vec<u8> {
        let state = self.state();
        let mut image = state.durable.clone();
        for change in &state.cached {
            match change {
                Change::SetLen(len) if rng.random() => image.resize(*len, 0),
                Change::SetLen(_) => {}
                Change::Write { offset, bytes } => match rng.random_range(0..3) {
                    0 => {}
                    1 => write_to(&mut image, *offset, bytes),
                    _ => {
                        let sectors = (*offset..).step_by(SECTOR_BYTES);
                        for (offset, sector) in sectors.zip(bytes.chunks(SECTOR_BYTES)) {
                            if rng.random() {
                                write_to(&mut image, offset, sector);
                            }
                        }
                    }
                },
            }
        }
        image
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

fn write_to(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    image.resize(image.len().max(end), 0);
    image[offset..end].copy_from_slice(bytes);
}

impl State {
    /// Counts a change or flush. Returns the fault that it is to meet, if any.
    fn next_fault(&mut self) -> Option<Fault> {
        if self.countdown == 0 {
            return self.keeps_failing.then_some(self.fault);
        }
        self.countdown -= 1;
        if self.countdown > 0 {
            return None;
        }
        self.keeps_failing = matches!(self.fault, Fault::PowerLoss | Fault::Full);
        Some(self.fault)
    }

    fn has_power(&self) -> io::Result<()> {
        if self.keeps_failing && self.fault == Fault::PowerLoss {
            return Err(error(Fault::PowerLoss));
        }
        Ok(())
    }

    fn change(&mut self, change: Change) {
        match &change {
            Change::Write { offset, bytes } => write_to(&mut self.current, *offset, bytes),
            Change::SetLen(len) => self.current.resize(*len, 0),
        }
        self.cached.push(change);
    }
}

fn error(fault: Fault) -> io::Error {
    match fault {
        Fault::Full => io::ErrorKind::StorageFull.into(),
        Fault::PowerLoss | Fault::Error | Fault::ShortWrite => {
            io::Error::other(format!("{fault:?}"))
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        let state = self.state();
        state.has_power()?;
        Ok(state.current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        state.has_power()?;
        let offset = offset as usize;
        let bytes = state.current.get(offset..offset + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.has_power()?;
        match state.next_fault() {
            Some(fault) => Err(error(fault)),
            None => {
                state.change(Change::SetLen(len as usize));
                Ok(())
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        state.has_power()?;
        match state.next_fault() {
            Some(fault) if fault != Fault::Full => return Err(error(fault)),
            _ if state.ignores_flushes => {}
            _ => {
                state.durable = state.current.clone();
                state.cached.clear();
                state.flushes += 1;
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.has_power()?;
        let fault = state.next_fault();
        let written = match fault {
            // Power may go while a write is under way.
            None | Some(Fault::PowerLoss) => data,
            Some(Fault::ShortWrite) => &data[..data.len() / 2],
            Some(Fault::Error | Fault::Full) => &[],
        };
        state.change(Change::Write {
            offset: offset as usize,
            bytes: written.to_vec(),
        });
        fault.map_or(Ok(()), |fault| Err(error(fault)))
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").finish_non_exhaustive()
    }
}
