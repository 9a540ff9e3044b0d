//! Crashes: whichever unflushed changes reached the disk, all flushed batches are recovered.

use std::io;

use conformance::scale;
use rand::Rng;

use super::super::frame::BLOCK_BYTES;
use super::Step::{Append, Clock, Flush, Free, Prepare, RollOver};
use super::flaw::Flaw;
use super::{Log, Model, Step, check};
use crate::stores::embedded::tests::disk::{Disk, Fault};
use crate::stores::embedded::tests::{each_choice, seeds};

/// The steps on a small log. The power fails at every one of their calls.
const SCRIPTS: [&[Step]; 6] = [
    // One flush for each batch, over several segments.
    &[
        Append(1),
        Flush,
        Append(2),
        Flush,
        Prepare,
        Append(1),
        Flush,
        Clock,
        Flush,
        Append(3),
        Flush,
        Append(1),
        Flush,
    ],
    // Several batches per flush, any of which the disk may lose.
    &[Append(1), Append(2), Append(1), Append(1), Append(1)],
    &[Append(1), Flush, Append(1), Append(1), Flush, Append(3)],
    &[
        Prepare,
        Append(1),
        RollOver,
        Prepare,
        Append(1),
        Append(1),
        RollOver,
        Append(1),
        Clock,
    ],
    // Slots that are reused.
    &[
        Append(3),
        Flush,
        Free,
        Append(1),
        Append(2),
        Free,
        Prepare,
        Append(1),
        Flush,
        Append(1),
        Append(1),
        Append(1),
        Append(1),
    ],
    &[
        Append(1),
        Append(1),
        Free,
        Prepare,
        Append(1),
        RollOver,
        Append(1),
        Free,
        Free,
        Append(2),
        Append(2),
        Flush,
        Append(1),
    ],
];

/// Runs a script until the power fails at the given call. Returns true if the script ended before.
fn run(disk: &Disk, model: &mut Model, script: &[Step], calls: usize) -> bool {
    disk.fail_after(calls, Fault::PowerLoss);
    let mut run = || {
        let mut log = Log::create(disk, model)?;
        script.iter().try_for_each(|&step| log.step(model, step))
    };
    let ended: io::Result<()> = run();
    assert!(ended.is_ok() || disk.has_failed(), "{ended:?}");
    ended.is_ok()
}

/// Checks all contents that a disk may have, block by block. Returns the number of cases, and the first
/// that went wrong.
fn check_all_left(model: &Model, disk: &Disk) -> (usize, Option<String>) {
    let mut failure = None;
    let cases = each_choice(|choose| {
        let image = disk.image_left(BLOCK_BYTES, choose);
        if failure.is_none() && model.exists {
            failure = check(model, image).err();
        }
    });
    (cases, failure)
}

/// Runs every script with a power loss at every call. Returns the number of cases, or the first that went
/// wrong.
fn check_scripts(flaw: Option<Flaw>) -> Result<usize, String> {
    let mut cases = 0;
    for (index, script) in SCRIPTS.iter().enumerate() {
        for calls in 1.. {
            let disk = Disk::new(Vec::new());
            let mut model = Model::new(0, flaw);
            let ended = run(&disk, &mut model, script, calls);
            let (more, failure) = check_all_left(&model, &disk);
            if let Some(failure) = failure {
                return Err(format!("script {index}, call {calls}: {failure}"));
            }
            cases += more;
            if ended {
                break;
            }
        }
    }
    Ok(cases)
}

#[test]
fn every_set_of_blocks_that_a_crash_may_leave_is_recovered() {
    let cases = check_scripts(None).unwrap();
    assert!(cases > 4_000, "{cases}");
}

#[test]
fn the_check_finds_frames_that_say_that_all_before_them_was_flushed() {
    let failure = check_scripts(Some(Flaw::AllFlushed)).unwrap_err();
    assert!(failure.contains("had been flushed"), "{failure}");
}

#[test]
fn the_check_finds_a_seal_written_before_the_spare_is_on_disk() {
    let failure = check_scripts(Some(Flaw::SpareNotFlushed)).unwrap_err();
    assert!(failure.contains("is missing"), "{failure}");
}

#[test]
fn the_check_finds_a_salt_used_twice() {
    let failure = check_scripts(Some(Flaw::SaltReused)).unwrap_err();
    assert!(failure.contains("refused"), "{failure}");
}

/// A log that is opened again and again, on the remaining content of its disk after random steps.
fn live(seed: u64) -> Result<(), String> {
    const OPENINGS: usize = 6;
    let mut model = Model::new(seed, None);
    let mut disk = Disk::new(Vec::new());
    drop(Log::create(&disk, &mut model).unwrap());
    for _ in 0..OPENINGS {
        let recovered = model.recover(&disk)?;
        let faults = [
            Fault::PowerLoss,
            Fault::Error,
            Fault::Full,
            Fault::ShortWrite,
        ];
        let fault = faults[model.rng.random_range(0..faults.len())];
        disk.fail_after(model.rng.random_range(1..60), fault);
        let run = || {
            let mut log = Log::open(&disk, &mut model, recovered)?;
            loop {
                let step = random_step(&mut model);
                log.step(&mut model, step)?;
            }
        };
        let ended: io::Result<()> = run();
        assert!(ended.is_err() && disk.has_failed());
        // If only the process ends, the disk keeps its cache.
        disk.fail_after(usize::MAX, Fault::Error);
        if model.rng.random_range(0..4) > 0 {
            disk = Disk::with(disk.image_after_power_loss(&mut model.rng));
        }
    }
    check(&model, disk.image())
}

fn random_step(model: &mut Model) -> Step {
    match model.rng.random_range(0..12) {
        0..6 => Append(model.rng.random_range(1..=3)),
        6..9 => Flush,
        9 => Prepare,
        10 => {
            if model.rng.random() {
                RollOver
            } else {
                Clock
            }
        }
        _ => Free,
    }
}

#[test]
fn a_log_that_is_opened_again_and_again_keeps_what_was_flushed() {
    for seed in seeds(scale(2_000, 50_000)) {
        let lived = live(seed);
        assert_eq!(lived, Ok(()), "to repeat: TEST_SEED={seed}");
    }
}
