//! Compares a queue in a store with the model.

use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use microqueue::keyspace::Bytes;
use microqueue::keyspace::codec::{self, MessagePack};

use super::kinds::shown;
use super::leave::TOTAL;
use super::model::{At, Model, ModelItem};
use super::world::{LEADER, LifeWorld};
use super::{DEDUPE_IDS, STEP_NAMES};
use crate::batches::operations::BatchStatus;
use crate::items::error::Result;
use crate::items::find::find;
use crate::items::record::{Failure, Progress};
use crate::lanes::audit::check_lanes;
use crate::queue::list::{ItemPage, PlaceKind};
use crate::queue::status::{Place, Status};
use crate::session::wall::unix_time;

/// Smaller than the number of items that a place often has, so that cursors are tested.
const ITEMS_PER_PAGE: usize = 2;

impl LifeWorld {
    /// Compares the whole queue with the model, which learns the random times from the store.
    pub(super) async fn compare(&self, model: &mut Model) -> Result<()> {
        assert_eq!(self.clock_millis(), model.now);
        // Slots agree with their numbers, and what may be granted has a notice.
        let lanes = check_lanes(&self.runner, &self.queue.keys, &mut Vec::new()).await?;
        assert_eq!(lanes, []);
        assert_eq!(self.items.len(), model.items.len());
        for number in 0..self.items.len() {
            let status = self.status(number).await?;
            let life = &mut model.items[number];
            if let (At::DelayedWithin(first, last), Some(status)) = (life.place, &status)
                && let Place::Delayed { until } = status.place
            {
                assert!((unix_time(first)..=unix_time(last)).contains(&until));
                let ready = until.duration_since(UNIX_EPOCH);
                life.place = At::Delayed(ready.expect("it is later").as_millis() as u64);
            }
            assert_eq!(status, self.expected(life), "item {number}");
            self.compare_record(number, life).await?;
            assert_eq!(self.effects(number).await?, life.effects, "item {number}");
        }
        for place in PlaceKind::ALL {
            self.compare_listing(model, place).await?;
        }
        self.compare_sessions(model).await?;
        self.compare_deaths(model).await?;
        let queue = &self.queue;
        for dedupe in 0..DEDUPE_IDS {
            let holder = |tr| async move { queue.find_deduped(&tr, &[dedupe]).await };
            let expected = model.holder(dedupe).map(|item| self.items[item]);
            assert_eq!(
                self.runner.run(holder).await?,
                expected,
                "dedupe id {dedupe}"
            );
        }
        for (batch, expected) in self.batches.iter().zip(model.batches.0) {
            let read = |tr| async move { queue.batch_status(&tr, batch).await };
            let BatchStatus {
                pending, counts, ..
            } = self.runner.run(read).await?.expect("it is open");
            let tallies = [pending, counts.completed, counts.dead, counts.cancelled];
            assert_eq!(tallies, expected);
        }
        let read = |tr| async move { queue.stats(&tr).await };
        let stats = self.runner.run(read).await?;
        let counts = [stats.queued, stats.delayed, stats.held, stats.dead];
        let expected = [
            model.count(|place| place == At::Queued),
            model.count(|place| matches!(place, At::Delayed(_))),
            model.count(|place| matches!(place, At::Held(_) | At::Granted(..))),
            model.count(|place| place == At::Dead),
        ];
        assert_eq!(counts, expected, "queued, delayed, held, dead");
        let ended = [stats.completed, stats.cancelled, stats.removed];
        assert_eq!(ended, [model.completed, model.cancelled, model.removed]);
        Ok(())
    }

    /// Compares what the record of an item says of its grants, and of what handlers have left, with the model.
    async fn compare_record(&self, number: usize, life: &ModelItem) -> Result<()> {
        let keys = &self.queue.keys;
        let id = &self.items[number].id();
        let read = |tr| async move { find(&tr, keys, id).await };
        if let Some((_, record)) = self.runner.run(read).await? {
            let grants = (
                record.deliveries,
                record.uncounted_deliveries,
                record.reserve,
            );
            let expected = (life.deliveries, life.uncounted, life.reserve);
            assert_eq!(grants, expected, "grants of item {number}");
            for (step, result) in &life.steps {
                let stored = record.checkpoint.result_of(STEP_NAMES[*step]).cloned();
                let stored = codec::decode(&MessagePack, stored.unwrap());
                assert_eq!(stored, Ok(*result), "step {step} of item {number}");
            }
        }
        Ok(())
    }

