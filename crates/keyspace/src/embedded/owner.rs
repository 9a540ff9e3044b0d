//! The store, in the process that owns it.

use std::ops::Deref;
use std::sync::Arc;
#[cfg(unix)]
use std::{io, path::Path};

#[cfg(unix)]
use parking_lot::Mutex;

#[cfg(unix)]
use super::disk::presence::Presence;
use super::engine::Engine;
use super::link::hosts::Hosts;
#[cfg(unix)]
use super::link::socket::Listener;
use super::options::Durability;
#[cfg(unix)]
use super::options::Sharing;
use crate::error::Result;

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

/// What tells other processes of the owner.
#[cfg(unix)]
struct Door {
    presence: Presence,
    /// `None` if the store is not shared.
    listener: Option<Listener>,
}

impl Owner {
    /// Owns a store that no other process can open.
    pub(crate) fn alone(engine: Engine, durability: Durability) -> Self {
        let alone_since = Some(engine.opened_at());
        let engine = Arc::new(engine);
        Self {
            hosts: Arc::new(Hosts::new(engine.clone(), alone_since, durability)),
            engine,
            #[cfg(unix)]
            door: Mutex::default(),
            alone_since,
        }
    }

    /// Owns the store at `path`, which other processes may have open.
    #[cfg(unix)]
    pub(crate) fn among(
        presence: Presence,
        engine: Engine,
        path: &Path,
        durability: Durability,
        sharing: Sharing,
    ) -> io::Result<Self> {
        let is_alone = presence.is_alone()?;
        let alone_since = is_alone.then(|| engine.opened_at());
        let engine = Arc::new(engine);
        let hosts = Arc::new(Hosts::new(engine.clone(), alone_since, durability));
        let listener = match sharing {
            Sharing::Refuse => None,
            Sharing::Share => Listener::open(path, hosts.clone())
                .inspect_err(|error| {
                    tracing::warn!(%error, "other processes cannot use the store: it has no socket");
                })
                .ok(),
        };
        Ok(Self {
            engine,
            hosts,
            door: Mutex::new(Some(Door { presence, listener })),
            alone_since,
        })
    }

    pub(crate) fn alone_since(&self) -> Option<i64> {
        self.alone_since
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn hosts(&self) -> &Arc<Hosts> {
        &self.hosts
    }

    /// Closes the store. Blocks until that is done.
    pub(crate) fn close(&self) -> Result<()> {
        self.end(Engine::shut_down)
    }

    /// Ends the store and then the connections of clients, which get the results of their commits.
    ///
    /// What tells others of the store ends before the store's file is unlocked: the files beside it are not removed
    /// while another process owns the store.
    fn end<T>(&self, engine: impl FnOnce(&Engine) -> T) -> T {
        self.hosts.close_door();
        #[cfg(unix)]
        if let Some(door) = self.door.lock().take() {
            door.listener.into_iter().for_each(Listener::close);
            door.presence.leave();
        }
        let ended = engine(&self.engine);
        self.hosts.close();
        ended
    }
}

impl Deref for Owner {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.end(Engine::end_quickly);
    }
}
