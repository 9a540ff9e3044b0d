//! A reference model of an item's life: where it is, whether it is in a reserve, its numbers of attempts and deaths,
//! and the effect of each operation.
//!
//! Nothing here reads or writes a store or calls the code under test. Items are numbered in the order of their
//! enqueue, sessions by their slot; times are in milliseconds.

use std::collections::BTreeMap;

use super::batches::Batches;
use super::deaths::ModelDeath;
use super::program::{How, ItemSpec, Left, Op, purpose_of};
use super::turns::Turns;
use super::turns::{RARELY, RATED};
use crate::items::group_limits::GroupLimits;
use crate::items::record::{End, Reserve};
use crate::protocol::Purpose;
use crate::protocol::give_back::GivenBack;
use crate::queue::change::{Cancelled, Replaced};
use crate::queue::enqueue_options::OnRepeat;

/// The settings of the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) lease: u64,
    pub(super) max_attempts: u64,
    pub(super) max_deaths: u64,
    pub(super) max_deliveries: u64,
    pub(super) retention: u64,
    pub(super) keep_done: u64,
}

/// Where an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    Queued,
    Delayed(u64),
    /// It comes back at a random time within this range, which is then read from the store.
    DelayedWithin(u64, u64),
    Held(usize),
    /// It was granted to a session by the grant of this number, and was not collected.
    Granted(usize, usize),
    Dead,
    Done(End, u64),
    /// The queue no longer knows the item.
    Unknown,
}

#[derive(Debug, Clone)]
pub(super) struct ModelItem {
    pub(super) place: At,
    pub(super) value: u64,
    pub(super) priority: i8,
    /// Empty if it has none.
    pub(super) group: &'static str,
    pub(super) has_slot: bool,
    /// Empty if it has none.
    pub(super) kind: &'static str,
    /// The batch of which it is a member, or was one when it ended.
    pub(super) batch: Option<usize>,
    /// Its number among the items of its last grant.
    number: usize,
    pub(super) enqueued: u64,
    /// When it last got into the queue.
    pub(super) ready: u64,
    pub(super) attempts: u64,
    pub(super) deaths: u64,
    /// How often it was granted.
    pub(super) deliveries: u64,
    /// How many of these grants do not count.
    pub(super) uncounted: u64,
    pub(super) reserve: Reserve,
    /// Whether its last grant has taken a token, unless it has come back since.
    pub(super) spent: bool,
    /// When it was last granted; `None` if it never was.
    pub(super) granted: Option<u64>,
    /// When and why it last failed.
    pub(super) failure: Option<(u64, &'static str)>,
    pub(super) is_cancelled: bool,
    /// The byte of its checkpoint; zero if there is none.
    pub(super) checkpoint: u8,
    /// The numbers and results of the steps that are done.
    pub(super) steps: Vec<(usize, u64)>,
    /// How often a step has run.
    pub(super) effects: u64,
    pub(super) progress: Option<u64>,
    pub(super) result: &'static str,
    /// The dedupe id, while it belongs to this item.
    pub(super) dedupe: Option<u8>,
    /// The dedupe id with which it was enqueued.
    pub(super) enqueued_as: Option<u8>,
    /// Its own limit; 0 for the limit of the queue.
    max_attempts: u64,
}

impl ModelItem {
    /// Gives it another value: what handlers have left belongs to the old one.
    pub(super) fn begin_anew(&mut self, value: u64) {
        self.value = value;
        self.checkpoint = 0;
        self.steps.clear();
        self.progress = None;
    }
}

/// The result of an operation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Nothing,
    Staged,
    Replaced(usize),
    /// The item is a member of another batch.
    OfOtherBatch,
    Repeated,
    /// The values of the granted items, and whether each is popped.
    Granted(Vec<(u64, bool)>),
    GivenBack(GivenBack),
    Acknowledged,
    /// Something was left; of a step, its result.
    Left(Option<u64>),
    Refused,
    Cancelled(Cancelled),
    Changed(Replaced),
    Was(bool),
    Removed(u64),
}

