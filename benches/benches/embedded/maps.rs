//! Maps: their processor time beside the same by hand, in redb and in SQLite, and the building of an index.

mod peers;

use std::cell::{Cell, RefCell};

use benches::arguments::Extent;
use benches::{memory_bytes, processor_time, runtime};
use futures::TryStreamExt;
use keyspace::embedded::{Embedded, EmbeddedTransaction};
use keyspace::map::{Index, MapOptions};
use keyspace::{
    Database, Environment, Error, Isolation, Map, MessagePack, OwnedTransaction, RangeQuery,
    Runner, Subspace, Transaction, read_all, typed,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use self::peers::{Redb, Sqlite};
use crate::row::{self, Pairs, Row};

/// How many rows each transaction reads or writes.
const ROWS_PER_TRANSACTION: u64 = 100;

/// A row. Its value has about 100 bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    customer: u64,
    cents: u64,
    note: String,
}

fn order(rng: &mut StdRng) -> Order {
    Order {
        customer: rng.random_range(0..1_000),
        cents: rng.random_range(0..10_000),
        note: "n".repeat(60),
    }
}

/// What one transaction does.
#[derive(Debug, Clone, Copy)]
enum Call {
    /// Reads random rows.
    Get,
    /// Sets random rows.
    Set,
    /// Reads consecutive rows.
    Range,
    /// Sets random rows, and keeps two indexes.
    SetIndexed,
}

const CALLS: [(Call, &str); 4] = [
    (Call::Get, "point read"),
    (Call::Set, "set, 100 in a commit"),
    (Call::Range, "row of a range of 100"),
    (Call::SetIndexed, "set with two indexes, 100 in a commit"),
];

/// Keeps rows in some way. Each call is a transaction of 100 rows.
trait Rows {
    fn get(&self, keys: &[u64]) -> usize;
    fn range(&self, from: u64) -> usize;
    fn set(&self, rows: &[(u64, Order)]);
    fn set_indexed(&self, rows: &[(u64, Order)]);
}

/// Returns the microseconds of processor time per row, of transactions of random rows.
fn processor_seconds(rows: &impl Rows, call: Call, count: u64, transactions: u64) -> f64 {
    let mut rng = StdRng::seed_from_u64(transactions);
    let mut used = 0.0;
    for _ in 0..transactions {
        let keys: Vec<_> = (0..ROWS_PER_TRANSACTION)
            .map(|_| rng.random_range(0..count))
            .collect();
        let new: Vec<_> = keys.iter().map(|key| (*key, order(&mut rng))).collect();
        let began = processor_time();
        match call {
            Call::Get => assert_eq!(rows.get(&keys), keys.len()),
            Call::Range => {
                let from = keys[0].min(count - ROWS_PER_TRANSACTION);
                assert_eq!(rows.range(from), keys.len());
            }
            Call::Set => rows.set(&new),
            Call::SetIndexed => rows.set_indexed(&new),
        }
        used += (processor_time() - began).as_secs_f64();
    }
    used / (transactions * ROWS_PER_TRANSACTION) as f64
}

/// Rows of maps.
struct OfMap<'a> {
    runtime: &'a Runtime,
    db: &'a Embedded,
    orders: Map<u64, Order>,
    indexed: Map<u64, Order>,
}

impl OfMap<'_> {
    /// Runs a transaction and commits it.
    fn commit<T>(&self, call: impl AsyncFnOnce(&EmbeddedTransaction) -> Result<T, Error>) -> T {
        commit(self.runtime, self.db, call)
    }

    fn set_in(&self, map: &Map<u64, Order>, rows: &[(u64, Order)]) {
        self.commit(async |tr| {
            for (key, order) in rows {
                map.set(tr, key, order).await?;
            }
            Ok(())
        });
    }
}

fn commit<T>(
    runtime: &Runtime,
    db: &Embedded,
    call: impl AsyncFnOnce(&EmbeddedTransaction) -> Result<T, Error>,
) -> T {
    runtime.block_on(async {
        let mut tr = db.begin().expect("the store serves");
        let done = call(&tr).await.expect("the store serves");
        tr.commit().await.expect("nothing conflicts");
        done
    })
}

