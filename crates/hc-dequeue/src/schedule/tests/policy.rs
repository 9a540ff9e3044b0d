//! Which times fire, and what happens to schedules that are created again, removed, or do not decode.

use std::time::Duration;

use conformance::stores::TestStore;
use microqueue::keyspace::{Transaction, Tx};

use super::*;
use crate::items::part::Part;
use crate::items::record::MAX_PAYLOAD_BYTES;
use crate::schedule::fire::MAX_FIRED_SCHEDULES;
use crate::session::wall::unix_millis;

conformance::on_every_store!(
    a_schedule_fires_at_its_times,
    what_was_missed_fires_as_the_schedule_says,
    the_changes_to_and_from_summer_time_fire_at_croners_times,
    scheduling_again_keeps_the_next_time_unless_the_times_change,
    a_clock_that_is_behind_fires_no_time_again,
    what_does_not_decode_is_listed_and_keeps_nothing_else_from_firing,
    many_schedules_and_many_bytes_fire_in_several_transactions,
    bad_input_is_refused_before_anything_is_staged,
    listings_have_pages,
);

async fn a_schedule_fires_at_its_times(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    let queue = &world.queue;
    let pause = |tr: Tx<_>| async move {
        // While the queue is paused, its items wait.
        queue.pause(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(pause).await.unwrap();
    assert_eq!(world.schedule("a", &minutely()).await, Scheduled::Created);
    assert_eq!(world.fire().await, 0);
    let entry = world.entry().await;
    assert_eq!((entry.next, entry.last), (Some(utc(NOON)), None));
    world.set(NOON);
    assert_eq!((world.fire().await, world.fire().await), (1, 0));
    world.pass(MINUTE + Duration::from_millis(1));
    assert_eq!((world.fire().await, world.fire().await), (1, 0));
    let times = [utc(NOON), utc(NOON) + MINUTE];
    let items = times.map(|time| ("a".to_owned(), time));
    assert_eq!(world.items().await, items);
    let entry = world.entry().await;
    assert_eq!(
        (entry.next, entry.last),
        (Some(times[1] + MINUTE), Some(times[1]))
    );
    world.check().await;

    // This schedule has a last year.
    let last = Schedule::new("0 0 0 1 1 * 2027");
    assert_eq!(world.schedule("a", &last).await, Scheduled::Changed);
    world.set("2027-01-01T00:00:00Z");
    assert_eq!(world.fire().await, 1);
    let entry = world.entry().await;
    assert_eq!(
        (entry.next, entry.last),
        (None, Some(utc("2027-01-01T00:00:00Z")))
    );
    assert_eq!(world.schedule("a", &last).await, Scheduled::Unchanged);
    world.check().await;
}

async fn what_was_missed_fires_as_the_schedule_says(store: TestStore) {
    let table: [(Missed, &[u64]); 5] = [
        (Missed::Skip, &[]),
        (Missed::Once, &[50]),
        (Missed::All { cap: 1 }, &[50]),
        (Missed::All { cap: 3 }, &[30, 40, 50]),
        (Missed::All { cap: 99 }, &[10, 20, 30, 40, 50]),
    ];
    for (missed, minutes) in table {
        let world = ScheduleWorld::new(&store, "2026-11-22T12:05:00Z").await;
        let schedule = Schedule::new("*/10 * * * *").with_missed(missed);
        world.create("a", &schedule).await;
        world.set("2026-11-22T12:55:00Z");
        assert_eq!((world.fire().await, world.fire().await), (minutes.len(), 0));
        let at = |minute: u64| utc(NOON) + MINUTE * u32::try_from(minute).unwrap();
        let expected: Vec<_> = minutes.iter().map(|minute| at(*minute)).collect();
        assert_eq!(world.times().await, expected, "{missed:?}");
        let entry = world.entry().await;
        assert_eq!(
            (entry.next, entry.last),
            (Some(at(60)), expected.last().copied())
        );
        world.check().await;
    }
}

async fn the_changes_to_and_from_summer_time_fire_at_croners_times(store: TestStore) {
    let table: [(&str, &str, &str, u32, &[&str]); 5] = [
        // 02:30 does not exist on this day.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00:00Z",
            40,
            &["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"],
        ),
        (
            "30 2 * * *",
            "America/New_York",
            "2027-03-13T12:00:00Z",
            48,
            &["2027-03-14T07:00:00Z", "2027-03-15T06:30:00Z"],
        ),
        // 02:30 occurs twice in Berlin, and 01:30 in New York.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2027-10-30T12:00:00Z",
            40,
            &["2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"],
        ),
        (
            "30 1 * * *",
            "America/New_York",
            "2026-10-31T12:00:00Z",
            48,
            &["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"],
        ),
        (
            "30 1-2 * * *",
            "America/New_York",
            "2026-11-01T00:00:00Z",
            12,
            &[
                "2026-11-01T05:30:00Z",
                "2026-11-01T06:30:00Z",
                "2026-11-01T07:30:00Z",
            ],
        ),
    ];
    for (cron, zone, from, hours, expected) in table {
        let world = ScheduleWorld::new(&store, from).await;
        world
            .create("a", &Schedule::new(cron).with_time_zone(zone))
            .await;
        for _ in 0..2 * hours {
            world.pass(30 * MINUTE);
            world.fire().await;
        }
        let expected: Vec<_> = expected.iter().map(|time| utc(time)).collect();
        assert_eq!(world.times().await, expected, "{cron} {zone} {from}");
    }
}

