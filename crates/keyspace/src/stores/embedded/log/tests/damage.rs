//! Damage to flushed data: the log is recovered completely or refused.

use rand::{Rng, RngCore};

use super::super::files::Slot;
use super::super::frame::{BLOCK_BYTES, Content, Frame};
use super::super::recover::{LogError, leftovers};
use super::super::segment::{FRAMES_START, Header, Mark};
use super::Step::{Append, Clock, Flush, Free, Prepare};
use super::flaw::Flaw;
use super::{ID, Log, Model, Step, read};
use crate::stores::embedded::tests::disk::{Disk, Image};

const SECTOR_BYTES: usize = 512;

/// The log to be damaged.
struct Case {
    model: Model,
    image: Image,
    /// The content of the disk before slots were reused.
    stale: Image,
}

impl Case {
    /// Returns a log of three segments and a spare, some of them in reused slots. Two frames at the end
    /// record that all batches were flushed.
    fn new(flaw: Option<Flaw>) -> Self {
        let disk = Disk::new(Vec::new());
        let mut model = Model::new(0, flaw);
        let mut log = Log::create(&disk, &mut model).unwrap();
        let mut run = |steps: &[Step]| {
            for &step in steps {
                log.step(&mut model, step).unwrap();
            }
        };
        run(&[Append(1), Flush, Append(2), Flush, Free]);
        run(&[Append(1), Flush, Append(1), Flush, Append(1), Flush]);
        let stale = disk.image();
        run(&[Append(2), Flush, Free, Append(1), Flush]);
        run(&[
            Append(2),
            Flush,
            Append(1),
            Flush,
            Append(1),
            Append(1),
            Flush,
        ]);
        run(&[Append(1), Flush, Clock, Flush, Clock, Flush, Prepare]);
        let case = Self {
            image: disk.image(),
            model,
            stale,
        };
        let recovered = read(&disk, case.model.start).unwrap().1;
        assert_eq!(recovered.segments.len(), 3);
        assert!(recovered.next.is_some());
        case
    }

    /// Returns a log of one segment, which has grown since its file was created.
    fn grown(flaw: Option<Flaw>) -> Self {
        let disk = Disk::new(Vec::new());
        let mut model = Model::new(0, flaw);
        let mut log = Log::create(&disk, &mut model).unwrap();
        for step in [Append(1), Flush, Append(1), Flush, Append(1), Flush] {
            log.step(&mut model, step).unwrap();
        }
        Self {
            image: disk.image(),
            model,
            stale: Image::default(),
        }
    }

    /// Checks that a damaged log is recovered completely or refused. Returns true if it was refused.
    fn check(&self, image: &Image) -> Result<bool, String> {
        match read(&Disk::with(image.clone()), self.model.start) {
            Ok((found, _)) if found == self.model.expected() => Ok(false),
            Ok((found, _)) => Err(format!("recovered {} batches", found.len())),
            Err(_) => Ok(true),
        }
    }

    /// Flips a bit of each byte. Returns how many times the log was refused.
    fn flip_each_byte(&self) -> Result<usize, String> {
        let mut refused = Ok(0);
        at_each(&self.image, 1, |image, slot, offset| {
            if let Ok(count) = &mut refused {
                image.slots.get_mut(&slot).unwrap()[offset] ^= 1 << (offset % 8);
                match self.check(image) {
                    Ok(is_refused) => *count += usize::from(is_refused),
                    Err(error) => refused = Err(format!("{slot:?} byte {offset}: {error}")),
                }
            }
        });
        refused
    }
}

impl Case {
    /// Cuts each file at each byte. Returns how many times the log was refused.
    fn cut_at_each_byte(&self) -> Result<usize, String> {
        let mut refused = Ok(0);
        at_each(&self.image, 1, |image, slot, offset| {
            if let Ok(count) = &mut refused {
                image.slots.get_mut(&slot).unwrap().truncate(offset);
                match self.check(image) {
                    Ok(is_refused) => *count += usize::from(is_refused),
                    Err(error) => refused = Err(format!("{slot:?} cut to {offset}: {error}")),
                }
            }
        });
        refused
    }
}

