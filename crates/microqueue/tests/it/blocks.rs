//! Logs of blocks, on every store.

use std::ops::ControlFlow;

use conformance::stores::TestStore;
use microqueue::blocks::{BlockLogs, EntryId, MAX_BLOCK_BYTES, MAX_ENTRY_BYTES, WHOLE_BLOCK};
use microqueue::keyspace::error::corrupt_key;
use microqueue::keyspace::{
    Database, Environment, OwnedTransaction, Store, Subspace, Transaction, Versionstamp,
};
use microqueue::{Error, MAX_PREFIX_BYTES, Result};

conformance::on_every_store!(
    entries_come_in_the_order_of_commits_then_calls_then_indexes,
    a_batch_has_as_many_blocks_as_its_bytes_need,
    a_position_is_before_or_after_a_block,
    logs_with_blocks_are_found_among_few_and_many,
    additions_to_one_log_never_conflict,
    a_log_is_not_read_after_an_addition,
    a_log_with_a_stamp_above_the_stores_version_is_refused,
    an_update_too_large_for_a_block_is_refused_before_staging,
    a_foreign_key_is_named_and_hides_no_other_log,
    foreign_keys_at_the_end_of_a_log_hide_no_block_that_is_ahead,
    the_first_blocks_of_neighboring_logs_are_found_in_every_range,
);

fn logs(store: &TestStore, log_count: u32) -> BlockLogs {
    BlockLogs::new(
        store.root.subspace(&"logs"),
        log_count,
        Environment::system(),
    )
}

async fn add(db: &Store, logs: &BlockLogs, entries: &[(u32, &str)]) {
    let mut tr = db.begin().unwrap();
    let mut batch = logs.batch();
    for (log, key) in entries {
        batch.push(*log, key.as_bytes(), b"value").unwrap();
    }
    batch.stage(&tr).unwrap();
    tr.commit().await.unwrap();
}

/// Returns the ids and keys of the entries after a position, and the ids of their blocks.
async fn read(
    db: &Store,
    logs: &BlockLogs,
    log: u32,
    position: Option<EntryId>,
) -> Result<(Vec<(EntryId, String)>, Vec<EntryId>)> {
    let tr = db.begin().unwrap();
    let mut entries = Vec::new();
    let mut blocks = Vec::new();
    let visited = logs.visit(&tr, log, position, |block| {
        let listed = block.entries().unwrap();
        assert_eq!(usize::from(block.entry_count().unwrap()), listed.len());
        assert!(block.bytes.len() <= MAX_BLOCK_BYTES);
        for (index, entry) in (0..).zip(listed) {
            let key = String::from_utf8(entry.key.to_vec()).unwrap();
            entries.push((EntryId { index, ..block.id }, key));
        }
        blocks.push(block.id);
        Ok::<_, Error>(ControlFlow::Continue(()))
    });
    visited.await?;
    assert!(entries.is_sorted());
    Ok((entries, blocks))
}

async fn keys(db: &Store, logs: &BlockLogs, log: u32, position: Option<EntryId>) -> Vec<String> {
    let (entries, _) = read(db, logs, log, position).await.unwrap();
    entries.into_iter().map(|(_, key)| key).collect()
}

async fn entries_come_in_the_order_of_commits_then_calls_then_indexes(store: TestStore) {
    let db = &store.db;
    let logs = logs(&store, 2);
    let mut tr = db.begin().unwrap();
    for keys in [["a", "b"], ["c", "d"]] {
        let mut batch = logs.batch();
        for key in keys {
            batch.push(0, key.as_bytes(), b"").unwrap();
            batch.push(1, key.as_bytes(), b"").unwrap();
        }
        assert!(batch.logs().eq([0, 1]));
        batch.stage(&tr).unwrap();
    }
    tr.commit().await.unwrap();
    add(db, &logs, &[(0, "e")]).await;
    assert_eq!(keys(db, &logs, 0, None).await, ["a", "b", "c", "d", "e"]);
    assert_eq!(keys(db, &logs, 1, None).await, ["a", "b", "c", "d"]);
    let (_, blocks) = read(db, &logs, 0, None).await.unwrap();
    assert_eq!(blocks.len(), 3);
}

async fn a_batch_has_as_many_blocks_as_its_bytes_need(store: TestStore) {
    let db = &store.db;
    let logs = logs(&store, 1);
    let mut tr = db.begin().unwrap();
    let mut batch = logs.batch();
    for key in 0..100_u8 {
        batch.push(0, &[b'a' + key % 26], &[0; 1_000]).unwrap();
    }
    batch
        .push(0, b"largest", &vec![0; MAX_ENTRY_BYTES - 7])
        .unwrap();
    batch.push(0, b"last", b"").unwrap();
    batch.stage(&tr).unwrap();
    tr.commit().await.unwrap();
    let (entries, blocks) = read(db, &logs, 0, None).await.unwrap();
    // 16 entries of a little over 1,000 bytes in each of the usual 16 KiB.
    assert_eq!((entries.len(), blocks.len()), (102, 9));
    assert_eq!(entries[100].1, "largest");
}

