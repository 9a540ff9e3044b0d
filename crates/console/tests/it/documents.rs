//! The commands of the documents and of `--help`: each is run, on a store that has what it names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::program::{Filled, run};
use export_queue::hc_dequeue::Batch;
use export_queue::keyspace::{self, Runner, Subspace};
use tempfile::TempDir;
use tokio::runtime::Runtime;

#[path = "../../../examples/examples/shop.rs"]
#[expect(dead_code, reason = "its `main` is not run")]
mod shop;

/// Returns the README and the pages of `docs`.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = fs::read_dir(root.join("docs"))
        .unwrap()
        .map(|page| page.unwrap().path())
        .filter(|page| page.extension().is_some_and(|kind| kind == "md"));
    pages.chain([root.join("README.md")]).collect()
}

/// Returns the arguments of the commands in a text: those after `-p fdbq-console --`, and those of code spans and of
/// examples that begin with `console`. One word alone names a command.
fn commands(text: &str) -> Vec<Vec<String>> {
    let run = text
        .lines()
        .filter_map(|line| line.split_once(" -p fdbq-console -- "))
        .filter_map(|(_, arguments)| arguments.split(['`', '#']).next());
    let parts = text.split(['`', '\n']).map(str::trim);
    let named = parts
        .map(|part| part.strip_prefix("$ ").unwrap_or(part))
        .filter_map(|part| part.strip_prefix("console "))
        .filter(|arguments| arguments.contains(' ') && !arguments.starts_with('<'));
    run.chain(named).map(words).collect()
}

/// Splits arguments as a shell does, up to a pipe.
fn words(text: &str) -> Vec<String> {
    let text = text.split(" | ").next().unwrap();
    let mut words = Vec::new();
    for (index, part) in text.split('\'').enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// Fills a store with what the tutorial leaves.
fn open_shop() -> (String, TempDir) {
    let folder = TempDir::new().unwrap();
    let db = format!("embedded:{}", folder.path().join("shop").display());
    let store = keyspace::open(&db).unwrap();
    let runner = Runner::new(store.clone());
    let sells = async { shop::run(&runner, &Subspace::from("shop")).await.unwrap() };
    Runtime::new().unwrap().block_on(sells);
    store.close().unwrap();
    (db, folder)
}

#[test]
fn every_command_of_the_documents_and_of_the_help_runs() {
    let texts = documents()
        .into_iter()
        .map(|page| fs::read_to_string(page).unwrap());
    let overview = run(&["--help"]).out;
    let names: BTreeSet<_> = overview
        .split("Commands:")
        .nth(1)
        .unwrap()
        .lines()
        .skip(1)
        .map_while(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    let help = names.iter().map(|name| run(&["help", name]).out);
    let commands: BTreeSet<_> = texts.chain(help).flat_map(|text| commands(&text)).collect();
    let shown: BTreeSet<_> = commands.iter().map(|command| &*command[0]).collect();
    assert_eq!(shown, names, "every command has an example");

    let filled = Filled::with(|world| {
        Box::pin(async move {
            let jobs = &world.jobs;
            let open = |tr| async move { jobs.open_batch(&tr, &Batch::new()).await };
            world.runner.run(open).await.unwrap();
        })
    });
    let batches = filled.json(&["batches", "jobs"]);
    let batch = batches["batches"][0]["batch"].as_str().unwrap();
    let (shop, _folder) = open_shop();
    let copy = filled.folder.path().join("copy").display().to_string();
    for command in commands {
        // They run until they are stopped.
        if ["own", "serve"].contains(&&*command[0]) {
            continue;
        }
        let is_shop = command.iter().any(|word| word.contains("shop"));
        // A command before this one cancels the delayed item.
        let item = match &*command[0] {
            "prioritize" => filled.items.dead[0].to_string(),
            "batch" | "close-batch" | "cancel-batch" => batch.to_owned(),
            _ => filled.items.delayed[0].to_string(),
        };
        let mut arguments: Vec<_> = command
            .iter()
            .map(|word| match &**word {
                word if word.contains('…') => item.clone(),
                word if word == "URL"
                    || word.starts_with("embedded:")
                    || word.starts_with("fdb:") =>
                {
                    if is_shop { &shop } else { &filled.db }.clone()
                }
                "copy.keyspace" => copy.clone(),
                word => word.to_owned(),
            })
            .collect();
        // The first page is as good as the next one.
        arguments.retain(|word| !["--after", "<page>"].contains(&&**word));
        let changes = ["cancel", "expedite", "redrive", "purge"];
        if changes.contains(&&*arguments[0]) && !arguments.contains(&"--yes".to_owned()) {
            arguments.push("--yes".to_owned());
        }
        if !arguments.contains(&"--db".to_owned()) {
            arguments.extend(["--db".to_owned(), filled.db.clone()]);
        }
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let ended = run(&arguments);
        assert_eq!(ended.status, 0, "{command:?}: {ended:?}");
    }
}
