//! The inside of a crate: no two modules import each other.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Violation;
use super::tree::Tree;

/// The modules that a module imports, with the file that does first.
type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// Checks that the modules of each crate form no circle by what they import of each other. A module is
/// what stands right below the crate's root, with all that is inside of it; its tests do not count. An
/// import of what the root re-exports hides the module that it comes from, and is a violation too.
pub(super) fn check_circles(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut crates: BTreeMap<&str, Imports> = BTreeMap::new();
    for (path, tokens) in sources(tree) {
        let Some((krate, file)) = path.split_once("/src/") else {
            continue;
        };
        let module = file.split(['/', '.']).next().unwrap_or_default();
        if matches!(module, "lib" | "main")
            || file.contains("/tests/")
            || file.ends_with("tests.rs")
        {
            continue;
        }
        let imports = crates.entry(krate).or_default();
        let imported = imports.entry(module.to_owned()).or_default();
        let mut paths = BTreeSet::new();
        // Right below the root, `super` is the root.
        let is_below = file == format!("{module}.rs") || file == format!("{module}/mod.rs");
        let roots: &[&str] = if is_below {
            &["crate", "super"]
        } else {
            &["crate"]
        };
        collect_imports(&tokens, roots, &mut paths);
        for other in paths {
            if other.starts_with(char::is_uppercase) {
                let message = format!("`{other}` is imported through the root: name its module");
                violations.push(Violation::new(path, message));
            } else if other != module {
                imported.entry(other).or_insert_with(|| path.to_owned());
            }
        }
    }
    violations.extend(crates.values().flat_map(circles_of));
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

/// Collects what follows `crate::` anywhere but in tests.
fn collect_imports(tokens: &[TokenTree], roots: &[&str], paths: &mut BTreeSet<String>) {
    let mut is_test = false;
    for (index, token) in tokens.iter().enumerate() {
        match token {
            // In a macro, `$crate` is a path for other crates.
            TokenTree::Ident(_) if index > 0 && is_dollar(&tokens[index - 1]) => {}
            TokenTree::Ident(ident) if roots.iter().any(|root| ident == root) => {
                match tokens.get(index + 3) {
                    Some(TokenTree::Ident(module)) => drop(paths.insert(module.to_string())),
                    Some(TokenTree::Group(group)) => heads_of(group.stream(), paths),
                    _ => {}
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

/// Collects the first segment of each path in `{a::B, c::{D, E}}`.
fn heads_of(stream: TokenStream, paths: &mut BTreeSet<String>) {
    let mut begins = true;
    for token in stream {
        match token {
            TokenTree::Ident(ident) if begins => {
                paths.insert(ident.to_string());
                begins = false;
            }
            TokenTree::Punct(punct) if punct.as_char() == ',' => begins = true,
            _ => {}
        }
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

fn is_dollar(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == '$')
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
}
