//! How a process gets a seat at a store: as its owner, or as a client of its owner.
//!
//! The owner of a store is the process that holds the lock of its file. Nothing takes it away: the lock is free once
//! the owner has closed the store or has ended. A candidate tries to take the lock, and if it is held, connects to the
//! socket of the owner. If that does not answer either, it begins again.
//!
//! - An owner serves only while it holds the lock. When it closes the store, it tells its clients so, answers what they
//!   have sent, ends the engine, unlocks the file, and only then ends the connections. So their end is the sign for the
//!   next election.
//! - No time limit leads to taking the lock. An owner that is stopped keeps its store waiting.
//! - The socket's name changes only under the lock, and by a rename. If it is lost, or the socket could not be made,
//!   the owner makes another one. One whose store has failed makes none, and listens no more: its lock may be free.
//! - An owner that has left the store to others looks, once it has unlocked it, whether they are still there. The last
//!   one that leaves, owner or client, ends the store.
//! - What waits for an owner is answered as not done only if it will not be sent.
//! - A transaction sends all requests to one owner, and takes replies only from there.
//! - An owner refuses all read versions from before its opening. So a transaction from before it can read the rows that
//!   it has, but never commit.
//! - A request for a read version is never joined with one that was already sent.
//! - A viewer owns the store only as long as no application has it open. Before it takes the lock, it takes the one
//!   that applications share, and keeps it as long as it owns the store. It refuses an application that connects, hands
//!   the store over, and lets applications go first at the next election. An application counts from when it has its
//!   part of that lock, even while it waits for another owner.
//!
//! `tests/election` is a model of these rules, and of what happens if one is broken.

/// What a candidate may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Candidacy {
    /// The owner, or a client.
    Owner,
    /// A client.
    Client,
    /// A client, or the owner as long as no application has the store open.
    Viewer,
}

/// What a candidate does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// Takes the lock of the store's file without waiting for it, and opens the store. A viewer first takes the lock
    /// that applications share.
    Open,
    /// Connects to the owner, and waits for its answer.
    Connect,
    /// Waits for a moment.
    Pause,
}

/// What came of a step.
#[derive(Debug)]
pub(super) enum Outcome<O, C, E> {
    /// The candidate has opened the store.
    Opened(O),
    /// Another process holds a lock.
    Held,
    /// The owner serves the candidate.
    Welcomed(C),
    /// There is no owner at the socket, or it is about to end, or is a viewer that hands the store over.
    Unanswered,
    /// A moment has passed.
    Paused,
    /// The candidate cannot have a seat.
    Failed(E),
}

/// What follows from an outcome.
#[derive(Debug)]
pub(super) enum Next<O, C, E> {
    Step(Step),
    Own(O),
    Follow(C),
    Fail(E),
}

/// Returns the first step of an election. `is_next` says whether there was an owner before.
pub(super) fn first(candidacy: Candidacy, is_next: bool) -> Step {
    match candidacy {
        Candidacy::Owner => Step::Open,
        Candidacy::Client => Step::Connect,
        // An application opens the store meanwhile, if there is one.
        Candidacy::Viewer if is_next => Step::Pause,
        Candidacy::Viewer => Step::Open,
    }
}

/// Returns what a candidate does after a step.
pub(super) fn next<O, C, E>(candidacy: Candidacy, outcome: Outcome<O, C, E>) -> Next<O, C, E> {
    match outcome {
        Outcome::Opened(owner) => Next::Own(owner),
        Outcome::Held => Next::Step(Step::Connect),
        Outcome::Welcomed(client) => Next::Follow(client),
        Outcome::Unanswered => Next::Step(Step::Pause),
        Outcome::Paused => Next::Step(first(candidacy, false)),
        Outcome::Failed(error) => Next::Fail(error),
    }
}
