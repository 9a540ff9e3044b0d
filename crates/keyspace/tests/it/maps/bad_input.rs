//! What a map refuses, and rows that do not decode.

use conformance::stores::TestStore;
use futures::StreamExt;
use keyspace::codec::Json;
use keyspace::error::code_of;
use keyspace::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use keyspace::map::{Cursor, MapError};
use keyspace::{Code, Error, Map, Transaction, Tx};

use super::{Order, in_test, open, order};

conformance::on_every_store!(
    another_codec_is_refused,
    a_map_does_not_overlap_another_recipe,
    keys_and_values_beyond_the_limits_are_refused_before_anything_is_staged,
    a_row_that_does_not_decode_hides_no_other,
    a_cursor_of_other_rows_is_refused,
);

pub(super) fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> MapError {
    match result {
        Err(Error::Map(refusal)) => *refusal,
        other => panic!("expected a refusal: {other:?}"),
    }
}

async fn another_codec_is_refused(store: TestStore) {
    let runner = store.runner();
    let orders = open(&store, &runner).await;
    let subspace = orders.subspace().clone();
    let json = in_test(&store).with_codec(Json);
    let opened = Map::<u64, Order, Json>::open_with(&runner, subspace.clone(), json).await;
    let stored = "MessagePack".to_owned();
    let given = "Json".to_owned();
    let expected = MapError::Codec {
        subspace,
        stored,
        given,
    };
    assert_eq!(refusal(opened), expected);
}

async fn a_map_does_not_overlap_another_recipe(store: TestStore) {
    let runner = store.runner();
    let orders = open(&store, &runner).await;
    let inside = orders.subspace().subspace(&"r");
    let opened = Map::<u64, Order>::open_with(&runner, inside, in_test(&store)).await;
    let Err(Error::Overlap { recipe, .. }) = opened else {
        panic!("expected an overlap: {opened:?}");
    };
    assert_eq!(recipe, "map");
}

async fn keys_and_values_beyond_the_limits_are_refused_before_anything_is_staged(store: TestStore) {
    let runner = store.runner();
    let orders = &open(&store, &runner).await;
    let prefix = orders.subspace().pack(&("r", "", 1)).len();
    let longest = "x".repeat(MAX_KEY_BYTES - prefix);
    let longer = format!("{longest}x");
    let large = order(&"x".repeat(MAX_VALUE_BYTES), 1);
    let fits = async |tr| {
        orders
            .set(&tr, &(longest.clone(), 1), &order("ann", 1))
            .await?;
        orders.remove(&tr, &(longest.clone(), 1)).await
    };
    runner.run(fits).await.unwrap();
    let staged = async |tr: Tx<_>| {
        let before = tr.approximate_size().await?;
        let key = &(longer.clone(), 1);
        let set = orders.set(&tr, key, &order("ann", 1)).await;
        let update = orders.update(&tr, key, |_| Some(order("ann", 1))).await;
        let remove = orders.remove(&tr, key).await;
        for refused in [set, update.map(drop), remove] {
            assert_eq!(
                code_of(refused.as_ref().unwrap_err()),
                Some(Code::KEY_TOO_LARGE)
            );
            let expected = MapError::KeyTooLarge {
                bytes: MAX_KEY_BYTES + 1,
                code: Code::KEY_TOO_LARGE,
            };
            assert_eq!(refusal(refused), expected);
        }
        let refused = orders
            .set(&tr, &("ann".to_owned(), 1), &large)
            .await
            .unwrap_err();
        assert!(
            matches!(refused, Error::ValueTooLarge { .. }),
            "{refused:?}"
        );
        assert_eq!(tr.approximate_size().await?, before);
        Ok::<_, Error>(())
    };
    runner.run(staged).await.unwrap();
}

async fn a_row_that_does_not_decode_hides_no_other(store: TestStore) {
    let runner = store.runner();
    let orders = &open(&store, &runner).await;
    let key = |number| ("ann".to_owned(), number);
    let damaged = &orders.subspace().pack(&("r", "ann", 2));
    let set = async |tr: Tx<_>| {
        for number in 1..=3 {
            orders.set(&tr, &key(number), &order("ann", number)).await?;
        }
        tr.set(damaged, b"\xc1");
        Ok::<_, Error>(())
    };
    runner.run(set).await.unwrap();
    let read = async |tr| {
        let corrupt = |error: Error| match error {
            Error::Corrupt { key, .. } => assert_eq!(key[..], damaged[..]),
            other => panic!("{other:?}"),
        };
        corrupt(orders.get(&tr, &key(2)).await.unwrap_err());
        corrupt(orders.update(&tr, &key(2), |_| None).await.unwrap_err());
        assert!(orders.contains(&tr, &key(2)).await?);
        let rows: Vec<_> = orders.rows().stream(&tr).collect().await;
        let [Ok(first), Err(_), Ok(last)] = &rows[..] else {
            panic!("{rows:?}");
        };
        assert_eq!((first.0.1, last.0.1), (1, 3));
        let page = orders.rows().page(&tr, None, 10).await?;
        let decoded: Vec<_> = page.rows.iter().map(|row| row.value.is_ok()).collect();
        assert_eq!(decoded, [true, false, true]);
        assert_eq!(page.rows[1].id, key(2));
        let undecodable = page.rows[1].value.as_ref().unwrap_err();
        assert_eq!(undecodable.bytes[..], *b"\xc1");
        Ok::<_, Error>(())
    };
    runner.run(read).await.unwrap();
}

async fn a_cursor_of_other_rows_is_refused(store: TestStore) {
    let runner = store.runner();
    let orders = &open(&store, &runner).await;
    let others = store.root.subspace(&"others");
    let others = Map::<(String, u64), Order>::open_with(&runner, others, in_test(&store));
    let others = &others.await.unwrap();
    let key = |number| ("ann".to_owned(), number);
    let set = async |tr| {
        for number in 1..=3 {
            orders.set(&tr, &key(number), &order("ann", number)).await?;
            others.set(&tr, &key(number), &order("ann", number)).await?;
        }
        Ok::<_, Error>(())
    };
    runner.run(set).await.unwrap();
    let read = async |tr| {
        let page = orders.rows().page(&tr, None, 1).await?;
        let cursor = &page.next.unwrap();
        let of_others = others.rows();
        let other_bounds = orders.range(key(0)..);
        let other_direction = orders.rows().reversed();
        for rows in [of_others, other_bounds, other_direction] {
            let refused = rows.page(&tr, Some(cursor), 1).await;
            assert_eq!(refusal(refused), MapError::OtherCursor);
        }
        let refused = orders.rows().page(&tr, Some(cursor), 0).await;
        assert_eq!(refusal(refused), MapError::EmptyPage);
        let text = cursor.to_string();
        for malformed in ["", "01", "zz", "02000102030405060708", &text[2..]] {
            let refused = malformed.parse::<Cursor>().unwrap_err();
            let text = malformed.to_owned();
            assert_eq!(refused, MapError::MalformedCursor { text });
        }
        // With another key, it is a cursor of the same rows, as long as the key is one of theirs.
        let parsed: Cursor = text.parse().unwrap();
        assert_eq!(
            orders.rows().page(&tr, Some(&parsed), 1).await?.rows[0].id,
            key(2)
        );
        Ok::<_, Error>(())
    };
    runner.run(read).await.unwrap();
}
