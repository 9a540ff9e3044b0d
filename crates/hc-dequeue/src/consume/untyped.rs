//! The consumer without the type of its values: everything that its clones and their dispatcher do together.
//!
//! Its functions return boxed futures, as all functions do that generic ones call. Each crate that polls an async
//! function compiles its body, even if the function is not generic; a box is compiled once, here.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use microqueue::Item;
use microqueue::keyspace::{Environment, Runner, Store, Subspace, foreign};
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

use crate::consume::dispatcher::Dispatcher;
use crate::consume::held_item::HandedOut;
use crate::consume::held_item::command::Commands;
use crate::consume::held_item::command::{Command, Reply, Want, ask};
use crate::consume::held_item::shared::Shared;
use crate::consume::shared_task::let_others_run;
use crate::items::MAX_STEP_ITEMS;
use crate::items::error::{Error, Result};
use crate::items::value::Value;
use crate::options::DispatcherOptions;
use crate::protocol::confirm::confirm_handed_out;
use crate::queue::handle::UntypedQueue;
use crate::shutdown::{NotEnded, SESSION_END_LIMIT, within};

/// A consumer whose caller knows the type of the values.
#[derive(Clone)]
pub(crate) struct UntypedConsumer {
    commands: Commands,
    runner: Runner<Store>,
    queue: Subspace,
    handle: Arc<Handle>,
}

/// Shuts the dispatcher down when the last consumer is dropped. Until then, deliveries can reach the dispatcher.
struct Handle {
    commands: Commands,
    shared: Arc<Shared>,
}

impl Handle {
    fn release(&self) {
        self.shared.shuts_down.store(true, Ordering::Relaxed);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.release();
        // The dispatcher may have ended before.
        let _ = self.commands.send(Command::ShutDown {
            grace: Duration::ZERO,
            done: None,
        });
    }
}

impl UntypedConsumer {
    /// Opens a session, and spawns its dispatcher.
    pub(crate) fn open(
        queue: UntypedQueue,
        runner: Runner<Store>,
        options: DispatcherOptions,
    ) -> BoxFuture<'static, Result<Self>> {
        Box::pin(async move {
            let subspace = queue.keys.queue.clone();
            let name = queue.keys.name.clone();
            let (commands, received) = mpsc::unbounded_channel();
            let dispatcher = Dispatcher::open(
                queue,
                runner.clone(),
                options,
                commands.downgrade(),
                received,
            );
            let dispatcher = dispatcher.await?;
            let shared = dispatcher.shared();
            let span =
                tracing::debug_span!("dispatcher", queue = %name, session = %dispatcher.session());
            let run = async {
                if let Err(panicked) = foreign::run(dispatcher.run()).await {
                    let panic = panicked.message();
                    tracing::error!(
                        panic,
                        "a fault of this library has ended a consumer: its calls fail from now on"
                    );
                }
            };
            shared.dispatcher.spawn(run.instrument(span));
            Ok(Self {
                handle: Arc::new(Handle {
                    commands: commands.clone(),
                    shared,
                }),
                commands,
                runner,
                queue: subspace,
            })
        })
    }

    pub(crate) fn queue(&self) -> &Subspace {
        &self.queue
    }

    pub(crate) fn env(&self) -> &Environment {
        self.runner.environment()
    }

    /// Has the dispatcher take no items ahead any more.
    pub(crate) fn end_reserve(&self) {
        // The dispatcher may have ended.
        let _ = self.commands.send(Command::EndReserve);
    }

    /// Marks the consumer as shutting down: deliveries dropped from this point on count no attempt.
    pub(crate) fn release(&self) {
        self.handle.release();
    }

    /// Returns how many items were granted whose values do not decode.
    pub(crate) fn undecodable(&self) -> u64 {
        self.handle.shared.undecodable.load(Ordering::Relaxed)
    }

    /// Takes up to `limit` items as soon as there is at least one.
    pub(crate) fn dequeue(
        &self,
        limit: usize,
        time: Duration,
    ) -> BoxFuture<'_, Result<Vec<HandedOut>>> {
        Box::pin(async move {
            let reserved = HandedOut::hand_out_reserve(&self.handle.shared, limit, &self.commands);
            if !reserved.is_empty() {
                return Ok(reserved);
            }
            self.want(limit, time, Reply::Deliver).await
        })
    }

    /// Records of those of these items that are handed out [apart] that they are handed out now: from here on, a death
    /// of the session counts.
    ///
    /// [apart]: crate::items::settings::Settings::hands_out_apart
    ///
    /// # Conflicts
    /// Reads and writes each of these items.
    pub(crate) fn confirm<'a>(&'a self, handed_out: &'a [HandedOut]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let apart = handed_out.iter().map(|handed_out| &*handed_out.item);
            let apart: Vec<_> = apart.filter(|item| item.is_apart()).collect();
            let Some(first) = apart.first() else {
                return Ok(());
            };
            let deliveries: Vec<_> = apart
                .iter()
                .map(|item| (item.id, item.out.delivery))
                .collect();
            let held = &first.held;
            let mut left = &deliveries[..];
            while !left.is_empty() {
                let confirm = |tr| async move { confirm_handed_out(&tr, held, left).await };
                left = &left[self.runner.run(confirm).await?..];
            }
            Ok(())
        })
    }

    /// Removes the first item as soon as there is one.
    pub(crate) fn pop(&self, time: Duration) -> BoxFuture<'_, Result<Option<Item<Value>>>> {
        Box::pin(async move { Ok(self.want(1, time, Reply::Pop).await?.pop()) })
    }

    /// Ends the session, and returns how many deliveries were lost.
    pub(crate) fn shut_down(self, grace: Duration) -> BoxFuture<'static, Result<usize>> {
        self.end_within(grace.saturating_add(SESSION_END_LIMIT), grace)
    }

    /// Ends the session as [`shut_down`](Self::shut_down) does. Fails if it has not ended within `limit`.
    pub(crate) fn end_within(
        self,
        limit: Duration,
        grace: Duration,
    ) -> BoxFuture<'static, Result<usize>> {
        Box::pin(async move {
            self.release();
            let end = |done| Command::ShutDown {
                grace,
                done: Some(done),
            };
            let ended = within(self.env(), limit, self.ask(end)).await;
            ended.unwrap_or_else(|| {
                let recipe = self.queue.clone();
                Err(NotEnded { recipe, limit }.into())
            })
        })
    }

    /// Waits until the dispatcher is in a queue from which other threads take it, before code that may block this
    /// thread.
    pub(crate) async fn let_dispatcher_run(&self) {
        if self.handle.shared.dispatcher.is_woken() {
            let_others_run().await;
        }
    }

    /// Takes up to `limit` items.
    async fn want<I>(
        &self,
        limit: usize,
        time: Duration,
        reply: impl FnOnce(oneshot::Sender<Result<Vec<I>>>) -> Reply,
    ) -> Result<Vec<I>> {
        if !(1..=MAX_STEP_ITEMS).contains(&limit) {
            return Err(Error::Wanted {
                wanted: limit,
                limit: MAX_STEP_ITEMS,
            });
        }
        let until = self.env().now().saturating_add(time);
        let want = |answer| {
            Command::Want(Want {
                wanted: limit,
                until,
                found_none: false,
                reply: reply(answer),
            })
        };
        self.ask(want).await
    }

    async fn ask<A>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<A>>) -> Command,
    ) -> Result<A> {
        let answer = ask(&self.handle.shared.dispatcher, &self.commands, command).await;
        answer.unwrap_or_else(|| {
            Err(Error::ShutDown {
                queue: self.queue.clone(),
            })
        })
    }
}
