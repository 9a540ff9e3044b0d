//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand};
use console::terminal::parse_address;
use console::{Combiner, Error, Filter, parse_items_of, parse_place};
use export_queue::hc_dequeue::{ItemsOf, PlaceKind};
use export_queue::keyspace::names::parse_queue_name;
use export_queue::keyspace::{Environment, Subspace};

use crate::limit_options::LimitOptions;

/// See and change every queue of a store.
///
/// A queue is named by the elements of its subspace with slashes between them, as `queues` prints them: `jobs`,
/// `orders/open`.
#[derive(Parser)]
#[command(
    name = "console",
    version,
    after_help = "Examples:\n  \
        console queues --db embedded:jobs.keyspace\n  \
        console list jobs --place dead --db fdb:\n  \
        console redrive jobs --reason 'connection refused' --db fdb:\n  \
        console serve --db fdb: --listen 127.0.0.1:8080\n\n\
        Exit status: 0 done, 1 failed, 2 the command is wrong, 3 there is no such queue, item or key,\n\
        4 an audit or a check found something, 5 the store is open in another process, and cannot be joined,\n\
        130 stopped by Ctrl-C, 143 stopped by SIGTERM."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,

    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Args)]
pub(crate) struct Options {
    /// The store: `embedded:<path>`, `fdb:` or `fdb:<cluster file>`.
    #[arg(long, global = true, value_name = "URL", env = "CONSOLE_DB")]
    pub(crate) db: Option<String>,

