//! Hands out items to the consumers that want them, and puts others into the reserve.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use microqueue::keyspace::Bytes;
use microqueue::keyspace::codec::DecodeError;
use microqueue::{Item, ItemId};

use super::Dispatcher;
use crate::consume::held_item::HandedOut;
use crate::consume::held_item::command::{Reply, Want};
use crate::consume::holdings::Ready;
use crate::items::record::{Record, Reserve};
use crate::options::Backoff;
use crate::protocol::Granted;
use crate::protocol::give_back::{GiveBack, When};

impl Dispatcher {
    /// Gives items to the consumers that want them, in their order. An item that does not decode counts as failed.
    pub(super) fn hand_out(&mut self, granted: Vec<Granted>) {
        self.pacer.is_granted |= !granted.is_empty();
        let held = Arc::new(self.keys().held(self.session()));
        let mut popped = VecDeque::new();
        let mut ready = VecDeque::new();
        for item in granted {
            let id = item.id;
            let mut record = item.record;
            match item.value {
                // A cancelled item leaves the queue when it is given back.
                _ if record.cancelled_millis != 0 => self.return_unused(id, record.deliveries),
                Ok(value) if item.is_popped => {
                    self.shared.metrics.hand_out(&record, &self.keys().env);
                    if record.member.is_some() {
                        self.batch_timer.note_member(self.now());
                    }
                    popped.push_back(Item { id, value });
                }
                Ok(value) => {
                    let bytes = record.payload.len();
                    // From here on, only the value is needed.
                    record.payload = Bytes::new();
                    ready.push_back(Ready {
                        id,
                        record,
                        value,
                        bytes,
                        held: held.clone(),
                    });
                }
                Err(error) => self.undecodable(id, &record, &error),
            }
        }
        for want in self.callers.take_all() {
            if want.is_gone() {
                continue;
            }
            match want.reply {
                Reply::Pop(reply) if !popped.is_empty() => {
                    self.pacer.served += 1;
                    let count = popped.len().min(want.wanted);
                    if let Err(Ok(items)) = reply.send(Ok(popped.drain(..count).collect())) {
                        // The caller has just gone. Another one may want the items.
                        for item in items.into_iter().rev() {
                            popped.push_front(item);
                        }
                    }
                }
                Reply::Deliver(reply) if !ready.is_empty() => {
                    self.pacer.served += 1;
                    let count = ready.len().min(want.wanted);
                    let items: Vec<_> = ready.drain(..count).collect();
                    // `None` if the last consumer is gone.
                    let Some(commands) = self.sender.upgrade() else {
                        for item in items {
                            self.return_unused(item.id, item.record.deliveries);
                        }
                        continue;
                    };
                    let hand_out = |item| HandedOut::hand_out(&self.shared, item, &commands);
                    // If the caller has just gone, they go back with the answer.
                    let _ = reply.send(Ok(items.into_iter().map(hand_out).collect()));
                }
                _ => self.callers.push(want),
            }
        }
        self.keep(ready);
    }

    /// Puts items into the reserve that were granted for it, and gives others back.
    fn keep(&mut self, items: VecDeque<Ready>) {
        let keeps = self.policy.keeps_reserve(false) && self.options.max_reserve > 0;
        // A request may have got items with tokens for consumers that have gone since.
        let may_keep = |record: &Record| record.reserve == Reserve::In && record.spent.is_none();
        let is_kept = |item: &Ready| keeps && may_keep(&item.record);
        let (kept, others): (Vec<_>, Vec<_>) = items.into_iter().partition(is_kept);
        for item in others {
            self.return_unused(item.id, item.record.deliveries);
        }
        if !kept.is_empty() {
            // The consumers that were just served find the next items there.
            self.pacer.served = 0;
            let now = self.now();
            self.shared.holdings.fill(kept, now);
        }
    }

    /// Adds a caller, or serves it from the reserve, which may have been filled since the caller looked there.
    pub(super) fn accept_want(&mut self, want: Want) {
        let Reply::Deliver(reply) = want.reply else {
            return self.callers.push(want);
        };
        let commands = self.sender.upgrade();
        let hand_out = |commands| HandedOut::hand_out_reserve(&self.shared, want.wanted, &commands);
        let items = commands.map(hand_out).unwrap_or_default();
        if items.is_empty() {
            let reply = Reply::Deliver(reply);
            self.callers.push(Want { reply, ..want });
        } else {
            // If the caller has just gone, they go back with the answer.
            let _ = reply.send(Ok(items));
        }
    }

    /// Gives back an item that was not handed out.
    pub(super) fn return_unused(&mut self, id: ItemId, delivery: u64) {
        self.return_later(id, delivery, GiveBack::Unused, None);
    }

    /// Gives back an item that does not decode, like any other failed item: another process may be able to decode it.
    fn undecodable(&mut self, id: ItemId, record: &Record, error: &DecodeError) {
        let queue = &self.keys().name;
        let item = self.keys().item_ref(id);
        let kind = record.kind.get();
        tracing::error!(%queue, %item, kind, %error, "an item does not decode");
        self.shared.undecodable.fetch_add(1, Ordering::Relaxed);
        // A version that cannot decode many items would otherwise take them again and again before all others.
        let backoff = self
            .shared
            .backoff(record)
            .no_shorter_than(Backoff::default());
        let how = GiveBack::Undecodable(When::Later(backoff));
        self.return_later(id, record.deliveries, how, Some(&error.to_string()));
    }
}
