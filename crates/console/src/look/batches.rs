//! Looking at batches: how they stand, and what each waits for.

use std::time::SystemTime;

use export_queue::hc_dequeue::{BatchRef, BatchStatus};
use export_queue::keyspace::Listed;

use super::console::{Console, MAX_RECORDS, next_page};
use crate::error::{Error, Result};
use crate::report;

/// What a queue of another recipe does not have.
pub(crate) const BATCHES: &str = "batches";

impl Console {
    /// Returns a page of the batches of a queue that are not complete: up to `limit`, and at most 100, after a batch.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], a malformed reference or one of another queue, and those of the
    /// store.
    pub async fn batches(
        &self,
        name: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<report::Batches> {
        let found = &self.find_dequeue(name, BATCHES).await?;
        let after = &after.map(parse_batch).transpose()?;
        let limit = limit.clamp(1, MAX_RECORDS);
        let read = |tr| async move { found.queue.batches(&tr, after.as_ref(), limit + 1).await };
        let mut batches = self.reader.run(read).await?.batches;
        let next = next_page(&mut batches, limit).map(|last| last.id.to_string());
        let now = self.reader.environment().wall();
        let batches = batches.iter().map(|batch| listed_batch(batch, now));
        Ok(report::Batches {
            queue: found.name.clone(),
            batches: batches.collect(),
            next,
        })
    }

    /// Returns how a batch stands, or how it has ended, while that is kept.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Missing`] if it is not kept or never existed, a malformed
    /// reference or one of another queue, rows that do not decode, and those of the store.
    pub async fn batch(&self, name: &str, batch: &str) -> Result<report::Batch> {
        let found = &self.find_dequeue(name, BATCHES).await?;
        let reference = &parse_batch(batch)?;
        let read = |tr| async move { found.queue.batch_status(&tr, reference).await };
        let status = self.reader.run(read).await?;
        let status = status.ok_or_else(|| missing_batch(batch))?;
        Ok(batch_of(&status, self.reader.environment().wall()))
    }
}

/// Returns the reference that a listing has given.
pub(crate) fn parse_batch(text: &str) -> Result<BatchRef> {
    text.parse().map_err(|_| Error::Malformed {
        what: "batch",
        given: text.to_owned(),
        reason: "expected a reference as `batches` prints it".to_owned(),
    })
}

pub(crate) fn missing_batch(batch: &str) -> Error {
    Error::Missing {
        what: "batch",
        given: batch.to_owned(),
        hint: "it is complete, or it never was",
    }
}

fn listed_batch(listed: &Listed<BatchRef, BatchStatus>, now: SystemTime) -> report::Batch {
    match &listed.value {
        Ok(status) => batch_of(status, now),
        Err(error) => report::Batch {
            batch: listed.id.to_string(),
            state: "unreadable".to_owned(),
            problem: Some(error.to_string()),
            ..report::Batch::default()
        },
    }
}

fn batch_of(status: &BatchStatus, now: SystemTime) -> report::Batch {
    let state = if status.is_cancelled {
        "cancelled"
    } else if status.end.is_some() {
        "complete"
    } else if status.is_open {
        "open"
    } else {
        "closed"
    };
    let callback = status.end.and_then(|end| end.callback);
    let age = now.duration_since(status.opened).unwrap_or_default();
    report::Batch {
        batch: status.batch.to_string(),
        state: state.to_owned(),
        waits_for: match status.end {
            Some(_) => None,
            None => Some(waits_for(status)),
        },
        pending: status.pending,
        completed: status.counts.completed,
        dead: status.counts.dead,
        cancelled: status.counts.cancelled,
        opened: Some(status.opened.into()),
        age_seconds: Some(age.as_secs_f64()),
        has_callback: status.has_callback,
        ended: status.end.map(|end| end.at.into()),
        callback: callback.map(|item| item.to_string()),
        dead_letters_stay: status.dead_letters_stay,
        parent: status.parent.map(|parent| parent.to_string()),
        problem: None,
    }
}

/// Returns what has to happen before a batch is complete.
fn waits_for(status: &BatchStatus) -> String {
    if status.is_open {
        return "to be closed".to_owned();
    }
    let dead = if status.dead_letters_stay {
        status.counts.dead.min(status.pending)
    } else {
        0
    };
    let running = status.pending - dead;
    let members = counted(running, "member");
    let letters = counted(dead, "dead letter") + " to be redriven, cancelled or purged";
    match (running, dead) {
        (0, 0) => "a session".to_owned(),
        (_, 0) => members,
        (0, _) => letters,
        _ => format!("{members}, and {letters}"),
    }
}

fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}
