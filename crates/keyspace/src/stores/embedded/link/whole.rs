//! What a client does with a whole store: it copies the rows, lets the owner check the file, and asks which processes
//! have the store open.

use std::path::Path;
use std::sync::mpsc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::Link;
use super::connection::{Unanswered, Verifying, Waiting};
use crate::contract::error::{Code, Error, OpenError, Result};
use crate::contract::selector::KeyValue;
use crate::contract::transaction::key_after;
use crate::stores::embedded::backend::File;
use crate::stores::embedded::disk::backup::{self, CopyError};
use crate::stores::embedded::disk::location;
use crate::stores::embedded::disk::open::Setup;
use crate::stores::embedded::disk::verify::Verified;
use crate::stores::embedded::options::Options;
use crate::stores::embedded::processes::Process;
use crate::stores::embedded::runs::RunStoreOptions;
use crate::stores::embedded::runs::manifest::Meta;
use crate::stores::embedded::wire::{Found, Request};

/// Rows of a copy, the version that is copied, and whether there are more.
type CopiedRows = (i64, Vec<KeyValue>, bool);

impl Link {
    /// Copies the newest state to a new store at `path`, which this process writes. Blocks until the copy is done.
    pub(crate) fn backup(&self, path: &Path) -> Result<(), OpenError> {
        location::write_copy(path, |file| {
            let connection = self.shared.connections.lock().next.clone();
            let copy = connection.next_transaction();
            let read = |begin: Bytes| -> Result<CopiedRows> {
                let (sender, found) = mpsc::channel();
                let answer = Box::new(move |answer| drop(sender.send(answer)));
                connection.send(&Request::Copy { copy, begin }, Waiting::Read(answer))?;
                match found.recv() {
                    Ok(Ok((version, Found::Rows { rows, more }))) => {
                        let rows = rows.into_iter().map(KeyValue::try_from);
                        Ok((version, rows.collect::<Result<_, _>>()?, more))
                    }
                    Ok(Err(Unanswered::Failed(error))) => Err(error),
                    // The owner has ended.
                    Ok(Ok(_) | Err(Unanswered::Lost)) | Err(_) => {
                        Err(Code::TRANSACTION_TOO_OLD.into())
                    }
                }
            };
            let copied = self.write_copy(file, path, read);
            let end = Request::End { transaction: copy };
            connection.outgoing.send(0, &end);
            copied
        })
    }

    fn write_copy(
        &self,
        file: File,
        path: &Path,
        read: impl Fn(Bytes) -> Result<CopiedRows>,
    ) -> Result<(), OpenError> {
        let setup = Options::new().with_environment(self.environment().clone());
        let options = RunStoreOptions {
            cache_bytes: 0,
            ..Setup::of(&setup).run_options()
        };
        let (version, mut rows, mut more) = read(Bytes::new()).map_err(OpenError::Store)?;
        let meta = Meta {
            last_version: version,
            id: self
                .store_id()
                .ok_or(Error::from(Code::TRANSACTION_CANCELLED))?,
            log: None,
        };
        backup::write(file, path, options, meta, |add| {
            loop {
                for row in &rows {
                    add(row.key(), row.value())?;
                }
                if !more {
                    return Ok(());
                }
                let Some(last) = rows.last() else {
                    return Ok(());
                };
                let begin = key_after(last.key()).into();
                let next = read(begin).map_err(|error| CopyError::Read(OpenError::Store(error)))?;
                (_, rows, more) = next;
            }
        })
    }

    /// Lets the owner check the store's file. Blocks until that is done.
    pub(crate) fn verify(&self, mut progress: impl FnMut(u64, u64)) -> Result<Verified> {
        let (sender, verifying) = mpsc::channel();
        self.send(&Request::Verify, Waiting::Verify(sender))?;
        loop {
            match verifying.recv() {
                Ok(Ok(Verifying::Progress { read, of })) => progress(read, of),
                Ok(Ok(Verifying::Done(verified))) => return Ok(verified),
                Ok(Err(error)) => return Err(error),
                // The owner has ended.
                Err(_) => return Err(Code::TRANSACTION_TOO_OLD.into()),
            }
        }
    }

    /// Returns the processes that have the store open, its owner first.
    pub(crate) async fn processes(&self) -> Result<Vec<Process>> {
        let (sender, processes) = oneshot::channel();
        self.send(&Request::Processes, Waiting::Processes(sender))?;
        let ended = |_| Err(Code::TRANSACTION_TOO_OLD.into());
        processes.await.unwrap_or_else(ended)
    }

    fn send(&self, request: &Request, waiting: Waiting) -> Result<()> {
        let connections = self.shared.connections.lock();
        connections.next.send(request, waiting).map(drop)
    }
}