/// The first wait of the backoff in milliseconds.
pub(super) const FIRST_WAIT: u64 = 4;

#[derive(Debug)]
pub(super) struct Model {
    pub(super) rules: Rules,
    pub(super) now: u64,
    pub(super) items: Vec<ModelItem>,
    /// What the queue of deaths has got.
    pub(super) deaths: Vec<ModelDeath>,
    pub(super) completed: u64,
    pub(super) cancelled: u64,
    pub(super) removed: u64,
    /// When the last item with each dedupe id was completed, if the queue retained the id.
    pub(super) completions: BTreeMap<u8, u64>,
    grants: usize,
    pub(super) batches: Batches,
    /// The limits of groups; those of the empty group are the default ones.
    limits: BTreeMap<&'static str, GroupLimits>,
    /// How many tokens items have taken that have come back after a handler got them.
    pub(super) spent: usize,
}

impl Model {
    pub(super) fn new(rules: Rules, now: u64) -> Self {
        Self {
            rules,
            now,
            items: Vec::new(),
            deaths: Vec::new(),
            completed: 0,
            cancelled: 0,
            removed: 0,
            completions: BTreeMap::new(),
            grants: 0,
            batches: Batches::default(),
            limits: BTreeMap::from([(RATED, RARELY)]),
            spent: 0,
        }
    }

    /// Returns the item that has a dedupe id.
    pub(super) fn holder(&self, dedupe: u8) -> Option<usize> {
        self.items
            .iter()
            .position(|item| item.dedupe == Some(dedupe))
    }

    pub(super) fn count(&self, is_there: impl Fn(At) -> bool) -> u64 {
        self.items
            .iter()
            .filter(|item| is_there(item.place))
            .count() as u64
    }

    pub(super) fn step(&mut self, op: &Op) -> Said {
        match *op {
            Op::Enqueue(new) => self.enqueue(new),
            Op::Take {
                session,
                purpose,
                ahead,
            } => {
                let first = self.first(session, 1 + ahead);
                let may_take = |(number, item): &(usize, usize)| {
                    purpose_of(*number, purpose) != Purpose::Reserve
                        || self.items[*item].reserve != Reserve::Barred
                            && self.items[*item].group != RATED
                };
                let taken = first.into_iter().enumerate().take_while(may_take);
                let taken: Vec<_> = taken.map(|(_, item)| item).collect();
                self.grant(&taken, At::Held(session));
                self.hand_over(taken, purpose)
            }
            Op::Grant { session } => {
                let granted = self.first(session, 2);
                self.grant(&granted, At::Granted(session, self.grants));
                self.grants += 1;
                Said::Nothing
            }
            Op::Collect { session, purpose } => self.collect(session, purpose),
            Op::Resolve { item, how, is_late } => self.resolve(item, how, is_late),
            Op::Acknowledge { item, is_late } => self.acknowledge(item, is_late),
            Op::Leave {
                item,
                what,
                is_late,
            } => self.leave_in(item, what, is_late),
            Op::Change(item, change) => self.change(item, change),
            Op::Clear => {
                let waits = |place| matches!(place, At::Queued | At::Delayed(_));
                let removed = self.count(waits);
                for item in 0..self.items.len() {
                    if waits(self.items[item].place) {
                        self.end(item, End::Removed, "");
                    }
                }
                Said::Removed(removed)
            }
            Op::Die(session) => self.leave(session, How::Die),
            Op::End(session) => self.leave(session, How::Release),
            Op::Sweep => self.sweep(),
            Op::Release(dedupe) => {
                let is_retained = self.holder(dedupe).is_none() && self.is_retained(dedupe);
                if is_retained {
                    self.completions.remove(&dedupe);
                }
                Said::Was(is_retained)
            }
            Op::Retain(retention) => {
                self.rules.retention = retention;
                Said::Nothing
            }
            Op::Pass(millis) => {
                self.now += millis;
                Said::Nothing
            }
            Op::Limit(group, limits) => {
                match limits {
                    Some(limits) => self.limits.insert(group, limits),
                    None => self.limits.remove(group),
                };
                Said::Nothing
            }
        }
    }

