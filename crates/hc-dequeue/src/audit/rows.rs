//! Checks rows that must agree with other rows, page by page.

use futures::future::try_join_all;
use microqueue::keyspace::parts::Part as _;
use microqueue::keyspace::store::StoreTransaction;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    Bytes, Isolation, KeyValue, RangeQuery, Runner, Store, StreamingMode, Transaction, Tx,
};
use parking_lot::Mutex;

use super::sessions::Seen;
use super::{dedupe, done, pointers, sessions};
use crate::batches::audit::check_ended_batch;
use crate::batches::members::{check_member, check_membership};
use crate::items::error::{Error, Result};
use crate::items::finding::Finding;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::lanes::audit::check_parked_row;
use crate::schedule::audit::{check_fire_time, check_owned, check_owner, check_schedule};

/// The largest number of rows that one transaction checks, all at the same time.
const MAX_PAGE_ROWS: usize = 100;

/// The largest number of findings that one check lists.
const MAX_CHECK_FINDINGS: usize = 1_000;

/// A transaction of an audit or a repair.
pub(super) type AuditTransaction = Tx<StoreTransaction>;

/// What each row of a part must agree with.
#[derive(Clone, Copy)]
pub(super) enum RowCheck<'a> {
    /// Held items, or grants, with their sessions.
    Holders(Part),
    /// Sessions with their heartbeats.
    Sessions,
    /// Heartbeats with their sessions.
    Heartbeats,
    /// Requests with their sessions.
    Requests(Part),
    /// Grants with their first items.
    Grants,
    /// Held items, or those in grants, with other places.
    Places(Part, &'a Mutex<Seen>),
    /// Cancel stamps with their sessions.
    CancelStamps,
    /// The kinds of sessions with these sessions.
    SessionKinds,
    /// Items with the pointers that they need.
    Items(Part),
    /// Pointers with their items.
    Pointers,
    /// Parked groups with their lanes.
    Parked,
    /// Items that have tokens with the rows of their dedupe ids.
    Tokens(Part),
    /// Rows of dedupe ids, in one of the two parts, with their items.
    DedupeIds(Part),
    /// Retained dedupe ids with nothing: they only have a time.
    RetainedIds,
    /// Done items with the index by expiry time.
    Done,
    /// Entries of that index with the done items.
    KeepTimes,
    /// Batches that have ended with nothing.
    EndedBatches,
    /// Members of batches with these.
    Members,
    /// Items that are members with the index of members.
    Memberships(Part),
    /// Schedules with the index by next time, and with the clock.
    Schedules,
    /// Entries of that index with the schedules.
    FireTimes,
    /// Schedules with the index by owner.
    ScheduleOwners,
    /// Entries of that index with the schedules.
    OwnedSchedules,
}

impl RowCheck<'_> {
    /// Returns the part whose rows it checks.
    fn part(self) -> Part {
        match self {
            Self::Holders(part)
            | Self::Places(part, _)
            | Self::Requests(part)
            | Self::Items(part)
            | Self::Tokens(part)
            | Self::Memberships(part)
            | Self::DedupeIds(part) => part,
            Self::Sessions => Part::Sessions,
            Self::Heartbeats => Part::Heartbeats,
            Self::Grants => Part::Grants,
            Self::CancelStamps => Part::CancelStamps,
            Self::SessionKinds => Part::SessionKinds,
            Self::Pointers => Part::Pointers,
            Self::Parked => Part::Parked,
            Self::RetainedIds => Part::RetainedIds,
            Self::Done => Part::Done,
            Self::KeepTimes => Part::KeepTimes,
            Self::Members => Part::Members,
            Self::EndedBatches => Part::EndedBatches,
            Self::Schedules | Self::ScheduleOwners => Part::Schedules,
            Self::OwnedSchedules => Part::OwnedSchedules,
            Self::FireTimes => Part::FireTimes,
        }
    }

    /// Returns the contradiction between a row and other rows, at the version at which the row was read.
    ///
    /// # Conflicts
    /// Reads the rows that it compares the row with.
    async fn check(
        self,
        tr: &AuditTransaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        match self {
            Self::Holders(part) => sessions::check_holder(tr, keys, part, row).await,
            Self::Sessions => sessions::check_session(tr, keys, row).await,
            Self::Heartbeats => sessions::check_heartbeat(tr, keys, row).await,
            Self::Requests(_) => sessions::check_request(tr, keys, row).await,
            Self::Grants => sessions::check_grant(tr, keys, row).await,
            Self::Places(part, seen) => sessions::check_places(tr, keys, part, seen, row).await,
            Self::CancelStamps => sessions::check_cancel_stamp(tr, keys, row).await,
            Self::SessionKinds => sessions::check_session_kinds(tr, keys, row).await,
            Self::Items(part) => pointers::check_item(tr, keys, part, row).await,
            Self::Pointers => pointers::check_pointer(tr, keys, row).await,
            Self::Parked => check_parked_row(tr, keys, row).await,
            Self::Tokens(part) => dedupe::check_token(tr, keys, part, row).await,
            Self::DedupeIds(part) => dedupe::check_dedupe_id(tr, keys, part, row).await,
            Self::RetainedIds => dedupe::check_retained_id(keys, row),
            Self::Done => done::check_done_item(tr, keys, row).await,
            Self::KeepTimes => done::check_keep_time(tr, keys, row).await,
            Self::Members => check_member(tr, keys, row).await,
            Self::Memberships(part) => check_membership(tr, keys, part, row).await,
            Self::EndedBatches => check_ended_batch(keys, row),
            Self::Schedules => check_schedule(tr, keys, row).await,
            Self::FireTimes => check_fire_time(tr, keys, row).await,
            Self::ScheduleOwners => check_owner(tr, keys, row).await,
            Self::OwnedSchedules => check_owned(tr, keys, row).await,
        }
    }
}

/// Checks each row of a part of the queue, up to a number of findings.
pub(super) async fn check_rows(
    runner: &Runner<Store>,
    keys: &Keys,
    check: RowCheck<'_>,
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
    check: RowCheck<'_>,
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
    if *corrupt != key {
        return Ok(None);
    }
    Ok(Some(Finding::Undecodable { key }))
}

/// Returns whether a finding about the row of a key is still true.
///
/// # Conflicts
/// Reads the row and the rows that it is compared with.
pub(super) async fn is_still(
    tr: &AuditTransaction,
    keys: &Keys,
    check: RowCheck<'_>,
    key: &[u8],
    finding: &Finding,
) -> Result<bool> {
    let Some(value) = tr.get(key, Isolation::Serializable).await? else {
        return Ok(false);
    };
    let row = KeyValue::new(key, &value);
    Ok(check.check(tr, keys, &row).await?.as_ref() == Some(finding))
}
