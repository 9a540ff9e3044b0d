//! The counts, and the program's messages about them.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::program::{Running, World, assert_same, exported, finish};

const TEST: &str = "This is only a test.  Do not panic. This is only a test.";
const OVER: &str = "The test is over, for now.";

#[track_caller]
fn assert_count(world: &World, phrase: &str, documents: i64, occurrences: i64) {
    let found = finish(world.command(&["get", phrase, "--json"]).arg("--quiet")).json();
    assert_eq!(found["documents"], documents, "{phrase}");
    assert_eq!(found["occurrences"], occurrences, "{phrase}");
    let stored = world.exported().get(phrase).copied();
    let expected = (documents > 0).then_some((documents, occurrences));
    assert_eq!(stored, expected, "{phrase}");
}

#[test]
fn the_classic_scenario_counts_as_it_always_did() {
    let world = World::new();
    let only = "is only a test";
    world.write("foo1", TEST);
    world.run();
    assert_count(&world, only, 1, 2);
    assert_count(&world, "test do not panic", 1, 1);

    for document in ["foo2", "foo3"] {
        world.write(document, "This is only a test");
        world.run();
        assert_count(&world, only, 2, 3);
    }
    for document in ["foo1", "foo2", "foo3"] {
        world.write(document, OVER);
        world.run();
        world.assert_exported();
        assert_count(&world, "the test is over", 1, 1);
        assert_count(&world, "test do not panic", 0, 0);
        // While foo3 has the text of foo2, it counts.
        let left = i64::from(document != "foo3");
        assert_count(&world, only, left, left);
    }
}

#[test]
fn copies_count_once_while_there_is_one_of_them() {
    let world = World::new();
    world
        .write("a", "One two three four five")
        .write("below/b", "one, TWO\nthree - four\tfive!")
        .write("below/c", "one two three four six");
    world.run();
    world.assert_exported();
    assert_count(&world, "one two three four", 2, 2);
    world.remove("a");
    world.run();
    assert_count(&world, "two three four five", 1, 1);
    fs::rename(world.path("below/b"), world.path("d")).unwrap();
    world.run();
    assert_count(&world, "two three four five", 1, 1);
    world.remove("d");
    world.run();
    assert_count(&world, "two three four five", 0, 0);
    world.assert_exported();
}

#[test]
fn text_files_are_counted_and_with_all_every_file() {
    let world = World::new();
    world
        .write("a.md", "one two three four")
        .write("b.rs", "five six seven eight")
        .write("LICENSE", "nine ten eleven twelve")
        .write("below/plot.svg", "thirteen fourteen fifteen sixteen")
        .write("Cargo.lock", "seventeen eighteen nineteen twenty");
    let text = world.run();
    assert_eq!((&text["files"], &text["left_out"]), (&3.into(), &2.into()));
    assert_eq!(world.exported().len(), 3);
    world.assert_exported();

    let all = finish(world.run_command().args(["--all", "--json"])).json();
    assert_eq!((&all["files"], &all["left_out"]), (&5.into(), &0.into()));
    assert_eq!(world.exported().len(), 5);
    assert_count(&world, "thirteen fourteen fifteen sixteen", 1, 1);

    let text = finish(&mut world.run_command());
    let line = "2 files were left out because of their names: --all counts them";
    assert!(text.stdout.contains(line), "{text:?}");
    assert!(text.stdout.contains("2 documents removed"), "{text:?}");
    world.assert_exported();
    assert_count(&world, "thirteen fourteen fifteen sixteen", 0, 0);
}

#[test]
fn the_documents_of_this_repository_are_counted_without_their_pictures() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let pictures: usize = ["console", "diagrams", "plots"]
        .map(|folder| docs.join(folder))
        .map(|folder| fs::read_dir(folder).unwrap().count())
        .iter()
        .sum();
    let world = World::new();
    let run = finish(
        world
            .command(&["run", docs.to_str().unwrap(), "--json"])
            .arg("--out")
            .arg(world.out()),
    )
    .json();
    assert_eq!(run["left_out"], pictures);
    assert_same(&world.exported(), &crate::reference::count(&docs));
}

#[test]
fn a_second_run_changes_nothing() {
    let world = World::new();
    world
        .write("a", TEST)
        .write("b", OVER)
        .write("empty", "- -");
    let first = world.run();
    assert_eq!((&first["stored"], &first["files"]), (&2.into(), &3.into()));
    let before = fs::read(world.out()).unwrap();
    let second = world.run();
    for nothing in ["stored", "removed", "phrases_counted", "counts_exported"] {
        assert_eq!(second[nothing], 0, "{nothing}");
    }
    assert_eq!(second["unchanged"], 2);
    assert_eq!(fs::read(world.out()).unwrap(), before);
    assert_eq!(second["top"], first["top"]);
}