    fn enqueue(&mut self, new: ItemSpec) -> Said {
        let place = match new.delay {
            0 => At::Queued,
            delay => At::Delayed(self.now + delay),
        };
        if let Some(dedupe) = new.dedupe {
            if let Some(holder) = self.holder(dedupe) {
                match (self.items[holder].place, new.mode) {
                    (_, OnRepeat::Keep) => return Said::Repeated,
                    // The new item takes over the id.
                    (At::Held(_) | At::Granted(..), _) => self.items[holder].dedupe = None,
                    (there, mode) => {
                        if self.is_of_other_batch(holder, new.batch) {
                            return Said::OfOtherBatch;
                        }
                        match (there, mode) {
                            (At::Dead, _) => self.reset_counts(holder, place),
                            (_, OnRepeat::Debounce) => self.put(holder, place),
                            _ => {}
                        }
                        if there == At::Dead || mode == OnRepeat::Debounce {
                            self.items[holder].priority = new.priority;
                        }
                        self.join_again(holder, new.batch);
                        self.items[holder].begin_anew(new.value);
                        self.items[holder].kind = new.kind;
                        self.items[holder].max_attempts = new.max_attempts;
                        return Said::Replaced(holder);
                    }
                }
            } else if self.is_retained(dedupe) {
                return Said::Repeated;
            }
        }
        self.batches.join(new.batch);
        self.items.push(ModelItem {
            place,
            value: new.value,
            priority: new.priority,
            group: new.group,
            has_slot: false,
            kind: new.kind,
            batch: new.batch,
            number: 0,
            enqueued: self.now,
            ready: self.now,
            attempts: 0,
            deaths: 0,
            deliveries: 0,
            uncounted: 0,
            reserve: Reserve::Out,
            spent: false,
            granted: None,
            failure: None,
            is_cancelled: false,
            checkpoint: 0,
            steps: Vec::new(),
            effects: 0,
            progress: None,
            result: "",
            dedupe: new.dedupe,
            enqueued_as: new.dedupe,
            max_attempts: new.max_attempts,
        });
        Said::Staged
    }

    /// Returns the queued items in the order in which they are listed.
    pub(super) fn queued(&self) -> Vec<usize> {
        let is_queued = |item: &usize| self.items[*item].place == At::Queued;
        let mut queued: Vec<_> = (0..self.items.len()).filter(is_queued).collect();
        queued.sort_by_key(|item| {
            let life = &self.items[*item];
            // Those that have slots stand in the order of their enqueues.
            let rank = if life.has_slot { 0 } else { -life.priority };
            (life.lane(), !life.has_slot, rank)
        });
        queued
    }

    pub(super) fn limits_of(&self, group: &str) -> GroupLimits {
        let limits = self.limits.get(group).or_else(|| self.limits.get(""));
        limits.copied().unwrap_or_default()
    }

    /// Returns how many items of a group have a slot.
    pub(super) fn slots(&self, group: &str) -> usize {
        let has_slot = |life: &&ModelItem| life.has_slot && life.group == group;
        self.items.iter().filter(has_slot).count()
    }

    /// Returns the first queued items for a session, after promoting due ones that it takes.
    fn first(&mut self, session: usize, max: usize) -> Vec<usize> {
        for item in 0..self.items.len() {
            if let At::Delayed(ready) = self.items[item].place
                && ready <= self.now
                && self.takes(session, item)
            {
                self.items[item].place = At::Queued;
                self.items[item].ready = ready;
            }
        }
        Turns::default().of(self, session, max)
    }

