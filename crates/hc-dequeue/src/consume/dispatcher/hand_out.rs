//! Hands out items to the consumers that want them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::time::Duration;

use microqueue::keyspace::Bytes;
use microqueue::keyspace::codec::DecodeError;
use microqueue::{Item, ItemId};
use parking_lot::Mutex;

use super::Dispatcher;
use crate::consume::command::Reply;
use crate::consume::held_item::{Decision, HandedOut, HeldItem, Outstanding};
use crate::items::item_ref::ItemRef;
use crate::items::record::Record;
use crate::items::value::Value;
use crate::options::Backoff;
use crate::protocol::Granted;
use crate::protocol::give_back::{GiveBack, When};
use crate::session::wall::wall_millis;

/// What happens to an item that could not be handed out.
const RETURNED: GiveBack = GiveBack::Returned(When::Now);

impl Dispatcher {
    /// Gives items to the consumers that want them, in their order. An item that does not decode counts as failed.
    pub(super) fn hand_out(&mut self, granted: Vec<Granted>) {
        self.metrics.dequeues.increment(granted.len() as u64);
        let now = wall_millis(&self.keys().env);
        let mut popped = VecDeque::new();
        let mut held = VecDeque::new();
        for item in granted {
            let id = item.id;
            let record = item.record;
            let waited = Duration::from_millis(now.saturating_sub(record.ready_millis()));
            self.metrics.waiting.record(waited.as_secs_f64());
            match item.value {
                // A cancelled item leaves the queue when it is given back.
                _ if record.cancelled_millis != 0 => {
                    self.return_later(id, record.deliveries, RETURNED, None);
                }
                Ok(value) if item.is_popped => popped.push_back(Item { id, value }),
                Ok(value) => held.push_back((id, record, value)),
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
                Reply::Deliver(reply) if !held.is_empty() => {
                    self.pacer.served += 1;
                    let count = held.len().min(want.wanted);
                    let items: Vec<_> = held.drain(..count).collect();
                    let handed_out = items.into_iter().filter_map(|item| self.deliver(item));
                    if let Err(Ok(unseen)) = reply.send(Ok(handed_out.collect())) {
                        for unseen in unseen {
                            let (id, delivery) = unseen.item.disown();
                            self.deliveries.forget(&id, delivery);
                            self.return_later(id, delivery, RETURNED, None);
                        }
                    }
                }
                _ => self.callers.push(want),
            }
        }
        for (id, record, _) in held {
            self.return_later(id, record.deliveries, RETURNED, None);
        }
    }

    /// Gives back an item that does not decode, like any other failed item: another process may be able to decode it.
    fn undecodable(&mut self, id: ItemId, record: &Record, error: &DecodeError) {
        let queue = &self.keys().queue;
        let item = ItemRef::new(self.keys(), id);
        tracing::error!(%queue, %item, %error, "an item does not decode");
        // A version that cannot decode many items would otherwise take them again and again before all others.
        let backoff = self.options.backoff.no_shorter_than(Backoff::default());
        let how = GiveBack::Failed(When::Later(backoff));
        self.return_later(id, record.deliveries, how, Some(&error.to_string()));
    }

    fn deliver(&mut self, (id, mut record, value): (ItemId, Record, Value)) -> Option<HandedOut> {
        // `None` if the last consumer is gone: then the session ends and returns its items.
        let commands = self.sender.upgrade()?;
        let deadline = self.now().saturating_add(self.options.time_limit);
        // The delivery needs only the value, not the payload.
        record.payload = Bytes::new();
        let out = Arc::new(Outstanding::new(record.deliveries, deadline));
        self.deliveries.insert(id, out.clone());
        let item = Arc::new(HeldItem {
            id,
            record,
            out,
            session: self.session(),
            shared: self.shared.clone(),
            commands,
            decision: AtomicU8::new(Decision::Open as u8),
            result: Mutex::default(),
        });
        Some(HandedOut { item, value })
    }
}
