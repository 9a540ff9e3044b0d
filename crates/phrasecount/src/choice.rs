//! Which files of a directory are counted: text files, or all files with `--all`.

use std::path::Path;

/// The extensions of files of prose.
const PROSE: [&str; 9] = [
    "adoc", "asciidoc", "markdown", "md", "org", "rst", "tex", "text", "txt",
];

/// The extensions of files of source code.
const CODE: [&str; 64] = [
    "asm", "bash", "c", "cc", "clj", "cljs", "cmake", "cpp", "cs", "cu", "cxx", "d", "dart", "el",
    "elm", "erl", "ex", "exs", "f90", "fs", "go", "gradle", "groovy", "h", "hh", "hpp", "hs",
    "hxx", "java", "jl", "js", "jsx", "kt", "kts", "lean", "lisp", "lua", "m", "mjs", "ml", "mli",
    "nim", "nix", "pas", "php", "pl", "pm", "proto", "ps1", "py", "pyi", "r", "rb", "rs", "scala",
    "scm", "sh", "sql", "swift", "tcl", "toml", "ts", "tsx", "zig",
];

/// Which files are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Prose, source code, and files without an extension that are UTF-8.
    Text,
    /// Files of any name.
    All,
}

/// What the name of a file decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Take,
    /// Take it if all of it is UTF-8.
    TakeIfUtf8,
    LeaveOut,
}

impl Choice {
    /// Judges a file by the extension of its name, in any letter case.
    pub(crate) fn judge(self, path: &Path) -> Verdict {
        let mut text = PROSE.iter().chain(&CODE);
        match (self, path.extension()) {
            (Self::All, _) => Verdict::Take,
            (Self::Text, None) => Verdict::TakeIfUtf8,
            (Self::Text, Some(extension)) => {
                if text.any(|known| extension.eq_ignore_ascii_case(known)) {
                    Verdict::Take
                } else {
                    Verdict::LeaveOut
                }
            }
        }
    }
}

/// Returns the help text of `--all`.
pub(crate) fn help() -> String {
    format!(
        "Count files of any name, not only text files.\n\n\
         Text files are prose ({}), source code ({}), and files without an extension that are UTF-8. \
         A file with a zero byte among its first 8,192 bytes is binary and never counted.",
        PROSE.join(", "),
        CODE.join(", ")
    )
}

/// Checks whether bytes are UTF-8, part by part.
#[derive(Debug, Default)]
pub(crate) struct Utf8Check {
    /// The first bytes of a character that the parts so far end with.
    cut: Vec<u8>,
}

impl Utf8Check {
    /// Checks the next part. Returns `false` if the bytes are not UTF-8, even if more bytes follow.
    pub(crate) fn feed(&mut self, part: &[u8]) -> bool {
        self.cut.extend_from_slice(part);
        let whole = match std::str::from_utf8(&self.cut) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => return false,
        };
        self.cut.drain(..whole);
        true
    }

    /// Returns whether the parts so far end with a whole character.
    pub(crate) fn is_whole(&self) -> bool {
        self.cut.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_prose_and_code_and_what_has_no_extension_and_is_utf_8() {
        let cases = [
            ("guide/a.md", Verdict::Take),
            ("README.TXT", Verdict::Take),
            ("src/main.rs", Verdict::Take),
            ("Cargo.toml", Verdict::Take),
            ("README", Verdict::TakeIfUtf8),
            (".gitignore", Verdict::TakeIfUtf8),
            ("v1.2/LICENSE", Verdict::TakeIfUtf8),
            ("plots/a.svg", Verdict::LeaveOut),
            ("a.rs.json", Verdict::LeaveOut),
            ("Cargo.lock", Verdict::LeaveOut),
            ("index.html", Verdict::LeaveOut),
            ("table.csv", Verdict::LeaveOut),
        ];
        for (path, verdict) in cases {
            assert_eq!(Choice::Text.judge(Path::new(path)), verdict, "{path}");
            assert_eq!(Choice::All.judge(Path::new(path)), Verdict::Take, "{path}");
        }
    }

    #[test]
    fn no_extension_is_listed_twice() {
        assert!(PROSE.is_sorted_by(|a, b| a < b));
        assert!(CODE.is_sorted_by(|a, b| a < b));
        assert!(PROSE.iter().all(|extension| !CODE.contains(extension)));
    }

    #[test]
    fn bytes_are_utf_8_or_not_in_whatever_parts_they_come() {
        let text = "na\u{ef}ve \u{20ac} \u{1f600}".as_bytes();
        let cut = &text[..text.len() - 1];
        let latin = b"na\xefve, and more than a character's bytes of it";
        for (bytes, expected) in [(text, true), (b"", true), (cut, false), (latin, false)] {
            for part in 1..=bytes.len() + 1 {
                let mut check = Utf8Check::default();
                let is_utf8 = bytes.chunks(part).all(|part| check.feed(part)) && check.is_whole();
                assert_eq!(is_utf8, expected, "{bytes:?} in {part}");
            }
        }
    }
}
