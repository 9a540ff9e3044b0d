//! The order in which the model grants items: by priority, and in turns. How they free slots and give tokens back.

use std::collections::BTreeMap;

use super::model::{At, Model, ModelItem};
use super::program::How;
use crate::items::group_limits::GroupLimits;
use crate::items::keys::lane_hash;
use crate::items::rate::{MAX_RATE_PERIOD, Rate};
use crate::items::record::Reserve;

/// The group whose items take tokens.
pub(super) const RATED: &str = "r";

/// How many of them there are. None comes back by itself during a program.
const TOKENS: usize = 3;

pub(super) const RARELY: GroupLimits =
    GroupLimits::new().with_rate(Rate::new(1, MAX_RATE_PERIOD).with_burst(TOKENS as u32));

impl ModelItem {
    /// Returns the lane in which it waits. Items without a group wait in one if they have come back.
    pub(super) fn lane(&self) -> Option<&'static str> {
        let has_come_back = self.deliveries > self.uncounted;
        (!self.group.is_empty() || has_come_back).then_some(self.group)
    }
}

/// The turns of lanes since the ring began: for each priority, the last lane with the number of items that it may still
/// be granted, and whether the next item is in no lane.
#[derive(Default)]
pub(super) struct Turns(BTreeMap<i8, (Option<&'static str>, u32, bool)>);

impl Turns {
    /// Returns the next items that are granted together to a session.
    pub(super) fn of(mut self, model: &Model, session: usize, max: usize) -> Vec<usize> {
        let mut left = model.seen(session);
        let mut granted: Vec<usize> = Vec::new();
        while granted.len() < max {
            let Some(item) = self.next(model, &left, &granted) else {
                break;
            };
            left.retain(|other| *other != item);
            granted.push(item);
        }
        granted
    }

    fn next(&mut self, model: &Model, left: &[usize], granted: &[usize]) -> Option<usize> {
        let life = |item: &usize| &model.items[*item];
        let is_first = |item: &&usize| {
            let same_lane = |other: &&usize| life(other).lane() == life(item).lane();
            life(item).lane().is_none() || left.iter().find(same_lane) == Some(*item)
        };
        let may_start = |item: &&usize| {
            let group = life(item).group;
            let starts = |other: &&usize| life(other).group == group && !life(other).has_slot;
            let slots = model.slots(group) + granted.iter().filter(starts).count();
            let of_group = granted.iter().filter(|other| life(other).group == group);
            if group == RATED && model.tokens() <= of_group.count() {
                return false;
            }
            match model.limits_of(group).limit() {
                _ if group.is_empty() => true,
                None => true,
                Some(0) => false,
                Some(limit) => life(item).has_slot || slots < limit as usize,
            }
        };
        let ready: Vec<_> = left.iter().filter(is_first).filter(may_start).collect();
        let level = ready.iter().map(|item| life(item).priority).max()?;
        let mut ready: Vec<_> = ready
            .into_iter()
            .filter(|item| life(item).priority == level)
            .collect();
        let (last, turn, outside_next) = self.0.entry(level).or_default();
        let place = |lane: &'static str| (lane_hash(lane.as_bytes()), lane);
        ready.sort_by_key(|item| {
            life(item).lane().map(|lane| {
                let goes_on = *turn > 0 && *last == Some(lane);
                let is_before = last.is_some_and(|last| place(lane) <= place(last));
                (!goes_on, is_before, place(lane))
            })
        });
        let in_lane = ready.iter().find(|item| life(item).lane().is_some());
        let outside = ready.iter().find(|item| life(item).lane().is_none());
        let item = match (in_lane, outside) {
            (Some(_), Some(outside)) if *outside_next => outside,
            (Some(in_lane), _) => in_lane,
            (None, outside) => outside?,
        };
        match life(item).lane() {
            None => *outside_next = false,
            Some(lane) => {
                let weight = match lane {
                    "" => 1,
                    group => model.limits_of(group).weight(),
                };
                let goes_on = *turn > 0 && *last == Some(lane);
                *turn = if goes_on { *turn } else { weight } - 1;
                *last = Some(lane);
                *outside_next = true;
            }
        }
        Some(**item)
    }
}

impl Model {
    /// Returns how many tokens are left.
    fn tokens(&self) -> usize {
        let spent = self.items.iter().filter(|item| item.spent).count();
        TOKENS - self.spent - spent
    }

    /// Gives back the token of an item that comes back, unless a handler got it.
    pub(super) fn settle_token(&mut self, item: usize, how: How) {
        let life = &mut self.items[item];
        let is_unseen =
            matches!(how, How::Unused | How::Undecodable) || life.reserve != Reserve::Out;
        self.spent += usize::from(life.spent && !is_unseen);
        life.spent = false;
    }

    /// Frees the slot of an item that comes back, unless the limits say that it keeps it.
    pub(super) fn keep_slot(&mut self, item: usize, place: At) {
        let limits = self.limits_of(self.items[item].group);
        self.items[item].has_slot &= match place {
            At::Dead => limits.dead_letters_block(),
            _ => limits.is_until_end(),
        };
    }
}
