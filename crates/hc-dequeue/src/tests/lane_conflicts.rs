//! Pairs of transactions of items with groups: which of them conflict, and which do not.

use std::time::{Duration, UNIX_EPOCH};

use conformance::plant::{Plant, Planted};
use conformance::second_fails;
use microqueue::ItemId;
use microqueue::keyspace::codec::MessagePack;
use microqueue::keyspace::{Bytes, Database, OwnedTransaction, Runner};

use super::memory;
use crate::items::changes::Changes;
use crate::items::error::{Error, Result};
use crate::items::group_limits::GroupLimits;
use crate::items::item_ref::ItemRef;
use crate::items::keys::lane_hash;
use crate::items::rate::Rate;
use crate::items::settings::Settings;
use crate::items::value::decoder;
use crate::lanes::ring::Ring;
use crate::lanes::{Gone, LaneMemory};
use crate::protocol::front::Fronts;
use crate::protocol::give_back::{GiveBack, GivenBack, Return, When, give_back};
use crate::protocol::take::{TakeMode, Taken, take, view_queue};
use crate::protocol::{Demand, Purpose, SessionContext};
use crate::queue::enqueue_options::Enqueue;
use crate::queue::handle::Queue;
use crate::session::SessionId;
use crate::testing::rates::advance_levels;

const A: SessionId = SessionId([1; 16]);
const B: SessionId = SessionId([2; 16]);

const LEASE: Duration = Duration::from_secs(10);

const THREE: GroupLimits = GroupLimits::new().with_limit(3);

/// More starts than a test has, and all at once.
const MANY: GroupLimits = GroupLimits::new().with_rate(Rate::new(1, LEASE).with_burst(9));

