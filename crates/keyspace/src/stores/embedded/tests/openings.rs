//! What an opening finds changed between two of its looks at the files: other processes make, open and close a store,
//! and are killed, and a user moves and replaces the files of one that no process has open. An opening refuses a path
//! only for what is there.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::Options;
use super::setup;
use crate::contract::error::OpenError;
use crate::stores::embedded::disk::location::{self, Moment, Open};
use crate::stores::embedded::disk::open::OpenedStore;
use crate::stores::embedded::engine::Engine;
use crate::stores::embedded::log::effect::Effect;

type Change = Box<dyn FnOnce()>;

thread_local! {
    /// What happens at the next such moment of an opening of this thread.
    static DUE: RefCell<Option<(Moment, Change)>> = const { RefCell::new(None) };
}

/// Makes a change that is due. The openings in it have no moments.
pub(crate) fn at(moment: Moment) {
    let due = DUE.with_borrow_mut(|due| due.take_if(|(when, _)| *when == moment));
    if let Some((_, change)) = due {
        change();
    }
}

const MOMENTS: [Moment; 6] = [
    Moment::NoFile,
    Moment::LoneLog,
    Moment::Nothing,
    Moment::Made,
    Moment::FileOpen,
    Moment::Locked,
];

/// What is at the path when an opening begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Nothing,
    Closed,
    /// With its log, as a killed process leaves it.
    Killed,
    Open,
    /// The log of a killed store, whose file was moved away.
    LoneLog,
}

/// What others do at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// A process opens or makes the store, and has it open.
    Opens,
    OpensAndCloses,
    OpensAndIsKilled,
    /// The process that has the store open closes it.
    Closes,
    /// A user moves all files of the store away.
    MovedAway,
    /// A user replaces all files of the store by those of another one, which was closed or killed.
    Replaced,
    ReplacedByKilled,
    /// A user puts the file of a lone log back.
    PutBack,
}

const EVENTS: [Event; 8] = [
    Event::Opens,
    Event::OpensAndCloses,
    Event::OpensAndIsKilled,
    Event::Closes,
    Event::MovedAway,
    Event::Replaced,
    Event::ReplacedByKilled,
    Event::PutBack,
];

/// The folder of a store, and the process that has the store open.
struct World {
    folder: tempfile::TempDir,
    holder: RefCell<Option<OpenedStore>>,
}

fn commit(store: &mut OpenedStore, name: &str) {
    let row = Effect::Set {
        key: name.as_bytes(),
        value: b"1",
    };
    store.commit(&[row]).unwrap();
}

fn close(store: OpenedStore) {
    let (seat, store) = store.take_presence();
    let _ = seat.map(|(presence, _hold)| presence.leave());
    let (engine, committer) = Engine::prepare(store, &Options::new());
    committer.close().unwrap();
    drop(engine);
}

/// Returns the names of the rows of a store.
fn rows(store: OpenedStore) -> Vec<String> {
    let (engine, committer) = Engine::prepare(store, &Options::new());
    let (_, layers) = engine.newest_layers().unwrap();
    let mut rows = layers.all_rows();
    let mut names = Vec::new();
    while let Some((key, _)) = rows.next_row().unwrap() {
        names.push(String::from_utf8(key.to_vec()).unwrap());
    }
    drop(rows);
    committer.close().unwrap();
    names
}

