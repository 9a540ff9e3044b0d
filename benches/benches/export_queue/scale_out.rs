//! Processes of phrasecount that share the work on a cluster.
//!
//! Each trial has its own cluster of one process: the program's keys have a fixed place, which may hold other counts on
//! a shared cluster.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use benches::figures::{Figures, Rounds, turns};
use benches::processor_time_of_children;
use benches::statistics::median;
use benches::table::Table;
use conformance::scale;
use conformance::server::Server;
use keyspace::Environment;
use tempfile::TempDir;

use crate::Told;
use crate::corpus::Corpus;
use crate::phrases::{self, Counts};
use crate::program::{Program, assert_exported};

/// What all trials share.
struct Job {
    folder: TempDir,
    megabytes: f64,
    expected: Counts,
    program: PathBuf,
}

/// The outcome with a number of processes.
struct ProcessesOutcome {
    processes: usize,
    rounds: Rounds,
    /// The processor time of all processes, in each round, if the system reports it.
    used: Vec<Duration>,
}

/// Counts a folder by several numbers of processes.
pub(crate) fn measure() -> Told {
    // Fail early if no server can start: preparing a trial takes long.
    drop(Server::start()?);
    let corpus = Corpus::read(scale(2, 16))?;
    let folder = corpus.write();
    let job = Job {
        megabytes: corpus.megabytes(),
        expected: phrases::of_folder(folder.path()),
        program: Program::build(),
        folder,
    };
    let mut outcomes = [1, 2, 4].map(|processes| ProcessesOutcome {
        processes,
        rounds: Rounds::default(),
        used: Vec::new(),
    });
    for turn in turns(outcomes.len(), scale(1, 3)) {
        let outcome = &mut outcomes[turn];
        let (figures, used) = job.share(&Server::start()?, outcome.processes);
        outcome.rounds.push(figures);
        outcome.used.extend(used);
    }
    let megabytes = job.megabytes;
    let phrases = job.expected.len();
    Ok(format!(
        "{megabytes:.1} MB of text, {phrases} phrases, counted on a cluster by processes of four workers \
         each\n\n{}",
        table(&outcomes, megabytes)
    ))
}

impl Job {
    /// Loads the folder, lets a number of processes count it, and exports the counts.
    fn share(&self, cluster: &Server, processes: usize) -> (Figures, Option<Duration>) {
        let program = Program::on(&self.program, cluster.url());
        let env = Environment::system();
        let load: [&OsStr; 2] = ["load".as_ref(), self.folder.path().as_ref()];
        let _ = program.start(&load).finish();
        let began = env.now();
        let before = processor_time_of_children();
        let work = ["work", "--until-idle"].map(OsStr::new);
        let working: Vec<_> = (0..processes).map(|_| program.start(&work)).collect();
        for process in working {
            let _ = process.finish();
        }
        let took = env.now() - began;
        let used = processor_time_of_children().zip(before);
        let place = tempfile::tempdir().expect("the system has a temporary folder");
        let out = place.path().join("phrases.sqlite");
        self.export(&program, &out);
        assert_exported(&out, &self.expected);
        (
            Figures::of_rate(self.megabytes / took.as_secs_f64()),
            used.map(|(after, before)| after.saturating_sub(before)),
        )
    }

    fn export(&self, program: &Program, out: &Path) {
        let export = ["export", "--until-idle", "--out"].map(OsStr::new);
        let _ = program
            .start(&[&export[..], &[out.as_ref()]].concat())
            .finish();
    }
}

fn table(outcomes: &[ProcessesOutcome; 3], megabytes: f64) -> Table {
    let mut table = Table::new([
        "processes",
        "MB/s",
        "times one",
        "processor time of all",
        "of each",
        "cores used",
    ]);
    for outcome in outcomes {
        let rate = outcome.rounds.median(|figures| figures.rate);
        let mut cells = vec![
            outcome.processes.to_string(),
            format!("{rate:.2}"),
            format!("{:.2}", outcome.rounds.median_ratio(&outcomes[0].rounds)),
        ];
        if outcome.used.is_empty() {
            cells.extend(["not measured"; 3].map(str::to_owned));
        } else {
            let used = median(outcome.used.iter().map(Duration::as_secs_f64));
            cells.extend([
                format!("{used:.2} s"),
                format!("{:.2} s", used / outcome.processes as f64),
                format!("{:.2}", used * rate / megabytes),
            ]);
        }
        table.push(cells);
    }
    table
}
