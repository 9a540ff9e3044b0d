//! Postgres as a queue: a table whose consumers skip the rows that others have locked.

use benches::contender::Contender;
use keyspace::Bytes;
use tokio_postgres::{Client, NoTls, Statement, connect};

use crate::Place;

/// A connection. Each statement is a transaction.
pub(crate) struct Postgres {
    client: Client,
    insert: Statement,
    take: Statement,
}

/// Returns the server's name and version.
pub(crate) async fn version(address: &str) -> String {
    let client = client(address).await;
    let row = client.query_one("SHOW server_version", &[]).await;
    let version: String = row.expect("the server answers").get(0);
    // The text after the number names the distributor.
    let number = version.split(' ').next();
    format!("Postgres {}", number.unwrap_or_default())
}

async fn client(address: &str) -> Client {
    let (client, connection) = connect(address, NoTls).await.expect("the server listens");
    // Ends with the client.
    tokio::spawn(connection);
    client
}

impl Contender for Postgres {
    type Site = Place;

    async fn open(place: &Place) -> Self {
        let client = client(&place.address).await;
        let table = &place.queue;
        let create = format!(
            "CREATE TABLE IF NOT EXISTS {table} (id bigserial PRIMARY KEY, value bytea NOT NULL)"
        );
        client.batch_execute(&create).await.expect("it is SQL");
        let insert = format!("INSERT INTO {table} (value) SELECT unnest($1::bytea[])");
        let take = format!(
            "DELETE FROM {table} WHERE id = \
             (SELECT id FROM {table} ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING value"
        );
        Self {
            insert: client.prepare(&insert).await.expect("it is SQL"),
            take: client.prepare(&take).await.expect("it is SQL"),
            client,
        }
    }

    async fn enqueue(&self, items: &[Bytes]) {
        let items: Vec<&[u8]> = items.iter().map(|item| &item[..]).collect();
        let inserted = self.client.execute(&self.insert, &[&items]).await;
        inserted.expect("the server stores it");
    }

    async fn pop(&self) -> Option<Bytes> {
        let taken = self
            .client
            .query_opt(&self.take, &[])
            .await
            .expect("the server answers")?;
        let value: Vec<u8> = taken.get(0);
        Some(value.into())
    }
}
