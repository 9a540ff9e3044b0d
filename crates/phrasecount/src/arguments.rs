//! What the program is told on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::choice::{self, Choice};
use crate::top;

/// Counts every phrase of four words in the files of a directory, and keeps the counts in SQLite.
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
    /// `memory:` is for a few megabytes of text: it takes some 100 MB, and 50 MB more for each megabyte.
    /// With an embedded store it is 200 to 450 MB of memory, and a file some 8 times as large as the text.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        default_value = "embedded:phrasecount.keyspace"
    )]
    pub(crate) db: String,

    /// How long to wait for the store until it counts as gone, in seconds.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) time_limit: u16,

    /// Tell nothing while the work goes on.
    #[arg(long, global = true)]
    pub(crate) quiet: bool,

    /// Tell of every document, step and batch.
    #[arg(long, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: bool,

    /// Print the result as JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Load a directory, count it and export the counts.
    Run {
        #[command(flatten)]
        files: Files,
        #[command(flatten)]
        out: Out,
        #[command(flatten)]
        workers: WorkerCount,
    },
    /// Make the documents of the store those of a directory.
    Load {
        #[command(flatten)]
        files: Files,
    },
    /// Count what was loaded, until stopped by Ctrl-C.
    Work {
        #[command(flatten)]
        workers: WorkerCount,
        /// Stop when there is nothing left to count.
        #[arg(long)]
        until_idle: bool,
    },
    /// Export the counts, until stopped by Ctrl-C.
    Export {
        #[command(flatten)]
        out: Out,
        /// Stop when there is nothing left to export.
        #[arg(long)]
        until_idle: bool,
    },
    /// Print the phrases that occur most often.
    Top {
        /// How many.
        #[arg(default_value_t = TOP)]
        count: usize,
    },
    /// Print the counts of a phrase.
    Get {
        /// The phrase: four words.
        #[arg(value_parser = top::phrase)]
        phrase: String,
    },
    /// Print how many documents and phrases there are, what is left to be done, and what was given up.
    Stats,
}

impl Command {
    /// Returns the files that are loaded.
    pub(crate) fn files(&self) -> Option<&Files> {
        match self {
            Self::Run { files, .. } | Self::Load { files } => Some(files),
            _ => None,
        }
    }

    /// Returns whether it only looks at a store.
    pub(crate) fn only_looks(&self) -> bool {
        matches!(self, Self::Top { .. } | Self::Get { .. } | Self::Stats)
    }
}

#[derive(Args)]
pub(crate) struct Files {
    /// The directory. Documents from elsewhere are removed from the store.
    pub(crate) directory: PathBuf,
    /// Take files of any name, not only text.
    #[arg(long, long_help = choice::help())]
    all: bool,
}

impl Files {
    pub(crate) fn choice(&self) -> Choice {
        match self.all {
            true => Choice::All,
            false => Choice::Text,
        }
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
    /// How many contents are counted at the same time.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: u16,
}

/// How many phrases are printed.
pub(crate) const TOP: usize = 10;