async fn scheduling_again_keeps_the_next_time_unless_the_times_change(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:30:00Z").await;
    let daily = Schedule::new("0 12 * * *");
    assert_eq!(world.schedule("a", &daily).await, Scheduled::Created);
    // The schedule is due but has not fired yet.
    world.set("2026-11-22T12:00:10Z");
    assert_eq!(world.schedule("a", &daily).await, Scheduled::Unchanged);
    assert_eq!(world.entry().await.next, Some(utc(NOON)));
    // Another payload or policy keeps the next time.
    let skips = daily.clone().with_missed(Missed::Skip);
    for (schedule, job, done) in [
        (&daily, "b", Scheduled::Changed),
        (&skips, "b", Scheduled::Changed),
        (&skips, "b", Scheduled::Unchanged),
    ] {
        assert_eq!(world.try_schedule("a", schedule, job).await.unwrap(), done);
        let entry = world.entry().await;
        assert_eq!(
            (entry.next, entry.payload),
            (Some(utc(NOON)), Ok(job.to_owned()))
        );
        assert_eq!(entry.schedule, *schedule);
    }
    assert_eq!(world.fire().await, 1);
    assert_eq!(world.items().await, [("b".to_owned(), utc(NOON))]);
    // Another zone or expression changes the next time.
    let berlin = skips.clone().with_time_zone("Europe/Berlin");
    let later = Schedule::new("0 13 * * *").with_time_zone("Europe/Berlin");
    world.set("2026-11-22T23:00:00Z");
    for (schedule, next) in [
        (&berlin, "2026-11-23T11:00:00Z"),
        (&later, NOON.replace("22T", "23T").as_str()),
    ] {
        let done = world.try_schedule("a", schedule, "b").await.unwrap();
        assert_eq!(done, Scheduled::Changed);
        let entry = world.entry().await;
        assert_eq!((entry.next, entry.last), (Some(utc(next)), Some(utc(NOON))));
    }
    world.check().await;
    let queue = &world.queue;
    for is_there in [true, false] {
        let unschedule = |tr| async move { queue.unschedule(&tr, "a").await };
        assert_eq!(world.runner.run(unschedule).await.unwrap(), is_there);
    }
    assert_eq!(world.list().await, []);
    world.check().await;
}

async fn a_clock_that_is_behind_fires_no_time_again(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    world.create("a", &minutely()).await;
    world.set(NOON);
    assert_eq!(world.fire().await, 1);
    // Another process, with a slow clock, changes the schedule to one with the same times.
    world.set("2026-11-22T11:59:50Z");
    let same = Schedule::new("*/1 * * * *");
    assert_eq!(world.schedule("a", &same).await, Scheduled::Changed);
    assert_eq!(world.entry().await.next, Some(utc(NOON) + MINUTE));
    world.set(NOON);
    assert_eq!(world.fire().await, 0);
    assert_eq!(world.times().await, [utc(NOON)]);
}

async fn what_does_not_decode_is_listed_and_keeps_nothing_else_from_firing(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    // There are more of these than one transaction reads, and they come first in the index.
    for number in 0..MAX_FIRED_SCHEDULES + 3 {
        world.create(&format!("bad {number:03}"), &minutely()).await;
    }
    world.create("good", &minutely()).await;
    let keys = &*world.queue.keys;
    let spoil = |tr: Tx<_>| async move {
        for number in 0..MAX_FIRED_SCHEDULES + 3 {
            tr.set(&keys.schedule(&format!("bad {number:03}")), b"\x02?");
        }
        // A key that contains no name, and an entry of a schedule that does not exist.
        tr.set(&keys.queue.pack(&(Part::FireTimes, 1, 1)), b"");
        tr.set(&keys.fire_time(2, "gone"), b"");
        tr.set(&keys.fire_time(3, "good"), b"");
        Ok::<_, Error>(())
    };
    world.runner.run(spoil).await.unwrap();
    world.set(NOON);
    let first = world.fire_from(None).await;
    assert_eq!(
        (first.items, first.refused.len()),
        (0, MAX_FIRED_SCHEDULES - 2)
    );
    assert!(first.refused[1].to_string().contains("queue operation"));
    let last = world.fire_from(first.after.clone()).await;
    assert_eq!((last.items, last.refused.len()), (1, 6));
    assert!(first.after.is_some() && last.after.is_none() && !last.has_left);
    assert_eq!(last.next_millis, Some(unix_millis(utc(NOON) + MINUTE)));
    assert_eq!(world.items().await, [("good".to_owned(), utc(NOON))]);
    // The two stray entries were removed.
    assert_eq!(
        world.rows(Part::FireTimes).await,
        1 + MAX_FIRED_SCHEDULES + 3 + 1
    );

    let list = world.list().await;
    assert_eq!(list.len(), MAX_FIRED_SCHEDULES + 4);
    let bad = list[0].entry.as_ref().unwrap_err();
    assert_eq!(
        (list[0].name.as_str(), &bad.bytes[..]),
        ("bad 000", &b"\x02?"[..])
    );
    assert!(bad.reason.contains("format 2 is newer"));
    let refused = world
        .try_schedule("bad 000", &minutely(), "")
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::Keyspace(_)), "{refused}");
    // The schedule can be removed, and the next firing removes its entry.
    let queue = &world.queue;
    let unschedule = |tr| async move { queue.unschedule(&tr, "bad 000").await };
    assert!(world.runner.run(unschedule).await.unwrap());
    assert_eq!(
        world.fire_from(None).await.refused.len(),
        MAX_FIRED_SCHEDULES - 2 + 1
    );
    assert_eq!(
        world.rows(Part::FireTimes).await,
        1 + MAX_FIRED_SCHEDULES + 2 + 1
    );
}

