//! Each published package has everything that the registry shows, and only libraries are published.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Violation;
use super::layers::{JUDGE, LAYERS, PACKAGES};
use super::tree::Tree;

/// The licenses at the top level, of which each package holds a copy.
const LICENSES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.texts() {
        let Some(folder) = path.strip_suffix("/Cargo.toml") else {
            continue;
        };
        // One that does not parse is found by the check of the layers.
        let manifest = DeTable::parse(text).map_or_else(|_| DeTable::new(), Spanned::into_inner);
        let mut published = LAYERS
            .into_iter()
            .zip(PACKAGES)
            .chain([("conformance", JUDGE)]);
        let messages = match published.find(|(name, _)| folder == format!("crates/{name}")) {
            Some((name, package)) => {
                violations.extend(missing_files(tree, folder));
                wrong_fields(&manifest, name, package)
            }
            None => match field(&manifest, "publish").and_then(DeValue::as_bool) {
                Some(false) => Vec::new(),
                _ => vec!["is not to be published, and lacks `publish = false`".to_owned()],
            },
        };
        violations.extend(
            messages
                .into_iter()
                .map(|message| Violation::new(path, message)),
        );
    }
    violations
}

/// Returns what a package's folder lacks.
fn missing_files(tree: &Tree, folder: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for license in LICENSES {
        let copy = format!("{folder}/{license}");
        if tree.text(&copy) != tree.text(license) {
            let message = format!("is no copy of `{license}` at the top level");
            violations.push(Violation::new(&copy, message));
        }
    }
    let readme = format!("{folder}/README.md");
    if tree.text(&readme).is_none() {
        violations.push(Violation::new(&readme, "is missing"));
    }
    violations
}

/// Returns what is wrong with the fields of a published manifest.
fn wrong_fields(manifest: &DeTable<'_>, name: &str, package: &str) -> Vec<String> {
    let library = manifest
        .get("lib")
        .and_then(|lib| lib.get_ref().get("name"))
        .map(|name| name.get_ref());
    let exact = [
        ("name", field(manifest, "name"), package.to_owned()),
        ("lib.name", library, name.replace('-', "_")),
        ("readme", field(manifest, "readme"), "README.md".to_owned()),
        (
            "documentation",
            field(manifest, "documentation"),
            format!("https://docs.rs/{package}"),
        ),
    ];
    let wrong = exact
        .into_iter()
        .filter(|(_, value, expected)| value.and_then(DeValue::as_str) != Some(expected))
        .map(|(name, _, expected)| format!("`{name}` is not `{expected}`"));

    let required = ["description", "keywords", "categories", "include"];
    let missing = required
        .into_iter()
        .filter(|name| field(manifest, name).is_none())
        .map(|name| format!("lacks `{name}`"));
    let docs =
        field(manifest, "metadata").and_then(|metadata| metadata.get("docs")?.get_ref().get("rs"));
    let shown = docs.is_some_and(|docs| docs.get_ref().get("features").is_some());
    let hidden = (manifest.contains_key("features") && !shown)
        .then(|| "lacks `metadata.docs.rs.features`".to_owned());
    wrong.chain(missing).chain(hidden).collect()
}

fn field<'a, 'i>(manifest: &'a DeTable<'i>, name: &str) -> Option<&'a DeValue<'i>> {
    Some(manifest.get("package")?.get_ref().get(name)?.get_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r#"
        [package]
        name = "fdbq-hc-dequeue"
        description = "A queue"
        readme = "README.md"
        documentation = "https://docs.rs/fdbq-hc-dequeue"
        keywords = ["queue"]
        categories = ["database"]
        include = ["/src"]
        [package.metadata.docs.rs]
        features = ["fdb-7_3"]
        [features]
        [lib]
        name = "hc_dequeue"
    "#;

    fn violations_with(path: &str, text: &str) -> Vec<Violation> {
        let mut files = vec![
            ("LICENSE-APACHE", "Apache"),
            ("LICENSE-MIT", "MIT"),
            ("crates/hc-dequeue/Cargo.toml", MANIFEST),
            ("crates/hc-dequeue/LICENSE-APACHE", "Apache"),
            ("crates/hc-dequeue/LICENSE-MIT", "MIT"),
            ("crates/hc-dequeue/README.md", "# A queue"),
            ("xtask/Cargo.toml", "[package]\npublish = false"),
        ];
        files.retain(|&(other, _)| other != path);
        files.push((path, text));
        check(&Tree::of(&files))
    }

    #[test]
    fn complete_packages_pass() {
        assert_eq!(violations_with("docs/a.md", ""), []);
    }

    #[test]
    fn each_field_that_is_missing_is_found() {
        let path = "crates/hc-dequeue/Cargo.toml";
        let fields = MANIFEST.lines().filter(|line| line.contains(" = "));
        assert_eq!(fields.clone().count(), 9);
        for field in fields {
            let found = violations_with(path, &MANIFEST.replace(field, ""));
            assert_eq!(found.len(), 1, "{field}: {found:?}");
        }
        let renamed = MANIFEST.replace("fdbq-hc-dequeue\"", "hc-dequeue\"");
        let messages = [
            "`name` is not `fdbq-hc-dequeue`",
            "`documentation` is not `https://docs.rs/fdbq-hc-dequeue`",
        ];
        assert_eq!(
            violations_with(path, &renamed),
            messages.map(|message| Violation::new(path, message))
        );
    }

    #[test]
    fn a_license_that_differs_is_found() {
        let path = "crates/hc-dequeue/LICENSE-MIT";
        let message = "is no copy of `LICENSE-MIT` at the top level";
        // Git stores a symbolic link as the path that it leads to.
        let expected = [Violation::new(path, message)];
        assert_eq!(violations_with(path, "../../LICENSE-MIT"), expected);
    }

    #[test]
    fn a_tool_that_could_be_published_is_found() {
        assert_eq!(
            violations_with("xtask/Cargo.toml", "[package]\nname = 'xtask'"),
            [Violation::new(
                "xtask/Cargo.toml",
                "is not to be published, and lacks `publish = false`"
            )]
        );
    }
}
