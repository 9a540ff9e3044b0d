//! Tests of the writer and the slots without crashes.

use std::sync::Arc;

use super::super::append_error::AppendError;
use super::super::effect::Effect;
use super::super::files::{Files, Folder, Slot};
use super::super::frame::{BLOCK_BYTES, Record};
use super::super::recover::{Recovered, Start};
use super::super::segment::Sizes;
use super::super::slots::Slots;
use super::super::writer::Writer;
use super::Step::{Append, Clock, Flush, Free, Prepare};
use super::{ID, Log, Model, read};
use crate::stores::embedded::tests::disk::{Disk, Fault, Image};

fn create() -> (Disk, Model, Log) {
    let disk = Disk::new(Vec::new());
    let mut model = Model::new(0, None);
    let log = Log::create(&disk, &mut model).unwrap();
    (disk, model, log)
}

fn blocks(image: &Image, slot: Slot) -> usize {
    image.slots[&slot].len() / BLOCK_BYTES
}

#[test]
fn a_segment_grows_in_steps_and_has_room_for_its_seal() {
    let (disk, mut model, mut log) = create();
    assert_eq!(blocks(&disk.image(), Slot(1)), 3);
    for (step, expected) in [(Append(1), 3), (Append(1), 5), (Append(1), 5)] {
        log.step(&mut model, step).unwrap();
        assert_eq!(blocks(&disk.image(), Slot(1)), expected);
    }
    log.step(&mut model, Append(1)).unwrap();
    assert_eq!(blocks(&disk.image(), Slot(1)), 6);
    assert_eq!(blocks(&disk.image(), Slot(2)), 3);
    assert_eq!(log.writer.segment(), 2);
}

#[test]
fn without_a_spare_a_full_log_refuses_a_frame_and_takes_it_later() {
    let (disk, mut model, mut log) = create();
    log.step(&mut model, Append(3)).unwrap();
    let before = disk.image();
    for _ in 0..2 {
        let refused = log.writer.append(&mut Record::clock(9)).unwrap_err();
        assert!(matches!(refused, AppendError::NoSpare));
        let refused = log.writer.roll_over().unwrap_err();
        assert!(matches!(refused, AppendError::NoSpare));
        assert!(disk.image() == before);
    }
    log.step(&mut model, Prepare).unwrap();
    log.writer.append(&mut Record::clock(9)).unwrap();
    let (_, recovered) = read(&disk, model.start).unwrap();
    assert_eq!(recovered.end.newest_version, Some(9));
}

#[test]
fn a_frame_that_fits_into_no_segment_is_refused_and_the_log_goes_on() {
    let (disk, mut model, mut log) = create();
    let mut record = Record::batch(1);
    record.push(Effect::Clear {
        key: &[0; 3 * BLOCK_BYTES],
    });
    let before = disk.image();
    let refused = log.writer.append(&mut record).unwrap_err();
    assert!(matches!(refused, AppendError::TooLarge { .. }));
    assert!(disk.image() == before);
    log.step(&mut model, Append(3)).unwrap();
}

#[test]
fn a_writer_that_has_failed_writes_no_more() {
    for fault in [Fault::Error, Fault::ShortWrite] {
        // A write fails, then a flush.
        for calls in [1, 2] {
            let (disk, _, mut log) = create();
            disk.fail_after(calls, fault);
            let appended = log.writer.append(&mut Record::clock(1));
            let flushed = log.writer.flush();
            assert!(appended.is_err() || flushed.is_err(), "{fault:?} {calls}");
            assert_has_failed(&disk, &mut log);
        }
    }
}

/// Asserts that a writer refuses all calls, although the disk works again.
fn assert_has_failed(disk: &Disk, log: &mut Log) {
    disk.fail_after(usize::MAX, Fault::Error);
    let before = disk.image();
    assert!(log.writer.append(&mut Record::clock(2)).is_err());
    assert!(log.writer.flush().is_err());
    assert!(disk.image() == before);
}

#[test]
fn frames_of_which_a_flush_failed_are_never_taken_for_flushed() {
    let (disk, mut model, mut log) = create();
    log.step(&mut model, Append(1)).unwrap();
    // The length and the zeros come before the flush.
    disk.fail_after(3, Fault::FullAtFlush);
    let refused = log.writer.append(&mut Record::clock(9)).unwrap_err();
    assert!(matches!(refused, AppendError::Io(_)), "{refused:?}");
    assert_has_failed(&disk, &mut log);
}

#[test]
fn a_spare_of_which_a_flush_failed_is_not_prepared_again() {
    // The slot is created, its length is set, and zeros and a header are written. Then it and the folder are
    // flushed.
    for calls in [5, 6] {
        let (disk, mut model, mut log) = create();
        disk.fail_after(calls, Fault::FullAtFlush);
        let salt = model.salt();
        let refused = log.slots.prepare(salt).unwrap_err();
        assert!(
            matches!(refused, AppendError::Io(_)),
            "{calls}: {refused:?}"
        );
    }
}

#[test]
fn a_full_disk_is_refused_again_until_there_is_room_and_then_has_room_for_the_frame() {
    let (disk, mut model, mut log) = create();
    log.step(&mut model, Append(1)).unwrap();
    let before = disk.image();
    disk.fail_after(1, Fault::Full);
    for _ in 0..2 {
        let refused = log.writer.append(&mut Record::clock(8)).unwrap_err();
        assert!(matches!(refused, AppendError::NoSpace(_)), "{refused:?}");
        assert!(disk.image() == before, "the file has its length back");
    }
    disk.go_on();
    log.writer.append(&mut Record::clock(8)).unwrap();
}

