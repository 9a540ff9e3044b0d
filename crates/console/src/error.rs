//! Why a command or a request was not carried out.

use export_queue::combine::{self, hc_dequeue};
use export_queue::keyspace;
use export_queue::microqueue;

/// A result of the console.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a command or a request was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No queue of this name is registered.
    #[error("there is no queue `{name}`: `console queues` lists those that there are")]
    NoQueue {
        /// The name as given.
        name: String,
    },

    /// The queue is of a recipe that has nothing of what was asked for.
    #[error("`{name}` is a queue of the recipe {recipe}, which has no {what}")]
    WrongRecipe {
        /// The queue.
        name: String,
        /// Its recipe.
        recipe: String,
        /// What was asked for.
        what: &'static str,
    },

    /// The queue's recipe or its settings are of a version that this one does not know.
    #[error("queue `{name}` cannot be read: {problem}")]
    Unreadable {
        /// The queue.
        name: String,
        /// Why, and what to do.
        problem: String,
    },

    /// What was asked for is malformed.
    #[error("{what} `{given}` is malformed: {reason}")]
    Malformed {
        /// What it should be.
        what: &'static str,
        /// What was given.
        given: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },

    /// What was named is not there, any more or at all.
    #[error("{what} `{given}` is not there{hint}")]
    Missing {
        /// What it is.
        what: &'static str,
        /// What was given.
        given: String,
        /// What may have become of it.
        hint: &'static str,
    },

    /// The store failed.
    #[error("the store failed")]
    Keyspace(#[from] keyspace::Error),

    /// A queue of microqueue failed.
    #[error(transparent)]
    Microqueue(#[from] microqueue::Error),

    /// A queue of hc-dequeue failed.
    #[error(transparent)]
    Dequeue(#[from] hc_dequeue::Error),

    /// A combine queue failed.
    #[error(transparent)]
    Combine(#[from] combine::Error),

    /// An export queue failed.
    #[error(transparent)]
    Export(#[from] export_queue::Error),
}
