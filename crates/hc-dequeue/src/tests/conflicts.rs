//! Pairs of protocol steps that begin at the same time: which one makes the other one fail.

mod steps;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use conformance::plant::{Plant, Planted};
use conformance::second_fails;
use futures::future::BoxFuture;
use microqueue::ItemId;
use microqueue::keyspace::codec::MessagePack;
use microqueue::keyspace::{
    Bytes, Database, Isolation, OwnedTransaction, RangeQuery, Runner, Store, Subspace, Transaction,
    read_all,
};

use super::held::held_item;
use super::memory;
use crate::consume::held_item::HeldItem;
use crate::items::MAX_STEP_ITEMS;
use crate::items::changes::Changes;
use crate::items::error::{Error, Result};
use crate::items::places::put_new;
use crate::items::priority::Priority;
use crate::items::record::{Progress, Record};
use crate::items::settings::Settings;
use crate::items::value::{Decode, decoder};
use crate::lanes::Gone;
use crate::lanes::LaneMemory;
use crate::lanes::ring::Ring;
use crate::protocol::front::Fronts;
use crate::protocol::fulfill::fulfill;
use crate::protocol::give_back::{GiveBack, GivenBack, Return, When, give_back};
use crate::protocol::reclaim::{reclaim_items, remove_requests, remove_session};
use crate::protocol::request::{Wanted, collect, register, withdraw};
use crate::protocol::take::{TakeMode, Taken, take, view_queue};
use crate::protocol::{Demand, Purpose, SessionContext};
use crate::queue::change::{Cancelled, Replaced};
use crate::queue::handle::Queue;
use crate::queue::list::PlaceKind;
use crate::session::SessionId;

/// A holds an item and has the only request. B and C are other sessions. The dead session holds an item.
const A: SessionId = SessionId([1; 16]);
const B: SessionId = SessionId([2; 16]);
const C: SessionId = SessionId([3; 16]);
const DEAD: SessionId = SessionId([4; 16]);

const LEASE: Duration = Duration::from_secs(10);

const ONE: [Demand; 1] = [Demand {
    wanted: 1,
    purpose: Purpose::Deliver,
}];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Enqueue,
    Pause,
    Register(SessionId),
    Take(SessionId),
    /// By B or C, for the existing request.
    Fulfill(SessionId),
    Withdraw,
    Collect,
    Complete,
    /// Of the item that A holds.
    Checkpoint,
    /// Of the same item.
    Progress,
    Beat,
    /// A heartbeat that promises a longer lease.
    Promise,
    DeclareDead,
    /// For a dead session.
    ReturnItems(SessionId),
    /// Removes the dead session, after it holds nothing.
    RemoveSession,
    Change(Edit),
}

/// A step that an application takes with a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edit {
    /// Cancels the item that A holds.
    CancelHeld,
    /// Cancels the item that is granted to A.
    CancelGranted,
    /// Cancels the first queued item.
    CancelFirst,
    ReplaceFirst,
    /// Expedites the item that is due.
    Expedite,
}

/// The state in which two steps begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// Items, but no request.
    Items,
    /// A's request, and items.
    Requested,
    /// A's request, but no items.
    RequestedWithoutItems,
    /// A's request has been answered.
    Granted,
    /// A's request has been answered. A is dead, and the items that it held were returned.
    GrantedToTheDead,
    /// A is dead, and still holds its item.
    HeldByTheDead,
    /// The dead session holds nothing.
    Empty,
    /// A's request, and a delayed item that is due.
    Due,
}

struct PairWorld<D> {
    db: D,
    queue: Queue<u64>,
    settings: Settings,
    fronts: Fronts,
    decode: Arc<Decode>,
    request: Option<ItemId>,
    held: ItemId,
    /// The first queued item at the beginning, or the one that is due.
    first: Option<ItemId>,
}

