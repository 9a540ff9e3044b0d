//! The setting of the queue that gets the deaths of another one's items: in commands, in JSON and on pages.

use conformance::stores::TestStore;
use export_queue::hc_dequeue::{Death, Queue};
use export_queue::keyspace::{Ids, OpenOptions, Subspace};
use serde_json::Value;

use crate::common::program::Filled;
use crate::common::{AGE, LONG, World, assert_valid, at_wall, valid};
use crate::web::site::TestSite;

conformance::on_every_store!(threads:
    a_queue_of_deaths_is_set_and_gets_the_next_death,
);

/// Opens the queue `deaths`.
pub(crate) async fn open_deaths(world: &World) -> Queue<Death> {
    let options = OpenOptions::new().with_ids(world.ids.clone());
    let subspace = world.root.subspace(&"deaths");
    let deaths = Queue::open_with(&world.runner, subspace, Default::default(), options);
    deaths.await.unwrap()
}

async fn a_queue_of_deaths_is_set_and_gets_the_next_death(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let name = &world.name("deaths");
    let deaths = open_deaths(&world).await;
    let subspace = deaths.subspace();
    let edit = console.configure(jobs, |settings| settings.with_deaths(subspace.clone()));
    let settings = valid(edit.await.unwrap());
    assert_eq!(settings.deaths.as_ref(), Some(name));
    assert_eq!(console.settings(jobs).await.unwrap(), settings);
    // A session that begins knows the setting; the others follow within a heartbeat.
    let later = at_wall(&world, "later", AGE).await;
    let delivery = later.consumer.dequeue_within(LONG).await;
    let delivery = delivery.unwrap().unwrap();
    let item = delivery.item_ref().to_string();
    delivery.discard("no").await.unwrap();
    let told = console.items(name, "queued", None, 10).await.unwrap().items;
    let [death] = &told[..] else {
        panic!("{told:?}");
    };
    let death = death.payload.as_ref().unwrap().value.as_ref().unwrap();
    assert!(death.to_string().contains(&item), "{death} of {item}");
}

#[test]
fn the_program_sets_and_removes_the_queue_of_deaths() {
    let store = Filled::with(|world| {
        Box::pin(async move {
            open_deaths(world).await;
        })
    });
    let deaths = |settings: Value| {
        assert_valid("Settings", &settings);
        settings.get("deaths").cloned()
    };
    let configure = ["configure", "jobs"];
    let with = |options: &[&'static str]| store.json(&[&configure[..], options].concat());
    assert_eq!(deaths(with(&[])), None);
    let set = ["--deaths", "deaths"];
    assert_eq!(deaths(with(&set)), Some("deaths".into()));
    // Another setting leaves it as it is.
    let other = with(&["--max-attempts", "9"]);
    assert_eq!(deaths(other), Some("deaths".into()));
    let shown = store.run(&configure).out;
    let has_deaths = |line: &str| line.split_whitespace().eq(["deaths", "deaths"]);
    assert!(shown.lines().any(has_deaths), "{shown}");
    assert_eq!(deaths(with(&["--no-deaths"])), None);
}

#[tokio::test]
async fn the_page_of_a_queue_names_the_queue_of_its_deaths() {
    let store = TestStore::memory().db;
    let world = World::on(store, Subspace::all(), Ids::default()).await;
    let site = TestSite::read_only(&world.runner);
    let told = "Dead letters are told to</dt><dd>deaths</dd>";
    assert!(
        !site
            .shown("/queues/jobs")
            .await
            .text
            .contains("are told to")
    );
    let deaths = open_deaths(&world).await;
    let subspace = deaths.subspace();
    let console = world.console();
    let edit = console.configure("jobs", |settings| settings.with_deaths(subspace.clone()));
    edit.await.unwrap();
    let page = site.shown("/queues/jobs").await.text;
    assert!(page.contains(told), "{page}");
    let settings = site.shown("/api/queues/jobs/settings").await.json();
    assert_valid("Settings", &settings);
    assert_eq!(settings["deaths"], "deaths");
}
