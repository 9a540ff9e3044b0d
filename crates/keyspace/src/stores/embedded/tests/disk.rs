//! A simulated disk that loses power, tears writes, fills up and fails.
//!
//! It holds a store's file and the slots of its log. The [`Disk`] itself is the store's file, as a
//! [`Backend`]. The slots are accessed through [`Files`].

mod cached;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::Rng;

use self::cached::{Cached, FileChange};
use crate::stores::embedded::backend::{Backend, File};
use crate::stores::embedded::log::files::{Files, Slot};

/// The unit that a disk writes completely or not at all, in bytes.
const SECTOR_BYTES: usize = 512;

/// The fault of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call does not return, and neither does any later one.
    PowerLoss,
    /// The call fails without effect. Later ones succeed.
    Error,
    /// The disk is full: from the call on, every one fails that creates a file or writes to a place of a file
    /// that was never written. To make a file longer takes no room.
    Full,
    /// The call, if it is a flush, fails for want of room. Later ones succeed.
    FullAtFlush,
    /// The call, if it is a write, fails after half of its bytes. Later ones succeed.
    ShortWrite,
}

/// The contents of all files of a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) main: Vec<u8>,
    pub(crate) slots: BTreeMap<Slot, Vec<u8>>,
}

/// A disk with a cache. Clones are the same disk.
#[derive(Clone)]
pub(crate) struct Disk(Arc<Mutex<DiskState>>);

struct DiskState {
    main: Cached,
    /// How long the main file can be.
    main_room: usize,
    /// Every slot that ever existed, including those that were removed.
    slots: Vec<Cached>,
    /// The content of the folder, as indexes into `slots`.
    folder: BTreeMap<Slot, usize>,
    /// The content of the folder that certainly survives a power loss.
    durable_folder: BTreeMap<Slot, usize>,
    /// The changes from `durable_folder` to `folder`: a slot was created or removed.
    cached_names: Vec<(Slot, Option<usize>)>,
    /// The number of changes and flushes, of all files, before the fault.
    countdown: usize,
    fault: Fault,
    keeps_failing: bool,
    ignores_flushes: bool,
    /// Whether no file can be opened or created, because the process has too many open.
    is_out_of_descriptors: bool,
    flushes: usize,
    during_write: Action,
    during_flush: Action,
}

/// What happens during each write or flush.
type Action = Arc<dyn Fn() + Send + Sync>;

/// A call that may have a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Create,
    Remove,
    SetLen,
    Flush,
    /// A write to bytes that were written before.
    Overwrite,
    /// A write that takes room.
    WriteToHole,
}

impl Fault {
    /// Returns whether the fault makes a call fail.
    fn concerns(self, call: Call) -> bool {
        match self {
            Self::Full => matches!(call, Call::Create | Call::WriteToHole),
            Self::FullAtFlush => call == Call::Flush,
            Self::PowerLoss | Self::Error | Self::ShortWrite => true,
        }
    }
}

impl Disk {
    /// Returns a disk without faults and slots whose main file holds `main`.
    pub(crate) fn new(main: Vec<u8>) -> Self {
        Self::with(Image {
            main,
            slots: BTreeMap::new(),
        })
    }

    /// Returns a disk without faults that holds `image`.
    pub(crate) fn with(image: Image) -> Self {
        let (names, slots): (Vec<_>, Vec<_>) = image.slots.into_iter().unzip();
        let folder: BTreeMap<_, _> = names.into_iter().zip(0..).collect();
        Self(Arc::new(Mutex::new(DiskState {
            main: Cached::new(image.main),
            main_room: usize::MAX,
            slots: slots.into_iter().map(Cached::new).collect(),
            durable_folder: folder.clone(),
            folder,
            cached_names: Vec::new(),
            countdown: usize::MAX,
            fault: Fault::Error,
            keeps_failing: false,
            ignores_flushes: false,
            is_out_of_descriptors: false,
            flushes: 0,
            during_write: Arc::new(|| ()),
            during_flush: Arc::new(|| ()),
        })))
    }

    /// Makes a change or a flush fail, of any file, after the next `calls` ones, which succeed.
    pub(crate) fn fail_after(&self, calls: usize, fault: Fault) {
        let mut state = self.state();
        state.countdown = calls;
        state.fault = fault;
        state.keeps_failing = false;
    }

    /// Makes the writes fail that would make the main file longer than this, for want of room.
    pub(crate) fn limit_main(&self, bytes: usize) {
        self.state().main_room = bytes;
    }