async fn many_schedules_and_many_bytes_fire_in_several_transactions(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    let many = 2 * MAX_FIRED_SCHEDULES + 5;
    for number in 0..many {
        world.create(&format!("{number}"), &minutely()).await;
    }
    world.set(NOON);
    let first = world.fire_from(None).await;
    assert_eq!(
        (first.items, first.after.is_some()),
        (MAX_FIRED_SCHEDULES, true)
    );
    assert_eq!(world.fire().await, many - MAX_FIRED_SCHEDULES);
    assert_eq!(world.times().await, vec![utc(NOON); many]);
    world.check().await;

    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    let large = "x".repeat(MAX_PAYLOAD_BYTES - 5);
    let all = minutely().with_missed(Missed::All { cap: 25 });
    for name in ["a", "b"] {
        let done = world.try_schedule(name, &all, &large).await;
        assert_eq!(done.unwrap(), Scheduled::Created);
    }
    world.pass(60 * MINUTE);
    let first = world.fire_from(None).await;
    assert_eq!((first.items, first.has_left), (10, true));
    assert_eq!(world.fire().await, 40);
    let mut times = world.times().await;
    times.sort_unstable();
    let newest = (0..25).map(|minute| utc("2026-11-22T12:35:00Z") + MINUTE * minute);
    assert_eq!(
        times,
        newest.flat_map(|time| [time, time]).collect::<Vec<_>>()
    );
    world.check().await;
}

async fn bad_input_is_refused_before_anything_is_staged(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    let refused = |name: &str, schedule: Schedule, job: &str| {
        let name = name.to_owned();
        let job = job.to_owned();
        let world = &world;
        async move {
            world
                .try_schedule(&name, &schedule, &job)
                .await
                .unwrap_err()
        }
    };
    for name in [String::new(), "x".repeat(MAX_SCHEDULE_NAME_BYTES + 1)] {
        let error = refused(&name, minutely(), "").await;
        assert!(
            matches!(error, Error::ScheduleName { limit: 255, .. }),
            "{error}"
        );
    }
    let error = refused("a", Schedule::new("61 * * * *"), "").await;
    assert!(matches!(error, Error::CronExpression { .. }), "{error}");
    assert!(std::error::Error::source(&error).is_some());
    for never in ["0 0 30 2 *", "0 0 0 1 1 * 2026"] {
        let error = refused("a", Schedule::new(never), "").await;
        assert!(matches!(error, Error::CronNeverFires { .. }), "{error}");
    }
    let error = refused("a", minutely().with_time_zone("Mars/Olympus"), "").await;
    assert!(matches!(error, Error::TimeZone { .. }), "{error}");
    let error = refused("a", minutely(), &"x".repeat(MAX_PAYLOAD_BYTES)).await;
    assert!(matches!(error, Error::PayloadTooLarge { .. }), "{error}");
    assert_eq!(
        (
            world.rows(Part::Schedules).await,
            world.rows(Part::FireTimes).await
        ),
        (0, 0)
    );
    world
        .create(&"x".repeat(MAX_SCHEDULE_NAME_BYTES), &minutely())
        .await;
    world.check().await;
}

async fn listings_have_pages(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    for name in ["a", "b", "c"] {
        world.create(name, &minutely()).await;
    }
    let queue = &world.queue;
    let page = async |after: Option<&str>, limit| {
        let read = |tr| async move { queue.schedules(&tr, after, limit).await };
        let page = world.runner.run(read).await.unwrap();
        page.into_iter()
            .map(|listed| listed.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(page(None, 2).await, ["a", "b"]);
    assert_eq!(page(Some("b"), 2).await, ["c"]);
    assert_eq!(page(Some("c"), 2).await, [""; 0]);
}