/// Calls `damage` with each slot and each offset in it that is a multiple of `step`.
fn at_each(image: &Image, step: usize, mut damage: impl FnMut(&mut Image, Slot, usize)) {
    let mut copy = image.clone();
    for (&slot, bytes) in &image.slots {
        for offset in (0..bytes.len()).step_by(step) {
            damage(&mut copy, slot, offset);
            copy.slots.insert(slot, bytes.clone());
        }
    }
}

#[test]
fn every_flipped_byte_is_refused_or_makes_no_difference() {
    let refused = Case::new(None).flip_each_byte().unwrap();
    assert!(refused > 1_000, "{refused}");
}

#[test]
fn the_check_finds_frames_that_say_that_nothing_was_flushed() {
    let failure = Case::new(Some(Flaw::NoneFlushed)).flip_each_byte();
    assert!(failure.unwrap_err().contains("recovered"));
}

#[test]
fn every_block_and_sector_that_is_lost_or_is_of_an_earlier_life_is_refused_or_makes_no_difference()
{
    let case = Case::new(None);
    let mut refused = 0;
    for bytes in [SECTOR_BYTES, BLOCK_BYTES, 2 * BLOCK_BYTES] {
        for stale in [None, Some(&case.stale)] {
            at_each(&case.image, bytes, |image, slot, offset| {
                let file = image.slots.get_mut(&slot).unwrap();
                let end = file.len().min(offset + bytes);
                let old = stale.and_then(|stale| stale.slots.get(&slot)?.get(offset..end));
                match old {
                    Some(old) => file[offset..end].copy_from_slice(old),
                    None => file[offset..end].fill(0),
                }
                refused += usize::from(case.check(image).unwrap());
            });
        }
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn every_block_that_is_found_in_the_place_of_another_is_refused_or_makes_no_difference() {
    let case = Case::new(None);
    let mut refused = 0;
    for bytes in case.image.slots.values() {
        for block in bytes.chunks(BLOCK_BYTES) {
            at_each(&case.image, BLOCK_BYTES, |image, slot, offset| {
                let file = image.slots.get_mut(&slot).unwrap();
                file[offset..offset + BLOCK_BYTES].copy_from_slice(block);
                refused += usize::from(case.check(image).unwrap());
            });
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn every_slot_that_is_lost_or_is_of_an_earlier_life_is_refused_if_the_log_needs_it() {
    let case = Case::new(None);
    let recovered = read(&Disk::with(case.image.clone()), case.model.start);
    let segments = recovered.unwrap().1.segments;
    let mut stale = 0;
    for (slot, bytes) in &case.image.slots {
        let is_needed = segments.values().any(|needed| needed == slot);
        let mut lost = case.image.clone();
        lost.slots.remove(slot);
        assert_eq!(case.check(&lost), Ok(is_needed), "{slot:?}");
        lost.slots.insert(*slot, vec![0; bytes.len()]);
        assert_eq!(case.check(&lost), Ok(is_needed), "{slot:?}");
        if let Some(old) = case.stale.slots.get(slot).filter(|&old| old != bytes) {
            lost.slots.insert(*slot, old.clone());
            assert_eq!(case.check(&lost), Ok(is_needed), "{slot:?}");
            stale += 1;
        }
    }
    assert!(stale > 0);
}

#[test]
fn every_cut_is_refused_or_makes_no_difference() {
    for case in [Case::new(None), Case::grown(None)] {
        let refused = case.cut_at_each_byte().unwrap();
        assert!(refused > 10_000, "{refused}");
    }
}

#[test]
fn the_check_finds_growth_that_is_not_marked() {
    let failure = Case::grown(Some(Flaw::GrowthNotMarked)).cut_at_each_byte();
    assert!(failure.unwrap_err().contains("recovered"));
}

impl Case {
    /// Returns the last segment of the log: its slot, and its content.
    fn last_segment(&self) -> (Slot, &[u8]) {
        let recovered = read(&Disk::with(self.image.clone()), self.model.start)
            .unwrap()
            .1;
        let slot = recovered.segments[&recovered.end.segment];
        (slot, &self.image.slots[&slot])
    }

    /// Returns the number of batches that were flushed after the last segment was marked.
    fn flushed_since_marked(&self) -> usize {
        let bytes = self.last_segment().1;
        let salt = Header::decode(bytes).unwrap().unwrap().salt;
        let marked = Mark::decode(bytes, salt).map_or(0, |mark| mark.flushed_through);
        let mut offset = FRAMES_START as usize;
        let mut batches = 0;
        while let Ok(frame) = Frame::parse(&bytes[offset..], salt) {
            let is_batch = matches!(frame.content, Content::Batch { .. });
            batches += usize::from(is_batch && frame.place.number > marked);
            offset += frame.bytes;
        }
        batches
    }

    /// Fills the end of each file with zeros. Returns the largest number of batches that are then missing
    /// from a log that is recovered.
    fn max_lost_to_zeros(&self) -> usize {
        let (last, _) = self.last_segment();
        let whole = self.model.expected();
        let mut max_lost = 0;
        at_each(&self.image, BLOCK_BYTES, |image, slot, offset| {
            image.slots.get_mut(&slot).unwrap()[offset..].fill(0);
            if slot != last {
                self.check(image).unwrap();
            } else if let Ok((found, _)) = read(&Disk::with(image.clone()), self.model.start) {
                assert!(whole.starts_with(&found), "{offset}");
                max_lost = max_lost.max(whole.len() - found.len());
            }
        });
        max_lost
    }
}

/// Zeros from some block to the end of a file look like a log that was not written further. The header of a
/// segment says what had been flushed when the file grew; what was flushed after that may be lost.
#[test]
fn a_last_segment_that_ends_in_zeros_loses_no_more_than_was_flushed_since_it_grew() {
    for case in [Case::new(None), Case::grown(None)] {
        let max_lost = case.max_lost_to_zeros();
        assert!(max_lost <= case.flushed_since_marked(), "{max_lost}");
    }
}

#[test]
fn the_check_finds_marks_that_say_that_nothing_was_flushed() {
    let max_lost = Case::grown(Some(Flaw::NoneFlushed)).max_lost_to_zeros();
    assert!(max_lost > Case::grown(None).flushed_since_marked());
}

/// The log of a store beside an older copy of its file, which was closed and has only the first commit.
#[test]
fn a_damaged_log_of_newer_commits_is_not_taken_for_what_a_close_has_left() {
    let case = Case::grown(None);
    let inspect = |image: &Image, version| {
        let disk = Disk::with(image.clone());
        leftovers(&disk, ID.store, version).map(drop)
    };
    let newest = case.model.version;
    inspect(&case.image, newest).unwrap();
    let [(&slot, whole)] = case.image.slots.iter().collect::<Vec<_>>()[..] else {
        panic!("one slot");
    };
    let newer = inspect(&case.image, 1).unwrap_err();
    assert!(matches!(newer, LogError::Newer { .. }), "{newer:?}");
    let mut damaged = 0;
    for at in (2 * BLOCK_BYTES..whole.len()).step_by(13) {
        let mut image = case.image.clone();
        image.slots.get_mut(&slot).unwrap().truncate(at);
        assert!(inspect(&image, 1).is_err(), "cut to {at}");
        // A log whose commits are all in the store needs them no more, but this cannot be known.
        assert!(inspect(&image, newest).is_err(), "cut to {at}");
        image = case.image.clone();
        image.slots.get_mut(&slot).unwrap()[at] ^= 1;
        let flipped = inspect(&image, 1).unwrap_err();
        damaged += usize::from(matches!(flipped, LogError::Corrupt { .. }));
    }
    assert!(damaged > 100, "{damaged}");
}

#[test]
fn random_bytes_make_recovery_neither_panic_nor_invent_batches() {
    let case = Case::new(None);
    let mut rng = case.model.rng.clone();
    let slots: Vec<_> = case.image.slots.keys().copied().collect();
    let sent = case.model.expected();
    for _ in 0..2_000 {
        let mut image = case.image.clone();
        let slot = slots[rng.random_range(0..slots.len())];
        let file = image.slots.get_mut(&slot).unwrap();
        let from = rng.random_range(0..file.len());
        let to = rng.random_range(from..file.len());
        rng.fill_bytes(&mut file[from..to]);
        if let Ok((found, _)) = read(&Disk::with(image), case.model.start) {
            assert!(sent.starts_with(&found));
        }
    }
}
