//! Changing groups: their limits and their pauses.

use std::fmt;

use export_queue::hc_dequeue::{GroupLimits, GroupState};
use export_queue::keyspace::names::parse_bytes;
use export_queue::keyspace::{Transaction, Tx};

use crate::error::{Error, Result};
use crate::look::{Console, Dequeue, GROUPS, limits_of, read_default_limits};
use crate::report::Change;

/// One of the limits of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// How many items may have a slot. Without it, none keeps its slot until it ends, and no dead letter keeps one.
    AtMost,
    /// That an item keeps its slot until it ends. Without it, no dead letter keeps its slot.
    UntilEnd,
    /// That a dead letter keeps its slot.
    DeadLettersBlock,
    /// At which rate items start.
    Rate,
    /// How many items the group is granted when it is its turn. Without it, that is 1.
    Weight,
}

impl Limit {
    /// All limits.
    pub const ALL: [Self; 5] = [
        Self::AtMost,
        Self::UntilEnd,
        Self::DeadLettersBlock,
        Self::Rate,
        Self::Weight,
    ];

    /// Returns the name of the limit: `at-most`, `until-end`, `dead-letters-block`, `rate` or `weight`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AtMost => "at-most",
            Self::UntilEnd => "until-end",
            Self::DeadLettersBlock => "dead-letters-block",
            Self::Rate => "rate",
            Self::Weight => "weight",
        }
    }

    /// Returns the limit of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.name() == name)
    }

    fn removed_from(self, limits: GroupLimits) -> GroupLimits {
        match self {
            Self::AtMost => limits.without_limit(),
            Self::UntilEnd => limits.without_until_end(),
            Self::DeadLettersBlock => limits.without_dead_letters_blocking(),
            Self::Rate => limits.without_rate(),
            Self::Weight => limits.with_weight(1),
        }
    }
}

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
            replace(&tr, found, group.as_deref(), limits).await?;
            Ok::<_, Error>(format!("{}; before: {before}", limits_of(limits)))
        };
        let outcome = self.runner.run(write).await?;
        Ok(limit_change(name, group.is_some(), &outcome))
    }

    /// Removes one limit of a group, which is text, or `0x` and hexadecimal digits, or without one a default limit. The
    /// others stay as they are. If the default limits apply to the group, they become its own, without this one. Of two
    /// changes of the same limits at the same time, the one that commits last wins.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], a group name of an invalid length, [`Error::UnreadableLimits`], and
    /// those of the store.
    pub async fn remove_limit(
        &self,
        name: &str,
        group: Option<&str>,
        limit: Limit,
    ) -> Result<Change> {
        let found = &self.find_dequeue(name, GROUPS).await?;
        let group = &group.map(parse_bytes);
        let write = |tr: Tx<_>| async move {
            let before = applied(&tr, found, group.as_deref()).await?;
            if !before.is_readable {
                return Err(Error::UnreadableLimits);
            }
            let limits = limit.removed_from(before.limits);
            if limits == before.limits {
                let name = limit.name();
                return Ok(format!("{before}; unchanged: `{name}` is not among them"));
            }
            replace(&tr, found, group.as_deref(), &limits).await?;
            Ok::<_, Error>(format!("{}; before: {before}", limits_of(&limits)))
        };
        let outcome = self.runner.run(write).await?;
        Ok(limit_change(name, group.is_some(), &outcome))
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

/// Returns what a change of the limits of a group, or of the default ones, reports.
fn limit_change(name: &str, is_of_group: bool, outcome: &str) -> Change {
    if is_of_group {
        return Change::new(name, "limit", 0, outcome);
    }
    Change::new(name, "limit", 0, &format!("default limits: {outcome}"))
}

/// Stages the limits of a group, or the default ones.
async fn replace(
    tr: &impl Transaction,
    found: &Dequeue,
    group: Option<&[u8]>,
    limits: &GroupLimits,
) -> Result<()> {
    let queue = &found.queue;
    match group {
        Some(group) => queue.configure_group(tr, group, Some(limits)).await?,
        None => queue.configure_groups(tr, limits).await?,
    }
    Ok(())
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
