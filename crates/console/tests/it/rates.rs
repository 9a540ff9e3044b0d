//! Rates of groups: how they are shown and changed, and what waits for them. They are of one start a day, so that no
//! test depends on how long it takes.

use std::time::Duration;

use crate::common::program::Filled;
use crate::common::{World, assert_queues_unchanged, assert_valid, valid};
use crate::limits::{add, assert_limited, set, take};
use crate::web::site::TestSite;
use axum::http::StatusCode;
use conformance::stores::TestStore;
use console::report::{Limits, Time};
use console::{Error, Limit, WebOptions};
use export_queue::hc_dequeue::{
    Error as DequeueError, GroupLimits, ItemRef, MAX_RATE_PERIOD, Rate,
};
use export_queue::keyspace::{Environment, Ids, Subspace};
use serde_json::json;

conformance::on_every_store!(threads:
    a_group_that_waits_for_its_rate_says_until_when,
    rates_are_told_with_the_other_limits,
    rates_that_are_out_of_range_change_nothing,
    one_limit_is_removed_and_the_others_stay,
);

const HOUR: Duration = Duration::from_secs(60 * 60);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn daily() -> GroupLimits {
    GroupLimits::new().with_rate(Rate::new(1, DAY))
}

/// Enqueues two items of the group `acme`, of which one starts. Returns the other.
async fn wait_for_rate(world: &World) -> ItemRef {
    let jobs = &world.name("jobs");
    set(&world.console(), jobs, "acme", daily()).await;
    let first = add(world, b"acme").await;
    let second = add(world, b"acme").await;
    take(world, first).await.complete().await.unwrap();
    second
}

async fn a_group_that_waits_for_its_rate_says_until_when(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let begin = Environment::system().wall();
    let second = wait_for_rate(&world).await;
    let group = valid(console.group(jobs, "acme").await.unwrap());
    assert_eq!(group.state, "waits for its rate");
    let next = group.next_start.unwrap();
    assert!(next > Time::from(begin + 23 * HOUR), "{next}");
    assert!(next < Time::from(begin + 25 * HOUR), "{next}");
    let shown = serde_json::to_value(&group).unwrap();
    assert_eq!(
        shown["limits"]["rate"],
        json!({ "starts": 1, "period_seconds": 86_400.0, "burst": 1 })
    );
    let page = valid(console.groups(jobs, None, 10).await.unwrap());
    assert_eq!(page.groups[0].state, "waits for its rate");
    assert!(page.groups[0].next_start.is_some());

    let item = valid(console.item(jobs, &second.to_string()).await.unwrap());
    let why = item.not_started.unwrap();
    let start = "its group waits for its rate, and starts the next item at about 20";
    assert!(why.starts_with(start), "{why}");
    // Whatever else keeps it from starting comes first.
    console.set_group_paused(jobs, "acme", true).await.unwrap();
    let group = valid(console.group(jobs, "acme").await.unwrap());
    assert_eq!((&*group.state, group.next_start), ("paused", None));
    let item = console.item(jobs, &second.to_string()).await.unwrap();
    assert_eq!(item.not_started.unwrap(), "its group is paused");
    // Without the rate, it starts.
    console.set_group_paused(jobs, "acme", false).await.unwrap();
    set(&console, jobs, "acme", GroupLimits::new()).await;
    let group = valid(console.group(jobs, "acme").await.unwrap());
    assert_eq!((&*group.state, group.next_start), ("ready", None));
    let without = serde_json::to_value(&group).unwrap();
    assert!(without.get("next_start").is_none(), "{without}");
    assert!(without["limits"].get("rate").is_none(), "{without}");
    take(&world, second).await.complete().await.unwrap();
}

