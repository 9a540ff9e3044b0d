//! Handmade chains, which test each rule of recovery.

use xxhash_rust::xxh3::xxh3_64;

use super::super::files::Slot;
use super::super::frame::{BLOCK_BYTES, Begin, FramePlace, Record};
use super::super::recover::{LogError, Start};
use super::super::segment::{Header, LogId};
use super::{ID, read};
use crate::stores::embedded::tests::disk::{Disk, Image};

const START: Start = Start {
    segment: 1,
    frame: 1,
};

/// A frame with its number and the last frame that it records as flushed.
type Numbered = (u64, u64, Record);

/// A chain of slots, which each case changes.
struct SlotChain {
    slots: Vec<(Header, Vec<Numbered>)>,
}

impl SlotChain {
    /// Returns two segments with two batches, and a spare.
    fn new() -> Self {
        let end = 4 * BLOCK_BYTES as u64;
        let first = vec![
            (1, 0, begin(0, 0, 0)),
            (2, 0, Record::batch(10)),
            (3, 2, Record::seal()),
        ];
        let second = vec![
            (4, 3, begin(1, end, 3)),
            (5, 3, Record::batch(20)),
            (6, 5, Record::clock(30)),
        ];
        Self {
            slots: vec![
                (header(1), first),
                (header(2), second),
                (header(3), Vec::new()),
            ],
        }
    }

    fn header(&mut self, slot: usize) -> &mut Header {
        &mut self.slots[slot].0
    }

    fn frames(&mut self, slot: usize) -> &mut Vec<Numbered> {
        &mut self.slots[slot].1
    }

    fn image(self) -> Image {
        let slots = (1..).map(Slot).zip(self.slots.into_iter().map(encode));
        Image {
            main: Vec::new(),
            slots: slots.collect(),
        }
    }
}

fn encode((header, frames): (Header, Vec<Numbered>)) -> Vec<u8> {
    let mut bytes = header.encode().to_vec();
    for (number, flushed_through, mut record) in frames {
        let place = FramePlace {
            number,
            flushed_through,
        };
        bytes.extend_from_slice(record.finish(place, header.salt));
    }
    bytes.resize(bytes.len() + 2 * BLOCK_BYTES, 0);
    bytes
}

fn header(segment: u64) -> Header {
    Header {
        id: ID,
        segment,
        salt: 100 + segment,
        file_bytes: 0,
    }
}

fn begin(previous_segment: u64, end: u64, last_frame: u64) -> Record {
    Record::begin(Begin {
        previous_segment,
        end,
        last_frame,
    })
}

/// Returns the recovered versions, or the error with its sources.
fn recovered(image: Image, start: Start) -> Result<Vec<i64>, String> {
    let (found, _) = read(&Disk::with(image), start).map_err(|error| error.to_string())?;
    Ok(found.into_iter().map(|(version, _)| version).collect())
}

#[test]
fn a_chain_is_read_from_the_segment_that_it_begins_with() {
    let image = SlotChain::new().image();
    let (found, recovered) = read(&Disk::with(image.clone()), START).unwrap();
    assert_eq!(found, [(10, vec![]), (20, vec![])]);
    let end = recovered.end;
    let found = (end.segment, end.offset, end.last_frame, end.newest_version);
    assert_eq!(found, (2, 4 * BLOCK_BYTES as u64, 6, Some(30)));
    assert_eq!(recovered.segments, [(1, Slot(1)), (2, Slot(2))].into());
    assert_eq!((recovered.next, recovered.unused), (Some(Slot(3)), vec![]));

    let second = Start {
        segment: 2,
        frame: 4,
    };
    let (found, recovered) = read(&Disk::with(image.clone()), second).unwrap();
    assert_eq!(found, [(20, vec![])]);
    assert_eq!(recovered.unused, [Slot(1)]);

    // The log begins in the spare, which has no content yet.
    let third = Start {
        segment: 3,
        frame: 7,
    };
    let (found, recovered) = read(&Disk::with(image), third).unwrap();
    assert_eq!(found, []);
    let end = recovered.end;
    let found = (end.segment, end.offset, end.last_frame, end.newest_version);
    assert_eq!(found, (3, BLOCK_BYTES as u64, 6, None));
}

#[test]
fn an_end_that_a_later_segment_states_is_settled() {
    let mut chain = SlotChain::new();
    // Frame 3 was torn, and a recovery has continued without it.
    chain.frames(0).truncate(2);
    chain.frames(1)[0] = (3, 2, begin(1, 3 * BLOCK_BYTES as u64, 2));
    chain.frames(1)[1].0 = 4;
    chain.frames(1)[2] = (5, 4, Record::clock(30));
    assert_eq!(recovered(chain.image(), START), Ok(vec![10, 20]));
}

#[test]
fn unflushed_frames_after_a_torn_one_are_dropped() {
    let mut chain = SlotChain::new();
    // Frame 5 is torn, and frame 6 was written before it was flushed.
    chain.frames(1)[2].1 = 4;
    let mut image = chain.image();
    tear(&mut image, Slot(2), 2);
    assert_eq!(recovered(image, START), Ok(vec![10]));
}

