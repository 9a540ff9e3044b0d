//! Where a transaction reads and commits: in this process, or in the one that owns the store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::contract::env::Environment;
use crate::contract::error::{Code, Error, Result};
use crate::stores::embedded::engine::Engine;
use crate::stores::embedded::engine::watch::{WatchFuture, WatchSetter};
use crate::stores::embedded::link::Link;
use crate::stores::embedded::owner::Owner;
use crate::stores::embedded::wire::Ask;

/// What serves a handle and its transactions. Clones share it.
#[derive(Clone)]
pub(crate) enum Seat {
    /// This process owns the store.
    Owner(Arc<Owner>),
    /// Another one does.
    Client(Arc<Link>),
}

/// Where the rows of a read come from.
#[derive(Clone, Copy)]
pub(crate) enum RowSource<'a> {
    Engine(&'a Engine),
    /// The rows that were fetched. A read that needs others [stops](Unfinished::Asks).
    Fetched,
}

/// Why a read has no result.
pub(crate) enum Unfinished {
    Failed(Error),
    /// It needs rows that the owner has. It starts again when they are there.
    Asks(Box<Ask>),
}

impl From<Error> for Unfinished {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Code> for Unfinished {
    fn from(code: Code) -> Self {
        Self::Failed(code.into())
    }
}

impl From<Ask> for Unfinished {
    fn from(ask: Ask) -> Self {
        Self::Asks(Box::new(ask))
    }
}

impl Seat {
    /// Returns the seat of new transactions: a client may have become the owner.
    pub(crate) fn present(&self) -> Self {
        match self {
            Self::Client(link) if let Some(owner) = link.owner() => Self::Owner(owner.clone()),
            _ => self.clone(),
        }
    }

    pub(crate) fn source(&self) -> RowSource<'_> {
        match self {
            Self::Owner(owner) => RowSource::Engine(owner.engine()),
            Self::Client(_) => RowSource::Fetched,
        }
    }

    pub(crate) fn environment(&self) -> &Environment {
        match self {
            Self::Owner(owner) => owner.engine().environment(),
            Self::Client(link) => link.environment(),
        }
    }

    /// Gives a turn to a commit of `bytes` bytes. Returns how long the commit must wait before it is sent. The commits
    /// of a client wait in the owner.
    pub(crate) fn wait_for_turn(&self, bytes: usize) -> Duration {
        match self {
            Self::Owner(owner) => owner.engine().wait_for_turn(bytes),
            Self::Client(_) => Duration::ZERO,
        }
    }

    /// Creates a watch, unless `max` watches are outstanding.
    pub(crate) fn create_watch(&self, max: usize) -> Result<(WatchSetter, WatchFuture)> {
        match self {
            Self::Owner(owner) => owner.engine().watches().create(max),
            Self::Client(link) => link.create_watch(max),
        }
    }

    /// Makes `setter` fire once the value of `key` differs from `baseline`.
    pub(crate) fn arm(&self, key: Bytes, baseline: Option<Bytes>, setter: WatchSetter) {
        match self {
            Self::Owner(owner) => owner.engine().watches().arm(key, baseline, setter),
            Self::Client(link) => link.arm(key, baseline, setter),
        }
    }
}
