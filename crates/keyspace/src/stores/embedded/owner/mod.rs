//! The store, in the process that owns it, and its end of the connections to clients.

pub(super) mod host;
pub(super) mod hosts;
#[cfg(unix)]
pub(super) mod socket;

use std::path::Path;
#[cfg(unix)]
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

#[cfg(unix)]
use parking_lot::Mutex;

use self::hosts::Hosts;
#[cfg(unix)]
use self::socket::Listener;
#[cfg(unix)]
use super::backend::place::is_replaced;
#[cfg(unix)]
use super::disk::applications::Hold;
#[cfg(unix)]
use super::disk::location;
use super::disk::open::OpenedStore;
#[cfg(unix)]
use super::disk::open::Setup;
use super::disk::open_errors::open_error;
#[cfg(unix)]
use super::disk::presence::Presence;
use super::engine::{Ending, Engine};
use super::options::Options;
use super::options::Sharing;
#[cfg(unix)]
use super::repeats::backoff;
use super::wire::Welcome;
#[cfg(unix)]
use crate::contract::error::chain;
use crate::contract::error::{OpenError, Result};

/// The engine, and what lets other processes in. Dropping it closes the store.
pub(crate) struct Owner {
    engine: Arc<Engine>,
    hosts: Arc<Hosts>,
    /// `None` for a store in memory, and after the end.
    #[cfg(unix)]
    door: Mutex<Option<Door>>,
    /// The version from which on no writer is left of those that wrote before it, if that is known.
    alone_since: Option<i64>,
}

/// What shows other processes that there is an owner.
#[cfg(unix)]
struct Door {
    presence: Presence,
    hold: Hold,
    path: PathBuf,
    options: Options,
    /// `None` if the store is not shared.
    listener: Option<Listener>,
}

impl Owner {
    /// Starts a store that this process has opened. `former` is what the last owner has said of it, if this process was
    /// its client.
    pub(crate) fn start(
        store: OpenedStore,
        path: &Path,
        options: &Options,
        former: Option<&Welcome>,
    ) -> Result<Self, OpenError> {
        let failed = |cause| open_error(path, cause);
        #[cfg(unix)]
        let (seat, store) = store.take_presence();
        let file = store.files.place.as_ref().map(|place| place.id);
        let engine = Arc::new(Engine::start(store, options).map_err(failed)?);
        #[cfg(unix)]
        let is_alone = match &seat {
            Some((presence, _)) if former.is_none() => presence.is_alone().map_err(failed)?,
            _ => true,
        };
        #[cfg(not(unix))]
        let is_alone = true;
        let alone_since = match former {
            // This process itself has written before.
            Some(former) => former.alone_since,
            None if is_alone => Some(engine.opened_at()),
            None => None,
        };
        let is_viewer = options.sharing == Sharing::Yield;
        let durability = options.durability();
        let hosts = Arc::new(Hosts::new(
            engine.clone(),
            file,
            alone_since,
            durability,
            is_viewer,
        ));
        #[cfg(unix)]
        let door = seat.map(|(presence, hold)| Door {
            presence,
            hold,
            path: path.to_owned(),
            options: options.clone(),
            listener: None,
        });
        let owner = Self {
            engine,
            hosts,
            #[cfg(unix)]
            door: Mutex::new(door),
            alone_since,
        };
        #[cfg(unix)]
        if options.sharing != Sharing::Refuse
            && let Some(door) = &mut *owner.door.lock()
        {
            // Without it, the store is closed again.
            let listener = Listener::open(path, owner.hosts.clone());
            door.listener = Some(listener.map_err(failed)?);
        }
        Ok(owner)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn alone_since(&self) -> Option<i64> {
        self.alone_since
    }

    pub(crate) fn hosts(&self) -> &Arc<Hosts> {
        &self.hosts
    }

    /// Closes the store. Blocks until that is done.
    pub(crate) fn close(&self) -> Result<()> {
        #[cfg(unix)]
        let mut door = self.door.lock();
        let end = End {
            engine: &self.engine,
            hosts: &self.hosts,
            #[cfg(unix)]
            door: &mut door,
        };
        end.run(Ending::Close)
    }
}

#[cfg(unix)]
impl Door {
    fn close(self, ending: Ending, engine: &Engine, hosts: &Hosts) -> Result<()> {
        if let Some(listener) = self.listener {
            listener.close();
        }
        let is_last = self.presence.leave();
        let ended = engine.shut_down(if is_last { ending } else { Ending::HandOver });
        // Only now: as long as a viewer has locked the store's file, applications must not take it for one of theirs.
        drop(self.hold);
        hosts.close();
        if !is_last && ended.is_ok() && self.presence.is_last() {
            // The processes to which it was left have left meanwhile.
            drop(self.presence);
            finish(&self.path, &self.options, hosts.greeting());
        }
        ended
    }
}

/// Ends a store that its last owner has left to others, who have all left. If another process opens it meanwhile, that
/// one ends it. If it cannot be opened, it stays as it is.
///
/// The store may be in use for a moment although nothing has it open: a process that leaves looks for others.
#[cfg(unix)]
pub(crate) fn finish(path: &Path, options: &Options, former: &Welcome) {
    const MAX_REPEATS: u32 = 3;
    let setup = Setup {
        expected: Some(former.identity()),
        ..Setup::of(options)
    };
    let mut attempts = 0;
    let opened = loop {
        match location::open_existing(path, &setup) {
            Ok(store) => break Owner::start(store, path, options, Some(former)),
            Err(OpenError::StoreInUse { .. }) if attempts < MAX_REPEATS => {
                thread::park_timeout(backoff(attempts));
                attempts += 1;
            }
            Err(OpenError::StoreInUse { .. } | OpenError::NoStore { .. }) => return,
            Err(error) if is_replaced(&error) => return,
            Err(error) => break Err(error),
        }
    };
    let closed = opened.and_then(|owner| owner.close().map_err(OpenError::Store));
    if let Err(error) = closed {
        let error = chain(&error);
        tracing::warn!(%error, "the store keeps its log: the last process could not end it");
    }
}

/// What ends with a store.
struct End<'a> {
    engine: &'a Engine,
    hosts: &'a Hosts,
    /// Locked until the end, so that a second one does not overtake it.
    #[cfg(unix)]
    door: &'a mut Option<Door>,
}

impl End<'_> {
    /// Ends the store and then the connections of clients, which get the results of their commits. If other processes
    /// wait for the store, leaves them its log.
    ///
    /// What tells others of the store ends before the store's file is unlocked: the files beside it are not removed
    /// while another process owns the store.
    fn run(self, ending: Ending) -> Result<()> {
        self.hosts.leave();
        #[cfg(unix)]
        if let Some(door) = self.door.take() {
            return door.close(ending, self.engine, self.hosts);
        }
        let ended = self.engine.shut_down(ending);
        self.hosts.close();
        ended
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let engine = self.engine.clone();
        let hosts = self.hosts.clone();
        #[cfg(unix)]
        let mut door = self.door.get_mut().take();
        let mut end = move || {
            let end = End {
                engine: &engine,
                hosts: &hosts,
                #[cfg(unix)]
                door: &mut door,
            };
            // The failure was logged, and `Embedded::close` would return it.
            let _ = end.run(Ending::Drop);
        };
        // A thread that serves the store may wake a task that drops the last handle. It cannot wait for itself.
        if self.hosts.is_here() || self.engine.is_here() {
            // Without a thread, the store ends as after a kill.
            drop(thread::Builder::new().spawn(end));
        } else {
            end();
        }
    }
}
