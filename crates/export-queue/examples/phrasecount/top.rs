//! Looking at the counts in the store.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use export_queue::Start;
use export_queue::combine::Bucket;

use crate::error::Result;
use crate::keyspace::Isolation;
use crate::report::Report;
use crate::store::{Count, Store};
use crate::text::{PHRASE_TOKENS, Tokenizer};

/// How many counts or documents one look at the store returns.
const ROWS_AT_ONCE: usize = 5_000;

/// Reads a phrase from the command line.
pub(crate) fn phrase(argument: &str) -> Result<String, String> {
    let mut phrase = Vec::new();
    Tokenizer::default().feed(argument.as_bytes(), &mut phrase);
    let phrase = String::from_utf8(phrase).expect("tokens are ASCII");
    match phrase.split_whitespace().count() {
        PHRASE_TOKENS => Ok(phrase),
        tokens => Err(format!("a phrase has {PHRASE_TOKENS} words, not {tokens}")),
    }
}

/// Returns the counts of a phrase, as they were last reported.
pub(crate) async fn get(store: &Store, phrase: &String) -> Result<Count> {
    let read = |tr, _| async move { store.counts.settled(&tr, phrase, Isolation::Snapshot).await };
    Ok(store.runner.run(read).await?.unwrap_or_default())
}

/// Returns the phrases that occur most often.
pub(crate) async fn top(store: &Store, limit: usize) -> Result<Vec<(String, Count)>> {
    // The least of them on top.
    let mut top = BinaryHeap::new();
    let add = |phrase: String, count: Count| {
        top.push((Reverse(count.occurrences), phrase, Reverse(count.documents)));
        if top.len() > limit {
            top.pop();
        }
    };
    each_count(store, add).await?;
    let top = top.into_sorted_vec().into_iter();
    let top = top.map(|(Reverse(occurrences), phrase, Reverse(documents))| {
        (
            phrase,
            Count {
                documents,
                occurrences,
            },
        )
    });
    Ok(top.collect())
}

/// Reports how much there is, and what is left to be done.
pub(crate) async fn stats(store: &Store, report: &mut Report) -> Result<()> {
    let mut documents = 0;
    let mut after: Option<String> = None;
    loop {
        let last = after.as_deref();
        let look = |tr, _| async move { store.documents(&tr, last, ROWS_AT_ONCE).await };
        let page = store.runner.run(look).await?;
        documents += page.len();
        match page.into_iter().next_back() {
            Some(last) => after = Some(last),
            None => break,
        }
    }
    let (mut phrases, mut occurrences) = (0_u64, 0_u64);
    let add = |_: String, count: Count| {
        phrases += 1;
        occurrences += count.occurrences;
    };
    each_count(store, add).await?;
    let work = |tr, _| async move { store.work.stats(&tr).await };
    let work = store.runner.run(work).await?;
    let contents = work.queued + work.delayed + work.held;
    let (mut updates, mut exports) = (0, 0);
    let names = |tr, _| async move { store.exports.subscriptions(&tr).await };
    let mut subscriptions = Vec::new();
    for name in store.runner.run(names).await? {
        let subscription = store.exports.subscribe(&store.runner, &name, Start::Oldest);
        subscriptions.push(subscription.await?);
    }
    for bucket in (0..store.counts.settings().bucket_count).map(Bucket) {
        let look = |tr, _| async move { store.counts.pending(&tr, bucket).await };
        updates += store.runner.run(look).await?.updates;
        for subscription in &subscriptions {
            let look = |tr, _| async move { subscription.backlog(&tr, bucket).await };
            exports += store.runner.run(look).await?.entries;
        }
    }
    report.add("documents", documents, &format!("{documents} documents"));
    let line = format!("{phrases} phrases, which occur {occurrences} times");
    report.add("phrases", phrases, &line);
    report.add_value("occurrences", occurrences);
    report.add(
        "contents_to_count",
        contents,
        &format!("{contents} contents to be counted"),
    );
    report.add(
        "updates_to_combine",
        updates,
        &format!("{updates} updates to be combined"),
    );
    report.add(
        "counts_to_export",
        exports,
        &format!("{exports} counts to be exported"),
    );
    Ok(())
}

/// Gives each phrase with its count, as they were last reported, one after the other.
async fn each_count(store: &Store, mut each: impl FnMut(String, Count)) -> Result<()> {
    let mut after: Option<String> = None;
    loop {
        let last = after.as_ref();
        let look = |tr, _| async move {
            let values = store
                .counts
                .values(&tr, last, ROWS_AT_ONCE, Isolation::Snapshot);
            values.await
        };
        let page = store.runner.run(look).await?;
        let Some((last, _)) = page.last() else {
            return Ok(());
        };
        after = Some(last.clone());
        for (phrase, count) in page {
            each(phrase, count);
        }
    }
}
