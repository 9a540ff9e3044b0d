//! Disks that are full or slow: what the program says, and that the next call continues.

use std::process::Command;

use crate::program::{Finished, World, finish, program};

const TEXT: &str = "one two three four five";

/// Prepares a call of the program that cannot make a file larger than a number of blocks.
fn limited(blocks: usize, command: &Command) -> Command {
    let mut limited = Command::new("sh");
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    limited.args(["-c", &script]);
    limited.arg(command.get_program()).args(command.get_args());
    limited
}

fn long_text(words: u32) -> String {
    let words: Vec<_> = (0..words).map(|word| word.to_string()).collect();
    words.join(" ")
}

#[test]
fn a_disk_that_is_full_ends_the_run_and_a_later_one_completes_the_job() {
    let world = World::new();
    world.write("a", TEXT);
    world.run();
    // This is so much that the log is full long before the SQLite file is.
    world.write("long", long_text(200_000));
    // With 512 bytes a block the store's log has no room but for its first 4 MiB, with 1,024 but for 8.
    let full = finish(&mut limited(8_200, &world.run_command()));
    full.assert_refused(1, "remove the cause and open the store again");
    // The log has no room at all.
    let full = finish(&mut limited(4_000, &world.run_command()));
    full.assert_refused(1, "File too large");
    world.run();
    world.assert_exported();
}

/// Runs a shell's script with the folder of a store on a disk of some megabytes, or says why that is not possible here.
/// The script has the program and its arguments as `"$0" "$@"`.
#[cfg(target_os = "linux")]
fn on_a_small_disk(
    world: &World,
    megabytes: u32,
    script: &str,
    command: &Command,
) -> Result<Finished, String> {
    let place = world.place.path().display();
    let mount = format!("mount -t tmpfs -o size={megabytes}m tmpfs {place}");
    let mut small = Command::new("unshare");
    small.args(["--map-root-user", "--mount", "sh", "-c"]);
    let probed = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", &mount])
        .output()
        .map_err(|error| error.to_string())?;
    if !probed.status.success() {
        return Err(String::from_utf8_lossy(&probed.stderr).into_owned());
    }
    small.arg(format!("{mount} && {script}"));
    small.arg(command.get_program()).args(command.get_args());
    Ok(finish(&mut small))
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named_even_if_commits_only_wait_for_room() {
    let mut world = World::new();
    world.write("long", long_text(100_000));
    let out = tempfile::TempDir::new().unwrap();
    for megabytes in [6, 9, 12, 16] {
        world.place = tempfile::TempDir::new().unwrap();
        world.db = format!("embedded:{}", world.place.path().join("store").display());
        let mut command = world.command(&["run", "--time-limit", "2"]);
        command.arg(world.directory.path());
        let file = out.path().join(megabytes.to_string());
        command.arg("--out").arg(file);
        let full = match on_a_small_disk(&world, megabytes, "exec \"$0\" \"$@\"", &command) {
            Ok(full) => full,
            Err(reason) => {
                let name = "a_full_disk_is_named_even_if_commits_only_wait_for_room";
                return conformance::stores::skip(name, &reason);
            }
        };
        full.assert_refused(1, "error: ");
        let error = full.stderr.lines().find(|line| line.starts_with("error: "));
        // The system's error, or that of the store once it stops waiting for room.
        let reasons = ["No space left on device", "no storage space"];
        let is_named = reasons.iter().any(|reason| error.unwrap().contains(reason));
        assert!(is_named, "{megabytes}: {full:?}");
        for wrong in ["gave no answer", "panicked"] {
            assert!(!full.stderr.contains(wrong), "{megabytes}: {full:?}");
        }
    }
}

/// Stops the program once its disk is full, and ends as it does. A shell starts what runs beside it without Ctrl-C.
#[cfg(target_os = "linux")]
const STOP_ONCE_FULL: &str = r#"{
    folder="$(dirname "${4#embedded:}")"
    "$0" "$@" &
    while kill -0 $! && [ "$(df --output=avail "$folder" | tail -n 1)" -gt 0 ]; do :; done
    kill -TERM $!
    wait $!
}"#;

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named_even_if_the_program_is_stopped_while_commits_wait_for_room() {
    let world = World::new();
    world.write("long", long_text(100_000));
    let out = tempfile::TempDir::new().unwrap();
    let mut command = Command::new(program());
    let directory = world.directory.path().to_str().unwrap();
    command.args(["run", directory, "--db", &world.db, "--out"]);
    command.arg(out.path().join("out"));
    let full = match on_a_small_disk(&world, 6, STOP_ONCE_FULL, &command) {
        Ok(full) => full,
        Err(reason) => {
            let name =
                "a_full_disk_is_named_even_if_the_program_is_stopped_while_commits_wait_for_room";
            return conformance::stores::skip(name, &reason);
        }
    };
    full.assert_refused(1, "error: ");
    let reasons = ["No space left on device", "no storage space"];
    let is_named = reasons.iter().any(|reason| full.stderr.contains(reason));
    assert!(is_named, "{full:?}");
    assert!(!full.stderr.contains("did not end the session"), "{full:?}");
}

#[test]
fn a_sqlite_file_that_cannot_grow_ends_the_run() {
    let mut world = World::new();
    world.db = "memory:".to_owned();
    world.write("long", long_text(5_000));
    let full = finish(&mut limited(100, &world.run_command()));
    full.assert_refused(1, "cannot write");
    full.assert_refused(1, world.out().to_str().unwrap());
}
