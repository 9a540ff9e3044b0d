//! The registry of ids refuses overlapping subspaces, whatever else is registered.

use conformance::stores::TestStore;
use keyspace::error::corrupt_key;
use keyspace::ids::Ids;
use keyspace::{
    Code, Database, Environment, Error, OwnedTransaction, Result, Subspace, Transaction,
};

conformance::on_every_store!(
    only_overlapping_subspaces_are_refused,
    an_unregistered_subspace_can_be_registered_for_another_recipe,
    registered_recipes_are_listed_page_by_page,
    a_recipe_is_found_by_exactly_its_subspace,
    a_damaged_registration_is_an_error_with_its_key,
    a_damaged_registration_concerns_only_its_own_subspace,
    with_a_subspace_all_inside_of_it_is_unregistered,
    of_two_that_overlap_and_are_registered_at_the_same_time_one_fails,
);

fn ids(store: &TestStore) -> Ids {
    Ids::new(store.root.subspace(&"ids"))
}

async fn register(store: &TestStore, ids: &Ids, subspace: &Subspace, recipe: &str) -> Result<()> {
    let runner = store.runner();
    runner
        .run(|tr| async move { ids.register(&tr, subspace, recipe, &[]).await })
        .await
}

/// Registers random short prefixes, over an alphabet of elements that tuples encode differently.
async fn only_overlapping_subspaces_are_refused(store: TestStore) {
    let env = Environment::system();
    for _ in 0..10 {
        let store = store.fresh();
        let ids = ids(&store);
        let mut registered = Vec::<Vec<u8>>::new();
        for _ in 0..40 {
            let [length, random @ ..] = env.random_bytes::<5>();
            let length = usize::from(length) % random.len() + 1;
            let prefix: Vec<u8> = (random[..length].iter())
                .map(|byte| [0, 1, b'a', 0xff][usize::from(byte % 4)])
                .collect();
            let subspace = Subspace::from_bytes(prefix.clone());
            let is_free = !registered
                .iter()
                .any(|other| other.starts_with(&prefix) || prefix.starts_with(other));
            match register(&store, &ids, &subspace, "recipe").await {
                Ok(()) => assert!(
                    is_free || registered.contains(&prefix),
                    "{prefix:?} of {registered:?}"
                ),
                Err(Error::Overlap { registered: by, .. }) => {
                    assert!(!is_free, "{prefix:?} of {registered:?}");
                    assert!(registered.iter().any(|other| other == by.bytes()));
                }
                Err(error) => panic!("{error}"),
            }
            if is_free {
                registered.push(prefix);
            }
        }
        assert!(registered.len() > 1);
    }
}

async fn an_unregistered_subspace_can_be_registered_for_another_recipe(store: TestStore) {
    let ids = ids(&store);
    let subspace = Subspace::from("orders");
    register(&store, &ids, &subspace, "one").await.unwrap();
    register(&store, &ids, &subspace, "one").await.unwrap();
    let refused = register(&store, &ids, &subspace, "other")
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("which belongs to `one`"),
        "{refused}"
    );
    let own = store.root.subspace(&"ids");
    let refused = register(&store, &ids, &own, "other").await.unwrap_err();
    assert!(matches!(refused, Error::Overlap { .. }), "{refused}");

    let ids = &ids;
    let subspace = &subspace;
    let unregister = |tr| async move {
        ids.unregister(&tr, subspace);
        Ok::<_, Error>(())
    };
    store.runner().run(unregister).await.unwrap();
    register(&store, ids, subspace, "other").await.unwrap();
}

async fn registered_recipes_are_listed_page_by_page(store: TestStore) {
    let ids = &ids(&store);
    let recipes = ["a", "b", "c"].map(|name| (Subspace::from_bytes(name), name));
    // Registers the last one with other codecs.
    for codecs in [&["Raw"][..], &["JSON", "Raw"]] {
        for (subspace, name) in &recipes {
            let register = |tr| async move { ids.register(&tr, subspace, name, codecs).await };
            store.runner().run(register).await.unwrap();
        }
    }
    let mut listed = Vec::<(Subspace, String, Vec<String>)>::new();
    loop {
        let after = listed.last().map(|(subspace, ..)| subspace);
        let read = |tr| async move { ids.recipes(&tr, after, 2).await };
        let page = store.runner().run(read).await.unwrap();
        if page.is_empty() {
            break;
        }
        listed.extend(
            page.into_iter()
                .map(|listed| listed.value.unwrap())
                .map(|recipe| (recipe.subspace, recipe.name, recipe.codecs)),
        );
    }
    let codecs = ["JSON", "Raw"].map(str::to_owned).to_vec();
    let expected = recipes.map(|(subspace, name)| (subspace, name.to_owned(), codecs.clone()));
    assert_eq!(listed, expected);
}

