//! A layer's code depends on the layer below and on no other crate of the workspace. `deny.toml` says which crate may
//! depend on which at all, but it knows no difference between code and tests.

use toml::de::{DeTable, DeValue};

use super::Violation;
use super::tree::Tree;

/// The crates, from the ground up, by the names of their folders and libraries.
pub(crate) const LAYERS: [&str; 5] = [
    "keyspace",
    "microqueue",
    "hc-dequeue",
    "combine",
    "export-queue",
];

/// The packages of the layers, in the same order: the names that cargo and the registry know.
pub(crate) const PACKAGES: [&str; 5] = [
    "fdbq-keyspace",
    "fdbq-microqueue",
    "fdbq-hc-dequeue",
    "fdbq-combine",
    "fdbq-export-queue",
];

/// The package that judges stores. It is published with the layers, for the tests of other stores.
pub(crate) const JUDGE: &str = "fdbq-conformance";

/// The programs whose code judges stores. That of others may do so only in their tests.
const JUDGING: [&str; 2] = ["crates/compare", "benches"];

const MANIFEST: &str = "/Cargo.toml";

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let workspace = parse(tree, "Cargo.toml", &mut violations);
    for path in tree.paths().filter(|path| path.ends_with(MANIFEST)) {
        let manifest = parse(tree, path, &mut violations);
        let found = dependencies(&manifest, &workspace);
        let folder = path.trim_end_matches(MANIFEST);
        for message in check_dependencies(folder, &found) {
            violations.push(Violation::new(path, message));
        }
    }
    violations
}

/// Reads a manifest. One that is missing or does not parse is a violation, and has no content.
fn parse<'a>(tree: &'a Tree, path: &str, violations: &mut Vec<Violation>) -> DeTable<'a> {
    match DeTable::parse(tree.text(path).unwrap_or_default()) {
        Ok(manifest) => manifest.into_inner(),
        Err(error) => {
            violations.push(Violation::new(path, format!("does not parse: {error}")));
            DeTable::new()
        }
    }
}

/// Returns the packages of the workspace that the code of a member depends on, whatever it calls them.
fn dependencies<'a>(manifest: &'a DeTable<'_>, workspace: &'a DeTable<'_>) -> Vec<&'a str> {
    let shared = workspace
        .get("workspace")
        .and_then(|section| section.get_ref().get("dependencies"));
    let targets = manifest
        .get("target")
        .and_then(|targets| targets.get_ref().as_table())
        .into_iter()
        .flat_map(|targets| targets.values())
        .filter_map(|section| section.get_ref().as_table());

    let mut found = Vec::new();
    for section in targets.chain([manifest]) {
        for table in ["dependencies", "build-dependencies"] {
            let entries = section
                .get(table)
                .and_then(|entries| entries.get_ref().as_table());
            for (key, entry) in entries.into_iter().flatten() {
                let mut entry = Some(entry.get_ref());
                if field(entry, "workspace").is_some() {
                    entry = shared
                        .and_then(|shared| shared.get_ref().get(&**key.get_ref()))
                        .map(|entry| entry.get_ref());
                }
                let renamed = field(entry, "package").and_then(DeValue::as_str);
                let package = renamed.unwrap_or(key.get_ref());
                if package.starts_with("fdbq-") || field(entry, "path").is_some() {
                    found.push(package);
                }
            }
        }
    }
    found
}

fn field<'a, 'i>(entry: Option<&'a DeValue<'i>>, name: &str) -> Option<&'a DeValue<'i>> {
    Some(entry?.get(name)?.get_ref())
}

/// Returns what is wrong with the dependencies of the crate in a folder.
fn check_dependencies(folder: &str, found: &[&str]) -> Vec<String> {
    let name = folder.strip_prefix("crates/").unwrap_or(folder);
    let allowed = if name == "conformance" {
        Some(PACKAGES[0])
    } else if let Some(index) = LAYERS.iter().position(|layer| *layer == name) {
        index.checked_sub(1).map(|below| PACKAGES[below])
    } else if found.contains(&JUDGE) && !JUDGING.contains(&folder) && !name.contains("/fuzz") {
        return vec![format!("`{JUDGE}` is for tests")];
    } else {
        return Vec::new();
    };
    let others = found.iter().filter(|package| Some(**package) != allowed);
    let mut messages: Vec<_> = others
        .map(|package| format!("the code of this crate may not depend on `{package}`"))
        .collect();
    if let Some(below) = allowed.filter(|below| !found.contains(below)) {
        messages.push(format!("the layer below, `{below}`, is no dependency"));
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = r#"
        [workspace.dependencies]
        keyspace = { package = "fdbq-keyspace", path = "crates/keyspace" }
        console = { package = "fdbq-console", path = "crates/console" }
    "#;

    fn violations_of(path: &str, manifest: &str) -> Vec<Violation> {
        check(&Tree::of(&[("Cargo.toml", WORKSPACE), (path, manifest)]))
    }

    /// Asserts that the manifest of a crate breaks one rule.
    #[track_caller]
    fn assert_violated(path: &str, manifest: &str, message: &str) {
        let expected = [Violation::new(path, message)];
        assert_eq!(violations_of(path, manifest), expected, "{manifest}");
    }

    #[test]
    fn packages_and_layers_are_in_one_order() {
        assert_eq!(PACKAGES, LAYERS.map(|layer| format!("fdbq-{layer}")));
    }

    #[test]
    fn a_layer_depends_on_the_layer_below() {
        for manifest in [
            "[dependencies]\nkeyspace.workspace = true\nserde = '1'",
            "[dependencies]\nfdbq-keyspace = '1'\n[dev-dependencies]\nfdbq-conformance = '1'",
        ] {
            assert_eq!(violations_of("crates/microqueue/Cargo.toml", manifest), []);
        }
        let message = "the layer below, `fdbq-keyspace`, is no dependency";
        let only_tests = "[dev-dependencies]\nkeyspace.workspace = true";
        assert_violated("crates/microqueue/Cargo.toml", only_tests, message);
        assert_violated("crates/conformance/Cargo.toml", "", message);
    }

    #[test]
    fn every_other_edge_of_a_layer_is_found() {
        for (table, package) in [
            ("[dependencies]\nfdbq-microqueue = '1'", "fdbq-microqueue"),
            (
                "[build-dependencies]\nfdbq-conformance = '1'",
                "fdbq-conformance",
            ),
            (
                "[target.'cfg(unix)'.dependencies]\nkeyspace.workspace = true",
                "fdbq-keyspace",
            ),
            ("[dependencies]\nconsole.workspace = true", "fdbq-console"),
        ] {
            let message = format!("the code of this crate may not depend on `{package}`");
            assert_violated("crates/keyspace/Cargo.toml", table, &message);
        }
    }

    #[test]
    fn a_program_judges_stores_only_in_its_tests() {
        let code = "[dependencies]\nfdbq-conformance = '1'\nfdbq-keyspace = '1'";
        let message = "`fdbq-conformance` is for tests";
        assert_violated("crates/phrasecount/Cargo.toml", code, message);
        assert_eq!(violations_of("benches/Cargo.toml", code), []);
        let tests = "[dev-dependencies]\nfdbq-conformance = '1'";
        assert_eq!(violations_of("crates/phrasecount/Cargo.toml", tests), []);
    }

    #[test]
    fn a_broken_manifest_is_found() {
        let broken = violations_of("benches/Cargo.toml", "[dependencies");
        assert!(
            broken[0].message.starts_with("does not parse"),
            "{broken:?}"
        );
    }
}
