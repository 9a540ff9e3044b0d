//! Why a frame was not appended.

use std::io;

use crate::stores::embedded::backend::is_shortage;

/// The reason why a frame was not appended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendError {
    /// The segment is full and there is no spare. Nothing was written. Append again after giving the writer
    /// a spare.
    #[error("the log has no segment to go on to")]
    NoSpare,
    /// The frame does not fit into any segment. Nothing was written.
    #[error("a frame of {bytes} bytes fits into no segment of the log")]
    TooLarge { bytes: u64 },
    /// The system is short of something that the log needs: room on the disk, descriptors or memory. Nothing
    /// was appended. Append again later.
    #[error("the system has no room for the log")]
    NoSpace(#[source] io::Error),
    /// The disk failed, in this call or earlier. The writer appends no more, and it is unknown which
    /// unflushed frames are on disk.
    #[error("the log cannot be written")]
    Io(#[from] io::Error),
}

impl AppendError {
    /// Returns the error for a call, other than a flush, that failed to make room for frames. Nothing was
    /// appended.
    pub(crate) fn of_preparing(error: io::Error) -> Self {
        if is_shortage(&error) {
            Self::NoSpace(error)
        } else {
            Self::Io(error)
        }
    }
}

impl From<AppendError> for io::Error {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::NoSpace(cause) | AppendError::Io(cause) => cause,
            AppendError::NoSpare | AppendError::TooLarge { .. } => Self::other(error),
        }
    }
}
