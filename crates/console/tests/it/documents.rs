//! The commands of the documents and of `--help`: each is run as it is typed, in the order of its document, on a store
//! that has what it names. With a few more, every option of every command is typed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::mem;
use std::path::Path;
use std::process::{Command, Stdio};

use conformance::documents::{calls, shown, words};
use export_queue::combine::Sum;
use export_queue::hc_dequeue::{Batch, Enqueue, WorkerOptions};
use export_queue::keyspace::{self, Runner, Subspace};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::common::program::{Filled, Finished, finish, program, run};
use crate::common::{enqueue, job};
use crate::deaths::open_deaths;

#[path = "../../../examples/examples/shop.rs"]
#[expect(dead_code, reason = "its `main` is not run")]
mod shop;

/// What a command prints, on standard output.
const TOLD: [(&str, &str); 36] = [
    ("queues", "QUEUE"),
    ("stats", "sessions"),
    ("list", "ENQUEUED"),
    ("show", "payload"),
    ("cancel", ": cancel: "),
    ("clear", ": clear: "),
    ("expedite", ": expedite: "),
    ("redrive", ": redrive: "),
    ("purge", ": purge: "),
    ("prioritize", "jobs: prioritize"),
    ("groups", "default limits"),
    ("kinds", "invoice"),
    ("limit", "limit"),
    ("batches", "to be closed"),
    ("batch", "waits for"),
    ("close-batch", "jobs: close"),
    ("cancel-batch", "jobs: cancel"),
    ("release-dedupe", "jobs: release"),
    ("pause", ": pause"),
    ("resume", ": resume"),
    ("configure", "lease"),
    ("sessions", "SESSION"),
    ("schedules", "new year"),
    ("reschedule", "jobs: reschedule"),
    ("audit", "everything agrees"),
    ("repair", "everything agrees"),
    ("combine", "pending updates"),
    ("exports", "SUBSCRIPTION"),
    ("maps", "no maps"),
    ("ls", "KEY"),
    ("get", "record"),
    ("backup", ""),
    ("check", "rows"),
    ("own", "stop with Ctrl-C or SIGTERM"),
    ("serve", "listening on http://127.0.0.1:"),
    ("help", "Usage"),
];

/// Commands whose options no document has, in this order. `<page>` is the next page of the same command, as JSON has
/// it. The status, if it is not 0.
const MORE: [(&str, i32); 72] = [
    ("queues --limit 1 --after <page>", 0),
    ("list jobs --limit 1 --after <page> --time-limit 20", 0),
    ("list events --subscription mirror", 0),
    ("schedules jobs --limit 1 --after <page>", 0),
    ("schedules jobs --owner calendar", 0),
    ("sessions jobs --limit 1 --after <page>", 0),
    ("batches jobs --limit 1 --after <page>", 0),
    ("maps --limit 1", 0),
    ("maps --after nothing", 0),
    ("ls jobs --limit 1 --after <page>", 0),
    ("combine counts --set-aside --limit 1 --after <page>", 0),
    (
        "limit jobs a --at-most 3 --until-end --dead-letters-block --weight 2",
        0,
    ),
    ("limit jobs b --no-limit --rate 100/1m --burst 10", 0),
    ("limit jobs c --ordered", 0),
    ("pause jobs --group c", 0),
    ("resume jobs --group c", 0),
    ("list jobs --group 'tenant 7'", 0),
    ("list jobs --batch BATCH", 0),
    ("cancel jobs --group c --yes", 0),
    ("cancel jobs --batch BATCH --yes", 0),
    ("expedite jobs --group c --yes", 0),
    ("expedite jobs --batch BATCH --yes", 0),
    ("redrive jobs --group c --yes", 0),
    ("redrive jobs --batch BATCH --yes", 0),
    ("purge jobs --group c --yes", 0),
    ("purge jobs --batch BATCH --yes", 0),
    ("cancel jobs --kind other --yes", 0),
    ("clear jobs --group c --yes", 0),
    ("clear jobs --batch BATCH --yes", 0),
    ("clear jobs --kind other --yes", 0),
    ("clear jobs --yes", 2),
    ("expedite jobs --kind invoice --yes", 0),
    ("redrive jobs --kind invoice --yes", 0),
    ("purge jobs --kind invoice --yes", 0),
    ("pause events --group c", 2),
    ("limit jobs c --reset", 0),
    ("groups jobs --limit 1 --after <page>", 0),
    ("pause events --subscription mirror", 0),
    ("resume events --subscription mirror", 0),
    (
        "configure jobs --lease 2m --max-attempts 9 --max-deaths 4",
        0,
    ),
    (
        "configure jobs --max-deliveries 99 --dedupe-retention 2h --keep-done 3h",
        0,
    ),
    ("configure jobs --deaths deaths", 0),
    ("configure jobs --no-deaths", 0),
    ("configure jobs --deaths nothing", 1),
    ("cancel jobs --place delayed --reason x --yes", 0),
    (
        "cancel jobs --payload x --attempts 2 --older-than 1h --yes",
        0,
    ),
    ("cancel events 1 --subscription mirror", 2),
    ("expedite jobs --place delayed --reason x --yes", 0),
    (
        "expedite jobs --payload x --attempts 2 --older-than 1h --yes",
        0,
    ),
    ("expedite events 1 --subscription mirror", 2),
    ("redrive jobs --place dead --reason x --yes", 0),
    (
        "redrive jobs --payload x --attempts 9 --older-than 1h --yes",
        0,
    ),
    ("redrive events 1 --subscription mirror", 2),
    ("purge events --subscription mirror LETTER", 0),
    ("purge jobs --place dead --reason x --yes", 0),
    (
        "purge jobs --payload x --attempts 9 --older-than 99days --yes",
        0,
    ),
    ("cancel jobs --all --yes", 0),
    ("expedite jobs --all --yes", 0),
    ("redrive jobs --all --yes", 0),
    ("purge jobs --all --yes", 0),
    ("serve --allow-changes --host pages.example --own", 0),
    ("groups jobs --json", 0),
    ("batches jobs --json", 0),
    ("audit jobs --json", 0),
    ("check --json", 0),
    ("help list", 0),
    ("combine counts ada --combiner sum", 0),
    ("combine counts ada --combiner min", 0),
    ("combine counts ada --combiner max", 0),
    ("show jobs missing", 2),
    ("stats nothing", 3),
    ("list jobs --place nowhere", 2),
];

