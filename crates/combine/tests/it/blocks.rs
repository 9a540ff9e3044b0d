//! Damaged blocks and positions that point nowhere: updates that cannot be folded are set aside, and the
//! bucket continues.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Log, World, encoded, redrive, set_aside, write};
use combine::microqueue::ItemId;
use combine::microqueue::blocks::WHOLE_BLOCK;
use combine::{AsideId, Bucket, Error, WorkerOptions};
use conformance::stores::TestStore;
use keyspace::{Listed, Versionstamp, limits};

conformance::on_every_store!(threads:
    updates_that_do_not_decode_are_set_aside_and_the_bucket_goes_on,
    more_updates_than_fit_a_transaction_are_all_set_aside,
    a_broken_block_as_large_as_a_value_is_set_aside_and_the_bucket_goes_on,
    a_position_in_a_block_that_is_gone_keeps_nothing_from_being_folded,
    a_position_past_the_end_of_a_block_sets_the_block_aside,
    a_block_that_was_folded_in_part_is_redriven_from_there_on,
);

/// Returns a block of one update of a key.
fn block(key: &str, update: &[u8]) -> Vec<u8> {
    let key = encoded(key);
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
    let header = [1, 1, 0, 1, length(&key), length(update)];
    [&header, &key[..], update].concat()
}

/// Returns the updates of key `a` and the blocks that were set aside, all of one commit, by their bytes.
async fn set_aside_of(
    world: &World,
    commit: Versionstamp,
) -> (BTreeMap<Vec<u8>, AsideId>, BTreeMap<Vec<u8>, AsideId>) {
    let mut of_updates = BTreeMap::new();
    let mut of_blocks = BTreeMap::new();
    for aside in set_aside(world).await {
        let AsideId::Update { bucket, id } = &aside.id else {
            panic!("expected an update or a block, found {:?}", aside.id);
        };
        assert_eq!((bucket.0, id.versionstamp), (0, commit));
        let kept = aside.value.unwrap();
        assert!(!kept.reason.is_empty());
        match id.index {
            0 => {
                assert_eq!(kept.key, encoded("a"));
                of_updates.insert(kept.update.to_vec(), aside.id)
            }
            WHOLE_BLOCK => of_blocks.insert(kept.update.to_vec(), aside.id),
            _ => panic!("{id:?}"),
        };
    }
    (of_updates, of_blocks)
}

async fn updates_that_do_not_decode_are_set_aside_and_the_bucket_goes_on(store: TestStore) {
    for bytes_per_pass in [1, 1 << 20] {
        let world = World::sums(&store, 1).await;
        let log = Log::new(&world.root);
        // Each is after the update of the first commit, and before that of the second.
        let first = world.add("a", 1).await;
        let updates = world.queue.subspace().subspace(&("u", 0, 0));
        let bad_updates = [&b""[..], b"\xc1", b"\x02\x02"];
        let whole = block("a", b"\x02");
        let bad_blocks = [
            Vec::new(),
            [b"\0", &whole[1..]].concat(),
            [b"\x01\x01\0\x02", &whole[4..]].concat(),
            [&whole[..], b"more"].concat(),
        ];
        let blocks = bad_updates.iter().map(|update| block("a", update));
        for (number, block) in (0..).zip(blocks.chain(bad_blocks.clone())) {
            let id = ItemId::Commit {
                versionstamp: first,
                call: u64::MAX - number,
            };
            write(&world, &id.key_in(&updates), &block).await;
        }
        world.add("a", 2).await;
        world.add("b", 4).await;
        let options = WorkerOptions::new().with_max_batch_bytes(bytes_per_pass);
        world.combine(options.clone(), &log).await;
        let expected = [("a", 3), ("b", 4)].map(|(key, sum)| (key.to_owned(), sum));
        assert_eq!(world.values().await, expected.clone().into());
        log.check(&world).await;

        let (of_updates, of_blocks) = set_aside_of(&world, first).await;
        assert!(
            of_updates
                .keys()
                .eq(&BTreeSet::from(bad_updates.map(<[u8]>::to_vec)))
        );
        assert!(of_blocks.keys().eq(&BTreeSet::from(bad_blocks.clone())));

        // A block that is still damaged is set aside again. A purged block or a repaired one is not.
        let [again, purged, repaired] = bad_updates.map(|update| &of_updates[update]);
        let queue = &world.queue;
        let purge = |tr| async move { queue.purge(&tr, purged).await };
        assert!(world.runner.run(purge).await.unwrap());
        assert!(!world.runner.run(purge).await.unwrap());
        let repair = |tr: keyspace::Tx<_>| async move {
            let is_there = queue.purge(&tr, repaired).await?;
            queue.add(&tr, &"a".to_owned(), &8).await?;
            Ok::<_, Error>(is_there)
        };
        assert!(world.runner.run(repair).await.unwrap());
        assert!(redrive(&world, again).await);
        assert!(!redrive(&world, purged).await);
        // A broken block stays aside until it is purged.
        let broken = &of_blocks[&bad_blocks[1]];
        let retry = |tr| async move { queue.redrive(&tr, broken).await };
        let refused = world.runner.run(retry).await.unwrap_err();
        assert!(
            matches!(refused, Error::Keyspace(keyspace::Error::Corrupt { .. })),
            "{refused}"
        );
        let purge = |tr| async move { queue.purge(&tr, broken).await };
        assert!(world.runner.run(purge).await.unwrap());
        world.combine(options, &log).await;
        let left = set_aside(&world).await;
        assert_eq!(left.len(), bad_blocks.len());
        let kept = left
            .iter()
            .map(|aside| &aside.value.as_ref().unwrap().update[..]);
        assert_eq!(kept.filter(|kept| *kept == bad_updates[0]).count(), 2);
        assert_eq!(world.settled("a").await, Some(3 + 8));
        log.check(&world).await;
    }
}

