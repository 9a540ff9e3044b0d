//! Redis as a queue: a list.

use benches::contender::Contender;
use keyspace::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, cmd};

use crate::Place;

/// A connection.
pub(crate) struct Redis {
    connection: MultiplexedConnection,
    list: String,
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
        Self {
            connection: connection(&place.address).await,
            list: place.queue.clone(),
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
