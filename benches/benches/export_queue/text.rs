//! phrasecount on real text, compared with a hash map in memory.

use benches::figures::{Figures, Rounds};
use benches::statistics::median;
use benches::table::Table;
use conformance::process::program;
use conformance::scale;
use keyspace::Environment;

use crate::corpus::Corpus;
use crate::phrases;
use crate::program::{assert_exported, run};

/// Counts a folder, by the program and in memory. Returns what it prints, or why there is nothing to print.
pub(crate) fn measure() -> Result<String, String> {
    let corpus = Corpus::read(scale(8, 50))?;
    let folder = corpus.write();
    let program = program("phrasecount");
    let megabytes = corpus.megabytes();
    let env = Environment::system();
    let mut plain = Rounds::default();
    let mut counted = Rounds::default();
    let mut peaks = Vec::new();
    let mut phrases = 0;
    for _ in 0..scale(1, 3) {
        let began = env.now();
        let counts = phrases::of_folder(folder.path());
        let took = env.now() - began;
        plain.push(Figures::of_rate(megabytes / took.as_secs_f64()));
        let place = tempfile::tempdir().expect("the system has a temporary folder");
        let store = place.path().join("store");
        let out = place.path().join("phrases.sqlite");
        let ended = run(&program, folder.path(), &store, &out);
        counted.push(Figures::of_rate(megabytes / ended.took.as_secs_f64()));
        peaks.extend(ended.peak_bytes);
        assert_exported(&out, &counts);
        phrases = counts.len();
    }
    let mut table = Table::new(["way", "MB/s", "times the hash map", "peak resident memory"]);
    let peak = if peaks.is_empty() {
        "not measured".to_owned()
    } else {
        let peaks = peaks.into_iter().map(|bytes| bytes as f64);
        format!("{:.0} MiB", median(peaks) / f64::from(1 << 20))
    };
    for (name, rounds, memory) in [
        ("hash map in memory", &plain, ""),
        ("phrasecount", &counted, &*peak),
    ] {
        table.push([
            name.to_owned(),
            format!("{:.2}", rounds.median(|figures| figures.rate)),
            format!("{:.3}", rounds.median_ratio(&plain)),
            memory.to_owned(),
        ]);
    }
    let files = corpus.files();
    Ok(format!(
        "{megabytes:.1} MB of text in {files} files, {phrases} phrases\n\n{table}"
    ))
}
