//! The schedules of an owner, set in one transaction.

use conformance::second_fails;
use conformance::stores::TestStore;
use microqueue::keyspace::Transaction;

use super::*;
use crate::queue::enqueue_options::Enqueue;
use crate::schedule::record::MAX_SCHEDULE_OWNER_BYTES;

conformance::on_every_store!(
    an_owner_has_exactly_the_schedules_that_it_has_set,
    a_schedule_that_stays_keeps_its_next_time_and_what_has_fired,
    a_plan_says_what_would_change_and_stages_nothing,
    a_schedule_of_another_owner_or_of_none_is_refused,
    a_schedule_that_is_handed_over_stays_as_it_is,
    an_operator_changes_and_removes_schedules_of_an_owner,
    what_cannot_be_set_is_refused_before_anything_is_staged,
    an_owner_sets_as_many_schedules_as_the_limit_says,
    an_owner_is_given_no_more_schedules_than_it_can_set,
    schedules_that_have_become_too_large_are_refused_with_what_to_do,
    the_schedules_of_an_owner_are_listed_page_by_page,
    a_name_that_the_index_has_by_mistake_removes_no_schedule_of_another_owner,
    a_set_conflicts_with_its_own_schedules_only,
);

/// A schedule with its name and its value.
type Entry<'a> = (&'a str, Schedule, String);

/// Returns a schedule whose value is its name.
fn hourly(name: &str, minute: u8) -> Entry<'_> {
    let cron = Schedule::new(format!("{minute} * * * *"));
    (name, cron, name.to_owned())
}

