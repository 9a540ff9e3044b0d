//! Rates of groups: how much of what is allowed starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use benches::contender::{ITEM, Site};
use benches::stage::{Stage, runtime};
use benches::table::Table;
use conformance::scale;
use hc_dequeue::{Enqueue, GroupLimits, Rate};
use keyspace::Environment;
use tokio::task::JoinSet;

use crate::idle::site;
use crate::slots::Place;

/// How many consumers wait for items.
const CONSUMERS: usize = 16;

const SECOND: Duration = Duration::from_secs(1);

/// How many groups have a rate, and which.
struct Case {
    groups: u64,
    rate: Rate,
}

/// Returns a table of how many items start of those that may.
pub(crate) fn reached(stage: &Stage) -> String {
    let case = |groups, starts, burst| Case {
        groups,
        rate: Rate::new(starts, SECOND).with_burst(burst),
    };
    let mut table = Table::new([
        "groups",
        "starts per second of each",
        "burst",
        "started per second",
        "of those allowed",
    ]);
    for case in [
        case(1, 10, 1),
        case(1, 100, 1),
        case(1, 100, 10),
        case(1, 1_000, 10),
        case(100, 10, 1),
        case(1_000, 1, 1),
        case(1_000, 10, 10),
    ] {
        let [started, share] = stage.on_a_clean_place(|place| {
            let site = site(stage, place);
            runtime().block_on(measure(&site, &case))
        });
        table.push([
            case.groups.to_string(),
            case.rate.starts().to_string(),
            case.rate.burst().to_string(),
            format!("{started:.0}"),
            format!("{share:.2}"),
        ]);
    }
    format!("Items of groups with a rate, of which there are more than may start\n\n{table}")
}

/// Returns how many items are popped in a second, and their share in those that may start.
async fn measure(site: &Site, case: &Case) -> [f64; 2] {
    let env = Environment::system();
    let time = SECOND * scale(3, 20) as u32;
    let place = Place::open(site).await;
    place
        .limit_groups(&GroupLimits::new().with_rate(case.rate))
        .await;
    let allowed_of_each =
        f64::from(case.rate.burst()) + time.as_secs_f64() * f64::from(case.rate.starts());
    let waiting = allowed_of_each as u64 + 10;
    for _ in 0..waiting {
        let items = (0..case.groups).map(|group| {
            let group = group.to_be_bytes().to_vec();
            (ITEM, Enqueue::new().with_group(group))
        });
        place.enqueue(&items.collect::<Vec<_>>()).await;
    }
    let consumer = place.consumer().await;
    let popped = Arc::new(AtomicU64::new(0));
    let mut consumers = JoinSet::new();
    let began = env.now();
    for _ in 0..CONSUMERS {
        let consumer = consumer.clone();
        let popped = popped.clone();
        consumers.spawn(async move {
            loop {
                let item = consumer.pop_within(SECOND).await;
                let item = item.expect("conflicts are retried");
                popped.fetch_add(u64::from(item.is_some()), Ordering::Relaxed);
            }
        });
    }
    env.sleep(time).await;
    let popped = popped.load(Ordering::Relaxed) as f64;
    let took = (env.now() - began).as_secs_f64();
    consumers.abort_all();
    [
        popped / took,
        popped / (case.groups as f64 * allowed_of_each),
    ]
}