    /// Compares the listing of a place, in pages, with the model.
    async fn compare_listing(&self, model: &Model, place: PlaceKind) -> Result<()> {
        let queue = &self.queue;
        let mut listed = Vec::new();
        let mut after = None;
        loop {
            let read = |tr| {
                let after = after.clone();
                async move { queue.list(&tr, place, after.as_ref(), ITEMS_PER_PAGE).await }
            };
            let page: ItemPage<u64> = self.runner.run(read).await?;
            assert!(page.items.len() <= ITEMS_PER_PAGE);
            listed.extend(page.items.into_iter().map(|item| (item.item, item.status)));
            // The cursor is printed and parsed, as tools do.
            after = page
                .next
                .map(|cursor| cursor.to_string().parse())
                .transpose()?;
            if after.is_none() {
                break;
            }
        }
        let mut expected: Vec<_> = self
            .items
            .iter()
            .zip(&model.items)
            .filter(|(_, life)| kind(life.place) == Some(place))
            .map(|(item, life)| (*item, self.expected(life)))
            .map(|(item, status)| (item, Ok(status.expect("it is there"))))
            .collect();
        if matches!(place, PlaceKind::Delayed | PlaceKind::Held) {
            // The listings of these places are ordered by time or by session.
            listed.sort_by_key(|(item, _)| *item);
        }
        expected.sort_by_key(|(item, _)| *item);
        if place == PlaceKind::Queued {
            let order: Vec<_> = model
                .queued()
                .iter()
                .map(|item| self.items[*item])
                .collect();
            expected.sort_by_key(|(item, _)| order.iter().position(|queued| queued == item));
        }
        assert_eq!(listed, expected, "{place:?}");
        Ok(())
    }

    /// Compares the sessions, the items that they hold, and since when, with the model.
    async fn compare_sessions(&self, model: &Model) -> Result<()> {
        let queue = &self.queue;
        let mut listed = Vec::new();
        let mut after = None;
        loop {
            let read = |tr| async move { queue.session_states(&tr, after, ITEMS_PER_PAGE).await };
            let page = self.runner.run(read).await?;
            listed.extend(page.sessions);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let sessions: BTreeSet<_> = self.sessions.into_iter().chain([LEADER]).collect();
        assert!(listed.iter().map(|listed| &listed.id).eq(&sessions));
        for listed in listed {
            let state = listed.value.expect("a state that decodes");
            let held = model.items.iter().filter(|life| match life.place {
                At::Held(slot) | At::Granted(slot, _) => self.sessions[slot] == state.session,
                _ => false,
            });
            let grants: Vec<_> = held.map(|life| life.granted.expect("it is held")).collect();
            let oldest = grants.iter().min().map(|millis| unix_time(*millis));
            assert_eq!((state.held, state.oldest_grant), (grants.len(), oldest));
        }
        Ok(())
    }

    /// Returns the status that an item has in the model.
    fn expected(&self, life: &ModelItem) -> Option<Status<u64>> {
        let is_cancelled = life.is_cancelled;
        let place = match life.place {
            At::Queued => Place::Queued,
            At::Delayed(ready) | At::DelayedWithin(ready, _) => Place::Delayed {
                until: unix_time(ready),
            },
            At::Held(slot) | At::Granted(slot, _) => Place::Held {
                session: self.sessions[slot],
                is_cancelled,
            },
            At::Dead => Place::Dead,
            At::Done(end, at) => Place::Done {
                end,
                at: unix_time(at),
            },
            At::Unknown => return None,
        };
        let failure = life.failure.map(|(millis, reason)| Failure {
            time: unix_time(millis),
            reason: reason.to_owned(),
        });
        Some(Status {
            place,
            value: Ok(life.value),
            priority: life.priority,
            kind: shown(life.kind),
            group: Bytes::from_static(life.group.as_bytes()),
            has_slot: life.has_slot,
            batch: life.batch.map(|batch| self.batches[batch]),
            attempts: life.attempts,
            deaths: life.deaths,
            deliveries: life.deliveries - life.uncounted,
            failure,
            enqueued: unix_time(life.enqueued),
            ready: unix_time(life.ready),
            granted: life.granted.map(unix_time),
            checkpoint: match life.checkpoint {
                0 => Bytes::new(),
                byte => Bytes::copy_from_slice(&[byte]),
            },
            steps: life
                .steps
                .iter()
                .map(|(step, _)| STEP_NAMES[*step].to_owned())
                .collect(),
            progress: life.progress.map(|done| Progress {
                done,
                total: TOTAL,
                text: "on it".to_owned(),
            }),
            dedupe: life.enqueued_as.into_iter().collect(),
            result: Bytes::from(life.result),
        })
    }
}

/// Returns the place in whose listing an item appears.
fn kind(place: At) -> Option<PlaceKind> {
    match place {
        At::Queued => Some(PlaceKind::Queued),
        At::Delayed(_) | At::DelayedWithin(..) => Some(PlaceKind::Delayed),
        At::Held(_) | At::Granted(..) => Some(PlaceKind::Held),
        At::Dead => Some(PlaceKind::Dead),
        At::Done(..) => Some(PlaceKind::Done),
        At::Unknown => None,
    }
}
