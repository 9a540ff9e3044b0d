//! Logs of blocks: what one call adds to one log is one row, however many entries it has.
//!
//! A log is a queue in [commit order](crate::Order::Commit) whose items are *blocks* of entries. Each
//! entry is a key and a value, as bytes. Recipes that divide their keys into buckets keep one log for
//! each bucket, and [`BlockLogs`] is all logs of a recipe.
//!
//! # Key schema
//!
//! ```text
//! (logs, log, versionstamp, call)  =  block
//!
//! log           tuple integer: the number of the log, from 0
//! versionstamp  tuple versionstamp: the ten bytes of the commit, user version 0
//! call          tuple integer: the number of the block, from a counter of the process
//!
//! block
//!     0       format of an item in commit order, 01
//!     1       format of a block, 01
//!     2..4    number of entries, from 1 to 65,535
//!     4..     the entries, each of them
//!         length of the key     variable-length integer
//!         length of the value   variable-length integer
//!         key
//!         value
//! ```
//!
//! A variable-length integer has seven bits in each byte, the lowest first; the highest bit of a byte
//! says that another byte follows. Only the shortest form of a number is accepted.
//!
//! A block has about 16 KiB, unless it is one entry that is larger, and at most [`MAX_BLOCK_BYTES`].
//! The place of an entry is its [`EntryId`]: the id of its block and its index there.

mod add;
mod entry_id;
mod frame;
mod read;

use std::fmt;

use keyspace::codec::Raw;
use keyspace::{Bytes, Environment, Subspace};

pub use self::add::BlockBatch;
pub use self::entry_id::{ENTRY_ID_BYTES, EntryId, EntryIdError, WHOLE_BLOCK};
pub use self::frame::{Entry, MAX_BLOCK_BYTES, MAX_ENTRY_BYTES, decode_block, entry_count};
pub use self::read::StoredBlock;

use crate::keys::Layout;
use crate::order::Order;
use crate::queue::MicroQueue;

/// The logs of blocks in a subspace, by number from 0.
///
/// A handle holds nothing of the store: clone it freely.
#[derive(Clone)]
pub struct BlockLogs {
    logs: Subspace,
    log_count: u32,
    env: Environment,
}

impl BlockLogs {
    /// Returns the logs in a subspace, and takes call numbers from `env`.
    #[must_use]
    pub fn new(logs: Subspace, log_count: u32, env: Environment) -> Self {
        Self {
            logs,
            log_count,
            env,
        }
    }

    /// Returns the subspace of a log.
    #[must_use]
    pub fn subspace(&self, log: u32) -> Subspace {
        self.logs.subspace(&log)
    }

    fn layout(&self, log: u32) -> Layout<Bytes, Raw> {
        Layout::new(self.subspace(log), Order::Commit, Raw)
    }

    fn queue(&self, log: u32) -> MicroQueue<Bytes, Raw> {
        MicroQueue::new(self.subspace(log))
    }
}

impl fmt::Debug for BlockLogs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockLogs")
            .field("subspace", &self.logs.to_string())
            .field("log_count", &self.log_count)
            .finish_non_exhaustive()
    }
}
