//! What programs with the console in them share: text for a terminal, the command line, and the signals that stop them.
//!
//! All that such a program prints goes through [`print()`] or [`tell`], so that no stored text, name, path, argument or
//! reason can move the cursor, clear the screen, or forge or hide a line.

use std::env;
use std::fmt::Display;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process;
use std::sync::Mutex;
use std::thread;

use clap::Parser;

pub use export_queue::keyspace::plain::{line, lines, short};

/// Prints a text to standard output, as [`lines`]. A reader that has seen enough, as `head` has, is no failure.
///
/// # Errors
/// Those of standard output.
pub fn print(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(lines(text).as_bytes());
    match printed.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Prints a text to standard error, as [`lines`]. If nothing reads it, there is still the exit status.
pub fn tell(text: impl Display) {
    let _ = io::stderr().lock().write_all(lines(text).as_bytes());
}

/// Prints a text, as [`line()`], over the line of the terminal that standard error has begun.
pub fn tell_over(text: impl Display) {
    let _ = write!(io::stderr().lock(), "\r{}", line(text));
}

/// How many characters of an error are shown. It may echo an argument or a stored reason of any length.
const MAX_ERROR_CHARS: usize = 4_000;

/// Prints an error with its causes on one line of standard error.
pub fn tell_error(error: &(dyn std::error::Error + 'static)) {
    let text = export_queue::keyspace::error::chain(error).to_string();
    tell(format_args!("error: {}\n", short(&text, MAX_ERROR_CHARS)));
}

/// Parses the command line. Prints the help, or what is wrong, and ends the process if there is nothing to carry out.
pub fn parse<P: Parser>() -> P {
    P::try_parse().unwrap_or_else(|error| {
        if !error.use_stderr() {
            error.exit();
        }
        // The error echoes arguments. A line feed in one of them must not begin a line of ours.
        let arguments = env::args_os().map(|argument| line(argument.to_string_lossy()));
        let error = P::try_parse_from(arguments).err().unwrap_or(error);
        tell(error.render());
        process::exit(error.exit_code())
    })
}

/// Parses the address that a program shall listen on.
///
/// # Errors
/// What an address looks like.
pub fn parse_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "expected an IP address and a port, such as 127.0.0.1:8080")
}

/// Checks that the system lets this process start a number of threads. A runtime does not report a thread that it
/// cannot start: it panics, or waits for that thread without end.
///
/// # Errors
/// A limit of the system, such as that of the processes and threads of a user.
pub fn check_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        // No thread ends before all have begun.
        let closed = gate.lock();
        let started = (0..count).try_for_each(|_| {
            let thread = thread::Builder::new();
            thread.spawn_scoped(scope, || drop(gate.lock())).map(drop)
        });
        drop(closed);
        started
    })
}

/// How a process was asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Stop {
    /// By Ctrl-C.
    Interrupted = 130,
    /// By `SIGTERM`, which service managers send.
    Terminated = 143,
}

impl Stop {
    /// Returns the exit status that shells expect of a process that has stopped for this reason.
    #[must_use]
    pub fn exit_status(self) -> u8 {
        self as u8
    }
}

/// Waits until the process is asked to stop, by Ctrl-C or by `SIGTERM`. From the call on, neither ends the process by
/// itself: a program may say that it has begun as soon as it has the future.
///
/// # Errors
/// Signals cannot be received. Then they go on ending the process.
///
/// # Panics
/// Panics outside a tokio runtime.
///
/// # Cancel safety
/// Dropping the future loses a signal that nothing else waits for.
pub fn stopped() -> impl Future<Output = io::Result<Stop>> + Send + 'static {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let interrupts = signal(SignalKind::interrupt());
        let terminations = signal(SignalKind::terminate());
        async move {
            let mut interrupts = interrupts?;
            let mut terminations = terminations?;
            tokio::select! {
                biased;
                _ = interrupts.recv() => Ok(Stop::Interrupted),
                _ = terminations.recv() => Ok(Stop::Terminated),
            }
        }
    }
    #[cfg(not(unix))]
    {
        async { tokio::signal::ctrl_c().await.map(|()| Stop::Interrupted) }
    }
}
