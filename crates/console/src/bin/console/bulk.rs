//! Changing items: those that are named, or all that match a filter, after saying how many.

use std::io::{self, IsTerminal};

use console::report::Change;
use console::terminal::{line, tell, tell_over};
use console::{Action, Filter};

use crate::arguments::ItemsArguments;
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
            let change = change_matching(context, action, items, &filter).await?;
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
    confirm(action, place.name(), queue, count, items.yes).await?;
    let progress = |changed| show_progress(changed, count);
    let change = console.change_all(queue, action, &selection, progress);
    Ok(change.await?)
}

/// Says how many items match, and asks whether to go on.
async fn confirm(action: Action, place: &str, queue: &str, count: u64, yes: bool) -> Result<()> {
    tell(line(format_args!("{count} {place} items of `{queue}` match")) + "\n");
    if yes || count == 0 {
        return Ok(());
    }
    let action = action.name();
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
