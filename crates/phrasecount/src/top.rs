//! Reads the counts in the store.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use export_queue::combine;

use crate::corpus::{Corpus, Count};
use crate::error::Result;
use crate::keyspace::{self, Bytes, Isolation, Transaction};
use crate::text::{PHRASE_TOKENS, Tokenizer};

/// How many counts one transaction reads.
const COUNTS_AT_ONCE: usize = 5_000;

/// Parses a phrase of the command line.
pub(crate) fn phrase(argument: &str) -> Result<String, String> {
    let mut phrase = Vec::new();
    Tokenizer::default().feed(argument.as_bytes(), &mut phrase);
    let phrase = String::from_utf8(phrase).expect("tokens are ASCII");
    match phrase.split_whitespace().count() {
        PHRASE_TOKENS => Ok(phrase),
        tokens => Err(format!("a phrase has {PHRASE_TOKENS} words, not {tokens}")),
    }
}

/// Returns the count of a phrase, as last reported.
pub(crate) async fn get(store: &Corpus, phrase: &String) -> Result<Count> {
    let read = |tr| async move { store.counts.settled(&tr, phrase, Isolation::Snapshot).await };
    Ok(store.runner.run(read).await?.unwrap_or_default())
}

/// Returns the phrases that occur most often.
pub(crate) async fn top(store: &Corpus, limit: usize) -> Result<Vec<(String, Count)>> {
    // The heap has the least frequent phrase on top, which makes room for a more frequent one.
    let mut top = BinaryHeap::new();
    let add = |phrase: String, count: Count| {
        top.push((Reverse(count.occurrences), phrase, Reverse(count.documents)));
        if top.len() > limit {
            top.pop();
        }
    };
    each_count(store, add).await?;
    let top = top.into_sorted_vec().into_iter().map(
        |(Reverse(occurrences), phrase, Reverse(documents))| {
            (
                phrase,
                Count {
                    documents,
                    occurrences,
                },
            )
        },
    );
    Ok(top.collect())
}

/// Calls `each` for every phrase with its count, as last reported.
pub(crate) async fn each_count(store: &Corpus, mut each: impl FnMut(String, Count)) -> Result<()> {
    let mut after: Option<Bytes> = None;
    loop {
        let last = after.as_deref();
        let look = |tr| async move { page(store, &tr, last).await };
        let page = store.runner.run(look).await?;
        for (phrase, count) in page.counts {
            each(phrase, count);
        }
        after = page.last;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// A page of counts, as last reported.
pub(crate) struct Page {
    pub(crate) counts: Vec<(String, Count)>,
    /// The key after which the next page begins. `None` on the last page.
    pub(crate) last: Option<Bytes>,
}

/// Reads the counts after a key.
///
/// # Errors
/// [`Error::Counts`](crate::error::Error::Counts) if one of them does not decode.
pub(crate) async fn page(
    store: &Corpus,
    tr: &impl Transaction,
    after: Option<&[u8]>,
) -> Result<Page> {
    // A snapshot read is safe: each count is correct on its own, even if others are reported meanwhile.
    let values = store
        .counts
        .values(tr, after, COUNTS_AT_ONCE, Isolation::Snapshot);
    let listed = values.await?;
    let last = listed.last().map(|listed| listed.id.clone());
    let counts = listed.into_iter().map(|listed| {
        let corrupt = |error| combine::Error::from(keyspace::Error::from(error));
        listed.value.map_err(corrupt)
    });
    Ok(Page {
        counts: counts.collect::<Result<_, _>>()?,
        last,
    })
}
