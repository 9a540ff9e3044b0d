//! What operations of an application change.

use super::model::{At, Model, Said};
use super::program::Change;
use crate::items::record::End;
use crate::queue::change::{Cancelled, Replaced};

impl Model {
    pub(super) fn change(&mut self, item: usize, change: Change) -> Said {
        match change {
            Change::Cancel => Said::Cancelled(self.cancel(item)),
            Change::Expedite => {
                let is_delayed = matches!(self.items[item].place, At::Delayed(_));
                if is_delayed {
                    self.put(item, At::Queued);
                }
                Said::Was(is_delayed)
            }
            Change::Replace(value) => Said::Changed(self.replace(item, value)),
            Change::SetPriority(priority) => Said::Was(self.set_priority(item, priority)),
            Change::Redrive => {
                let is_dead = self.items[item].place == At::Dead;
                if is_dead {
                    self.reset_counts(item, At::Queued);
                }
                Said::Was(is_dead)
            }
            Change::Purge => {
                let is_dead = self.items[item].place == At::Dead;
                if is_dead {
                    self.end(item, End::Removed, "");
                }
                Said::Was(is_dead)
            }
        }
    }

    fn cancel(&mut self, item: usize) -> Cancelled {
        match self.items[item].place {
            At::Held(_) | At::Granted(..) => {
                self.items[item].is_cancelled = true;
                self.items[item].dedupe = None;
                Cancelled::Requested
            }
            At::Done(..) | At::Unknown => Cancelled::NotThere,
            _ => {
                self.end(item, End::Cancelled, "");
                Cancelled::Removed
            }
        }
    }

    fn replace(&mut self, item: usize, value: u64) -> Replaced {
        match self.items[item].place {
            At::Held(_) | At::Granted(..) => Replaced::IsHeld,
            At::Done(..) | At::Unknown => Replaced::NotThere,
            _ => {
                self.items[item].begin_anew(value);
                Replaced::Replaced
            }
        }
    }

    fn set_priority(&mut self, item: usize, priority: i8) -> bool {
        let life = &mut self.items[item];
        let is_free = matches!(
            life.place,
            At::Queued | At::Delayed(_) | At::DelayedWithin(..) | At::Dead
        );
        if is_free {
            life.priority = priority;
        }
        is_free
    }
}
