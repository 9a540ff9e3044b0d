//! The table of allowed dependencies between the crates of the workspace. A layer depends on the layer below and on no
//! other crate, and its tests may use every layer below. The programs on top may use every layer. No layer depends on
//! them.

use std::collections::BTreeSet;

use toml::{Table, Value};

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

/// A member of the workspace, and the members that it may depend on.
struct Member {
    /// The name of its package.
    name: &'static str,
    /// Where it lies.
    folder: &'static str,
    /// What its code may depend on. That of a layer depends on all of it.
    code: &'static [&'static str],
    /// What its tests may depend on beside that. A crate's own name is for features of the crate that only
    /// its tests turn on.
    tests: &'static [&'static str],
}

/// The layers, and what judges their stores.
const ALL: [&str; 6] = [
    "fdbq-conformance",
    "fdbq-keyspace",
    "fdbq-microqueue",
    "fdbq-hc-dequeue",
    "fdbq-combine",
    "fdbq-export-queue",
];

#[rustfmt::skip]
const MEMBERS: [Member; 11] = [
    member("fdbq-keyspace", "crates/keyspace", &[], &["fdbq-conformance", "fdbq-keyspace"]),
    member("fdbq-conformance", "crates/conformance", &["fdbq-keyspace"], &[]),
    member("fdbq-microqueue", "crates/microqueue", &["fdbq-keyspace"], &["fdbq-conformance"]),
    member("fdbq-hc-dequeue", "crates/hc-dequeue", &["fdbq-microqueue"], &["fdbq-conformance", "fdbq-keyspace", "fdbq-hc-dequeue"]),
    member("fdbq-combine", "crates/combine", &["fdbq-hc-dequeue"], &["fdbq-conformance", "fdbq-keyspace", "fdbq-microqueue"]),
    member("fdbq-export-queue", "crates/export-queue", &["fdbq-combine"], &["fdbq-conformance", "fdbq-keyspace", "fdbq-microqueue", "fdbq-hc-dequeue"]),
    member("console", "crates/console", &PACKAGES, &["fdbq-conformance"]),
    member("examples", "crates/examples", &["fdbq-keyspace", "fdbq-microqueue", "fdbq-hc-dequeue", "fdbq-combine", "console"], &["fdbq-conformance"]),
    member("phrasecount", "crates/phrasecount", &["fdbq-keyspace", "fdbq-microqueue", "fdbq-hc-dequeue", "fdbq-combine", "fdbq-export-queue", "console"], &["fdbq-conformance"]),
    member("benches", "benches", &ALL, &["console"]),
    member("xtask", "xtask", &["fdbq-conformance", "fdbq-keyspace"], &[]),
];

const fn member(
    name: &'static str,
    folder: &'static str,
    code: &'static [&'static str],
    tests: &'static [&'static str],
) -> Member {
    Member {
        name,
        folder,
        code,
        tests,
    }
}

/// The members that may depend on FoundationDB's crate.
const FOUNDATIONDB_MEMBERS: [&str; 2] = ["fdbq-keyspace", "benches"];

const DEPENDENCIES: &str = "dependencies";
const DEPENDENCY_TABLES: [&str; 3] = [DEPENDENCIES, "dev-dependencies", "build-dependencies"];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations: Vec<_> = crate_folders(tree)
        .into_iter()
        .map(|folder| format!("crates/{folder}"))
        .filter(|folder| MEMBERS.iter().all(|member| member.folder != folder))
        .map(|folder| Violation::new(&folder, "is not in the table of allowed dependencies"))
        .collect();
    let workspace = manifest(tree, "Cargo.toml", &mut violations);
    for member in &MEMBERS {
        let path = format!("{}/Cargo.toml", member.folder);
        let manifest = manifest(tree, &path, &mut violations);
        let messages = check_member(member, &dependencies(&manifest, &workspace));
        violations.extend(
            messages
                .into_iter()
                .map(|message| Violation::new(&path, message)),
        );
    }
    violations
}

fn crate_folders(tree: &Tree) -> BTreeSet<&str> {
    tree.paths()
        .filter_map(|path| path.strip_prefix("crates/")?.split('/').next())
        .collect()
}

/// Reads a manifest; one that is missing or does not parse is a violation and has no content.
fn manifest(tree: &Tree, path: &str, violations: &mut Vec<Violation>) -> Table {
    let parsed = match tree.text(path) {
        Some(text) => text
            .parse()
            .map_err(|error| format!("does not parse: {error}")),
        None => Err("is missing".to_owned()),
    };
    parsed.unwrap_or_else(|message| {
        violations.push(Violation::new(path, message));
        Table::new()
    })
}

/// A dependency: the table that names it and the package it is, whatever it is renamed to.
#[derive(Debug, PartialEq, Eq)]
struct Dependency<'a> {
    table: &'static str,
    package: &'a str,
}