impl<D: Database> ScheduleWorld<D> {
    async fn try_set(&self, owner: &str, list: &[Entry<'_>]) -> Result<ScheduleChanges<String>> {
        let set = async |tr| self.queue.set_schedules(&tr, owner, list).await;
        self.runner.run(set).await
    }

    async fn set_all(&self, owner: &str, list: &[Entry<'_>]) -> ScheduleChanges<String> {
        self.try_set(owner, list).await.unwrap()
    }

    async fn plan(&self, owner: &str, list: &[Entry<'_>]) -> Result<ScheduleChanges<String>> {
        let plan = async |tr| self.queue.plan_schedules(&tr, owner, list).await;
        self.runner.run(plan).await
    }

    async fn set_owner(&self, name: &str, owner: Option<&str>) -> Result<bool> {
        let set = async |tr| self.queue.set_schedule_owner(&tr, name, owner).await;
        self.runner.run(set).await
    }

    async fn of_owner(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<ListedSchedule<String>> {
        let list = async |tr| self.queue.schedules_of(&tr, owner, after, limit).await;
        self.runner.run(list).await.unwrap()
    }

    async fn names_of(&self, owner: &str) -> Vec<String> {
        let listed = self.of_owner(owner, None, 100).await;
        listed.into_iter().map(|listed| listed.name).collect()
    }

    async fn entry_of(&self, name: &str) -> ScheduleEntry<String> {
        let find = async |tr| self.queue.find_schedule(&tr, name).await;
        self.runner.run(find).await.unwrap().unwrap()
    }
}

async fn an_owner_has_exactly_the_schedules_that_it_has_set(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    world.create("alone", &minutely()).await;
    let other = world.set_all("billing", &[hourly("invoices", 5)]).await;
    assert_eq!(other.added, ["invoices"]);

    let three = [hourly("b", 1), hourly("a", 2), hourly("c", 3)];
    let first = world.set_all("shop", &three).await;
    assert_eq!(first.added, ["a", "b", "c"]);
    assert!(first.changed.is_empty() && first.removed.is_empty() && first.unchanged.is_empty());

    let next = [
        hourly("a", 2),
        hourly("c", 30),
        hourly("d", 4),
        ("e", minutely(), "new".to_owned()),
    ];
    let second = world.set_all("shop", &next).await;
    assert_eq!(second.added, ["d", "e"]);
    assert_eq!(second.removed, ["b"]);
    assert_eq!(second.unchanged, ["a"]);
    let [changed] = &second.changed[..] else {
        panic!("{:?}", second.changed);
    };
    assert_eq!(changed.name, "c");
    assert_eq!(changed.from.schedule, Schedule::new("3 * * * *"));
    assert_eq!(changed.to.schedule, Schedule::new("30 * * * *"));
    assert_eq!(changed.to.next, Some(utc(NOON) + 30 * MINUTE));
    assert_eq!(changed.to, world.entry_of("c").await);

    // Another value is another schedule.
    let other_value = [hourly("a", 2), ("c", next[1].1.clone(), "other".to_owned())];
    let third = world.set_all("shop", &other_value).await;
    let values = third.changed.iter().map(|changed| &changed.to.payload);
    assert_eq!(values.collect::<Vec<_>>(), [&Ok("other".to_owned())]);
    assert_eq!(third.removed, ["d", "e"]);

    let last = world.set_all("shop", &[]).await;
    assert_eq!(last.removed, ["a", "c"]);
    let names: Vec<_> = world.list().await.into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["alone", "invoices"]);
    assert_eq!(world.names_of("shop").await, [""; 0]);
    assert_eq!(world.names_of("billing").await, ["invoices"]);
    world.check().await;
}

async fn a_schedule_that_stays_keeps_its_next_time_and_what_has_fired(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    let list = [hourly("a", 0), ("b", minutely(), "b".to_owned())];
    world.set_all("shop", &list).await;
    world.set(NOON);
    assert_eq!(world.fire().await, 2);
    // Both are due again when the program starts anew, and fire nevertheless.
    world.set("2026-11-22T13:00:01Z");
    let again = world.set_all("shop", &list).await;
    assert_eq!(again.unchanged, ["a", "b"]);
    assert_eq!(world.fire().await, 2);
    assert_eq!(world.set_all("shop", &list).await.unchanged, ["a", "b"]);
    assert_eq!(world.fire().await, 0);
    let times = world.times().await;
    let hour = utc(NOON) + 60 * MINUTE;
    assert_eq!(times, [utc(NOON), utc(NOON), hour, hour]);
    // The present time has fired, and does not fire again after a change and back.
    world.set_all("shop", &[hourly("a", 30)]).await;
    world.set_all("shop", &list[..1]).await;
    assert_eq!(world.entry_of("a").await.last, Some(hour));
    assert_eq!(world.fire().await, 0);
    world.check().await;
}

async fn a_plan_says_what_would_change_and_stages_nothing(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    let list = [hourly("a", 1), hourly("b", 2), hourly("c", 3)];
    world.set_all("shop", &list).await;
    let next = [hourly("a", 1), hourly("b", 20), hourly("d", 4)];
    let before = world.list().await;
    let planned = world.plan("shop", &next).await.unwrap();
    assert_eq!(world.list().await, before);
    assert_eq!(world.set_all("shop", &next).await, planned);
    assert_eq!(planned.changed.len(), 1);
    // It refuses what the call refuses.
    let refused = world.plan("billing", &next).await;
    assert!(matches!(refused, Err(Error::OtherOwner { .. })));
    world.check().await;
}

async fn a_schedule_of_another_owner_or_of_none_is_refused(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    world.create("alone", &minutely()).await;
    world.set_all("billing", &[hourly("invoices", 5)]).await;
    world.set_all("shop", &[hourly("a", 1)]).await;
    let before = world.list().await;
    for (name, of, text) in [
        (
            "alone",
            None,
            "schedule `alone` belongs to no owner: use another name, or `set_schedule_owner` to hand it over",
        ),
        (
            "invoices",
            Some("billing"),
            "schedule `invoices` belongs to owner `billing`: use another name, or `set_schedule_owner` to hand it over",
        ),
    ] {
        let refused = world
            .try_set("shop", &[hourly("b", 1), hourly(name, 2)])
            .await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.to_string(), text);
        let Error::OtherOwner { name: named, owner } = refused else {
            panic!("{refused}");
        };
        assert_eq!((&*named, owner.as_deref()), (name, of));
        assert_eq!(world.list().await, before);
    }
    world.check().await;
}

async fn a_schedule_that_is_handed_over_stays_as_it_is(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    world.create("a", &minutely()).await;
    world.set(NOON);
    assert_eq!(world.fire().await, 1);
    world.pass(MINUTE);
    let list = [("a", minutely(), "a".to_owned())];
    for owner in [Some("shop"), Some("billing"), None, Some("shop")] {
        let before = world.entry_of("a").await;
        assert!(world.set_owner("a", owner).await.unwrap());
        let after = world.entry_of("a").await;
        assert_eq!(after.owner.as_deref(), owner);
        assert_eq!((after.next, after.last), (before.next, before.last));
        for one in ["shop", "billing"] {
            let has = usize::from(owner == Some(one));
            assert_eq!(world.names_of(one).await.len(), has);
        }
        let set = world.try_set("shop", &list).await;
        assert_eq!(set.is_ok(), owner == Some("shop"));
        world.check().await;
    }
    assert!(!world.set_owner("b", Some("shop")).await.unwrap());
    let empty = world.set_owner("a", Some("")).await;
    assert!(matches!(empty, Err(Error::ScheduleOwner { bytes: 0, .. })));
    assert_eq!(world.fire().await, 1);
}

async fn an_operator_changes_and_removes_schedules_of_an_owner(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    let list = [hourly("a", 1), hourly("b", 2)];
    world.set_all("shop", &list).await;
    assert_eq!(world.schedule("a", &minutely()).await, Scheduled::Changed);
    assert_eq!(world.entry_of("a").await.owner.as_deref(), Some("shop"));
    let queue = &world.queue;
    let remove = async |tr| queue.unschedule(&tr, "b").await;
    assert!(world.runner.run(remove).await.unwrap());
    assert_eq!(world.names_of("shop").await, ["a"]);
    world.check().await;
    let back = world.set_all("shop", &list).await;
    assert_eq!((back.changed.len(), &*back.changed[0].name), (1, "a"));
    assert_eq!(back.added, ["b"]);
    world.check().await;
}

async fn what_cannot_be_set_is_refused_before_anything_is_staged(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    world.set_all("shop", &[hourly("a", 1)]).await;
    let before = world.list().await;
    let with = |cron: &str| ("b", Schedule::new(cron), String::new());
    let fixed = Enqueue::new().with_due_time(utc(NOON));
    let fixed = ("b", minutely().with_enqueue_options(fixed), String::new());
    let long = "x".repeat(256);
    let large = "x".repeat(90_000);
    let names: Vec<_> = (0..=MAX_OWNED_SCHEDULES)
        .map(|number| number.to_string())
        .collect();
    let many: Vec<_> = names.iter().map(|name| hourly(name, 1)).collect();
    let heavy: Vec<_> = names[..50]
        .iter()
        .map(|name| (&**name, minutely(), large.clone()))
        .collect();
    let cases = [
        ("shop", vec![hourly("c", 1), with("0 0 30 2 *")]),
        ("shop", vec![hourly("c", 1), with("nonsense")]),
        ("shop", vec![hourly("c", 1), fixed]),
        ("shop", vec![hourly("c", 1), hourly("", 1)]),
        ("shop", vec![hourly("c", 1), hourly("c", 2)]),
        ("", vec![hourly("c", 1)]),
        (&*long, vec![hourly("c", 1)]),
        ("shop", many),
        ("shop", heavy),
    ];
    let mut errors = Vec::new();
    for (owner, list) in &cases {
        // The transaction goes on, and commits nothing of it.
        let queue = &world.queue;
        let set = async |tr| {
            let refused = queue.set_schedules(&tr, owner, list).await.unwrap_err();
            Ok::<_, Error>(refused)
        };
        errors.push(world.runner.run(set).await.unwrap());
        assert_eq!(world.list().await, before);
    }
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "cron expression `0 0 30 2 *` never fires",
            "`nonsense` is not a valid cron expression",
            "a schedule cannot enqueue at a fixed time: use a delay after each scheduled time",
            "schedule name of 0 bytes: use 1 to 255 bytes",
            "schedule `c` is given twice: name each schedule once",
            "owner of schedules of 0 bytes: use 1 to 255 bytes",
            "owner of schedules of 256 bytes: use 1 to 255 bytes",
            "1001 schedules of one owner: set at most 1000, and divide others among more owners",
            "schedules of one owner have 4502550 bytes or more: the limit is 4000000 bytes; divide them among more \
             owners, and `unschedule` stored ones that are too large",
        ]
    );
    assert_eq!(long.len(), MAX_SCHEDULE_OWNER_BYTES + 1);
    world.check().await;
}

