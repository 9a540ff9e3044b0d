//! Schedules whose next times were determined by a wall clock that was ahead.

use std::collections::BTreeSet;
use std::time::Duration;

use conformance::scale;
use conformance::stores::TestStore;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::schedule::fire::find_late;
use crate::schedule::fired::{FiredTimes, MAX_RUNS, Run};
use crate::schedule::record::ScheduleRecord;
use crate::schedule::times::Times;
use crate::session::wall::{unix_millis, unix_time};

conformance::on_every_store!(
    what_a_clock_that_was_ahead_has_passed_over_fires_and_nothing_fires_twice,
    a_schedule_that_was_made_by_a_clock_that_was_ahead_is_set_right,
    a_next_time_that_is_too_far_ahead_is_found_among_many_schedules,
    clocks_that_differ_by_seconds_agree_on_a_daily_schedule,
    a_new_expression_fires_at_times_within_an_old_run,
    a_last_time_that_was_passed_over_fires_after_all,
);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn what_a_clock_that_was_ahead_has_passed_over_fires_and_nothing_fires_twice(
    store: TestStore,
) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    world.create("a", &minutely()).await;
    world.set(NOON);
    world.wall.advance(2 * MINUTE * 60);
    let ahead = [world.fire().await, {
        world.pass(MINUTE);
        world.fire().await
    }];
    // A time that is a minute ago was not missed.
    assert_eq!(ahead, [2, 1]);
    // The clock is corrected.
    world.set(NOON);
    assert_eq!(world.fire().await, 0);
    assert_eq!(world.entry().await.expected, Some(utc(NOON) + MINUTE));
    assert_eq!(world.schedule("a", &minutely()).await, Scheduled::Changed);
    let entry = world.entry().await;
    assert_eq!(
        (entry.next, entry.expected),
        (Some(utc(NOON) + MINUTE), None)
    );
    assert_eq!(world.schedule("a", &minutely()).await, Scheduled::Unchanged);
    for _ in 0..130 {
        world.pass(MINUTE);
        world.fire().await;
    }
    let mut times = world.times().await;
    times.sort_unstable();
    let expected: Vec<_> = (1..=130)
        .map(|minute| utc(NOON) + MINUTE * minute)
        .collect();
    assert_eq!(times, expected);
    world.check().await;
}

async fn a_schedule_that_was_made_by_a_clock_that_was_ahead_is_set_right(store: TestStore) {
    let hourly = Schedule::new("0 * * * *");
    for again in [minutely(), hourly, minutely().with_missed(Missed::Skip)] {
        let world = ScheduleWorld::new(&store, NOON).await;
        world.pass(DAY);
        world.create("a", &minutely()).await;
        world.set(NOON);
        assert_eq!(world.fire().await, 0);
        assert!(world.entry().await.expected.is_some());
        assert_eq!(world.schedule("a", &again).await, Scheduled::Changed);
        let entry = world.entry().await;
        assert_eq!((entry.expected, entry.last), (None, None));
        assert!(entry.next.unwrap() <= utc(NOON) + 60 * MINUTE);
        world.set("2026-11-22T13:00:00Z");
        assert!(world.fire().await > 0);
        world.check().await;
    }
    // Clocks may differ by a minute.
    let world = ScheduleWorld::new(&store, NOON).await;
    world.create("a", &minutely()).await;
    world.set("2026-11-22T11:59:01Z");
    assert_eq!(world.entry().await.expected, None);
    assert_eq!(world.schedule("a", &minutely()).await, Scheduled::Unchanged);
}

