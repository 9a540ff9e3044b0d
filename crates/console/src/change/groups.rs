//! Changing groups: their limits and their pauses.

use std::fmt;

use export_queue::hc_dequeue::{GroupLimits, GroupState};
use export_queue::keyspace::names::parse_bytes;
use export_queue::keyspace::{Transaction, Tx};

use crate::error::{Error, Result};
use crate::look::{Console, Dequeue, GROUPS, limits_of, read_default_limits};
use crate::report::Change;

/// The limits that apply to a group, or the default ones.
#[derive(Clone, Copy)]
struct Applied {
    limits: GroupLimits,
    /// Whether they were set for the group itself.
    is_own: bool,
    is_readable: bool,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_readable {
            return f.write_str("unreadable");
        }
        let by_default = if self.is_own { "" } else { ", by default" };
        write!(f, "{}{by_default}", limits_of(&self.limits))
    }
}

impl Console {
    /// Changes the limits of a group, which is text, or `0x` and hexadecimal digits, or without one the default limits.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], a group name of an invalid length, limits that contradict each
    /// other, and those of the store.
    pub async fn limit(
        &self,
        name: &str,
        group: Option<&str>,
        limits: &GroupLimits,
    ) -> Result<Change> {
        let found = &self.find_dequeue(name, GROUPS).await?;
        let group = &group.map(parse_bytes);
        let write = |tr: Tx<_>| async move {
            let before = applied(&tr, found, group.as_deref()).await?;
            let queue = &found.queue;
            match group {
                Some(group) => queue.configure_group(&tr, group, Some(limits)).await?,
                None => queue.configure_groups(&tr, limits).await?,
            }
            Ok::<_, Error>(format!("{}; before: {before}", limits_of(limits)))
        };
        let outcome = self.runner.run(write).await?;
        Ok(match group {
            Some(_) => Change::new(name, "limit", 0, &outcome),
            None => Change::new(name, "limit", 0, &format!("default limits: {outcome}")),
        })
    }

    /// Pauses a group, which is text, or `0x` and hexadecimal digits, or lets it go on. Its limits stay.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], a group name of an invalid length, and those of the store.
    pub async fn set_group_paused(&self, name: &str, group: &str, paused: bool) -> Result<Change> {
        let found = &self.find_dequeue(name, GROUPS).await?;
        let group = &parse_bytes(group);
        let change = |tr: Tx<_>| async move {
            if paused {
                found.queue.pause_group(&tr, group)?;
            } else {
                found.queue.resume_group(&tr, group)?;
            }
            Ok::<_, Error>(())
        };
        self.runner.run(change).await?;
        Ok(if paused {
            let outcome = "nothing of the group is granted until it is resumed";
            Change::new(name, "pause-group", 0, outcome)
        } else {
            let outcome = "items of the group are granted again";
            Change::new(name, "resume-group", 0, outcome)
        })
    }

    /// Lets the default limits apply to a group again, which is text, or `0x` and hexadecimal digits.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], a group name of an invalid length, and those of the store.
    pub async fn reset_limits(&self, name: &str, group: &str) -> Result<Change> {
        let found = &self.find_dequeue(name, GROUPS).await?;
        let group = &parse_bytes(group);
        let write = |tr: Tx<_>| async move {
            let before = applied(&tr, found, Some(group)).await?;
            let mut now = applied(&tr, found, None).await?;
            now.is_own = false;
            found.queue.configure_group(&tr, group, None).await?;
            Ok::<_, Error>(format!("{now}; before: {before}"))
        };
        let outcome = self.runner.run(write).await?;
        Ok(Change::new(name, "limit", 0, &outcome))
    }
}

/// Reads the limits that apply to a group, or the default ones.
///
/// # Conflicts
/// Reads by snapshot. If two operators change the same limits at the same time, the change that commits last wins.
async fn applied(tr: &impl Transaction, found: &Dequeue, group: Option<&[u8]>) -> Result<Applied> {
    if let Some(group) = group {
        let status = found.queue.group(tr, group).await?;
        return Ok(Applied {
            limits: status.limits,
            is_own: status.has_own_limits,
            is_readable: status.state != GroupState::Unreadable,
        });
    }
    let limits = read_default_limits(tr, found).await?;
    Ok(Applied {
        limits: limits.unwrap_or_default(),
        is_own: true,
        is_readable: limits.is_some(),
    })
}