    /// Print JSON, as docs/console.md describes it.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// How long to wait for the store until it counts as gone, in seconds.
    #[arg(
        long,
        global = true,
        value_name = "SECONDS",
        default_value_t = 15,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) time_limit: u16,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List all queues, and how they stand.
    #[command(after_help = "Example:\n  console queues --db fdb:")]
    Queues(Page),

    /// Print how a queue stands.
    #[command(after_help = "Example:\n  console stats jobs --json --db fdb: | jq .queued")]
    Stats {
        /// The queue.
        queue: String,
    },

    /// List the items in a place.
    #[command(after_help = "Examples:\n  \
        console list jobs --place dead --limit 20 --db fdb:\n  \
        console list jobs --group 'tenant 7' --db fdb:\n  \
        console list jobs --kind invoice --db fdb:\n  \
        console list jobs --place dead --after <page> --db fdb:")]
    List(ListOptions),

    /// Print an item with its payload, its failures and its holder.
    #[command(after_help = "Example:\n  console show jobs 01f4… --db fdb:")]
    Show {
        /// The queue.
        queue: String,
        /// The item's reference, as `list` prints it.
        item: String,
    },

    /// Remove items, and ask sessions to let go of those that they hold. With --group, --batch or --kind alone, all of
    /// these: queued, delayed, held and dead ones.
    #[command(after_help = "Examples:\n  \
        console cancel jobs 01f4… --db fdb:\n  \
        console cancel jobs --group 'tenant 8' --db fdb:\n  \
        console cancel jobs --place delayed --payload '\"tenant\":7' --db fdb:")]
    Cancel(ItemsArguments),

    /// Remove the queued and delayed items of a group, a batch or a kind. Those that are held or dead stay.
    #[command(after_help = "Example:\n  console clear jobs --group 'tenant 8' --db fdb:")]
    Clear(ClearArguments),

    /// Make delayed items ready.
    #[command(after_help = "Example:\n  console expedite jobs --older-than 1h --db fdb:")]
    Expedite(ItemsArguments),

    /// Put dead letters back into the queue.
    #[command(after_help = "Examples:\n  \
        console redrive jobs --reason 'connection refused' --db fdb:\n  \
        console redrive jobs --all --yes --db fdb:")]
    Redrive(ItemsArguments),

    /// Remove dead letters for good.
    #[command(
        after_help = "Example:\n  console purge jobs --attempts 10 --older-than 30days --db fdb:"
    )]
    Purge(ItemsArguments),

    /// Give an item that no session holds another priority.
    #[command(after_help = "Examples:\n  \
        console prioritize jobs 01f4… 9 --db fdb:\n  \
        console prioritize jobs 01f4… -9 --db fdb:")]
    Prioritize {
        /// The queue.
        queue: String,
        /// The item's reference, as `list` prints it.
        item: String,
        /// From -9 to 9: items of a higher priority are granted first.
        #[arg(allow_negative_numbers = true)]
        priority: i8,
    },

    /// List the groups of a queue's items: their limits, how many items have a slot, and how many wait.
    #[command(after_help = "Example:\n  console groups jobs --db fdb:")]
    Groups {
        /// The queue.
        queue: String,
        #[command(flatten)]
        page: Page,
    },

    /// List the kinds of jobs that wait in a queue, and how many sessions take each.
    #[command(after_help = "Example:\n  console kinds jobs --db fdb:")]
    Kinds {
        /// The queue.
        queue: String,
    },

    /// Print how a group stands, or the default limits, or replace limits by those that are given, or remove one.
    #[command(after_help = "Examples:\n  \
        console limit jobs 'tenant 7' --at-most 4 --db fdb:\n  \
        console limit jobs 'tenant 7' --rate 100/1m --burst 10 --db fdb:\n  \
        console limit jobs 'tenant 7' --remove rate --db fdb:\n  \
        console limit jobs 'tenant 7' --reset --db fdb:\n  \
        console limit jobs --ordered --db fdb:")]
    Limit(LimitOptions),

    /// List the batches of a queue that are not complete: their members, and what each batch waits for.
    #[command(after_help = "Example:\n  console batches jobs --db fdb:")]
    Batches {
        /// The queue.
        queue: String,
        #[command(flatten)]
        page: Page,
    },

    /// Print a batch.
    #[command(after_help = "Example:\n  console batch jobs 01f4… --db fdb:")]
    Batch(BatchArguments),

    /// Close a batch whose application did not: it is complete when no member is left.
    #[command(after_help = "Example:\n  console close-batch jobs 01f4… --db fdb:")]
    CloseBatch(BatchArguments),

    /// Cancel a batch: it takes no more members, and its callback is not enqueued. Its members go on.
    #[command(after_help = "Example:\n  console cancel-batch jobs 01f4… --db fdb:")]
    CancelBatch(BatchArguments),

    /// Let a dedupe id be enqueued again that is retained after the completion of its item.
    #[command(after_help = "Example:\n  console release-dedupe jobs 'invoice 7' --db fdb:")]
    ReleaseDedupe {
        /// The queue.
        queue: String,
        /// The id: text, or `0x` and hexadecimal digits.
        id: String,
    },

    /// Grant nothing more of a queue, or of a group of its items, until it is resumed. What is held is not touched.
    #[command(after_help = "Examples:\n  \
        console pause jobs --db fdb:\n  \
        console pause jobs --group 'tenant 7' --db fdb:")]
    Pause(Target),

    /// Let a paused queue or group go on.
    #[command(after_help = "Examples:\n  \
        console resume jobs --group 'tenant 7' --db fdb:\n  \
        console resume events --subscription mirror --db fdb:")]
    Resume(Target),

    /// Print the settings of a queue, or change those that are given. Sessions follow within a heartbeat.
    #[command(
        after_help = "Example:\n  console configure jobs --max-attempts 10 --keep-done 1day --db fdb:"
    )]
    Configure {
        /// The queue.
        queue: String,
        #[command(flatten)]
        settings: SettingsOptions,
    },

    /// List the sessions of a queue: which of them live, and what each holds since when.
    #[command(after_help = "Example:\n  console sessions jobs --db fdb:")]
    Sessions {
        /// The queue.
        queue: String,
        #[command(flatten)]
        page: Page,
    },

    /// List the schedules of a queue.
    #[command(after_help = "Example:\n  console schedules jobs --db fdb:")]
    Schedules {
        /// The queue.
        queue: String,
        /// Only those of this owner.
        #[arg(long)]
        owner: Option<String>,
        #[command(flatten)]
        page: Page,
    },

    /// Set the next time of a schedule right, after a wall clock was ahead. What has fired does not fire again.
    #[command(after_help = "Example:\n  console reschedule jobs 'new year' --db fdb:")]
    Reschedule {
        /// The queue.
        queue: String,
        /// The name of the schedule.
        schedule: String,
    },

    /// Check a queue against itself. Exit status 4: something was found.
    #[command(after_help = "Example:\n  console audit jobs --db fdb:")]
    Audit {
        /// The queue.
        queue: String,
    },

    /// Check a queue against itself, and repair what can be repaired. Run one at a time.
    #[command(after_help = "Example:\n  console repair jobs --db fdb:")]
    Repair {
        /// The queue.
        queue: String,
    },

    /// Print how a combine queue stands, what it has set aside, or what it knows of a key.
    #[command(after_help = "Examples:\n  \
        console combine counts --db fdb:\n  \
        console combine counts '[\"2026-11-22\", 7]' --combiner sum --db fdb:\n  \
        console combine counts --set-aside --db fdb:")]
    Combine(CombineOptions),

    /// Print how the subscriptions of an export queue stand: their lag, and which one holds the log back.
    #[command(after_help = "Example:\n  console exports events --db fdb:")]
    Exports {
        /// The queue.
        queue: String,
    },

    /// List maps of applications' own data: their codecs, how many rows they have, and their indexes.
    #[command(after_help = "Example:\n  console maps --db fdb:")]
    Maps(Page),

    /// List keys, decoded by the schema of the queue or the map that they belong to.
    #[command(after_help = "Examples:\n  \
        console ls jobs --db fdb:\n  \
        console ls jobs/d --db fdb:")]
    Ls {
        /// What the keys begin with, in the form of a queue's name. Without it, all keys.
        prefix: Option<String>,
        #[command(flatten)]
        page: Page,
    },

    /// Print a key and its value.
    #[command(after_help = "Example:\n  console get jobs/m --db fdb:")]
    Get {
        /// The key as `ls` prints it: elements with slashes between them, or `raw:` and hexadecimal digits.
        key: String,
    },

    /// Copy an embedded store to a new file, as it is at one version.
    #[command(after_help = "Example:\n  console backup copy.keyspace --db embedded:jobs.keyspace")]
    Backup {
        /// The new file.
        file: PathBuf,
    },

    /// Check the files of an embedded store, and change none of them. Exit status 4: they are damaged.
    #[command(
        long_about = "Check the files of an embedded store, and change none of them: the checksums of all blocks, the \
                      order and the number of all rows, and the whole log. Exit status 4: they are \
                      damaged.",
        after_help = "Example:\n  console check --db embedded:jobs.keyspace"
    )]
    Check,

    /// Own an embedded store until stopped by Ctrl-C or SIGTERM, so that other processes are its clients.
    #[command(
        long_about = "Own an embedded store until stopped by Ctrl-C or SIGTERM, so that other processes are its clients: \
                      applications that start and stop often then do not hand it over. If another process owns it, \
                      becomes the owner once that one has ended.",
        after_help = "Example:\n  console own --db embedded:jobs.keyspace"
    )]
    Own,

    /// Serve pages and JSON about the store until stopped by Ctrl-C or SIGTERM.
    #[command(
        after_help = "Example:\n  console serve --db fdb: --listen 127.0.0.1:8080 --allow-changes"
    )]
    Serve(ServeOptions),
}

