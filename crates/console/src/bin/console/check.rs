//! Checks the files of a store that nothing has open.

use console::report::StoreCheck;
use export_queue::keyspace::embedded;
use export_queue::keyspace::url::StoreUrl;
use indicatif::ProgressBar;
use tokio::task::spawn_blocking;

use crate::failure::{CommandFailure, Result, Status};
use crate::output::print;

/// Checks the files of the store of a URL, and prints what was checked.
pub(crate) async fn check(db: &str, json: bool) -> Result<Status> {
    let path = match db.parse().map_err(CommandFailure::open)? {
        StoreUrl::Embedded { path } => path,
        StoreUrl::Memory => return Err(CommandFailure::Memory),
        StoreUrl::Fdb { .. } => return Err(CommandFailure::NoFilesToCheck),
    };
    // On a thread of its own, so that Ctrl-C ends it.
    let checked = spawn_blocking(move || {
        // On standard error, and only if that is a terminal.
        let bar = ProgressBar::new(0);
        let verified = embedded::verify(path, |read, of| {
            bar.set_length(of);
            bar.set_position(read);
        });
        bar.finish_and_clear();
        verified
    })
    .await;
    let verified = checked
        .expect("a check does not panic")
        .map_err(CommandFailure::check)?;
    let report = StoreCheck {
        rows: verified.rows,
        bytes: verified.bytes,
        log_batches: verified.log_batches,
    };
    print(&report, json)?;
    Ok(Status::Done)
}