async fn an_owner_sets_as_many_schedules_as_the_limit_says(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    // With the longest owner and the longest names, too, they fit in a transaction.
    let owner = "o".repeat(MAX_SCHEDULE_OWNER_BYTES);
    let names: Vec<_> = (0..MAX_OWNED_SCHEDULES)
        .map(|number| format!("{number:0>255}"))
        .collect();
    let list: Vec<_> = names.iter().map(|name| hourly(name, 1)).collect();
    let set = world.set_all(&owner, &list).await;
    assert_eq!(set.added.len(), MAX_OWNED_SCHEDULES);
    let later: Vec<_> = names.iter().map(|name| hourly(name, 2)).collect();
    let set = world.set_all(&owner, &later).await;
    assert_eq!(set.changed.len(), MAX_OWNED_SCHEDULES);
    // The owner can be divided.
    assert_eq!(
        world.set_all(&owner, &[]).await.removed.len(),
        MAX_OWNED_SCHEDULES
    );
    assert_eq!(world.rows(Part::Schedules).await, 0);
    assert_eq!(world.rows(Part::OwnedSchedules).await, 0);
    world.check().await;
}

async fn an_owner_is_given_no_more_schedules_than_it_can_set(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    world.create("x", &minutely()).await;
    world.create("y", &minutely()).await;
    let names: Vec<_> = (1..MAX_OWNED_SCHEDULES)
        .map(|number| number.to_string())
        .collect();
    let list: Vec<_> = names.iter().map(|name| hourly(name, 1)).collect();
    world.set_all("shop", &list).await;
    // Of two that take the last place, one fails.
    let queue = &world.queue;
    let first = world.runner.database().begin().unwrap();
    let second = world.runner.database().begin().unwrap();
    for (tr, name) in [(&first, "x"), (&second, "y")] {
        assert!(
            queue
                .set_schedule_owner(tr, name, Some("shop"))
                .await
                .unwrap()
        );
    }
    assert!(second_fails((), first, second).await);
    let text = "1001 schedules of one owner: set at most 1000, and divide others among more owners";
    let refused = world.set_owner("y", Some("shop")).await.unwrap_err();
    assert_eq!(refused.to_string(), text);
    assert!(world.set_owner("x", Some("shop")).await.unwrap());
    // It can rename all of them.
    let names: Vec<_> = names.iter().map(|name| format!("new {name}")).collect();
    let mut renamed: Vec<_> = names.iter().map(|name| hourly(name, 1)).collect();
    renamed.push(hourly("new x", 1));
    let changes = world.set_all("shop", &renamed).await;
    let changed = (changes.added.len(), changes.removed.len());
    assert_eq!(changed, (MAX_OWNED_SCHEDULES, MAX_OWNED_SCHEDULES));
    world.set_all("shop", &[]).await;
    world.check().await;
}

