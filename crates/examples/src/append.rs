//! Many writers append to one text at the same time without reading it. The result is their edits in
//! commit order.
//!
//! Appending does not commute. A combine queue folds the updates of a key in commit order, so any state
//! machine can be a combiner.

use std::slice;
use std::time::Duration;

use combine::keyspace::{Isolation, Runner, Store, Subspace};
use combine::{CombineQueue, Result, Unobserved, WorkerOptions};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};

use crate::say;

const WRITERS: u32 = 20;

#[derive(Debug, Serialize, Deserialize)]
enum Edit {
    Append(String),
    Erase,
}

/// Applies an edit to the text. Erasing it leaves no value.
fn edit(_name: &String, text: Option<String>, edits: Vec<Edit>) -> Option<String> {
    edits.into_iter().fold(text, |text, edit| match edit {
        Edit::Append(more) => Some(text.unwrap_or_default() + &more),
        Edit::Erase => None,
    })
}

/// Appends to a text from many tasks, and checks the order.
///
/// # Errors
/// Those of the queue.
pub async fn run(runner: &Runner<Store>, root: &Subspace) -> Result<()> {
    let texts: CombineQueue<String, Edit, String> =
        CombineQueue::open(runner, root.subspace(&"texts"), edit).await?;
    let options = WorkerOptions::default();
    let worker = texts.work(runner, options, Unobserved).await?;
    let texts = &texts;
    let name = &"letter".to_owned();

    // An edit and its versionstamp, which shows when it was committed.
    let commit = |edit: Edit| async move {
        let edit = &edit;
        let add = |tr| async move { texts.add(&tr, name, edit).await };
        let ((), commit) = runner.run_committed(add).await?;
        Ok::<_, combine::Error>(commit.versionstamp.expect("it has written something"))
    };
    let read = || async {
        let read = |tr| async move { texts.settled(&tr, name, Isolation::Snapshot).await };
        runner.run(read).await
    };

    commit(Edit::Erase).await?;
    let writers = (0..WRITERS).map(|writer| async move {
        let mut written = Vec::new();
        for line in 0..5 {
            let line = format!("writer {writer}, line {line}\n");
            let versionstamp = commit(Edit::Append(line.clone())).await?;
            written.push((versionstamp, line));
        }
        Ok::<_, combine::Error>(written)
    });
    let mut written = try_join_all(writers).await?.concat();
    written.sort();
    let (last, _) = written.last().expect("every writer has written");
    // Continues until everything is combined, including edits that arrive later.
    texts
        .await_settled(runner, slice::from_ref(name), *last)
        .await?;
    let text = read().await?.unwrap_or_default();
    let lines: String = written.iter().map(|(_, line)| line.as_str()).collect();
    assert_eq!(text, lines);
    text.lines().for_each(say);

    let erased = commit(Edit::Erase).await?;
    texts
        .await_settled(runner, slice::from_ref(name), erased)
        .await?;
    assert_eq!(read().await?, None);
    worker.shut_down(Duration::from_secs(60)).await?;
    Ok(())
}
