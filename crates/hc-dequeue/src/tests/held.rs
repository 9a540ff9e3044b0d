//! Deliveries as a dispatcher makes them, without one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::time::Duration;

use microqueue::ItemId;
use microqueue::keyspace::{Bytes, Runner, Store};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::consume::held_item::shared::Shared;
use crate::consume::held_item::{Decision, HeldItem};
use crate::consume::holdings::Holdings;
use crate::consume::holdings::outstanding::{Lifetime, Outstanding};
use crate::consume::metrics::Metrics;
use crate::consume::shared_task::SharedTask;
use crate::items::record::Record;
use crate::options::Backoff;
use crate::queue::handle::Queue;
use crate::session::SessionId;

/// Returns the item of a delivery of this number to a session.
pub(super) fn held_item(
    runner: &Runner<Store>,
    queue: &Queue<u64>,
    id: ItemId,
    (session, delivery): (SessionId, u64),
) -> HeldItem {
    let (commands, _) = mpsc::unbounded_channel();
    let life = Lifetime {
        began: Duration::ZERO,
        time_limit: Duration::MAX,
        backoff: Backoff::default(),
    };
    HeldItem {
        id,
        record: Record::default(),
        out: Arc::new(Outstanding::new(delivery, life)),
        held: Arc::new(queue.keys.held(session)),
        shared: Arc::new(Shared {
            keys: queue.keys.clone(),
            runner: runner.idempotent(),
            env: runner.environment().clone(),
            settings: queue.settings.clone(),
            handling: Arc::default(),
            time_limit: Duration::MAX,
            backoff: Backoff::default(),
            shuts_down: AtomicBool::new(false),
            let_go_of_member: AtomicBool::new(false),
            undecodable: AtomicU64::new(0),
            dispatcher: SharedTask::new(),
            holdings: Holdings::default(),
            metrics: Metrics::new(&queue.keys.queue),
        }),
        commands,
        decision: AtomicU8::new(Decision::Open as u8),
        result: Mutex::new(Bytes::from("done")),
        step_names: Mutex::new(BTreeSet::new()),
        is_in_transaction: AtomicBool::new(false),
    }
}