async fn a_recipe_is_found_by_exactly_its_subspace(store: TestStore) {
    let ids = &ids(&store);
    let orders = Subspace::from("orders");
    register(&store, ids, &orders, "jobs").await.unwrap();
    let find = async |subspace: Subspace| {
        let tr = store.db.begin().unwrap();
        ids.recipe(&tr, &subspace).await
    };
    let found = find(orders.clone()).await.unwrap().unwrap();
    assert_eq!((found.subspace, &*found.name), (orders.clone(), "jobs"));
    // Neither a subspace inside of it nor one around it, nor an unknown one, is the recipe's.
    let around = Subspace::from_bytes(&orders.bytes()[..3]);
    for other in [orders.subspace(&1), around, Subspace::from("other")] {
        assert_eq!(find(other).await.unwrap(), None);
    }
}

async fn a_damaged_registration_is_an_error_with_its_key(store: TestStore) {
    let ids = &ids(&store);
    let subspace = &Subspace::from("orders");
    register(&store, ids, subspace, "jobs").await.unwrap();
    let key = store.root.subspace(&"ids").pack(&subspace.bytes());
    for damaged in [&b""[..], b"\x02\x04jobs", b"\x01\x05jobs"] {
        let mut tr = store.db.begin().unwrap();
        tr.set(&key, damaged);
        tr.commit().await.unwrap();
        let tr = store.db.begin().unwrap();
        let refused = ids.recipe(&tr, subspace).await.unwrap_err();
        assert_eq!(corrupt_key(&refused), Some(&key[..]), "{refused}");
    }
}

async fn a_damaged_registration_concerns_only_its_own_subspace(store: TestStore) {
    let ids = &ids(&store);
    let all = ["a", "m", "z"].map(Subspace::from);
    register(&store, ids, &all[1], "jobs").await.unwrap();
    let key = store.root.subspace(&"ids").pack(&all[1].bytes());
    let mut tr = store.db.begin().unwrap();
    tr.set(&key, b"damaged");
    tr.commit().await.unwrap();
    // Its neighbors on both sides are registered, and the listing has all of them.
    register(&store, ids, &all[0], "jobs").await.unwrap();
    register(&store, ids, &all[2], "jobs").await.unwrap();
    let list = |tr| async move { ids.recipes(&tr, None, 10).await };
    let listed = store.runner().run(list).await.unwrap();
    for (listed, expected) in listed.iter().zip(&all) {
        assert_eq!(&listed.id, expected);
        assert_eq!(listed.value.is_err(), *expected == all[1]);
    }
    let damaged = listed[1].value.as_ref().unwrap_err();
    assert_eq!(
        (&damaged.key[..], &damaged.bytes[..]),
        (&key[..], &b"damaged"[..])
    );
    // Its own subspace, and those inside of it and around it, might be another recipe's.
    for subspace in [all[1].clone(), all[1].subspace(&1)] {
        let refused = register(&store, ids, &subspace, "jobs").await.unwrap_err();
        assert_eq!(corrupt_key(&refused), Some(&key[..]), "{refused}");
    }
}

async fn with_a_subspace_all_inside_of_it_is_unregistered(store: TestStore) {
    let all: [&[u8]; 8] = [
        b"_",
        b"a\0",
        b"a\0\xff",
        b"ab",
        b"a\xff",
        b"a\xff\xff",
        b"b",
        b"\xff",
    ];
    for freed in [&b"a"[..], b"a\xff", b"a\0", b"_", b"\xff"] {
        let store = store.fresh();
        let ids = &ids(&store);
        let freed = &Subspace::from_bytes(freed);
        let mut left = Vec::new();
        for prefix in all {
            let subspace = Subspace::from_bytes(prefix);
            let registered = register(&store, ids, &subspace, "recipe").await.is_ok();
            if registered && !prefix.starts_with(freed.bytes()) {
                left.push(prefix);
            }
        }
        let unregister = |tr| async move {
            ids.unregister(&tr, freed);
            ids.recipes(&tr, None, 10).await
        };
        let unregistered = store.runner().run(unregister).await.unwrap();
        let listed = unregistered.iter().map(|recipe| recipe.id.bytes());
        assert_eq!(listed.collect::<Vec<_>>(), left, "{freed:?}");
    }
}

async fn of_two_that_overlap_and_are_registered_at_the_same_time_one_fails(store: TestStore) {
    for [one, other] in [["a", "a"], ["a", "ab"], ["ab", "a"]] {
        let store = store.fresh();
        let ids = ids(&store);
        let mut transactions = [store.db.begin().unwrap(), store.db.begin().unwrap()];
        for (tr, name) in transactions.iter().zip([one, other]) {
            let subspace = Subspace::from_bytes(name);
            ids.register(tr, &subspace, name, &[]).await.unwrap();
        }
        let [first, second] = &mut transactions;
        first.commit().await.unwrap();
        let error = second.commit().await.unwrap_err();
        assert_eq!(error.code(), Some(Code::NOT_COMMITTED), "{one} and {other}");
    }
}
