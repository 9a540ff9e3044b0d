//! A file of a simulated disk: what reads see, and what a power loss leaves of it.

/// The bytes of a file.
#[derive(Default)]
pub(super) struct Cached {
    /// The content that certainly survives a power loss.
    pub(super) durable: Vec<u8>,
    /// The content that reads see.
    pub(super) current: Vec<u8>,
    /// The changes from `durable` to `current`.
    cached: Vec<FileChange>,
    /// Up to where the bytes were written. The rest is a hole.
    filled: usize,
}

/// A change of a file.
pub(super) enum FileChange {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
}

impl Cached {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self {
            durable: bytes.clone(),
            filled: bytes.len(),
            current: bytes,
            cached: Vec::new(),
        }
    }

    pub(super) fn change(&mut self, change: FileChange) {
        match &change {
            FileChange::Write { offset, bytes } => {
                write_to(&mut self.current, *offset, bytes);
                if *offset <= self.filled {
                    self.filled = self.filled.max(offset + bytes.len());
                }
            }
            FileChange::SetLen(len) => {
                self.current.resize(*len, 0);
                self.filled = self.filled.min(*len);
            }
        }
        self.cached.push(change);
    }

    /// Returns whether all of these bytes were written before.
    pub(super) fn is_filled(&self, offset: usize, len: usize) -> bool {
        offset + len <= self.filled
    }

    pub(super) fn flush(&mut self) {
        self.durable.clone_from(&self.current);
        self.cached.clear();
    }

    /// Returns what a power loss leaves: of each change that is not flushed, all, nothing, or some of the pieces of a
    /// write.
    pub(super) fn left(
        &self,
        piece_bytes: usize,
        choose: &mut dyn FnMut(usize) -> usize,
    ) -> Vec<u8> {
        let mut left = self.durable.clone();
        for change in &self.cached {
            match change {
                FileChange::SetLen(len) if choose(2) == 1 => left.resize(*len, 0),
                FileChange::SetLen(_) => {}
                FileChange::Write { offset, bytes } => {
                    // A write of one piece has no parts.
                    match choose(if bytes.len() > piece_bytes { 3 } else { 2 }) {
                        0 => {}
                        1 => write_to(&mut left, *offset, bytes),
                        _ => {
                            let offsets = (*offset..).step_by(piece_bytes);
                            for (offset, piece) in offsets.zip(bytes.chunks(piece_bytes)) {
                                if choose(2) == 1 {
                                    write_to(&mut left, offset, piece);
                                }
                            }
                        }
                    }
                }
            }
        }
        left
    }
}

fn write_to(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    image.resize(image.len().max(end), 0);
    image[offset..end].copy_from_slice(bytes);
}
