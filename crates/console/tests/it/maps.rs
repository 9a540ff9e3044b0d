//! Maps of applications' own data, and values of which no codec is known.

use conformance::stores::TestStore;
use console::Error;
use console::report::MapIndex;
use export_queue::keyspace::codec::{Codec, MessagePack};
use export_queue::keyspace::map::{Index, MapOptions};
use export_queue::keyspace::names::hex;
use export_queue::keyspace::{self, Map, Tx};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::common::program::Filled;
use crate::common::{World, valid};

conformance::on_every_store!(
    maps_are_listed_with_their_indexes_and_queues_without_them,
    values_without_a_known_codec_are_guessed_and_never_called_records,
);

#[derive(Clone, Serialize, Deserialize)]
struct Order {
    customer: String,
}

type Orders = Map<(String, u64), Order>;

/// Opens a map of the world, and sets two rows.
async fn open(world: &World, name: &str, options: MapOptions<Order>) -> Orders {
    let options = options.with_ids(world.ids.clone());
    let subspace = world.root.subspace(&name);
    let orders = Orders::open_with(&world.runner, subspace, options)
        .await
        .unwrap();
    let set = async |tr| {
        for number in 1..=2 {
            let customer = "ann".to_owned();
            orders
                .set(&tr, &("y26".to_owned(), number), &Order { customer })
                .await?;
        }
        Ok::<_, keyspace::Error>(())
    };
    world.runner.run(set).await.unwrap();
    orders
}

async fn maps_are_listed_with_their_indexes_and_queues_without_them(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let before = valid(console.queues(None, 100).await.unwrap());
    let by_customer = &Index::new("customer", |order: &Order| [order.customer.clone()]);
    let options = || MapOptions::new().with_index(by_customer);
    open(&world, "a_map", options()).await;
    open(&world, "sales", MapOptions::new()).await;
    // The index of a map that has rows is not built.
    let renamed = &Index::new("customer", |order: &Order| [order.customer.clone()]).with_version(1);
    let changed = MapOptions::new().with_index(renamed).with_changed_indexes();
    open(&world, "a_map", changed.with_ids(world.ids.clone())).await;

    let first = valid(console.maps(None, 1).await.unwrap());
    let [map] = &first.maps[..] else {
        panic!("{first:?}");
    };
    assert_eq!(
        (&*map.name, &*map.codec),
        (&*world.name("a_map"), "MessagePack")
    );
    assert_eq!((map.rows, map.has_more, &map.problem), (2, false, &None));
    let index = MapIndex {
        name: "customer".to_owned(),
        version: 1,
        is_unique: false,
        rows_looked_at: Some(0),
    };
    assert_eq!(map.indexes, [index]);
    let rest = valid(console.maps(first.next.as_deref(), 1).await.unwrap());
    assert_eq!((rest.maps.len(), rest.next), (1, None));
    assert_eq!(rest.maps[0].name, world.name("sales"));
    assert_eq!(rest.maps[0].indexes, []);

    // Queues are listed as before, in pages of any size.
    let names = |page: &console::report::Queues| {
        let names = page.queues.iter().map(|queue| queue.name.clone());
        names.collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = console.queues(after.as_deref(), 1).await.unwrap();
        found.extend(names(&page));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, names(&before));
    let refused = console.queue(&world.name("sales")).await.unwrap_err();
    assert!(matches!(refused, Error::WrongRecipe { .. }), "{refused:?}");

    // Its rows are decoded, and its records are not.
    let row = console.key(&world.name("sales/r/y26/1")).await.unwrap();
    let row = valid(row);
    assert_eq!(row.part.as_deref(), Some("row of a map"));
    assert_eq!(row.value.unwrap().value, Some(json!({ "customer": "ann" })));
    let settings = console.key(&world.name("sales/m")).await.unwrap();
    assert_eq!(settings.value.unwrap().codec, "record");
}

async fn values_without_a_known_codec_are_guessed_and_never_called_records(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let mut packed = Vec::new();
    MessagePack
        .encode(&json!({ "cents": 7 }), &mut packed)
        .unwrap();
    let of_text = |codec: &str| format!("unknown, shown as {codec}");
    for (bytes, codec, value) in [
        (
            &packed[..],
            of_text("MessagePack"),
            Some(json!({ "cents": 7 })),
        ),
        (
            br#"{"cents":7}"#,
            of_text("Json"),
            Some(json!({ "cents": 7 })),
        ),
        (b"ready", of_text("Raw"), Some(json!("ready"))),
        (b"7", of_text("Raw"), Some(json!("7"))),
        (b"\0\0\0\x07", "unknown".to_owned(), None),
        (b"\x07", "unknown".to_owned(), None),
        (b"", "unknown".to_owned(), None),
    ] {
        world.set(&world.root.pack(&("own", "row")), bytes).await;
        let shown = valid(console.key(&world.name("own/row")).await.unwrap());
        assert_eq!((shown.queue, shown.part), (None, None));
        let shown = shown.value.unwrap();
        let expected_hex = if value.is_none() {
            Some(hex(bytes))
        } else {
            None
        };
        assert_eq!((&shown.codec, &shown.value), (&codec, &value));
        assert_eq!((shown.hex, shown.problem), (expected_hex, None));
    }
}

#[test]
fn the_command_maps_prints_what_there_is() {
    let filled = Filled::with(|world| {
        Box::pin(async move {
            let by_customer = &Index::new("customer", |order: &Order| [order.customer.clone()]);
            let options = MapOptions::new().with_index(&by_customer.clone().unique());
            let subspace = world.root.subspace(&"sales");
            let options = options.with_ids(world.ids.clone());
            let orders = &Orders::open_with(&world.runner, subspace, options)
                .await
                .unwrap();
            let set = async |tr: Tx<_>| {
                let customer = "ann".to_owned();
                orders
                    .set(&tr, &("y26".to_owned(), 1), &Order { customer })
                    .await
            };
            world.runner.run(set).await.unwrap();
        })
    });
    let printed = filled.run(&["maps"]).out;
    for expected in ["MAP", "sales", "MessagePack", "customer, unique"] {
        assert!(printed.contains(expected), "{printed}");
    }
}
