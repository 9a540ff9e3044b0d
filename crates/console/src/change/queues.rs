//! Changing queues themselves: pauses, settings and schedules.

use export_queue::hc_dequeue::{Error as DequeueError, Scheduled, Settings};
use export_queue::keyspace::Tx;

use crate::error::{Error, Result};
use crate::look::Console;
use crate::report::{self, Change};

impl Console {
    /// Pauses a queue, or lets it go on.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], and those of the store.
    pub async fn set_paused(&self, name: &str, paused: bool) -> Result<Change> {
        let found = &self.find_dequeue(name, "pause").await?;
        let change = |tr: Tx<_>| async move {
            if paused {
                found.queue.pause(&tr);
            } else {
                found.queue.resume(&tr);
            }
            Ok::<_, Error>(())
        };
        self.runner.run(change).await?;
        Ok(if paused {
            Change::new(
                name,
                "pause",
                0,
                "nothing is granted until the queue is resumed",
            )
        } else {
            Change::new(name, "resume", 0, "items are granted again")
        })
    }

    /// Pauses a subscription of an export queue, or lets it go on.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Missing`], and those of the store.
    pub async fn set_subscription_paused(
        &self,
        name: &str,
        subscription: &str,
        paused: bool,
    ) -> Result<Change> {
        let found = self.find_export(name, "subscriptions").await?;
        let subscription = &self.subscription(&found, subscription).await?;
        let change = |tr: Tx<_>| async move {
            if paused {
                subscription.pause(&tr);
            } else {
                subscription.resume(&tr);
            }
            Ok::<_, Error>(())
        };
        self.runner.run(change).await?;
        Ok(if paused {
            Change::new(name, "pause", 0, "nothing is exported until it is resumed")
        } else {
            Change::new(name, "resume", 0, "entries are exported again")
        })
    }

    /// Sets the next time of a schedule right, if it is later than its expression allows because a wall clock was
    /// ahead.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Missing`], a schedule that does not decode, and those of
    /// the store.
    pub async fn reschedule(&self, name: &str, schedule: &str) -> Result<Change> {
        let found = &self.find_dequeue(name, "schedules").await?;
        let change = |tr: Tx<_>| async move {
            let queue = &found.queue;
            let Some(entry) = queue.find_schedule(&tr, schedule).await? else {
                return Ok(None);
            };
            let payload = entry.payload.unwrap_or_else(|error| error.bytes);
            let scheduled = queue
                .schedule(&tr, schedule, &entry.schedule, &payload)
                .await?;
            Ok::<_, Error>(Some(scheduled))
        };
        match self.runner.run(change).await? {
            None => Err(Error::Missing {
                what: "schedule",
                given: schedule.to_owned(),
                hint: "`console schedules` lists those that there are",
            }),
            Some(Scheduled::Unchanged) => Ok(Change::new(
                name,
                "reschedule",
                0,
                "its next time was right",
            )),
            Some(_) => Ok(Change::new(
                name,
                "reschedule",
                0,
                "it fires at its next time",
            )),
        }
    }

    /// Changes the settings of a queue: `edit` gets those that are stored, and returns those that it shall have.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], settings that no session can follow, and those of the store.
    pub async fn configure(
        &self,
        name: &str,
        edit: impl Fn(Settings) -> Settings + Send + Sync,
    ) -> Result<report::Settings> {
        let found = &self.find_dequeue(name, "settings").await?;
        let edit = &edit;
        let change = |tr: Tx<_>| async move {
            let settings = edit(found.queue.settings(&tr).await?);
            found.queue.configure(&tr, &settings).await
        };
        self.runner.run::<_, DequeueError, _, _, _>(change).await?;
        self.settings(name).await
    }
}
