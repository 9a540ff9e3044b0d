//! The commands of the documents, through cargo. Those of programs of this repository are run by tests of their
//! packages, with what [`conformance::documents`] finds; the others are parsed, and what they name is looked up.

use std::collections::BTreeSet;
use std::process::Command;

use conformance::documents::{Call, Shown, root, shown, words};
use serde_json::Value;

use crate::commands;
use crate::tidy::LAYERS;

/// The packages whose tests run the commands of the documents.
const RUN: [&str; 3] = ["examples", "fdbq-console", "phrasecount"];

/// The commands that no test runs, and why.
const NOT_RUN: [(&str, &str); 5] = [
    (
        "cargo +1.90 check -p <package>",
        "takes another toolchain, and compiles everything",
    ),
    ("cargo add fdbq-hc-dequeue", "the package is not published"),
    ("cargo install cargo-fuzz", "takes the network"),
    (
        "cargo install --path crates/console --profile dist",
        "compiles everything, and changes the user's programs",
    ),
    (
        "curl -X POST 'http://127.0.0.1:8080/enqueue?name=17.png' && curl http://127.0.0.1:8080/done",
        "its tests send the same requests",
    ),
];

/// The subcommands of cargo that compile the workspace: what they name is looked up.
const COMPILING: [&str; 7] = [
    "bench", "build", "check", "clippy", "doc", "publish", "test",
];

/// What cargo says of the workspace.
struct Workspace {
    packages: Vec<Value>,
}

impl Workspace {
    fn new() -> Self {
        let metadata =
            cargo(&["metadata", "--offline", "--no-deps", "--format-version=1"]).unwrap();
        let metadata: Value = serde_json::from_str(&metadata).unwrap();
        let packages = metadata["packages"].as_array().unwrap().clone();
        Self { packages }
    }

    fn package(&self, name: &str) -> Option<&Value> {
        self.packages.iter().find(|package| package["name"] == name)
    }

    fn has_target(&self, package: &str, kind: &str, name: &str) -> bool {
        let targets = self
            .package(package)
            .and_then(|of| of["targets"].as_array());
        targets.into_iter().flatten().any(|target| {
            let kinds = target["kind"].as_array().unwrap();
            target["name"] == name && kinds.iter().any(|other| other == kind)
        })
    }

    fn has_feature(&self, package: &str, feature: &str) -> bool {
        let package = self.package(package);
        package.is_some_and(|package| package["features"].get(feature).is_some())
    }

    /// Returns what a call of cargo names that is not there.
    fn unknown(&self, words: &[String]) -> Vec<String> {
        let mut unknown = Vec::new();
        let mut package = None;
        let mut words = words.iter().take_while(|word| *word != "--").skip(2);
        while let Some(word) = words.next() {
            let mut name = || words.next().cloned().unwrap_or_default();
            match word.as_str() {
                "-p" | "--package" => {
                    let name = name();
                    if let Err(error) = cargo(&["pkgid", "--offline", "-p", &name]) {
                        unknown.push(error);
                    }
                    package = Some(name);
                }
                "--features" => {
                    let name = name();
                    if !self.has_feature(package.as_deref().unwrap_or_default(), &name) {
                        unknown.push(format!("feature `{name}`"));
                    }
                }
                "--bin" | "--example" | "--test" | "--bench" => {
                    let kind = word.trim_start_matches('-');
                    let name = name();
                    if !self.has_target(package.as_deref().unwrap_or_default(), kind, &name) {
                        unknown.push(format!("{kind} `{name}`"));
                    }
                }
                "--release" | "--lib" | "--no-deps" | "--quiet" | "--dry-run" => {}
                // Of a test, a part of its name.
                part if !part.starts_with('-') && package.is_some() => {
                    let package = package.as_deref().unwrap_or_default();
                    if !self.has_test(package, part) {
                        unknown.push(format!("test `{part}`"));
                    }
                }
                option => unknown.push(format!("option `{option}`")),
            }
        }
        unknown
    }