fn tear(image: &mut Image, slot: Slot, block: usize) {
    let begin = block * BLOCK_BYTES;
    image.slots.get_mut(&slot).unwrap()[begin..begin + BLOCK_BYTES].fill(0);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn every_rule_of_a_chain_refuses_what_breaks_it() {
    let end = 4 * BLOCK_BYTES as u64;
    type Break = Box<dyn Fn(&mut SlotChain)>;
    let cases: Vec<(Break, &str)> = vec![
        (
            Box::new(|chain| chain.header(0).segment = 9),
            "segment 1 of the log is missing",
        ),
        (
            Box::new(|chain| chain.header(1).segment = 9),
            "segment 2 of the log is missing",
        ),
        (
            Box::new(|chain| chain.header(2).segment = 2),
            "holds the same segment",
        ),
        (
            Box::new(|chain| chain.header(1).id.store = [9; 16]),
            "is not of this store",
        ),
        (
            Box::new(|chain| chain.header(1).id.log = [9; 16]),
            "segment 2 of the log is missing",
        ),
        (
            Box::new(|chain| chain.frames(0)[1].0 = 3),
            "expected frame 2, found frame 3",
        ),
        (
            Box::new(|chain| chain.frames(0)[1].0 = 1),
            "expected frame 2, found frame 1",
        ),
        (
            Box::new(|chain| chain.frames(0)[0] = (1, 0, Record::batch(1))),
            "has no Begin",
        ),
        (
            Box::new(|chain| chain.frames(0)[1] = (2, 0, begin(0, 0, 1))),
            "begins twice",
        ),
        (
            Box::new(|chain| chain.frames(0)[0] = (1, 0, begin(5, 0, 0))),
            "does not begin here",
        ),
        (
            Box::new(|chain| chain.frames(1)[0] = (4, 3, Record::clock(1))),
            "expected a Begin",
        ),
        (
            Box::new(move |chain| chain.frames(1)[0] = (4, 3, begin(0, end, 3))),
            "does not begin here",
        ),
        (
            Box::new(move |chain| chain.frames(1)[0] = (4, 3, begin(1, end, 2))),
            "the next segment says",
        ),
        (
            Box::new(move |chain| chain.frames(1)[0] = (4, 3, begin(1, end - 1, 3))),
            "the next segment says",
        ),
        (
            Box::new(move |chain| chain.frames(1)[0].0 = 5),
            "expected frame 4, found frame 5",
        ),
        (
            Box::new(|chain| chain.frames(1)[1].2 = Record::batch(10)),
            "version 10 follows",
        ),
        (
            Box::new(|chain| chain.frames(2).push((9, 8, begin(2, 0, 8)))),
            "the next segment says",
        ),
        (
            Box::new(|chain| {
                chain.header(2).segment = 4;
                chain.frames(2).push((9, 8, begin(3, 0, 8)));
            }),
            "the one before it has not",
        ),
        (
            Box::new(|chain| chain.frames(2).push((8, 7, Record::batch(40)))),
            "expected a Begin",
        ),
    ];
    for (index, (change, reason)) in cases.iter().enumerate() {
        let mut chain = SlotChain::new();
        change(&mut chain);
        let refused = recovered(chain.image(), START).expect_err(reason);
        assert!(refused.contains(reason), "{index}: {refused}");
    }
}

#[test]
fn a_frame_that_a_later_one_says_was_flushed_must_be_there() {
    // The Begin of the second segment, and the batch in it.
    for block in [1, 2] {
        let mut image = SlotChain::new().image();
        tear(&mut image, Slot(2), block);
        let refused = recovered(image, START).unwrap_err();
        assert!(refused.contains("had been flushed"), "{refused}");
    }
    // The Seal of the first segment.
    let mut image = SlotChain::new().image();
    tear(&mut image, Slot(1), 3);
    let refused = recovered(image, START).unwrap_err();
    assert!(refused.contains("the next segment says"), "{refused}");
}

#[test]
fn slots_that_are_not_ours_are_named() {
    let with = |bytes: &[u8]| {
        let mut image = SlotChain::new().image();
        image.slots.insert(Slot(7), bytes.to_vec());
        read(&Disk::with(image), START).map(|(_, recovered)| recovered.unused)
    };
    assert_eq!(with(&[]).unwrap(), [Slot(7)]);
    assert_eq!(with(&[0; 3 * BLOCK_BYTES]).unwrap(), [Slot(7)]);
    let foreign = with(b"a file of another program").unwrap_err();
    assert!(matches!(foreign, LogError::Foreign { slot: Slot(7) }));
    let mut newer = header(7).encode();
    newer[11] = 2;
    let checksum = xxh3_64(&newer[..72]);
    newer[72..80].copy_from_slice(&checksum.to_be_bytes());
    let newer = with(&newer).unwrap_err();
    assert!(matches!(
        newer,
        LogError::NewerFormat {
            slot: Slot(7),
            found: 2,
            supported: 1
        }
    ));
    let mut damaged = header(7).encode();
    damaged[50] ^= 1;
    assert!(matches!(
        with(&damaged).unwrap_err(),
        LogError::Corrupt { slot: Slot(7), .. }
    ));
    let mut headless = encode((header(7), vec![(7, 6, begin(6, 0, 6))]));
    headless[..BLOCK_BYTES].fill(0);
    assert!(matches!(
        with(&headless).unwrap_err(),
        LogError::Corrupt { slot: Slot(7), .. }
    ));
    let earlier_log = Header {
        id: LogId { log: [8; 16], ..ID },
        ..header(7)
    };
    assert_eq!(with(&earlier_log.encode()).unwrap(), [Slot(7)]);
}
