//! Damage of what was flushed: the log is recovered whole or refused.

use super::super::super::files::{Files, Slot};
use super::super::super::tests::disk::{Disk, Image};
use super::super::frame::BLOCK_BYTES;
use super::Step::{Append, Clock, Flush, Free};
use super::{Log, Model, Step, read, slots_of};
use crate::embedded::log::recover::Start;
use std::sync::Arc;

const SECTOR_BYTES: usize = 512;

/// Makes a log of three segments and a spare, one of them in a slot that was used before, with a frame
/// in the end that says that all batches were flushed. Returns also what the disk held before the
/// slots were used again.
fn log() -> (Model, Image, Image) {
    let disk = Disk::new(Vec::new());
    let mut model = Model::new(0);
    let mut log = Log::create(Arc::new(disk.clone()), &mut model).unwrap();
    let mut run = |steps: &[Step]| {
        for &step in steps {
            log.step(&mut model, step).unwrap();
        }
    };
    run(&[Append(1), Flush, Append(2), Flush, Free]);
    run(&[Append(1), Flush, Append(1), Flush, Append(1), Flush]);
    let stale = disk.image();
    run(&[Append(2), Flush, Append(1), Flush, Append(1), Flush]);
    run(&[Append(1), Flush, Clock, Flush, Step::Prepare]);
    let image = disk.image();
    assert_eq!(read(&disk, model.start).unwrap().1.segments.len(), 3);
    (model, image, stale)
}

/// Asserts that a damaged log is recovered whole or refused. Returns true if it was refused.
#[track_caller]
fn check(model: &Model, image: &Image, what: &str) -> bool {
    let disk = Disk::with(image.clone());
    let expected = model
        .sent
        .iter()
        .filter(|sent| sent.segment >= model.start.segment);
    match read(&disk, model.start) {
        Ok((found, _)) => {
            assert!(found.into_iter().eq(expected.map(super::content)), "{what}");
            false
        }
        Err(_) => true,
    }
}

/// Calls `damage` with each slot and each offset in it that is a multiple of `step`.
fn at_each(image: &Image, step: usize, mut damage: impl FnMut(&mut Image, Slot, usize)) {
    let mut copy = image.clone();
    for (&slot, bytes) in slots_of(image) {
        for offset in (0..bytes.len()).step_by(step) {
            damage(&mut copy, slot, offset);
            copy.slots.insert(slot, bytes.clone());
        }
    }
}

#[test]
fn every_flipped_byte_is_refused_or_makes_no_difference() {
    let (model, image, _) = log();
    let mut refused = 0;
    at_each(&image, 1, |image, slot, offset| {
        image.slots.get_mut(&slot).unwrap()[offset] ^= 1 << (offset % 8);
        refused += usize::from(check(&model, image, &format!("{slot:?} {offset}")));
    });
    println!("{refused} refused");
    assert!(refused > 1_000, "{refused}");
}

#[test]
fn every_block_and_sector_that_is_lost_or_is_of_an_earlier_life_is_refused_or_makes_no_difference()
{
    let (model, image, stale) = log();
    let mut refused = 0;
    for bytes in [SECTOR_BYTES, BLOCK_BYTES, 2 * BLOCK_BYTES] {
        for stale in [None, Some(&stale)] {
            at_each(&image, bytes, |image, slot, offset| {
                let file = image.slots.get_mut(&slot).unwrap();
                let end = file.len().min(offset + bytes);
                let old = stale.and_then(|stale| stale.slots.get(&slot)?.get(offset..end));
                match old {
                    Some(old) => file[offset..end].copy_from_slice(old),
                    None => file[offset..end].fill(0),
                }
                refused += usize::from(check(&model, image, &format!("{slot:?} {offset}")));
            });
        }
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn every_block_that_is_found_in_the_place_of_another_is_refused_or_makes_no_difference() {
    let (model, image, _) = log();
    let mut refused = 0;
    for (from, bytes) in slots_of(&image) {
        for block in bytes.chunks(BLOCK_BYTES) {
            at_each(&image, BLOCK_BYTES, |image, slot, offset| {
                let file = image.slots.get_mut(&slot).unwrap();
                file[offset..offset + BLOCK_BYTES].copy_from_slice(block);
                let what = format!("{from:?} in {slot:?} {offset}");
                refused += usize::from(check(&model, image, &what));
            });
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn every_slot_that_is_lost_or_is_of_an_earlier_life_is_refused_unless_it_holds_nothing() {
    let (model, image, stale) = log();
    let disk = Disk::with(image.clone());
    let recovered = read(&disk, model.start).unwrap().1;
    for &slot in image.slots.keys() {
        let is_needed = recovered.segments.values().any(|&used| used == slot);
        let mut lost = image.clone();
        lost.slots.remove(&slot);
        assert_eq!(check(&model, &lost, "lost"), is_needed, "{slot:?}");
        lost.slots.insert(slot, Vec::new());
        assert_eq!(check(&model, &lost, "empty"), is_needed, "{slot:?}");
        if let Some(old) = stale.slots.get(&slot)
            && *old != image.slots[&slot]
        {
            lost.slots.insert(slot, old.clone());
            assert_eq!(check(&model, &lost, "stale"), is_needed, "{slot:?}");
        }
    }
}

#[test]
fn a_cut_of_the_last_segment_loses_a_suffix_and_any_other_cut_is_refused() {
    let (model, image, _) = log();
    let recovered = read(&Disk::with(image.clone()), model.start).unwrap().1;
    let last = recovered.segments[&recovered.end.segment];
    let whole: Vec<_> = model
        .sent
        .iter()
        .filter(|sent| sent.segment >= model.start.segment)
        .map(super::content)
        .collect();
    let mut lost = 0;
    at_each(&image, 1, |image, slot, offset| {
        image.slots.get_mut(&slot).unwrap().truncate(offset);
        if slot != last {
            check(&model, image, &format!("{slot:?} {offset}"));
        } else if let Ok((found, _)) = read(&Disk::with(image.clone()), model.start) {
            assert!(whole.starts_with(&found), "{offset}");
            lost = lost.max(whole.len() - found.len());
        }
    });
    assert_eq!(
        lost,
        model
            .sent
            .iter()
            .filter(|sent| sent.segment == recovered.end.segment)
            .count()
    );
}

#[test]
fn random_bytes_in_a_slot_make_recovery_neither_panic_nor_invent_batches() {
    use rand::{Rng, RngCore};
    let (mut model, image, _) = log();
    for _ in 0..2_000 {
        let mut image = image.clone();
        let slots: Vec<_> = image.slots.keys().copied().collect();
        let slot = slots[model.rng.random_range(0..slots.len())];
        let file = image.slots.get_mut(&slot).unwrap();
        let from = model.rng.random_range(0..file.len());
        let to = model.rng.random_range(from..file.len());
        model.rng.fill_bytes(&mut file[from..to]);
        let disk = Disk::with(image);
        if let Ok((found, _)) = read(&disk, model.start) {
            assert!(
                found
                    .iter()
                    .all(|batch| model.sent.iter().any(|sent| super::content(sent) == *batch))
            );
        }
        assert!(disk.list().is_ok());
        let other = Start {
            segment: 99,
            frame: 1,
        };
        assert!(read(&disk, other).is_err());
    }
}