#[test]
fn a_spare_on_a_full_disk_is_refused_again_until_there_is_room_for_all_of_it() {
    // The disk is full before the slot is created, or after that.
    for calls in [1, 2] {
        let (disk, mut model, mut log) = create();
        for _ in 0..2 {
            log.step(&mut model, Append(1)).unwrap();
        }
        disk.fail_after(calls, Fault::Full);
        for _ in 0..2 {
            let salt = model.salt();
            let refused = log.slots.prepare(salt).unwrap_err();
            assert!(matches!(refused, AppendError::NoSpace(_)), "{refused:?}");
        }
        disk.go_on();
        log.step(&mut model, Prepare).unwrap();
        // What was prepared is there, even if the disk is full again.
        disk.fail_after(1, Fault::Full);
        log.writer.roll_over().unwrap();
        log.step(&mut model, Append(1)).unwrap();
    }
}

/// A process that was killed, or a growth that failed, leaves a file that is longer than what was written to it.
#[test]
fn the_hole_at_the_end_of_a_file_that_is_used_again_is_not_taken_for_room() {
    let (disk, mut model, mut log) = create();
    for step in [Append(3), Append(1), Free] {
        log.step(&mut model, step).unwrap();
    }
    let slot = disk.open(Slot(1)).unwrap().unwrap();
    let filled_bytes = slot.len().unwrap();
    slot.set_len(filled_bytes + BLOCK_BYTES as u64).unwrap();
    log.step(&mut model, Prepare).unwrap();
    assert_eq!(slot.len().unwrap(), filled_bytes);

    let (disk, mut model, mut log) = create();
    log.step(&mut model, Append(3)).unwrap();
    disk.create(Slot(2))
        .unwrap()
        .set_len(3 * BLOCK_BYTES as u64)
        .unwrap();
    drop(log);
    let (_, recovered) = read(&disk, model.start).unwrap();
    disk.fail_after(1, Fault::Full);
    let opened = Log::open(&disk, &mut model, recovered);
    assert!(opened.is_err(), "the file of a spare has no room");
}

#[test]
fn no_frame_is_written_over_before_its_segment_is_free() {
    let (disk, mut model, mut log) = create();
    let mut before = disk.image();
    for step in [
        Append(1),
        Flush,
        Clock,
        Append(2),
        Append(1),
        Flush,
        Append(3),
        Append(1),
    ] {
        log.step(&mut model, step).unwrap();
        let after = disk.image();
        for (slot, old) in &before.slots {
            // The marks in the header are written again.
            let mut kept = old
                .iter()
                .zip(&after.slots[slot])
                .skip(BLOCK_BYTES)
                .filter(|&(&old, _)| old != 0);
            assert!(kept.all(|(old, new)| old == new), "{slot:?}");
        }
        before = after;
    }
}

#[test]
fn one_free_slot_is_used_again_and_others_are_removed() {
    let (disk, mut model, mut log) = create();
    for _ in 0..4 {
        log.step(&mut model, Append(3)).unwrap();
    }
    assert_eq!(disk.list().unwrap(), [1, 2, 3, 4].map(Slot));
    log.step(&mut model, Free).unwrap();
    assert_eq!(disk.list().unwrap(), [1, 5].map(Slot));
    for _ in 0..2 {
        log.step(&mut model, Append(3)).unwrap();
    }
    assert_eq!(disk.list().unwrap(), [1, 5].map(Slot));
    let (found, recovered) = read(&disk, model.start).unwrap();
    assert_eq!(found, model.expected());
    assert_eq!(recovered.segments, [(5, Slot(5)), (6, Slot(1))].into());
    log.slots.remove_all().unwrap();
    assert_eq!(disk.list().unwrap(), []);
}

#[test]
fn a_spare_that_could_not_be_prepared_is_prepared_later() {
    for fault in [Fault::Error, Fault::Full, Fault::ShortWrite] {
        for calls in 1..6 {
            let (disk, mut model, mut log) = create();
            disk.fail_after(calls, fault);
            let prepared = log.step(&mut model, Prepare);
            // A full disk can still be flushed.
            assert!(prepared.is_err() || fault != Fault::Error);
            disk.fail_after(usize::MAX, Fault::Error);
            log.step(&mut model, Prepare).unwrap();
            for _ in 0..2 {
                log.step(&mut model, Append(3)).unwrap();
            }
            let (found, _) = read(&disk, model.start).unwrap();
            assert_eq!(found, model.expected(), "{fault:?} {calls}");
        }
    }
}

#[test]
fn a_log_in_a_folder_has_the_sizes_that_are_documented_and_is_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let slots = Folder::beside(&folder.path().join("store")).unwrap();
    let files: Arc<dyn Files> = Arc::new(slots);
    let new = Recovered::nothing(files.list().unwrap());
    let end = new.end;
    let mut slots = Slots::start(files.clone(), ID, Sizes::default(), new).unwrap();
    let spare = slots.prepare(1).unwrap();
    let mut writer = Writer::start(Sizes::default(), spare, &end);
    let mut record = Record::batch(5);
    record.push(Effect::Clear { key: b"key" });
    writer.append(&mut record).unwrap();
    writer.flush().unwrap();

    let bytes = std::fs::read(folder.path().join("store.log.0000000000000001")).unwrap();
    assert_eq!(bytes.len(), BLOCK_BYTES + (4 << 20));
    assert_eq!(bytes[2 * BLOCK_BYTES + 48..][..5], *b"\x02\x03key");
    drop(writer);
    let start = Start {
        segment: 1,
        frame: 1,
    };
    let (found, recovered) = read(&*files, start).unwrap();
    assert_eq!(found, [(5, b"\x02\x03key".to_vec())]);
    assert_eq!(recovered.end.offset, 3 * BLOCK_BYTES as u64);
}