async fn rates_are_told_with_the_other_limits(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let rate = Rate::new(100, Duration::from_secs(90)).with_burst(10);
    let limits = GroupLimits::ordered().with_rate(rate).with_weight(3);
    for (group, prefix, by_default) in [
        (Some("acme"), "", ", by default"),
        (None, "default limits: ", ""),
    ] {
        let change = async |limits| {
            let change = valid(console.limit(jobs, group, &limits).await.unwrap());
            change.outcome
        };
        let all = "at most 1, until end, 100 per 1m 30s, burst 10, weight 3";
        assert_eq!(
            change(limits).await,
            format!("{prefix}{all}; before: no limit{by_default}")
        );
        assert_eq!(
            change(daily()).await,
            format!("{prefix}no limit of slots, 1 per 1day; before: {all}")
        );
    }
    let default: Limits = valid(console.default_limits(jobs).await.unwrap());
    let rate = default.rate.unwrap();
    assert_eq!(
        (rate.starts, rate.period_seconds, rate.burst),
        (1, 86_400.0, 1)
    );
}

async fn rates_that_are_out_of_range_change_nothing(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let before = world.written().await;
    for (rate, reason) in [
        (Rate::new(0, DAY), "the rate has no starts"),
        (Rate::new(1, Duration::ZERO), "from 1 millisecond"),
        (Rate::new(1, MAX_RATE_PERIOD + DAY), "to 366 days"),
        (Rate::new(1, DAY).with_burst(0), "one of at least 1"),
        (
            Rate::new(1_001, Duration::from_millis(1)),
            "at most 1,000,000 starts per second",
        ),
    ] {
        for group in [None, Some("acme")] {
            let limits = GroupLimits::new().with_rate(rate);
            let refused = console.limit(jobs, group, &limits).await;
            let refused = refused.unwrap_err();
            assert!(
                matches!(refused, Error::Dequeue(DequeueError::GroupLimits { .. })),
                "{refused}"
            );
            assert!(refused.to_string().contains(reason), "{refused}");
        }
    }
    assert_queues_unchanged(&world, &before, &world.written().await);
}

#[test]
fn periods_are_shown_to_the_millisecond() {
    for (period, shown) in [
        (Duration::from_millis(1), "1ms"),
        (Duration::from_millis(1_500), "1s 500ms"),
        (Duration::from_secs(60), "1m"),
        (Duration::from_millis(3_600_003), "1h 3ms"),
        (DAY - Duration::from_millis(1), "23h 59m 59s 999ms"),
    ] {
        let rate = console::report::Rate {
            starts: 5,
            period_seconds: period.as_secs_f64(),
            burst: 1,
        };
        assert_eq!(rate.to_string(), format!("5 per {shown}"));
    }
}

/// All limits that a group can have.
fn all_limits() -> GroupLimits {
    let limits = GroupLimits::ordered().with_dead_letters_blocking();
    limits.with_weight(2).with_rate(Rate::new(1, DAY))
}

