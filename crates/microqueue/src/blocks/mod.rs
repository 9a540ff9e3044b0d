//! Logs of blocks: each call that adds to a log writes one row, however many entries it adds.
//!
//! A log is a queue in [commit order](crate::Order::Commit) whose items are *blocks* of entries. An entry is a key and
//! a value, both bytes. A recipe that divides its keys into buckets keeps one log for each bucket. [`BlockLogs`] holds
//! all logs of a recipe.
//!
//! A new block starts when the next entry would bring the current one above 16 KiB. A block with a single larger entry
//! may have up to [`MAX_BLOCK_BYTES`]. The place of an entry is its [`EntryId`].
//!
//! # Layout
//!
//! ```text
//! (logs, log, versionstamp, call)  =  block
//!
//! logs   prefix of a subspace of the recipe
//! log    tuple integer: number of the log, from 0
//! versionstamp, call
//!        as those of an item in commit order; each block has its own call
//!
//! block
//!     0       format of an item in commit order, 01
//!     1       format of a block, 01
//!     2..4    number of entries, from 1 to 65,535
//!     4..     the entries, each of them
//!         length of the key     LEB128
//!         length of the value   LEB128
//!         key
//!         value
//! ```
//!
//! LEB128 is unsigned, in the shortest form: seven bits in each byte, lowest bits first; the highest bit is set if
//! another byte follows.
//!
//! A block has at most 99,737 bytes, to fit in a record that sets it aside with a reason; a longer one is invalid. The
//! place of an entry is its block's id and its index in the block, from 0. The index 65,535 means the whole block.

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

/// The logs of blocks in a subspace, numbered from 0.
///
/// A handle keeps no state from the store, so cloning it is cheap.
#[derive(Clone)]
pub struct BlockLogs {
    logs: Subspace,
    log_count: u32,
    env: Environment,
}

impl BlockLogs {
    /// Returns the `log_count` logs in the subspace `logs`. Call numbers come from `env`.
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
