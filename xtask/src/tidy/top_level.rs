//! The top level of the repository has exactly the entries of a list.

use std::collections::BTreeSet;

use super::Violation;
use super::tree::Tree;

const ENTRIES: [&str; 19] = [
    ".cargo",
    ".ci",
    ".github",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "benches",
    "clippy.toml",
    "crates",
    "deny.toml",
    "docs",
    "rustfmt.toml",
    "xtask",
];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let expected: BTreeSet<_> = ENTRIES.into_iter().collect();
    let found: BTreeSet<_> = tree
        .paths()
        .map(|path| path.split_once('/').map_or(path, |(first, _)| first))
        .collect();
    let missing = expected
        .difference(&found)
        .map(|entry| Violation::new(entry, "missing at the top level"));
    let extra = found
        .difference(&expected)
        .map(|entry| Violation::new(entry, "does not belong at the top level"));
    missing.chain(extra).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_and_an_extra_entry_are_found() {
        let mut files: Vec<_> = ENTRIES.iter().map(|&entry| (entry, "")).collect();
        assert_eq!(check(&Tree::of(&files)), []);

        files.retain(|&(entry, _)| entry != "LICENSE-MIT");
        files.push(("notes/idea.md", ""));
        assert_eq!(
            check(&Tree::of(&files)),
            [
                Violation::new("LICENSE-MIT", "missing at the top level"),
                Violation::new("notes", "does not belong at the top level"),
            ]
        );
    }
}
