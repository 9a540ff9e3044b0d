//! Why a command or a request was not carried out.

use export_queue::combine::{self, hc_dequeue};
use export_queue::keyspace;
use export_queue::microqueue;

use export_queue::keyspace::plain::short;

/// How many characters of what was given an error repeats.
const MAX_GIVEN_CHARS: usize = 200;

/// A result of the console.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a command or a request was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No queue of this name is registered.
    #[error(
        "there is no queue `{}`: `console queues` lists those that there are",
        short(name, MAX_GIVEN_CHARS)
    )]
    NoQueue {
        /// The name as given.
        name: String,
    },

    /// The queue is of a recipe that has nothing of what was asked for.
    #[error(
        "`{}` is a queue of the recipe {recipe}, which has no {what}: {}",
        short(name, MAX_GIVEN_CHARS),
        way_in(recipe)
    )]
    WrongRecipe {
        /// The queue.
        name: String,
        /// Its recipe.
        recipe: String,
        /// What was asked for.
        what: &'static str,
    },

    /// The queue's recipe or its settings are of a version that this one does not know.
    #[error("queue `{}` cannot be read: {problem}", short(name, MAX_GIVEN_CHARS))]
    Unreadable {
        /// The queue.
        name: String,
        /// Why, and what to do.
        problem: String,
    },

    /// An action changes nothing in that place.
    #[error("{action} changes no item that is {place}: it changes those that are {places}")]
    WrongPlace {
        /// The action.
        action: &'static str,
        /// The place that was given.
        place: &'static str,
        /// The places whose items it changes.
        places: String,
    },

    /// What was asked for is malformed.
    #[error("{what} `{}` is malformed: {reason}", short(given, MAX_GIVEN_CHARS))]
    Malformed {
        /// What it should be.
        what: &'static str,
        /// What was given.
        given: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },

    /// What was named is not there, any more or at all.
    #[error("{what} `{}` is not there: {hint}", short(given, MAX_GIVEN_CHARS))]
    Missing {
        /// What it is.
        what: &'static str,
        /// What was given.
        given: String,
        /// What may have become of it, or what lists those that there are.
        hint: &'static str,
    },

    /// One limit of a group cannot be removed from limits that are not known.
    #[error(
        "these limits, or the number of the group's slots, do not decode: replace all limits, or `repair` the queue"
    )]
    UnreadableLimits,

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

/// Returns which commands show a queue of a recipe.
fn way_in(recipe: &str) -> &'static str {
    match recipe {
        "microqueue" => "`stats` counts its items, and `ls` lists their keys",
        "hc-dequeue" => "`list` lists its items, and `stats` counts them",
        "combine" => "`combine` shows its keys and what it has set aside",
        "export-queue" => {
            "`exports` shows its subscriptions, and `list --subscription` their dead letters"
        }
        _ => "`queues` shows the recipe of each queue",
    }
}