impl<D: Database> PairWorld<D> {
    async fn new(db: D, scene: Scene) -> Self {
        let runner = Runner::new(db.clone());
        let subspace = Subspace::from("queue");
        let queue = Queue::<u64>::open(&runner, subspace);
        let queue = queue.await.unwrap();
        let handle = &queue;
        let keys = &queue.keys;
        let open = |tr| async move {
            for session in [A, B, C, DEAD] {
                keys.sessions.open(&tr, session, LEASE, UNIX_EPOCH);
            }
            handle.enqueue_all(&tr, &[1, 2]).await.map(drop)
        };
        runner.run(open).await.unwrap();
        let mut world = Self {
            db,
            request: None,
            first: None,
            held: ItemId::Commit {
                versionstamp: microqueue::keyspace::Versionstamp::INCOMPLETE,
                call: 0,
            },
            queue: queue.clone(),
            settings: Settings::default(),
            fronts: Fronts::new(Duration::ZERO, LaneMemory::new(Ring::beginning_at(0))),
            decode: decoder::<u64, _>(MessagePack),
        };
        for holder in [A, DEAD] {
            world.commit(Step::Take(holder)).await.unwrap();
        }
        let tr = world.db.begin().unwrap();
        let held = keys.held(A).snapshot(&tr, 1, usize::MAX).await.unwrap();
        world.held = held[0].id;
        let die = |tr| async move { keys.sessions.end(&tr, DEAD).await };
        runner.run(die).await.unwrap();
        if scene == Scene::Empty {
            world.commit(Step::ReturnItems(DEAD)).await.unwrap();
        }
        if !matches!(
            scene,
            Scene::RequestedWithoutItems | Scene::Empty | Scene::Due
        ) {
            world.commit(Step::Enqueue).await.unwrap();
            world.commit(Step::Enqueue).await.unwrap();
            let tr = world.db.begin().unwrap();
            let queued = keys.queued(Priority::DEFAULT);
            let first = queued.snapshot(&tr, 1, usize::MAX).await.unwrap();
            world.first = Some(first[0].id);
        }
        if scene == Scene::Due {
            world.first = Some(world.enqueue_due().await);
        }
        if !matches!(scene, Scene::Items | Scene::HeldByTheDead | Scene::Empty) {
            world.commit(Step::Register(A)).await.unwrap();
            let tr = world.db.begin().unwrap();
            let requests = keys.requests.snapshot(&tr, 1, usize::MAX).await.unwrap();
            world.request = Some(requests[0].id);
        }
        if scene == Scene::HeldByTheDead {
            world.commit(Step::DeclareDead).await.unwrap();
        }
        if matches!(scene, Scene::Granted | Scene::GrantedToTheDead) {
            world.commit(Step::Fulfill(B)).await.unwrap();
        }
        if scene == Scene::GrantedToTheDead {
            world.commit(Step::DeclareDead).await.unwrap();
            world.commit(Step::ReturnItems(A)).await.unwrap();
        }
        world
    }

    /// Enqueues an item that is due.
    async fn enqueue_due(&self) -> ItemId {
        let keys = &*self.queue.keys;
        let record = &Record::new(0, Bytes::from_static(&[7]));
        let enqueue = |tr| async move {
            let mut changes = Changes::default();
            let staged = put_new(&tr, keys, record, Some(1), &mut changes).await?;
            changes.stage(&tr, keys);
            Ok::<_, Error>(staged)
        };
        let runner = Runner::new(self.db.clone());
        let (staged, commit) = runner.run_committed(enqueue).await.unwrap();
        staged.at(commit.versionstamp.unwrap())
    }