    /// Makes every call fail from now on.
    pub(crate) fn lose_power(&self) {
        let mut state = self.state();
        state.fault = Fault::PowerLoss;
        state.keeps_failing = true;
    }

    /// Makes all calls succeed from now on. Writes that were not flushed stay unflushed.
    pub(crate) fn go_on(&self) {
        let mut state = self.state();
        state.keeps_failing = false;
        state.countdown = usize::MAX;
    }

    /// Returns true once the fault has happened.
    pub(crate) fn has_failed(&self) -> bool {
        self.state().countdown == 0
    }

    /// Sets whether no slot can be opened or created because the process has too many open files.
    pub(crate) fn set_out_of_descriptors(&self, is_out: bool) {
        self.state().is_out_of_descriptors = is_out;
    }

    /// Makes flushes do nothing but report success.
    pub(crate) fn ignore_flushes(&self) {
        self.state().ignores_flushes = true;
    }

    /// Calls `action` during each write from now on.
    pub(crate) fn during_write(&self, action: impl Fn() + Send + Sync + 'static) {
        self.state().during_write = Arc::new(action);
    }

    /// Calls `action` during each flush from now on.
    pub(crate) fn during_flush(&self, action: impl Fn() + Send + Sync + 'static) {
        self.state().during_flush = Arc::new(action);
    }

    /// Returns the number of flushes of the disk's files.
    pub(crate) fn flushes(&self) -> usize {
        self.state().flushes
    }

    /// Returns the content that certainly survives a power loss.
    pub(crate) fn flushed(&self) -> Image {
        self.image_left(SECTOR_BYTES, &mut |_| 0)
    }

    /// Returns the content that reads of all files see.
    pub(crate) fn image(&self) -> Image {
        let state = self.state();
        let slots = state.folder.iter();
        Image {
            main: state.main.current.clone(),
            slots: slots
                .map(|(&slot, &index)| (slot, state.slots[index].current.clone()))
                .collect(),
        }
    }

    /// Returns possible contents of all files after a power loss. Each cached change survives completely,
    /// not at all, or in some of its sectors.
    pub(crate) fn image_after_power_loss(&self, rng: &mut impl Rng) -> Image {
        self.image_left(SECTOR_BYTES, &mut |choices| rng.random_range(0..choices))
    }

    /// Returns the contents of all files after a power loss. Each cached change survives completely, not at
    /// all, or in some of its pieces of `piece_bytes`. `choose(n)` decides, with a number below `n`.
    pub(crate) fn image_left(
        &self,
        piece_bytes: usize,
        choose: &mut dyn FnMut(usize) -> usize,
    ) -> Image {
        let state = self.state();
        let mut folder = state.durable_folder.clone();
        for &(slot, index) in &state.cached_names {
            if choose(2) == 1 {
                rename(&mut folder, slot, index);
            }
        }
        Image {
            main: state.main.left(piece_bytes, choose),
            slots: folder
                .into_iter()
                .map(|(slot, index)| (slot, state.slots[index].left(piece_bytes, choose)))
                .collect(),
        }
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap()
    }

    fn slot(&self, index: usize) -> File {
        Arc::new(DiskFile {
            disk: self.clone(),
            of: Of::Slot(index),
        })
    }

    fn main(&self) -> DiskFile {
        DiskFile {
            disk: self.clone(),
            of: Of::Main,
        }
    }
}

impl DiskState {
    /// Counts a change or flush. Returns the fault that it must have, if any.
    fn next_fault(&mut self, call: Call) -> Option<Fault> {
        if self.countdown > 0 {
            self.countdown -= 1;
            if self.countdown > 0 {
                return None;
            }
            self.keeps_failing = matches!(self.fault, Fault::PowerLoss | Fault::Full);
        } else if !self.keeps_failing {
            return None;
        }
        Some(self.fault).filter(|fault| fault.concerns(call))
    }

    fn has_power(&self) -> io::Result<()> {
        if self.keeps_failing && self.fault == Fault::PowerLoss {
            return Err(error(Fault::PowerLoss));
        }
        Ok(())
    }

    fn has_descriptors(&self) -> io::Result<()> {
        /// `EMFILE`.
        const TOO_MANY_OPEN_FILES: i32 = if cfg!(windows) { 4 } else { 24 };
        if self.is_out_of_descriptors {
            return Err(io::Error::from_raw_os_error(TOO_MANY_OPEN_FILES));
        }
        Ok(())
    }