async fn a_next_time_that_is_too_far_ahead_is_found_among_many_schedules(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    for number in 0..120 {
        world.create(&format!("right {number}"), &minutely()).await;
    }
    world.pass(DAY);
    world.create("ahead", &minutely()).await;
    world.set(NOON);
    let mut late = Vec::new();
    let mut after = None;
    let mut pages = 0;
    loop {
        let keys = &*world.queue.keys;
        let from = after.as_deref();
        let find = |tr| async move { find_late(&tr, keys, from).await };
        let (found, next) = world.runner.run(find).await.unwrap();
        late.extend(found);
        pages += 1;
        after = next;
        if after.is_none() {
            break;
        }
    }
    let [one] = &late[..] else {
        panic!("{late:?}");
    };
    assert_eq!(pages, 2);
    assert_eq!(&*one.schedule, "ahead");
    assert_eq!(unix_time(one.next_millis), utc(NOON) + DAY + MINUTE);
    assert_eq!(unix_time(one.expected_millis), utc(NOON) + MINUTE);
}

async fn clocks_that_differ_by_seconds_agree_on_a_daily_schedule(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    let daily = Schedule::new("0 12 * * *");
    world.pass(Duration::from_secs(1));
    world.create("daily", &daily).await;
    // This process's clock is two seconds slower.
    world.set("2026-11-22T11:59:59Z");
    assert_eq!(world.schedule("daily", &daily).await, Scheduled::Unchanged);
}

async fn a_new_expression_fires_at_times_within_an_old_run(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    world.create("a", &Schedule::new("0 * * * *")).await;
    // A clock is a day ahead for some hours.
    world.pass(DAY);
    for _ in 0..4 {
        world.pass(60 * MINUTE);
        world.fire().await;
    }
    world.set(NOON);
    assert_eq!(world.schedule("a", &minutely()).await, Scheduled::Changed);
    world.pass(DAY + 61 * MINUTE);
    world.fire().await;
    let within = utc(NOON) + DAY + 61 * MINUTE;
    assert!(world.times().await.contains(&within));
}

async fn a_last_time_that_was_passed_over_fires_after_all(store: TestStore) {
    let last = Schedule::new("0 0 0 1 1 * 2027").with_missed(Missed::Skip);
    let world = ScheduleWorld::new(&store, NOON).await;
    world.create("a", &last).await;
    world.pass(100 * DAY);
    assert_eq!(world.fire().await, 0);
    assert_eq!(world.entry().await.next, None);
    world.set(NOON);
    assert_eq!(world.schedule("a", &last).await, Scheduled::Changed);
    world.set("2027-01-01T00:00:00Z");
    assert_eq!(world.fire().await, 1);
    assert_eq!(world.schedule("a", &last).await, Scheduled::Unchanged);
    world.set(NOON);
    assert_eq!(world.schedule("a", &last).await, Scheduled::Unchanged);
    world.check().await;
}

#[test]
fn times_become_runs_and_the_oldest_runs_are_forgotten() {
    let run = |first, last| Run { first, last };
    let mut fired = FiredTimes::default();
    let tens = |time: u64| Some((time / 10 + 1) * 10);
    for time in [50, 70, 60, 10, 20, 100] {
        fired.add(time, tens);
    }
    assert_eq!(fired.runs(), [run(10, 20), run(50, 70), run(100, 100)]);
    assert_eq!(fired.run_of(20), Some(run(10, 20)));
    assert_eq!(fired.run_of(61), Some(run(50, 70)));
    for time in [0, 9, 21, 49, 71, 101] {
        assert_eq!(fired.run_of(time), None, "{time}");
    }
    for time in (0..MAX_RUNS as u64).map(|number| 1_000 + 100 * number) {
        fired.add(time, tens);
    }
    assert_eq!(fired.runs().len(), MAX_RUNS);
    assert_eq!(fired.runs()[0], run(1_000, 1_000));
}

/// A fault that the random programs must notice.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Plant {
    Nothing,
    /// Firings do not skip what has fired.
    FiresAgain,
    /// Scheduling it again keeps the next time.
    KeepsNext,
    /// Scheduling it again continues after the newest time that has fired.
    ContinuesAfterNewest,
    /// Times that were passed over count as fired.
    RunsWithoutGaps,
}

/// A schedule that fires each minute.
struct Minutely {
    times: Times,
    record: ScheduleRecord,
    items: Vec<u64>,
    plant: Plant,
}

const MINUTE_MILLIS: u64 = 60_000;

