//! Checks rows that must agree with other rows, page by page.

use async_trait::async_trait;
use futures::future::try_join_all;
use microqueue::keyspace::parts::Part as _;
use microqueue::keyspace::store::StoreTransaction;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    Bytes, Isolation, KeyValue, RangeQuery, Runner, Store, StreamingMode, Transaction, Tx,
};

use super::Finding;
use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::part::Part;

/// The largest number of rows that one transaction checks, all at the same time.
const MAX_PAGE_ROWS: usize = 100;

/// The largest number of findings that one check lists.
const MAX_CHECK_FINDINGS: usize = 1_000;

/// A transaction of an audit or a repair.
pub(super) type AuditTransaction = Tx<StoreTransaction>;

/// A check of the rows in a part of the queue against other rows.
#[async_trait]
pub(super) trait RowCheck: Sync {
    /// The part.
    fn part(&self) -> Part;

    /// Returns the contradiction between a row and other rows, at the version at which the row was read.
    ///
    /// # Conflicts
    /// Reads the rows that it compares the row with.
    async fn check(
        &self,
        tr: &AuditTransaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>>;
}

/// Checks each row of a part of the queue, up to a number of findings.
pub(super) async fn check_rows(
    runner: &Runner<Store>,
    keys: &Keys,
    check: &dyn RowCheck,
) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut after = None;
    loop {
        let after_last: Option<&[u8]> = after.as_deref();
        let read = |tr| async move { check_page(&tr, keys, check, after_last).await };
        let page = runner.run(read).await?;
        findings.extend(page.findings);
        // Rows of the same session follow one another, and may all have the same finding.
        findings.dedup();
        if findings.len() >= MAX_CHECK_FINDINGS {
            findings.truncate(MAX_CHECK_FINDINGS);
            findings.push(Finding::More {
                part: check.part().name(),
            });
            return Ok(findings);
        }
        if page.last.is_none() {
            return Ok(findings);
        }
        after = page.last;
    }
}

/// The findings in a page of rows.
struct CheckedPage {
    findings: Vec<Finding>,
    /// The key of the last row, or `None` if there are no more rows.
    last: Option<Vec<u8>>,
}

/// Checks the next rows after the key `after`: one batch.
async fn check_page(
    tr: &AuditTransaction,
    keys: &Keys,
    check: &dyn RowCheck,
    after: Option<&[u8]>,
) -> Result<CheckedPage> {
    let (begin, end) = keys.part(check.part());
    let query = RangeQuery::keys(after.map_or(begin, key_after), end)
        .limit(MAX_PAGE_ROWS)
        .mode(StreamingMode::WantAll);
    // Safe as a snapshot read: a repair reads the rows that it changes again.
    let page = tr.get_range(&query, Isolation::Snapshot).await?;
    let checks = page.rows.iter().map(|row| async {
        match check.check(tr, keys, row).await {
            Err(error) => undecodable(error, row),
            found => found,
        }
    });
    let findings = try_join_all(checks).await?.into_iter().flatten().collect();
    let last = page.next_after().map(<[u8]>::to_vec);
    Ok(CheckedPage { findings, last })
}

/// Returns the finding about a row that does not decode. If another row does not decode, returns none: the check of
/// that row finds it.
fn undecodable(error: Error, row: &KeyValue) -> Result<Option<Finding>> {
    let Some(corrupt) = error.corrupt_key() else {
        return Err(error);
    };
    let key = Bytes::copy_from_slice(row.key());
    Ok((*corrupt == key).then_some(Finding::Undecodable { key }))
}

/// Returns whether a finding about the row of a key is still true.
///
/// # Conflicts
/// Reads the row and the rows that it is compared with.
pub(super) async fn is_still(
    tr: &AuditTransaction,
    keys: &Keys,
    check: &dyn RowCheck,
    key: &[u8],
    finding: &Finding,
) -> Result<bool> {
    let Some(value) = tr.get(key, Isolation::Serializable).await? else {
        return Ok(false);
    };
    let row = KeyValue::new(key, &value);
    Ok(check.check(tr, keys, &row).await?.as_ref() == Some(finding))
}

/// Stages the removal of the row of a key, if a finding about it is still true.
///
/// # Conflicts
/// As [`is_still`].
pub(super) async fn remove_row(
    tr: &AuditTransaction,
    keys: &Keys,
    check: &dyn RowCheck,
    key: &[u8],
    finding: &Finding,
) -> Result<()> {
    if is_still(tr, keys, check, key, finding).await? {
        tr.clear(key);
    }
    Ok(())
}
