//! phrasecount, the program, as processes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use benches::{memory_bytes_of, runtime};
use conformance::process::program;
use keyspace::Environment;
use rusqlite::Connection;

use crate::phrases::{Count, Counts};

/// How often the memory of a process is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The program, on a store.
pub(crate) struct Program {
    path: PathBuf,
    db: String,
}

/// How a process has been.
#[must_use]
pub(crate) struct Ended {
    pub(crate) took: Duration,
    /// The peak of resident memory, if the system reports it.
    pub(crate) peak_bytes: Option<u64>,
}

impl Program {
    /// Builds the program.
    pub(crate) fn build() -> PathBuf {
        program("phrasecount")
    }

    pub(crate) fn on(path: &Path, db: String) -> Self {
        Self {
            path: path.to_owned(),
            db,
        }
    }

    /// Starts a process.
    pub(crate) fn start(&self, arguments: &[&OsStr]) -> Process {
        let child = Command::new(&self.path)
            .args(arguments)
            .args(["--quiet", "--db", &self.db])
            .stdout(Stdio::null())
            .spawn();
        Process(child.expect("the system starts processes"))
    }
}

/// A process, which does not outlive its trial.
pub(crate) struct Process(Child);

impl Process {
    /// Waits until the process ends, and samples its memory.
    pub(crate) fn finish(mut self) -> Ended {
        let env = Environment::system();
        let id = self.0.id().to_string();
        let began = env.now();
        let mut peak_bytes = None;
        let status = runtime(1).block_on(async {
            loop {
                // The system keeps the most there was for as long as the process lives.
                peak_bytes = memory_bytes_of(&id, "VmHWM").or(peak_bytes);
                let ended = self.0.try_wait().expect("a child can be waited for");
                match ended {
                    Some(status) => return status,
                    None => env.sleep(LOOK_INTERVAL).await,
                }
            }
        });
        assert!(status.success(), "phrasecount failed: {status}");
        let took = env.now() - began;
        Ended { took, peak_bytes }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended by itself, unless the trial failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes sure that the program has exported the right counts into a SQLite file: as many phrases, with as
/// many documents and occurrences.
pub(crate) fn assert_exported(file: &Path, expected: &Counts) {
    let file = Connection::open(file).expect("the program has written it");
    let sums = "SELECT count(*), sum(documents), sum(occurrences) FROM phrases";
    let found: [i64; 3] = file
        .query_row(sums, [], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]))
        .expect("it has such a table");
    let mut sum = Count::default();
    for count in expected.values() {
        sum.add(*count);
    }
    let expected = [expected.len() as u64, sum.documents, sum.occurrences];
    assert_eq!(found.map(i64::unsigned_abs), expected);
}
