//! Takes part in [elections](super::election).

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;

use super::election::{self, Candidacy, Next, Outcome, Step};
use crate::contract::env::Environment;
use crate::contract::error::{OpenError, chain};
use crate::stores::embedded::backend::place::{FileId, is_replaced, replaced};
use crate::stores::embedded::disk::applications::Hold;
use crate::stores::embedded::disk::location::{self, Open};
use crate::stores::embedded::disk::open::Setup;
use crate::stores::embedded::disk::open_errors::open_error;
use crate::stores::embedded::disk::presence::Presence;
use crate::stores::embedded::options::{Options, Sharing};
use crate::stores::embedded::owner::socket;
use crate::stores::embedded::owner::{self, Owner};
use crate::stores::embedded::repeats::{Repeats, backoff};
use crate::stores::embedded::threads;
use crate::stores::embedded::wire::greeting::{Greeted, Unreachable, greet};
use crate::stores::embedded::wire::{Hello, Refusal, Welcome};

/// How long a client waits for the answer of the next owner before it says so, for the first time.
const SILENCE: Duration = Duration::from_secs(5);

/// The shortest and the longest pause between two attempts. They differ so that processes that wait for the same thing
/// do not all come back at once.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Those of a viewer: applications go first.
const VIEWER_PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(200));

/// A handle that needs a seat at a store.
pub(crate) struct Candidate {
    path: PathBuf,
    options: Options,
    open: Open,
    hello: Hello,
    /// Shows this owner of the store, and the next one, that there is a client.
    presence: Option<Presence>,
    /// Keeps viewers from owning the store. Always `None` in a viewer.
    hold: Option<Hold>,
    /// What the last owner has said, `None` before the first one.
    known: Option<Welcome>,
    /// Why an owner has not served this candidate, in this election.
    refusal: Option<Refusal>,
    /// Why there is no owner for the file at the path, although there is one.
    reason: Option<String>,
    /// The attempts in a row that have come to nothing.
    failures: u32,
    repeats: Repeats,
}

/// The seat of a candidate.
pub(super) enum Elected {
    Owner(Arc<Owner>),
    Client(Greeted<UnixStream>),
}

impl Elected {
    /// Returns what the owner says of the store.
    pub(super) fn welcome(&self) -> &Welcome {
        match self {
            Self::Owner(owner) => owner.hosts().greeting(),
            Self::Client(owner) => &owner.welcome,
        }
    }
}

/// What came of a candidate's step.
type StepOutcome = Outcome<Owner, Greeted<UnixStream>, OpenError>;

impl Candidate {
    pub(crate) fn new(path: &Path, options: &Options, open: Open) -> Self {
        Self {
            path: path.to_owned(),
            hello: Hello::new(
                options.environment.random_bytes(),
                options.durability,
                options.sharing == Sharing::Yield,
            ),
            options: options.clone(),
            open,
            presence: None,
            hold: None,
            known: None,
            refusal: None,
            reason: None,
            failures: 0,
            repeats: Repeats::default(),
        }
    }

