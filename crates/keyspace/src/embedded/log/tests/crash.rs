//! Crashes: whatever reached the disk of what was not flushed, all that was flushed is recovered.

use std::sync::Arc;

use conformance::scale;
use rand::Rng;

use super::super::super::tests::disk::{Disk, Fault, Image};
use super::super::super::tests::seeds;
use super::super::frame::BLOCK_BYTES;
use super::Step::{Append, Clock, Flush, Free, Prepare, RollOver};
use super::{Log, Model, Step, check, each_choice};
use crate::embedded::files::Files;

/// What is done to a small log before the power goes, at every one of its calls.
pub(super) const SCRIPTS: [&[Step]; 6] = [
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
    // Batches of which the disk may take any.
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
    // Slots that are used again.
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

/// Runs a script until the power goes with the given call. Returns true if it came to its end before.
pub(super) fn run(
    files: Arc<dyn Files>,
    disk: &Disk,
    model: &mut Model,
    script: &[Step],
    calls: usize,
) -> bool {
    disk.fail_after(calls, Fault::PowerLoss);
    let run = || {
        let mut log = Log::create(files, model)?;
        script.iter().try_for_each(|&step| log.step(model, step))
    };
    let ended: std::io::Result<()> = run();
    assert!(ended.is_ok() || disk.has_failed(), "{ended:?}");
    ended.is_ok()
}

/// Checks all that may be left of a disk, block by block. Returns how many cases there were, and the
/// first that went wrong.
pub(super) fn check_all_left(model: &Model, disk: &Disk) -> (usize, Option<String>) {
    let mut failure = None;
    let cases = each_choice(|choose| {
        let image = disk.image_left(BLOCK_BYTES, choose);
        if failure.is_none() && (!model.sent.is_empty() || holds_log(&image)) {
            failure = check(model, image).err();
        }
    });
    (cases, failure)
}

/// Returns false if the log was not yet there for certain: the store's file does not name it then.
fn holds_log(image: &Image) -> bool {
    let mut headers = image.slots.values().map(|bytes| bytes.first());
    headers.any(|first| first.is_some_and(|&byte| byte != 0))
}

#[test]
fn every_set_of_blocks_that_a_crash_may_leave_is_recovered() {
    let mut cases = 0;
    for (index, script) in SCRIPTS.iter().enumerate() {
        for calls in 1.. {
            let disk = Disk::new(Vec::new());
            let mut model = Model::new(0);
            let files = Arc::new(disk.clone());
            let ended = run(files, &disk, &mut model, script, calls);
            let (more, failure) = check_all_left(&model, &disk);
            cases += more;
            assert_eq!(failure, None, "script {index}, call {calls}");
            if ended {
                break;
            }
        }
    }
    println!("{cases} cases");
    assert!(cases > 10_000, "{cases}");
}

/// One log that is opened again and again, on what is left of its disk after random steps.
pub(super) fn live(seed: u64, flawed: impl Fn(Disk) -> Arc<dyn Files>) -> Result<(), String> {
    const OPENINGS: usize = 6;
    let mut model = Model::new(seed);
    let disk = Disk::new(Vec::new());
    drop(Log::create(flawed(disk.clone()), &mut model).unwrap());
    let mut image = disk.image();
    for _ in 0..OPENINGS {
        let disk = Disk::with(image);
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
            let mut log = Log::open(flawed(disk.clone()), &mut model, recovered)?;
            loop {
                let step = random_step(&mut model);
                log.step(&mut model, step)?;
            }
        };
        let ended: std::io::Result<()> = run();
        assert!(ended.is_err() && disk.has_failed());
        image = match model.rng.random_range(0..4) {
            0 => disk.image(),
            _ => disk.image_after_power_loss(&mut model.rng),
        };
    }
    check(&model, image)
}

fn random_step(model: &mut Model) -> Step {
    match model.rng.random_range(0..12) {
        0..6 => Append(model.rng.random_range(1..=3)),
        6..9 => Flush,
        9 => Prepare,
        10 => match model.rng.random() {
            true => RollOver,
            false => Clock,
        },
        _ => Free,
    }
}

#[test]
fn a_log_that_is_opened_again_and_again_keeps_what_was_flushed() {
    for seed in seeds(scale(2_000, 50_000)) {
        let lived = live(seed, |disk| Arc::new(disk));
        assert_eq!(lived, Ok(()), "to repeat: TEST_SEED={seed}");
    }
}
