//! The inside of a crate, and of a large part of one: no two modules import each other.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Violation;
use super::tree::Tree;

/// The parts of crates that are as large as a crate, and in as good order.
const LARGE_PARTS: [&str; 2] = [
    "crates/hc-dequeue/src/items",
    "crates/keyspace/src/stores/embedded",
];

/// The modules that a module imports, with the file that does first.
type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// Checks that the modules of each crate, and those of each large part, form no circle by what they import of each
/// other. A module is what stands right below the crate's root or in the folder of the part, with all that is inside
/// of it; its tests do not count. An import of what the root re-exports hides the module that it comes from, and is a
/// violation too.
pub(super) fn check_circles(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut folders: BTreeMap<String, Imports> = BTreeMap::new();
    for (path, tokens) in sources(tree) {
        if path.contains("/tests/") || path.ends_with("tests.rs") {
            continue;
        }
        for folder in folders_of(path) {
            let file = &path[folder.len() + 1..];
            let module = file.split(['/', '.']).next().unwrap_or_default();
            if matches!(module, "lib" | "main" | "mod") {
                continue;
            }
            let (_, inside) = folder.split_once("/src").unwrap_or_default();
            let mut from_crate = vec!["crate"];
            from_crate.extend(inside.split('/').skip(1));
            // Right below the root, `super` is the root, and one folder down, `super::super`.
            let depth = file.trim_end_matches("/mod.rs").split('/').count();
            let roots = [from_crate, vec!["super"; depth]];
            let mut paths = BTreeSet::new();
            collect_imports(&tokens, &roots, &mut paths);
            let imports = folders.entry(folder).or_default();
            let imported = imports.entry(module.to_owned()).or_default();
            for other in paths {
                if other != module {
                    imported.entry(other).or_insert_with(|| path.to_owned());
                }
            }
        }
    }
    for (folder, imports) in &folders {
        violations.extend(hidden_in(tree, folder, imports));
        violations.extend(circles_of(imports));
    }
    violations
}

/// Returns the folders whose modules a file belongs to: that of its crate, and that of a large part.
fn folders_of(path: &str) -> Vec<String> {
    let Some((krate, _)) = path.split_once("/src/") else {
        return Vec::new();
    };
    let mut folders = vec![format!("{krate}/src")];
    for part in LARGE_PARTS {
        if path.starts_with(&format!("{part}/")) {
            folders.push(part.to_owned());
        }
    }
    folders
}

/// Returns a violation for each import of what the root re-exports: an item, or a module inside of another one.
fn hidden_in(tree: &Tree, folder: &str, imports: &Imports) -> Vec<Violation> {
    let is_inside = |module: &String, name: &str| {
        let file = format!("{folder}/{module}/{name}.rs");
        let head = format!("{folder}/{module}/{name}/mod.rs");
        tree.text(&file).is_some() || tree.text(&head).is_some()
    };
    let mut violations = Vec::new();
    for (other, path) in imports.values().flatten() {
        let is_item = other.starts_with(char::is_uppercase);
        let is_module = imports.contains_key(other);
        if is_item || !is_module && imports.keys().any(|module| is_inside(module, other)) {
            let message = format!("`{other}` is imported through the root: name its module");
            violations.push(Violation::new(path, message));
        }
    }
    violations
}

/// Returns a violation for each pair of modules that reach each other, at the file of one of the two
/// imports.
fn circles_of(imports: &Imports) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (module, imported) in imports {
        for (other, path) in imported {
            if module < other && reaches(imports, other, module)
                || module > other
                    && !imports_directly(imports, other, module)
                    && reaches(imports, other, module)
            {
                let message = format!("a circle: `{module}` imports `{other}`, which reaches it");
                violations.push(Violation::new(path, message));
            }
        }
    }
    violations
}

fn imports_directly(imports: &Imports, module: &str, other: &str) -> bool {
    imports
        .get(module)
        .is_some_and(|imported| imported.contains_key(other))
}

/// Returns whether a module imports another one, by way of others or directly.
fn reaches(imports: &Imports, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::new();
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module) {
            next.extend(
                imports
                    .get(module)
                    .into_iter()
                    .flat_map(BTreeMap::keys)
                    .map(String::as_str),
            );
        }
    }
    false
}

