//! The files of the workspace, as the checks see them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context;

/// Every file that is not ignored by git, by its path from the root with `/` between the parts;
/// with its text, if it is text.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: BTreeMap<String, Option<String>>,
}

/// A line of a `.gitignore`, in the forms that this workspace uses: `name`, `/path` and `/path*`.
#[derive(Debug, Clone)]
enum Ignored {
    Name(String),
    Path(String),
    PathsFrom(String),
}

impl Ignored {
    fn parse(folder: &str, line: &str) -> Self {
        let Some(path) = line.strip_prefix('/') else {
            return Self::Name(line.to_owned());
        };
        match path.strip_suffix('*') {
            Some(begin) => Self::PathsFrom(format!("{folder}{begin}")),
            None => Self::Path(format!("{folder}{path}")),
        }
    }

    fn covers(&self, path: &str, name: &str) -> bool {
        match self {
            Self::Name(ignored) => name == ignored,
            Self::Path(ignored) => path == ignored,
            Self::PathsFrom(begin) => path.starts_with(begin),
        }
    }
}

impl Tree {
    /// Reads the files below `root`.
    pub(super) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut tree = Self::default();
        tree.read_folder(root, "", &[])
            .context("cannot read the workspace")?;
        Ok(tree)
    }

    /// Reads a folder, given as the beginning of the paths in it, with what is ignored in the folders above it.
    fn read_folder(&mut self, root: &Path, prefix: &str, above: &[Ignored]) -> io::Result<()> {
        let mut ignored = above.to_vec();
        let patterns = match fs::read_to_string(root.join(prefix).join(".gitignore")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            patterns => patterns?,
        };
        ignored.extend(patterns.lines().map(|line| Ignored::parse(prefix, line)));
        for entry in fs::read_dir(root.join(prefix))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            if name == ".git" || ignored.iter().any(|pattern| pattern.covers(&path, &name)) {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.read_folder(root, &format!("{path}/"), &ignored)?;
                continue;
            }
            // A symbolic link is what git stores of it: where it leads.
            let bytes = if kind.is_symlink() {
                fs::read_link(entry.path())?
                    .into_os_string()
                    .into_encoded_bytes()
            } else {
                fs::read(entry.path())?
            };
            self.files.insert(path, String::from_utf8(bytes).ok());
        }
        Ok(())
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
            (".gitignore", &b"/target\n/a/own.sqlite*\n"[..]),
            (".ci/run", b"true"),
            (".git/config", b""),
            ("target/debug/xtask", b""),
            ("traces/a.gz", b"\x1f\x8b\xff"),
            ("traces/.gitignore", b"corpus\n/kept\n"),
            ("traces/all/corpus/one", b""),
            ("traces/all/kept", b"kept"),
            ("traces/kept", b""),
            ("a/own.sqlite-wal", b""),
        ] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let tree = Tree::read(folder.path()).unwrap();
        let paths: Vec<_> = tree.paths().collect();
        let expected = [
            ".ci/run",
            ".gitignore",
            "traces/.gitignore",
            "traces/a.gz",
            "traces/all/kept",
        ];
        assert_eq!(paths, expected);
        assert_eq!(tree.text(".ci/run"), Some("true"));
        assert_eq!(tree.text("traces/a.gz"), None);
        assert!(tree.contains("traces"));
        assert!(!tree.contains("trace"));
    }
}