/// Stores with what commands name.
struct World {
    filled: Filled,
    batches: [String; 2],
    letter: String,
    /// What the tutorial leaves.
    shop: TempDir,
}

impl World {
    fn new() -> Self {
        let filled = Filled::with(|world| {
            Box::pin(async move {
                for _batch in 0..2 {
                    let jobs = &world.jobs;
                    let open = |tr| async move { jobs.open_batch(&tr, &Batch::new()).await };
                    let batch = world.runner.run(open).await.unwrap();
                    let member = Enqueue::new().with_group("tenant 7").with_batch(&batch);
                    enqueue(&world.runner, jobs, &job(7), &member).await;
                }
                open_deaths(world).await;
                let invoice = Enqueue::new().with_kind("invoice");
                enqueue(&world.runner, &world.jobs, &job(9), &invoice).await;
                let another = world.jobs.consumer(&world.runner, WorkerOptions::default());
                // Its process is killed, too.
                mem::forget(another.await.unwrap());
                let counts = world.open_counts("counts", Sum).await;
                for update in [i64::MAX, 1] {
                    world.add(&counts, &[("vast", update)]).await;
                    world.combine(&counts).await;
                }
            })
        });
        let listed = filled.json(&["batches", "jobs"]);
        let letters = filled.json(&["list", "events", "--subscription", "mirror"]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let shop = TempDir::new().unwrap();
        let store = keyspace::open(&format!("embedded:{}/shop", shop.path().display())).unwrap();
        let runner = Runner::new(store.clone());
        let sells = async { shop::run(&runner, &Subspace::from("shop")).await.unwrap() };
        Runtime::new().unwrap().block_on(sells);
        store.close().unwrap();
        Self {
            batches: [0, 1].map(|index| text(&listed["batches"][index]["batch"])),
            letter: text(&letters["items"][0]["item"]),
            filled,
            shop,
        }
    }

    /// Returns a folder with copies of the stores, which are closed: `jobs` and `shop`.
    fn copies(&self) -> TempDir {
        let folder = TempDir::new().unwrap();
        let store = self.filled.folder.path().join("store");
        fs::copy(store, folder.path().join("jobs")).unwrap();
        fs::copy(self.shop.path().join("shop"), folder.path().join("shop")).unwrap();
        folder
    }

    /// Returns the arguments of a command with what its words stand for, on the stores of a folder.
    fn arguments(&self, command: &[String], folder: &Path) -> Vec<String> {
        let name = &*command[0];
        let has = |option: &str| command.iter().any(|word| word == option);
        let is_shop = command.iter().any(|word| word.contains("shop"));
        let store = if is_shop { "shop" } else { "jobs" };
        let db = format!("embedded:{}", folder.join(store).display());
        let items = &self.filled.items;
        let mut arguments = Vec::new();
        let mut words = command.iter();
        while let Some(word) = words.next() {
            arguments.push(match &**word {
                "QUEUE" if name == "combine" => "counts".to_owned(),
                "QUEUE" if name == "exports" || has("--subscription") => "events".to_owned(),
                "QUEUE" => "jobs".to_owned(),
                "KEY" if name == "combine" => "ada".to_owned(),
                "KEY" if name == "get" => "jobs/m".to_owned(),
                "GROUP" => "tenant 7".to_owned(),
                "KIND" => "other".to_owned(),
                "NAME" if name == "reschedule" => "new year".to_owned(),
                "NAME" => "mirror".to_owned(),
                "TEXT" => "refused".to_owned(),
                "LETTER" => self.letter.clone(),
                "FILE" | "copy.keyspace" => folder.join("copy").display().to_string(),
                "<command>" => "queues".to_owned(),
                "BATCH" => self.batches[usize::from(name == "cancel-batch")].clone(),
                word if word.contains('…') && name.ends_with("batch") => {
                    self.batches[usize::from(name == "cancel-batch")].clone()
                }
                word if word == "ITEM" || word.contains('…') => match name {
                    "cancel" => items.queued[0].to_string(),
                    "prioritize" => items.queued[1].to_string(),
                    _ => items.dead[1].to_string(),
                },
                word if word == "URL"
                    || word.starts_with("embedded:")
                    || word.starts_with("fdb:") =>
                {
                    db.clone()
                }
                // The first page is as good as the next one.
                "--after" if command.contains(&"<page>".to_owned()) && !has("1") => {
                    words.next();
                    continue;
                }
                // A port that is free.
                word if word.ends_with(":8080") => "127.0.0.1:0".to_owned(),
                word => word.to_owned(),
            });
        }
        let asks = ["cancel", "clear", "expedite", "redrive", "purge"].contains(&name);
        if asks && !has("--yes") {
            arguments.push("--yes".to_owned());
        }
        if name == "serve" && !has("--listen") {
            arguments.extend(["--listen", "127.0.0.1:0"].map(str::to_owned));
        }
        if !has("--db") && name != "help" {
            arguments.extend(["--db".to_owned(), db]);
        }
        arguments
    }

    /// Types a command. Returns what is wrong with how it ends or with what it prints.
    fn problem(&self, command: &[String], status: i32, folder: &Path) -> Option<String> {
        let mut arguments = self.arguments(command, folder);
        if let Some(page) = arguments.iter().position(|word| word == "<page>") {
            let mut first = arguments.clone();
            first.drain(page - 1..=page);
            first.push("--json".to_owned());
            let first = run_words(&first);
            let page_of = |out: &str| {
                Some(
                    serde_json::from_str::<Value>(out).ok()?["next"]
                        .as_str()?
                        .to_owned(),
                )
            };
            match page_of(&first.out) {
                Some(next) => arguments[page] = next,
                None => return Some(format!("no next page: {first:?}")),
            }
        }
        let name = &*command[0];
        let ended = if ["own", "serve"].contains(&name) {
            run_until_stopped(&arguments)
        } else {
            run_words(&arguments)
        };
        let has = |option: &str| command.iter().any(|word| word == option);
        let told = match TOLD.iter().find(|(of, _)| *of == name) {
            _ if status != 0 => "",
            _ if has("--help") => "Usage",
            _ if has("--json") => "{",
            _ if has("--set-aside") => "KIND",
            told => told.map_or("no line of TOLD", |(_, told)| told),
        };
        let is_there = name != "backup" || folder.join("copy").exists();
        if ended.status == status && ended.out.contains(told) && is_there {
            return None;
        }
        Some(format!("not {status} with `{told}`: {ended:?}"))
    }
}

fn run_words(arguments: &[String]) -> Finished {
    run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs a command that runs until it is stopped, up to its first line.
fn run_until_stopped(arguments: &[String]) -> Finished {
    let mut command = program();
    let mut child = command
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    lines.read_line(&mut out).unwrap();
    let pid = child.id().to_string();
    let sent = finish(Command::new("kill").args(["-INT", &pid]));
    assert_eq!(sent.status, 0, "{sent:?}");
    let status = child.wait().unwrap().code().unwrap_or(-1);
    Finished {
        status,
        out,
        err: String::new(),
    }
}

/// The commands, and what `--help` says of each.
fn helps() -> BTreeMap<String, String> {
    let overview = run(&["--help"]).out;
    let (_, commands) = overview.split_once("Commands:").unwrap();
    let names = commands
        .lines()
        .skip(1)
        .map_while(|line| line.split_whitespace().next());
    names
        .map(|name| (name.to_owned(), run(&["help", name]).out))
        .collect()
}

/// Returns the options of a command, as its help lists them.
fn options(help: &str) -> impl Iterator<Item = &str> {
    let lines = help.lines();
    let lines = lines.filter(|line| line.starts_with("      --") || line.starts_with("  -"));
    lines.filter_map(|line| line.split([' ', ',']).find(|word| word.starts_with("--")))
}

/// Returns the commands that the documents and the help show, by what shows them, in their order.
fn documented(helps: &BTreeMap<String, String>) -> Vec<(String, Vec<Vec<String>>)> {
    let mut documents: Vec<(String, Vec<Vec<String>>)> = Vec::new();
    let mut add = |document: &str, arguments: Vec<String>| match documents.last_mut() {
        Some((last, commands)) if last == document => commands.push(arguments),
        _ => documents.push((document.to_owned(), vec![arguments])),
    };
    for (shown, call) in calls("fdbq-console") {
        // One word alone names a command.
        let is_named = !shown.is_block && call.arguments.len() == 1;
        if is_named {
            assert!(helps.contains_key(&call.arguments[0]), "{shown:?}");
        } else {
            add(&shown.document, call.arguments);
        }
    }
    // The page of the console leaves out the name of the program.
    for shown in shown() {
        let words = words(&shown.code);
        let is_command = |words: &[String]| {
            let takes = ["QUEUE", "KEY", "GROUP", "FILE"].contains(&&*words[1]);
            takes || helps.contains_key(&words[0])
        };
        if shown.document == "docs/console.md" && words.len() > 1 && is_command(&words) {
            add("the list of docs/console.md", words);
        }
    }
    let examples = helps.values().flat_map(|help| help.lines());
    for example in examples.filter_map(|line| line.strip_prefix("  console ")) {
        add("--help", words(example));
    }
    documents
}

#[test]
fn every_command_of_the_documents_and_of_the_help_runs_with_every_option() {
    let helps = helps();
    let mut documents = documented(&helps);
    let is_there = |name: &str| documents.iter().any(|(document, _)| document == name);
    for document in [
        "README.md",
        "docs/tutorial.md",
        "docs/embedded.md",
        "--help",
    ] {
        assert!(is_there(document), "{document}");
    }
    let world = World::new();
    let mut typed = BTreeSet::new();
    let mut problems = Vec::new();
    let more = MORE.iter().map(|(command, _)| words(command)).collect();
    documents.push(("MORE".to_owned(), more));
    for (document, commands) in &documents {
        let folder = world.copies();
        for command in commands {
            let expected = MORE
                .iter()
                .find(|(more, _)| document == "MORE" && words(more) == *command);
            let status = expected.map_or(0, |(_, status)| *status);
            if let Some(problem) = world.problem(command, status, folder.path()) {
                problems.push(format!("{document}: {command:?}: {problem}"));
            }
            let of_command = command.iter().filter(|word| word.starts_with("--"));
            typed.extend(of_command.map(|option| (command[0].clone(), option.clone())));
            typed.insert((command[0].clone(), String::new()));
        }
    }
    for (name, help) in &helps {
        for option in options(help).chain([""]) {
            let is_global = ["--db", "--json", "--time-limit", "--help"].contains(&option);
            let is_typed =
                |(of, other): &(String, String)| other == option && (is_global || of == name);
            if !typed.iter().any(is_typed) {
                problems.push(format!("nothing types `{name} {option}`"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