    fn file(&mut self, of: Of) -> &mut Cached {
        match of {
            Of::Main => &mut self.main,
            Of::Slot(index) => &mut self.slots[index],
        }
    }

    /// Adds a slot to the folder or removes it.
    fn rename(&mut self, slot: Slot, index: Option<usize>) {
        rename(&mut self.folder, slot, index);
        self.cached_names.push((slot, index));
    }
}

/// Adds a slot to a folder or removes it.
fn rename(folder: &mut BTreeMap<Slot, usize>, slot: Slot, index: Option<usize>) {
    match index {
        Some(index) => folder.insert(slot, index),
        None => folder.remove(&slot),
    };
}

fn error(fault: Fault) -> io::Error {
    match fault {
        Fault::Full | Fault::FullAtFlush => {
            io::Error::new(io::ErrorKind::StorageFull, "the disk has no room")
        }
        Fault::PowerLoss | Fault::Error | Fault::ShortWrite => {
            io::Error::other(format!("{fault:?}"))
        }
    }
}

impl Files for Disk {
    fn open(&self, slot: Slot) -> io::Result<Option<File>> {
        let state = self.state();
        state.has_power()?;
        state.has_descriptors()?;
        Ok(state.folder.get(&slot).map(|&index| self.slot(index)))
    }

    fn create(&self, slot: Slot) -> io::Result<File> {
        let mut state = self.state();
        state.has_power()?;
        state.has_descriptors()?;
        if state.folder.contains_key(&slot) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let fault = state.next_fault(Call::Create);
        let index = state.slots.len();
        // The power may fail once the name is in the cache.
        if matches!(fault, None | Some(Fault::PowerLoss)) {
            state.slots.push(Cached::default());
            state.rename(slot, Some(index));
        }
        fault.map_or_else(|| Ok(self.slot(index)), |fault| Err(error(fault)))
    }

    fn remove(&self, slot: Slot) -> io::Result<()> {
        let mut state = self.state();
        state.has_power()?;
        if !state.folder.contains_key(&slot) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let fault = state.next_fault(Call::Remove);
        if matches!(fault, None | Some(Fault::PowerLoss)) {
            state.rename(slot, None);
        }
        fault.map_or(Ok(()), |fault| Err(error(fault)))
    }

    fn list(&self) -> io::Result<Vec<Slot>> {
        let state = self.state();
        state.has_power()?;
        Ok(state.folder.keys().copied().collect())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.state();
        state.has_power()?;
        match state.next_fault(Call::Flush) {
            Some(fault) => return Err(error(fault)),
            None if state.ignores_flushes => {}
            None => {
                state.durable_folder = state.folder.clone();
                state.cached_names.clear();
            }
        }
        Ok(())
    }

    fn path(&self, slot: Slot) -> PathBuf {
        format!("test.store.log.{:016x}", slot.0).into()
    }
}

/// One file of a disk.
struct DiskFile {
    disk: Disk,
    of: Of,
}

#[derive(Debug, Clone, Copy)]
enum Of {
    Main,
    Slot(usize),
}

