//! phrasecount, the program, as a process.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use benches::{memory_bytes_of, runtime};
use keyspace::Environment;
use rusqlite::Connection;

use crate::phrases::{Count, Counts};

/// How often the memory of a process is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// How a process has been.
#[must_use]
pub(crate) struct Ended {
    pub(crate) took: Duration,
    /// The peak of resident memory, if the system reports it.
    pub(crate) peak_bytes: Option<u64>,
}

/// Lets a process count a folder, on a store of its own and into a SQLite file, and samples its memory.
pub(crate) fn run(program: &Path, folder: &Path, store: &Path, out: &Path) -> Ended {
    let env = Environment::system();
    let began = env.now();
    let child = Command::new(program)
        .arg("run")
        .arg(folder)
        .arg("--out")
        .arg(out)
        .args(["--quiet", "--db"])
        .arg(format!("embedded:{}", store.display()))
        .stdout(Stdio::null())
        .spawn();
    let mut child = child.expect("the system starts processes");
    let id = child.id().to_string();
    let mut peak_bytes = None;
    let status = runtime(1).block_on(async {
        loop {
            // The system keeps the most there was for as long as the process lives.
            peak_bytes = memory_bytes_of(&id, "VmHWM").or(peak_bytes);
            let ended = child.try_wait().expect("a child can be waited for");
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