async fn schedules_that_have_become_too_large_are_refused_with_what_to_do(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    let queue = &world.queue;
    let names: Vec<_> = (0..90).map(|number| format!("{number:02}")).collect();
    let list: Vec<_> = names.iter().map(|name| hourly(name, 1)).collect();
    world.set_all("shop", &list).await;
    let large = &"x".repeat(90_000);
    for name in &names {
        let replace = async |tr| queue.schedule(&tr, name, &minutely(), large).await;
        assert_eq!(world.runner.run(replace).await.unwrap(), Scheduled::Changed);
    }
    let refused = world.try_set("shop", &[]).await.unwrap_err();
    assert!(
        matches!(refused, Error::SchedulesTooLarge { limit, .. } if limit == 2 * MAX_SET_BYTES)
    );
    for name in &names[..5] {
        let remove = async |tr| queue.unschedule(&tr, name).await;
        assert!(world.runner.run(remove).await.unwrap());
    }
    assert_eq!(world.set_all("shop", &list).await.changed.len(), 85);
    world.check().await;
}

async fn the_schedules_of_an_owner_are_listed_page_by_page(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    world.create("b2", &minutely()).await;
    let list = ["a", "b", "c", "d"].map(|name| hourly(name, 1));
    world.set_all("shop", &list).await;
    world.set_all("shop2", &[hourly("x", 1)]).await;
    // Damage has left a name without a schedule.
    let key = &world.queue.keys.schedule("b");
    let clear = async |tr: microqueue::keyspace::Tx<_>| {
        tr.clear(key);
        Ok::<_, Error>(())
    };
    world.runner.run(clear).await.unwrap();
    let mut after: Option<String> = None;
    let mut pages = Vec::new();
    loop {
        let page = world.of_owner("shop", after.as_deref(), 2).await;
        let Some(last) = page.last() else {
            break;
        };
        after = Some(last.name.clone());
        let names: Vec<_> = page.into_iter().map(|listed| listed.name).collect();
        pages.push(names);
    }
    assert_eq!(pages, [vec!["a", "c"], vec!["d"]]);
    // It takes no part in what the owner sets, and a repair removes it.
    let set = world.set_all("shop", &[]).await;
    assert_eq!(set.removed, ["a", "c", "d"]);
    let audit = world.queue.repair(&world.runner).await.unwrap();
    let stray = crate::Finding::StrayOwnedSchedule {
        schedule: "b".to_owned(),
        owner: "shop".to_owned(),
    };
    assert!(audit.findings.contains(&stray), "{audit:?}");
    world.check().await;
}

