//! Each crate depends on exactly one crate of the workspace: the layer below. Its tests may use every
//! layer below, and the crate that judges stores.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::Violation;
use super::tree::Tree;

/// The crates, from the ground up.
pub(crate) const LAYERS: [&str; 5] = [
    "keyspace",
    "microqueue",
    "hc-dequeue",
    "combine",
    "export-queue",
];

/// The crate that judges stores. It depends on keyspace; the tests of every layer may use it.
const CONFORMANCE: &str = "conformance";

/// Members of the workspace that may use every layer, and that no layer may use.
const TOOLS: [&str; 2] = ["benches", "xtask"];

/// The one layer that may depend on FoundationDB's crate.
const FOUNDATIONDB_LAYER: &str = "keyspace";

const DEPENDENCIES: &str = "dependencies";
const DEPENDENCY_TABLES: [&str; 3] = [DEPENDENCIES, "dev-dependencies", "build-dependencies"];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations: Vec<_> = crate_folders(tree)
        .into_iter()
        .filter(|folder| !LAYERS.contains(folder) && *folder != CONFORMANCE)
        .map(|folder| Violation::new(&format!("crates/{folder}"), "is none of the crates"))
        .collect();
    let workspace = manifest(tree, "Cargo.toml", &mut violations);
    let edges = LAYERS.into_iter().enumerate().map(|(index, layer)| {
        let below = index.checked_sub(1).map(|below| LAYERS[below]);
        (layer, below)
    });
    for (layer, below) in edges.chain([(CONFORMANCE, Some(LAYERS[0]))]) {
        let path = format!("crates/{layer}/Cargo.toml");
        let manifest = manifest(tree, &path, &mut violations);
        let messages = check_layer(layer, below, &dependencies(&manifest, &workspace));
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
                let renamed = [Some(entry), shared.and_then(|shared| shared.get(key))]
                    .into_iter()
                    .flatten()
                    .find_map(|entry| entry.get("package")?.as_str());
                let package = renamed.unwrap_or(key);
                found.push(Dependency { table, package });
            }
        }
    }
    found
}

/// Returns a layer and those below it.
fn up_to(layer: &str) -> &'static [&'static str] {
    let place = LAYERS.iter().position(|known| *known == layer);
    &LAYERS[..place.map_or(0, |place| place + 1)]
}

/// Returns what is wrong with the dependencies of `layer`, whose next lower layer is `below`.
fn check_layer(layer: &str, below: Option<&str>, dependencies: &[Dependency<'_>]) -> Vec<String> {
    let mut messages = Vec::new();
    for Dependency { table, package } in dependencies {
        let of_workspace =
            LAYERS.contains(package) || TOOLS.contains(package) || *package == CONFORMANCE;
        // Its own is among them: a crate's tests may turn on features of the crate itself.
        let of_tests = *table == "dev-dependencies"
            && (up_to(layer).contains(package) || *package == CONFORMANCE);
        if of_workspace && Some(*package) != below && !of_tests {
            messages.push(format!("`{package}` in {table} is not the layer below"));
        }
        if *package == "foundationdb" && layer != FOUNDATIONDB_LAYER {
            messages.push(format!(
                "only {FOUNDATIONDB_LAYER} may depend on `{package}`"
            ));
        }
    }
    if let Some(below) = below {
        let edge = Dependency {
            table: DEPENDENCIES,
            package: below,
        };
        if !dependencies.contains(&edge) {
            messages.push(format!("the layer below, `{below}`, is no dependency"));
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = r#"
        [workspace.dependencies]
        keyspace = { path = "crates/keyspace" }
        ground = { package = "keyspace", path = "crates/keyspace" }
    "#;

    /// Returns the violations of a tidy workspace in which one crate has another manifest.
    fn violations_with(path: &str, manifest: &str) -> Vec<Violation> {
        let mut files = vec![
            ("Cargo.toml", WORKSPACE),
            (
                "crates/keyspace/Cargo.toml",
                "[dependencies]\nfoundationdb = '1'\n[dev-dependencies]\nconformance = '1'",
            ),
            (
                "crates/conformance/Cargo.toml",
                "[dependencies]\nkeyspace = '1'",
            ),
            (
                "crates/microqueue/Cargo.toml",
                "[dependencies]\nkeyspace.workspace = true",
            ),
            (
                "crates/hc-dequeue/Cargo.toml",
                "[dependencies]\nmicroqueue = '1'",
            ),
            (
                "crates/combine/Cargo.toml",
                "[dependencies]\nhc-dequeue = '1'",
            ),
            (
                "crates/export-queue/Cargo.toml",
                "[dependencies]\ncombine = '1'",
            ),
        ];
        files.retain(|&(other, _)| other != path);
        files.push((path, manifest));
        check(&Tree::of(&files))
    }

    #[test]
    fn the_design_passes() {
        let manifest =
            "[dependencies]\nground.workspace = true\n[dev-dependencies]\nkeyspace = '1'";
        assert_eq!(
            violations_with("crates/microqueue/Cargo.toml", manifest),
            []
        );
    }

    #[test]
    fn the_tests_of_a_layer_use_those_below_and_none_above() {
        let path = "crates/hc-dequeue/Cargo.toml";
        let manifest =
            |layer| format!("[dependencies]\nmicroqueue = '1'\n[dev-dependencies]\n{layer} = '1'");
        assert_eq!(violations_with(path, &manifest("keyspace")), []);
        assert_eq!(
            violations_with(path, &manifest("combine")),
            [Violation::new(
                path,
                "`combine` in dev-dependencies is not the layer below"
            )]
        );
    }

    #[test]
    fn every_wrong_edge_is_found() {
        let table = [
            (
                "[dependencies]\ncombine = '1'\nmicroqueue = '1'",
                "`microqueue` in dependencies is not the layer below",
            ),
            (
                "[dependencies]\ncombine = '1'\n[dev-dependencies]\nxtask = '1'",
                "`xtask` in dev-dependencies is not the layer below",
            ),
            (
                "[dependencies]\ncombine = '1'\n[target.'cfg(unix)'.dependencies]\nground.workspace = true",
                "`keyspace` in dependencies is not the layer below",
            ),
            (
                "[dev-dependencies]\ncombine = '1'",
                "the layer below, `combine`, is no dependency",
            ),
            (
                "[dependencies]\ncombine = '1'\nfdb = { package = 'foundationdb', version = '1' }",
                "only keyspace may depend on `foundationdb`",
            ),
            (
                "[dependencies]\ncombine = '1'\nconformance = '1'",
                "`conformance` in dependencies is not the layer below",
            ),
        ];
        let path = "crates/export-queue/Cargo.toml";
        for (manifest, message) in table {
            let expected = [Violation::new(path, message)];
            assert_eq!(violations_with(path, manifest), expected, "{manifest}");
        }
    }

    #[test]
    fn the_ground_floor_depends_on_no_layer() {
        let path = "crates/keyspace/Cargo.toml";
        assert_eq!(
            violations_with(path, "[dependencies]\nmicroqueue = '1'"),
            [Violation::new(
                path,
                "`microqueue` in dependencies is not the layer below"
            )]
        );
    }

    #[test]
    fn a_sixth_crate_and_a_broken_manifest_are_found() {
        assert_eq!(
            violations_with("crates/util/src/lib.rs", ""),
            [Violation::new("crates/util", "is none of the crates")]
        );
        let broken = violations_with("crates/keyspace/Cargo.toml", "[dependencies");
        assert!(
            broken[0].message.starts_with("does not parse"),
            "{broken:?}"
        );
    }
}