impl Rows for OfMap<'_> {
    fn get(&self, keys: &[u64]) -> usize {
        self.commit(async |tr| {
            let mut found = 0;
            for key in keys {
                found += usize::from(self.orders.get(tr, key).await?.is_some());
            }
            Ok(found)
        })
    }

    fn range(&self, from: u64) -> usize {
        self.commit(async |tr| {
            let rows = self.orders.range(from..from + ROWS_PER_TRANSACTION);
            let rows: Vec<_> = rows.stream(tr).try_collect().await?;
            Ok(rows.len())
        })
    }

    fn set(&self, rows: &[(u64, Order)]) {
        self.set_in(&self.orders, rows);
    }

    fn set_indexed(&self, rows: &[(u64, Order)]) {
        self.set_in(&self.indexed, rows);
    }
}

/// The same by hand: keys, a codec, and the calls of a transaction.
struct ByHand<'a> {
    runtime: &'a Runtime,
    db: &'a Embedded,
    orders: Subspace,
    by_customer: Subspace,
    by_cents: Subspace,
}

impl Rows for ByHand<'_> {
    fn get(&self, keys: &[u64]) -> usize {
        commit(self.runtime, self.db, async |tr| {
            let mut found = 0;
            for key in keys {
                let key = self.orders.pack(key);
                let read = typed::get(tr, &MessagePack, &key, Isolation::Serializable);
                let order: Option<Order> = read.await?;
                found += usize::from(order.is_some());
            }
            Ok(found)
        })
    }

    fn range(&self, from: u64) -> usize {
        commit(self.runtime, self.db, async |tr| {
            let begin = self.orders.pack(&from);
            let end = self.orders.pack(&(from + ROWS_PER_TRANSACTION));
            let rows = read_all(tr, RangeQuery::keys(begin, end), Isolation::Serializable);
            let mut orders = Vec::new();
            for row in rows.await? {
                let key: u64 = self.orders.unpack(row.key()).expect("the key of a row");
                let decoded = keyspace::codec::decode(&MessagePack, row.to_value());
                let order: Order = decoded.expect("the value of a row");
                orders.push((key, order));
            }
            Ok(orders.len())
        })
    }

    fn set(&self, rows: &[(u64, Order)]) {
        commit(self.runtime, self.db, async |tr| {
            for (key, order) in rows {
                typed::set(tr, &MessagePack, &self.orders.pack(key), order)?;
            }
            Ok(())
        });
    }

    fn set_indexed(&self, rows: &[(u64, Order)]) {
        commit(self.runtime, self.db, async |tr| {
            for (key, order) in rows {
                let place = self.orders.pack(key);
                let read = typed::get(tr, &MessagePack, &place, Isolation::Serializable);
                let old: Option<Order> = read.await?;
                if let Some(old) = old {
                    tr.clear(&self.by_customer.pack(&(old.customer, *key)));
                    tr.clear(&self.by_cents.pack(&(old.cents, *key)));
                }
                tr.set(&self.by_customer.pack(&(order.customer, *key)), b"");
                tr.set(&self.by_cents.pack(&(order.cents, *key)), b"");
                typed::set(tr, &MessagePack, &place, order)?;
            }
            Ok(())
        });
    }
}

/// The stores of one comparison, filled.
struct World {
    count: u64,
    transactions: u64,
    rounds: usize,
}

impl World {
    /// Compares a map with another way in each call.
    fn compare(&self, map: &impl Rows, other: &impl Rows, name: &str) -> Vec<Row> {
        let compare = |(call, title): (Call, &str)| {
            let measure = |rows: &dyn Fn() -> f64| rows();
            let of_other = || processor_seconds(other, call, self.count, self.transactions);
            let of_map = || processor_seconds(map, call, self.count, self.transactions);
            let pairs = Pairs::by_turns(self.rounds, || measure(&of_other), || measure(&of_map));
            Row {
                workload: format!("map: processor time of a {title}"),
                yardstick: name.to_owned(),
                pairs,
                unit: row::time,
                target: "at most 1.1",
            }
        };
        CALLS.into_iter().map(compare).collect()
    }
}

