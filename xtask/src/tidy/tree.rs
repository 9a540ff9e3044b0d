//! The files of the workspace, as the checks see them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use ignore::WalkBuilder;

/// Every file that is not ignored by git, by its path from the root with `/` between the parts;
/// with its text, if it is text.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: BTreeMap<String, Option<String>>,
}

impl Tree {
    /// Reads the files below `root`.
    pub(super) fn read(root: &Path) -> anyhow::Result<Self> {
        let walk = WalkBuilder::new(root)
            .hidden(false)
            .parents(false)
            .git_global(false)
            .require_git(false)
            .filter_entry(|entry| entry.file_name() != ".git")
            .build();
        let mut tree = Self::default();
        for entry in walk {
            let entry = entry.context("cannot walk the workspace")?;
            if entry.file_type().is_some_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = entry.path();
            // A symbolic link is what git stores of it: where it leads.
            let bytes = match entry.path_is_symlink() {
                true => fs::read_link(path).map(|link| link.into_os_string().into_encoded_bytes()),
                false => fs::read(path),
            };
            let bytes = bytes.with_context(|| format!("cannot read {}", path.display()))?;
            let parts: Vec<_> = path
                .strip_prefix(root)?
                .iter()
                .map(|part| part.to_string_lossy())
                .collect();
            tree.files
                .insert(parts.join("/"), String::from_utf8(bytes).ok());
        }
        Ok(tree)
    }

    /// Returns a tree of the given texts by path.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter();
        Self {
            files: files
                .map(|&(path, text)| (path.to_owned(), Some(text.to_owned())))
                .collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Returns the text of a file, `None` if there is no such text.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Returns the texts with their paths.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let files = self.files.iter();
        files.filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// Returns true if `path` is a file or a folder with files.
    pub(super) fn contains(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        self.paths()
            .any(|file| file == path || file.starts_with(&folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_skips_what_git_skips_and_keeps_hidden_files() {
        let folder = tempfile::tempdir().unwrap();
        for (path, bytes) in [
            (".gitignore", &b"/target\n"[..]),
            (".ci/run", b"true"),
            (".git/config", b""),
            ("target/debug/xtask", b""),
            ("traces/a.gz", b"\x1f\x8b\xff"),
        ] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let tree = Tree::read(folder.path()).unwrap();
        let paths: Vec<_> = tree.paths().collect();
        assert_eq!(paths, [".ci/run", ".gitignore", "traces/a.gz"]);
        assert_eq!(tree.text(".ci/run"), Some("true"));
        assert_eq!(tree.text("traces/a.gz"), None);
        assert!(tree.contains("traces"));
        assert!(!tree.contains("trace"));
    }
}
