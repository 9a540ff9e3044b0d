//! Changing items: those that are named, or all that match a filter, after saying how many.

use std::io::{self, IsTerminal};

use console::report::Change;
use console::terminal::{line, tell, tell_over};
use console::{Action, Filter, ItemsAction};
use export_queue::hc_dequeue::ItemsOf;

use crate::arguments::{ClearArguments, ItemsArguments};
use crate::commands::Context;
use crate::failure::{CommandFailure, Result};
use crate::output::print;
use crate::thread::on_thread;

/// Changes the items that were named, or all that match.
pub(crate) async fn change_items(
    context: &Context<'_>,
    action: Action,
    items: &ItemsArguments,
) -> Result<()> {
    let json = context.options.json;
    match (items.items.as_slice(), items.filter()?) {
        ([], Some(filter)) => {
            let change = match (everywhere(action), items.items_alone(&filter)) {
                (Some(action), Some(of)) => {
                    change_items_of(context, action, &items.queue, &of, items.yes).await?
                }
                _ => change_matching(context, action, items, &filter).await?,
            };
            print(&change, json)
        }
        ([], None) => Err(CommandFailure::NoItems),
        (named, _) => {
            let mut outcome = Ok(());
            for item in named {
                // An item that is gone keeps no other one from being changed.
                match change_one(context, action, items, item).await {
                    Ok(change) => print(&change, json)?,
                    Err(failure) => outcome = outcome.and(Err(failure)),
                }
            }
            outcome
        }
    }
}

/// Returns the action on all items of a group, a batch or a kind, if the library has one of its own.
fn everywhere(action: Action) -> Option<ItemsAction> {
    match action {
        Action::Cancel => Some(ItemsAction::Cancel),
        Action::Redrive => Some(ItemsAction::Redrive),
        _ => None,
    }
}

/// Removes what waits of a group, a batch or a kind.
pub(crate) async fn clear(context: &Context<'_>, arguments: &ClearArguments) -> Result<()> {
    let items = arguments.items()?;
    let action = ItemsAction::Clear;
    let change = change_items_of(context, action, &arguments.queue, &items, arguments.yes);
    print(&change.await?, context.options.json)
}

/// Changes all items of a group, a batch or a kind, wherever the action finds them.
async fn change_items_of(
    context: &Context<'_>,
    action: ItemsAction,
    queue: &str,
    items: &ItemsOf,
    yes: bool,
) -> Result<Change> {
    let console = context.console;
    let mut filter = Filter::default();
    filter.items = Some(items.clone());
    let mut counts = Vec::new();
    for place in action.places() {
        let selection = console.select(queue, *place, &filter).await?;
        counts.push((place.name(), selection.count()));
    }
    confirm(action.name(), queue, &counts, yes).await?;
    if counts.iter().all(|(_, count)| *count == 0) {
        // Those that have come since then were not confirmed.
        return Ok(Change {
            queue: queue.to_owned(),
            action: action.name().to_owned(),
            changed: 0,
            outcome: "there were none".to_owned(),
        });
    }
    Ok(console.change_items_of(queue, action, items).await?)
}

async fn change_one(
    context: &Context<'_>,
    action: Action,
    items: &ItemsArguments,
    item: &str,
) -> Result<Change> {
    let console = context.console;
    match (&items.subscription, action) {
        (None, _) => Ok(console.change(&items.queue, action, item).await?),
        (Some(subscription), Action::Purge) => {
            let purge = console.purge_letter(&items.queue, subscription, item);
            Ok(purge.await?)
        }
        (Some(_), action) => Err(CommandFailure::OnlyPurge {
            action: action.name(),
        }),
    }
}

async fn change_matching(
    context: &Context<'_>,
    action: Action,
    items: &ItemsArguments,
    filter: &Filter,
) -> Result<Change> {
    let console = context.console;
    let queue = &items.queue;
    let place = items.place.unwrap_or(action.places()[0]);
    action.check_place(place)?;
    let selection = console.select(queue, place, filter).await?;
    let count = selection.count();
    confirm(action.name(), queue, &[(place.name(), count)], items.yes).await?;
    let progress = |changed| show_progress(changed, count);
    let change = console.change_all(queue, action, &selection, progress);
    Ok(change.await?)
}

/// Says how many items match in each place, and asks whether to go on.
async fn confirm(
    action: &'static str,
    queue: &str,
    counts: &[(&str, u64)],
    yes: bool,
) -> Result<()> {
    let in_places: Vec<_> = counts
        .iter()
        .map(|(place, count)| format!("{count} {place}"))
        .collect();
    let in_places = in_places.join(", ");
    tell(line(format_args!("{in_places} items of `{queue}` match")) + "\n");
    let count = counts.iter().map(|(_, count)| count).sum();
    if yes || count == 0 {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(CommandFailure::Unconfirmed { count, action });
    }
    tell(format_args!("{action} them? [y/N] "));
    let answer = on_thread(|| io::stdin().lines().next().transpose()).await?;
    match answer
        .map_err(CommandFailure::Answer)?
        .as_deref()
        .map(str::trim)
    {
        Some("y" | "Y" | "yes") => Ok(()),
        _ => Err(CommandFailure::Declined),
    }
}

/// Says how far a change has come, if anyone may be looking.
fn show_progress(changed: u64, count: u64) {
    if io::stderr().is_terminal() {
        tell_over(format_args!("{changed} of {count}"));
        if changed >= count {
            tell("\n");
        }
    }
}
