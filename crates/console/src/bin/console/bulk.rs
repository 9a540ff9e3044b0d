//! Changing items: those that are named, or all that match a filter, after saying how many.

use std::io::{self, IsTerminal, Write};

use console::report::Change;
use console::{Action, Filter};

use crate::arguments::Items;
use crate::commands::Context;
use crate::failure::{Failure, Result};
use crate::output::print;

/// Changes the items that were named, or all that match.
pub(crate) async fn change_items(
    context: &Context<'_>,
    action: Action,
    items: &Items,
) -> Result<()> {
    let json = context.options.json;
    match (items.items.as_slice(), items.filter()) {
        ([], Some(filter)) => {
            let change = change_matching(context, action, items, &filter).await?;
            print(&change, json)
        }
        ([], None) => Err(Failure::NoItems),
        (named, _) => {
            for item in named {
                let change = change_one(context, action, items, item).await?;
                print(&change, json)?;
            }
            Ok(())
        }
    }
}

async fn change_one(
    context: &Context<'_>,
    action: Action,
    items: &Items,
    item: &str,
) -> Result<Change> {
    let console = context.console;
    match (&items.subscription, action) {
        (None, _) => Ok(console.change(&items.queue, action, item).await?),
        (Some(subscription), Action::Purge) => {
            let purge = console.purge_letter(&items.queue, subscription, item);
            Ok(purge.await?)
        }
        (Some(_), action) => Err(Failure::OnlyPurge {
            action: action.name(),
        }),
    }
}

async fn change_matching(
    context: &Context<'_>,
    action: Action,
    items: &Items,
    filter: &Filter,
) -> Result<Change> {
    let (console, queue) = (context.console, &items.queue);
    let place = items.place.unwrap_or(action.places()[0]);
    action.check_place(place)?;
    let count = console.count(queue, place, filter).await?;
    confirm(action, place.name(), queue, count, items.yes)?;
    let progress = |changed| show_progress(changed, count);
    let change = console.change_all(queue, action, place, filter, progress);
    Ok(change.await?)
}

/// Says how many items match, and asks whether to go on.
fn confirm(action: Action, place: &str, queue: &str, count: u64, yes: bool) -> Result<()> {
    let mut out = io::stderr();
    let _ = writeln!(out, "{count} {place} items of `{queue}` match");
    if yes || count == 0 {
        return Ok(());
    }
    let action = action.name();
    if !io::stdin().is_terminal() {
        return Err(Failure::Unconfirmed { count, action });
    }
    let _ = write!(out, "{action} them? [y/N] ");
    let _ = out.flush();
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(Failure::Print)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::Declined),
    }
}

/// Says how far a change has come, if anyone may be looking.
fn show_progress(changed: u64, count: u64) {
    let mut out = io::stderr();
    if out.is_terminal() {
        let end = if changed < count { "" } else { "\n" };
        let _ = write!(out, "\r{changed} of {count}{end}");
        let _ = out.flush();
    }
}