async fn one_limit_is_removed_and_the_others_stay(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let all = "at most 1, until end, dead letters block, 1 per 1day, weight 2";
    for (limit, left) in [
        (
            Limit::Rate,
            "at most 1, until end, dead letters block, weight 2",
        ),
        (
            Limit::Weight,
            "at most 1, until end, dead letters block, 1 per 1day",
        ),
        (
            Limit::DeadLettersBlock,
            "at most 1, until end, 1 per 1day, weight 2",
        ),
        (Limit::UntilEnd, "at most 1, 1 per 1day, weight 2"),
        (Limit::AtMost, "no limit of slots, 1 per 1day, weight 2"),
    ] {
        for group in [Some("acme"), None] {
            console.limit(jobs, group, &all_limits()).await.unwrap();
            let remove = async || {
                let change = console.remove_limit(jobs, group, limit).await;
                valid(change.unwrap()).outcome
            };
            let of = if group.is_none() {
                "default limits: "
            } else {
                ""
            };
            assert_eq!(remove().await, format!("{of}{left}; before: {all}"));
            let name = limit.name();
            let again = format!("{of}{left}; unchanged: `{name}` is not among them");
            assert_eq!(remove().await, again);
            let limits = match group {
                Some(group) => console.group(jobs, group).await.unwrap().limits,
                None => console.default_limits(jobs).await.ok(),
            };
            assert_eq!(limits.unwrap().to_string(), left);
        }
    }
    // The default limits become those of the group, without this one.
    console.limit(jobs, None, &all_limits()).await.unwrap();
    console.reset_limits(jobs, "acme").await.unwrap();
    let change = console.remove_limit(jobs, Some("acme"), Limit::Rate).await;
    let before = format!("; before: {all}, by default");
    assert!(change.unwrap().outcome.ends_with(&before));
    let group = console.group(jobs, "acme").await.unwrap();
    assert!(group.own_limits);
    let default = console.default_limits(jobs).await.unwrap();
    assert_eq!(default.to_string(), all);
    // Limits that are not known are not written again.
    let row = world.jobs.subspace().pack(&("l", &b"acme"[..], "k"));
    world.set(&row, b"\x63newer").await;
    let before = world.written().await;
    let refused = console.remove_limit(jobs, Some("acme"), Limit::Rate).await;
    assert!(
        matches!(refused, Err(Error::UnreadableLimits)),
        "{refused:?}"
    );
    assert_queues_unchanged(&world, &before, &world.written().await);
}

