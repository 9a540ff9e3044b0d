//! A file in memory.

use std::io;

use parking_lot::RwLock;

use super::Backend;

/// The unit in which memory is allocated, in bytes.
const PAGE_BYTES: usize = 64 << 10;

/// A file in memory. Ranges that were never written take none.
#[derive(Debug, Default)]
pub(crate) struct MemoryBackend(RwLock<Pages>);

#[derive(Debug, Default)]
struct Pages {
    len: usize,
    /// `None` for a page of zeros.
    pages: Vec<Option<Box<[u8]>>>,
}

impl Pages {
    fn resize(&mut self, len: usize) {
        self.pages.resize(len.div_ceil(PAGE_BYTES), None);
        if let Some(Some(last)) = self.pages.get_mut(len / PAGE_BYTES) {
            last[len % PAGE_BYTES..].fill(0);
        }
        self.len = len;
    }
}

/// Returns the pages of a range of bytes: the number of each, and the range within it.
fn pages(offset: usize, len: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let end = offset + len;
    let first = offset / PAGE_BYTES;
    (first..end.div_ceil(PAGE_BYTES)).map(move |page| {
        let start = page * PAGE_BYTES;
        let range = offset.max(start) - start..end.min(start + PAGE_BYTES) - start;
        (page, range)
    })
}

fn index(offset: u64) -> io::Result<usize> {
    usize::try_from(offset).map_err(|_| io::ErrorKind::OutOfMemory.into())
}

impl Backend for MemoryBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.read().len as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let memory = self.0.read();
        let offset = index(offset)?;
        if offset + out.len() > memory.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = out;
        for (page, range) in pages(offset, rest.len()) {
            let (piece, after) = rest.split_at_mut(range.len());
            match &memory.pages[page] {
                Some(bytes) => piece.copy_from_slice(&bytes[range]),
                None => piece.fill(0),
            }
            rest = after;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.write().resize(index(len)?);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut memory = self.0.write();
        let offset = index(offset)?;
        let end = offset + bytes.len();
        if end > memory.len {
            memory.resize(end);
        }
        let mut rest = bytes;
        for (page, range) in pages(offset, bytes.len()) {
            let (piece, after) = rest.split_at(range.len());
            let page = memory.pages[page].get_or_insert_with(|| vec![0; PAGE_BYTES].into());
            page[range].copy_from_slice(piece);
            rest = after;
        }
        Ok(())
    }
}