    fn context(&self, session: SessionId) -> SessionContext<'_> {
        SessionContext {
            keys: &self.queue.keys,
            settings: &self.settings,
            session,
            promotes: true,
            demand: &ONE,
            decode: &*self.decode,
            fronts: &self.fronts,
        }
    }

    /// Stages a step. The step must have something to do.
    fn stage<'a>(&'a self, tr: &'a D::Transaction, step: Step) -> BoxFuture<'a, Result<()>> {
        let keys = &*self.queue.keys;
        Box::pin(async move {
            match step {
                Step::Enqueue => drop(self.queue.enqueue(tr, &7).await?),
                Step::Pause => self.queue.pause(tr),
                Step::Register(session) => {
                    assert!(
                        register(tr, self.context(session), Wanted::of(&ONE))
                            .await?
                            .is_some()
                    );
                }
                Step::Take(session) => {
                    let context = self.context(session);
                    let view = view_queue(tr, context, 1, TakeMode::Now).await?;
                    drop(take(tr, context, view, Changes::default()).await?);
                }
                Step::Fulfill(session) => {
                    let context = SessionContext {
                        demand: &[],
                        ..self.context(session)
                    };
                    let max_items = MAX_STEP_ITEMS;
                    let (fulfilled, _) = fulfill(tr, context, None, max_items, &[]).await?;
                    assert!(fulfilled.has_changed());
                }
                Step::Withdraw => {
                    assert!(withdraw(tr, keys, A, &self.request.unwrap()).await?);
                }
                Step::Collect => {
                    let collected = collect(tr, self.context(A), &self.request.unwrap()).await?;
                    assert!(collected.is_some());
                }
                Step::Complete => self.complete(tr).await?,
                Step::Checkpoint => self.held_by_a().set_checkpoint(tr, b"half").await?,
                Step::Progress => {
                    let progress = Progress {
                        done: 1,
                        total: 2,
                        text: String::new(),
                    };
                    self.held_by_a().set_progress(tr, progress).await?;
                }
                Step::Beat => self.beat(tr, LEASE).await?,
                Step::Promise => self.beat(tr, 2 * LEASE).await?,
                Step::DeclareDead => {
                    assert!(
                        keys.sessions
                            .declare_dead(tr, A, |_| Some(i64::MAX))
                            .await?
                    );
                }
                Step::ReturnItems(session) => {
                    let (count, _) = reclaim_items(tr, keys, &self.settings, session).await?;
                    assert_eq!(count, 1);
                }
                Step::Change(change) => self.change(tr, change).await?,
                Step::RemoveSession => {
                    remove_requests(tr, keys, DEAD).await?;
                    assert!(remove_session(tr, keys, DEAD).await?);
                }
            }
            Ok(())
        })
    }

    /// Completes the item that A holds.
    async fn complete(&self, tr: &D::Transaction) -> Result<()> {
        let item = Return {
            id: self.held,
            delivery: 1,
            how: GiveBack::Completed(Bytes::new()),
            reason: None,
        };
        let (given, changes) = give_back(tr, self.context(A), &[item]).await?;
        changes.stage(tr, &self.queue.keys);
        assert_eq!(given, [GivenBack::Accepted]);
        Ok(())
    }

    /// Returns the first delivery of the item that A holds.
    fn held_by_a(&self) -> HeldItem {
        let runner = Runner::new(self.db.clone()).on_store();
        held_item(&runner, &self.queue, self.held, (A, 1))
    }

    async fn beat(&self, tr: &D::Transaction, lease: Duration) -> Result<()> {
        let sessions = &self.queue.keys.sessions;
        assert!(sessions.beat(tr, A, lease, UNIX_EPOCH).await?);
        Ok(())
    }

    async fn change(&self, tr: &D::Transaction, change: Edit) -> Result<()> {
        let queue = &self.queue;
        let held = queue.keys.item_ref(self.held);
        let first = || queue.keys.item_ref(self.first.unwrap());
        match change {
            Edit::CancelHeld => assert_eq!(queue.cancel(tr, &held).await?, Cancelled::Requested),
            Edit::CancelGranted => {
                assert_eq!(queue.cancel(tr, &first()).await?, Cancelled::Requested);
            }
            Edit::CancelFirst => {
                assert_eq!(queue.cancel(tr, &first()).await?, Cancelled::Removed);
            }
            Edit::ReplaceFirst => {
                let replaced = queue.replace(tr, &first(), &8).await?;
                assert_eq!(replaced, Replaced::Replaced);
            }
            Edit::Expedite => assert!(queue.expedite(tr, &first()).await?),
        }
        Ok(())
    }

    async fn commit(&self, step: Step) -> Result<()> {
        let mut tr = self.db.begin()?;
        self.stage(&tr, step).await?;
        tr.commit().await?;
        Ok(())
    }
}