#[test]
fn the_program_shows_and_changes_rates() {
    let store = Filled::with(|world| {
        Box::pin(async move {
            wait_for_rate(world).await;
        })
    });
    let words = |arguments: &[&str]| {
        let shown = store.run(arguments).out;
        shown.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let listed = words(&["groups", "jobs"]);
    for text in ["acme waits for its rate 20", "0, no limit 1 1 per 1day own"] {
        assert!(listed.contains(text), "{text}: {listed}");
    }
    let group = words(&["limit", "jobs", "acme"]);
    for text in [
        "state waits for its rate next start 20",
        "limits no limit of slots, 1 per 1day",
    ] {
        assert!(group.contains(text), "{text}: {group}");
    }
    assert_valid("Group", &store.json(&["limit", "jobs", "acme"]));
    let queued = store.json(&["list", "jobs"]);
    let item = queued["items"].as_array().unwrap().last().unwrap();
    let shown = words(&["show", "jobs", item["item"].as_str().unwrap()]);
    let why = "its group waits for its rate, and starts the next item at about 20";
    assert!(shown.contains(why), "{shown}");

    let steps: [(&[&str], &str); 6] = [
        (
            &["acme", "--rate", "100/1m", "--burst", "10"],
            "no limit of slots, 100 per 1m, burst 10; before: no limit of slots, 1 per 1day",
        ),
        (
            &["acme", "--ordered", "--rate", "1/1day"],
            "at most 1, until end, 1 per 1day; before: no limit of slots, 100 per 1m, burst 10",
        ),
        (
            &["--no-limit", "--rate", "5/500ms"],
            "default limits: no limit of slots, 5 per 500ms; before: no limit",
        ),
        (
            &["acme", "--remove", "rate"],
            "at most 1, until end; before: at most 1, until end, 1 per 1day",
        ),
        (
            &["--remove", "weight"],
            "default limits: no limit of slots, 5 per 500ms; unchanged: `weight` is not among them",
        ),
        (
            &["acme", "--reset"],
            "no limit of slots, 5 per 500ms, by default; before: at most 1, until end",
        ),
    ];
    for (options, told) in steps {
        assert_limited(&store, options, told);
    }
}

#[test]
fn rates_that_are_malformed_or_out_of_range_are_a_wrong_command() {
    let store = Filled::embedded();
    let malformed = "expected a number of starts and a time with its unit";
    let wrong: [(&[&str], &str); 16] = [
        (&["--rate", "100"], malformed),
        (&["--rate", "100/60"], malformed),
        (&["--rate", "100/"], malformed),
        (&["--rate", "/1m"], malformed),
        (&["--rate", "many/1m"], malformed),
        (&["--rate", "1.5/1m"], malformed),
        (&["--rate", "5000000000/1h"], malformed),
        (&["--rate", "0/1m"], "the rate has no starts"),
        (
            &["--rate", "1/0s"],
            "the period of the rate is out of range",
        ),
        (&["--rate", "2000/1ms"], "the rate is out of range"),
        (
            &["--rate", "1/1m", "--burst", "0"],
            "the burst of the rate is 0",
        ),
        (&["--burst", "10"], "--rate"),
        (&["--reset", "--rate", "1/1m"], "cannot be used with"),
        (
            &["--remove", "rate", "--weight", "2"],
            "cannot be used with",
        ),
        (&["--remove", "rate", "--reset"], "cannot be used with"),
        (&["--remove", "slots"], "at-most, until-end"),
    ];
    for (options, reason) in wrong {
        let finished = store.run(&[&["limit", "jobs", "a"][..], options].concat());
        finished.assert_refused(2, reason);
    }
    assert_eq!(store.json(&["groups", "jobs"])["groups"], json!([]));
}

#[tokio::test]
async fn the_page_of_groups_shows_and_changes_rates() {
    let store = TestStore::memory().db;
    let world = World::on(store, Subspace::all(), Ids::default()).await;
    let item = wait_for_rate(&world).await;
    let options = WebOptions::new().allow_changes(true);
    let router = console::router(world.console(), options);
    let site = TestSite { router };
    let token = site.token().await;
    let groups = "/queues/jobs/groups";
    let page = site.shown(groups).await.text;
    for text in ["<td>waits for its rate until 20", "<td>1 per 1day</td>"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let shown = site.shown(&format!("/queues/jobs/item/{item}")).await.text;
    assert!(shown.contains("queued: its group waits for its rate, and starts"));
    for (fields, text) in [
        (
            "group=acme&action=set&starts=100&period=1m+30s&burst=10&at_most=",
            "<td>100 per 1m 30s, burst 10</td>",
        ),
        (
            "group=acme&action=pause",
            "<td>100 per 1m 30s, burst 10</td>",
        ),
        (
            "group=acme&action=set&starts=1&period=1day&burst=",
            "<td>1 per 1day</td>",
        ),
        (
            "group=acme&action=remove&limit=rate",
            "<td>0, no limit</td>",
        ),
        (
            "group=&action=set&starts=1&period=1s",
            "Limits by default: no limit of slots, 1 per 1s",
        ),
    ] {
        let answer = site.post(groups, &format!("token={token}&{fields}")).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
        let page = site.shown(groups).await.text;
        assert!(page.contains(text), "{text}: {page}");
    }
    let both = "a rate needs both its starts and its period";
    for (fields, text) in [
        ("starts=1", both),
        ("period=1m", both),
        ("burst=1", both),
        ("starts=x&period=1m", "a limit is no number"),
        ("starts=1&period=soon", "a period is a time with its unit"),
        ("starts=1&period=60", "a period is a time with its unit"),
        ("starts=0&period=1m", "the rate has no starts"),
        ("starts=1&period=1m&burst=0", "the burst of the rate is 0"),
    ] {
        let form = format!("token={token}&group=acme&action=set&{fields}");
        for path in [groups, &format!("/api{groups}")] {
            let answer = site.post(path, &form).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {fields}");
            assert!(answer.text.contains(text), "{text}: {}", answer.text);
        }
    }
    let form = format!("token={token}&group=acme&action=set&starts=7&period=2h&burst=3");
    let change = site.post(&format!("/api{groups}"), &form).await.json();
    assert_valid("Change", &change);
    let listed = site.shown(&format!("/api{groups}")).await.json();
    assert_valid("Groups", &listed);
    assert_eq!(
        listed["groups"][0]["limits"]["rate"],
        json!({ "starts": 7, "period_seconds": 7_200.0, "burst": 3 })
    );
}