async fn more_updates_than_fit_a_transaction_are_all_set_aside(store: TestStore) {
    const UPDATES: usize = 27_000;
    let sums = |key: &String, current: Option<i64>, updates: Vec<i64>| {
        // The longest reason that is kept, many times as long as an update.
        assert_ne!(key, "bad", "{}", "on purpose ".repeat(30));
        Some(current.unwrap_or(0) + updates.iter().sum::<i64>())
    };
    let world = World::new(&store, 1, sums).await;
    for _ in 0..UPDATES / 9_000 {
        world.add_all(vec![("bad".to_owned(), 1); 9_000]).await;
    }
    let good: Vec<_> = (0..20).map(|key| (format!("good {key}"), 1)).collect();
    world.add_all(good.clone()).await;
    let log = Log::new(&world.root);
    world.combine(WorkerOptions::default(), &log).await;
    // Nothing else is set aside.
    let found = set_aside(&world).await;
    let is_update = |aside: &Listed<_, _>| matches!(aside.id, AsideId::Update { .. });
    assert!(found.len() == UPDATES && found.iter().all(is_update));
    assert_eq!(world.values().await, good.into_iter().collect());
    log.check(&world).await;
}

async fn a_broken_block_as_large_as_a_value_is_set_aside_and_the_bucket_goes_on(store: TestStore) {
    let no_block = vec![b'x'; limits::MAX_VALUE_BYTES];
    // One update of a key that no version of this crate adds: it fits a value, but not a block.
    let update_bytes = limits::MAX_VALUE_BYTES - 10;
    let length = [
        0x80 | update_bytes as u8,
        0x80 | (update_bytes >> 7) as u8,
        (update_bytes >> 14) as u8,
    ];
    let too_large = [
        &[1, 1, 0, 1, 2],
        &length[..],
        &encoded("a"),
        &vec![0xc1; update_bytes],
    ]
    .concat();
    assert_eq!(too_large.len(), limits::MAX_VALUE_BYTES);
    for broken in [no_block, too_large] {
        let world = World::sums(&store, 1).await;
        let log = Log::new(&world.root);
        world.add("a", 1).await;
        let row = world.rows("u").await[0].to_key();
        write(&world, &row, &broken).await;
        world.add("a", 2).await;
        world.combine(WorkerOptions::default(), &log).await;
        assert_eq!(world.settled("a").await, Some(2));
        log.check(&world).await;
        let found = set_aside(&world).await;
        assert_eq!(found.len(), 1);
        assert!(matches!(found[0].id, AsideId::Update { id, .. } if id.index == WHOLE_BLOCK));
        // There is less room than that beside the reason.
        let kept = found[0].value.as_ref().unwrap();
        assert!(!kept.reason.is_empty());
        assert!(kept.update.len() + 300 > broken.len() && broken.starts_with(&kept.update));
    }
}

async fn a_position_in_a_block_that_is_gone_keeps_nothing_from_being_folded(store: TestStore) {
    for stamp in [0, 0xfe] {
        let world = World::sums(&store, 1).await;
        let row = world.queue.subspace().pack(&("x", 0, 0));
        let position = [&[stamp; 10][..], &[0; 8], &[0, 3]].concat();
        let state = [&[1, 0][..], &[0; 16], &position].concat();
        world.add("a", 1).await;
        world.add("a", 2).await;
        write(&world, &row, &state).await;
        let queue = &world.queue;
        let pending = |tr| async move { queue.pending(&tr, Bucket(0)).await };
        assert_eq!(world.runner.run(pending).await.unwrap().count, 2);
        let log = Log::new(&world.root);
        world.combine(WorkerOptions::default(), &log).await;
        assert_eq!(world.settled("a").await, Some(3));
        log.check(&world).await;
        world.assert_nothing_left().await;
    }
}

