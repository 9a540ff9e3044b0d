//! What all handlers share.

use std::sync::Arc;
use std::time::Duration;

use export_queue::keyspace::Environment;
use tokio::sync::Semaphore;

use super::options::WebOptions;
use super::sampler::{Look, Sampler, Seen, Watched};
use crate::error::Error;
use crate::look::Console;

/// How many queues a page of the overview shows, and how many of them move.
pub(super) const QUEUES_PER_PAGE: usize = 100;

/// How many requests are answered at the same time. More are refused.
pub(super) const MAX_REQUESTS: usize = 64;

/// How long a request may take.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// How many bytes the body of a request may have.
pub(super) const MAX_BODY_BYTES: usize = 64 * 1024;

/// What all handlers share. Clones are the same.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) console: Console,
    pub(super) env: Environment,
    pub(super) options: Arc<WebOptions>,
    /// What proves that a change was asked for by one of our pages. Random, and another one for each router.
    pub(super) token: Arc<str>,
    pub(super) sampler: Sampler,
    pub(super) requests: Arc<Semaphore>,
}

impl Site {
    pub(super) fn new(console: Console, options: WebOptions) -> Self {
        let env = console.runner.environment().clone();
        let token: String = env
            .random_bytes::<32>()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self {
            sampler: Sampler::new(env.clone(), look(console.clone())),
            console,
            env,
            options: Arc::new(options),
            token: token.into(),
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
        }
    }
}

/// Returns how the sampler looks at a store.
fn look(console: Console) -> Look {
    Box::new(move |watched: Watched| {
        let console = console.clone();
        Box::pin(async move {
            let mut seen = Seen::default();
            if watched.overview {
                seen.overview = console.queues(None, QUEUES_PER_PAGE).await?.queues;
            }
            for name in watched.queues {
                if seen.overview.iter().any(|queue| queue.name == name) {
                    continue;
                }
                match console.queue(&name).await {
                    Ok(queue) => seen.others.push(queue),
                    // Its listeners see that it is gone.
                    Err(Error::NoQueue { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(seen)
        })
    })
}