    fn grant(&mut self, items: &[usize], place: At) {
        for (number, item) in items.iter().enumerate() {
            let life = &mut self.items[*item];
            life.place = place;
            life.deliveries += 1;
            life.granted = Some(self.now);
            life.has_slot = !life.group.is_empty();
            life.spent = life.group == RATED;
            life.number = number;
        }
    }

    /// Hands over items to a session, the first one for this purpose. Completes it if it is popped.
    fn hand_over(&mut self, items: Vec<usize>, purpose: Purpose) -> Said {
        let mut granted = Vec::new();
        for (number, item) in items.into_iter().enumerate() {
            let purpose = purpose_of(number, purpose);
            let life = &mut self.items[item];
            life.reserve = match life.reserve {
                _ if purpose != Purpose::Reserve => Reserve::Out,
                Reserve::Barred => Reserve::Barred,
                Reserve::Out | Reserve::In => Reserve::In,
            };
            let is_popped = purpose == Purpose::Pop && !life.is_cancelled;
            granted.push((self.items[item].value, is_popped));
            if is_popped {
                self.end(item, End::Completed, "");
            }
        }
        Said::Granted(granted)
    }

    fn collect(&mut self, session: usize, purpose: Purpose) -> Said {
        let grant_of = |item: &ModelItem| match item.place {
            At::Granted(holder, grant) if holder == session => Some(grant),
            _ => None,
        };
        let oldest = self.items.iter().filter_map(grant_of).min();
        let is_of = |item: &usize| grant_of(&self.items[*item]) == oldest && oldest.is_some();
        let mut collected: Vec<_> = (0..self.items.len()).filter(is_of).collect();
        collected.sort_by_key(|item| self.items[*item].number);
        for item in &collected {
            self.items[*item].place = At::Held(session);
        }
        self.hand_over(collected, purpose)
    }

    fn resolve(&mut self, item: usize, how: How, is_late: bool) -> Said {
        if is_late || !matches!(self.items[item].place, At::Held(_)) {
            return Said::GivenBack(GivenBack::Lost);
        }
        let was_cancelled = self.items[item].is_cancelled;
        self.come_back(item, how);
        Said::GivenBack(if was_cancelled {
            GivenBack::Cancelled
        } else {
            GivenBack::Accepted
        })
    }

    fn acknowledge(&mut self, item: usize, is_late: bool) -> Said {
        let life = &self.items[item];
        if is_late || life.is_cancelled || !matches!(life.place, At::Held(_)) {
            return Said::Refused;
        }
        self.end(item, End::Completed, "done");
        Said::Acknowledged
    }

    /// Returns how often steps have run.
    pub(super) fn effects(&self) -> u64 {
        self.items.iter().map(|item| item.effects).sum()
    }

    fn leave_in(&mut self, item: usize, what: Left, is_late: bool) -> Said {
        let life = &mut self.items[item];
        if is_late || life.is_cancelled || !matches!(life.place, At::Held(_)) {
            return Said::Refused;
        }
        match what {
            Left::Checkpoint(byte) => life.checkpoint = byte,
            Left::Progress(done) => life.progress = Some(done),
            Left::Step(step, value) => {
                if let Some((_, result)) = life.steps.iter().find(|(done, _)| *done == step) {
                    return Said::Left(Some(*result));
                }
                life.steps.push((step, value));
                life.effects += 1;
                return Said::Left(Some(value));
            }
        }
        Said::Left(None)
    }

    /// Returns all items of a session: held ones as `how` says, uncollected ones as unused.
    fn leave(&mut self, session: usize, how: How) -> Said {
        for item in 0..self.items.len() {
            match self.items[item].place {
                At::Held(holder) if holder == session => self.come_back(item, how),
                At::Granted(holder, _) if holder == session => self.come_back(item, How::Unused),
                _ => {}
            }
        }
        Said::Nothing
    }

