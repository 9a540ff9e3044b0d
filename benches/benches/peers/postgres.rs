//! Postgres as a queue: a table whose consumers skip the rows that others have locked.

use benches::contender::{Contender, number_of};
use futures::future::join;
use keyspace::Bytes;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement, connect};

use crate::Place;
use crate::handle::Peer;

/// A connection of one client. Each statement is a transaction, unless an item is handled.
pub(crate) struct Postgres {
    client: Client,
    insert: Statement,
    take: Statement,
    insert_row: Statement,
    count_rows: Statement,
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
            "CREATE TABLE IF NOT EXISTS {table} (id bigserial PRIMARY KEY, value bytea NOT NULL); \
             CREATE TABLE IF NOT EXISTS {table}_rows (number bigint PRIMARY KEY, value bytea NOT NULL)"
        );
        client.batch_execute(&create).await.expect("it is SQL");
        let insert = format!("INSERT INTO {table} (value) SELECT unnest($1::bytea[])");
        let take = format!(
            "DELETE FROM {table} WHERE id = \
             (SELECT id FROM {table} ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING value"
        );
        let insert_row = format!("INSERT INTO {table}_rows (number, value) VALUES ($1, $2)");
        let count_rows = format!("SELECT count(*) FROM {table}_rows");
        Self {
            insert: client.prepare(&insert).await.expect("it is SQL"),
            take: client.prepare(&take).await.expect("it is SQL"),
            insert_row: client.prepare(&insert_row).await.expect("it is SQL"),
            count_rows: client.prepare(&count_rows).await.expect("it is SQL"),
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

impl Peer for Postgres {
    /// Handles an item in two round trips: the statements of each are sent together, in this order.
    async fn handle(&self) -> Option<Bytes> {
        let begin = self.client.batch_execute("BEGIN");
        let (begun, taken) = join(begin, self.client.query_opt(&self.take, &[])).await;
        begun.expect("the server answers");
        let Some(taken) = taken.expect("the server answers") else {
            let ended = self.client.batch_execute("COMMIT").await;
            ended.expect("the server answers");
            return None;
        };
        let value: Vec<u8> = taken.get(0);
        let number = number_of(&value).cast_signed();
        let parameters: [&(dyn ToSql + Sync); 2] = [&number, &value];
        let insert = self.client.execute(&self.insert_row, &parameters);
        let (inserted, committed) = join(insert, self.client.batch_execute("COMMIT")).await;
        inserted.expect("no item is handled twice");
        committed.expect("the server stores it");
        Some(value.into())
    }

    async fn count_rows(&self) -> u64 {
        let counted = self.client.query_one(&self.count_rows, &[]).await;
        let count: i64 = counted.expect("the server answers").get(0);
        count.try_into().expect("no count is negative")
    }
}
