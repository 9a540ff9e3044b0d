//! Redis as a queue: a list.

use benches::contender::{Contender, number_of};
use keyspace::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, cmd, pipe};

use crate::Place;
use crate::handle::Peer;

/// So few that a command does not keep the server busy for long.
const KEYS_PER_COMMAND: usize = 5_000;

/// A connection of one client.
pub(crate) struct Redis {
    connection: MultiplexedConnection,
    list: String,
    /// The list of the items that this client handles.
    processing: String,
}

/// Returns the server's name and version.
pub(crate) async fn version(address: &str) -> String {
    let mut connection = connection(address).await;
    let about: String = cmd("INFO")
        .arg("server")
        .query_async(&mut connection)
        .await
        .expect("the server answers");
    let version = about
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"));
    format!("Redis {}", version.unwrap_or_default())
}

async fn connection(address: &str) -> MultiplexedConnection {
    let client = Client::open(address).expect("the address is one");
    // A slow disk is not a failure.
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client
        .get_multiplexed_async_connection_with_config(&patient)
        .await;
    connection.expect("the server listens")
}

impl Contender for Redis {
    type Site = Place;

    async fn open(place: &Place) -> Self {
        let mut connection = connection(&place.address).await;
        let id: u64 = cmd("CLIENT")
            .arg("ID")
            .query_async(&mut connection)
            .await
            .expect("the server answers");
        Self {
            connection,
            list: place.queue.clone(),
            processing: format!("{}:processing:{id}", place.queue),
        }
    }

    async fn enqueue(&self, items: &[Bytes]) {
        let mut push = cmd("RPUSH");
        push.arg(&self.list);
        for item in items {
            push.arg(&item[..]);
        }
        let pushed = push.exec_async(&mut self.connection.clone()).await;
        pushed.expect("the server stores it");
    }

    async fn pop(&self) -> Option<Bytes> {
        let mut pop = cmd("LPOP");
        let mut connection = self.connection.clone();
        let popped: Option<Vec<u8>> = pop
            .arg(&self.list)
            .query_async(&mut connection)
            .await
            .expect("the server answers");
        popped.map(Bytes::from)
    }
}

impl Peer for Redis {
    async fn handle(&self) -> Option<Bytes> {
        let mut connection = self.connection.clone();
        let moved: Option<Vec<u8>> = cmd("LMOVE")
            .arg(&self.list)
            .arg(&self.processing)
            .arg(&["LEFT", "RIGHT"])
            .query_async(&mut connection)
            .await
            .expect("the server answers");
        let item = moved?;
        let row = format!("{}:row:{}", self.list, number_of(&item));
        let mut complete = pipe();
        complete.atomic();
        complete.cmd("SET").arg(row).arg(&item).ignore();
        complete.cmd("LREM").arg(&self.processing).arg(1).arg(&item);
        let (removed,): (u64,) = complete
            .query_async(&mut connection)
            .await
            .expect("the server stores it");
        assert_eq!(removed, 1, "the item of a client is on its list");
        Some(item.into())
    }

    /// Also removes the rows, since the server keeps them in memory during later measurements.
    async fn count_rows(&self) -> u64 {
        let mut connection = self.connection.clone();
        let rows: Vec<String> = cmd("KEYS")
            .arg(format!("{}:row:*", self.list))
            .query_async(&mut connection)
            .await
            .expect("the server answers");
        for rows in rows.chunks(KEYS_PER_COMMAND) {
            let removed = cmd("UNLINK").arg(rows).exec_async(&mut connection).await;
            removed.expect("the server answers");
        }
        rows.len() as u64
    }
}