async fn a_position_is_before_or_after_a_block(store: TestStore) {
    let db = &store.db;
    let logs = logs(&store, 1);
    add(db, &logs, &[(0, "a"), (0, "b")]).await;
    add(db, &logs, &[(0, "c")]).await;
    let (entries, blocks) = read(db, &logs, 0, None).await.unwrap();
    let tr = db.begin().unwrap();
    for (position, expected, first) in [
        (None, &["a", "b", "c"][..], Some(blocks[0])),
        (Some(entries[0].0), &["a", "b", "c"], Some(blocks[0])),
        (Some(entries[1].0), &["a", "b", "c"], Some(blocks[0])),
        (Some(blocks[0]), &["c"], Some(blocks[1])),
        (Some(blocks[1]), &[], None),
    ] {
        assert_eq!(keys(db, &logs, 0, position).await, expected, "{position:?}");
        assert_eq!(logs.first(&tr, 0, position).await.unwrap(), first);
    }
    assert!(blocks.iter().all(|block| block.index == WHOLE_BLOCK));
}

async fn logs_with_blocks_are_found_among_few_and_many(store: TestStore) {
    for (place, log_count) in [("few", 7), ("many", 1_009), ("most", 65_536)] {
        let place = store.root.subspace(&place);
        let logs = BlockLogs::new(place, log_count, Environment::system());
        let tr = store.db.begin().unwrap();
        assert_eq!(logs.non_empty(&tr).await.unwrap(), [0; 0]);
        let last = log_count - 1;
        add(
            &store.db,
            &logs,
            &[(0, "a"), (3, "b"), (last, "c"), (3, "d")],
        )
        .await;
        let tr = store.db.begin().unwrap();
        assert_eq!(logs.non_empty(&tr).await.unwrap(), [0, 3, last]);
        let firsts = logs.firsts(&tr).await.unwrap();
        assert_eq!(firsts.len(), 3);
        for (log, first) in firsts {
            let alone = logs.first(&tr, log, None).await.unwrap();
            assert_eq!(alone, Some(first.unwrap()));
        }
        logs.verify_order(&tr).await.unwrap();
    }
}

async fn additions_to_one_log_never_conflict(store: TestStore) {
    let db = &store.db;
    let logs = logs(&store, 1);
    let mut transactions: Vec<_> = (0..20).map(|_| db.begin().unwrap()).collect();
    for tr in &transactions {
        tr.read_version().await.unwrap();
        let mut batch = logs.batch();
        batch.push(0, b"key", b"value").unwrap();
        batch.stage(tr).unwrap();
    }
    for tr in &mut transactions {
        tr.commit().await.unwrap();
    }
    assert_eq!(keys(db, &logs, 0, None).await.len(), 20);
}

async fn a_log_is_not_read_after_an_addition(store: TestStore) {
    let db = &store.db;
    let logs = logs(&store, 2);
    add(db, &logs, &[(0, "a"), (1, "b")]).await;
    let tr = db.begin().unwrap();
    let mut batch = logs.batch();
    batch.push(0, b"key", b"value").unwrap();
    batch.stage(&tr).unwrap();
    logs.refuse_after_add(&tr, 1).await.unwrap();
    let refused = logs.refuse_after_add(&tr, 0).await.unwrap_err();
    assert!(matches!(refused, Error::ReadAfterWrite { .. }), "{refused}");
    let visit = |_| Ok::<_, Error>(ControlFlow::Continue(()));
    let refused = logs.visit(&tr, 0, None, visit).await.unwrap_err();
    assert!(matches!(refused, Error::ReadAfterWrite { .. }), "{refused}");
}

async fn a_log_with_a_stamp_above_the_stores_version_is_refused(store: TestStore) {
    let db = &store.db;
    let logs = logs(&store, 70);
    add(db, &logs, &[(1, "a"), (66, "b")]).await;
    let ahead = EntryId {
        versionstamp: Versionstamp::new(1 << 56, 3),
        call: 1,
        index: WHOLE_BLOCK,
    };
    let mut tr = db.begin().unwrap();
    logs.verify_order(&tr).await.unwrap();
    let key = ahead.block().key_in(&logs.subspace(66));
    tr.set(&key, b"\x01\x01\0\x01\0\0");
    tr.commit().await.unwrap();
    let tr = db.begin().unwrap();
    let refused = logs.verify_order(&tr).await.unwrap_err();
    assert!(
        matches!(&refused, Error::StampAhead { queue, stamp, .. }
            if *queue == logs.subspace(66) && *stamp == ahead.versionstamp),
        "{refused}"
    );
}