async fn a_position_past_the_end_of_a_block_sets_the_block_aside(store: TestStore) {
    for index in [3, 4, WHOLE_BLOCK] {
        let world = World::sums(&store, 1).await;
        let log = Log::new(&world.root);
        let stamp = world.add_all(vec![("a".to_owned(), 1); 3]).await;
        world.add("b", 8).await;
        let logged = world.queue.subspace().subspace(&("u", 0, 0));
        let row = world.rows("u").await[0].to_key();
        let (versionstamp, call): (keyspace::tuple::Versionstamp, u64) =
            logged.unpack(&row).unwrap();
        assert_eq!(versionstamp.transaction_version(), stamp.as_bytes());
        let position = [
            &stamp.as_bytes()[..],
            &call.to_be_bytes(),
            &index.to_be_bytes(),
        ]
        .concat();
        let state = [&[1, 0][..], &[0; 16], &position].concat();
        write(&world, &world.queue.subspace().pack(&("x", 0, 0)), &state).await;
        world.combine(WorkerOptions::default(), &log).await;
        assert_eq!(world.values().await, [("b".to_owned(), 8)].into());
        let found = set_aside(&world).await;
        assert_eq!(found.len(), 1);
        let reason = &found[0].value.as_ref().unwrap().reason;
        assert!(reason.contains("of 3 updates"), "{reason}");
        // Its updates may be folded, so none is folded again. They stay until an operator has looked at them.
        let queue = &world.queue;
        let aside = &found[0].id;
        let retry = |tr| async move { queue.redrive(&tr, aside).await };
        let refused = world.runner.run(retry).await.unwrap_err();
        let is_corrupt = matches!(refused, Error::Keyspace(keyspace::Error::Corrupt { .. }));
        assert!(is_corrupt, "{refused}");
        let purge = |tr| async move { queue.purge(&tr, aside).await };
        assert!(world.runner.run(purge).await.unwrap());
        assert_eq!(world.settled("a").await, None);
        log.check(&world).await;
        world.assert_nothing_left().await;
    }
}

async fn a_block_that_was_folded_in_part_is_redriven_from_there_on(store: TestStore) {
    for folded in [0, 1, 2] {
        let world = World::sums(&store, 1).await;
        let log = Log::new(&world.root);
        let updates = [1, 2, 4].map(|update| ("a".to_owned(), update));
        world.add_all(updates.to_vec()).await;
        world.add("b", 8).await;
        let row = world.rows("u").await.remove(0);
        if folded > 0 {
            crate::inspect::fold_first(&world, &row, folded).await;
        }
        write(&world, row.key(), b"no block").await;
        world.combine(WorkerOptions::default(), &log).await;
        assert_eq!(world.values().await, [("b".to_owned(), 8)].into());
        let found = set_aside(&world).await.remove(0);
        assert_eq!(found.value.as_ref().unwrap().folded, folded);

        // The block is repaired, but first as one that is too short.
        let record = world.rows("q").await.remove(0);
        let prefix = record.value().strip_suffix(b"no block").unwrap();
        let queue = &world.queue;
        let aside = &found.id;
        let retry = |tr| async move {
            let first = queue.redrive(&tr, aside).await?;
            Ok::<_, Error>((first, queue.redrive(&tr, aside).await?))
        };
        if folded > 0 {
            write(
                &world,
                record.key(),
                &[prefix, &block("a", b"\x01")].concat(),
            )
            .await;
            let refused = world.runner.run(retry).await.unwrap_err();
            let is_corrupt = matches!(refused, Error::Keyspace(keyspace::Error::Corrupt { .. }));
            assert!(is_corrupt, "{refused}");
        }
        write(&world, record.key(), &[prefix, row.value()].concat()).await;
        assert_eq!(world.runner.run(retry).await.unwrap(), (true, false));
        assert_eq!(world.runner.run(retry).await.unwrap(), (false, false));
        world.combine(WorkerOptions::default(), &log).await;
        let rest: i64 = [1, 2, 4].iter().skip(folded.into()).sum();
        assert_eq!(world.settled("a").await, Some(rest));
        log.check(&world).await;
        world.assert_nothing_left().await;
    }
}
