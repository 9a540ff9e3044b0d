//! Bugs that are planted below the runs, to prove that the checks find them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::Layout;
use super::super::chunks::MANIFEST_CHUNKS;
use crate::stores::embedded::backend::{Backend, File};
use crate::stores::embedded::tests::disk::Disk;

/// The bug of a store's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileFlaw {
    /// A run is not flushed before the manifest that names it is written.
    RunNotFlushed,
    ManifestNotFlushed,
    /// All manifests are written to the first place.
    OnePlace,
    /// What a merge replaces is free before the manifest without it was flushed.
    FreedTooEarly,
}

/// A file with a bug.
#[derive(Debug)]
pub(super) struct FlawedFile {
    disk: Disk,
    layout: Layout,
    flaw: Option<FileFlaw>,
    /// Whether the last write was that of a manifest.
    wrote_manifest: AtomicBool,
}

impl FlawedFile {
    pub(super) fn over(disk: Disk, layout: Layout, flaw: Option<FileFlaw>) -> File {
        Arc::new(Self {
            disk,
            layout,
            flaw,
            wrote_manifest: AtomicBool::new(true),
        })
    }
}

impl Backend for FlawedFile {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let is_dropped = match self.flaw {
            Some(FileFlaw::RunNotFlushed) => !self.wrote_manifest.load(Ordering::Relaxed),
            Some(FileFlaw::ManifestNotFlushed) => self.wrote_manifest.load(Ordering::Relaxed),
            _ => false,
        };
        if is_dropped {
            return Ok(());
        }
        self.disk.sync_data()
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let chunk = offset / u64::from(self.layout.chunk_bytes);
        let is_manifest = chunk < u64::from(MANIFEST_CHUNKS);
        self.wrote_manifest.store(is_manifest, Ordering::Relaxed);
        if is_manifest && self.flaw == Some(FileFlaw::OnePlace) {
            return self.disk.write(0, bytes);
        }
        self.disk.write(offset, bytes)
    }
}
