//! The handlers of a worker, by the kinds of their jobs.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use microqueue::keyspace::codec::{Codec, MessagePack};
use microqueue::keyspace::foreign::{self, Guarded};
use microqueue::keyspace::{Database, Runner};

use crate::consume::held_item::{HandedOut, HeldItem};
use crate::items::error::{Error, Result};
use crate::items::item_ref::ItemRef;
use crate::items::kind::{Kind, Kinds, MAX_KINDS};
use crate::items::value::{Decode, decoder};
use crate::jobs::job::{Job, JobOptions};
use crate::options::Handling;
use crate::queue::stage::kind_named;
use crate::work::handler::{Handler, TransactionHandler};
use crate::work::outcome::Outcome;
use crate::work::process::InTransaction;
use crate::work::slots::Handle;
use crate::work::worker::call;

/// Makes the functions of a handler, for a codec and a runner.
type Make<D, C> = Box<dyn FnOnce(&C, &Runner<D>) -> Functions + Send>;

/// What a worker does with the jobs of a type.
#[derive(Clone)]
struct Functions {
    decode: Arc<Decode>,
    handle: Arc<Handle>,
}

/// A handler, and for which jobs it is.
struct Registered<D: Database, C> {
    kinds: Vec<&'static str>,
    options: JobOptions,
    make: Make<D, C>,
}

/// A call of a handler, as the hook of [`Handlers::around`] gets it.
pub struct Call {
    item: Arc<HeldItem>,
    run: BoxFuture<'static, Outcome>,
}

impl Call {
    /// Returns the kind of the job, which may be an alias; empty for an item without a kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.item.record.kind.name()
    }

    /// Returns the reference to the job's item.
    #[must_use]
    pub fn item_ref(&self) -> ItemRef {
        self.item.item_ref()
    }

    /// Returns the number of this attempt, starting at 1.
    #[must_use]
    pub fn attempt(&self) -> u64 {
        self.item.attempt()
    }

    /// Returns whether the job becomes a dead letter if this attempt fails.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.item.is_last_attempt()
    }

    /// Calls the handler, and returns its outcome. An error or a panic of the handler is a
    /// [`Retry`](Outcome::Retry) with its message.
    pub async fn run(self) -> Outcome {
        let handled = foreign::run(self.run).await;
        handled.unwrap_or_else(|panicked| Outcome::retry(panicked.to_string()))
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("kind", &self.kind())
            .field("item", &self.item_ref())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}

/// What is called around each handler.
type Hook = dyn Fn(Call) -> BoxFuture<'static, Outcome> + Send + Sync;

/// The handlers of a worker of [`Jobs`](crate::Jobs): one for each type of jobs that it takes.
///
/// ```
/// use std::sync::Arc;
///
/// use hc_dequeue::keyspace::{Store, Tx};
/// use hc_dequeue::{Call, Delivery, Handler, Handlers, Job};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct SendMail { to: String }
/// # impl Job for SendMail { const KIND: &'static str = "send-mail"; }
/// # #[derive(Serialize, Deserialize)]
/// # struct Charge { cents: u64 }
/// # impl Job for Charge { const KIND: &'static str = "charge"; }
/// # struct Shop { name: String }
/// # let shop = Arc::new(Shop { name: "corner".to_owned() });
///
/// /// A handler with state.
/// struct Mailer(Arc<Shop>);
///
/// impl Handler<SendMail> for Mailer {
///     type Output = std::io::Result<()>;
///
///     async fn handle(&self, mail: Delivery<SendMail>) -> Self::Output {
///         println!("{} to {}", self.0.name, mail.value().to);
///         Ok(())
///     }
/// }
///
/// let handlers = Handlers::<Store>::new()
///     .work(Mailer(shop))
///     .process(async |_tr: Tx<_>, charge: Delivery<Charge>| println!("{} cents", charge.value().cents))
///     .around(async |call: Call| {
///         let kind = call.kind().to_owned();
///         let outcome = call.run().await;
///         println!("{kind}: {outcome:?}");
///         outcome
///     });
/// # drop(handlers);
/// ```
pub struct Handlers<D: Database, C = MessagePack> {
    entries: Vec<Registered<D, C>>,
    hook: Option<Arc<Guarded<Box<Hook>>>>,
}

