//! The examples, each as a module: what it shows, in the code that an application would have. Each checks what it
//! shows.

// What an example prints goes through `console::terminal`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod inverted_index;
pub mod payments;

use std::fmt::Display;

use console::terminal;

/// Prints a line to standard output. If nothing reads it, an example still checks what it shows.
pub(crate) fn say(text: impl Display) {
    let _ = terminal::print(terminal::line(text) + "\n");
}
