//! Progress messages: bars on a terminal, plain lines elsewhere, or nothing.

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use console::terminal;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Counters of the work that all tasks of this process have done.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    moved: AtomicU64,
    exported: AtomicU64,
}

impl Tally {
    pub(crate) fn moved(&self, phrases: usize) {
        self.moved.fetch_add(phrases as u64, Ordering::Relaxed);
    }

    pub(crate) fn exported(&self, phrases: usize) {
        self.exported.fetch_add(phrases as u64, Ordering::Relaxed);
    }

    /// Returns how many phrases were added or subtracted, distinct within each content.
    pub(crate) fn phrases_moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Returns how many counts were exported.
    pub(crate) fn counts_exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }
}

/// Prints progress. Clones share one terminal.
#[derive(Clone)]
pub(crate) struct Progress {
    how: How,
    has_details: bool,
}

#[derive(Clone)]
enum How {
    Bars(MultiProgress),
    Lines,
    Nothing,
}

impl Progress {
    pub(crate) fn new(is_quiet: bool, has_details: bool) -> Self {
        let how = match (is_quiet, io::stderr().is_terminal()) {
            (true, _) => How::Nothing,
            (false, true) => How::Bars(MultiProgress::new()),
            (false, false) => How::Lines,
        };
        Self {
            how,
            has_details: has_details && !is_quiet,
        }
    }

    /// Begins a phase with a number of steps. Zero means that the number is unknown.
    pub(crate) fn phase(&self, name: &'static str, steps: u64) -> Phase {
        let bar = match &self.how {
            How::Bars(bars) => {
                let template = if steps == 0 {
                    "{spinner} {prefix:<10} {msg}"
                } else {
                    "{spinner} {prefix:<10} {bar:30} {pos}/{len} {msg}"
                };
                let style = ProgressStyle::with_template(template).expect("the template is right");
                let bar = bars.add(ProgressBar::new(steps).with_style(style).with_prefix(name));
                bar.enable_steady_tick(Duration::from_millis(200));
                bar
            }
            How::Lines | How::Nothing => ProgressBar::hidden(),
        };
        Phase {
            bar,
            progress: self.clone(),
        }
    }

    /// Prints a line about a small step, if `--verbose` was given.
    pub(crate) fn detail<T: Display>(&self, line: impl FnOnce() -> T) {
        if self.has_details {
            self.line(line());
        }
    }

    /// Prints one line. If the standard error is closed, the work goes on without messages.
    pub(crate) fn line(&self, line: impl Display) {
        let line = terminal::line(line);
        match &self.how {
            How::Bars(bars) => {
                let _ = bars.println(line);
            }
            How::Lines => terminal::tell(line + "\n"),
            How::Nothing => {}
        }
    }
}

/// A phase of the work that is in progress.
pub(crate) struct Phase {
    bar: ProgressBar,
    progress: Progress,
}

impl Phase {
    pub(crate) fn advance(&self) {
        self.bar.inc(1);
    }

    pub(crate) fn tell(&self, message: String) {
        self.bar.set_message(terminal::line(message));
    }

    pub(crate) fn finish(&self, line: &str) {
        self.bar.finish_and_clear();
        self.progress.line(line);
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
