//! The command line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};
use console::terminal::parse_address;

use crate::choice::{self, Choice};
use crate::top;

/// Counts every phrase of four words in the text files below a directory, and keeps the counts in SQLite.
///
/// Of Markdown, it counts the prose: neither fenced code blocks, nor comments, nor the targets of links.
#[derive(Parser)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,

    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Args)]
pub(crate) struct Options {
    /// The store: `embedded:<path>`, `memory:`, `fdb:` or `fdb:<cluster file>`.
    ///
    /// `memory:` suits a few megabytes of text: it takes about 100 MB of memory, and 50 MB more for each megabyte
    /// of text. An embedded store takes 200 to 550 MB of memory, and a file 5 to 10 times as large as the text, plus
    /// about 130 MB while the program runs.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        default_value = "embedded:phrasecount.keyspace"
    )]
    pub(crate) db: String,

    /// Give up if the store does not answer for this long, in seconds.
    #[arg(
        long,
        global = true,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) time_limit: u16,

    /// Print no progress.
    #[arg(long, global = true)]
    pub(crate) quiet: bool,

    /// Print a line for every document, step and batch.
    #[arg(long, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: bool,

    /// Print the result as JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Serve the console at this address while the command runs: pages that show the queues. `127.0.0.1:8080`
    /// is reached from this machine only.
    #[arg(long, global = true, value_name = "ADDRESS", value_parser = parse_address)]
    pub(crate) console: Option<SocketAddr>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Load a directory, count its phrases and export the counts.
    Run {
        #[command(flatten)]
        files: Files,
        #[command(flatten)]
        out: Out,
        #[command(flatten)]
        workers: WorkerCount,
    },
    /// Load a directory: add new files, update changed ones, and remove documents whose files are gone.
    Load {
        #[command(flatten)]
        files: Files,
    },
    /// Count loaded documents, until stopped by Ctrl-C or SIGTERM.
    Work {
        #[command(flatten)]
        workers: WorkerCount,
        /// Stop as soon as there is nothing left to count.
        #[arg(long)]
        until_idle: bool,
    },
    /// Export the counts, until stopped by Ctrl-C or SIGTERM.
    Export {
        #[command(flatten)]
        out: Out,
        /// Stop as soon as there is nothing left to export.
        #[arg(long)]
        until_idle: bool,
    },
    /// Print the phrases that occur most often.
    Top {
        /// How many phrases to print.
        #[arg(default_value_t = TOP)]
        count: usize,
    },
    /// Print the counts of a phrase.
    Get {
        /// The phrase: four words.
        #[arg(value_parser = top::phrase)]
        phrase: String,
    },
    /// Print the number of documents and phrases, the work that is left, and the work that was given up.
    Stats,
}

impl Command {
    /// Returns the files that the command loads.
    pub(crate) fn files(&self) -> Option<&Files> {
        match self {
            Self::Run { files, .. } | Self::Load { files } => Some(files),
            _ => None,
        }
    }

    /// Returns the SQLite file that the command writes.
    pub(crate) fn out(&self) -> Option<&Path> {
        match self {
            Self::Run { out, .. } | Self::Export { out, .. } => Some(&out.out),
            _ => None,
        }
    }

    /// Returns whether the command only reads the store.
    pub(crate) fn only_looks(&self) -> bool {
        matches!(self, Self::Top { .. } | Self::Get { .. } | Self::Stats)
    }
}

#[derive(Args)]
pub(crate) struct Files {
    /// The directory. Documents from other directories are removed from the store.
    pub(crate) directory: PathBuf,
    /// Count files of any name, not only text files.
    #[arg(long, long_help = choice::help())]
    all: bool,
}

impl Files {
    pub(crate) fn choice(&self) -> Choice {
        if self.all { Choice::All } else { Choice::Text }
    }
}

#[derive(Args)]
pub(crate) struct Out {
    /// The SQLite file.
    #[arg(long, value_name = "FILE", default_value = "phrasecount.sqlite")]
    pub(crate) out: PathBuf,
}

#[derive(Args)]
pub(crate) struct WorkerCount {
    /// How many documents to count at the same time.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: u16,
}

/// How many phrases `top` and `run` print by default.
pub(crate) const TOP: usize = 10;
