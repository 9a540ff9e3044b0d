//! The commands of the documents, in the order of each document.

use std::fs;
use std::process::Command;

use conformance::documents::calls;
use tempfile::TempDir;

use crate::program::{finish, program};

#[test]
fn the_commands_of_the_documents_run() {
    let mut documents: Vec<(String, TempDir)> = Vec::new();
    let mut called = Vec::new();
    for (shown, call) in calls("phrasecount") {
        if documents
            .last()
            .is_none_or(|(name, _)| *name != shown.document)
        {
            let folder = TempDir::new().unwrap();
            fs::create_dir(folder.path().join("docs")).unwrap();
            let page = "State what the caller must do, and what the caller must not do.";
            fs::write(folder.path().join("docs/page.md"), page).unwrap();
            documents.push((shown.document.clone(), folder));
        }
        let (_, folder) = documents.last().unwrap();
        let mut command = Command::new(program());
        command.args(&call.arguments).current_dir(folder.path());
        let finished = finish(&mut command);
        assert_eq!(finished.status, Some(0), "{shown:?}: {finished:?}");
        let told = match &*call.arguments[0] {
            "run" => "what the caller must",
            "get" => "2",
            _ => "Usage",
        };
        assert!(finished.stdout.contains(told), "{shown:?}: {finished:?}");
        called.push(call.arguments[0].clone());
    }
    assert!(documents.len() >= 3, "{documents:?}");
    for command in ["run", "get", "help"] {
        assert!(called.iter().any(|called| called == command), "{command}");
    }
}
