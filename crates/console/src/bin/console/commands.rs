//! What each command does.

use std::fs;
use std::path::PathBuf;

use console::{Action, Console, WebOptions, terminal};
use export_queue::hc_dequeue::Settings;
use export_queue::keyspace::Store;
use export_queue::keyspace::embedded::{Role, is_file_of};
use export_queue::keyspace::url::StoreUrl;
use tokio::net::TcpListener;

use crate::arguments::{
    CombineOptions, Command, ListOptions, Options, ServeOptions, SettingsOptions, Target,
};
use crate::bulk::{change_items, clear};
use crate::failure::{CommandFailure, Result, Status};
use crate::limit_options::LimitOptions;
use crate::output::{print, print_line};
use crate::thread::on_thread;

/// What commands work on.
pub(crate) struct Context<'a> {
    pub(crate) store: &'a Store,
    pub(crate) console: &'a Console,
    pub(crate) options: &'a Options,
}

/// Carries out a command.
pub(crate) async fn run(context: &Context<'_>, command: Command) -> Result<Status> {
    let console = context.console;
    let json = context.options.json;
    match command {
        Command::Queues(page) => print(&console.queues(page.after(), page.limit()).await?, json)?,
        Command::Stats { queue } | Command::Exports { queue } => {
            print(&console.queue(&queue).await?, json)?;
        }
        Command::List(options) => list(context, &options).await?,
        Command::Show { queue, item } => print(&console.item(&queue, &item).await?, json)?,
        Command::Cancel(items) => change_items(context, Action::Cancel, &items).await?,
        Command::Clear(arguments) => clear(context, &arguments).await?,
        Command::Expedite(items) => change_items(context, Action::Expedite, &items).await?,
        Command::Redrive(items) => change_items(context, Action::Redrive, &items).await?,
        Command::Purge(items) => change_items(context, Action::Purge, &items).await?,
        Command::Prioritize {
            queue,
            item,
            priority,
        } => print(&console.prioritize(&queue, &item, priority).await?, json)?,
        Command::Groups { queue, page } => {
            let groups = console.groups(&queue, page.after(), page.limit());
            print(&groups.await?, json)?;
        }
        Command::Kinds { queue } => print(&console.kinds(&queue).await?, json)?,
        Command::Limit(options) => limit(context, &options).await?,
        Command::Batches { queue, page } => {
            let batches = console.batches(&queue, page.after(), page.limit());
            print(&batches.await?, json)?;
        }
        Command::Batch(of) => print(&console.batch(&of.queue, &of.batch).await?, json)?,
        Command::CloseBatch(of) => print(&console.close_batch(&of.queue, &of.batch).await?, json)?,
        Command::CancelBatch(of) => {
            print(&console.cancel_batch(&of.queue, &of.batch).await?, json)?;
        }
        Command::ReleaseDedupe { queue, id } => {
            print(&console.release_dedupe(&queue, &id).await?, json)?;
        }
        Command::Pause(target) => set_paused(context, &target, true).await?,
        Command::Resume(target) => set_paused(context, &target, false).await?,
        Command::Configure { queue, settings } => configure(context, &queue, &settings).await?,
        Command::Sessions { queue, page } => {
            let sessions = console.sessions(&queue, page.after(), page.limit());
            print(&sessions.await?, json)?;
        }
        Command::Schedules { queue, owner, page } => {
            let owner = owner.as_deref();
            let schedules = console.schedules(&queue, owner, page.after(), page.limit());
            print(&schedules.await?, json)?;
        }
        Command::Reschedule { queue, schedule } => {
            print(&console.reschedule(&queue, &schedule).await?, json)?;
        }
        Command::Audit { queue } => return audit(context, &queue, false).await,
        Command::Repair { queue } => return audit(context, &queue, true).await,
        Command::Combine(options) => combine(context, &options).await?,
        Command::Maps(page) => print(&console.maps(page.after(), page.limit()).await?, json)?,
        Command::Ls { prefix, page } => {
            let keys = console.keys(prefix.as_deref(), page.after(), page.limit());
            print(&keys.await?, json)?;
        }
        Command::Get { key } => print(&console.key(&key).await?, json)?,
        Command::Backup { file } => backup(context, file).await?,
        Command::Own => own(context.store).await?,
        Command::Serve(options) => serve(context, &options).await?,
        Command::Check => unreachable!("a store is checked before it is opened"),
    }
    Ok(Status::Done)
}

