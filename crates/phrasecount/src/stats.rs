//! Statistics: the content of the store, the work that is left, and the work that was given up.

use export_queue::combine::Bucket;
use export_queue::{Pending, Subscription};

use crate::corpus::{Corpus, Count};
use crate::error::Result;
use crate::keyspace::Tx;
use crate::report::{GivenUp, Report};
use crate::top::each_count;

type Exports = Subscription<String, Option<Count>>;

/// How many rows one transaction reads.
const ROWS_AT_ONCE: usize = 1_000;

/// Reports the content of the store, the work that is left, and the work that was given up.
pub(crate) async fn stats(store: &Corpus, report: &mut Report) -> Result<()> {
    let documents = documents(store).await?;
    report.add("documents", documents, &format!("{documents} documents"));
    let mut phrases = 0_u64;
    let mut occurrences = 0_u64;
    let add = |_: String, count: Count| {
        phrases += 1;
        occurrences += count.occurrences;
    };
    each_count(store, add).await?;
    let line = format!("{phrases} phrases, which occur {occurrences} times");
    report.add("phrases", phrases, &line);
    report.add_value("occurrences", occurrences);

    let work = store
        .runner
        .run(|tr| async move { store.work.stats(&tr).await })
        .await?;
    let contents = work.queued + work.delayed + work.held;
    let line = format!("{contents} documents to count");
    report.add("contents_to_count", contents, &line);
    let updates = updates(store).await?;
    report.pending("updates_to_combine", updates, "updates to combine");
    let subscriptions = subscriptions(store).await?;
    let exports = exports(store, &subscriptions).await?;
    report.pending("counts_to_export", exports, "counts to export");

    let contents = GivenUp {
        count: work.dead,
        first_reason: None,
    };
    report.given_up("contents_given_up", &contents, "documents given up");
    let updates = set_aside(store).await?;
    report.given_up("updates_set_aside", &updates, "updates set aside");
    let counts = dead_letters(store, &subscriptions).await?;
    report.given_up(
        "counts_given_up",
        &counts,
        "counts given up without being exported",
    );
    Ok(())
}

async fn documents(store: &Corpus) -> Result<u64> {
    let mut count = 0_u64;
    let mut after: Option<String> = None;
    loop {
        let last = after.as_deref();
        let look = |tr| async move { store.documents(&tr, last, ROWS_AT_ONCE).await };
        let page = store.runner.run(look).await?;
        count += page.len() as u64;
        match page.into_iter().next_back() {
            Some(last) => after = Some(last),
            None => return Ok(count),
        }
    }
}

fn buckets(store: &Corpus) -> impl Iterator<Item = Bucket> + use<> {
    (0..store.counts.settings().bucket_count()).map(Bucket)
}

/// Adds the pending records of a bucket to a sum.
fn add(sum: &mut Pending, pending: Pending) {
    sum.count += pending.count;
    sum.bytes += pending.bytes;
    sum.has_more |= pending.has_more;
}

async fn updates(store: &Corpus) -> Result<Pending> {
    let mut sum = Pending::default();
    for bucket in buckets(store) {
        let look = |tr| async move { store.counts.pending(&tr, bucket).await };
        add(&mut sum, store.runner.run(look).await?);
    }
    Ok(sum)
}

async fn set_aside(store: &Corpus) -> Result<GivenUp> {
    let mut found = GivenUp::default();
    let mut after = None;
    loop {
        let last = after.as_ref();
        let look = |tr| async move { store.counts.set_aside(&tr, last, ROWS_AT_ONCE).await };
        let page = store.runner.run(look).await?;
        for update in &page {
            found.note(&update.value, |aside| &aside.reason);
        }
        after = page.into_iter().next_back().map(|update| update.id);
        if after.is_none() {
            return Ok(found);
        }
    }
}

async fn subscriptions(store: &Corpus) -> Result<Vec<Exports>> {
    let all = |tr: Tx<_>| async move {
        let mut found = Vec::new();
        for name in store.exports.subscriptions(&tr).await? {
            found.extend(store.exports.subscription(&tr, &name).await?);
        }
        Ok::<_, export_queue::Error>(found)
    };
    Ok(store.runner.run(all).await?)
}

async fn exports(store: &Corpus, subscriptions: &[Exports]) -> Result<Pending> {
    let mut sum = Pending::default();
    for subscription in subscriptions {
        for bucket in buckets(store) {
            let look = |tr| async move { subscription.pending(&tr, bucket).await };
            add(&mut sum, store.runner.run(look).await?);
        }
    }
    Ok(sum)
}

async fn dead_letters(store: &Corpus, subscriptions: &[Exports]) -> Result<GivenUp> {
    let mut found = GivenUp::default();
    for subscription in subscriptions {
        let mut after = None;
        loop {
            let look =
                |tr| async move { subscription.dead_letters(&tr, after, ROWS_AT_ONCE).await };
            let page = store.runner.run(look).await?;
            for letter in &page {
                found.note(&letter.value, |letter| &letter.reason);
            }
            after = page.last().map(|letter| letter.id);
            if after.is_none() {
                break;
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::corpus::Update;
    use crate::progress::Progress;
    use crate::work::Workers;

    async fn printed(store: &Corpus) -> String {
        let mut report = Report::default();
        stats(store, &mut report).await.unwrap();
        report.into_text()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn pending_and_given_up_records_are_printed() {
        let time_limit = Duration::from_secs(60);
        let store = &Corpus::open("memory:", time_limit).await.unwrap();
        let phrase = &"this was never added".to_owned();
        let subtract = |tr| async move {
            let update = Update::subtract(1);
            store.counts.add(&tr, phrase, &update).await
        };
        store.runner.run(subtract).await.unwrap();
        let before = printed(store).await;
        assert!(before.contains("\n1 updates to combine\n"), "{before}");
        assert!(!before.contains("set aside"), "{before}");

        let tally = Arc::default();
        let progress = Progress::new(true, false);
        let workers = Workers::start(store, 1, &tally, &progress).await.unwrap();
        store.counts.wait_idle(&store.runner).await.unwrap();
        workers.shut_down().await.unwrap();
        let after = printed(store).await;
        assert!(after.contains("\n0 updates to combine\n"), "{after}");
        assert!(after.contains("\n1 updates set aside\n"), "{after}");
        assert!(after.contains("the first of them: "), "{after}");
    }

    #[test]
    fn a_number_that_may_be_larger_says_so() {
        let mut report = Report::default();
        let mut pending = Pending::default();
        (pending.count, pending.has_more) = (10_000, true);
        report.pending("updates", pending, "updates");
        assert_eq!(report.into_text(), "at least 10000 updates\n");
    }
}