/// A page of a listing.
#[derive(Args)]
pub(crate) struct Page {
    /// How many rows to show.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Where to go on, as the page before has printed it.
    #[arg(long, value_name = "PAGE")]
    after: Option<String>,
}

impl Page {
    pub(crate) fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit.into()
    }
}

/// Which items to list.
#[derive(Args)]
pub(crate) struct ListOptions {
    /// The queue.
    pub(crate) queue: String,
    /// Where they are.
    #[arg(long, value_parser = place(), default_value = PlaceKind::Queued.name())]
    pub(crate) place: PlaceKind,
    #[command(flatten)]
    pub(crate) items: ItemsOfArguments,
    /// The subscription of an export queue, whose dead letters are listed.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["group", "batch", "kind"])]
    pub(crate) subscription: Option<String>,
    #[command(flatten)]
    pub(crate) page: Page,
}

/// Items that belong together.
#[derive(Args)]
pub(crate) struct ItemsOfArguments {
    /// Only the items of this group: text, or `0x` and hexadecimal digits.
    #[arg(long, value_name = "GROUP", conflicts_with_all = ["batch", "kind"])]
    group: Option<String>,
    /// Only the members of this batch, by the reference that `batches` prints.
    #[arg(long, value_name = "BATCH", conflicts_with = "kind")]
    batch: Option<String>,
    /// Only the items of this kind.
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
}

