//! Sessions: who may hold items, and how others know that it lives.
//!
//! A session is alive from its opening until somebody declares it dead, itself at its end included.
//! Everybody who grants it something reads that state; the heartbeat lies under another key, so that
//! it makes no grant fail.

use microqueue::keyspace::{Isolation, Transaction};

use crate::error::Result;
use crate::keys::{Keys, SessionId, stamp};
use crate::record::Life;

/// Stages that a session lives.
pub(crate) fn open(tr: &impl Transaction, keys: &Keys, session: SessionId) {
    tr.set(&keys.session(session), &Life::Alive.encode());
    stamp(tr, &keys.heartbeat(session));
}

/// Reads whether a session is alive. `None`: there is no such session, any more or yet.
///
/// # Conflicts
/// Reads the session's state.
pub(crate) async fn life(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
) -> Result<Option<Life>> {
    let key = keys.session(session);
    let state = tr.get(&key, Isolation::Serializable).await?;
    state.map(|state| Life::decode(&key, &state)).transpose()
}

/// Stages a sign of life. False: the session is dead.
///
/// # Conflicts
/// Reads the session's state and its heartbeat.
pub(crate) async fn beat(tr: &impl Transaction, keys: &Keys, session: SessionId) -> Result<bool> {
    let heartbeat = keys.heartbeat(session);
    // Read, so that a heartbeat that lands late does not come after a newer one.
    let last = tr.get(&heartbeat, Isolation::Serializable);
    if life(tr, keys, session).await? != Some(Life::Alive) {
        return Ok(false);
    }
    last.await?;
    stamp(tr, &heartbeat);
    Ok(true)
}
