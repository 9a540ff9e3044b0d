//! Changing single items.

use export_queue::keyspace::Tx;
use export_queue::keyspace::names::parse_bytes;

use super::action::{Action, apply};
use crate::error::{Error, Result};
use crate::look::{
    Combine, Console, Dequeue, Found, missing_item, parse_aside, parse_item, parse_sequence,
};
use crate::report::Change;

impl Console {
    /// Changes one item. Of a combine queue it redrives or purges what was set aside.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], a malformed reference or one of another queue;
    /// [`Error::Missing`] if the item is not where the action finds it; those of the store.
    pub async fn change(&self, name: &str, action: Action, item: &str) -> Result<Change> {
        let outcome = match self.find(name).await? {
            Found::Dequeue(found) => self.change_item(&found, action, item).await?,
            Found::Combine(found) if matches!(action, Action::Redrive | Action::Purge) => {
                self.change_aside(&found, action, item).await?
            }
            other => return Err(other.has_no(name, action.what())),
        };
        Ok(Change::new(name, action.name(), 1, outcome))
    }

    async fn change_item(
        &self,
        found: &Dequeue,
        action: Action,
        item: &str,
    ) -> Result<&'static str> {
        let reference = &parse_item(item)?;
        let change = |tr| async move { apply(&tr, found, action, reference).await };
        let outcome = self.runner.run(change).await?;
        outcome.ok_or_else(|| match action {
            Action::Cancel | Action::Expedite => missing_item(item),
            Action::Redrive | Action::Purge => missing("dead letter", item),
        })
    }

    async fn change_aside(
        &self,
        found: &Combine,
        action: Action,
        id: &str,
    ) -> Result<&'static str> {
        let queue = &found.queue;
        let aside = &parse_aside(id)?;
        let change = |tr: Tx<_>| async move {
            match action {
                Action::Redrive => queue.redrive(&tr, aside).await,
                _ => queue.purge(&tr, aside).await,
            }
        };
        match (self.runner.run(change).await?, action) {
            (false, _) => Err(missing("record that was set aside", id)),
            (true, Action::Redrive) => Ok("it is tried again"),
            (true, _) => Ok("removed for good"),
        }
    }

    /// Removes a dead letter of a subscription. To redrive one takes its exporter, which the application has.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Malformed`] for a sequence that is none,
    /// [`Error::Missing`], and those of the store.
    pub async fn purge_letter(
        &self,
        name: &str,
        subscription: &str,
        sequence: &str,
    ) -> Result<Change> {
        let found = self.find_export(name, "subscriptions").await?;
        let subscription = &self.subscription(&found, subscription).await?;
        let parsed = &parse_sequence(sequence)?;
        let purge = |tr| async move { subscription.purge(&tr, parsed).await };
        if self.runner.run(purge).await? {
            Ok(Change::new(name, "purge", 1, "removed for good"))
        } else {
            Err(missing("dead letter", sequence))
        }
    }

    /// Gives an item that is queued, delayed or dead another priority.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], a priority out of range, a malformed reference or one of another
    /// queue; [`Error::Missing`] if no such item is queued, delayed or dead; those of the store.
    pub async fn prioritize(&self, name: &str, item: &str, priority: i8) -> Result<Change> {
        let found = &self.find_dequeue(name, "priorities").await?;
        let reference = &parse_item(item)?;
        let set = |tr| async move { found.queue.set_priority(&tr, reference, priority).await };
        if self.runner.run(set).await? {
            let outcome = &format!("it has priority {priority}");
            return Ok(Change::new(name, "prioritize", 1, outcome));
        }
        Err(Error::Missing {
            what: "item",
            given: item.to_owned(),
            hint: "a session holds it, or it is done or was cancelled",
        })
    }

    /// Lets a dedupe id be enqueued again that is retained after the completion of its item. The id is text, or `0x`
    /// and hexadecimal digits.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], an id of an invalid length, [`Error::Missing`] if the id is not
    /// retained, and those of the store.
    pub async fn release_dedupe(&self, name: &str, id: &str) -> Result<Change> {
        let found = &self.find_dequeue(name, "dedupe ids").await?;
        let bytes = &parse_bytes(id);
        let release = |tr| async move { found.queue.release_dedupe(&tr, bytes).await };
        if self.runner.run(release).await? {
            let outcome = "the id can be enqueued again";
            return Ok(Change::new(name, "release-dedupe", 0, outcome));
        }
        Err(Error::Missing {
            what: "retained dedupe id",
            given: id.to_owned(),
            hint: "it is free, or an item has it: cancel or purge that item",
        })
    }
}

fn missing(what: &'static str, given: &str) -> Error {
    Error::Missing {
        what,
        given: given.to_owned(),
        hint: "it was redriven or purged, or is elsewhere",
    }
}