impl ItemsOfArguments {
    /// Returns the items, or `None` if all were asked for.
    pub(crate) fn items(&self) -> Result<Option<ItemsOf>, Error> {
        parse_items_of(
            self.group.as_deref(),
            self.batch.as_deref(),
            self.kind.as_deref(),
        )
    }
}

/// What to print of a combine queue.
#[derive(Args)]
pub(crate) struct CombineOptions {
    /// The queue.
    pub(crate) queue: String,
    /// A key, as JSON. A word without quotes is a string.
    pub(crate) key: Option<String>,
    /// How the queue combines its updates: without it, the exact value of a key with pending updates is not known.
    #[arg(long, value_enum, requires = "key")]
    pub(crate) combiner: Option<Combiner>,
    /// List what was set aside.
    #[arg(long, conflicts_with = "key")]
    pub(crate) set_aside: bool,
    #[command(flatten)]
    pub(crate) page: Page,
}

/// How to serve.
#[derive(Args)]
pub(crate) struct ServeOptions {
    /// The address to listen on. Nothing but this machine reaches a loopback address.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = parse_address)]
    pub(crate) listen: SocketAddr,
    /// Let pages change queues. Without this option they only show them.
    #[arg(long)]
    pub(crate) allow_changes: bool,
    /// A name under which the pages may be asked for, beside the address and localhost. Can be repeated.
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
    /// Own an embedded store like an application, as `own` does. Without this option, an application that has the store
    /// open owns it.
    #[arg(long)]
    pub(crate) own: bool,
}

/// A queue, or a subscription of an export queue.
#[derive(Args)]
pub(crate) struct Target {
    /// The queue.
    pub(crate) queue: String,
    /// The subscription of an export queue.
    #[arg(long, value_name = "NAME")]
    pub(crate) subscription: Option<String>,
    /// A group of the queue's items: text, or `0x` and hexadecimal digits.
    #[arg(long, value_name = "GROUP", conflicts_with = "subscription")]
    pub(crate) group: Option<String>,
}

/// Which items to change: those that are named, or those that match every filter.
#[derive(Args)]
pub(crate) struct ItemsArguments {
    /// The queue.
    pub(crate) queue: String,
    /// The items, by the references that `list` prints. Of a combine queue what `combine --set-aside` prints.
    #[arg(conflicts_with_all = ["group", "batch", "kind"])]
    pub(crate) items: Vec<String>,
    /// All items in the place.
    #[arg(long, conflicts_with = "items")]
    all: bool,
    /// The place to look in, if it is not the only one. Without it, `cancel` looks everywhere for the items of a group,
    /// a batch or a kind, and for those that match another filter among queued ones.
    #[arg(long, value_parser = place(), conflicts_with = "items")]
    pub(crate) place: Option<PlaceKind>,
    #[command(flatten)]
    of: ItemsOfArguments,
    /// Those whose last failure contains this text.
    #[arg(long, value_name = "TEXT", conflicts_with = "items")]
    reason: Option<String>,
    /// Those whose payload, as JSON, contains this text.
    #[arg(long, value_name = "TEXT", conflicts_with = "items")]
    payload: Option<String>,
    /// Those that failed at least this often.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "items")]
    attempts: u64,
    /// Those that were enqueued longer ago than this: `90s`, `2h`, `1day`.
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "items")]
    older_than: Option<Duration>,
    /// The subscription of an export queue whose dead letters are named.
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["all", "place", "group", "batch", "kind", "reason", "payload", "attempts", "older_than"]
    )]
    pub(crate) subscription: Option<String>,
    /// Change them without asking.
    #[arg(long)]
    pub(crate) yes: bool,
}

