//! Pages of listings: a page that nothing follows has no next one, even if it is full.

use crate::common::World;
use conformance::stores::TestStore;

conformance::on_every_store!(threads:
    a_full_page_that_nothing_follows_is_the_last_one,
);

async fn a_full_page_that_nothing_follows_is_the_last_one(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let [jobs, counts, events] = ["jobs", "counts", "events"].map(|name| world.name(name));
    let list = async |place: &str, limit| {
        let page = console.items(&jobs, place, None, limit).await.unwrap();
        (page.items.len(), page.next.is_some())
    };
    for place in ["queued", "delayed", "held", "dead", "done"] {
        let (all, has_more) = list(place, 1_000).await;
        assert!(all > 1 && !has_more, "{place}");
        assert_eq!(list(place, all).await, (all, false), "{place}");
        assert_eq!(list(place, all - 1).await, (all - 1, true), "{place}");
    }
    let schedules = console.schedules(&jobs, None, None, 2).await.unwrap();
    assert_eq!((schedules.schedules.len(), schedules.next), (2, None));
    let sessions = console.sessions(&jobs, None, 1).await.unwrap();
    assert_eq!((sessions.sessions.len(), sessions.next), (1, None));
    let letters = console.letters(&events, "mirror", None, 2).await.unwrap();
    assert_eq!((letters.items.len(), letters.next), (2, None));
    let aside = console.set_aside(&counts, None, 1).await.unwrap();
    assert_eq!((aside.set_aside.len(), aside.next), (1, None));
    let queues = console.queues(None, 7).await.unwrap();
    assert_eq!((queues.queues.len(), queues.next), (7, None));
    let keys = async |limit| {
        let page = console.keys(Some(&jobs), None, limit).await.unwrap();
        (page.keys.len(), page.next.is_some())
    };
    let (all, has_more) = keys(1_000).await;
    assert!(all > 1 && !has_more);
    assert_eq!(keys(all).await, (all, false));
    assert_eq!(keys(all - 1).await, (all - 1, true));
}