    /// Moves an item that no session holds any more to the place where it belongs.
    fn come_back(&mut self, item: usize, how: How) {
        let now = self.now;
        let rules = self.rules;
        self.settle_token(item, how);
        let life = &mut self.items[item];
        if life.is_cancelled {
            return self.end(item, End::Cancelled, "");
        }
        if how == How::Complete {
            return self.end(item, End::Completed, "given back");
        }
        let was_in_reserve = life.reserve != Reserve::Out;
        if life.reserve == Reserve::In {
            life.reserve = Reserve::Out;
        }
        if how == How::Unused {
            life.uncounted += 1;
            life.place = At::Queued;
            return self.keep_slot(item, At::Queued);
        }
        if how == How::Die {
            life.reserve = Reserve::Barred;
            if was_in_reserve {
                self.keep_slot(item, At::Queued);
                return self.put(item, At::Queued);
            }
        }
        let mut place = match how {
            How::Complete | How::Unused => unreachable!("they are above"),
            How::Release | How::Fail | How::FailAndWait | How::Undecodable | How::Die => At::Queued,
            How::Snooze(delay) | How::FailLater(delay) => At::Delayed(now + delay),
            How::Discard => At::Dead,
        };
        let reason = match how {
            How::Fail | How::FailAndWait => Some("it was given back"),
            How::FailLater(_) => Some("not now"),
            How::Undecodable => Some("no number"),
            How::Die => Some("the session that held it has died"),
            How::Discard => Some("no good"),
            _ => None,
        };
        life.failure = reason.map(|reason| (now, reason)).or(life.failure);
        match how {
            How::Fail | How::FailLater(_) | How::Undecodable => life.attempts += 1,
            How::FailAndWait => {
                life.attempts += 1;
                let wait = FIRST_WAIT << (life.attempts - 1);
                place = At::DelayedWithin(now + wait / 2, now + wait);
            }
            How::Die => {
                life.deaths += 1;
                if life.deaths >= 2 {
                    let max_wait = rules.lease << (life.deaths - 1).min(10);
                    place = At::DelayedWithin(now, now + max_wait);
                }
            }
            _ => {}
        }
        let max_attempts = match life.max_attempts {
            0 => rules.max_attempts,
            own => own,
        };
        if life.attempts >= max_attempts || life.deaths >= rules.max_deaths {
            place = At::Dead;
        } else if place != At::Dead && life.deliveries - life.uncounted >= rules.max_deliveries {
            place = At::Dead;
            life.failure = Some((now, "it was granted too often"));
        }
        self.keep_slot(item, place);
        self.put(item, place);
    }

    /// Puts an item at a place where it is not by its enqueue.
    pub(super) fn put(&mut self, item: usize, place: At) {
        let life = &mut self.items[item];
        life.place = place;
        if place == At::Queued {
            life.ready = self.now;
        }
        if place == At::Dead {
            life.batch = self.batches.die(life.batch);
            self.deaths.push(ModelDeath::of(item, life));
        }
    }

    pub(super) fn reset_counts(&mut self, item: usize, place: At) {
        let life = &mut self.items[item];
        self.batches.leave_dead(life.batch);
        life.attempts = 0;
        life.deaths = 0;
        life.uncounted = life.deliveries;
        self.put(item, place);
    }

    pub(super) fn end(&mut self, item: usize, how: End, result: &'static str) {
        match how {
            End::Completed => self.completed += 1,
            End::Cancelled => self.cancelled += 1,
            End::Removed => self.removed += 1,
        }
        let life = &mut self.items[item];
        if life.place == At::Dead {
            self.batches.leave_dead(life.batch);
        }
        self.batches.end(life.batch, how);
        life.place = match self.rules.keep_done {
            0 => At::Unknown,
            _ => At::Done(how, self.now),
        };
        life.result = result;
        life.has_slot = false;
        life.checkpoint = 0;
        life.steps.clear();
        if let Some(dedupe) = life.dedupe.take()
            && how == End::Completed
            && self.rules.retention > 0
        {
            self.completions.insert(dedupe, self.now);
        }
    }
}
