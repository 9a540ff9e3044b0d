//! The socket of a store: `<path>.socket`, beside the store's file.
//!
//! The owner binds it in a new folder, gives it the owner and the permissions of the store's file, and then moves it to
//! its place. So the name never stands for a socket with other permissions, and replaces that of a former owner at
//! once. The kernel lets a process connect only if the permissions allow it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::BytesMut;
use futures::FutureExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::hosts::Hosts;
use crate::contract::env::Environment;
use crate::stores::embedded::backend::place::take_over;
use crate::stores::embedded::disk::presence::{SOCKET, is_socket, place};
use crate::stores::embedded::log::files::{canonical, folder_of};
use crate::stores::embedded::repeats::{Repeats, backoff};
use crate::stores::embedded::threads;
use crate::stores::embedded::wire::frames::WriteNow;
use crate::stores::embedded::wire::greeting::Peer;
use crate::stores::embedded::wire::{self, Greeting, Refusal};

/// The longest path that all systems take as the address of a socket, in bytes.
const MAX_ADDRESS_BYTES: usize = 100;

/// How often an owner looks whether its socket still has its name.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The door of an owner: takes the connections of clients, on a thread of its own.
pub(crate) struct Listener {
    stop: Arc<ListenerStop>,
    /// `None` after the end.
    thread: Option<JoinHandle<()>>,
}

/// Ends the thread of a listener.
#[derive(Default)]
struct ListenerStop {
    is_set: AtomicBool,
    notify: Notify,
}

/// A socket that has its name.
struct Socket {
    listener: net::UnixListener,
    /// The device and the number of its name.
    place: (u64, u64),
}

