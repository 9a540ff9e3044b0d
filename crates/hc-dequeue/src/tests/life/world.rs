//! A queue in a store, on which the steps of a program run.

use std::array;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use microqueue::ItemId;
use microqueue::keyspace::codec::MessagePack;
use microqueue::keyspace::env::ManualClock;
use microqueue::keyspace::run::RunOptions;
use microqueue::keyspace::{Bytes, Environment, OpenOptions, Runner, Store, Transaction, Tx};

use super::kinds::kinds_of;
use super::leave::Bug;
use super::model::{FIRST_WAIT, Rules, Said};
use super::program::{Change, How, ItemSpec, Op};
use super::turns::{RARELY, RATED};
use super::{BATCH_OF_STAYING, BATCHES, SESSIONS, START};
use crate::batches::operations::Batch;
use crate::items::MAX_STEP_ITEMS;
use crate::items::batch::BatchRef;
use crate::items::changes::Changes;
use crate::items::death::Death;
use crate::items::dedupe::expire_dedupe;
use crate::items::end::sweep_done;
use crate::items::error::{Error, Result};
use crate::items::find::{Location, find};
use crate::items::group_limits::GroupLimits;
use crate::items::item_ref::ItemRef;
use crate::items::keys::Keys;
use crate::items::record::Reserve;
use crate::items::settings::Settings;
use crate::items::value::{Decode, decoder};
use crate::lanes::LaneMemory;
use crate::lanes::ring::Ring;
use crate::lanes::sweep::sweep_lanes;
use crate::options::Backoff;
use crate::protocol::confirm::confirm_handed_out;
use crate::protocol::front::Fronts;
use crate::protocol::fulfill::fulfill;
use crate::protocol::give_back::{GiveBack, GivenBack, Return, When, give_back};
use crate::protocol::reclaim::{Reclaimed, reclaim_step};
use crate::protocol::request::{Wanted, append, collect, withdraw};
use crate::protocol::take::{TakeMode, Taken, take, view_queue};
use crate::protocol::{Demand, Granted, Purpose, SessionContext};
use crate::queue::enqueue_options::{Enqueue, Enqueued};
use crate::queue::handle::Queue;
use crate::queue::status::Status;
use crate::session::SessionId;
use crate::session::wall::{unix_time, wall_millis};

/// A session that answers requests and has no demand.
pub(super) const LEADER: SessionId = SessionId([0xff; 16]);

/// The queue of deaths.
const DEATHS: &str = "deaths";

/// A queue in a store, with the model's names for its items and sessions.
pub(super) struct LifeWorld {
    pub(super) runner: Runner<Store>,
    clock: ManualClock,
    pub(super) queue: Queue<u64>,
    pub(super) deaths: Queue<Death>,
    settings: Settings,
    /// What each session knows, and its keys.
    fronts: [Fronts; SESSIONS],
    keys: [Keys; SESSIONS],
    decode: Arc<Decode>,
    pub(super) bug: Option<Bug>,
    pub(super) items: Vec<ItemRef>,
    pub(super) batches: Vec<BatchRef>,
    pub(super) sessions: [SessionId; SESSIONS],
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
        .with_deaths(DEATHS)
}

impl LifeWorld {
    pub(super) async fn new(seed: u64, rules: Rules) -> Self {
        let clock = ManualClock::new();
        // The clock must not start at zero, which stands for no time.
        clock.advance(Duration::from_millis(START));
        let env = Environment::seeded(seed, Arc::new(clock.clone()));
        let store = microqueue::keyspace::open("memory:").unwrap();
        let runner = Runner::with_options(store, RunOptions::default().with_environment(env));
        let deaths = Queue::open(&runner, DEATHS).await.unwrap();
        let queue = Queue::open_with(&runner, "queue", settings(rules), OpenOptions::default());
        let queue = queue.await.unwrap();
        let mut world = Self {
            deaths,
            settings: settings(rules),
            fronts: array::from_fn(|slot| {
                let lanes = LaneMemory::taking(kinds_of(slot), Ring::beginning_at(0));
                Fronts::new(Duration::ZERO, lanes)
            }),
            keys: array::from_fn(|slot| {
                let kinds = kinds_of(slot).to_row();
                queue.keys.of_kinds(kinds.as_deref())
            }),
            decode: decoder::<u64, _>(MessagePack),
            bug: None,
            queue,
            runner,
            clock,
            items: Vec::new(),
            batches: Vec::new(),
            sessions: [SessionId([0; 16]); SESSIONS],
            grants: [const { VecDeque::new() }; SESSIONS],
            sessions_opened: 0,
        };
        world.open(LEADER).await;
        world.limit(RATED, Some(RARELY)).await.unwrap();
        for batch in 0..BATCHES {
            let options = match batch {
                BATCH_OF_STAYING => Batch::new().with_dead_letters_staying(),
                _ => Batch::new(),
            };
            let queue = &world.queue;
            let options = &options;
            let open = |tr| async move { queue.open_batch(&tr, options).await };
            let opened = world.runner.run(open).await.unwrap();
            world.batches.push(opened);
        }
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
        let session = self.sessions[slot];
        self.open(session).await;
        let keys = &self.keys[slot];
        let kinds = &kinds_of(slot).to_row().expect("it takes named kinds");
        let store = |tr: Tx<_>| async move {
            tr.set(&keys.session_kinds(session), kinds);
            Ok::<_, Error>(())
        };
        self.runner.run(store).await.unwrap();
    }