fn fill(rows: &impl Rows, count: u64) {
    let mut rng = StdRng::seed_from_u64(1);
    for begin in (0..count).step_by(1_000) {
        let some = (begin..count.min(begin + 1_000)).map(|key| (key, order(&mut rng)));
        let some: Vec<_> = some.collect();
        rows.set(&some);
        rows.set_indexed(&some);
    }
}

/// The processor time of each call, beside the same by hand, in redb and in SQLite.
pub(crate) fn maps(extent: Extent) -> Vec<Row> {
    let world = World {
        count: extent.choose(1_000, 100_000, 100_000),
        transactions: extent.choose(2, 200, 1_000),
        rounds: extent.choose(2, 7, 15),
    };
    let runtime = &runtime(1);
    let store = benches::TempStore::new();
    let runner = Runner::new(store.db.clone());
    let by_customer = &Index::new("customer", |order: &Order| [order.customer]);
    let by_cents = &Index::new("cents", |order: &Order| [order.cents]);
    let options = MapOptions::new()
        .with_index(by_customer)
        .with_index(by_cents);
    let open = async {
        let orders = Map::open(&runner, "orders").await?;
        let indexed = Map::open_with(&runner, "indexed", options).await?;
        Ok::<_, Error>((orders, indexed))
    };
    let (orders, indexed) = runtime.block_on(open).expect("the store serves");
    let map = OfMap {
        runtime,
        db: &store.db,
        orders,
        indexed,
    };
    let by_hand = ByHand {
        runtime,
        db: &store.db,
        orders: Subspace::from("by hand"),
        by_customer: Subspace::from("by hand, by customer"),
        by_cents: Subspace::from("by hand, by cents"),
    };
    let redb = Redb::new();
    let sqlite = Sqlite::new();
    fill(&map, world.count);
    fill(&by_hand, world.count);
    fill(&redb, world.count);
    fill(&sqlite, world.count);
    let mut rows = world.compare(&map, &by_hand, "by hand");
    rows.extend(world.compare(&map, &redb, "redb"));
    rows.extend(world.compare(&map, &sqlite, "SQLite"));
    rows
}

/// Builds an index of a map that has rows.
pub(crate) fn build(extent: Extent) -> Vec<Row> {
    let count = extent.choose(1_000, 1_000_000, 1_000_000);
    let runtime = &runtime(1);
    let store = benches::TempStore::new();
    let runner = Runner::new(store.db.clone());
    let open = Map::<u64, Order>::open(&runner, "orders");
    let orders = runtime.block_on(open).expect("the store serves");
    let rng = &RefCell::new(StdRng::seed_from_u64(1));
    for begin in (0..count).step_by(1_000) {
        commit(runtime, &store.db, async |tr| {
            for key in begin..count.min(begin + 1_000) {
                let order = order(&mut rng.borrow_mut());
                orders.set(tr, &key, &order).await?;
            }
            Ok(())
        });
    }
    let peak = Cell::new(0.0);
    let by_customer = &Index::new("customer", |order: &Order| [order.customer]);
    let env = Environment::system();
    let build = async {
        let options = MapOptions::new().with_index(by_customer);
        let orders = Map::<u64, Order>::open_with(&runner, "orders", options).await?;
        let before = memory_bytes("VmRSS").unwrap_or(0);
        let began = env.now();
        orders.build(&runner).await?;
        let after = memory_bytes("VmRSS").unwrap_or(0);
        peak.set(after.saturating_sub(before) as f64);
        Ok::<_, Error>((env.now() - began).as_secs_f64())
    };
    let took = runtime.block_on(build).expect("the store serves");
    vec![
        Row {
            workload: format!("map: rows per second of building an index over {count} rows"),
            yardstick: "rows".to_owned(),
            pairs: Pairs::once(count as f64, count as f64 / took),
            unit: row::rate,
            target: "",
        },
        Row {
            workload: "map: memory that this adds to the process".to_owned(),
            yardstick: "bytes of the store's file".to_owned(),
            pairs: Pairs::once(store.file_bytes() as f64, peak.get()),
            unit: row::bytes,
            target: "bounded",
        },
    ]
}
