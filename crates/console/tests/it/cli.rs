//! Every command of the program, as tables and as JSON.

use crate::common::program::{Filled, finish, run};
use crate::common::{RETAINED, assert_valid};
use conformance::server::Server;
use conformance::stores;
use tempfile::TempDir;

/// Returns the words of a table with a space between them.
fn words(table: &str) -> String {
    table.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the names of a table's columns.
fn header(table: &str) -> Vec<&str> {
    let line = table.lines().next().unwrap();
    line.split("  ")
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn every_command_prints_a_table_and_json() {
    every_command(&Filled::embedded());
}

#[test]
fn on_fdb_every_command_prints_a_table_and_json() {
    match Server::start() {
        Ok(server) => every_command(&Filled::new(server.url(), TempDir::new().unwrap())),
        Err(reason) => stores::skip("on_fdb_every_command_prints_a_table_and_json", reason),
    }
}

fn every_command(store: &Filled) {
    commands_that_look(store);
    commands_that_change(store);
}

const ITEM_COLUMNS: &[&str] = &[
    "ITEM", "ENQUEUED", "TRIES", "DEATHS", "SINCE", "WHY", "PAYLOAD",
];
const KEY_COLUMNS: &[&str] = &["KEY", "QUEUE", "PART", "BYTES"];

fn commands_that_look(store: &Filled) {
    let [held, dead] = [&store.items.held[0], &store.items.dead[1]].map(ToString::to_string);
    // The command; the definition in the schema; the columns of the table, if it has a header; what is in it.
    type Case<'a> = (&'a [&'a str], &'a str, &'a [&'a str], &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        (
            &["queues"],
            "Queues",
            &[
                "QUEUE", "RECIPE", "WAITING", "HELD", "DEAD", "OLDEST", "SESSIONS", "STATE",
            ],
            &[
                "jobs hc-dequeue 5 + 2 delayed 2 3 ",
                "slow holds the log back",
                "paused",
                "upgrade",
                "vault",
                "microqueue",
            ],
        ),
        (
            &["queues", "--limit", "2"],
            "Queues",
            &[],
            &["more: --after=events"],
        ),
        (
            &["stats", "jobs"],
            "Queue",
            &[],
            &[
                "queued 5",
                "delayed 2",
                "held 2",
                "dead 3",
                "completed 1",
                "oldest",
            ],
        ),
        (&["stats", "mail"], "Queue", &[], &["items 3"]),
        (&["stats", "newer"], "Queue", &[], &["format 99 is newer"]),
        (
            &["exports", "events"],
            "Queue",
            &[],
            &[
                "SUBSCRIPTION",
                "PENDING",
                "BYTES",
                "LAG",
                "DEAD",
                "HOLDS LOG BACK",
                "mirror 0 0 2 0",
                "yes",
            ],
        ),
        (
            &["list", "jobs"],
            "Items",
            ITEM_COLUMNS,
            &[r#"{"tenant":10,"text":"<b>"}"#, "5 queued in all"],
        ),
        (
            &["list", "jobs", "--place", "dead"],
            "Items",
            ITEM_COLUMNS,
            &[
                &dead,
                "Z 2 0 20",
                "connection reset",
                r#""tenant":1,"#,
                "3 dead in all",
            ],
        ),
        (
            &["list", "jobs", "--place", "held"],
            "Items",
            ITEM_COLUMNS,
            &[&held, "3 of 4: greeting <b>"],
        ),
        (
            &["list", "jobs", "--place", "done"],
            "Items",
            ITEM_COLUMNS,
            &["completed", "cancelled"],
        ),
        (
            &["list", "jobs", "--limit", "2"],
            "Items",
            ITEM_COLUMNS,
            &["more: --after="],
        ),
        (
            &["list", "events", "--subscription", "mirror"],
            "Items",
            ITEM_COLUMNS,
            &["unlucky number", "13"],
        ),
        (
            &["show", "jobs", &held],
            "Item",
            &[],
            &[
                "held",
                "session",
                "granted",
                "steps done greet, wave",
                "progress 3 of 4: greeting <b>",
                "checkpoint",
                "page 3",
                r#""tenant": 5"#,
            ],
        ),
        (
            &["show", "jobs", &dead],
            "Item",
            &[],
            &["connection reset", "attempts 2", "failed"],
        ),
        (
            &["sessions", "jobs"],
            "Sessions",
            &[
                "SESSION",
                "LIFE",
                "LEASE",
                "SILENT",
                "HANDED OUT",
                "IN RESERVE",
                "SINCE",
                "WAITS FOR",
            ],
            &["1m", " 2 0 20"],
        ),
        (
            &["schedules", "jobs"],
            "Schedules",
            &[
                "SCHEDULE", "OWNER", "CRON", "ZONE", "MISSED", "OPTIONS", "NEXT", "LAST", "PAYLOAD",
            ],
            &[
                "new year again",
                "calendar",
                "0 0 1 1 *",
                "UTC",
                "-01-01T00:00:00.000Z",
            ],
        ),
        (
            &["groups", "jobs"],
            "Groups",
            &[],
            &["no groups on this page", "default limits: no limit"],
        ),
        (
            &["limit", "jobs", "tenant 7"],
            "Group",
            &[],
            &[
                "state idle",
                "slots 0, no limit",
                "limits no limit, by default",
            ],
        ),
        (
            &["limit", "jobs"],
            "Limits",
            &[],
            &["default limits no limit"],
        ),
        (&["batches", "jobs"], "Batches", &[], &["no batches"]),
        (
            &["configure", "jobs"],
            "Settings",
            &[],
            &["lease 1m", "keep done 1h"],
        ),
        (&["audit", "jobs"], "Audit", &[], &["everything agrees"]),
        (
            &["combine", "counts"],
            "Queue",
            &[],
            &["pending updates 3", "set aside 1", "lag"],
        ),
        (
            &["combine", "counts", "ada", "--combiner", "sum"],
            "CombineKey",
            &[],
            &["settled 3", "exact 12", "pending updates 2"],
        ),
        (
            &["combine", "counts", "ada"],
            "CombineKey",
            &[],
            &["--combiner"],
        ),
        (
            &["combine", "counts", "--set-aside"],
            "SetAsidePage",
            &["ID", "KIND", "WHY", "KEY", "UPDATE"],
            &["the sum fits its type", "\"big\""],
        ),
        (
            &["ls"],
            "Keys",
            KEY_COLUMNS,
            &["counts/m", "settings", "more: --after="],
        ),
        (
            &["ls", "jobs/i"],
            "Keys",
            KEY_COLUMNS,
            &["queued item", "jobs"],
        ),
        (
            &["get", "jobs/m"],
            "Key",
            &[],
            &["settings", "record", r#"("jobs", "m")"#],
        ),
    ];
    for (command, definition, columns, texts) in cases {
        assert_valid(definition, &store.json(command));
        let table = store.run(command);
        assert_eq!((table.status, &*table.err), (0, ""), "{command:?}");
        let words = words(&table.out);
        for text in *texts {
            assert!(words.contains(text), "{command:?}: {text}\n{}", table.out);
        }
        if !columns.is_empty() {
            assert_eq!(header(&table.out), *columns, "{command:?}");
        }
        assert!(table.out.ends_with('\n'));
    }
}

fn commands_that_change(store: &Filled) {
    let items = &store.items;
    let letters = store.json(&["list", "events", "--subscription", "mirror"]);
    let letter = |index: usize| letters["items"][index]["item"].as_str().unwrap().to_owned();
    let page = store.json(&["combine", "counts", "--set-aside"]);
    let aside = page["set_aside"][0]["id"].as_str().unwrap();
    let text = ToString::to_string;
    // Each once with JSON and once without: with one item, and with another one.
    let of_items = [
        (
            "cancel",
            [&items.queued[0], &items.queued[1]].map(text),
            ["queued", "3"],
        ),
        (
            "expedite",
            [&items.delayed[0], &items.delayed[1]].map(text),
            ["delayed", "0"],
        ),
        (
            "redrive",
            [&items.dead[0], &items.dead[1]].map(text),
            ["dead", "1"],
        ),
    ];
    for (command, [one, other], [place, left]) in of_items {
        let change = store.json(&[command, "jobs", &one]);
        assert_valid("Change", &change);
        assert_eq!(
            (&change["action"], &change["changed"]),
            (&command.into(), &1.into())
        );
        let finished = store.run(&[command, "jobs", &other]);
        assert_eq!(finished.status, 0, "{finished:?}");
        assert!(
            finished.out.starts_with(&format!("jobs: {command}: 1: ")),
            "{finished:?}"
        );
        assert_eq!(store.count(place).to_string(), left, "{command}");
    }
    let delayed = &items.delayed[0].to_string();
    let of_others: [&[&str]; 14] = [
        &["prioritize", "jobs", delayed, "-3"],
        &["limit", "jobs", "tenant 7", "--at-most", "4"],
        &["limit", "jobs", "tenant 7", "--reset"],
        &["purge", "jobs", &items.dead[2].to_string()],
        &["purge", "events", "--subscription", "mirror", &letter(0)],
        &["redrive", "counts", aside],
        &["release-dedupe", "jobs", RETAINED],
        &["reschedule", "jobs", "new year"],
        &["pause", "jobs"],
        &["resume", "jobs"],
        &["pause", "events", "--subscription", "slow"],
        &["resume", "events", "--subscription", "slow"],
        &["cancel", "jobs", &items.held[0].to_string()],
        &["redrive", "jobs", "--all"],
    ];
    for command in of_others {
        assert_valid("Change", &store.json(command));
    }
    let finished = store.run(&["purge", "events", "--subscription", "mirror", &letter(1)]);
    assert_eq!(finished.out, "events: purge: 1: removed for good\n");
    let settings = store.json(&["configure", "jobs", "--max-attempts", "12", "--lease", "2m"]);
    assert_valid("Settings", &settings);
    assert_eq!(settings["max_attempts"], 12);
    let settings = store.run(&["configure", "jobs", "--keep-done", "0s"]);
    assert!(words(&settings.out).contains("lease 2m"), "{settings:?}");
    assert_valid("Audit", &store.json(&["repair", "jobs"]));
    let repaired = store.run(&["repair", "jobs"]);
    assert_eq!(
        (repaired.status, &*repaired.out),
        (0, "jobs: everything agrees\n")
    );
    assert!(
        store
            .run(&["pause", "jobs"])
            .out
            .contains("nothing is granted")
    );
    assert_eq!(store.json(&["stats", "jobs"])["paused"], true);
    assert!(store.run(&["queues"]).out.contains("paused"));
    let items = [letter(0), letter(1)];
    let gone = store.run(&["purge", "events", "--subscription", "mirror", &items[0]]);
    gone.assert_refused(3, "is not there");
}

#[test]
fn a_backup_opens_and_has_everything() {
    let store = Filled::embedded();
    let copy = store.folder.path().join("copy");
    let path = copy.to_str().unwrap();
    assert_eq!(store.run(&["backup", path]).status, 0);
    let taken = store.run(&["backup", path]);
    taken.assert_refused(1, "name a new file for the copy");
    let of_copy = run(&[
        "ls",
        "--json",
        "--limit",
        "1000",
        "--db",
        &format!("embedded:{path}"),
    ]);
    let of_store = store.run(&["ls", "--json", "--limit", "1000"]);
    assert_eq!((of_copy.status, of_copy.out), (0, of_store.out));
}

#[test]
fn pages_follow_each_other() {
    let store = Filled::embedded();
    for (command, list) in [
        (&["queues"][..], "queues"),
        (&["list", "jobs"], "items"),
        (&["list", "events", "--subscription", "mirror"], "items"),
        (&["schedules", "jobs"], "schedules"),
        (&["combine", "counts", "--set-aside"], "set_aside"),
        (&["ls", "jobs"], "keys"),
    ] {
        let mut all = store.json(&[command, &["--limit", "1000"]].concat());
        let mut pages = Vec::new();
        let mut after = None::<String>;
        loop {
            let mut page = [command, &["--limit", "2"]].concat();
            page.extend(after.iter().flat_map(|after| ["--after", after]));
            let page = store.json(&page);
            pages.extend_from_slice(page[list].as_array().unwrap());
            after = page["next"].as_str().map(str::to_owned);
            if after.is_none() {
                break;
            }
        }
        // They depend on the time.
        for queue in pages.iter_mut().chain(all[list].as_array_mut().unwrap()) {
            let queue = queue.as_object_mut().unwrap();
            for changing in ["oldest_seconds", "lag_seconds", "subscriptions"] {
                queue.remove(changing);
            }
        }
        assert_eq!(&pages, all[list].as_array().unwrap(), "{command:?}");
    }
}

#[cfg(unix)]
#[test]
fn the_printed_option_for_the_next_page_is_accepted() {
    let store = Filled::with(|world| {
        Box::pin(async move {
            world.schedule_ahead("-nightly").await;
        })
    });
    let schedules = ["schedules", "jobs", "--limit", "1"];
    let first = store.run(&schedules).out;
    let option = first
        .lines()
        .last()
        .unwrap()
        .strip_prefix("more: ")
        .unwrap();
    assert!(option.contains("-nightly"), "{option}");
    let next = format!(
        "exec \"$0\" schedules jobs --json --db '{}' {option}",
        store.db
    );
    let mut shell = std::process::Command::new("sh");
    let next = finish(shell.args(["-c", &next, env!("CARGO_BIN_EXE_console")]));
    assert_eq!((next.status, &*next.err), (0, ""), "{next:?}");
    let next: serde_json::Value = serde_json::from_str(&next.out).unwrap();
    assert_eq!(next["schedules"].as_array().unwrap().len(), 2);
}

#[test]
fn pending_updates_that_cannot_be_read_are_why_an_exact_value_is_not_known() {
    let store = Filled::with(|world| {
        Box::pin(async move {
            let passes = world.root.subspace(&"counts").subspace(&"x");
            for row in world.rows(&passes).await {
                world.set(row.key(), b"\x63newer").await;
            }
        })
    });
    let command = ["combine", "counts", "ada", "--combiner", "sum"];
    let table = store.run(&command);
    assert_eq!(table.status, 0, "{table:?}");
    let words = words(&table.out);
    assert!(
        words.contains("exact not known: record under key "),
        "{words}"
    );
    assert!(words.contains("pending updates cannot be read"), "{words}");
    assert!(!words.contains("--combiner"), "{words}");
    let json = store.json(&command);
    assert_valid("CombineKey", &json);
    assert_eq!(
        (&json["exact_known"], &json["pending"]),
        (&false.into(), &serde_json::json!([]))
    );
    assert!(json["problem"].is_string(), "{json}");
}

#[test]
fn a_first_item_that_does_not_decode_does_not_hide_that_a_queue_is_paused() {
    let store = Filled::with(|world| {
        Box::pin(async move {
            let orders = world.root.subspace(&"orders").subspace(&"i");
            let first = &world.rows(&orders).await[0];
            world.set(first.key(), b"\x63newer").await;
        })
    });
    let queues = store.run(&["queues"]).out;
    let mut lines = queues.lines().map(str::trim);
    let orders = lines.find(|line| line.starts_with("orders"));
    let state = "paused, its first item does not decode: sessions skip it";
    assert!(orders.is_some_and(|line| line.ends_with(state)), "{queues}");
}

#[test]
fn every_command_teaches_by_an_example() {
    let help = run(&["--help"]);
    assert_eq!(help.status, 0);
    let commands = help
        .out
        .split_once("Commands:\n")
        .unwrap()
        .1
        .split_once("\n\n")
        .unwrap()
        .0;
    let names: Vec<_> = commands
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(names.len() >= 21, "{names:?}");
    for name in names.iter().filter(|name| **name != "help") {
        let help = run(&[name, "--help"]);
        assert_eq!(help.status, 0, "{name}");
        let example = format!("\n  console {name} ");
        assert!(help.out.contains("Example"), "{name}");
        assert!(help.out.contains(&example), "{name}: {}", help.out);
    }
}
