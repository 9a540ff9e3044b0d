//! Checks that every line of every file arrived exactly once and in order.

use std::collections::{BTreeMap, HashMap};

use super::store::{Received, ReceivedLine};

/// Compares the records of the consumers with the contents of the files.
#[derive(Default)]
pub(crate) struct Check {
    /// The checksums received, by file and line number.
    received: HashMap<String, BTreeMap<u64, u32>>,
    /// The last line that a consumer received of a file.
    last: HashMap<(u64, String), u64>,
    /// The number of files compared.
    pub(crate) files: u64,
    /// The number of their lines that arrived exactly once and in order.
    pub(crate) lines: u64,
    /// The deviations found.
    pub(crate) problems: Vec<String>,
    /// The files that are not relayed, with the reasons.
    pub(crate) skipped: Vec<String>,
}

impl Check {
    /// Adds a record of a consumer. The records of a consumer must be added in its order.
    pub(crate) fn receive(&mut self, consumer: u64, Received { file, lines }: Received) {
        let received = self.received.entry(file.clone()).or_default();
        let last = self.last.entry((consumer, file.clone())).or_default();
        for ReceivedLine { number, checksum } in lines {
            if received.insert(number, checksum).is_some() {
                self.problems
                    .push(format!("{file}:{number} arrived more than once"));
            } else if number < *last {
                self.problems.push(format!(
                    "{file}:{number} reached consumer {consumer} after line {last}"
                ));
            }
            *last = number;
        }
    }

    /// Compares a file with the lines received from it.
    pub(crate) fn compare(&mut self, file: &str, text: &str) {
        self.files += 1;
        let mut received = self.received.remove(file).unwrap_or_default();
        for (number, text) in (1..).zip(text.lines()) {
            match received.remove(&number) {
                Some(checksum) if checksum == ReceivedLine::new(number, text).checksum => {
                    self.lines += 1;
                }
                Some(_) => self
                    .problems
                    .push(format!("{file}:{number} arrived with another text")),
                None => self.problems.push(format!("{file}:{number} is missing")),
            }
        }
        self.unexpected(file, &received);
    }

    /// Notes that a file is not relayed.
    pub(crate) fn skip(&mut self, file: &str, reason: &str) {
        self.skipped.push(format!("{file}: {reason}"));
    }

    /// Ends the check. Lines of files that were not compared count as deviations.
    pub(crate) fn finish(mut self) -> Self {
        for (file, received) in std::mem::take(&mut self.received) {
            self.unexpected(&file, &received);
        }
        self
    }

    fn unexpected(&mut self, file: &str, received: &BTreeMap<u64, u32>) {
        for number in received.keys() {
            self.problems
                .push(format!("{file}:{number} arrived and is not in the file"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "one\ntwo\n\nfour";

    /// Checks records against a file. Each record is a consumer and the numbers of the lines that it
    /// received.
    fn check(records: &[(u64, &[u64])]) -> Vec<String> {
        let lines: Vec<_> = TEXT.lines().collect();
        let mut check = Check::default();
        for (consumer, numbers) in records {
            let lines = numbers.iter().map(|&number| {
                let text = lines.get(number as usize - 1).unwrap_or(&"five");
                ReceivedLine::new(number, text)
            });
            let received = Received {
                file: "a".to_owned(),
                lines: lines.collect(),
            };
            check.receive(*consumer, received);
        }
        check.compare("a", TEXT);
        check.finish().problems
    }

    #[test]
    fn lines_spread_over_consumers_are_right() {
        assert!(check(&[(0, &[1, 2]), (1, &[3]), (0, &[4])]).is_empty());
        assert!(check(&[(0, &[2, 4]), (1, &[1, 3])]).is_empty());
    }

    #[test]
    fn every_kind_of_mistake_is_found() {
        for (records, problem) in [
            (&[(0, &[1, 2, 4][..])][..], "a:3 is missing"),
            (&[], "a:1 is missing"),
            (
                &[(0, &[1, 2, 3, 4]), (1, &[2])],
                "a:2 arrived more than once",
            ),
            (&[(0, &[1, 2, 3, 4, 4])], "a:4 arrived more than once"),
            (
                &[(0, &[1, 3]), (0, &[2, 4])],
                "a:2 reached consumer 0 after line 3",
            ),
            (
                &[(0, &[1, 2, 3, 4, 5])],
                "a:5 arrived and is not in the file",
            ),
        ] {
            assert_eq!(check(records)[0], problem);
        }
    }

    #[test]
    fn a_line_with_another_text_and_a_file_that_is_not_there_are_found() {
        let mut check = Check::default();
        for file in ["a", "b"] {
            check.receive(
                0,
                Received {
                    file: file.to_owned(),
                    lines: vec![ReceivedLine::new(1, "another")],
                },
            );
        }
        check.compare("a", "one");
        assert_eq!(
            check.finish().problems,
            [
                "a:1 arrived with another text",
                "b:1 arrived and is not in the file"
            ]
        );
    }
}
