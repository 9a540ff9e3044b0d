//! Looking at queues of all recipes.

use export_queue::keyspace::ids::RegisteredRecipe;
use export_queue::keyspace::names::{hex, queue_name};
use export_queue::keyspace::{self, Listed};
use futures::stream::{self, StreamExt};

use super::console::{Console, MAX_QUEUES, next_page};
use super::found::{Found, Microqueue, parse_name, unreadable};
use super::maps::Registered;
use crate::error::{Error, Result};
use crate::report;

/// How many queues are read at the same time.
const STATES_AT_ONCE: usize = 16;

/// How many items of a microqueue are counted.
const MAX_COUNTED: usize = 10_000;

impl Console {
    /// Returns a page of the queues, and how they stand: up to `limit` after the one of this name.
    ///
    /// # Errors
    /// [`Error::NoQueue`] for a name that no queue can have, and those of the store.
    pub async fn queues(&self, after: Option<&str>, limit: usize) -> Result<report::Queues> {
        let after = after.map(parse_name).transpose()?;
        let limit = limit.clamp(1, MAX_QUEUES);
        let recipes = self.registered_after(Registered::Queue, after, limit);
        let mut recipes = recipes.await?;
        let next = next_page(&mut recipes, limit).map(|last| queue_name(&last.id));
        let states = recipes.into_iter().map(|recipe| self.row_of(recipe));
        let queues = stream::iter(states).buffered(STATES_AT_ONCE).collect();
        Ok(report::Queues {
            queues: queues.await,
            next,
        })
    }

    /// Returns how a queue stands.
    ///
    /// # Errors
    /// [`Error::NoQueue`], and those of the store.
    pub async fn queue(&self, name: &str) -> Result<report::Queue> {
        let recipe = self.registered(name).await?;
        let state = self.state_of(&recipe).await?;
        Ok(queue_of(recipe, state))
    }

    /// Returns how a queue stands, or why that is not known: a queue that cannot be read must not hide the others.
    async fn row_of(&self, listed: Listed<keyspace::Subspace, RegisteredRecipe>) -> report::Queue {
        let recipe = match listed.value {
            Ok(recipe) => recipe,
            Err(error) => {
                return report::Queue {
                    name: queue_name(&listed.id),
                    prefix: hex(listed.id.bytes()),
                    codecs: Vec::new(),
                    state: report::QueueState::Unreadable {
                        registered: "unknown".to_owned(),
                        problem: error.to_string(),
                    },
                };
            }
        };
        let state = self.state_of(&recipe).await;
        let state = state.unwrap_or_else(|error| {
            unreadable_state(&recipe, keyspace::error::chain(&error).to_string())
        });
        queue_of(recipe, state)
    }

    async fn state_of(&self, recipe: &RegisteredRecipe) -> Result<report::QueueState> {
        let state = match self.open(recipe.clone()).await {
            Ok(Found::Microqueue(found)) => self.microqueue_state(&found).await,
            Ok(Found::Dequeue(found)) => self.dequeue_state(&found).await,
            Ok(Found::Combine(found)) => self.combine_state(&found).await,
            Ok(Found::Export(found)) => self.export_state(&found).await,
            Err(error) => Err(error),
        };
        match state.map_err(|error| unreadable(&queue_name(&recipe.subspace), error)) {
            Err(Error::Unreadable { problem, .. }) => Ok(unreadable_state(recipe, problem)),
            state => state,
        }
    }

    async fn microqueue_state(&self, found: &Microqueue) -> Result<report::QueueState> {
        let queue = &found.queue;
        let count = |tr| async move { queue.count_up_to(&tr, MAX_COUNTED).await };
        let counted = self.reader.run(count).await?;
        Ok(report::QueueState::Microqueue(report::MicroqueueState {
            items: counted.count,
            has_more: counted.has_more,
        }))
    }
}

fn queue_of(recipe: RegisteredRecipe, state: report::QueueState) -> report::Queue {
    report::Queue {
        name: queue_name(&recipe.subspace),
        prefix: hex(recipe.subspace.bytes()),
        codecs: recipe.codecs,
        state,
    }
}

fn unreadable_state(recipe: &RegisteredRecipe, problem: String) -> report::QueueState {
    report::QueueState::Unreadable {
        registered: recipe.name.clone(),
        problem,
    }
}