async fn a_name_that_the_index_has_by_mistake_removes_no_schedule_of_another_owner(
    store: TestStore,
) {
    let world = ScheduleWorld::new(&store, NOON).await;
    world.create("alone", &minutely()).await;
    world.set_all("billing", &[hourly("invoices", 5)]).await;
    world.set_all("shop", &[hourly("report", 5)]).await;
    // Damage has put the names of others among those of the shop.
    let names = &world.queue.keys.schedules_of("shop");
    let damage = async |tr: microqueue::keyspace::Tx<_>| {
        for name in ["alone", "invoices"] {
            tr.set(&names.pack(&name), b"");
        }
        Ok::<_, Error>(())
    };
    world.runner.run(damage).await.unwrap();
    let set = world.set_all("shop", &[]).await;
    assert_eq!(set.removed, ["report"]);
    let names: Vec<_> = world.list().await.into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["alone", "invoices"]);
    let audit = world.queue.repair(&world.runner).await.unwrap();
    assert_eq!(audit.findings.len(), 2, "{audit:?}");
    world.check().await;
}

async fn a_set_conflicts_with_its_own_schedules_only(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    let queue = &world.queue;
    world
        .set_all("shop", &[hourly("a", 0), hourly("b", 0)])
        .await;
    world.set_all("billing", &[hourly("x", 30)]).await;
    world.create("alone", &Schedule::new("45 * * * *")).await;
    let list = [hourly("a", 0), hourly("c", 1)];
    for (with, fails) in [
        (With::SameSet, true),
        (With::EmptySet, true),
        (With::NewSchedule, true),
        (With::Firing, true),
        (With::Removal, true),
        (With::OtherOwner, false),
        (With::WithoutOwner, false),
    ] {
        let first = store.db.begin().unwrap();
        let second = store.db.begin().unwrap();
        if with == With::Firing {
            world.set(NOON);
        }
        stage(&first, queue, with, &list).await;
        queue.set_schedules(&second, "shop", &list).await.unwrap();
        assert_eq!(second_fails(with, first, second).await, fails, "{with:?}");
        world.set("2026-11-22T11:59:30Z");
        world.set_all("shop", &[]).await;
        let both = [hourly("a", 0), hourly("b", 0)];
        world.set_all("shop", &both).await;
    }
    world.check().await;
}

/// A transaction at the same time as one that sets the schedules of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum With {
    SameSet,
    EmptySet,
    /// A set that adds another schedule of the owner.
    NewSchedule,
    /// A firing of a schedule that stays.
    Firing,
    /// The removal of a single schedule.
    Removal,
    OtherOwner,
    /// A change of a schedule without an owner.
    WithoutOwner,
}

async fn stage(tr: &impl Transaction, queue: &Queue, with: With, list: &[Entry<'_>]) {
    let owner = if with == With::OtherOwner {
        "billing"
    } else {
        "shop"
    };
    let set = match with {
        With::SameSet => list.to_vec(),
        With::EmptySet => Vec::new(),
        With::NewSchedule => vec![hourly("a", 0), hourly("b", 0), hourly("bb", 1)],
        With::OtherOwner => vec![hourly("y", 3)],
        With::Firing => {
            let fired = fire_due(tr, &queue.keys, None).await.unwrap();
            assert_eq!(fired.items, 2);
            return;
        }
        With::Removal => {
            assert!(queue.unschedule(tr, "a").await.unwrap());
            return;
        }
        With::WithoutOwner => {
            let other = Schedule::new("46 * * * *");
            let value = &"alone".to_owned();
            let changed = queue.schedule(tr, "alone", &other, value).await;
            assert_eq!(changed.unwrap(), Scheduled::Changed);
            return;
        }
    };
    queue.set_schedules(tr, owner, &set).await.unwrap();
}