impl Backend for DiskFile {
    fn len(&self) -> io::Result<u64> {
        let mut state = self.disk.state();
        state.has_power()?;
        Ok(state.file(self.of).current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        state.has_power()?;
        let offset = offset as usize;
        let current = &state.file(self.of).current;
        let bytes = current.get(offset..offset + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.has_power()?;
        match state.next_fault(Call::SetLen) {
            Some(fault) => Err(error(fault)),
            None => {
                state.file(self.of).change(FileChange::SetLen(len as usize));
                Ok(())
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.has_power()?;
        match state.next_fault(Call::Flush) {
            Some(fault) => return Err(error(fault)),
            None if state.ignores_flushes => {}
            None => {
                state.file(self.of).flush();
                state.flushes += 1;
                let action = state.during_flush.clone();
                drop(state);
                action();
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        state.has_power()?;
        if matches!(self.of, Of::Main) && offset as usize + data.len() > state.main_room {
            return Err(error(Fault::Full));
        }
        let is_filled = state.file(self.of).is_filled(offset as usize, data.len());
        let call = if is_filled {
            Call::Overwrite
        } else {
            Call::WriteToHole
        };
        let fault = state.next_fault(call);
        let written = match fault {
            // The power may fail during a write.
            None | Some(Fault::PowerLoss) => data,
            Some(Fault::ShortWrite) => &data[..data.len() / 2],
            Some(Fault::Error | Fault::Full | Fault::FullAtFlush) => &[],
        };
        state.file(self.of).change(FileChange::Write {
            offset: offset as usize,
            bytes: written.to_vec(),
        });
        let action = state.during_write.clone();
        drop(state);
        action();
        fault.map_or(Ok(()), |fault| Err(error(fault)))
    }
}

/// The main file.
impl Backend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.main().len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.main().read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.main().set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.main().sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.main().write(offset, data)
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").finish_non_exhaustive()
    }
}

impl fmt::Debug for DiskFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DiskFile").field(&self.of).finish()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    /// Returns the slots that are left after each of many power losses.
    fn slots_left(disk: &Disk) -> Vec<Vec<Slot>> {
        let mut rng = StdRng::seed_from_u64(0);
        let images = (0..50).map(|_| disk.image_after_power_loss(&mut rng));
        let mut left: Vec<Vec<_>> = images
            .map(|image| image.slots.into_keys().collect())
            .collect();
        left.sort();
        left.dedup();
        left
    }

    #[test]
    fn slots_come_and_go_for_certain_once_the_folder_is_synced() {
        let disk = Disk::new(Vec::new());
        let slot = disk.create(Slot(1)).unwrap();
        slot.write(0, &[7; 9]).unwrap();
        slot.sync_data().unwrap();
        assert_eq!(slots_left(&disk), [vec![], vec![Slot(1)]]);
        disk.sync_folder().unwrap();
        assert_eq!(slots_left(&disk), [vec![Slot(1)]]);
        disk.remove(Slot(1)).unwrap();
        assert_eq!(slots_left(&disk), [vec![], vec![Slot(1)]]);
        disk.sync_folder().unwrap();
        assert_eq!(slots_left(&disk), [Vec::new()]);
    }

    #[test]
    fn a_power_loss_keeps_the_flushed_file_and_may_lose_writes_of_another() {
        let disk = Disk::new(Vec::new());
        let [one, two] = [1, 2].map(|number| disk.create(Slot(number)).unwrap());
        disk.sync_folder().unwrap();
        one.write(0, &[1; 600]).unwrap();
        two.write(0, &[2; 600]).unwrap();
        disk.write(0, &[3; 600]).unwrap();
        one.sync_data().unwrap();
        let mut rng = StdRng::seed_from_u64(0);
        let images: Vec<_> = (0..50)
            .map(|_| disk.image_after_power_loss(&mut rng))
            .collect();
        assert!(images.iter().all(|image| image.slots[&Slot(1)] == [1; 600]));
        assert!(images.iter().any(|image| image.slots[&Slot(2)].is_empty()));
        assert!(images.iter().any(|image| image.main.is_empty()));
        let torn = [vec![0; 512], vec![2; 88]].concat();
        assert!(images.iter().any(|image| image.slots[&Slot(2)] == torn));
        assert_eq!(Disk::with(disk.image()).image(), disk.image());
    }

    #[test]
    fn the_countdown_to_a_fault_runs_over_all_files() {
        let disk = Disk::new(Vec::new());
        disk.fail_after(5, Fault::Full);
        let slot = disk.create(Slot(1)).unwrap();
        disk.set_len(1).unwrap();
        slot.set_len(1).unwrap();
        disk.sync_folder().unwrap();
        assert!(slot.write(0, &[1]).is_err());
        assert!(disk.create(Slot(2)).is_err());
        disk.remove(Slot(1)).unwrap();
        assert_eq!(disk.list().unwrap(), []);
    }

    #[test]
    fn a_full_disk_takes_a_longer_file_and_only_writes_where_something_was_written() {
        let disk = Disk::new(vec![1; 10]);
        disk.fail_after(1, Fault::Full);
        disk.set_len(20).unwrap();
        disk.write(0, &[2; 10]).unwrap();
        assert!(disk.write(5, &[3; 6]).is_err());
        disk.sync_data().unwrap();
        disk.go_on();
        disk.write(10, &[3; 10]).unwrap();
        disk.fail_after(1, Fault::Full);
        disk.write(0, &[4; 20]).unwrap();
        disk.set_len(10).unwrap();
        disk.set_len(20).unwrap();
        assert!(disk.write(0, &[5; 20]).is_err());
    }
}
