//! Four processes enqueue and four dequeue on one store: a cluster, or a file that they share. They are killed and
//! restarted at random, and the cluster's server is restarted once. Every item whose enqueue was acknowledged is taken
//! exactly once, and no other item more than once.

use std::collections::BTreeMap;

use conformance::process::{self, Herd, acknowledge, misaccounted, role};
use conformance::server::Server;
use conformance::{scale, stores};
use microqueue::keyspace::{
    self, Database, Isolation, MutationOp, RangeQuery, Runner, Store, Subspace, Transaction,
    read_all,
};
use microqueue::{Error, MicroQueue, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The number of processes in each role.
const PROCESSES: usize = 4;

fn queue() -> MicroQueue<String> {
    MicroQueue::new(Subspace::from("jobs"))
}

/// The subspace that counts how often each item was taken, in the transactions that take.
fn takes() -> Subspace {
    Subspace::from("takes")
}

/// Does a child's work until it is killed. The role is a verb, the name of the child, and the URL of the
/// store.
async fn work(role: &str) -> Result<()> {
    let (verb, rest) = role.split_once(' ').unwrap();
    let (name, url) = rest.split_once(' ').unwrap();
    let runner = Runner::new(process::open(url));
    for number in 0_u64.. {
        if verb == "enqueue" {
            let item = format!("{name}-{number}");
            crate::common::committing(&queue(), &runner)
                .enqueue(&item)
                .await?;
            acknowledge(&item);
        } else {
            take(&runner).await?;
        }
    }
    Ok(())
}

/// Takes an item and counts it in one transaction. Returns whether there was one.
async fn take<D: Database>(runner: &Runner<D>) -> Result<bool> {
    let queue = &queue();
    let takes = &takes();
    let taken = runner.run(|tr| async move {
        let item = queue.dequeue(&tr).await?;
        if let Some(item) = &item {
            tr.atomic(
                MutationOp::Add,
                &takes.pack(&item.value),
                &1_u64.to_le_bytes(),
            );
        }
        Ok::<_, Error>(item.is_some())
    });
    taken.await
}

async fn counted(db: &Store) -> BTreeMap<String, u64> {
    let (begin, end) = takes().range();
    let tr = db.begin().unwrap();
    let rows = read_all(&tr, RangeQuery::keys(begin, end), Isolation::Snapshot);
    let row = |row: keyspace::KeyValue| {
        let item: String = takes().unpack(row.key()).unwrap();
        let count = row.value()[..].try_into().unwrap();
        (item, u64::from_le_bytes(count))
    };
    rows.await.unwrap().into_iter().map(row).collect()
}

/// Runs the processes, and checks what they have done. Restarts the server of the store halfway, if there is one.
async fn kill_again_and_again(test: &'static str, url: String, server: Option<&mut Server>) {
    let mut server = server;
    let mut names = 0..;
    let store = url.clone();
    let role = move |place| {
        let verb = ["enqueue", "dequeue"][place % 2];
        format!("{verb} {} {store}", names.next().unwrap())
    };
    let mut herd = Herd::start(test, 2 * PROCESSES, role);

    let mut rng = StdRng::seed_from_u64(3);
    let kills = scale(12, 200);
    for kill in 0..kills {
        herd.hear(rng.random_range(1..200));
        if kill == kills / 2
            && let Some(server) = &mut server
        {
            server.restart();
        }
        herd.replace(rng.random_range(0..2 * PROCESSES));
    }
    let acknowledged = herd.end();

    let runner = Runner::new(process::open(&url));
    while take(&runner).await.unwrap() {}
    let takes = counted(runner.database()).await;
    assert_eq!(misaccounted(&acknowledged, &takes), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_fdb_every_acknowledged_item_is_taken_exactly_once() {
    const NAME: &str = "processes::on_fdb_every_acknowledged_item_is_taken_exactly_once";
    if let Some(role) = role() {
        return work(&role).await.unwrap();
    }
    let mut server = match Server::start() {
        Ok(server) => server,
        Err(reason) => return stores::skip(NAME, reason),
    };
    kill_again_and_again(NAME, server.url(), Some(&mut server)).await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn on_embedded_every_acknowledged_item_is_taken_exactly_once() {
    const NAME: &str = "processes::on_embedded_every_acknowledged_item_is_taken_exactly_once";
    if let Some(role) = role() {
        return work(&role).await.unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let url = format!("embedded:{}", folder.path().join("store").display());
    kill_again_and_again(NAME, url, None).await;
}