async fn an_update_too_large_for_a_block_is_refused_before_staging(store: TestStore) {
    let db = &store.db;
    let logs = logs(&store, 1);
    let mut batch = logs.batch();
    let refused = batch
        .push(0, b"key", &vec![0; MAX_ENTRY_BYTES - 2])
        .unwrap_err();
    assert!(
        matches!(refused, Error::ItemTooLarge { bytes, limit, .. } if bytes == limit + 1),
        "{refused}"
    );
    let tr = db.begin().unwrap();
    let place = Subspace::from_bytes(vec![b'p'; MAX_PREFIX_BYTES]);
    let too_long = BlockLogs::new(place, 1, Environment::system());
    let mut batch = too_long.batch();
    batch.push(0, b"key", b"").unwrap();
    let refused = batch.stage(&tr).unwrap_err();
    assert!(matches!(refused, Error::PrefixTooLong { .. }), "{refused}");
    assert_eq!(keys(db, &logs, 0, None).await, [""; 0]);
}

async fn a_foreign_key_is_named_and_hides_no_other_log(store: TestStore) {
    for log_count in [3, 200] {
        let db = &store.db;
        let place = store.root.subspace(&log_count);
        let logs = BlockLogs::new(place.clone(), log_count, Environment::system());
        add(db, &logs, &[(0, "a"), (1, "b"), (2, "c")]).await;
        let in_a_log = logs.subspace(1).pack(&"foreign");
        let between_logs = [logs.subspace(0).bytes(), b"\xff\xff"].concat();
        let mut tr = db.begin().unwrap();
        for foreign in [&in_a_log, &between_logs, &place.pack(&"foreign")] {
            tr.set(foreign, b"");
        }
        tr.commit().await.unwrap();
        let visited = read(db, &logs, 1, None).await.map(drop).unwrap_err();
        let tr = db.begin().unwrap();
        let firsts = logs.firsts(&tr).await.unwrap();
        let [(0, Ok(_)), (1, Err(refused)), (2, Ok(_))] = &firsts[..] else {
            panic!("{firsts:?}");
        };
        for refused in [&visited, refused] {
            assert_eq!(corrupt_key(refused), Some(&in_a_log[..]), "{refused}");
        }
        assert_eq!(logs.non_empty(&tr).await.unwrap(), [0, 1, 2]);
        // The order of the blocks is still known.
        logs.verify_order(&tr).await.unwrap();
    }
}

async fn foreign_keys_at_the_end_of_a_log_hide_no_block_that_is_ahead(store: TestStore) {
    let db = &store.db;
    let place = store.root.subspace(&"ahead");
    let logs = BlockLogs::new(place, 3, Environment::system());
    add(db, &logs, &[(0, "a"), (1, "b")]).await;
    let ahead = EntryId {
        versionstamp: Versionstamp::from_bytes([0x7f; 10]),
        call: 0,
        index: WHOLE_BLOCK,
    };
    let mut tr = db.begin().unwrap();
    tr.set(&ahead.block().key_in(&logs.subspace(1)), b"");
    for log in [0, 1, 2] {
        for number in 0..6 {
            tr.set(&[logs.subspace(log).bytes(), &[0x40, number]].concat(), b"");
        }
    }
    tr.commit().await.unwrap();
    let tr = db.begin().unwrap();
    let refused = logs.verify_order(&tr).await.unwrap_err();
    assert!(
        matches!(&refused, Error::StampAhead { queue, .. } if *queue == logs.subspace(1)),
        "{refused}"
    );
    let mut tr = db.begin().unwrap();
    tr.clear(&ahead.block().key_in(&logs.subspace(1)));
    tr.commit().await.unwrap();
    logs.verify_order(&db.begin().unwrap()).await.unwrap();
}

async fn the_first_blocks_of_neighboring_logs_are_found_in_every_range(store: TestStore) {
    for log_count in [1, 64, 65, 128, 130] {
        let place = store.root.subspace(&log_count);
        let logs = BlockLogs::new(place, log_count, Environment::system());
        let all: Vec<_> = (0..log_count).map(|log| (log, "key")).collect();
        add(&store.db, &logs, &all).await;
        let tr = store.db.begin().unwrap();
        let found = logs.non_empty(&tr).await.unwrap();
        assert_eq!(found, (0..log_count).collect::<Vec<_>>());
    }
}
