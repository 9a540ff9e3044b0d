//! Single steps, in the scenes of the pairs.

use super::*;

#[tokio::test]
async fn an_earlier_grant_does_not_resolve_what_was_granted_again() {
    let world = PairWorld::new(memory(), Scene::Items).await;
    let resolve = async |delivery, how| {
        let mut tr = world.db.begin().unwrap();
        let item = Return {
            id: world.held,
            delivery,
            how,
            reason: None,
        };
        let (given, changes) = give_back(&tr, world.context(A), &[item]).await.unwrap();
        changes.stage(&tr, &world.queue.keys);
        tr.commit().await.unwrap();
        given == [GivenBack::Accepted]
    };
    // The item comes back as the first one, and the same session takes it again.
    assert!(resolve(1, GiveBack::Failed(When::Now)).await);
    world.commit(Step::Take(A)).await.unwrap();
    assert!(!resolve(1, GiveBack::Completed(Bytes::new())).await);
    // Session and item alone would not distinguish the late acknowledgement.
    let held = world.queue.keys.held(A);
    let tr = world.db.begin().unwrap();
    assert!(held.get(&tr, &world.held).await.unwrap().is_some());
    assert!(resolve(2, GiveBack::Completed(Bytes::new())).await);
}

#[tokio::test]
async fn what_is_cancelled_before_it_is_collected_is_marked_and_not_popped() {
    for purpose in [Purpose::Deliver, Purpose::Pop, Purpose::Reserve] {
        let world = PairWorld::new(memory(), Scene::Granted).await;
        let cancel = Step::Change(Edit::CancelGranted);
        world.commit(cancel).await.unwrap();
        let context = SessionContext {
            demand: &[Demand { wanted: 1, purpose }],
            ..world.context(A)
        };
        let mut tr = world.db.begin().unwrap();
        let collected = collect(&tr, context, &world.request.unwrap()).await;
        let [item] = &collected.unwrap().unwrap()[..] else {
            panic!("one item");
        };
        // The dispatcher does not hand out an item that is marked as cancelled.
        assert!(item.record.cancelled_millis != 0 && !item.is_popped);
        tr.commit().await.unwrap();
        let tr = world.db.begin().unwrap();
        let held = world.queue.keys.held(A);
        let record = held.get(&tr, &item.id).await.unwrap();
        assert_eq!(record.as_ref(), Some(&item.record));
    }
}

#[tokio::test]
async fn a_view_that_was_read_ahead_serves_whole_demands_and_any_part_of_a_reserve() {
    for (wanted, purpose, expected) in [
        (2, Purpose::Deliver, Some(2)),
        (3, Purpose::Deliver, None),
        (3, Purpose::Reserve, Some(2)),
    ] {
        let world = PairWorld::new(memory(), Scene::Items).await;
        let demand = &[Demand { wanted, purpose }];
        let context = SessionContext {
            demand,
            ..world.context(A)
        };
        let tr = world.db.begin().unwrap();
        let view = view_queue(&tr, context, 9, TakeMode::Ahead(&Gone::default()))
            .await
            .unwrap();
        let taken = match take(&tr, context, view, Changes::default()).await.unwrap() {
            Some(Taken::Items(items)) => Some(items.len()),
            _ => None,
        };
        assert_eq!(taken, expected, "{demand:?}");
    }
}

/// Changes the first row of the grant, and collects the grant, of which nothing is left to hand out. Returns the row.
async fn collect_damaged(world: &PairWorld<Store>, damage: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let (begin, end) = world.queue.keys.grants(A);
    let mut tr = world.db.begin().unwrap();
    let rows = read_all(&tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await;
    let row = rows.unwrap().remove(0);
    let mut part = row.value().to_vec();
    damage(&mut part);
    tr.set(row.key(), &part);
    tr.commit().await.unwrap();
    let mut tr = world.db.begin().unwrap();
    let collected = collect(&tr, world.context(A), &world.request.unwrap()).await;
    assert_eq!(collected.unwrap().unwrap().len(), 0);
    tr.commit().await.unwrap();
    part
}

#[tokio::test]
async fn a_grant_whose_first_row_says_no_item_is_collected_without_it() {
    let world = PairWorld::new(memory(), Scene::Granted).await;
    collect_damaged(&world, |part| part.truncate(5)).await;
}

#[tokio::test]
async fn a_granted_item_that_does_not_decode_goes_back_as_it_is_and_the_others_are_collected() {
    let world = PairWorld::new(memory(), Scene::Granted).await;
    // The format of the record is newer.
    let part = collect_damaged(&world, |part| part[23] = 2).await;
    let mut tr = world.db.begin().unwrap();
    let page = world.queue.list(&tr, PlaceKind::Queued, None, 10).await;
    let items = page.unwrap().items;
    assert!(items[0].status.is_err() && items[1..].iter().all(|item| item.status.is_ok()));
    let queued = world.queue.keys.queued(Priority::DEFAULT).subspace();
    let key = items[0].item.id().key_in(queued);
    let row = tr.get(&key, Isolation::Snapshot).await.unwrap();
    let mut record = row.unwrap().to_vec();
    assert_eq!(record[2..], part[24..]);
    record[1] = 1;
    tr.set(&key, &record);
    tr.commit().await.unwrap();
    let runner = Runner::new(world.db.clone());
    assert!(world.queue.audit(&runner).await.unwrap().is_clean());
}

#[tokio::test]
async fn the_dead_do_not_count_among_the_living() {
    let world = PairWorld::new(memory(), Scene::Items).await;
    let tr = world.db.begin().unwrap();
    let count = async |ago| {
        let census = world
            .queue
            .keys
            .sessions
            .census(&tr, A, |_| ago)
            .await
            .unwrap();
        (census.suspects, census.living)
    };
    // No session has been silent since version 0, but the state of one says that it is dead.
    assert_eq!(count(Some(0)).await, (vec![DEAD], 3));
    assert_eq!(count(Some(i64::MAX)).await, (vec![B, C, DEAD], 1));
    // A session that has not observed the store for a lease cannot judge the others.
    assert_eq!(count(None).await, (vec![DEAD], 0));
}