/// Collects what follows the path of a root anywhere but in tests.
fn collect_imports(tokens: &[TokenTree], roots: &[Vec<&str>], paths: &mut BTreeSet<String>) {
    let mut is_test = false;
    for (index, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(_) if is_test || continues(&tokens[..index]) => {}
            TokenTree::Ident(_) => {
                for root in roots {
                    collect_modules(&tokens[index..], root, paths);
                }
            }
            TokenTree::Group(group) => {
                let inside: Vec<_> = group.stream().into_iter().collect();
                let of_tests = group.delimiter() == Delimiter::Bracket
                    && inside.first().is_some_and(|first| is_ident(first, "cfg"))
                    && group.stream().to_string().contains("test");
                if of_tests {
                    is_test = true;
                } else if group.delimiter() == Delimiter::Brace && std::mem::take(&mut is_test) {
                    continue;
                } else {
                    collect_imports(&inside, roots, paths);
                }
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => is_test = false,
            _ => {}
        }
    }
}

/// Returns whether a path goes on after these tokens. In a macro, `$crate` is a path for other crates.
fn continues(tokens: &[TokenTree]) -> bool {
    match tokens {
        [.., mark] if is_mark(mark, '$') => true,
        [.., first, second] => is_mark(first, ':') && is_mark(second, ':'),
        _ => false,
    }
}

/// Collects the names after a root in a path, or in each path of `{a::B, c::{D, E}}`.
fn collect_modules(path: &[TokenTree], root: &[&str], modules: &mut BTreeSet<String>) {
    match (path, root) {
        ([TokenTree::Group(group), ..], _) => {
            let paths: Vec<_> = group.stream().into_iter().collect();
            for path in paths.split(|token| is_mark(token, ',')) {
                collect_modules(path, root, modules);
            }
        }
        ([name, colon, _, rest @ ..], [first, root @ ..])
            if is_ident(name, first) && is_mark(colon, ':') =>
        {
            collect_modules(rest, root, modules);
        }
        // A macro of the crate.
        ([_, mark, ..], []) if is_mark(mark, '!') => {}
        ([TokenTree::Ident(module), ..], []) if module != "super" => {
            modules.insert(module.to_string());
        }
        _ => {}
    }
}

fn sources(tree: &Tree) -> impl Iterator<Item = (&str, Vec<TokenTree>)> {
    tree.texts()
        .filter(|(path, _)| path.ends_with(".rs"))
        .filter_map(|(path, text)| {
            // A file that does not parse is reported by another check.
            let stream: TokenStream = text.parse().ok()?;
            Some((path, stream.into_iter().collect()))
        })
}

fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}

fn is_ident(token: &TokenTree, text: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_import_each_other_are_found() {
        let circles = |queue: &str, keys: &str, record: &str| {
            let circles = check_circles(&Tree::of(&[
                ("crates/combine/src/queue.rs", queue),
                ("crates/combine/src/keys/mod.rs", keys),
                ("crates/combine/src/record.rs", record),
            ]));
            circles
                .into_iter()
                .map(|found| found.message)
                .collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(
            circles("use crate::keys::Keys;", "use crate::record::R;", ""),
            none
        );
        assert_eq!(
            circles("use crate::keys::Keys;", "fn f() { crate::queue::g() }", ""),
            ["a circle: `keys` imports `queue`, which reaches it"]
        );
        let through_a_third = circles(
            "use crate::{keys::{Keys, Key}, error::E};",
            "use crate::record::R;",
            "use crate::{error::E, queue::Q};",
        );
        assert!(!through_a_third.is_empty());
        let by_super = circles("use super::keys::Keys;", "use super::{queue::Q};", "");
        assert_eq!(
            by_super,
            ["a circle: `keys` imports `queue`, which reaches it"]
        );
        assert_eq!(
            circles("use crate::Keys;", "", ""),
            ["`Keys` is imported through the root: name its module"]
        );
        let in_tests = "#[cfg(test)]\nmod tests { use crate::queue::Q; }";
        assert_eq!(circles("use crate::keys::Keys;", in_tests, ""), none);
    }
    #[test]
    fn modules_of_a_large_part_that_import_each_other_are_found() {
        let circles = |log: &str, disk: &str| {
            let circles = check_circles(&Tree::of(&[
                ("crates/keyspace/src/stores/embedded/log/files.rs", log),
                ("crates/keyspace/src/stores/embedded/disk/mod.rs", disk),
            ]));
            circles.len()
        };
        let of_disk = "use crate::stores::embedded::disk::open;";
        assert_eq!(circles(of_disk, "use super::super::url::U;"), 0);
        assert_eq!(circles(of_disk, "use super::log::files::F;"), 1);
        let of_log = [
            "use crate::stores::{embedded::{log::files::F}};",
            "use super::{log::{files::F}, url::U};",
        ];
        for import in of_log {
            assert_eq!(circles(of_disk, import), 1, "{import}");
        }
        let from_two_levels_down = "use super::super::disk::open;";
        assert_eq!(circles(from_two_levels_down, of_log[0]), 1);
        let hidden = "use crate::stores::embedded::{Options, files};";
        assert_eq!(circles(hidden, ""), 2);
    }
}
