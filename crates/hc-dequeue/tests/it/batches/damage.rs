//! Rows of batches that do not agree, and rows that do not decode.

use conformance::stores::TestStore;
use hc_dequeue::{Audit, Batch, BatchRef, Finding};
use keyspace::Subspace;

use super::{DONE, complete_next, counts, expect, then};
use crate::common::{LONG, World};

conformance::on_every_store!(
    an_audit_finds_and_repairs_what_contradicts_the_members,
    a_batch_that_does_not_decode_stays_and_stops_no_other,
    a_repair_ends_no_batch_whose_members_do_not_decode,
);

impl World {
    fn batch_rows(&self, part: &str, batch: &BatchRef) -> Subspace {
        let id = &batch.to_bytes()[5..];
        self.queue.subspace().subspace(&(part, id))
    }

    async fn repair(&self) -> Vec<Finding> {
        let Audit { findings, .. } = self.queue.repair(&self.runner).await.unwrap();
        findings
    }
}

async fn an_audit_finds_and_repairs_what_contradicts_the_members(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let batch = world.open_batch(&then(DONE)).await;
    world.members(&batch, 0..2).await;
    world.close(&batch).await;
    let notice = world.batch_rows("Bs", &batch).bytes().to_vec();
    let pending = world.batch_rows("B", &batch).pack(&"p");
    let five = 5_i64.to_le_bytes();
    world.write(&pending, Some(&five)).await;
    let off = Finding::BatchOff {
        batch,
        stored: 5,
        counted: 2,
    };
    assert_eq!(world.repair().await, [off]);
    world.check().await;
    let consumer = world.consumer().await;
    complete_next(&consumer, 0).await;
    complete_next(&consumer, 1).await;
    complete_next(&consumer, DONE).await;
    consumer.shut_down(LONG).await.unwrap();
    // A complete batch without a notice.
    let batch = world.open_batch(&then(DONE)).await;
    world.close(&batch).await;
    let notice_of_other = world.batch_rows("Bs", &batch).bytes().to_vec();
    assert_ne!(notice, notice_of_other);
    world.write(&notice_of_other, None).await;
    assert_eq!(world.repair().await, [Finding::NoBatchNotice { batch }]);
    let consumer = world.consumer().await;
    assert_eq!(counts(&expect(&consumer, DONE).await), [0, 0, 0]);
    // Numbers of a batch that is over.
    let stray = world.batch_rows("B", &batch).pack(&"c");
    world.write(&stray, Some(&five)).await;
    assert_eq!(world.repair().await, [Finding::StrayBatch { batch }]);
    world.check().await;
}

async fn a_batch_that_does_not_decode_stays_and_stops_no_other(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let mut unreadable = Vec::new();
    for _ in 0..40 {
        let batch = world.open_batch(&Batch::new()).await;
        world.close(&batch).await;
        let row = world.batch_rows("B", &batch).bytes().to_vec();
        world.write(&row, Some(b"\x02newer")).await;
        unreadable.push(row);
    }
    let batch = world.open_batch(&then(DONE)).await;
    world.close(&batch).await;
    let consumer = world.consumer().await;
    complete_next(&consumer, DONE).await;
    assert_eq!(world.count("Bs").await, unreadable.len());
    let findings = world.queue.audit(&world.runner).await.unwrap().findings;
    let mut found: Vec<_> = findings
        .into_iter()
        .map(|finding| match finding {
            Finding::Undecodable { key } => key.to_vec(),
            other => panic!("{other:?}"),
        })
        .collect();
    found.sort();
    unreadable.sort();
    assert_eq!(found, unreadable);
}

async fn a_repair_ends_no_batch_whose_members_do_not_decode(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let parent = world.open_batch(&then(DONE)).await;
    let child = Batch::new().with_parent(&parent);
    let child = world.open_batch(&child).await;
    let with_item = world.open_batch(&then(DONE)).await;
    world.members(&with_item, [0]).await;
    let child = world.batch_rows("B", &child).bytes().to_vec();
    world.damage("i").await;
    world.write(&child, Some(b"\x02newer")).await;
    for batch in [&parent, &with_item] {
        world.close(batch).await;
    }
    let findings = world.repair().await;
    let are_undecodable = findings
        .iter()
        .all(|finding| matches!(finding, Finding::Undecodable { .. }));
    assert!(are_undecodable && findings.len() == 2, "{findings:?}");
    for batch in [&parent, &with_item] {
        assert_eq!(world.batch(batch).await.unwrap().pending, 1);
    }
}