impl<D: Database, C: Clone + Send + Sync + 'static> Handlers<D, C> {
    /// Returns no handlers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            entries: Vec::new(),
            hook: None,
        }
    }

    /// Adds a handler that is called as by [`Queue::work`](crate::Queue::work): outside a transaction.
    #[must_use]
    pub fn work<J: Job>(self, handler: impl Handler<J>) -> Self
    where
        C: Codec<J>,
    {
        self.add::<J>(|codec, _| Functions {
            decode: decoder::<J, C>(codec.clone()),
            handle: call(handler).into(),
        })
    }

    /// Adds a handler that is called as by [`Queue::process`](crate::Queue::process): in the transaction that completes
    /// the job.
    #[must_use]
    pub fn process<J: Job>(self, handler: impl TransactionHandler<J, D::Transaction>) -> Self
    where
        C: Codec<J>,
    {
        self.add::<J>(|codec, runner| Functions {
            decode: decoder::<J, C>(codec.clone()),
            handle: call(InTransaction::new(runner, handler)).into(),
        })
    }

    /// Sets what is called around each handler, for spans, metrics and reports of errors. It gets the [`Call`], runs
    /// it, and returns its outcome or another one. Another hook replaces it.
    ///
    /// It does not see every failure. An error or a panic of a handler reaches it as the text of a
    /// [`Retry`](Outcome::Retry). A call that ends because its time limit passes, its item is cancelled or its worker
    /// shuts down is dropped, and the hook with it, before there is an outcome. A job that does not decode, or that
    /// kills its process, makes no call. To hear of all jobs that are given up, name a
    /// [queue of deaths](crate::Settings::with_deaths).
    ///
    /// When a handler of [`process`](Self::process) has run, its transaction is over: another outcome than
    /// [`Done`](Outcome::Done) does not undo it, and `Done` for a handler that has failed completes the job without its
    /// effects. `Done` without a call of [`Call::run`] completes the job unhandled, too.
    #[must_use]
    pub fn around<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let hook: Box<Hook> = Box::new(move |call| Box::pin(hook(call)));
        self.hook = Some(Arc::new(Guarded::new(hook)));
        self
    }

    fn add<J: Job>(
        mut self,
        make: impl FnOnce(&C, &Runner<D>) -> Functions + Send + 'static,
    ) -> Self {
        let mut kinds = vec![J::KIND];
        kinds.extend(J::ALIASES);
        self.entries.push(Registered {
            kinds,
            options: J::options(),
            make: Box::new(make),
        });
        self
    }

    /// Returns the handlers by the kinds that they are for.
    ///
    /// # Errors
    /// As [`Jobs::work`](crate::Jobs::work).
    pub(crate) fn into_table(self, codec: &C, runner: &Runner<D>) -> Result<Table> {
        let mut table = Table {
            functions: BTreeMap::new(),
            handling: BTreeMap::new(),
            hook: self.hook,
        };
        for entry in self.entries {
            let functions = (entry.make)(codec, runner);
            let handling = Handling {
                time_limit: entry.options.time_limit(),
                backoff: entry.options.backoff(),
            };
            for (number, name) in entry.kinds.into_iter().enumerate() {
                let is_unnamed = number > 0 && name.is_empty();
                let kind = if is_unnamed {
                    Kind::NONE
                } else {
                    kind_named(name)?
                };
                match table.functions.entry(kind.clone()) {
                    Entry::Vacant(vacant) => vacant.insert(functions.clone()),
                    Entry::Occupied(_) => {
                        let kind = name.to_owned();
                        return Err(Error::HandledTwice { kind });
                    }
                };
                table.handling.insert(kind, handling);
            }
        }
        match table.functions.len() {
            0 => Err(Error::NoHandlers),
            given if given > MAX_KINDS => Err(Error::TooHigh {
                option: "number of kinds",
                given,
                limit: MAX_KINDS,
            }),
            _ => Ok(table),
        }
    }
}

impl<D: Database, C: Clone + Send + Sync + 'static> Default for Handlers<D, C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Database, C> fmt::Debug for Handlers<D, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = self.entries.iter().flat_map(|entry| &entry.kinds);
        f.debug_list().entries(kinds).finish()
    }
}

/// Handlers by the kinds that they are for.
pub(crate) struct Table {
    functions: BTreeMap<Kind, Functions>,
    pub(crate) handling: BTreeMap<Kind, Handling>,
    hook: Option<Arc<Guarded<Box<Hook>>>>,
}

impl Table {
    /// Returns the kinds that a session with these handlers takes.
    pub(crate) fn kinds(&self) -> Arc<Kinds> {
        Arc::new(Kinds::new(self.functions.keys().cloned().collect()))
    }

    /// Returns what decodes the jobs.
    pub(crate) fn decode(&self) -> Arc<Decode> {
        let functions = self.functions.clone();
        Arc::new(move |kind: &Kind, payload| (functions[kind].decode)(kind, payload))
    }

    /// Returns what calls the handlers, with the hook around them.
    pub(crate) fn handle(self) -> Box<Handle> {
        let Self {
            functions, hook, ..
        } = self;
        Box::new(move |handed_out: HandedOut| {
            let item = handed_out.item.clone();
            let run = (functions[&item.record.kind].handle)(handed_out);
            match &hook {
                None => run,
                Some(hook) => hook(Call { item, run }),
            }
        })
    }
}
