//! Schedules go on after days that are missing, and an error stops none without a trace.

use conformance::stores::TestStore;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Transaction, Tx};

use super::*;
use crate::Finding;
use crate::schedule::operations::stored_schedule;
use crate::schedule::record::ScheduleCodec;

conformance::on_every_store!(
    a_schedule_goes_on_after_a_day_that_is_missing,
    a_schedule_whose_times_cannot_be_determined_stays_and_fires_later,
    an_audit_shows_a_schedule_that_has_stopped,
);

async fn a_schedule_goes_on_after_a_day_that_is_missing(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2011-12-28T12:00:00Z").await;
    let daily = Schedule::new("0 9 * * *").with_time_zone("Pacific/Apia");
    world.create("daily", &daily).await;
    for _ in 0..6 * 24 {
        world.pass(MINUTE * 60);
        world.fire().await;
    }
    let expected = [
        "2011-12-28T19:00:00Z",
        "2011-12-29T19:00:00Z",
        "2011-12-30T10:00:00Z",
        "2011-12-30T19:00:00Z",
        "2011-12-31T19:00:00Z",
        "2012-01-01T19:00:00Z",
        "2012-01-02T19:00:00Z",
    ];
    assert_eq!(world.times().await, expected.map(utc));
    assert_eq!(world.entry().await.next, Some(utc("2012-01-03T19:00:00Z")));
    world.check().await;
}

async fn a_schedule_whose_times_cannot_be_determined_stays_and_fires_later(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    world.create("a", &minutely()).await;
    let next = world.entry().await.next;
    world.set("5001-01-01T00:00:00Z");
    let fired = world.fire_from(None).await;
    assert_eq!((fired.items, fired.has_left), (0, false));
    assert!(
        matches!(&fired.refused[..], [Error::CronTimes { .. }]),
        "{:?}",
        fired.refused
    );
    let entry = world.entry().await;
    assert_eq!((entry.next, entry.last), (next, None));
    assert!(entry.error.unwrap().contains("check the wall clock"));
    let findings = world.queue.audit(&world.runner).await.unwrap().findings;
    assert!(
        matches!(&findings[..], [Finding::StoppedSchedule { schedule, .. }] if schedule == "a"),
        "{findings:?}"
    );
    let error = world.try_schedule("b", &minutely(), "b").await.unwrap_err();
    assert!(matches!(error, Error::CronTimes { .. }), "{error}");
    world.set(NOON);
    world.pass(MINUTE);
    assert_eq!(world.fire().await, 1);
    assert_eq!(world.entry().await.error, None);
    world.check().await;
}

/// A schedule that an earlier version has ended, and one whose zone this version does not know.
async fn an_audit_shows_a_schedule_that_has_stopped(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    world.create("ended", &minutely()).await;
    world.create("foreign", &minutely()).await;
    world.create("healthy", &minutely()).await;
    let keys = &world.queue.keys;
    let change = |tr: Tx<_>| async move {
        for name in ["ended", "foreign"] {
            let stored = stored_schedule(&tr, keys, name).await?;
            let mut record = stored.unwrap();
            if name == "ended" {
                let next = record.next_millis.take().unwrap();
                tr.clear(&keys.fire_time(next, name));
            } else {
                record.schedule.time_zone = "Mars/Olympus".to_owned();
            }
            let mut value = Vec::new();
            ScheduleCodec.encode(&record, &mut value)?;
            tr.set(&keys.schedule(name), &value);
        }
        Ok::<_, Error>(())
    };
    world.runner.run(change).await.unwrap();
    let findings = world.queue.audit(&world.runner).await.unwrap().findings;
    let texts: Vec<_> = findings.iter().map(Finding::to_string).collect();
    assert_eq!(
        texts,
        [
            "schedule `ended` does not fire: it has no next time, although its expression has one",
            "schedule `foreign` does not fire: unknown time zone `Mars/Olympus`: use a name of the IANA database",
        ]
    );
    assert_eq!(
        world.schedule("ended", &minutely()).await,
        Scheduled::Changed
    );
    assert_eq!(
        world.schedule("foreign", &minutely()).await,
        Scheduled::Changed
    );
    world.check().await;
}