/// Keeps a store open until the program is asked to stop.
async fn own(store: &Store) -> Result<()> {
    let Store::Embedded(store) = store else {
        return Err(CommandFailure::NoFileToOwn);
    };
    let role = match store.role() {
        Role::Owner => "this process owns the store",
        _ => "another process owns the store, and this one is its client until it ends",
    };
    let stopped = terminal::stopped();
    print_line(&format!("{role}; stop with Ctrl-C or SIGTERM"))?;
    // Without signals it owns the store until it is killed.
    if stopped.await.is_err() {
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// Serves the pages until the program is asked to stop.
async fn serve(context: &Context<'_>, options: &ServeOptions) -> Result<()> {
    let address = options.listen;
    let cannot_listen = |cause| CommandFailure::Listen { address, cause };
    let listener = TcpListener::bind(address).await.map_err(cannot_listen)?;
    let bound = listener.local_addr().map_err(cannot_listen)?;
    let hosts = options.host.iter();
    let mut web = WebOptions::new().allow_changes(options.allow_changes);
    for host in hosts {
        web = web.allow_host(host);
    }
    let signals = terminal::stopped();
    print_line(&format!(
        "listening on http://{bound}; stop with Ctrl-C or SIGTERM"
    ))?;
    let stopped = async {
        // Without signals it serves until it is killed.
        if signals.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let served = console::serve(listener, context.console.clone(), web, stopped);
    served.await.map_err(cannot_listen)
}

async fn list(context: &Context<'_>, options: &ListOptions) -> Result<()> {
    let console = context.console;
    let queue = &options.queue;
    let after = options.page.after();
    let limit = options.page.limit();
    let place = options.place.name();
    let items = match (&options.subscription, options.items.items()?) {
        (Some(name), _) => console.letters(queue, name, after, limit).await?,
        (None, Some(items)) => {
            let page = console.items_of(queue, place, &items, after, limit);
            page.await?
        }
        (None, None) => console.items(queue, place, after, limit).await?,
    };
    print(&items, context.options.json)
}

async fn limit(context: &Context<'_>, options: &LimitOptions) -> Result<()> {
    let console = context.console;
    let json = context.options.json;
    let queue = &options.queue;
    let group = options.group.as_deref();
    if let Some(limits) = options.limits() {
        return print(&console.limit(queue, group, &limits).await?, json);
    }
    if let Some(limit) = options.remove {
        return print(&console.remove_limit(queue, group, limit).await?, json);
    }
    match group {
        Some(group) if options.reset => print(&console.reset_limits(queue, group).await?, json),
        Some(group) => print(&console.group(queue, group).await?, json),
        None => print(&console.default_limits(queue).await?, json),
    }
}

async fn combine(context: &Context<'_>, options: &CombineOptions) -> Result<()> {
    let console = context.console;
    let queue = &options.queue;
    let json = context.options.json;
    if let Some(key) = &options.key {
        let state = console.combine_key(queue, key, options.combiner);
        return print(&state.await?, json);
    }
    if options.set_aside {
        let page = console.set_aside(queue, options.page.after(), options.page.limit());
        return print(&page.await?, json);
    }
    print(&console.queue(queue).await?, json)
}

async fn set_paused(context: &Context<'_>, target: &Target, paused: bool) -> Result<()> {
    let console = context.console;
    let queue = &target.queue;
    let change = match (&target.subscription, &target.group) {
        (Some(name), _) => console.set_subscription_paused(queue, name, paused).await?,
        (None, Some(group)) => console.set_group_paused(queue, group, paused).await?,
        (None, None) => console.set_paused(queue, paused).await?,
    };
    print(&change, context.options.json)
}

async fn configure(context: &Context<'_>, queue: &str, options: &SettingsOptions) -> Result<()> {
    let console = context.console;
    let settings = if options.is_empty() {
        console.settings(queue).await?
    } else {
        console
            .configure(queue, |settings| edit(settings, options))
            .await?
    };
    print(&settings, context.options.json)
}

/// Returns settings with those that were given.
fn edit(settings: Settings, options: &SettingsOptions) -> Settings {
    let stored = settings.clone();
    let settings = match &options.deaths {
        Some(queue) => settings.with_deaths(queue.clone()),
        None if options.no_deaths => settings.without_deaths(),
        None => settings,
    };
    settings
        .with_lease(options.lease.unwrap_or(stored.lease()))
        .with_max_attempts(options.max_attempts.unwrap_or(stored.max_attempts()))
        .with_max_deaths(options.max_deaths.unwrap_or(stored.max_deaths()))
        .with_max_deliveries(options.max_deliveries.unwrap_or(stored.max_deliveries()))
        .with_dedupe_retention(
            options
                .dedupe_retention
                .unwrap_or(stored.dedupe_retention()),
        )
        .with_keep_done(options.keep_done.unwrap_or(stored.keep_done()))
}

async fn audit(context: &Context<'_>, queue: &str, repair: bool) -> Result<Status> {
    let audit = context.console.audit(queue, repair).await?;
    print(&audit, context.options.json)?;
    Ok(if audit.findings.is_empty() {
        Status::Done
    } else {
        Status::Found
    })
}

async fn backup(context: &Context<'_>, file: PathBuf) -> Result<()> {
    let Store::Embedded(store) = context.store.clone() else {
        return Err(CommandFailure::NoFile);
    };
    if let Some(Ok(StoreUrl::Embedded { path })) = context.options.db.as_deref().map(str::parse)
        && is_file_of(&file, &path)
    {
        return Err(CommandFailure::OfStore { path: file });
    }
    if fs::symlink_metadata(&file).is_ok() {
        return Err(CommandFailure::Exists { path: file });
    }
    let copied = on_thread(move || store.backup(&file)).await?;
    copied.map_err(CommandFailure::Backup)
}