impl Minutely {
    fn new(now: u64, missed: Missed, plant: Plant) -> Self {
        let schedule = minutely().with_missed(missed);
        let times = Times::parse(&schedule).unwrap();
        let record = ScheduleRecord {
            next_millis: times.after(now).unwrap(),
            fired: FiredTimes::default(),
            schedule,
            owner: None,
            unknown: Default::default(),
            payload: Default::default(),
        };
        Self {
            times,
            record,
            items: Vec::new(),
            plant,
        }
    }

    fn fire(&mut self, now: u64) {
        let next = self.record.next_millis.unwrap();
        if next > now {
            return;
        }
        let none = FiredTimes::default();
        let fired = match self.plant {
            Plant::FiresAgain => &none,
            _ => &self.record.fired,
        };
        let missed = self.record.schedule.missed();
        let due = self
            .times
            .due(next, now, missed, usize::MAX, fired)
            .unwrap();
        for time in due.times {
            self.items.push(time);
            if self.plant == Plant::RunsWithoutGaps
                && let Some(run) = self.record.fired.runs().first().copied()
                && time > run.last
            {
                let all = Run {
                    first: run.first,
                    last: time,
                };
                self.record.fired = FiredTimes::of_runs(vec![all]).unwrap();
            } else if self.record.fired.run_of(time).is_none() {
                let after = |time| self.times.after(time).unwrap();
                self.record.fired.add(time, after);
            }
        }
        self.record.next_millis = due.next;
    }

    fn schedule(&mut self, now: u64) {
        let expected = self.times.expected(&self.record, now).unwrap();
        let newest = self.record.fired.newest().unwrap_or(0);
        match self.plant {
            Plant::KeepsNext => {}
            Plant::ContinuesAfterNewest => {
                self.record.next_millis = self.times.after(now.max(newest)).unwrap();
            }
            _ => self.record.next_millis = expected.or(self.record.next_millis),
        }
    }
}

/// Runs a program of clocks that go ahead and are corrected. Returns whether each minute after the last correction
/// fires, and none fires twice.
fn fires_each_minute_once(seed: u64, plant: Plant) -> bool {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut now = unix_millis(utc(NOON));
    let missed = [Missed::Skip, Missed::Once, Missed::All { cap: 3 }];
    let mut schedule = Minutely::new(now, missed[rng.random_range(0..3)], plant);
    let mut end = now;
    for _ in 0..rng.random_range(1..4) {
        for _ in 0..rng.random_range(0..10) {
            now += MINUTE_MILLIS;
            schedule.fire(now);
        }
        let mut ahead = now + rng.random_range(2..120) * MINUTE_MILLIS;
        for _ in 0..rng.random_range(1..4) {
            schedule.fire(ahead);
            ahead += MINUTE_MILLIS;
        }
        end = end.max(ahead);
        schedule.schedule(now);
    }
    let corrected = now;
    while now < end + 10 * MINUTE_MILLIS {
        now += MINUTE_MILLIS;
        schedule.fire(now);
    }
    let fired: BTreeSet<_> = schedule.items.iter().copied().collect();
    let mut minutes = (1..)
        .map(|minute| corrected + minute * MINUTE_MILLIS)
        .take_while(|time| *time <= now);
    fired.len() == schedule.items.len() && minutes.all(|time| fired.contains(&time))
}

#[test]
fn each_minute_after_a_correction_fires_once_whatever_the_clock_showed() {
    for seed in 0..scale(200, 100_000) as u64 {
        assert!(fires_each_minute_once(seed, Plant::Nothing), "seed {seed}");
    }
}

#[test]
fn rules_that_forget_or_pass_over_times_are_noticed() {
    for plant in [
        Plant::FiresAgain,
        Plant::KeepsNext,
        Plant::ContinuesAfterNewest,
        Plant::RunsWithoutGaps,
    ] {
        let is_noticed = |seed| !fires_each_minute_once(seed, plant);
        assert!((0..100).any(is_noticed), "{plant:?}");
    }
}