    /// Returns whether a file or a function of a package has a name with this part.
    fn has_test(&self, package: &str, part: &str) -> bool {
        let Some(package) = self.package(package) else {
            return false;
        };
        let manifest = package["manifest_path"].as_str().unwrap();
        let found = Command::new("grep")
            .args(["-rqE", "--include=*.rs"])
            .arg(format!("(fn|mod) [a-z0-9_]*{part}"))
            .args([
                manifest.replace("Cargo.toml", "src"),
                manifest.replace("Cargo.toml", "tests"),
            ])
            .status();
        found.unwrap().success()
    }
}

/// Runs cargo at the root, and returns what it prints, or its error.
fn cargo(arguments: &[&str]) -> Result<String, String> {
    let output = crate::workspace::cargo(arguments)
        .unwrap()
        .output()
        .unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Returns what is wrong with a command that a document shows.
fn problems(workspace: &Workspace, shown: &Shown) -> Vec<String> {
    let code = &*shown.code;
    let in_folder = code
        .strip_prefix("cd ")
        .and_then(|rest| rest.split_once(" && "));
    let words = words(in_folder.map_or(code, |(_, command)| command));
    let mut problems = missing_files(&words);
    if NOT_RUN.iter().any(|(command, _)| *command == code) {
        return problems;
    }
    let is_setting = |word: &&String| {
        word.split_once('=')
            .is_some_and(|(name, _)| name == name.to_uppercase())
    };
    let settings = words.iter().take_while(is_setting).count();
    let words = &words[settings..];
    let word = |index: usize| words.get(index).map_or("", String::as_str);
    match (word(0), word(1)) {
        ("cargo" | "console", "") | ("console", _) => {}
        ("cargo", "xtask") if word(2).is_empty() => {}
        ("cargo", "xtask") => problems.extend(of_xtask(workspace, &words[2..])),
        ("cargo", "run") => {
            problems.extend(workspace.unknown(words));
            let call = Call::parse(code).unwrap_or_else(|| panic!("{shown:?}"));
            if !RUN.contains(&&*call.package) {
                problems.push(format!("no test runs `{}`", call.package));
            }
        }
        // Ordinary tests run the bodies of the fuzz targets, and `ci` compiles them and runs `cargo deny`.
        ("cargo", "+nightly") if word(2) == "fuzz" => {
            let target = format!("fuzz/fuzz_targets/{}.rs", word(4));
            let mut layers = LAYERS.iter();
            if !layers.any(|layer| root().join(format!("crates/{layer}/{target}")).exists()) {
                problems.push(format!("no such file: {target}"));
            }
        }
        ("cargo", "deny") => {}
        // A placeholder stands for what readers choose.
        ("cargo", subcommand) if COMPILING.contains(&subcommand) && code.contains('<') => {}
        ("cargo", subcommand) if COMPILING.contains(&subcommand) => {
            problems.extend(workspace.unknown(words));
        }
        ("cargo", _) => problems.push("is no known call of cargo".to_owned()),
        _ if shown.is_block => problems.push("no test runs it, and no list says why".to_owned()),
        _ => {}
    }
    problems
}

/// Returns what is wrong with the arguments of `cargo xtask`, which may be those of a synopsis.
fn of_xtask(workspace: &Workspace, arguments: &[String]) -> Option<String> {
    let arguments = arguments
        .iter()
        .map(|word| word.replace(['[', ']'], "").replace("...", ""));
    let arguments: Vec<_> = arguments.collect();
    let line = ["xtask".to_owned()].into_iter().chain(arguments.clone());
    // A command that is only named may lack its arguments.
    let names = commands();
    if let [name] = &*arguments {
        if name.starts_with('<') {
            return None;
        }
        let is_known = names
            .get_subcommands()
            .any(|command| command.get_name() == name);
        if is_known {
            return None;
        }
        return Some(format!("xtask knows no `{name}`"));
    }
    if let Some(name) = arguments.get(1)
        && arguments[0] == "bench"
        && !name.starts_with('<')
        && !workspace.has_target("benches", "bench", name)
    {
        return Some(format!("benchmark `{name}`"));
    }
    names
        .try_get_matches_from(line)
        .err()
        .map(|error| error.to_string())
}

/// Returns the paths among the words of a command that lead nowhere. They are paths of the repository.
fn missing_files(words: &[String]) -> Vec<String> {
    let words = words.iter().filter(|word| {
        word.contains('/') && !word.contains(['<', '$', ':', '{']) && !word.starts_with("--")
    });
    let begins = ["crates/", "docs/", "benches/", "xtask/"];
    words
        .filter(|word| begins.iter().any(|begin| word.starts_with(begin)))
        .filter(|word| !root().join(word).exists())
        .map(|word| format!("no such file: {word}"))
        .collect()
}

#[test]
fn cargo_knows_what_the_commands_of_the_documents_name() {
    let workspace = Workspace::new();
    let shown = shown();
    let is_command = |shown: &&Shown| shown.is_block || !words(&shown.code).is_empty();
    let mut found = Vec::new();
    let mut commands = 0;
    for shown in shown.iter().filter(is_command) {
        commands += usize::from(shown.code.starts_with("cargo "));
        for problem in problems(&workspace, shown) {
            found.push(format!(
                "{}:{}: `{}`: {problem}",
                shown.document, shown.line, shown.code
            ));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(commands > 40, "{commands} commands");
    for (command, why) in NOT_RUN {
        let is_shown = shown.iter().any(|shown| shown.code == command);
        assert!(is_shown, "no document shows `{command}`, which {why}");
    }
}

#[test]
fn each_package_has_a_name_that_cargo_takes_for_no_other() {
    for package in &Workspace::new().packages {
        let name = package["name"].as_str().unwrap();
        cargo(&["pkgid", "--offline", "-p", name]).unwrap();
    }
}

#[test]
fn each_package_that_a_message_or_a_comment_names_is_there() {
    let named = Command::new("grep")
        .args([
            "-rhoE",
            "--exclude=documents.rs",
            "--exclude-dir=target",
            "--exclude-dir=.git",
        ])
        .args(["cargo [^`]*( -p|--package) [a-z][a-z0-9_-]*", "."])
        .current_dir(root())
        .output();
    let named = String::from_utf8(named.unwrap().stdout).unwrap();
    let last = |line: &str| line.rsplit(' ').next().unwrap().to_owned();
    let names: BTreeSet<_> = named.lines().map(last).collect();
    assert!(names.len() > 5, "{names:?}");
    for name in names {
        cargo(&["pkgid", "--offline", "-p", &name]).unwrap();
    }
}

#[test]
fn a_command_that_names_what_is_not_there_is_found() {
    let workspace = Workspace::new();
    let problems = |code: &str| {
        let shown = Shown {
            document: "docs/a.md".to_owned(),
            line: 1,
            code: code.to_owned(),
            is_block: true,
        };
        problems(&workspace, &shown)
    };
    for code in [
        "cargo run --release -p fdbq-console -- queues",
        "LONG=1 cargo test -p fdbq-hc-dequeue --test it takes",
        "cargo xtask bench <name> [--db URL] [--long] [-- <workload>...]",
        "cargo run -p examples --features fdb-7_3 --example own_transactions",
    ] {
        assert_eq!(problems(code), [""; 0], "{code}");
    }
    for (code, problem) in [
        // A package of the registry has this name.
        ("cargo run --release -p console -- queues", "console"),
        ("cargo run -p shop", "shop"),
        ("cargo run -p examples --example ship", "example `ship`"),
        (
            "cargo run -p examples --features fdb-6_3",
            "feature `fdb-6_3`",
        ),
        ("cargo run -p compare -- replay", "no test runs `compare`"),
        ("cargo test -p fdbq-hc-dequeue --test all", "test `all`"),
        (
            "cargo test -p fdbq-hc-dequeue no_such_test",
            "test `no_such_test`",
        ),
        ("cargo xtask taste", "xtask knows no `taste`"),
        ("cargo xtask test --longer", "--longer"),
        ("cargo xtask bench hc_queue -- pop", "benchmark `hc_queue`"),
        (
            "cargo xtask replay crates/traces",
            "no such file: crates/traces",
        ),
        ("cargo instal x", "no known call"),
        (
            "cd crates/keyspace && cargo +nightly fuzz run codex",
            "no such file: fuzz",
        ),
        ("make", "no test runs it"),
    ] {
        let found = problems(code);
        assert!(
            found.iter().any(|found| found.contains(problem)),
            "{code}: {found:?}"
        );
    }
}