    /// Returns the context of a session in the registry of the session in a slot, whose kinds it takes.
    fn context<'a>(
        &'a self,
        slot: usize,
        session: SessionId,
        demand: &'a [Demand],
    ) -> SessionContext<'a> {
        SessionContext {
            keys: &self.keys[slot],
            settings: &self.settings,
            session,
            promotes: true,
            demand,
            decode: &*self.decode,
            fronts: &self.fronts[slot],
        }
    }

    pub(super) async fn step(&mut self, op: &Op) -> Result<Said> {
        Ok(match *op {
            Op::Enqueue(new) => self.enqueue(new).await?,
            Op::Take {
                session,
                purpose,
                ahead,
            } => {
                self.fronts[session].lanes.begin_again();
                self.take(session, purpose, ahead).await?
            }
            Op::Grant { session } => {
                self.fronts[session].lanes.begin_again();
                self.grant(session).await?
            }
            Op::Collect { session, purpose } => self.collect(session, purpose).await?,
            Op::Resolve { item, how, is_late } => self.resolve(item, how, is_late).await?,
            Op::Acknowledge { item, is_late } => self.acknowledge(item, is_late).await?,
            Op::Leave {
                item,
                what,
                is_late,
            } => self.leave_in(item, what, is_late).await?,
            Op::Die(slot) | Op::End(slot) => {
                self.leave(slot, matches!(op, Op::Die(_))).await?;
                Said::Nothing
            }
            Op::Clear => Said::Removed(self.queue.clear(&self.runner).await?.removed),
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
            Op::Limit(group, limits) => self.limit(group, limits).await?,
        })
    }

    /// Sets the limits of a group or, for the empty one, of all groups.
    async fn limit(&self, group: &str, limits: Option<GroupLimits>) -> Result<Said> {
        let queue = &self.queue;
        let limits = &limits;
        let configure = |tr| async move {
            match group {
                "" => {
                    queue
                        .configure_groups(&tr, &limits.unwrap_or_default())
                        .await
                }
                group => {
                    queue
                        .configure_group(&tr, group.as_bytes(), limits.as_ref())
                        .await
                }
            }
        };
        self.runner.run(configure).await?;
        let mut sweep = None;
        loop {
            sweep = sweep_lanes(&self.runner, &queue.keys, sweep).await?;
            if sweep.is_none() {
                return Ok(Said::Nothing);
            }
        }
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
        let options = match new.group {
            "" => options,
            group => options.with_group(group),
        };
        let options = match new.kind {
            "" => options,
            kind => options.with_kind(kind),
        };
        let options = match new.batch {
            Some(batch) => options.with_batch(&self.batches[batch]),
            None => options,
        };
        let queue = &self.queue;
        let options = &options;
        let value = new.value;
        let enqueue = |tr| async move { queue.enqueue_with(&tr, &value, options).await };
        let (enqueued, commit) = match self.runner.run_committed(enqueue).await {
            Err(Error::OtherBatch { .. }) => return Ok(Said::OfOtherBatch),
            enqueued => enqueued?,
        };
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
        let mut context = self.context(slot, self.sessions[slot], demand);
        let of_any_kind = Fronts::new(Duration::ZERO, LaneMemory::new(Ring::beginning_at(0)));
        if self.bug == Some(Bug::UnknownKindCounted) {
            context.fronts = &of_any_kind;
        }
        let taken = |tr| async move {
            let view = view_queue(&tr, context, 1 + ahead, TakeMode::Now).await?;
            take(&tr, context, view, Changes::default()).await
        };
        match self.runner.run(taken).await? {
            Some(Taken::Items(granted)) => {
                let kinds = self.fronts[slot].lanes.kinds();
                let (known, unknown): (Vec<_>, Vec<_>) = granted
                    .into_iter()
                    .partition(|item| kinds.admit(&item.record.kind));
                self.fail(slot, &unknown).await?;
                self.hand_out(slot, known, purpose).await
            }
            other => panic!("{other:?}"),
        }
    }

    /// Gives back items as failed.
    async fn fail(&self, slot: usize, items: &[Granted]) -> Result<()> {
        let failed = items.iter().map(|item| Return {
            id: item.id,
            delivery: item.record.deliveries,
            how: GiveBack::Failed(When::Now),
            reason: None,
        });
        let returns = &failed.collect::<Vec<_>>();
        let context = self.context(slot, self.sessions[slot], &[]);
        let back = |tr| async move {
            let (_, changes) = give_back(&tr, context, returns).await?;
            changes.stage(&tr, context.keys);
            Ok::<_, Error>(())
        };
        self.runner.run(back).await
    }

    /// Registers a request for two items, and has it answered. Withdraws it if there are no items.
    async fn grant(&mut self, slot: usize) -> Result<Said> {
        let session = self.sessions[slot];
        let context = self.context(slot, session, &[]);
        let leader = self.context(slot, LEADER, &[]);
        let wanted = Wanted::of(&[Demand {
            wanted: 2,
            purpose: Purpose::Deliver,
        }]);
        let register = |tr| async move { append(&tr, context, wanted).await };
        let (staged, commit) = self.runner.run_committed(register).await?;
        let request = &staged.at(commit.versionstamp.expect("it wrote"));
        let max_items = MAX_STEP_ITEMS;
        let answer = |tr| async move { fulfill(&tr, leader, None, max_items, &[]).await };
        let answered = self.runner.run(answer).await?.0.answered;
        let keys = &self.keys[slot];
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
        let context = self.context(slot, self.sessions[slot], demand);
        let operation = |tr| async move { collect(&tr, context, request).await };
        let collected = self.runner.run(operation).await?;
        let granted = collected.expect("it was answered");
        self.hand_out(slot, granted, purpose).await
    }

    /// Hands out the first of these items if it was granted for that, as a dispatcher does: an item that is handed out
    /// apart waits until its record says so.
    async fn hand_out(&self, slot: usize, granted: Vec<Granted>, purpose: Purpose) -> Result<Said> {
        let held = &self.queue.keys.held(self.sessions[slot]);
        if let Some(first) = granted.first()
            && purpose == Purpose::Deliver
        {
            let waits = first.record.reserve == Reserve::In;
            assert_eq!(waits, self.settings.hands_out_apart(&first.record));
            let delivery = &[(first.id, first.record.deliveries)];
            let confirm = |tr| async move { confirm_handed_out(&tr, held, delivery).await };
            self.runner.run(confirm).await?;
        }
        Ok(said(granted))
    }

    /// Returns the session and the delivery that hold an item, or others if `is_late`.
    pub(super) async fn held_by(&self, item: usize, is_late: bool) -> Result<(SessionId, u64)> {
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
        if self.bug == Some(Bug::RememberedRecord) {
            self.forget_what_was_left(item, session).await?;
        }
        let now = self.clock_millis();
        let (how, reason) = match how {
            How::Complete => (GiveBack::Completed(Bytes::from("given back")), None),
            How::Unused => (GiveBack::Unused, None),
            How::Release => (GiveBack::Returned(When::Now), None),
            How::Snooze(delay) => (GiveBack::Returned(When::At(now + delay)), None),
            How::Fail => (GiveBack::Failed(When::Now), None),
            How::FailAndWait => (GiveBack::Failed(When::Later(backoff())), None),
            How::FailLater(delay) => (GiveBack::Failed(When::At(now + delay)), Some("not now")),
            How::Undecodable => (GiveBack::Undecodable(When::Now), Some("no number")),
            How::Discard => (GiveBack::Discarded, Some("no good")),
            How::Die => unreachable!("the session does"),
        };
        let returned = &[Return {
            id: self.items[item].id(),
            delivery,
            how,
            reason: reason.map(Into::into),
        }];
        let slot = self.sessions.iter().position(|known| *known == session);
        let context = self.context(slot.unwrap_or(0), session, &[]);
        let back = |tr| async move {
            let (given, changes) = give_back(&tr, context, returned).await?;
            changes.stage(&tr, context.keys);
            Ok::<_, Error>(given)
        };
        let given = self.runner.run(back).await?.remove(0);
        // The model finds the dead letter at its place.
        let is_dead = matches!(given, GivenBack::Dead(_));
        Ok(Said::GivenBack(if is_dead {
            GivenBack::Accepted
        } else {
            given
        }))
    }

    /// Acknowledges with a delivery as the dispatcher would have made it.
    async fn acknowledge(&self, item: usize, is_late: bool) -> Result<Said> {
        let delivery = &self.delivery(item, is_late).await?;
        let ack = |tr| async move { delivery.ack(&tr).await };
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
        while reclaim_step(&self.runner, keys, settings, session).await? != Reclaimed::Removed {}
        self.renew(slot).await;
        Ok(())
    }

    pub(super) fn clock_millis(&self) -> u64 {
        wall_millis(self.runner.environment())
    }

    /// Panics if an audit finds a contradiction.
    pub(super) async fn check(&self) {
        let audit = self.queue.audit(&self.runner).await.unwrap();
        assert!(audit.is_clean(), "{audit:?}");
        let audit = self.deaths.audit(&self.runner).await.unwrap();
        assert!(audit.is_clean(), "{audit:?}");
    }

    pub(super) async fn status(&self, item: usize) -> Result<Option<Status<u64>>> {
        let queue = &self.queue;
        let item = &self.items[item];
        let status = |tr| async move { queue.status(&tr, item).await };
        self.runner.run(status).await
    }
}

fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(FIRST_WAIT), Duration::MAX)
}

fn said(granted: Vec<Granted>) -> Said {
    let granted = granted.into_iter();
    Said::Granted(
        granted
            .map(|item| (item.value.unwrap().into_inner::<u64>(), item.is_popped))
            .collect(),
    )
}