    pub(super) fn environment(&self) -> &Environment {
        &self.options.environment
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_viewer(&self) -> bool {
        self.candidacy() == Candidacy::Viewer
    }

    fn candidacy(&self) -> Candidacy {
        match self.options.sharing {
            Sharing::Share | Sharing::Refuse => Candidacy::Owner,
            Sharing::ClientOnly => Candidacy::Client,
            Sharing::Yield => Candidacy::Viewer,
        }
    }

    /// Seeks a seat until there is one. If there is a limit, gives up when no owner has answered by then.
    ///
    /// # Errors
    /// - [`OpenError::StoreInUse`] or [`OpenError::NoOwner`] at the limit, or if the owner refuses this client
    /// - otherwise those of the opening
    pub(super) async fn elect(&mut self, limit: Option<Duration>) -> Result<Elected, OpenError> {
        let candidacy = self.candidacy();
        let begun = self.environment().now();
        self.refusal = None;
        self.reason = None;
        let delay = self.delay();
        if !delay.is_zero() {
            self.environment().sleep(delay).await;
        }
        let mut step = election::first(candidacy, self.known.is_some());
        loop {
            let passed = self.environment().now().saturating_sub(begun);
            let left = limit.map(|limit| limit.saturating_sub(passed));
            let attempt = match step {
                Step::Open => self.open(),
                Step::Connect => self.connect(left).await,
                Step::Pause => self.pause().await,
            };
            step = match election::next(candidacy, attempt) {
                Next::Step(step) => step,
                Next::Own(owner) => return Ok(Elected::Owner(Arc::new(owner))),
                Next::Follow(client) => return Ok(Elected::Client(client)),
                Next::Fail(error) => return Err(error),
            };
        }
    }

    /// Leaves. If no other process takes part any more, ends the store: its last owner has left it to others.
    pub(super) fn leave(mut self) {
        let Some(presence) = self.presence.take() else {
            return;
        };
        if self.is_viewer() {
            // Not even for a moment does it take a lock that an application may need.
            let Ok(Some(_hold)) = Hold::viewer(&self.path) else {
                return;
            };
            if !presence.is_last() {
                return;
            }
        } else {
            if !presence.is_last() {
                return;
            }
            // The store ends at once.
            self.options.sharing = Sharing::Refuse;
        }
        drop(presence);
        if let Some(former) = &self.known {
            owner::finish(&self.path, &self.options, former);
        }
    }

    /// Closes the store that this candidate owns as a viewer, and becomes a candidate again. An application opens it
    /// next. Returns once the store is being closed, on a thread of its own.
    pub(super) async fn hand_over(&mut self, owner: &Arc<Owner>) {
        tracing::info!("this process hands the store over to an application");
        while let Err(error) = self.try_hand_over(owner) {
            self.warn(&error, "a viewer cannot hand the store over yet");
            self.environment().sleep(VIEWER_PAUSES.1).await;
        }
    }

    fn try_hand_over(&mut self, owner: &Arc<Owner>) -> io::Result<()> {
        // First: so the store is left as one that another process has open.
        if self.presence.is_none() {
            self.presence = Some(Presence::join(&self.path)?);
        }
        let owner = owner.clone();
        // If the store has failed, its clients learn of it from there.
        let close = move || drop(owner.close());
        threads::spawn(self.environment(), "keyspace-hand-over", close).map(drop)
    }

    fn open(&mut self) -> StepOutcome {
        let setup = Setup {
            expected: self.known.as_ref().map(Welcome::identity),
            ..Setup::of(&self.options)
        };
        let store = match (self.open)(&self.path, &setup) {
            Ok(store) => store,
            // Without its hold, it may be a viewer that owns the store.
            Err(error @ OpenError::StoreInUse { .. })
                if self.options.sharing == Sharing::Refuse && self.hold.is_some() =>
            {
                return Outcome::Failed(error);
            }
            Err(OpenError::StoreInUse { reason, .. }) => {
                self.reason = reason;
                return Outcome::Held;
            }
            Err(error) => return self.not_opened(error),
        };
        let former = self.known.as_ref();
        match Owner::start(store, &self.path, &self.options, former) {
            Ok(owner) => {
                // The owner has its own.
                self.presence = None;
                self.hold = None;
                self.failures = 0;
                self.learn(owner.hosts().greeting().clone());
                Outcome::Opened(owner)
            }
            Err(error) => self.not_opened(error),
        }
    }

    fn not_opened(&mut self, error: OpenError) -> StepOutcome {
        if !self.may_pass(&error) {
            return Outcome::Failed(error);
        }
        self.failures += 1;
        self.warn(&chain(&error), "a client cannot take the store over");
        Outcome::Held
    }

    /// Returns whether a client should wait after it could not open the store: for another owner, whose program is
    /// newer or has what this one lacks at the moment, or for files that are put back or moved away.
    fn may_pass(&self, error: &OpenError) -> bool {
        let passes = matches!(
            error,
            OpenError::NewerFormat { .. }
                | OpenError::NameTaken { .. }
                | OpenError::NoStore { .. }
                | OpenError::LogWithoutStore { .. }
                | OpenError::Open { .. }
        );
        self.known.is_some() && passes && !is_replaced(error)
    }

    async fn connect(&mut self, left: Option<Duration>) -> StepOutcome {
        let error = match self.reach(left).await {
            Ok(client) => return self.welcomed(client),
            Err(error) => error,
        };
        // One that has not seen the store yet must not be taken for a client of the last owner.
        if self.known.is_none() {
            self.presence = None;
        }
        if let Unreachable::Refused(refusal) = &error {
            self.warn(refusal, "the owner of the store does not serve this client");
            self.refusal = Some(refusal.clone());
        }
        if is_failure(&error) {
            self.failures += 1;
        }
        let is_over = left.is_some_and(|left| left.is_zero());
        let is_final = match &error {
            Unreachable::Refused(refusal) => !refusal.may_pass(left.is_none()),
            Unreachable::Io(_) | Unreachable::Silent(_) => false,
        };
        if is_over || is_final {
            return Outcome::Failed(self.unreached(&error));
        }
        Outcome::Unanswered
    }

    /// Says why an election takes its time, at doubling intervals.
    fn warn(&mut self, error: &dyn Display, what: &str) {
        let now = self.environment().now();
        if self.known.is_some()
            && let Some(times) = self.repeats.count(now)
        {
            tracing::warn!(%error, times, "{what}, and waits");
        }
    }

    /// Notes the end of a connection. An owner that never answers is not asked at once again.
    pub(super) fn note_end(&mut self, was_answered: bool) {
        if was_answered {
            self.failures = 0;
        } else {
            self.failures += 1;
        }
    }

    async fn reach(&mut self, left: Option<Duration>) -> Result<Greeted<UnixStream>, Unreachable> {
        if !self.is_viewer() && self.hold.is_none() {
            self.hold = Hold::application(&self.path)?;
            if self.hold.is_some() && self.options.sharing == Sharing::Refuse {
                // No viewer owns the store any more. If the lock is held now, an application does.
                return Err(io::Error::from(io::ErrorKind::NotConnected).into());
            }
        }
        let stream = socket::connect(&self.path).await.map_err(silent)?;
        // Before the owner is asked: a client that could write and is not seen would be taken for one that has ended.
        if self.presence.is_none() {
            self.presence = Some(Presence::join_owner(&self.path).map_err(unlisted)?);
        }
        let write_now = socket::write_now(&stream)?;
        let owner = socket::peer(&stream);
        let env = self.environment();
        let mut greeting = std::pin::pin!(greet(stream, &self.hello));
        let in_time = env.timeout(left.unwrap_or(SILENCE), &mut greeting);
        let greeted = match in_time.await {
            Some(greeted) => greeted,
            None if left.is_some() => Err(Unreachable::Silent(owner)),
            None => {
                let path = self.path.display();
                let mut silence = SILENCE;
                loop {
                    tracing::warn!(%path, "the owner of the store{owner} does not answer, and this client waits");
                    silence = silence.saturating_mul(2);
                    if let Some(greeted) = env.timeout(silence, &mut greeting).await {
                        break greeted;
                    }
                }
            }
        };
        let greeted = greeted?;
        // The socket may be that of another store, by a link or a second name.
        if greeted.welcome.file != Some(FileId::at(&self.path)?) {
            let text = "the owner at its socket has another file open";
            self.reason.get_or_insert_with(|| text.to_owned());
            return Err(io::Error::other(text).into());
        }
        Ok(Greeted {
            write_now: Some(write_now),
            ..greeted
        })
    }

    fn welcomed(&mut self, mut client: Greeted<UnixStream>) -> StepOutcome {
        if !self.is_viewer() && self.hold.is_none() {
            // A viewer must not take the store over from this owner.
            return Outcome::Unanswered;
        }
        let welcome = &mut client.welcome;
        if let Some(former) = &self.known {
            if former.identity() != welcome.identity() {
                return Outcome::Failed(self.replaced());
            }
            // What an earlier owner knew stays true.
            welcome.alone_since = welcome.alone_since.max(former.alone_since);
        }
        let welcome = welcome.clone();
        self.learn(welcome);
        Outcome::Welcomed(client)
    }

    /// Notes what an owner says of the store.
    fn learn(&mut self, welcome: Welcome) {
        self.options.durability = Some(welcome.durability);
        self.open = location::open_existing;
        self.known = Some(welcome);
    }

    /// Returns how long the attempts in a row that have come to nothing delay the next one. The first of them does not:
    /// an owner that was killed may just have had nothing to answer.
    fn delay(&self) -> Duration {
        match self.failures {
            0 | 1 => Duration::ZERO,
            failures => backoff(failures - 1),
        }
    }

    async fn pause(&self) -> StepOutcome {
        let env = self.environment();
        let (shortest, longest) = if self.is_viewer() {
            VIEWER_PAUSES
        } else {
            PAUSES
        };
        let pause = shortest + (longest - shortest).mul_f64(env.random_unit());
        env.sleep(pause.max(self.delay())).await;
        Outcome::Paused
    }

    fn replaced(&self) -> OpenError {
        open_error(&self.path, replaced(&self.path))
    }

    fn unreached(&self, error: &Unreachable) -> OpenError {
        let path = self.path.clone();
        // An attempt that the limit has cut short says less.
        let refusal = self.refusal.as_ref().map(Refusal::to_string);
        let reason = refusal.or_else(|| self.reason.clone());
        let reason = reason.unwrap_or_else(|| error.to_string());
        match self.options.sharing {
            Sharing::ClientOnly => OpenError::NoOwner { path, reason },
            Sharing::Share | Sharing::Refuse | Sharing::Yield => OpenError::StoreInUse {
                path,
                reason: Some(reason),
            },
        }
    }
}

/// Returns whether the next attempt waits longer, because only what others do later lets it succeed.
fn is_failure(error: &Unreachable) -> bool {
    match error {
        // The next owner is about to come.
        Unreachable::Refused(Refusal::Leaving | Refusal::Yields) => false,
        Unreachable::Refused(_) => true,
        Unreachable::Io(error) => !is_nothing(error),
        Unreachable::Silent(_) => false,
    }
}

/// Returns whether there is nothing at a socket, as between two owners.
fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotConnected
    )
}