/// Lets two steps read the same state, and commits one after the other. Returns whether the second one failed.
async fn conflict<D: Database>(db: D, scene: Scene, first: Step, second: Step) -> bool {
    let world = PairWorld::new(db, scene).await;
    let one = world.db.begin().unwrap();
    let other = world.db.begin().unwrap();
    world.stage(&one, first).await.unwrap();
    world.stage(&other, second).await.unwrap();
    second_fails((scene, first, second), one, other).await
}

/// The pairs of which the second step must fail, and why.
const CONFLICTS: [(Scene, Step, Step); 40] = [
    // Declaring a session dead reads its heartbeat.
    (Scene::Items, Step::Beat, Step::DeclareDead),
    (Scene::Items, Step::DeclareDead, Step::Beat),
    // It also reads the lease that the session has promised.
    (Scene::Items, Step::Promise, Step::DeclareDead),
    (Scene::Items, Step::DeclareDead, Step::Promise),
    // A transaction that writes rows of a session reads its state.
    (Scene::Items, Step::DeclareDead, Step::Register(A)),
    (Scene::Items, Step::DeclareDead, Step::Take(A)),
    (Scene::Requested, Step::DeclareDead, Step::Fulfill(B)),
    // An item is granted once, and a request is answered once.
    (Scene::Items, Step::Take(A), Step::Take(B)),
    (Scene::Requested, Step::Fulfill(B), Step::Fulfill(C)),
    (Scene::Requested, Step::Fulfill(B), Step::Withdraw),
    (Scene::Requested, Step::Withdraw, Step::Fulfill(B)),
    (
        Scene::RequestedWithoutItems,
        Step::Withdraw,
        Step::Fulfill(B),
    ),
    // A registration stops the fast path, and so does a pause.
    (Scene::Items, Step::Register(A), Step::Take(B)),
    (Scene::Items, Step::Pause, Step::Take(B)),
    // A held item leaves its session in only one way.
    (
        Scene::Items,
        Step::ReturnItems(DEAD),
        Step::ReturnItems(DEAD),
    ),
    (Scene::Granted, Step::Collect, Step::Collect),
    // So does a granted item, if its session comes back late.
    (Scene::GrantedToTheDead, Step::Collect, Step::ReturnItems(A)),
    (Scene::GrantedToTheDead, Step::ReturnItems(A), Step::Collect),
    (Scene::Items, Step::Complete, Step::Complete),
    // What a delivery leaves is of the item as it is held, and of what was left before.
    (Scene::Items, Step::Complete, Step::Checkpoint),
    (Scene::Items, Step::Checkpoint, Step::Complete),
    (
        Scene::Items,
        Step::Change(Edit::CancelHeld),
        Step::Checkpoint,
    ),
    (
        Scene::Items,
        Step::Checkpoint,
        Step::Change(Edit::CancelHeld),
    ),
    (Scene::HeldByTheDead, Step::ReturnItems(A), Step::Checkpoint),
    (Scene::HeldByTheDead, Step::Checkpoint, Step::ReturnItems(A)),
    (Scene::Items, Step::Checkpoint, Step::Checkpoint),
    (Scene::Items, Step::Checkpoint, Step::Progress),
    (Scene::Items, Step::Progress, Step::Checkpoint),
    // If an item is acknowledged, cancelled, granted or changed, the other transaction fails.
    (Scene::Items, Step::Change(Edit::CancelHeld), Step::Complete),
    (Scene::Items, Step::Complete, Step::Change(Edit::CancelHeld)),
    (
        Scene::Granted,
        Step::Change(Edit::CancelGranted),
        Step::Collect,
    ),
    (
        Scene::Granted,
        Step::Collect,
        Step::Change(Edit::CancelGranted),
    ),
    (Scene::Items, Step::Change(Edit::CancelFirst), Step::Take(A)),
    (Scene::Items, Step::Take(A), Step::Change(Edit::CancelFirst)),
    (
        Scene::Items,
        Step::Change(Edit::ReplaceFirst),
        Step::Take(A),
    ),
    (
        Scene::Items,
        Step::Take(A),
        Step::Change(Edit::ReplaceFirst),
    ),
    (
        Scene::Requested,
        Step::Fulfill(B),
        Step::Change(Edit::ReplaceFirst),
    ),
    (
        Scene::Items,
        Step::Change(Edit::CancelFirst),
        Step::Change(Edit::ReplaceFirst),
    ),
    // The item is due, and is expedited at the same time.
    (Scene::Due, Step::Change(Edit::Expedite), Step::Fulfill(B)),
    (Scene::Due, Step::Fulfill(B), Step::Change(Edit::Expedite)),
];

