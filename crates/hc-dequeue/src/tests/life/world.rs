//! A queue in a store, on which the steps of a program run.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::time::{Duration, UNIX_EPOCH};

use microqueue::ItemId;
use microqueue::keyspace::codec::MessagePack;
use microqueue::keyspace::env::ManualClock;
use microqueue::keyspace::run::RunOptions;
use microqueue::keyspace::{Bytes, Environment, OpenOptions, Runner, Store};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::model::{At, FIRST_WAIT, Model, ModelItem, Rules, Said};
use super::program::{Change, How, ItemSpec, Op};
use super::{DEDUPE_IDS, SESSIONS, START};
use crate::consume::held_item::{Decision, HeldItem, Outstanding, Shared};
use crate::consume::holdings::Holdings;
use crate::consume::metrics::Metrics;
use crate::consume::shared_task::SharedTask;
use crate::items::dedupe::expire_dedupe;
use crate::items::end::sweep_done;
use crate::items::error::{Error, Result};
use crate::items::find::{Location, find};
use crate::items::item_ref::ItemRef;
use crate::items::record::{Failure, Record};
use crate::items::settings::Settings;
use crate::items::value::{Decode, decoder};
use crate::options::Backoff;
use crate::protocol::front::Fronts;
use crate::protocol::fulfill::{TakeMode, Taken, fulfill, take, view_queue};
use crate::protocol::give_back::{GiveBack, Return, When, give_back};
use crate::protocol::reclaim::{Progress, reclaim_step};
use crate::protocol::request::{append, collect, withdraw};
use crate::protocol::{Demand, Granted, MAX_FULFILLMENT_ITEMS, Purpose, SessionContext};
use crate::queue::enqueue_options::{Enqueue, Enqueued};
use crate::queue::handle::Queue;
use crate::queue::list::{ItemPage, PlaceKind};
use crate::queue::status::{Place, Status};
use crate::session::SessionId;
use crate::session::wall::{unix_time, wall_millis};

/// A session that answers requests and has no demand.
const LEADER: SessionId = SessionId([0xff; 16]);

/// Smaller than the number of items that a place often has, so that cursors are tested.
const ITEMS_PER_PAGE: usize = 2;

/// A queue in a store, with the model's names for its items and sessions.
pub(super) struct LifeWorld {
    runner: Runner<Store>,
    clock: ManualClock,
    queue: Queue<u64>,
    settings: Settings,
    fronts: Fronts,
    decode: Arc<Decode>,
    items: Vec<ItemRef>,
    sessions: [SessionId; SESSIONS],
    /// The requests of each session that were answered but not collected.
    grants: [VecDeque<ItemId>; SESSIONS],
    sessions_opened: u8,
}

fn settings(rules: Rules) -> Settings {
    let millis = Duration::from_millis;
    Settings::new()
        .with_lease(millis(rules.lease))
        .with_max_attempts(rules.max_attempts as u32)
        .with_max_deaths(rules.max_deaths as u32)
        .with_max_deliveries(rules.max_deliveries as u32)
        .with_dedupe_retention(millis(rules.retention))
        .with_keep_done(millis(rules.keep_done))
}

impl LifeWorld {
    pub(super) async fn new(seed: u64, rules: Rules) -> Self {
        let clock = ManualClock::new();
        // The clock must not start at zero, which stands for no time.
        clock.advance(Duration::from_millis(START));
        let env = Environment::seeded(seed, Arc::new(clock.clone()));
        let store = microqueue::keyspace::open("memory:").unwrap();
        let runner = Runner::with_options(store, RunOptions::default().with_environment(env));
        let queue = Queue::open_with(&runner, "queue", settings(rules), OpenOptions::default());
        let mut world = Self {
            queue: queue.await.unwrap(),
            settings: settings(rules),
            fronts: Fronts::new(Duration::ZERO),
            decode: decoder::<u64, _>(MessagePack),
            runner,
            clock,
            items: Vec::new(),
            sessions: [SessionId([0; 16]); SESSIONS],
            grants: [const { VecDeque::new() }; SESSIONS],
            sessions_opened: 0,
        };
        world.open(LEADER).await;
        for slot in 0..SESSIONS {
            world.renew(slot).await;
        }
        world
    }

