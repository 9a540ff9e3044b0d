//! The same rows and indexes in tables of redb and of SQLite.

use std::cell::RefCell;

use keyspace::Bytes;
use keyspace::codec::{self, MessagePack};
use redb::{ReadableDatabase, ReadableTable, TableDefinition};
use rusqlite::{Connection, OptionalExtension, params};
use tempfile::TempDir;

use super::{Order, ROWS_PER_TRANSACTION, Rows};

const ORDERS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("orders");
const INDEXED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("indexed");
const BY_CUSTOMER: TableDefinition<'_, (u64, u64), ()> = TableDefinition::new("by customer");
const BY_CENTS: TableDefinition<'_, (u64, u64), ()> = TableDefinition::new("by cents");

/// Tables of redb, with values in MessagePack.
pub(super) struct Redb {
    db: redb::Database,
    _folder: TempDir,
}

impl Redb {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().expect("the system has a temporary folder");
        let db = redb::Database::create(folder.path().join("redb")).expect("a new file");
        Self {
            db,
            _folder: folder,
        }
    }

    fn write(&self, write: impl FnOnce(&redb::WriteTransaction)) {
        let tr = self.db.begin_write().expect("redb serves");
        write(&tr);
        tr.commit().expect("the disk has room");
    }
}

fn decode(bytes: &[u8]) -> Order {
    let decoded = codec::decode(&MessagePack, Bytes::copy_from_slice(bytes));
    decoded.expect("the value of a row")
}

fn encode(order: &Order) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode(&MessagePack, order, &mut bytes).expect("an order encodes");
    bytes
}

impl Rows for Redb {
    fn get(&self, keys: &[u64]) -> usize {
        let tr = self.db.begin_read().expect("redb serves");
        let table = tr.open_table(ORDERS).expect("it was filled");
        let found = keys
            .iter()
            .filter_map(|key| table.get(key).expect("redb serves"));
        found
            .map(|row| decode(row.value()))
            .collect::<Vec<_>>()
            .len()
    }

    fn range(&self, from: u64) -> usize {
        let tr = self.db.begin_read().expect("redb serves");
        let table = tr.open_table(ORDERS).expect("it was filled");
        let rows = table
            .range(from..from + ROWS_PER_TRANSACTION)
            .expect("redb serves");
        let rows = rows.map(|row| {
            let (key, value) = row.expect("redb serves");
            (key.value(), decode(value.value()))
        });
        rows.collect::<Vec<_>>().len()
    }

    fn set(&self, rows: &[(u64, Order)]) {
        self.write(|tr| {
            let mut table = tr.open_table(ORDERS).expect("the table opens");
            for (key, order) in rows {
                table.insert(key, &*encode(order)).expect("redb takes it");
            }
        });
    }

    fn set_indexed(&self, rows: &[(u64, Order)]) {
        self.write(|tr| {
            let mut table = tr.open_table(INDEXED).expect("the table opens");
            let mut by_customer = tr.open_table(BY_CUSTOMER).expect("the table opens");
            let mut by_cents = tr.open_table(BY_CENTS).expect("the table opens");
            for (key, order) in rows {
                let old = table.get(key).expect("redb serves");
                let old = old.map(|old| decode(old.value()));
                if let Some(old) = old {
                    by_customer
                        .remove((old.customer, *key))
                        .expect("redb takes it");
                    by_cents.remove((old.cents, *key)).expect("redb takes it");
                }
                by_customer
                    .insert((order.customer, *key), ())
                    .expect("redb takes it");
                by_cents
                    .insert((order.cents, *key), ())
                    .expect("redb takes it");
                table.insert(key, &*encode(order)).expect("redb takes it");
            }
        });
    }
}

const TABLES: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, cents INTEGER, note TEXT);
    CREATE TABLE indexed (id INTEGER PRIMARY KEY, customer INTEGER, cents INTEGER, note TEXT);
    CREATE INDEX by_customer ON indexed (customer);
    CREATE INDEX by_cents ON indexed (cents)";
const GET: &str = "SELECT customer, cents, note FROM orders WHERE id = ?";
const RANGE: &str = "SELECT id, customer, cents, note FROM orders WHERE id >= ? AND id < ?";
const SET: &str = "INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?)";
const SET_INDEXED: &str = "INSERT OR REPLACE INTO indexed VALUES (?, ?, ?, ?)";

/// Tables of SQLite, with a column for each field.
pub(super) struct Sqlite {
    connection: RefCell<Connection>,
    _folder: TempDir,
}

impl Sqlite {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().expect("the system has a temporary folder");
        let connection = Connection::open(folder.path().join("sqlite")).expect("a new file");
        connection
            .execute_batch(TABLES)
            .expect("the tables are new");
        Self {
            connection: RefCell::new(connection),
            _folder: folder,
        }
    }

    fn insert(&self, statement: &str, rows: &[(u64, Order)]) {
        let mut connection = self.connection.borrow_mut();
        let tr = connection.transaction().expect("SQLite serves");
        {
            let mut insert = tr.prepare_cached(statement).expect("it is SQL");
            for (key, order) in rows {
                let Order {
                    customer,
                    cents,
                    note,
                } = order;
                let row = params![*key as i64, *customer as i64, *cents as i64, note];
                insert.execute(row).expect("SQLite takes it");
            }
        }
        tr.commit().expect("the disk has room");
    }
}

fn order_of(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<Order> {
    Ok(Order {
        customer: row.get::<_, i64>(first)? as u64,
        cents: row.get::<_, i64>(first + 1)? as u64,
        note: row.get(first + 2)?,
    })
}

impl Rows for Sqlite {
    fn get(&self, keys: &[u64]) -> usize {
        let mut connection = self.connection.borrow_mut();
        let tr = connection.transaction().expect("SQLite serves");
        let mut get = tr.prepare_cached(GET).expect("it is SQL");
        let mut find = |key: &u64| {
            let row = get.query_row([*key as i64], |row| order_of(row, 0));
            row.optional().expect("SQLite serves")
        };
        keys.iter().filter_map(&mut find).count()
    }

    fn range(&self, from: u64) -> usize {
        let connection = self.connection.borrow();
        let mut range = connection.prepare_cached(RANGE).expect("it is SQL");
        let bounds = [from as i64, (from + ROWS_PER_TRANSACTION) as i64];
        let rows = range.query_map(bounds, |row| Ok((row.get::<_, i64>(0)?, order_of(row, 1)?)));
        let rows: rusqlite::Result<Vec<_>> = rows.expect("SQLite serves").collect();
        rows.expect("SQLite serves").len()
    }

    fn set(&self, rows: &[(u64, Order)]) {
        self.insert(SET, rows);
    }

    fn set_indexed(&self, rows: &[(u64, Order)]) {
        self.insert(SET_INDEXED, rows);
    }
}