fn dependencies<'a>(manifest: &'a Table, workspace: &'a Table) -> Vec<Dependency<'a>> {
    let shared = workspace
        .get("workspace")
        .and_then(|section| section.get(DEPENDENCIES));
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets.into_iter().flat_map(Table::values);
    let sections = targets.filter_map(Value::as_table).chain([manifest]);

    let mut found = Vec::new();
    for section in sections {
        for table in DEPENDENCY_TABLES {
            let entries = section.get(table).and_then(Value::as_table);
            for (key, entry) in entries.into_iter().flatten() {
                let inherited = entry.get("workspace").and_then(Value::as_bool) == Some(true);
                let entry = match inherited {
                    true => shared.and_then(|shared| shared.get(key)),
                    false => Some(entry),
                };
                let renamed = entry.and_then(|entry| entry.get("package")?.as_str());
                let package = renamed.unwrap_or(key);
                found.push(Dependency { table, package });
            }
        }
    }
    found
}

/// Returns what is wrong with the dependencies of a member.
fn check_member(member: &Member, dependencies: &[Dependency<'_>]) -> Vec<String> {
    let mut messages = Vec::new();
    for Dependency { table, package } in dependencies {
        let of_workspace = MEMBERS.iter().any(|member| member.name == *package);
        let of_tests = *table == "dev-dependencies" && member.tests.contains(package);
        if of_workspace && !member.code.contains(package) && !of_tests {
            messages.push(format!("`{package}` in {table} is not allowed"));
        }
        if LAYERS.contains(package) {
            messages.push(format!(
                "`{package}` in {table} is a package of another project"
            ));
        }
        if *package == "foundationdb" && !FOUNDATIONDB_MEMBERS.contains(&member.name) {
            let allowed = FOUNDATIONDB_MEMBERS.join(" and ");
            messages.push(format!("only {allowed} may depend on `{package}`"));
        }
    }
    let required = member
        .code
        .iter()
        .filter(|_| PACKAGES.contains(&member.name));
    for package in required {
        let edge = Dependency {
            table: DEPENDENCIES,
            package,
        };
        if !dependencies.contains(&edge) {
            messages.push(format!("the layer below, `{package}`, is no dependency"));
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = r#"
        [workspace.dependencies]
        keyspace = { package = "fdbq-keyspace", path = "crates/keyspace" }
        ground = { package = "fdbq-keyspace", path = "crates/keyspace" }
    "#;

    /// A tidy workspace.
    const TIDY: [(&str, &str); 12] = [
        ("Cargo.toml", WORKSPACE),
        (
            "crates/keyspace/Cargo.toml",
            "[dependencies]\nfoundationdb = '1'\n[dev-dependencies]\nfdbq-conformance = '1'",
        ),
        (
            "crates/conformance/Cargo.toml",
            "[dependencies]\nfdbq-keyspace = '1'",
        ),
        (
            "crates/microqueue/Cargo.toml",
            "[dependencies]\nkeyspace.workspace = true",
        ),
        (
            "crates/hc-dequeue/Cargo.toml",
            "[dependencies]\nfdbq-microqueue = '1'",
        ),
        (
            "crates/combine/Cargo.toml",
            "[dependencies]\nfdbq-hc-dequeue = '1'",
        ),
        (
            "crates/export-queue/Cargo.toml",
            "[dependencies]\nfdbq-combine = '1'",
        ),
        (
            "crates/console/Cargo.toml",
            "[dependencies]\nfdbq-export-queue = '1'",
        ),
        (
            "crates/examples/Cargo.toml",
            "[dependencies]\nconsole = '1'\nfdbq-combine = '1'",
        ),
        (
            "crates/phrasecount/Cargo.toml",
            "[dependencies]\nconsole = '1'\nfdbq-export-queue = '1'",
        ),
        (
            "benches/Cargo.toml",
            "[dependencies]\nfoundationdb = '1'\nfdbq-combine = '1'",
        ),
        (
            "xtask/Cargo.toml",
            "[dependencies]\nkeyspace.workspace = true",
        ),
    ];

    /// Returns the violations of a tidy workspace in which one crate has another manifest.
    fn violations_with(path: &str, manifest: &str) -> Vec<Violation> {
        let mut files = TIDY.to_vec();
        files.retain(|&(other, _)| other != path);
        files.push((path, manifest));
        check(&Tree::of(&files))
    }

    /// Asserts that a manifest of a crate breaks one rule.
    #[track_caller]
    fn assert_violated(path: &str, manifest: &str, message: &str) {
        let expected = [Violation::new(path, message)];
        assert_eq!(violations_with(path, manifest), expected, "{manifest}");
    }

    #[test]
    fn the_design_passes() {
        let manifest =
            "[dependencies]\nground.workspace = true\n[dev-dependencies]\nfdbq-keyspace = '1'";
        assert_eq!(
            violations_with("crates/microqueue/Cargo.toml", manifest),
            []
        );
    }

    #[test]
    fn the_table_lets_a_layer_depend_on_the_layer_below_alone() {
        for (index, layer) in PACKAGES.into_iter().enumerate() {
            let member = MEMBERS.iter().find(|member| member.name == layer).unwrap();
            assert_eq!(member.code, &PACKAGES[index.saturating_sub(1)..index]);
            let below = |test| PACKAGES[..=index].contains(test) || *test == "fdbq-conformance";
            assert!(member.tests.iter().all(below), "{layer}");
        }
    }

    #[test]
    fn packages_and_layers_are_in_one_order() {
        assert_eq!(PACKAGES, LAYERS.map(|layer| format!("fdbq-{layer}")));
    }

    #[test]
    fn a_package_of_another_project_is_found() {
        assert_violated(
            "crates/microqueue/Cargo.toml",
            "[dependencies]\nfdbq-keyspace = '1'\nkeyspace = '0.4'",
            "`keyspace` in dependencies is a package of another project",
        );
    }

    #[test]
    fn the_tests_of_a_layer_use_those_below_and_none_above() {
        let path = "crates/hc-dequeue/Cargo.toml";
        let manifest = |layer| {
            format!("[dependencies]\nfdbq-microqueue = '1'\n[dev-dependencies]\n{layer} = '1'")
        };
        assert_eq!(violations_with(path, &manifest("fdbq-keyspace")), []);
        for above in ["fdbq-combine", "phrasecount", "benches"] {
            let message = format!("`{above}` in dev-dependencies is not allowed");
            assert_violated(path, &manifest(above), &message);
        }
    }

    #[test]
    fn every_wrong_edge_of_a_layer_is_found() {
        let table = [
            (
                "[dependencies]\nfdbq-combine = '1'\nfdbq-microqueue = '1'",
                "`fdbq-microqueue` in dependencies is not allowed",
            ),
            (
                "[dependencies]\nfdbq-combine = '1'\nphrasecount = '1'",
                "`phrasecount` in dependencies is not allowed",
            ),
            (
                "[dependencies]\nfdbq-combine = '1'\n[build-dependencies]\nfdbq-keyspace = '1'",
                "`fdbq-keyspace` in build-dependencies is not allowed",
            ),
            (
                "[dependencies]\nfdbq-combine = '1'\n[dev-dependencies]\nxtask = '1'",
                "`xtask` in dev-dependencies is not allowed",
            ),
            (
                "[dependencies]\nfdbq-combine = '1'\n[target.'cfg(unix)'.dependencies]\nground.workspace = true",
                "`fdbq-keyspace` in dependencies is not allowed",
            ),
            (
                "[dev-dependencies]\nfdbq-combine = '1'",
                "the layer below, `fdbq-combine`, is no dependency",
            ),
            (
                "[dependencies]\nfdbq-combine = '1'\nfdb = { package = 'foundationdb', version = '1' }",
                "only fdbq-keyspace and benches may depend on `foundationdb`",
            ),
            (
                "[dependencies]\nfdbq-combine = '1'\nfdbq-conformance = '1'",
                "`fdbq-conformance` in dependencies is not allowed",
            ),
        ];
        for (manifest, message) in table {
            assert_violated("crates/export-queue/Cargo.toml", manifest, message);
        }
        assert_violated(
            "crates/keyspace/Cargo.toml",
            "[dependencies]\nfdbq-microqueue = '1'",
            "`fdbq-microqueue` in dependencies is not allowed",
        );
    }

    #[test]
    fn a_program_uses_any_layer_and_no_tool() {
        let path = "crates/phrasecount/Cargo.toml";
        let manifest = "[dependencies]\nfdbq-combine = '1'\nfdbq-keyspace = '1'";
        assert_eq!(violations_with(path, manifest), []);
        for tool in ["xtask", "benches"] {
            let message = format!("`{tool}` in dev-dependencies is not allowed");
            assert_violated(path, &format!("[dev-dependencies]\n{tool} = '1'"), &message);
        }
        assert_violated(
            path,
            "[dependencies]\nfoundationdb = '1'",
            "only fdbq-keyspace and benches may depend on `foundationdb`",
        );
    }

    #[test]
    fn a_tool_depends_on_what_the_table_says() {
        assert_violated(
            "xtask/Cargo.toml",
            "[dependencies]\nphrasecount = '1'",
            "`phrasecount` in dependencies is not allowed",
        );
        assert_violated(
            "benches/Cargo.toml",
            "[dev-dependencies]\nxtask = '1'",
            "`xtask` in dev-dependencies is not allowed",
        );
    }

    #[test]
    fn a_crate_that_is_not_in_the_table_and_a_broken_manifest_are_found() {
        assert_eq!(
            violations_with("crates/util/src/lib.rs", ""),
            [Violation::new(
                "crates/util",
                "is not in the table of allowed dependencies"
            )]
        );
        let broken = violations_with("crates/keyspace/Cargo.toml", "[dependencies");
        assert!(
            broken[0].message.starts_with("does not parse"),
            "{broken:?}"
        );
    }
}