#[test]
fn the_parts_do_what_the_whole_does() {
    let world = World::new();
    world.write("a", TEST).write("b", OVER);
    let directory = world.directory.path().to_str().unwrap().to_owned();
    let out = world.out().to_str().unwrap().to_owned();
    let loaded = finish(&mut world.command(&["load", &directory, "--json"])).json();
    assert_eq!(loaded["stored"], 2);
    let stats = |world: &World| finish(&mut world.command(&["stats", "--json"])).json();
    assert_eq!(stats(&world)["contents_to_count"], 2);
    assert_eq!(stats(&world)["phrases"], 0);

    let worked = finish(&mut world.command(&["work", "--until-idle", "--json"])).json();
    let distinct = 8 + 3;
    assert_eq!(worked["phrases_counted"], distinct);
    assert_eq!(stats(&world)["phrases"], distinct);

    let export = ["export", "--until-idle", "--out", &out, "--json"];
    finish(&mut world.command(&export)).json();
    world.assert_exported();
    let stats = stats(&world);
    assert_eq!(stats["documents"], 2);
    for nothing in [
        "contents_to_count",
        "updates_to_combine",
        "counts_to_export",
        "contents_given_up",
        "updates_set_aside",
        "counts_given_up",
    ] {
        assert_eq!(stats[nothing], 0, "{nothing}");
    }
    assert_eq!(stats["updates_to_combine_has_more"], false);
    assert_eq!(stats["occurrences"], 10 + 3);

    let top = finish(&mut world.command(&["top", "2"]));
    let phrases: Vec<_> = top.stdout.lines().skip(1).map(str::trim).collect();
    assert_eq!(
        phrases,
        [
            "2           1  is only a test",
            "2           1  this is only a"
        ]
    );
}

#[test]
fn another_file_takes_the_place_of_the_former_one_and_has_everything() {
    let world = World::new();
    world.write("a", TEST).write("b", OVER);
    world.run();
    let former = world.exported();
    let other = world.place.path().join("other.sqlite");
    world.remove("b").write("c", "one two three four");
    let directory = world.directory.path().to_str().unwrap();
    let to_other = ["run", directory, "--out", other.to_str().unwrap(), "--json"];
    finish(&mut world.command(&to_other)).json();
    assert_eq!(
        exported(&other),
        crate::reference::count(world.directory.path())
    );
    assert_eq!(world.exported(), former);

    // The former one has missed what happened, and catches up.
    world.run();
    world.assert_exported();
    fs::remove_file(&other).unwrap();
    finish(&mut world.command(&to_other)).json();
    assert_eq!(exported(&other), world.exported());
}

#[test]
fn ctrl_c_stops_it_and_the_next_run_goes_on() {
    let world = World::new();
    for file in 0..40 {
        let words: Vec<_> = (0..1_500).map(|word| format!("{file}x{word}")).collect();
        world.write(&file.to_string(), words.join(" "));
    }
    let mut running = Running::start(&mut world.run_command());
    running.wait_for(2);
    let stopped = running.interrupt();
    stopped.assert_refused(130, "stopped; the next run continues from here");
    let rest = world.run();
    assert_eq!(
        rest["stored"].as_i64().unwrap() + rest["unchanged"].as_i64().unwrap(),
        40
    );
    assert!(rest["unchanged"].as_i64().unwrap() > 0, "{rest}");
    world.assert_exported();

    let mut working = Running::start(&mut world.command(&["work"]));
    assert!(working.wait_until("working"));
    assert_eq!(working.interrupt().status, Some(130));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let world = World::new();
    world.write("a", TEST);
    let mut command = world.run_command();
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    world.assert_exported();
}

#[test]
fn quiet_tells_nothing_and_verbose_everything() {
    let world = World::new();
    world.write("a", TEST);
    let verbose = finish(world.run_command().arg("--verbose"));
    for line in [
        "loaded a",
        "counted 8 phrases of",
        "exported: 8 counts",
        "loaded: 1 documents",
    ] {
        assert!(verbose.stderr.contains(line), "{line}: {verbose:?}");
    }
    assert!(verbose.stdout.contains("MB/s"), "{verbose:?}");
    let quiet = finish(world.run_command().arg("--quiet"));
    assert_eq!((quiet.status, &*quiet.stderr), (Some(0), ""));
    let json: Value = world.run();
    assert_eq!(json["top"][0]["phrase"], "is only a test");
}

#[test]
fn what_is_too_long_to_be_a_phrase_is_left_out_and_told() {
    let world = World::new();
    let hex = "f".repeat(200_000);
    world.write(
        "a",
        format!("one two three four {hex} five six seven eight"),
    );
    let run = world.run();
    assert_eq!(run["overlong"], 4);
    assert_eq!(world.exported().len(), 2);
    world.assert_exported();
}

#[test]
fn nothing_at_all_is_counted_at_once() {
    let world = World::new();
    let finished = finish(&mut world.run_command());
    assert_eq!(finished.status, Some(0), "{finished:?}");
    assert!(finished.stdout.contains("no phrase"));
    let mut out = Vec::new();
    fs::File::open(world.out())
        .unwrap()
        .read_to_end(&mut out)
        .unwrap();
    assert!(out.starts_with(b"SQLite format 3\0"));
}
