//! Checks the files of a store.

use std::path::Path;

use console::report::StoreCheck;
use export_queue::keyspace::OpenError;
use export_queue::keyspace::embedded::{self, Sharing, Verified};
use export_queue::keyspace::url::StoreUrl;
use indicatif::ProgressBar;

use crate::failure::{CommandFailure, Result, Status};
use crate::output::print;
use crate::thread::on_thread;

/// Lets the owner of a store check it. That may be a viewer, too, which would make room for any other opening.
fn verify_in_owner(path: &Path, progress: impl FnMut(u64, u64)) -> Result<Verified, OpenError> {
    let viewer = embedded::Options::new().with_sharing(Sharing::Yield);
    let store = viewer.open_existing(path)?;
    store.verify(progress).map_err(OpenError::Store)
}

/// Checks the files of the store of a URL, and prints what was checked.
pub(crate) async fn check(db: &str, json: bool) -> Result<Status> {
    let path = match db.parse().map_err(CommandFailure::open)? {
        StoreUrl::Embedded { path } => path,
        StoreUrl::Memory => return Err(CommandFailure::Memory),
        StoreUrl::Fdb { .. } => return Err(CommandFailure::NoFilesToCheck),
    };
    let checked = on_thread(move || {
        // On standard error, and only if that is a terminal.
        let bar = ProgressBar::new(0);
        let progress = |read, of| {
            bar.set_length(of);
            bar.set_position(read);
        };
        let verified = match embedded::verify(&path, progress) {
            Err(OpenError::StoreInUse { .. }) => verify_in_owner(&path, progress),
            verified => verified,
        };
        bar.finish_and_clear();
        verified
    })
    .await?;
    let verified = checked.map_err(CommandFailure::check)?;
    let report = StoreCheck {
        rows: verified.rows,
        bytes: verified.bytes,
        log_batches: verified.log_batches,
    };
    print(&report, json)?;
    Ok(Status::Done)
}
