//! Moves parts of the window to the runs, and frees the log before them.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::stores::embedded::backend::place::Place;
use crate::stores::embedded::layers::FrozenPart;
use crate::stores::embedded::log::slots::Slots;
use crate::stores::embedded::runs::damage::FileError;
use crate::stores::embedded::runs::manifest::{LogStart, Meta};
use crate::stores::embedded::runs::{RunList, Runs};

/// A part that is to be moved to the runs.
pub(crate) struct Checkpoint {
    pub(crate) part: FrozenPart,
    /// The version of the part's last batch.
    pub(crate) last_version: i64,
    /// The start of the log once the part is in the runs, or `None` if there is no log then.
    pub(crate) log: Option<LogStart>,
}

/// The runs, and the slots of their log.
#[derive(Clone)]
pub(crate) struct StoreFiles {
    /// `None` if the store is not a file of this machine.
    pub(crate) place: Option<Place>,
    pub(crate) runs: Arc<Runs>,
    /// The slots of the log, `None` for a store in memory.
    pub(crate) slots: Option<Arc<Mutex<Slots>>>,
}

impl StoreFiles {
    /// Fails if the store's file is no longer where it was opened. The log may be needed then.
    pub(crate) fn check_place(&self) -> Result<(), FileError> {
        self.place.as_ref().map_or(Ok(()), Place::check)?;
        Ok(())
    }

    /// Writes a part as a run, and frees the log before the part's end. Calls `installed` with the new runs.
    pub(crate) fn checkpoint(
        &self,
        checkpoint: &Checkpoint,
        installed: impl FnOnce(&Arc<RunList>),
    ) -> Result<(), FileError> {
        let set_meta = |meta: &mut Meta| {
            meta.last_version = checkpoint.last_version;
            meta.log = checkpoint.log;
        };
        self.runs
            .add_entries(checkpoint.part.part.entries(), set_meta, installed)?;
        // Last, so that little time is left for a change.
        self.check_place()?;
        if let Some(slots) = &self.slots {
            let mut slots = slots.lock();
            match checkpoint.log {
                Some(log) => slots.free_before(log.start.segment)?,
                // Do this while the store's file is still locked. After that, these files may be the log of
                // the next opening.
                None => slots.remove_all()?,
            }
        }
        Ok(())
    }
}
