//! Maps on every store.

mod bad_input;
mod builds;
mod conflicts;
mod indexes;
mod model;
mod pages;

use conformance::stores::TestStore;
use futures::TryStreamExt;
use keyspace::codec::Raw;
use keyspace::map::{Change, MapOptions};
use keyspace::tuple::Uuid;
use keyspace::{Bytes, Ids, Map, Runner, Store};
use serde::{Deserialize, Serialize};

conformance::on_every_store!(
    rows_have_the_documented_bytes,
    rows_are_read_by_their_keys,
    an_update_says_what_it_has_done,
    a_map_is_registered_with_its_codec,
);

/// A value that older and newer versions of an application read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Order {
    customer: String,
    cents: u64,
}

fn order(customer: &str, cents: u64) -> Order {
    Order {
        customer: customer.to_owned(),
        cents,
    }
}

/// Returns a registry of the test's own.
fn ids(store: &TestStore) -> Ids {
    Ids::new(store.root.subspace(&"ids"))
}

/// Returns options with that registry: the default one of a cluster stays empty.
fn in_test<V>(store: &TestStore) -> MapOptions<V> {
    MapOptions::new().with_ids(ids(store))
}

/// Opens the map of a test.
async fn open(store: &TestStore, runner: &Runner<Store>) -> Map<(String, u64), Order> {
    let subspace = store.root.subspace(&"orders");
    let opened = Map::open_with(runner, subspace, in_test(store));
    opened.await.unwrap()
}

async fn rows_have_the_documented_bytes(store: TestStore) {
    let store = store.fresh();
    let runner = store.runner();
    let subspace = store.root.subspace(&"m");
    let raw = in_test(&store).with_codec(Raw);
    let map = Map::<(String, u64), Bytes, Raw>::open_with(&runner, subspace.clone(), raw);
    let map = &map.await.unwrap();
    let set = async |tr| {
        let paid = Bytes::from("paid");
        map.set(&tr, &("ann".to_owned(), 7), &paid).await
    };
    runner.run(set).await.unwrap();
    let rows = store.rows().await;
    let rows = rows.iter().filter_map(|row| {
        let key = row.key().strip_prefix(subspace.bytes())?;
        Some((key, row.value()))
    });
    let rows: Vec<_> = rows.collect();
    let expected: [(&[u8], &[u8]); 2] = [
        (b"\x02m\x00", b"\x01\x03Raw"),
        (b"\x02r\x00\x02ann\x00\x15\x07", b"paid"),
    ];
    assert_eq!(rows, expected);
}

async fn rows_are_read_by_their_keys(store: TestStore) {
    let runner = store.runner();
    let orders = &open(&store, &runner).await;
    let key = |customer: &str, number| (customer.to_owned(), number);
    let place = async |tr| {
        for number in 1..=3 {
            orders
                .set(&tr, &key("ann", number), &order("ann", 100 * number))
                .await?;
            orders
                .set(&tr, &key("anna", number), &order("anna", number))
                .await?;
        }
        orders.remove(&tr, &key("ann", 2)).await
    };
    runner.run(place).await.unwrap();
    let read = async |tr| {
        assert_eq!(orders.get(&tr, &key("ann", 2)).await?, None);
        assert_eq!(
            orders.get(&tr, &key("ann", 3)).await?,
            Some(order("ann", 300))
        );
        assert!(orders.contains(&tr, &key("ann", 1)).await?);
        assert!(!orders.contains(&tr, &key("ann", 4)).await?);
        let keys = [key("anna", 1), key("bob", 1), key("ann", 1)];
        let many = orders.get_many(&tr, &keys).await?;
        assert_eq!(
            many,
            [Some(order("anna", 1)), None, Some(order("ann", 100))]
        );
        let of_ann = orders.beginning_with(&("ann",));
        let rows: Vec<_> = of_ann.stream(&tr).try_collect().await?;
        let expected = [1, 3].map(|number| (key("ann", number), order("ann", 100 * number)));
        assert_eq!(rows, expected);
        let rows: Vec<_> = of_ann.clone().reversed().stream(&tr).try_collect().await?;
        assert!(rows.iter().eq(expected.iter().rev()));
        assert_eq!(of_ann.first(&tr).await?.as_ref(), expected.first());
        assert_eq!(of_ann.last(&tr).await?.as_ref(), expected.last());
        let count = orders
            .range(key("ann", 2)..=key("anna", 2))
            .count(&tr, 10)
            .await?;
        assert_eq!((count.count, count.has_more), (3, false));
        let count = orders.rows().count(&tr, 4).await?;
        assert_eq!((count.count, count.has_more), (4, true));
        let inverted = orders.range(key("b", 0)..key("a", 0));
        assert_eq!(inverted.first(&tr).await?, None);
        inverted.clear(&tr).await?;
        of_ann.clear(&tr).await?;
        orders.snapshot().rows().first(&tr).await
    };
    let first = runner.run(read).await.unwrap();
    assert_eq!(first, Some((key("anna", 1), order("anna", 1))));
}

async fn an_update_says_what_it_has_done(store: TestStore) {
    let runner = store.runner();
    let subspace = store.root.subspace(&"by id");
    let names = Map::<Uuid, String>::open_with(&runner, subspace, in_test(&store));
    let names = &names.await.unwrap();
    let id = &Uuid::from_bytes([7; 16]);
    let to = |name: Option<&'static str>| {
        let update = move |tr| async move {
            let name = name.map(str::to_owned);
            names.update(&tr, id, |_| name).await
        };
        runner.run(update)
    };
    assert_eq!(to(None).await.unwrap(), Change::None);
    assert_eq!(to(Some("a")).await.unwrap(), Change::Added);
    assert_eq!(to(Some("a")).await.unwrap(), Change::None);
    assert_eq!(to(Some("b")).await.unwrap(), Change::Replaced);
    assert_eq!(to(None).await.unwrap(), Change::Removed);
}

async fn a_map_is_registered_with_its_codec(store: TestStore) {
    let runner = store.runner();
    let orders = open(&store, &runner).await;
    let ids = ids(&store);
    let read = async |tr| ids.recipe(&tr, orders.subspace()).await;
    let recipe = runner.run(read).await.unwrap().unwrap();
    assert_eq!(recipe.name, "map");
    assert_eq!(recipe.codecs, ["MessagePack"]);
}
