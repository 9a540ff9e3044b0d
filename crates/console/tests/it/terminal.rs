//! How tables fit into a terminal.

use crate::common::QUEUES;
use crate::common::program::{Filled, OWNS, finish, program};

#[test]
fn a_narrow_terminal_breaks_lines_but_not_what_commands_take() {
    let store = Filled::embedded();
    let narrow = |command: &[&str], columns: &str| {
        let arguments = [command, &["--db", &store.db]].concat();
        let finished = finish(program().args(arguments).env("COLUMNS", columns));
        assert_eq!(finished.status, 0, "{finished:?}");
        finished.out
    };
    for columns in ["20", "60", "80", "200"] {
        let dead = narrow(&["list", "jobs", "--place", "dead"], columns);
        for item in &store.items.dead {
            assert!(dead.contains(&item.to_string()), "{columns}\n{dead}");
        }
        let queues = narrow(&["queues"], columns);
        for queue in QUEUES {
            let begins = |line: &str| line.split_whitespace().next() == Some(queue);
            assert!(queues.lines().any(begins), "{columns}\n{queues}");
        }
        let page = store.json(&["combine", "counts", "--set-aside"]);
        let aside = page["set_aside"][0]["id"].as_str().unwrap();
        assert!(narrow(&["combine", "counts", "--set-aside"], columns).contains(aside));
    }
    let lines = narrow(&["queues"], "80");
    let longest = lines.lines().map(|line| line.chars().count()).max();
    assert!(longest.unwrap() <= 80, "{lines}");
    // Without a terminal, or without a width, nothing is broken.
    for lines in [
        store.run(&["queues"]).out,
        narrow(&["queues"], "0"),
        narrow(&["queues"], "wide"),
    ] {
        assert_eq!(lines.lines().count(), QUEUES.len() + 1, "{lines}");
    }
}

/// Runs a command on a terminal that says that it has a number of columns.
#[cfg(target_os = "linux")]
fn on_a_terminal(store: &Filled, columns: u16, command: &str) -> String {
    let console = env!("CARGO_BIN_EXE_console");
    let call = format!("stty cols {columns}; {console} {command} --db {}", store.db);
    let mut terminal = std::process::Command::new("script");
    terminal
        .args(["--quiet", "--return", "--command", &call, "/dev/null"])
        .env_remove("COLUMNS")
        .stdin(std::process::Stdio::null());
    let finished = finish(&mut terminal);
    assert_eq!(finished.status, 0, "{finished:?}");
    finished.out.replace("\r\n", "\n").replace(OWNS, "")
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_without_columns_breaks_no_line() {
    let store = Filled::embedded();
    let dead = store.items.dead[0].to_string();
    for command in [
        "queues",
        "list jobs --place dead",
        "list jobs --place done",
        &format!("show jobs {dead}"),
        "stats jobs",
        "schedules jobs",
        "exports events",
        "combine counts --set-aside",
        "ls jobs",
    ] {
        let words: Vec<_> = command.split(' ').collect();
        let without = store.run(&words).out;
        // The words of a line may change: ages grow.
        assert_eq!(
            on_a_terminal(&store, 0, command).lines().count(),
            without.lines().count(),
            "{command}"
        );
        let narrow = on_a_terminal(&store, 60, command);
        assert!(
            narrow.lines().count() >= without.lines().count(),
            "{command}"
        );
    }
    let narrow = on_a_terminal(&store, 60, "list jobs --place dead");
    assert!(narrow.lines().count() > 8, "{narrow}");
}
