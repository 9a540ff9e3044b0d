//! The commands of the documents. Programs that run until they are stopped are stopped by Ctrl-C.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use conformance::documents::{Call, Shown, calls};
use tempfile::TempDir;

/// Returns the path of a program or an example. That of an example is there after `cargo test` has built all of the
/// package, and not only the programs of tests.
fn program(target: Option<&str>) -> PathBuf {
    let example = Path::new(env!("CARGO_BIN_EXE_example"));
    match target {
        None | Some("example") => example.to_owned(),
        Some("several_processes") => env!("CARGO_BIN_EXE_several_processes").into(),
        Some(name) => example.with_file_name("examples").join(name),
    }
}

/// Runs a command in a folder, whose addresses are replaced by those of ports that are free.
fn run(shown: &Shown, call: &Call, program: &Path, folder: &Path) {
    let addresses = ["--console", "--listen"];
    let mut arguments = call.arguments.clone();
    if arguments.first().is_some_and(|role| role == "web") {
        arguments.extend(["--listen", "127.0.0.1:8080"].map(str::to_owned));
    }
    for index in 1..arguments.len() {
        if addresses.contains(&&*arguments[index - 1]) {
            arguments[index] = "127.0.0.1:0".to_owned();
        }
    }
    let serves = arguments.iter().any(|word| addresses.contains(&&**word));
    let mut command = Command::new(program);
    command.args(&arguments).current_dir(folder);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // An example begins after it has said where its console is, and by then Ctrl-C lets it end in order.
    let lines_begun = if call.target.is_none() && serves {
        2
    } else {
        1
    };
    assert_eq!(
        lines.by_ref().take(lines_begun).count(),
        lines_begun,
        "{shown:?}"
    );
    if serves || arguments == ["work"] {
        let pid = child.id().to_string();
        let kill = Command::new("kill").args(["-INT", &pid]).status();
        assert!(kill.unwrap().success(), "{shown:?}");
    }
    lines.for_each(drop);
    let status = child.wait().unwrap();
    assert!(status.success(), "{shown:?}: {status}");
}

#[test]
fn the_commands_of_the_documents_run() {
    let mut run_targets = BTreeSet::new();
    let mut folder: Option<(String, TempDir)> = None;
    for (shown, call) in calls("examples") {
        // Those are built with the client library of FoundationDB.
        if call.has_features {
            continue;
        }
        let program = program(call.target.as_deref());
        if !program.exists() {
            let reason = format!("{} is not built", program.display());
            let test = "the_commands_of_the_documents_run";
            let _ = writeln!(io::stderr(), "skipped: {test}: {reason}");
            return;
        }
        if folder
            .as_ref()
            .is_none_or(|(name, _)| *name != shown.document)
        {
            folder = Some((shown.document.clone(), TempDir::new().unwrap()));
        }
        let (_, folder) = folder.as_ref().unwrap();
        run(&shown, &call, &program, folder.path());
        run_targets.insert(call.target.unwrap_or_default());
    }
    let expected = [
        "",
        "import",
        "jobs",
        "nightly",
        "orders",
        "recipes",
        "several_processes",
        "shop",
        "tenants",
    ];
    assert_eq!(run_targets, expected.map(str::to_owned).into());
}