    async fn open(&self, session: SessionId) {
        let keys = &self.queue.keys;
        let lease = self.settings.lease;
        let wall = unix_time(START);
        let open = |tr| async move {
            keys.sessions.open(&tr, session, lease, wall);
            Ok::<_, Error>(())
        };
        self.runner.run(open).await.unwrap();
    }

    /// Opens a new session in place of one that is gone.
    async fn renew(&mut self, slot: usize) {
        self.sessions_opened += 1;
        self.sessions[slot] = SessionId([self.sessions_opened; 16]);
        self.grants[slot].clear();
        self.open(self.sessions[slot]).await;
    }

    fn context<'a>(&'a self, session: SessionId, demand: &'a [Demand]) -> SessionContext<'a> {
        SessionContext {
            keys: &self.queue.keys,
            settings: &self.settings,
            session,
            promotes: true,
            demand,
            decode: &*self.decode,
            fronts: &self.fronts,
        }
    }

    pub(super) async fn step(&mut self, op: &Op) -> Result<Said> {
        Ok(match *op {
            Op::Enqueue(new) => self.enqueue(new).await?,
            Op::Take {
                session,
                purpose,
                ahead,
            } => self.take(session, purpose, ahead).await?,
            Op::Grant { session } => self.grant(session).await?,
            Op::Collect { session, purpose } => self.collect(session, purpose).await?,
            Op::Resolve { item, how, is_late } => self.resolve(item, how, is_late).await?,
            Op::Acknowledge { item, is_late } => self.acknowledge(item, is_late).await?,
            Op::Die(slot) | Op::End(slot) => {
                self.leave(slot, matches!(op, Op::Die(_))).await?;
                Said::Nothing
            }
            Op::Clear => Said::Removed(self.queue.clear(&self.runner).await?),
            Op::Sweep => {
                let keys = &self.queue.keys;
                let sweep = |tr| async move {
                    let tr = &tr;
                    expire_dedupe(tr, keys, None).await?;
                    sweep_done(tr, keys).await
                };
                self.runner.run(sweep).await?;
                Said::Nothing
            }
            Op::Release(dedupe) => {
                let queue = &self.queue;
                let release = |tr| async move { queue.release_dedupe(&tr, &[dedupe]).await };
                Said::Was(self.runner.run(release).await?)
            }
            Op::Retain(retention) => {
                self.settings.dedupe_retention = Duration::from_millis(retention);
                let queue = &self.queue;
                let settings = &self.settings;
                let configure = |tr| async move { queue.configure(&tr, settings).await };
                self.runner.run(configure).await?;
                queue.settings.set(Arc::new(settings.clone()));
                Said::Nothing
            }
            Op::Pass(millis) => {
                self.clock.advance(Duration::from_millis(millis));
                Said::Nothing
            }
            Op::Change(item, change) => self.change(item, change).await?,
        })
    }

    async fn change(&self, item: usize, change: Change) -> Result<Said> {
        let queue = &self.queue;
        let item = &self.items[item];
        let change = |tr| async move {
            let tr = &tr;
            Ok(match change {
                Change::Cancel => Said::Cancelled(queue.cancel(tr, item).await?),
                Change::Expedite => Said::Was(queue.expedite(tr, item).await?),
                Change::Replace(value) => Said::Changed(queue.replace(tr, item, &value).await?),
                Change::SetPriority(to) => Said::Was(queue.set_priority(tr, item, to).await?),
                Change::Redrive => Said::Was(queue.redrive(tr, item).await?),
                Change::Purge => Said::Was(queue.purge(tr, item).await?),
            })
        };
        self.runner.run(change).await
    }

    async fn enqueue(&mut self, new: ItemSpec) -> Result<Said> {
        let options = Enqueue::new()
            .with_delay(Duration::from_millis(new.delay))
            .with_on_repeat(new.mode)
            .with_priority(new.priority)
            .with_max_attempts(new.max_attempts as u32);
        let options = match new.dedupe {
            Some(id) => options.with_dedupe(vec![id]),
            None => options,
        };
        let queue = &self.queue;
        let options = &options;
        let value = new.value;
        let enqueue = |tr| async move { queue.enqueue_with(&tr, &value, options).await };
        let (enqueued, commit) = self.runner.run_committed(enqueue).await?;
        Ok(match enqueued {
            Enqueued::Staged(staged) => {
                self.items
                    .push(staged.at(commit.versionstamp.expect("it wrote")));
                Said::Staged
            }
            Enqueued::Replaced(item) => {
                let number = self.items.iter().position(|known| *known == item);
                Said::Replaced(number.expect("it is known"))
            }
            Enqueued::Repeated => Said::Repeated,
        })
    }

