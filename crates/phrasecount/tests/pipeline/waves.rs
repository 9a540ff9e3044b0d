//! Directories that change all the time, and a program that is killed at random moments: what is
//! exported equals the independent count.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use conformance::scale;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, SeedableRng};

use crate::program::{Running, World, finish};

/// Words that make phrases meet, some of them as they are not counted.
const WORDS: [&str; 10] = [
    "a",
    "The",
    "queue",
    "QUEUE",
    "takes",
    "x86",
    "all",
    "it",
    "can",
    "na\u{ef}ve",
];

const SEPARATORS: [&str; 6] = [" ", "\n", ", ", " - ", "\t", ".  "];

/// The repository's own documents: real text.
fn real_texts() -> Vec<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut files: Vec<_> = fs::read_dir(docs)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension() == Some("md".as_ref()))
        .collect();
    files.sort();
    assert!(files.len() > 3);
    files
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}

/// Changes the documents of a directory.
struct Editor {
    rng: StdRng,
    real: Vec<String>,
    /// What is there, and what was changed last.
    documents: BTreeMap<String, Vec<u8>>,
    made: usize,
}

impl Editor {
    fn new(seed: u64) -> Self {
        Self {
            rng: StdRng::seed_from_u64(seed),
            real: real_texts(),
            documents: BTreeMap::new(),
            made: 0,
        }
    }

    fn generated(&mut self, words: usize) -> Vec<u8> {
        let mut text = String::new();
        for _ in 0..words {
            text += WORDS.choose(&mut self.rng).unwrap();
            text += SEPARATORS.choose(&mut self.rng).unwrap();
        }
        text.into_bytes()
    }

    /// Returns a text with so great a number of different phrases that counting it takes several transactions.
    fn long(&mut self) -> Vec<u8> {
        let words = self.rng.random_range(9_000..18_000);
        let mut text = String::new();
        for _ in 0..words {
            text += &format!("{} ", self.rng.random_range(0..15_000));
        }
        text.into_bytes()
    }

    fn text(&mut self) -> Vec<u8> {
        match self.rng.random_range(0..24) {
            0 => self.long(),
            1..8 => {
                let real = self
                    .real
                    .choose(&mut self.rng)
                    .unwrap()
                    .clone()
                    .into_bytes();
                let begin = self.rng.random_range(0..real.len());
                real[begin..].to_vec()
            }
            8 => self.generated(3),
            _ => {
                let words = self.rng.random_range(0..300);
                self.generated(words)
            }
        }
    }

    fn some(&mut self) -> Option<String> {
        self.documents.keys().choose(&mut self.rng).cloned()
    }

    fn new_name(&mut self) -> String {
        self.made += 1;
        match self.rng.random_range(0..5) {
            0 | 1 => format!("{}.txt", self.made),
            2 | 3 => format!("below {}/\u{fc}{}", self.made % 3, self.made),
            // No text by its name.
            _ => format!("{}.svg", self.made),
        }
    }

    /// Makes one change.
    fn edit(&mut self, world: &World) {
        let kind = self.rng.random_range(0..10);
        let name = if kind > 2 { self.some() } else { None };
        let Some(name) = name else {
            let name = self.new_name();
            let text = self.text();
            return self.put(world, name, text);
        };
        let mut bytes = self.documents[&name].clone();
        match kind {
            3 => {
                let copy = bytes.to_ascii_uppercase();
                let copy_name = self.new_name();
                self.put(world, copy_name, copy);
            }
            4 => {
                let renamed = self.new_name();
                self.take(world, &name);
                self.put(world, renamed, bytes);
            }
            5 => self.put(world, name, Vec::new()),
            6 => {
                bytes.insert(0, 0);
                self.put(world, name, bytes);
            }
            7 => self.take(world, &name),
            _ => {
                let middle = self.rng.random_range(0..=bytes.len());
                let more = self.generated(30);
                bytes.splice(middle..middle, more);
                self.put(world, name, bytes);
            }
        }
    }

    fn put(&mut self, world: &World, name: String, bytes: Vec<u8>) {
        world.write(&name, &bytes);
        self.documents.insert(name, bytes);
    }

    fn take(&mut self, world: &World, name: &str) {
        world.remove(name);
        self.documents.remove(name);
    }
}

#[test]
fn after_every_wave_of_changes_the_counts_are_right() {
    let world = World::new();
    let mut editor = Editor::new(0x0070_6372);
    let mut most = 0;
    for _ in 0..scale(10, 40) {
        for _ in 0..8 {
            editor.edit(&world);
        }
        world.run();
        world.assert_exported();
        most = most.max(world.exported().len());
    }
    assert!(most > 1_000);
    for name in editor.documents.keys().cloned().collect::<Vec<_>>() {
        editor.take(&world, &name);
    }
    world.run();
    assert!(world.exported().is_empty());
}

#[test]
fn killed_at_random_moments_while_documents_change_every_content_counts_once() {
    let world = World::new();
    let mut editor = Editor::new(0x6b69_6c6c);
    let mut killed = 0;
    let kills = scale(25, 100);
    while killed < kills {
        for _ in 0..editor.rng.random_range(1..8) {
            editor.edit(&world);
        }
        let mut running = Running::start(&mut world.run_command());
        // The program prints each commit. It continues between the last line read here and the kill, so the kill may
        // come at any point of a transaction.
        running.wait_for(editor.rng.random_range(0..25));
        killed += usize::from(running.kill());
        if editor.rng.random_range(0..4) == 0 {
            world.run();
            world.assert_exported();
        }
    }
    world.run();
    world.assert_exported();
}

#[test]
fn a_document_that_goes_while_it_is_counted_takes_out_exactly_what_it_had_added() {
    let world = World::new();
    let words: Vec<_> = (0..40_000).map(|word| word.to_string()).collect();
    let text = words.join(" ");
    world.write("stays", "1 2 3 4 5 6 7 8 9");
    for partitions in [1, 2, 4] {
        world.write("long", &text);
        let mut running = Running::start(&mut world.run_command());
        for _ in 0..partitions {
            assert!(running.wait_until("counted"));
        }
        assert!(
            running.kill(),
            "it was killed before it had counted everything"
        );
        world.remove("long");
        world.run();
        world.assert_exported();
        assert_eq!(world.exported().len(), 6);
    }
}

#[test]
fn a_text_that_takes_several_transactions_to_store_is_stored_whole() {
    let world = World::new();
    // Few phrases: storing it is what takes long.
    let text = "all work and no play makes a dull day ".repeat(60_000);
    world.write("long", &text);
    for moments in [0, 1, 2] {
        let mut running = Running::start(&mut world.run_command());
        running.wait_for(moments);
        running.kill();
    }
    world.run();
    world.assert_exported();
    world.write("long", text + "and a bit");
    world.run();
    world.assert_exported();
}

#[test]
fn what_was_stored_of_a_text_that_is_no_more_is_removed() {
    let world = World::new();
    let text = "all work and no play makes a dull day ".repeat(200_000);
    world.write("long", &text);
    let directory = world.directory.path().to_str().unwrap();
    let mut loading = Running::start(&mut world.command(&["load", directory]));
    assert!(loading.wait_until("stored"));
    assert!(loading.kill(), "it was killed before it had stored all");
    world.write("long", "one two three four");
    let load = ["load", directory, "--verbose"];
    let loaded = finish(&mut world.command(&load));
    assert!(loaded.stderr.contains("removed upload"), "{loaded:?}");
    let loaded = finish(&mut world.command(&load));
    assert!(!loaded.stderr.contains("removed upload"), "{loaded:?}");
    world.run();
    world.assert_exported();
}
