//! Schedules, one transaction at a time, on every store, with a wall clock that the tests set.

mod ahead;
mod clock_changes;
mod once;
mod options;
mod owned;
mod owners;
mod policy;
mod stopped;
mod times;

use std::time::{Duration, SystemTime};

use chrono::DateTime;
use conformance::stores::TestStore;
use microqueue::Listed;
use microqueue::keyspace::codec::{Codec, MessagePack};
use microqueue::keyspace::{Database, Isolation, RangeQuery, RunOptions, Runner, Store, read_all};

use super::fire::{Fired, fire_due};
use super::*;
use crate::items::error::{Error, Result};
use crate::items::part::Part;
use crate::items::priority::Priority;
use crate::items::record::Record;
use crate::testing::ManualWall;

fn utc(text: &str) -> SystemTime {
    let millis = DateTime::parse_from_rfc3339(text)
        .unwrap()
        .timestamp_millis();
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap())
}

const MINUTE: Duration = Duration::from_secs(60);
const NOON: &str = "2026-11-22T12:00:00Z";

type Queue = crate::Queue<String>;

struct ScheduleWorld<D: Database> {
    wall: ManualWall,
    runner: Runner<D>,
    queue: Queue,
}

impl ScheduleWorld<Store> {
    async fn new(store: &TestStore, wall: &str) -> Self {
        let store = store.fresh();
        ScheduleWorld::on(&store, store.db.clone(), wall).await
    }
}

impl<D: Database> ScheduleWorld<D> {
    async fn on(store: &TestStore, db: D, wall: &str) -> Self {
        let manual = ManualWall::new();
        manual.set(utc(wall));
        let options = RunOptions::default()
            .with_ledger_subspace(store.root.subspace(&"ledgers"))
            .with_environment(manual.environment());
        let runner = Runner::with_options(db, options);
        let root = store.root.subspace(&"queue");
        let queue = Queue::open(&runner, root).await;
        let queue = queue.unwrap();
        Self {
            wall: manual,
            runner,
            queue,
        }
    }

    fn set(&self, wall: &str) {
        self.wall.set(utc(wall));
    }

    fn pass(&self, time: Duration) {
        self.wall.advance(time);
    }

    async fn schedule(&self, name: &str, schedule: &Schedule) -> Scheduled {
        self.try_schedule(name, schedule, name).await.unwrap()
    }

    async fn create(&self, name: &str, schedule: &Schedule) {
        assert_eq!(self.schedule(name, schedule).await, Scheduled::Created);
    }

    async fn try_schedule(&self, name: &str, schedule: &Schedule, job: &str) -> Result<Scheduled> {
        let queue = &self.queue;
        let job = &job.to_owned();
        let schedule = |tr| async move { queue.schedule(&tr, name, schedule, job).await };
        self.runner.run(schedule).await
    }

    async fn fire_from(&self, after: Option<Vec<u8>>) -> Fired {
        let keys = &*self.queue.keys;
        let after = after.as_deref();
        let fire = |tr| async move { fire_due(&tr, keys, after).await };
        self.runner.run(fire).await.unwrap()
    }

    /// Fires all due times, in as many transactions as necessary, and returns how many items were enqueued.
    async fn fire(&self) -> usize {
        let mut items = 0;
        let mut after = None;
        loop {
            let fired = self.fire_from(after).await;
            assert!(fired.refused.is_empty());
            items += fired.items;
            if fired.after.is_none() && !fired.has_left {
                return items;
            }
            after = fired.after;
        }
    }

    /// Returns the value of each item, and the time at which it counts as enqueued.
    async fn items(&self) -> Vec<(String, SystemTime)> {
        let items = self.queue.keys.queued(Priority::DEFAULT);
        let items = |tr| async move {
            let items = items.items(&tr, None, usize::MAX).await?;
            Ok::<_, Error>(items)
        };
        let items = self.runner.run(items).await.unwrap().into_iter();
        let parse = |item: Listed<Record>| {
            let record = item.value.unwrap();
            let value: String = MessagePack.decode(record.payload).unwrap();
            let time = Duration::from_millis(record.enqueued_millis);
            (value, SystemTime::UNIX_EPOCH + time)
        };
        items.map(parse).collect()
    }

    async fn times(&self) -> Vec<SystemTime> {
        self.items()
            .await
            .into_iter()
            .map(|(_, time)| time)
            .collect()
    }

    async fn list(&self) -> Vec<ListedSchedule<String>> {
        let queue = &self.queue;
        let list = |tr| async move { queue.schedules(&tr, None, 1_000).await };
        self.runner.run(list).await.unwrap()
    }

    /// Returns the only schedule.
    async fn entry(&self) -> ScheduleEntry<String> {
        let mut list = self.list().await;
        assert_eq!(list.len(), 1);
        list.remove(0).entry.unwrap()
    }

    async fn rows(&self, part: Part) -> usize {
        let (begin, end) = self.queue.keys.part(part);
        let query = &RangeQuery::keys(begin, end);
        let rows = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
        self.runner.run(rows).await.unwrap().len()
    }

    /// Panics unless the index has one entry for each schedule that fires again, and the counters are correct.
    async fn check(&self) {
        let list = self.list().await;
        let fires = |listed: &&ListedSchedule<String>| {
            listed
                .entry
                .as_ref()
                .is_ok_and(|entry| entry.next.is_some())
        };
        assert_eq!(
            self.rows(Part::FireTimes).await,
            list.iter().filter(fires).count()
        );
        assert_eq!(self.rows(Part::Schedules).await, list.len());
        assert!(self.queue.audit(&self.runner).await.unwrap().is_clean());
    }
}

fn minutely() -> Schedule {
    Schedule::new("* * * * *")
}