impl Listener {
    /// Opens the socket of the store at `main`. If there is none yet, or no more, tries again.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(crate) fn open(main: &Path, hosts: Arc<Hosts>) -> io::Result<Self> {
        let main = canonical(main)?;
        let first = bind(&main, hosts.environment());
        let stop = Arc::new(ListenerStop::default());
        let stopped = stop.clone();
        let env = hosts.environment().clone();
        let thread = threads::spawn(&env, "keyspace-listener", move || {
            let Some(runtime) = wait_for_runtime(hosts.environment(), &stopped) else {
                return;
            };
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    // The lock of the store's file may be free.
                    _ = hosts.engine().failed() => {}
                    () = listen(&main, first, &hosts) => {}
                    () = stopped.notify.notified() => {}
                }
            });
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Takes no more connections. Blocks until that is so.
    pub(crate) fn close(mut self) {
        if let Some(thread) = self.stop() {
            // The thread has nothing that panics.
            let _ = thread.join();
        }
    }

    fn stop(&mut self) -> Option<JoinHandle<()>> {
        self.stop.is_set.store(true, Ordering::SeqCst);
        self.stop.notify.notify_one();
        let thread = self.thread.take();
        thread.inspect(|thread| thread.thread().unpark())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Makes the runtime of a listener, and tries again as long as there are no descriptors for it. `None` if the store is
/// closed meanwhile.
fn wait_for_runtime(env: &Environment, stop: &ListenerStop) -> Option<Runtime> {
    let mut failures = 0;
    while !stop.is_set.load(Ordering::SeqCst) {
        match threads::runtime(env) {
            Ok(runtime) => return Some(runtime),
            Err(error) if failures == 0 => {
                tracing::warn!(%error, "other processes cannot use the store yet");
            }
            Err(_) => {}
        }
        thread::park_timeout(backoff(failures));
        failures += 1;
    }
    None
}

/// Makes a socket, and gives it its name.
fn bind(main: &Path, env: &Environment) -> io::Result<Socket> {
    env.check_room()?;
    let folder = tempfile::Builder::new()
        .prefix(".keyspace-")
        .tempdir_in(folder_of(main))?;
    // To remove it with all that is in it would take a descriptor.
    let folder = folder.keep();
    let new = folder.join("socket");
    let bound = bind_at(&new, main);
    // If it was not moved.
    let _ = fs::remove_file(new);
    let _ = fs::remove_dir(folder);
    bound
}

fn bind_at(new: &Path, main: &Path) -> io::Result<Socket> {
    let store = fs::metadata(main)?;
    let address = Address::in_folder(new)?;
    let listener = net::UnixListener::bind(&address.path)?;
    let permissions = take_over(&store, |user, group| chown(new, user, group));
    fs::set_permissions(new, permissions)?;
    listener.set_nonblocking(true)?;
    let made = fs::symlink_metadata(new)?;
    let place = place(main, SOCKET);
    if !is_socket(&place)? {
        let text = format!("{} is not a socket", place.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    fs::rename(new, place)?;
    Ok(Socket {
        listener,
        place: (made.dev(), made.ino()),
    })
}

/// Takes connections. If the socket cannot be made, or loses its name, makes another one, unless the store has failed.
async fn listen(main: &Path, first: io::Result<Socket>, hosts: &Arc<Hosts>) {
    // A simulated clock must not go on by itself.
    let env = Environment::system();
    let mut socket = first;
    let mut failures = 0;
    let mut repeats = Repeats::default();
    loop {
        let opened = socket.and_then(|socket| {
            let listener = UnixListener::from_std(socket.listener)?;
            Ok((listener, socket.place))
        });
        match opened {
            Ok((listener, place)) => {
                failures = 0;
                tokio::select! {
                    () = accept_all(&listener, hosts) => {}
                    () = lose_name(main, place) => {}
                }
                tracing::warn!("the socket of the store is gone, and is made again");
            }
            Err(error) => {
                if let Some(times) = repeats.count(env.now()) {
                    let what = "other processes cannot use the store: it has no socket";
                    tracing::warn!(%error, times, "{what}, and the owner tries again to make one");
                }
                env.sleep(backoff(failures)).await;
                failures += 1;
            }
        }
        // Another owner may have taken the name.
        if has_failed(hosts) {
            return;
        }
        socket = bind(main, hosts.environment());
    }
}

/// Returns whether the store has failed, so that another process may own it by now.
fn has_failed(hosts: &Hosts) -> bool {
    hosts.engine().failed().now_or_never().is_some()
}

async fn accept_all(listener: &UnixListener, hosts: &Arc<Hosts>) {
    let env = Environment::system();
    let mut failures = 0;
    let mut repeats = Repeats::default();
    loop {
        match accept(listener, hosts).await {
            Ok(()) => failures = 0,
            Err(error) => {
                // The process has no descriptors or no threads left, for the moment.
                if let Some(times) = repeats.count(env.now()) {
                    tracing::warn!(%error, times, "a client could not be let in");
                }
                env.sleep(backoff(failures)).await;
                failures += 1;
            }
        }
    }
}

/// Waits until the name of a socket leads elsewhere.
async fn lose_name(main: &Path, socket: (u64, u64)) {
    let name = place(main, SOCKET);
    let env = Environment::system();
    loop {
        env.sleep(LOOK_INTERVAL).await;
        let is_there = match fs::symlink_metadata(&name) {
            Ok(found) => (found.dev(), found.ino()) == socket,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };
        if !is_there {
            return;
        }
    }
}

async fn accept(listener: &UnixListener, hosts: &Arc<Hosts>) -> io::Result<()> {
    let (stream, _) = listener.accept().await?;
    let mut accepted = Accepted(Some(stream.into_std()?));
    let stream = move || {
        let stream = accepted.0.take().ok_or(io::ErrorKind::NotConnected)?;
        UnixStream::from_std(stream)
    };
    hosts.serve(stream, || usize::MAX)
}

/// A connection that was taken. Dropping it before it is served refuses the client.
struct Accepted(Option<net::UnixStream>);

impl Drop for Accepted {
    fn drop(&mut self) {
        if let Some(stream) = &mut self.0 {
            let mut refusal = BytesMut::new();
            wire::put(&mut refusal, 0, &Greeting::Refused(Refusal::Short));
            // It may have gone.
            let _ = stream.write(&refusal);
        }
    }
}

/// Connects to the socket of the store at `main`, if its owner may be trusted: it is this user, that of the store's
/// file, or root. In a folder that is open to all, any user could have made a socket of that name.
///
/// The stream belongs to the runtime that this is called in.
pub(crate) async fn connect(main: &Path) -> io::Result<UnixStream> {
    const ROOT: u32 = 0;
    let main = canonical(main)?;
    let address = Address::of_socket(&place(&main, SOCKET))?;
    let stream = UnixStream::connect(&address.path).await?;
    let uid = stream.peer_cred()?.uid();
    let store = fs::metadata(main)?.uid();
    if [ROOT, store, rustix::process::geteuid().as_raw()].contains(&uid) {
        return Ok(stream);
    }
    let text = format!("the socket of the store belongs to user {uid}, and the store to another");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Returns the process that listens at the other end of a connection.
pub(crate) fn peer(stream: &UnixStream) -> Peer {
    let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
    let Some(pid) = pid else {
        return Peer(String::new());
    };
    // Only on Linux.
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Peer(match name.trim_end() {
        "" => format!(", process {pid},"),
        name => format!(", process {pid} ({name}),"),
    })
}

/// Returns what writes to a connection at once, on any thread.
pub(crate) fn write_now(stream: &UnixStream) -> io::Result<WriteNow> {
    let stream = net::UnixStream::from(stream.as_fd().try_clone_to_owned()?);
    Ok(Box::new(move |bytes| (&stream).write(bytes)))
}

/// A path that can be the address of a socket. In the place of one that is too long, it begins with a descriptor.
struct Address {
    path: PathBuf,
    /// Open as long as the path is used.
    _file: Option<File>,
}

impl Address {
    /// Returns an address of the socket at `path`.
    fn of_socket(path: &Path) -> io::Result<Self> {
        Self::of(path, |path| {
            #[cfg(target_os = "linux")]
            let options = {
                use std::os::unix::fs::OpenOptionsExt;

                let flags = rustix::fs::OFlags::PATH.bits().cast_signed();
                File::options().read(true).custom_flags(flags).clone()
            };
            #[cfg(not(target_os = "linux"))]
            let options = File::options().read(true).clone();
            Ok((options.open(path)?, None))
        })
    }

    /// Returns an address of a socket that is to be made at `path`, whose name is short.
    fn in_folder(path: &Path) -> io::Result<Self> {
        Self::of(path, |path| {
            let folder = File::open(folder_of(path))?;
            Ok((folder, path.file_name()))
        })
    }

    fn of<'a>(
        path: &'a Path,
        open: impl FnOnce(&'a Path) -> io::Result<(File, Option<&'a OsStr>)>,
    ) -> io::Result<Self> {
        if path.as_os_str().as_bytes().len() <= MAX_ADDRESS_BYTES {
            return Ok(Self {
                path: path.to_owned(),
                _file: None,
            });
        }
        if !cfg!(target_os = "linux") {
            let text = format!("the path of its socket is longer than {MAX_ADDRESS_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let (file, name) = open(path)?;
        let mut path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        path.extend(name);
        Ok(Self {
            path,
            _file: Some(file),
        })
    }
}
