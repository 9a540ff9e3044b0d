//! The two directions in which keys are read.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

impl Direction {
    pub(crate) fn reversed(self) -> Self {
        match self {
            Self::Forward => Self::Backward,
            Self::Backward => Self::Forward,
        }
    }

    /// Returns whether a walk that ends at `far` excludes `key`.
    pub(crate) fn passes(self, far: &[u8], key: &[u8]) -> bool {
        match self {
            Self::Forward => key >= far,
            Self::Backward => key < far,
        }
    }
}