    async fn take(&self, slot: usize, purpose: Purpose, ahead: usize) -> Result<Said> {
        let one = Demand { wanted: 1, purpose };
        let reserve = Demand {
            wanted: ahead,
            purpose: Purpose::Reserve,
        };
        let demand = &[one, reserve];
        let context = self.context(self.sessions[slot], demand);
        let taken = |tr| async move {
            let view = view_queue(&tr, context, 1 + ahead, TakeMode::Now).await?;
            take(&tr, context, view, &BTreeSet::new())
        };
        match self.runner.run(taken).await? {
            Some(Taken::Items(granted)) => Ok(said(granted)),
            other => panic!("{other:?}"),
        }
    }

    /// Registers a request for two items, and has it answered. Withdraws it if there are no items.
    async fn grant(&mut self, slot: usize) -> Result<Said> {
        let session = self.sessions[slot];
        let context = self.context(session, &[]);
        let leader = self.context(LEADER, &[]);
        let register = |tr| async move { append(&tr, context, 2).await };
        let (staged, commit) = self.runner.run_committed(register).await?;
        let request = &staged.at(commit.versionstamp.expect("it wrote"));
        let answer = |tr| async move { fulfill(&tr, leader, None, MAX_FULFILLMENT_ITEMS).await };
        let answered = self.runner.run(answer).await?.answered;
        let keys = &self.queue.keys;
        match answered {
            0 => {
                let remove = |tr| async move { withdraw(&tr, keys, session, request).await };
                assert!(self.runner.run(remove).await?);
            }
            _ => self.grants[slot].push_back(*request),
        }
        Ok(Said::Nothing)
    }

    async fn collect(&mut self, slot: usize, purpose: Purpose) -> Result<Said> {
        let Some(request) = self.grants[slot].pop_front() else {
            return Ok(Said::Granted(Vec::new()));
        };
        let request = &request;
        let demand = &[Demand { wanted: 1, purpose }];
        let context = self.context(self.sessions[slot], demand);
        let operation = |tr| async move { collect(&tr, context, request).await };
        let collected = self.runner.run(operation).await?;
        Ok(said(collected.expect("it was answered")))
    }

    /// Returns the session and the delivery that hold an item, or others if `is_late`.
    async fn held_by(&self, item: usize, is_late: bool) -> Result<(SessionId, u64)> {
        let keys = &self.queue.keys;
        let id = &self.items[item].id();
        let read = |tr| async move { find(&tr, keys, id).await };
        let found = self.runner.run(read).await?;
        let deliveries = found.as_ref().map_or(1, |(_, record)| record.deliveries);
        let session = match found {
            Some((Location::Held(session), _)) => session,
            _ => self.sessions[0],
        };
        Ok((session, deliveries - u64::from(is_late && deliveries > 0)))
    }

    async fn resolve(&self, item: usize, how: How, is_late: bool) -> Result<Said> {
        let (session, delivery) = self.held_by(item, is_late).await?;
        let now = self.clock_millis();
        let (how, reason) = match how {
            How::Complete => (GiveBack::Completed(Bytes::from("given back")), None),
            How::Unused => (GiveBack::Unused, None),
            How::Release => (GiveBack::Returned(When::Now), None),
            How::Snooze(delay) => (GiveBack::Returned(When::At(now + delay)), None),
            How::Fail => (GiveBack::Failed(When::Now), None),
            How::FailAndWait => (GiveBack::Failed(When::Later(backoff())), None),
            How::FailLater(delay) => (GiveBack::Failed(When::At(now + delay)), Some("not now")),
            How::Discard => (GiveBack::Discarded, Some("no good")),
            How::Die => unreachable!("the session does"),
        };
        let returned = &[Return {
            id: self.items[item].id(),
            delivery,
            how,
            reason: reason.map(Into::into),
        }];
        let context = self.context(session, &[]);
        let back = |tr| async move { give_back(&tr, context, returned).await };
        Ok(Said::GivenBack(self.runner.run(back).await?[0]))
    }