impl ItemsArguments {
    /// Returns which items match. `None`: neither a filter nor `--all` was given.
    pub(crate) fn filter(&self) -> Result<Option<Filter>, Error> {
        let mut filter = Filter::default();
        filter.items = self.of.items()?;
        filter.reason.clone_from(&self.reason);
        filter.payload.clone_from(&self.payload);
        filter.attempts = self.attempts;
        let now = Environment::system().wall();
        let before = |age| now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        filter.enqueued_before = self.older_than.map(before);
        if filter.is_empty() && !self.all {
            return Ok(None);
        }
        Ok(Some(filter))
    }

    /// Returns the items of a group, a batch or a kind, if nothing else narrows which of them match.
    pub(crate) fn items_alone(&self, filter: &Filter) -> Option<ItemsOf> {
        let mut rest = filter.clone();
        let items = rest.items.take();
        if self.place.is_some() || !rest.is_empty() {
            return None;
        }
        items
    }
}

/// What to clear.
#[derive(Args)]
#[command(group(ArgGroup::new("of").required(true).args(["group", "batch", "kind"])))]
pub(crate) struct ClearArguments {
    /// The queue.
    pub(crate) queue: String,
    #[command(flatten)]
    of: ItemsOfArguments,
    /// Change them without asking.
    #[arg(long)]
    pub(crate) yes: bool,
}

impl ClearArguments {
    pub(crate) fn items(&self) -> Result<ItemsOf, Error> {
        let items = self.of.items()?;
        Ok(items.expect("one of the group `of` is required"))
    }
}

/// A batch.
#[derive(Args)]
pub(crate) struct BatchArguments {
    /// The queue.
    pub(crate) queue: String,
    /// The batch's reference, as `batches` prints it.
    pub(crate) batch: String,
}

/// The settings to change.
#[derive(Args)]
pub(crate) struct SettingsOptions {
    /// How long a session lives without a sign of life: `10s`.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) lease: Option<Duration>,
    /// How many attempts an item has before it becomes a dead letter.
    #[arg(long, value_name = "N")]
    pub(crate) max_attempts: Option<u32>,
    /// With how many sessions an item may die before it becomes a dead letter.
    #[arg(long, value_name = "N")]
    pub(crate) max_deaths: Option<u32>,
    /// How often an item may be granted in all before it becomes a dead letter.
    #[arg(long, value_name = "N")]
    pub(crate) max_deliveries: Option<u32>,
    /// How long a dedupe id refuses repetitions after its item was completed: `1h`.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) dedupe_retention: Option<Duration>,
    /// How long items that are done are kept: `1day`; `0s` keeps none.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) keep_done: Option<Duration>,
    /// The queue that gets the deaths of this one's items, by its name.
    #[arg(long, value_name = "QUEUE", value_parser = parse_deaths)]
    pub(crate) deaths: Option<Subspace>,
    /// No queue gets them.
    #[arg(long, conflicts_with = "deaths")]
    pub(crate) no_deaths: bool,
}

impl SettingsOptions {
    /// Returns whether nothing is to be changed.
    pub(crate) fn is_empty(&self) -> bool {
        let times = [self.lease, self.dedupe_retention, self.keep_done];
        let numbers = [self.max_attempts, self.max_deaths, self.max_deliveries];
        times.iter().all(Option::is_none)
            && numbers.iter().all(Option::is_none)
            && self.deaths.is_none()
            && !self.no_deaths
    }
}

fn parse_deaths(name: &str) -> Result<Subspace, &'static str> {
    parse_queue_name(name).ok_or("expected the name of a queue, as `queues` shows it")
}

/// Returns the parser of a place's name.
fn place() -> impl TypedValueParser<Value = PlaceKind> {
    PossibleValuesParser::new(PlaceKind::ALL.map(PlaceKind::name))
        .try_map(|name| parse_place(&name))
}

/// Parses a span of time.
fn parse_time(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text).map_err(|_| "expected a time with its unit: 90s, 2h or 1day")
}