/// Says that an owner listens, but that the lock file is gone by which it sees its clients.
fn unlisted(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::NotFound {
        return error;
    }
    io::Error::other(
        "its owner is closing it, or its file `.lock` was removed: close it in all processes, and open it again",
    )
}

/// Explains that nothing listens.
fn silent(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ (io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => io::Error::new(
            kind,
            "no process listens at its socket: its owner does not share it, or has just ended",
        ),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// A client of a store in a folder of its own, whose owner has just closed it.
    async fn left_alone(path: impl FnOnce(&Path) -> PathBuf) -> (TempDir, Candidate) {
        let folder = tempfile::tempdir().unwrap();
        let options = Options::new();
        let owner = options.open(folder.path().join("store")).unwrap();
        let mut client = Candidate::new(&path(folder.path()), &options, location::open);
        let elected = client.elect(None).await.unwrap();
        assert!(matches!(elected, Elected::Client(_)));
        drop(elected);
        owner.close().unwrap();
        (folder, client)
    }

    /// Asserts that the client waits while a file is away or taken, and opens the store after that.
    fn check_waits(mut client: Candidate, put_back: impl FnOnce()) {
        for failures in 1..3 {
            let attempt = client.open();
            assert!(matches!(attempt, Outcome::Held));
            assert_eq!(client.failures, failures);
        }
        put_back();
        let Outcome::Opened(owner) = client.open() else {
            panic!("the store can be opened again");
        };
        owner.close().unwrap();
    }

    #[tokio::test]
    async fn a_client_at_a_takeover_leaves_another_store_as_it_is() {
        let names = |folder: &Path| {
            let entries = fs::read_dir(folder).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort_unstable();
            names
        };
        for is_linked in [true, false] {
            let (folder, mut client) = left_alone(|folder| {
                let link = folder.join("link");
                symlink("store", &link).unwrap();
                link
            })
            .await;
            let store = folder.path().join("store");
            let other = folder.path().join("other");
            Options::new().open(&other).unwrap().close().unwrap();
            let bytes = fs::read(&other).unwrap();
            let changed = if is_linked {
                fs::remove_file(folder.path().join("link")).unwrap();
                symlink("other", folder.path().join("link")).unwrap();
                other
            } else {
                // The file stays, and another store is written to it, without the log of the former one.
                for name in names(folder.path()) {
                    if name.to_str().unwrap().contains(".log.") {
                        fs::remove_file(folder.path().join(name)).unwrap();
                    }
                }
                fs::write(&store, &bytes).unwrap();
                store
            };
            let before = names(folder.path());
            let Outcome::Failed(error) = client.open() else {
                panic!("another store is at the path");
            };
            assert!(is_replaced(&error), "{error:?}");
            let known = client.known.clone().unwrap();
            owner::finish(&client.path, &client.options, &known);
            assert_eq!(fs::read(changed).unwrap(), bytes);
            assert_eq!(names(folder.path()), before);
        }
    }

    #[test]
    fn a_store_without_its_lock_says_so_and_is_asked_less_and_less_often() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let owner = Options::new().open(&path).unwrap();
        fs::remove_file(folder.path().join("store.lock")).unwrap();
        let refused = Options::new().with_patience(Duration::ZERO).open(&path);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("its file `.lock` was removed"), "{text}");
        let gone = unlisted(io::ErrorKind::NotFound.into());
        assert!(is_failure(&gone.into()));
        owner.close().unwrap();
    }

    #[tokio::test]
    async fn a_client_waits_at_a_takeover_until_a_name_of_the_store_is_free() {
        for name in ["store.lock", "store.apps", "store.socket"] {
            let (folder, client) = left_alone(|folder| folder.join("store")).await;
            let taken = folder.path().join(name);
            let aside = folder.path().join("aside");
            fs::rename(&taken, &aside).unwrap();
            fs::write(&taken, "a file of another program").unwrap();
            check_waits(client, || fs::rename(&aside, &taken).unwrap());
        }
    }

    #[tokio::test]
    async fn a_client_waits_at_a_takeover_until_files_that_were_moved_are_back() {
        for has_log in [true, false] {
            let (folder, client) = left_alone(|folder| folder.join("store")).await;
            let aside = tempfile::tempdir_in(folder.path()).unwrap();
            let mut moved = vec![];
            for entry in fs::read_dir(folder.path()).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                if name == "store" || name.contains(".log.") && !has_log {
                    let place = aside.path().join(name);
                    fs::rename(entry.path(), &place).unwrap();
                    moved.push((place, entry.path()));
                }
            }
            check_waits(client, || {
                for (place, path) in moved {
                    fs::rename(place, path).unwrap();
                }
            });
        }
    }
}
