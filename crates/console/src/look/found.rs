//! Finding a queue by its name, and opening it without writing.

use export_queue::combine::CombineQueue;
use export_queue::hc_dequeue::Queue;
use export_queue::keyspace::codec::Raw;
use export_queue::keyspace::error::corrupt_key;
use export_queue::keyspace::ids::RegisteredRecipe;
use export_queue::keyspace::names::{parse_queue_name, queue_name};
use export_queue::keyspace::{self, Bytes, Tx};
use export_queue::microqueue::MicroQueue;
use export_queue::{ExportQueue, Subscription};

use super::console::Console;
use crate::error::{Error, Result};

/// A queue that was found by its name.
pub(crate) enum Found {
    Microqueue(Microqueue),
    Dequeue(Dequeue),
    Combine(Combine),
    Export(Export),
}

impl Found {
    /// Returns the queue's recipe.
    fn recipe(&self) -> &'static str {
        match self {
            Self::Microqueue(_) => "microqueue",
            Self::Dequeue(_) => "hc-dequeue",
            Self::Combine(_) => "combine",
            Self::Export(_) => "export-queue",
        }
    }

    /// Returns the error that a queue of this recipe has nothing of what was asked for.
    pub(crate) fn has_no(&self, name: &str, what: &'static str) -> Error {
        Error::WrongRecipe {
            name: name.to_owned(),
            recipe: self.recipe().to_owned(),
            what,
        }
    }
}

/// A queue without consumers' sessions, in commit order.
pub(crate) struct Microqueue {
    pub(super) queue: MicroQueue<Bytes, Raw>,
}

/// A queue with consumers, and the name of its codec.
pub(crate) struct Dequeue {
    pub(crate) name: String,
    pub(crate) queue: Queue<Bytes, Raw>,
    pub(crate) codec: String,
}

/// A combine queue, and the names of its codecs of keys, updates and values.
pub(crate) struct Combine {
    pub(crate) queue: CombineQueue<Bytes, Bytes, Bytes, Raw>,
    pub(crate) codecs: [String; 3],
}

/// An export queue, and the names of its codecs of keys and values.
pub(crate) struct Export {
    pub(crate) queue: ExportQueue<Bytes, Bytes, Raw>,
    pub(crate) codecs: [String; 2],
}

impl Console {
    /// Returns what is registered under a name.
    pub(super) async fn registered(&self, name: &str) -> Result<RegisteredRecipe> {
        let ids = &self.ids;
        let subspace = &parse_name(name)?;
        let read = |tr| async move { ids.recipe(&tr, subspace).await };
        let recipe: Option<RegisteredRecipe> = self.reader.run(read).await?;
        let name = name.to_owned();
        recipe.ok_or(Error::NoQueue { name })
    }

    /// Opens a queue by what is registered of it.
    pub(super) async fn open(&self, recipe: RegisteredRecipe) -> Result<Found> {
        let runner = &self.reader;
        let subspace = recipe.subspace;
        let name = queue_name(&subspace);
        match &*recipe.name {
            "microqueue" => Ok(Found::Microqueue(Microqueue {
                queue: MicroQueue::new(subspace),
            })),
            "hc-dequeue" => {
                let found = Queue::inspect(runner, subspace).await;
                let (queue, stored) = settings_of(&name, found)?;
                let codec = stored.codec;
                Ok(Found::Dequeue(Dequeue { name, queue, codec }))
            }
            "combine" => {
                let found = CombineQueue::inspect(runner, subspace, keep).await;
                let (queue, stored) = settings_of(&name, found)?;
                let codecs = stored.codecs;
                Ok(Found::Combine(Combine { queue, codecs }))
            }
            "export-queue" => {
                let found = ExportQueue::inspect(runner, subspace).await;
                let (queue, stored) = settings_of(&name, found)?;
                let codecs = stored.codecs;
                Ok(Found::Export(Export { queue, codecs }))
            }
            "map" => Err(Error::WrongRecipe {
                name,
                recipe: recipe.name,
                what: "items",
            }),
            other => Err(Error::Unreadable {
                name,
                problem: format!("this version does not know the recipe {other}: upgrade it"),
            }),
        }
    }

    /// Finds a queue of any recipe.
    pub(crate) async fn find(&self, name: &str) -> Result<Found> {
        self.open(self.registered(name).await?).await
    }

    /// Finds a queue with consumers.
    pub(crate) async fn find_dequeue(&self, name: &str, what: &'static str) -> Result<Dequeue> {
        match self.find(name).await? {
            Found::Dequeue(found) => Ok(found),
            other => Err(other.has_no(name, what)),
        }
    }

    pub(super) async fn find_combine(&self, name: &str, what: &'static str) -> Result<Combine> {
        match self.find(name).await? {
            Found::Combine(found) => Ok(found),
            other => Err(other.has_no(name, what)),
        }
    }

    pub(crate) async fn find_export(&self, name: &str, what: &'static str) -> Result<Export> {
        match self.find(name).await? {
            Found::Export(found) => Ok(found),
            other => Err(other.has_no(name, what)),
        }
    }

    pub(crate) async fn subscription(
        &self,
        found: &Export,
        name: &str,
    ) -> Result<Subscription<Bytes, Bytes, Raw>> {
        let queue = &found.queue;
        let read = |tr: Tx<_>| async move { queue.subscription(&tr, name).await };
        let subscription = self.reader.run(read).await?;
        subscription.ok_or_else(|| Error::Missing {
            what: "subscription",
            given: name.to_owned(),
            hint: "`exports` lists those that there are",
        })
    }
}

/// Combines nothing: `combine_key` computes exact values, from what is known of the combiner.
fn keep(_key: &Bytes, current: Option<Bytes>, _updates: Vec<Bytes>) -> Option<Bytes> {
    current
}

/// Returns the subspace that has a name.
pub(super) fn parse_name(name: &str) -> Result<keyspace::Subspace> {
    parse_queue_name(name).ok_or_else(|| Error::NoQueue {
        name: name.to_owned(),
    })
}

/// Returns what was found of a queue, or why it cannot be read.
fn settings_of<T, E>(name: &str, found: Result<Option<T>, E>) -> Result<T>
where
    E: std::error::Error + Into<Error>,
{
    let found = found.map_err(|error| unreadable(name, error.into()))?;
    found.ok_or_else(|| Error::Unreadable {
        name: name.to_owned(),
        problem: "it is registered and has no settings: it was cleared".to_owned(),
    })
}

/// Returns that a queue cannot be read, if the error is that something in it does not decode.
pub(super) fn unreadable(name: &str, error: Error) -> Error {
    if corrupt_key(&error).is_some() {
        Error::Unreadable {
            name: name.to_owned(),
            problem: format!(
                "{}: upgrade if a newer version has written it, or else look for damage with `audit`",
                keyspace::error::chain(&error)
            ),
        }
    } else {
        error
    }
}
