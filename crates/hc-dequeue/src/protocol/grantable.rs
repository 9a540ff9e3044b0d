//! What a transaction may grant, and how it grants it.

use std::iter::Peekable;
use std::vec::IntoIter;

use microqueue::keyspace::Transaction;
use microqueue::{Item, ItemId};

use super::grant::answer;
use super::ready::ReadyItems;
use super::{Granted, Purpose, SessionContext, purposes};
use crate::items::MAX_STEP_BYTES;
use crate::items::changes::Changes;
use crate::items::error::Result;
use crate::items::group_limits::KnownLimits;
use crate::items::part::Counter;
use crate::items::places::take_queued;
use crate::items::record::{Record, Request};
use crate::items::scan::ReadLimit;
use crate::items::spot::Spot;
use crate::lanes::look::{Look, Past, look};
use crate::session::wall::wall_millis;

/// Items that may be granted, in order.
pub(super) struct Grantable {
    items: Peekable<IntoIter<Item<Record>>>,
    granted: usize,
    is_complete: bool,
    /// The limits of the groups of these items.
    limits: KnownLimits,
    /// Of which look they are, if lanes were read.
    look: Option<Look>,
}

impl Grantable {
    /// Returns items that are in no lane.
    pub(super) fn outside_lanes(ready: ReadyItems) -> Self {
        Self {
            items: ready.items.into_iter().peekable(),
            granted: 0,
            is_complete: ready.is_complete,
            limits: KnownLimits::default(),
            look: None,
        }
    }

    /// Finds up to `limit` items. Looks at lanes if one has a notice, or gets one by the changes so far.
    ///
    /// # Conflicts
    /// Reads by snapshot: granting an item ensures that it still exists at the commit.
    pub(super) async fn find(
        tr: &impl Transaction,
        context: SessionContext<'_>,
        ready: ReadyItems,
        past: Past<'_>,
        limit: usize,
    ) -> Result<Self> {
        if ready.notices.is_empty() && past.changes.with_notices().next().is_none() {
            return Ok(Self::outside_lanes(ready));
        }
        let max = ReadLimit {
            items: limit,
            row_bytes: MAX_STEP_BYTES,
        };
        let SessionContext { keys, fronts, .. } = context;
        let ReadyItems {
            notices,
            items,
            is_complete,
            ..
        } = ready;
        let mut look = look(tr, keys, &fronts.lanes, notices, items, past, max).await?;
        Ok(Self {
            items: std::mem::take(&mut look.items).into_iter().peekable(),
            granted: 0,
            is_complete: is_complete && look.is_complete,
            limits: std::mem::take(&mut look.limits),
            look: Some(look),
        })
    }

    /// Returns whether nothing else could have been granted.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns how many items are left.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Takes items for the session's own demand. A reserve ends before an item that is barred from it or that takes a
    /// token: a token is spent only for a handler.
    pub(super) fn grant_own(
        &mut self,
        tr: &impl Transaction,
        context: SessionContext<'_>,
        limit: usize,
        changes: &mut Changes,
    ) -> Result<Vec<Granted>> {
        let held = context.keys.held(context.session);
        let granted_millis = wall_millis(&context.keys.env);
        let mut granted = Vec::new();
        for purpose in purposes(context.demand).take(limit) {
            let may_take =
                |item: &Item<Record>| purpose != Purpose::Reserve || item.value.may_be_reserved();
            let Some(mut item) = self.items.next_if(may_take) else {
                break;
            };
            self.granted += 1;
            let spot = Spot::of(&item.value);
            take_queued(tr, context.keys, &item.id, &spot, changes)?;
            item.value.deliveries += 1;
            item.value.granted_millis = granted_millis;
            let mut item = Granted::new(context, item.id, item.value, purpose);
            if item.is_popped {
                context.end_popped(tr, &item, &self.limits, changes)?;
            } else {
                changes.take_slot(&mut item.record);
                held.insert(tr, &item.id, &item.record)?;
                changes.add(Counter::Held, 1);
            }
            granted.push(item);
        }
        Ok(granted)
    }

    /// Grants items to the session of a request. Returns how many. What the session wants for its reserve ends before
    /// an item that takes a token, or that no reserve may get.
    pub(super) fn grant(
        &mut self,
        tr: &impl Transaction,
        context: SessionContext<'_>,
        request: &Request,
        id: &ItemId,
        limit: usize,
        changes: &mut Changes,
    ) -> Result<usize> {
        let keys = context.keys;
        let granted_millis = wall_millis(&keys.env);
        let for_consumers = request.wanted.saturating_sub(request.for_reserve) as usize;
        let mut granted = Vec::new();
        while granted.len() < limit {
            let is_wanted = granted.len() < for_consumers;
            let may_take = |item: &Item<Record>| is_wanted || item.value.may_be_reserved();
            let Some(item) = self.items.next_if(may_take) else {
                break;
            };
            granted.push(item);
        }
        for item in &mut granted {
            let spot = Spot::of(&item.value);
            take_queued(tr, keys, &item.id, &spot, changes)?;
            item.value.deliveries += 1;
            item.value.granted_millis = granted_millis;
            changes.take_slot(&mut item.value);
        }
        let count = granted.len();
        self.granted += count;
        answer(tr, keys, request.session, id, granted)?;
        changes.add(Counter::Held, count as i64);
        Ok(count)
    }

    /// Adds to the changes what follows for the lanes.
    ///
    /// # Conflicts
    /// As [`Look::finish`].
    pub(super) fn finish(
        self,
        tr: &impl Transaction,
        context: SessionContext<'_>,
        changes: &mut Changes,
    ) -> Result<()> {
        match self.look {
            Some(look) => {
                let memory = &context.fronts.lanes;
                look.finish(tr, context.keys, memory, self.granted, changes)
            }
            None => {
                context.fronts.lanes.note_outside();
                Ok(())
            }
        }
    }

    /// Takes items for the session's own demand, and nothing else.
    pub(super) fn grant_all(
        mut self,
        tr: &impl Transaction,
        context: SessionContext<'_>,
        limit: usize,
        changes: &mut Changes,
    ) -> Result<Vec<Granted>> {
        let granted = self.grant_own(tr, context, limit, changes)?;
        self.finish(tr, context, changes)?;
        Ok(granted)
    }
}