impl World {
    fn new(start: Start) -> Self {
        let world = Self {
            folder: tempfile::tempdir().unwrap(),
            holder: RefCell::new(None),
        };
        if start == Start::Nothing {
            return world;
        }
        let mut store = world.open().unwrap();
        commit(&mut store, "first");
        match start {
            Start::Nothing => {}
            Start::Closed => close(store),
            Start::Killed => drop(store),
            Start::Open => *world.holder.borrow_mut() = Some(store),
            Start::LoneLog => {
                drop(store);
                fs::rename(world.path(), world.moved()).unwrap();
            }
        }
        world
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn moved(&self) -> PathBuf {
        self.folder.path().join("moved")
    }

    fn open(&self) -> Result<OpenedStore, OpenError> {
        location::open(&self.path(), &setup())
    }

    /// Removes the store and its log, and its lock and socket.
    fn remove(&self) {
        for entry in fs::read_dir(self.folder.path()).unwrap() {
            let entry = entry.unwrap();
            if entry
                .file_name()
                .into_string()
                .unwrap()
                .starts_with("store")
            {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }

    /// Puts another store at the path.
    fn replace(&self, is_closed: bool) {
        let other = Self::new(Start::Nothing);
        let mut store = other.open().unwrap();
        commit(&mut store, "other");
        if is_closed {
            close(store);
        } else {
            drop(store);
        }
        self.remove();
        for entry in fs::read_dir(other.folder.path()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), self.folder.path().join(entry.file_name())).unwrap();
        }
    }

    fn happen(&self, event: Event) {
        let opened = || match self.open() {
            Ok(mut store) => {
                commit(&mut store, "second");
                Some(store)
            }
            // The opening under test, or another one, has it.
            Err(OpenError::StoreInUse { .. } | OpenError::LogWithoutStore { .. }) => None,
            Err(error) => panic!("{error:?}"),
        };
        match event {
            Event::Opens => {
                if let Some(store) = opened() {
                    *self.holder.borrow_mut() = Some(store);
                }
            }
            Event::OpensAndCloses => opened().into_iter().for_each(close),
            Event::OpensAndIsKilled => drop(opened()),
            Event::Closes => self.holder.take().into_iter().for_each(close),
            Event::MovedAway => self.remove(),
            Event::Replaced => self.replace(true),
            Event::ReplacedByKilled => self.replace(false),
            Event::PutBack => {
                if self.moved().exists() {
                    fs::rename(self.moved(), self.path()).unwrap();
                }
            }
        }
    }
}

/// Checks a path without opening it, as an opening.
fn verify(path: &Path) -> Result<Option<OpenedStore>, OpenError> {
    location::verify(path, &setup(), |_, _| ()).map(|_| None)
}

/// Opens a store while something happens at a moment. Returns whether the opening came to that moment.
fn try_opening(open: Option<Open>, start: Start, event: Event, moment: Moment) -> bool {
    let what = format!("{start:?}, {event:?} at {moment:?}");
    let world = std::rc::Rc::new(World::new(start));
    let change = {
        let world = world.clone();
        move || world.happen(event)
    };
    DUE.set(Some((moment, Box::new(change))));
    let path = world.path();
    let opened = match open {
        Some(open) => open(&path, &setup()).map(Some),
        None => verify(&path),
    };
    if DUE.take().is_some() {
        return false;
    }
    let is_new = matches!(event, Event::Replaced | Event::ReplacedByKilled);
    let is_gone = event == Event::MovedAway;
    let is_lone = start == Start::LoneLog && !is_new && !is_gone && event != Event::PutBack;
    match &opened {
        Ok(_) => assert!(!is_lone, "{what}"),
        Err(OpenError::StoreInUse { .. }) => {
            assert!(
                start == Start::Open || world.holder.borrow().is_some(),
                "{what}"
            );
        }
        Err(OpenError::NoStore { .. }) => {
            let had_file = !matches!(start, Start::Nothing | Start::LoneLog);
            assert!(!had_file || is_gone, "{what}");
        }
        Err(OpenError::LogWithoutStore { .. }) => assert!(is_lone, "{what}"),
        Err(error) => panic!("{what}: {error:?}"),
    }

    // Whatever has happened, no row is lost.
    drop(opened);
    world.holder.take();
    if is_lone {
        world.happen(Event::PutBack);
    }
    let found = rows(
        world
            .open()
            .unwrap_or_else(|error| panic!("{what}: {error:?}")),
    );
    let expected: &[&str] = match start {
        _ if is_new => &["other"],
        Start::Nothing => &[],
        _ if is_gone => &[],
        _ => &["first"],
    };
    let kept: Vec<_> = found.into_iter().filter(|name| name != "second").collect();
    assert_eq!(kept, expected, "{what}");
    true
}

#[test]
fn an_opening_refuses_only_what_is_there_whatever_happens_between_two_of_its_looks() {
    let starts = [
        Start::Nothing,
        Start::Closed,
        Start::Killed,
        Start::Open,
        Start::LoneLog,
    ];
    let openings: [Option<Open>; 3] = [
        Some(location::open as Open),
        Some(location::open_existing as Open),
        None,
    ];
    let mut happened = Vec::new();
    for start in starts {
        // The files of an open store are not moved here.
        let events = EVENTS.iter().copied().filter(|event| {
            start != Start::Open
                || !matches!(
                    event,
                    Event::MovedAway | Event::Replaced | Event::ReplacedByKilled
                )
        });
        for event in events {
            for open in openings {
                for moment in MOMENTS {
                    if try_opening(open, start, event, moment) {
                        happened.push(moment);
                    }
                }
            }
        }
    }
    assert!(MOMENTS.iter().all(|moment| happened.contains(moment)));
}