/// A transaction. The groups "one" and "other" have limits, "rated" has a rate, and "free" has nothing of it. Of each
/// group, both sessions hold an item, and two wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// A session takes the next item of a group, as after the turn of the group before it.
    Take(SessionId, &'static str),
    /// The same, as if the session had just taken another item of the group, and reads while that commits.
    TakeAhead(SessionId, &'static str),
    /// A session completes its item of a group.
    Complete(SessionId, &'static str),
    /// A session gives its item of a group back.
    Return(SessionId, &'static str),
    /// A session gives its item of a group back, which no handler got.
    Unused(SessionId, &'static str),
    Enqueue(&'static str),
    Configure(&'static str),
    ConfigureAll,
    Pause(&'static str),
    Resume(&'static str),
    /// The next item of a group gets another priority.
    SetPriority(&'static str),
    Cancel(&'static str),
    /// A test lets time pass for all tokens.
    Advance,
}

const KEYS: [&str; 4] = ["one", "other", "rated", "free"];

struct PairWorld<D> {
    db: D,
    queue: Queue<u64>,
}

impl<D: Database> PairWorld<D> {
    async fn new(db: D) -> Self {
        let runner = Runner::new(db.clone());
        let queue = Queue::<u64>::open(&runner, "queue").await.unwrap();
        let handle = &queue;
        let fill = |tr| async move {
            let tr = &tr;
            for session in [A, B] {
                handle.keys.sessions.open(tr, session, LEASE, UNIX_EPOCH);
            }
            for (group, limits) in [("one", THREE), ("other", THREE), ("rated", MANY)] {
                handle
                    .configure_group(tr, group.as_bytes(), Some(&limits))
                    .await?;
            }
            for group in KEYS {
                let options = Enqueue::new().with_group(group);
                let items = [1, 2, 3, 4].map(|value| (value, options.clone()));
                let _ = handle.enqueue_all_with(tr, &items).await?;
            }
            Ok::<_, Error>(())
        };
        runner.run(fill).await.unwrap();
        let world = Self { db, queue };
        for group in KEYS {
            for session in [A, B] {
                world.commit(Step::Take(session, group)).await;
            }
        }
        world
    }

    async fn commit(&self, step: Step) {
        let mut tr = self.db.begin().unwrap();
        self.stage(&tr, step).await.unwrap();
        tr.commit().await.unwrap();
    }

    /// Returns the item of a group that a session holds.
    async fn held(&self, tr: &D::Transaction, session: SessionId, group: &str) -> ItemId {
        let held = self.queue.keys.held(session);
        let held = held.snapshot(tr, 10, usize::MAX).await.unwrap();
        let mut held = held.into_iter().filter(|item| item.value.group == group);
        held.next().expect("the session holds one").id
    }

    /// Returns the next item of a group.
    async fn waiting(&self, tr: &D::Transaction, group: &str) -> ItemRef {
        let keys = &self.queue.keys;
        let waiting = keys.lane_items(group.as_bytes(), 10);
        let waiting = waiting.snapshot(tr, 1, usize::MAX).await.unwrap();
        keys.item_ref(waiting[0].id)
    }

    async fn stage(&self, tr: &D::Transaction, step: Step) -> Result<()> {
        let queue = &self.queue;
        match step {
            Step::Take(session, group) => self.take(tr, session, group, TakeMode::Now).await?,
            Step::TakeAhead(session, group) => {
                let gone = &Gone {
                    groups: [Bytes::from_static(group.as_bytes())].into(),
                    ..Gone::default()
                };
                let ahead = TakeMode::Ahead(gone);
                self.take(tr, session, group, ahead).await?;
            }
            Step::Complete(session, group) => {
                let completed = GiveBack::Completed(Bytes::new());
                self.give_back(tr, session, group, completed).await?;
            }
            Step::Return(session, group) => {
                let returned = GiveBack::Returned(When::Now);
                self.give_back(tr, session, group, returned).await?;
            }
            Step::Unused(session, group) => {
                self.give_back(tr, session, group, GiveBack::Unused).await?;
            }
            Step::Enqueue(group) => {
                let options = Enqueue::new().with_group(group);
                let _ = queue.enqueue_with(tr, &5, &options).await?;
            }
            Step::Configure(group) => {
                queue
                    .configure_group(tr, group.as_bytes(), Some(&THREE))
                    .await?;
            }
            Step::ConfigureAll => queue.configure_groups(tr, &THREE).await?,
            Step::Pause(group) => queue.pause_group(tr, group.as_bytes())?,
            Step::Resume(group) => queue.resume_group(tr, group.as_bytes())?,
            Step::SetPriority(group) => {
                let item = self.waiting(tr, group).await;
                assert!(queue.set_priority(tr, &item, 1).await?);
            }
            Step::Cancel(group) => {
                let item = self.waiting(tr, group).await;
                let _ = queue.cancel(tr, &item).await?;
            }
            Step::Advance => advance_levels(tr, &queue.keys, 7).await?,
        }
        Ok(())
    }

    async fn take(
        &self,
        tr: &D::Transaction,
        session: SessionId,
        group: &str,
        mode: TakeMode<'_>,
    ) -> Result<()> {
        let ring = Ring::beginning_at(lane_hash(group.as_bytes()));
        let fronts = &Fronts::new(Duration::ZERO, LaneMemory::new(ring));
        let settings = &Settings::default();
        let decode = &*decoder::<u64, _>(MessagePack);
        let demand = &[Demand {
            wanted: 1,
            purpose: Purpose::Deliver,
        }];
        let context = context(&self.queue, settings, session, demand, decode, fronts);
        let view = view_queue(tr, context, 1, mode).await?;
        let taken = take(tr, context, view, Changes::default()).await?;
        let Some(Taken::Items(items)) = &taken else {
            panic!("{taken:?}");
        };
        assert_eq!(items[0].record.group, group);
        Ok(())
    }

    async fn give_back(
        &self,
        tr: &D::Transaction,
        session: SessionId,
        group: &str,
        how: GiveBack,
    ) -> Result<()> {
        let fronts = &Fronts::new(Duration::ZERO, LaneMemory::new(Ring::beginning_at(0)));
        let settings = &Settings::default();
        let decode = &*decoder::<u64, _>(MessagePack);
        let context = context(&self.queue, settings, session, &[], decode, fronts);
        let item = Return {
            id: self.held(tr, session, group).await,
            delivery: 1,
            how,
            reason: None,
        };
        let (given, changes) = give_back(tr, context, &[item]).await?;
        changes.stage(tr, &self.queue.keys);
        assert_eq!(given, [GivenBack::Accepted]);
        Ok(())
    }
}

fn context<'a>(
    queue: &'a Queue<u64>,
    settings: &'a Settings,
    session: SessionId,
    demand: &'a [Demand],
    decode: &'a crate::items::value::Decode,
    fronts: &'a Fronts,
) -> SessionContext<'a> {
    SessionContext {
        keys: &queue.keys,
        settings,
        session,
        promotes: true,
        demand,
        decode,
        fronts,
    }
}

/// Lets two steps read the same state, and commits one after the other. Returns whether the second one failed.
async fn conflict<D: Database>(db: D, first: Step, second: Step) -> bool {
    let world = PairWorld::new(db).await;
    let one = world.db.begin().unwrap();
    let other = world.db.begin().unwrap();
    world.stage(&one, first).await.unwrap();
    world.stage(&other, second).await.unwrap();
    second_fails((first, second), one, other).await
}

/// The pairs of which the second step must fail, and why.
const CONFLICTS: [(Step, Step); 24] = [
    // Starts of a limited group count each other's slots.
    (Step::Take(A, "one"), Step::Take(B, "one")),
    // Starts of a group with a rate take tokens from each other.
    (Step::Take(A, "rated"), Step::Take(B, "rated")),
    // A token comes back to a bucket that no other transaction changes.
    (Step::Take(A, "rated"), Step::Unused(B, "rated")),
    (Step::Unused(A, "rated"), Step::Take(B, "rated")),
    (Step::Unused(A, "rated"), Step::Unused(B, "rated")),
    // A test moves the tokens that are there.
    (Step::Take(A, "rated"), Step::Advance),
    (Step::Advance, Step::Take(A, "rated")),
    (Step::Unused(A, "rated"), Step::Advance),
    (Step::Advance, Step::Unused(A, "rated")),
    // An item is granted once, with or without a limit.
    (Step::Take(A, "free"), Step::Take(B, "free")),
    // A start, an end and a return read the limits.
    (Step::Configure("one"), Step::Take(A, "one")),
    (Step::Configure("rated"), Step::Take(A, "rated")),
    (Step::Configure("free"), Step::Take(A, "free")),
    (Step::ConfigureAll, Step::Take(A, "free")),
    (Step::Configure("one"), Step::Complete(A, "one")),
    (Step::Configure("one"), Step::Return(A, "one")),
    (Step::ConfigureAll, Step::Complete(A, "free")),
    // A start reads that its group is not paused.
    (Step::Pause("one"), Step::Take(A, "one")),
    (Step::Pause("rated"), Step::Take(A, "rated")),
    (Step::Pause("free"), Step::Take(A, "free")),
    (Step::Resume("free"), Step::Take(A, "free")),
    // An item that is granted is not moved or removed.
    (Step::SetPriority("one"), Step::Take(A, "one")),
    (Step::Take(A, "one"), Step::SetPriority("one")),
    (Step::Cancel("free"), Step::Take(A, "free")),
];

#[tokio::test]
async fn what_counts_slots_or_reads_limits_conflicts() {
    for (first, second) in CONFLICTS {
        let failed = conflict(memory(), first, second).await;
        assert!(failed, "{first:?}, then {second:?}");
    }
}

#[tokio::test]
async fn without_read_conflicts_all_of_that_happens() {
    for (first, second) in CONFLICTS {
        let planted = Planted::new(memory(), Plant::NoReadConflicts);
        let failed = Box::pin(conflict(planted, first, second)).await;
        assert!(!failed, "{first:?}, then {second:?}");
    }
}

/// A group has lost its rate, and its tokens are still there when a session reads ahead.
#[tokio::test]
async fn limits_that_come_while_a_session_reads_ahead_conflict_with_its_take() {
    let world = PairWorld::new(memory()).await;
    let mut tr = world.db.begin().unwrap();
    let unlimited = world.queue.configure_group(&tr, b"rated", None).await;
    unlimited.unwrap();
    tr.commit().await.unwrap();
    let steps = (Step::Configure("rated"), Step::TakeAhead(A, "rated"));
    let configures = world.db.begin().unwrap();
    let takes = world.db.begin().unwrap();
    world.stage(&takes, steps.1).await.unwrap();
    world.stage(&configures, steps.0).await.unwrap();
    assert!(second_fails(steps, configures, takes).await);
}

#[tokio::test]
async fn items_of_a_group_do_not_conflict_otherwise() {
    let pairs = [
        (Step::Enqueue("one"), Step::Take(A, "one")),
        (Step::Take(A, "one"), Step::Enqueue("one")),
        (Step::Enqueue("one"), Step::Enqueue("one")),
        (Step::Complete(A, "one"), Step::Complete(B, "one")),
        (Step::Complete(A, "one"), Step::Return(B, "one")),
        (Step::Complete(A, "one"), Step::Take(B, "one")),
        (Step::Take(A, "one"), Step::Complete(B, "one")),
        (Step::Take(A, "one"), Step::Take(B, "other")),
        (Step::Enqueue("rated"), Step::Take(A, "rated")),
        (Step::Take(A, "rated"), Step::Enqueue("rated")),
        (Step::Complete(A, "rated"), Step::Take(B, "rated")),
        (Step::Take(A, "rated"), Step::Complete(B, "rated")),
        (Step::Take(A, "rated"), Step::Take(B, "one")),
        (Step::Unused(A, "rated"), Step::Complete(B, "rated")),
        (Step::Unused(A, "free"), Step::Unused(B, "free")),
        (Step::Take(A, "one"), Step::Take(B, "free")),
        (Step::Configure("one"), Step::Take(A, "other")),
        (Step::Configure("one"), Step::Complete(A, "other")),
        // A group with limits of its own starts items whatever the default ones are.
        (Step::ConfigureAll, Step::Take(A, "one")),
        (Step::Take(A, "one"), Step::Configure("one")),
        (Step::Complete(A, "one"), Step::Configure("one")),
        (Step::Configure("one"), Step::Configure("one")),
        (Step::Cancel("one"), Step::Complete(A, "one")),
        (Step::Advance, Step::Complete(A, "rated")),
        (Step::Advance, Step::Enqueue("rated")),
        (Step::Advance, Step::Take(A, "one")),
        (Step::Pause("one"), Step::Take(A, "other")),
        (Step::Pause("one"), Step::Enqueue("one")),
        (Step::Pause("one"), Step::Complete(A, "one")),
        (Step::Pause("one"), Step::Return(A, "one")),
        (Step::Pause("one"), Step::Configure("one")),
        (Step::Take(A, "one"), Step::Pause("one")),
        (Step::Pause("one"), Step::Resume("one")),
    ];
    for (first, second) in pairs {
        let failed = conflict(memory(), first, second).await;
        assert!(!failed, "{first:?}, then {second:?}");
    }
}