    /// Acknowledges with a delivery as the dispatcher would have made it.
    async fn acknowledge(&self, item: usize, is_late: bool) -> Result<Said> {
        let (session, number) = self.held_by(item, is_late).await?;
        let (commands, _dispatcher) = mpsc::unbounded_channel();
        let held = &HeldItem {
            id: self.items[item].id(),
            record: Record::default(),
            out: Arc::new(Outstanding::new(number, Duration::ZERO, Duration::MAX)),
            held: Arc::new(self.queue.keys.held(session)),
            shared: Arc::new(Shared {
                keys: self.queue.keys.clone(),
                env: self.runner.environment().clone(),
                settings: self.queue.settings.clone(),
                time_limit: Duration::MAX,
                backoff: backoff(),
                shuts_down: AtomicBool::new(false),
                dispatcher: SharedTask::new(),
                holdings: Holdings::default(),
                metrics: Metrics::new(&self.queue.keys.queue),
            }),
            commands,
            decision: AtomicU8::new(Decision::Open as u8),
            result: Mutex::new(Bytes::from("done")),
        };
        let ack = |tr| async move { held.ack(&tr).await };
        match self.runner.run(ack).await {
            Ok(()) => Ok(Said::Acknowledged),
            Err(Error::DeliveryLost { .. } | Error::Cancelled { .. }) => Ok(Said::Refused),
            Err(error) => Err(error),
        }
    }

    /// Lets a session die or end, and returns its items.
    async fn leave(&mut self, slot: usize, dies: bool) -> Result<()> {
        let keys = &self.queue.keys;
        let session = self.sessions[slot];
        let leave = |tr| async move {
            if dies {
                assert!(
                    keys.sessions
                        .declare_dead(&tr, session, |_| Some(i64::MAX))
                        .await?
                );
            } else {
                keys.sessions.end(&tr, session).await?;
            }
            Ok::<_, Error>(())
        };
        self.runner.run(leave).await?;
        let settings = &self.settings;
        while reclaim_step(&self.runner, keys, settings, session).await? != Progress::Removed {}
        self.renew(slot).await;
        Ok(())
    }

    fn clock_millis(&self) -> u64 {
        wall_millis(self.runner.environment())
    }

    /// Panics if an audit finds a contradiction.
    pub(super) async fn check(&self) {
        let audit = self.queue.audit(&self.runner).await.unwrap();
        assert!(audit.is_clean(), "{audit:?}");
    }

    async fn status(&self, item: usize) -> Result<Option<Status<u64>>> {
        let queue = &self.queue;
        let item = &self.items[item];
        let status = |tr| async move { queue.status(&tr, item).await };
        self.runner.run(status).await
    }

    /// Compares the whole queue with the model, which learns the random times from the store.
    pub(super) async fn compare(&self, model: &mut Model) -> Result<()> {
        assert_eq!(self.clock_millis(), model.now);
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
            self.compare_grants(number, life).await?;
        }
        for place in PlaceKind::ALL {
            self.compare_listing(model, place).await?;
        }
        self.compare_sessions(model).await?;
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
        let ended = (stats.completed, stats.cancelled);
        assert_eq!(ended, (model.completed, model.cancelled));
        Ok(())
    }

    /// Compares what the record of an item says of its grants with the model.
    async fn compare_grants(&self, number: usize, life: &ModelItem) -> Result<()> {
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
            attempts: life.attempts,
            deaths: life.deaths,
            deliveries: life.deliveries - life.uncounted,
            failure,
            enqueued: unix_time(life.enqueued),
            ready: unix_time(life.ready),
            granted: life.granted.map(unix_time),
            dedupe: life.enqueued_as.into_iter().collect(),
            result: Bytes::from(life.result),
        })
    }
}

fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(FIRST_WAIT), Duration::MAX)
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

fn said(granted: Vec<Granted>) -> Said {
    let granted = granted.into_iter();
    Said::Granted(
        granted
            .map(|item| (item.value.unwrap().into_inner::<u64>(), item.is_popped))
            .collect(),
    )
}