#[tokio::test]
async fn what_must_not_happen_twice_fails() {
    for (scene, first, second) in CONFLICTS {
        let failed = conflict(memory(), scene, first, second).await;
        assert!(failed, "{scene:?}: {first:?}, then {second:?}");
    }
}

#[tokio::test]
async fn without_read_conflicts_all_of_that_happens() {
    for (scene, first, second) in CONFLICTS {
        let planted = Planted::new(memory(), Plant::NoReadConflicts);
        let failed = conflict(planted, scene, first, second).await;
        assert!(!failed, "{scene:?}: {first:?}, then {second:?}");
    }
}

#[tokio::test]
async fn what_has_nothing_to_do_with_each_other_does_not_conflict() {
    let pairs = [
        (Scene::Items, Step::Enqueue, Step::Take(A)),
        (Scene::Items, Step::Take(A), Step::Enqueue),
        (Scene::Items, Step::Register(A), Step::Register(B)),
        (Scene::Items, Step::Beat, Step::Take(A)),
        (Scene::Items, Step::Beat, Step::Complete),
        (Scene::Items, Step::Beat, Step::Checkpoint),
        (Scene::Items, Step::Take(A), Step::Checkpoint),
        (Scene::Items, Step::Checkpoint, Step::Take(A)),
        (Scene::Items, Step::Checkpoint, Step::Enqueue),
        (Scene::Requested, Step::Enqueue, Step::Fulfill(B)),
        (Scene::Requested, Step::Register(B), Step::Fulfill(C)),
        (Scene::Requested, Step::Beat, Step::Fulfill(B)),
        (Scene::Requested, Step::Complete, Step::Fulfill(B)),
        // The signal to the request is removed together with it.
        (
            Scene::RequestedWithoutItems,
            Step::Fulfill(B),
            Step::Withdraw,
        ),
        (Scene::Granted, Step::Complete, Step::Collect),
        (Scene::Granted, Step::Enqueue, Step::Collect),
        (Scene::Granted, Step::Beat, Step::Collect),
        (Scene::Empty, Step::Enqueue, Step::RemoveSession),
        (Scene::Items, Step::ReturnItems(DEAD), Step::Take(B)),
        (
            Scene::Items,
            Step::Change(Edit::CancelFirst),
            Step::Complete,
        ),
        (Scene::Items, Step::Change(Edit::CancelFirst), Step::Enqueue),
        (Scene::Items, Step::Enqueue, Step::Change(Edit::CancelHeld)),
    ];
    for (scene, first, second) in pairs {
        let failed = conflict(memory(), scene, first, second).await;
        assert!(!failed, "{scene:?}: {first:?}, then {second:?}");
    }
}
