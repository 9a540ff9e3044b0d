//! An application that uses the `foundationdb` crate directly calls the recipe inside its own
//! transactions. Nothing is wrapped, and everything in one closure commits together.
//!
//! `cargo run -p examples --features fdb-7_3 --example own_transactions` runs it on the cluster of
//! the default cluster file. It removes all its keys at the end.

use microqueue::keyspace::Subspace;
use microqueue::keyspace::error::code_of;
use microqueue::keyspace::fdb::foundationdb;
use microqueue::{Error, MicroQueue};

use foundationdb::{Database, FdbBindingError, FdbError};

/// An error in the form that `Database::run` expects: it retries according to FoundationDB's error code.
fn binding_error(error: Error) -> FdbBindingError {
    match code_of(&error) {
        Some(code) => FdbError::from_code(code.number()).into(),
        None => FdbBindingError::new_custom_error(Box::new(error)),
    }
}

async fn run() -> Result<(), FdbBindingError> {
    let db = Database::default()?;
    let root = Subspace::from("own_transactions");
    let queue = &MicroQueue::<String>::new(root.subspace(&"jobs"));
    let accepted = &root.pack(&"accepted");
    let done = &root.pack(&"done");

    // `run` repeats the closure after a commit of unknown outcome. The application's own row shows
    // whether that commit happened, so the job is enqueued only once.
    db.run(|tr, _maybe_committed| async move {
        if tr.get(accepted, false).await?.is_none() {
            tr.set(accepted, b"");
            let job = "resize 17.png".to_owned();
            queue.enqueue(&*tr, &job).await.map_err(binding_error)?;
        }
        Ok(())
    })
    .await?;

    // Takes a job and records its result with the crate's own calls, both in one commit.
    let job = db
        .run(|tr, _maybe_committed| async move {
            let job = queue.dequeue(&*tr).await.map_err(binding_error)?;
            if let Some(job) = &job {
                tr.set(done, job.value.as_bytes());
            }
            Ok(job.map(|job| job.value))
        })
        .await?;
    println!("took {job:?}");

    let (begin, end) = &root.range();
    db.run(|tr, _maybe_committed| async move {
        tr.clear_range(begin, end);
        Ok(())
    })
    .await
}

#[tokio::main]
async fn main() -> Result<(), FdbBindingError> {
    #[expect(
        unsafe_code,
        reason = "the crate asks for a promise that no type can make"
    )]
    // SAFETY: the network is stopped below, before the process ends.
    let network = unsafe { foundationdb::boot() };
    let outcome = run().await;
    drop(network);
    outcome
}
