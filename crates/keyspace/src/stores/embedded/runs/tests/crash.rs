//! Crashes: whichever unflushed writes reached the disk, a file opens with the state before or after the step that was
//! under way, and with everything in it.
//!
//! Small scripts run on a simulated disk. The power fails at every call, also after a kill or a lack of room at every
//! call before, and every feasible content of the disk is opened, checked, merged and closed.

use conformance::scale;

use super::flawed_file::FileFlaw;
use super::story::Step::{Add, ChangeMeta, Close, Merge};
use super::story::{LAYOUT, Step, Story};
use crate::stores::embedded::tests::disk::Fault;

/// The unit that survives a power loss or does not, in bytes: a quarter of a chunk.
const PIECE_BYTES: usize = 128;

/// Scripts on a new store, or on a backup, which has rows.
const SCRIPTS: [&[Step]; 4] = [
    &[
        Add(&["a", "c"]),
        Add(&["b"]),
        ChangeMeta,
        Add(&["a", "b", "d"]),
        Close,
        Add(&["e"]),
        Close,
    ],
    // A merge in several steps, with a new run between them.
    &[
        Add(&["a", "c", "e"]),
        Add(&["b", "d", "f"]),
        Merge(0, 2),
        Add(&["c"]),
        Merge(0, 2),
        Merge(0, 2),
        Merge(0, 2),
        Merge(0, 2),
        Close,
    ],
    // Merges of newer runs, whose chunks are used again.
    &[
        Add(&["a", "b"]),
        Add(&["a", "c"]),
        Add(&["a", "d", "e"]),
        Merge(0, 2),
        Merge(0, 2),
        Add(&["a"]),
        Merge(0, 3),
        Merge(0, 3),
        Merge(0, 3),
        Add(&["f"]),
        Close,
    ],
    &[Close],
];

/// Runs every script with a power loss at every call. Returns the number of cases, or the first that went wrong.
fn check_scripts(flaw: Option<FileFlaw>) -> Result<usize, String> {
    let mut cases = 0;
    for (index, script) in SCRIPTS.iter().enumerate() {
        for calls in 1.. {
            let mut story = Story::new(flaw);
            story.disk.fail_after(calls, Fault::PowerLoss);
            let ended = story.run(script);
            let checked = story.check_all_left(PIECE_BYTES, true);
            cases += checked.map_err(|error| format!("script {index}, call {calls}: {error}"))?;
            if ended {
                break;
            }
        }
    }
    Ok(cases)
}

#[test]
fn every_content_that_a_power_loss_may_leave_has_the_state_before_or_after() {
    let cases = check_scripts(None).unwrap();
    assert!(cases > 1_000, "{cases}");
}

/// How a script ends early, before the power fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Break {
    /// The process is killed, and the file is opened again.
    Kill,
    /// A call fails, and the process goes on.
    Fails(Fault),
}

/// What a process does after a break, until the power fails.
const AFTER_BREAK: [&[Step]; 3] = [
    &[ChangeMeta, Add(&["g"])],
    &[Add(&["a", "g", "h"]), ChangeMeta],
    &[Merge(0, 2), Add(&["g"]), Merge(0, 2)],
];

/// Runs a script until a break at a call, and then some steps until the power fails at each of their calls. Returns the
/// number of cases, or `None` if the script ends before.
fn check_after_break(
    script: &[Step],
    break_at: usize,
    kind: Break,
    steps: &[Step],
) -> Result<Option<usize>, String> {
    let mut cases = 0;
    for calls in 1.. {
        let mut story = Story::new(None);
        let fault = match kind {
            Break::Kill => Fault::PowerLoss,
            Break::Fails(fault) => fault,
        };
        story.disk.fail_after(break_at, fault);
        let ended = story.run(script);
        if ended && !story.disk.has_failed() {
            return Ok(None);
        }
        // The fault did not concern the call, or the store does not exist.
        if ended || story.durable.is_none() {
            break;
        }
        story.disk.go_on();
        if kind == Break::Kill {
            story.reopen()?;
        }
        story.disk.fail_after(calls, Fault::PowerLoss);
        let went_on = steps.iter().try_for_each(|&step| story.step(step));
        let is_refused =
            matches!(&went_on, Err(error) if error.to_string().contains("earlier flush"));
        assert!(
            is_refused || kind != Break::Fails(Fault::FullAtFlush),
            "{went_on:?}"
        );
        if is_refused {
            // What was to be flushed may be lost, so nothing is built on it.
            let checked = story.check_all_left(LAYOUT.chunk_bytes as usize, false);
            return checked.map(Some);
        }
        assert!(went_on.is_ok() || story.disk.has_failed(), "{went_on:?}");
        cases += story
            .check_all_left(LAYOUT.chunk_bytes as usize, false)
            .map_err(|error| format!("call {calls} of {steps:?}: {error}"))?;
        if went_on.is_ok() {
            break;
        }
    }
    Ok(Some(cases))
}

fn check_breaks(kind: Break) -> Result<usize, String> {
    let mut cases = 0;
    for (index, script) in SCRIPTS.iter().enumerate() {
        'script: for break_at in 1.. {
            // All of them in a long run.
            let first = break_at % AFTER_BREAK.len();
            let count = scale(1, AFTER_BREAK.len());
            for steps in AFTER_BREAK.iter().cycle().skip(first).take(count) {
                let checked = check_after_break(script, break_at, kind, steps);
                let checked = checked.map_err(|error| {
                    format!("script {index}, {kind:?} at call {break_at}, {error}")
                })?;
                match checked {
                    Some(more) => cases += more,
                    None => break 'script,
                }
            }
        }
    }
    Ok(cases)
}

#[test]
fn a_power_loss_after_a_kill_leaves_the_state_before_or_after() {
    let cases = check_breaks(Break::Kill).unwrap();
    assert!(cases > 1_000, "{cases}");
}

#[test]
fn a_power_loss_after_a_step_that_failed_leaves_the_state_before_or_after() {
    for fault in [Fault::FullAtFlush, Fault::ShortWrite] {
        let cases = check_breaks(Break::Fails(fault)).unwrap();
        assert!(cases > 100, "{fault:?}: {cases}");
    }
}

#[test]
fn the_check_finds_a_manifest_flushed_together_with_its_run() {
    let failure = check_scripts(Some(FileFlaw::RunNotFlushed)).unwrap_err();
    let texts = ["it ends too early", "a block does not hold"];
    assert!(texts.iter().any(|text| failure.contains(text)), "{failure}");
}

#[test]
fn the_check_finds_a_manifest_that_is_not_flushed() {
    let failure = check_scripts(Some(FileFlaw::ManifestNotFlushed)).unwrap_err();
    let texts = ["NotAStore", "neither the state before"];
    assert!(texts.iter().any(|text| failure.contains(text)), "{failure}");
}

#[test]
fn the_check_finds_a_manifest_written_over_the_newest() {
    let failure = check_scripts(Some(FileFlaw::OnePlace)).unwrap_err();
    assert!(failure.contains("no valid manifest"), "{failure}");
}

#[test]
fn the_check_finds_a_chunk_used_again_while_the_newest_manifest_names_it() {
    let failure = check_scripts(Some(FileFlaw::FreedTooEarly)).unwrap_err();
    assert!(failure.contains("a block does not hold"), "{failure}");
}
