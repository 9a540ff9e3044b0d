//! Which batches looks end, and which they leave.

use std::time::{Duration, SystemTime};

use microqueue::keyspace::{self, Runner, Tx};

use crate::batches::end::{finish_all, finish_batches};
use crate::batches::operations::Batch;
use crate::items::batch::{BatchRef, Joining};
use crate::items::error::Error;
use crate::items::settings::Settings;
use crate::queue::enqueue_options::Enqueue;
use crate::queue::handle::Queue;

const HOUR: Duration = Duration::from_secs(60 * 60);

async fn open() -> (Runner<keyspace::Store>, Queue<u64>) {
    let runner = Runner::new(keyspace::open("memory:").unwrap());
    let queue = Queue::open(&runner, "queue").await.unwrap();
    (runner, queue)
}

/// Opens and closes a batch.
async fn complete(
    runner: &Runner<keyspace::Store>,
    queue: &Queue<u64>,
    batch: &Batch<u64>,
) -> BatchRef {
    let complete = |tr: Tx<_>| async move {
        let opened = queue.open_batch(&tr, batch).await?;
        queue.close_batch(&tr, &opened)?;
        Ok::<_, Error>(opened)
    };
    runner.run(complete).await.unwrap()
}

#[tokio::test]
async fn a_session_that_distrusts_its_clock_leaves_callbacks_with_a_time_to_others() {
    let (runner, queue) = open().await;
    let queue = &queue;
    for (options, has_time) in [
        (Enqueue::new(), false),
        (Enqueue::new().with_delay(HOUR), true),
        (
            Enqueue::new().with_due_time(SystemTime::UNIX_EPOCH + 1_000_000 * HOUR),
            true,
        ),
    ] {
        complete(&runner, queue, &Batch::new().with_callback(7, options)).await;
        for (trusts_clock, ended) in [(false, !has_time), (true, has_time)] {
            let look = |tr| async move {
                finish_batches(&tr, &queue.keys, &Settings::new(), None, trusts_clock).await
            };
            let finished = runner.run(look).await.unwrap();
            assert_eq!(finished.batches, usize::from(ended));
        }
    }
}

#[tokio::test]
async fn all_batches_end_that_the_end_of_others_completes() {
    // As many as one look ends, and more.
    for children in [1, 32, 33, 64] {
        let (runner, queue) = open().await;
        let parent = complete_parent(&runner, &queue, children).await;
        finish_all(&runner, &queue.keys, &Settings::new())
            .await
            .unwrap();
        let queue = &queue;
        let status = |tr| async move { queue.batch_status(&tr, &parent).await };
        assert_eq!(runner.run(status).await.unwrap(), None, "{children}");
    }
}

/// Returns a batch that a member of a parent opens in it.
fn within(parent: &BatchRef) -> Batch<u64> {
    let mut batch = Batch::new();
    batch.parent = Some(Joining {
        batch: *parent,
        by_member: true,
    });
    batch
}

/// Opens and closes a batch with this many batches in it, all of which are complete. Only these have notices.
async fn complete_parent(
    runner: &Runner<keyspace::Store>,
    queue: &Queue<u64>,
    children: usize,
) -> BatchRef {
    let open = |tr: Tx<_>| async move {
        let parent = queue.open_batch(&tr, &Batch::new()).await?;
        let child = within(&parent);
        let first = queue.open_batch(&tr, &child).await?;
        queue.close_batch(&tr, &parent)?;
        Ok::<_, Error>((parent, first))
    };
    let (parent, first) = runner.run(open).await.unwrap();
    finish_all(runner, &queue.keys, &Settings::new())
        .await
        .unwrap();
    for _ in 1..children {
        complete(runner, queue, &within(&parent)).await;
    }
    let close = |tr: Tx<_>| async move { queue.close_batch(&tr, &first) };
    runner.run(close).await.unwrap();
    parent
}
