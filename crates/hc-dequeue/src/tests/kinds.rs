//! A session passes over items of kinds that it does not take, and rests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use microqueue::keyspace::codec::MessagePack;
use microqueue::keyspace::env::ManualClock;
use microqueue::keyspace::{Environment, RunOptions, Runner};

use super::memory;
use crate::items::MAX_STEP_ITEMS;
use crate::items::error::Error;
use crate::items::kind::{Kind, Kinds};
use crate::items::settings::Settings;
use crate::items::value::decoder;
use crate::lanes::LaneMemory;
use crate::protocol::front::Fronts;
use crate::protocol::fulfill::fulfill;
use crate::protocol::request::{Wanted, append, supply};
use crate::protocol::{Demand, Purpose, SessionContext};
use crate::queue::enqueue_options::Enqueue;
use crate::queue::handle::Queue;
use crate::session::SessionId;
use crate::session::wall::wall_millis;

const SESSION: SessionId = SessionId([1; 16]);

/// In milliseconds. No item is due that soon.
const HOUR: u64 = 60 * 60 * 1_000;

/// More steps than the session needs to find out that it may take nothing.
const STEPS: usize = 30;

/// Returns items of a kind that the session does not know: outside of groups and in groups, due, and due tomorrow.
fn of_another_kind() -> Vec<(u64, Enqueue)> {
    let of_other_kind = || Enqueue::new().with_kind("other");
    let mut items: Vec<_> = (0..1_200).map(|number| (number, of_other_kind())).collect();
    items.extend((0..300).map(|number| (number, of_other_kind().with_group(number.to_string()))));
    items.extend((0..100).map(|number| (number, of_other_kind().with_due_time(UNIX_EPOCH))));
    let tomorrow = Duration::from_secs(24 * 60 * 60);
    items.extend((0..100).map(|number| (number, of_other_kind().with_delay(tomorrow))));
    items
}

#[tokio::test]
async fn a_session_that_may_take_nothing_finds_that_out_and_rests() {
    let clock = ManualClock::new();
    let env = &Environment::seeded(0, Arc::new(clock.clone()));
    let options = RunOptions::default().with_environment(env.clone());
    let runner = Runner::with_options(memory(), options);
    let queue = &Queue::<u64>::open(&runner, "queue").await.unwrap();
    let items = of_another_kind();
    for some in items.chunks(400) {
        let enqueue = |tr| async move { queue.enqueue_all_with(&tr, some).await };
        runner.run(enqueue).await.unwrap();
    }

    let kinds = Kinds::new(BTreeSet::from([Kind::new("known").unwrap()]));
    let keys = &queue.keys.of_kinds(kinds.to_row().as_deref());
    let rest = Duration::from_secs(60);
    let lanes = LaneMemory::of_session(Arc::new(kinds), rest, runner.environment());
    let decode = decoder::<u64, _>(MessagePack);
    let demand = &[Demand {
        wanted: 1,
        purpose: Purpose::Deliver,
    }];
    let context = SessionContext {
        keys,
        settings: &Settings::new(),
        session: SESSION,
        promotes: true,
        demand,
        decode: &*decode,
        fronts: &Fronts::new(rest, lanes),
    };
    let open = |tr| async move {
        keys.sessions.open(&tr, SESSION, rest, UNIX_EPOCH);
        append(&tr, context, Wanted::of(demand)).await
    };
    runner.run(open).await.unwrap();

    let see = async || {
        let see = |tr| async move { supply(&tr, context).await };
        runner.run(see).await.unwrap()
    };
    // While there may be items, the session leads.
    let lead_until_nothing = async || {
        for steps in 0..STEPS {
            let seen = see().await;
            if !seen.has_items {
                return (steps, seen.due);
            }
            let lead = |tr| async move {
                let fulfilled = fulfill(&tr, context, None, MAX_STEP_ITEMS, &[]).await?;
                Ok::<_, Error>(fulfilled.0)
            };
            assert_eq!(runner.run(lead).await.unwrap().granted, 0);
        }
        panic!("it goes on and on");
    };
    assert!(lead_until_nothing().await.0 > 2);
    assert_eq!(context.fronts.unreadable(), 0);

    // Then it sleeps, except for a search of what it has passed over, also after it was woken.
    for some in [&[], &items[..1], &items[items.len() - 1..]] {
        let enqueue = |tr| async move { queue.enqueue_all_with(&tr, some).await };
        runner.run(enqueue).await.unwrap();
        let mut alarms = 0;
        while let (_, Some(due)) = lead_until_nothing().await {
            let sleeps = due.saturating_sub(wall_millis(env));
            if sleeps > HOUR {
                break;
            }
            clock.advance(Duration::from_millis(sleeps));
            alarms += 1;
            assert!(alarms < STEPS, "it wakes up again and again");
        }
    }
}
