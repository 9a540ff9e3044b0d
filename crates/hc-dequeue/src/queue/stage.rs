//! Stages new items, and applies an enqueue to the item that already has its dedupe id.
//!
//! # An id that is enqueued again in one transaction
//!
//! 1. An item that is staged has a versionstamped key, which its transaction cannot read: a read of it fails, and so
//!    does the commit after that read. The row with the token of the dedupe id is an ordinary row, which the
//!    transaction can read.
//! 2. The token contains the read version of the transaction that staged it. Every other transaction that has this
//!    read version commits at a later version, so that its row cannot be read at this one. A token with the read
//!    version of the reading transaction therefore is its own.
//! 3. The new value is staged under the same versionstamped key, with the same call number. The commit applies both
//!    writes in their order, and the second one remains.
//! 4. The row cannot move: its key is not known, and a clear of all keys that it may become would also clear other
//!    items of the transaction. All enqueues of an id in a transaction therefore count as made at the time of the
//!    first one, so that equal delays give equal times, and another time is refused.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use microqueue::StagedId;
use microqueue::keyspace::{Bytes, Transaction};

use crate::items::batch::BatchMember;
use crate::items::batch_row::join;
use crate::items::changes::Changes;
use crate::items::counters::read_counter;
use crate::items::dedupe::{Claim, Repeated, claim, holder, repeated};
use crate::items::error::{Error, Result};
use crate::items::find::{Location, find};
use crate::items::keys::{Keys, check_group};
use crate::items::kind::Kind;
use crate::items::members::add_member;
use crate::items::part::Counter;
use crate::items::places::{Destination, put_in, put_new, rewrite, take_out};
use crate::items::priority::Priority;
use crate::items::record::{Record, Token};
use crate::items::spot::Spot;
use crate::queue::enqueue_options::{Enqueue, Enqueued, OnRepeat};
use crate::session::wall::wall_millis;

/// How many dedupe ids are read at the same time.
const MAX_CONCURRENT_READS: usize = 100;

/// A new item, which is not staged yet. Its record has the options except those that depend on other items.
#[derive(Debug, Clone)]
pub(crate) struct NewItem<'a> {
    pub(crate) record: Record,
    pub(crate) options: &'a Enqueue,
}

/// Stages an item, or what its options say if its dedupe id is taken. The caller stages the changes.
///
/// # Conflicts
/// As [`enqueue_with`](crate::Queue::enqueue_with).
pub(crate) async fn stage(
    tr: &impl Transaction,
    keys: &Keys,
    item: NewItem<'_>,
    changes: &mut Changes,
) -> Result<Enqueued> {
    let repeated = match item.options.dedupe() {
        Some(dedupe) => repeated(tr, keys, dedupe).await?,
        None => None,
    };
    match answer(tr, keys, &item, repeated, changes).await? {
        Answer::Ended(enqueued) => Ok(enqueued),
        Answer::Own(claim) => restage(tr, keys, item, &claim),
        Answer::New => stage_new(tr, keys, item, changes).await,
    }
}

/// Stages items as [`stage`] does, each in its turn.
///
/// A transaction that has staged a new item may no longer be able to read where the others are. So it changes the items
/// that exist before it stages new ones.
///
/// # Conflicts
/// As [`stage`].
pub(super) async fn stage_all(
    tr: &impl Transaction,
    keys: &Keys,
    items: Vec<NewItem<'_>>,
    changes: &mut Changes,
) -> Result<Vec<Enqueued>> {
    let mut answers = Vec::with_capacity(items.len());
    // The ids whose items are held by sessions, and are taken over.
    let mut taken_over = BTreeSet::new();
    for some in items.chunks(MAX_CONCURRENT_READS) {
        let reads = some.iter().map(|item| async move {
            match item.options.dedupe() {
                Some(dedupe) => repeated(tr, keys, dedupe).await,
                None => Ok(None),
            }
        });
        for (item, repeated) in some.iter().zip(try_join_all(reads).await?) {
            let dedupe = item.options.dedupe();
            if repeated.is_none() || dedupe.is_some_and(|dedupe| taken_over.contains(dedupe)) {
                answers.push(None);
                continue;
            }
            let answer = answer(tr, keys, item, repeated, changes).await?;
            if matches!(answer, Answer::New) {
                taken_over.extend(dedupe);
            }
            answers.push(Some(answer));
        }
    }
    let mut enqueued = Vec::with_capacity(items.len());
    for (item, answer) in items.into_iter().zip(answers) {
        enqueued.push(match answer {
            Some(Answer::Ended(enqueued)) => enqueued,
            Some(Answer::Own(claim)) => restage(tr, keys, item, &claim)?,
            Some(Answer::New) => stage_new(tr, keys, item, changes).await?,
            // An item of this call may have its dedupe id by now.
            None => stage(tr, keys, item, changes).await?,
        });
    }
    Ok(enqueued)
}

/// What remains to be done for an item.
enum Answer {
    Ended(Enqueued),
    /// The transaction itself has staged the item that has this claim.
    Own(Claim),
    /// No item has the dedupe id, or the one that had it has given it up.
    New,
}

/// Does what the options of an item say if its dedupe id is taken.
async fn answer(
    tr: &impl Transaction,
    keys: &Keys,
    item: &NewItem<'_>,
    repeated: Option<Repeated>,
    changes: &mut Changes,
) -> Result<Answer> {
    let claim = match repeated {
        None => return Ok(Answer::New),
        Some(Repeated::IsRetained) => return Ok(Answer::Ended(Enqueued::Repeated)),
        Some(Repeated::IsThere(claim)) => claim,
    };
    if item.options.on_repeat == OnRepeat::Keep {
        return Ok(Answer::Ended(Enqueued::Repeated));
    }
    if claim.is_own(tr).await? {
        return Ok(Answer::Own(claim));
    }
    // Boxed, since few enqueues come here.
    let enqueued = Box::pin(repeat(tr, keys, item, changes)).await?;
    Ok(enqueued.map_or(Answer::New, Answer::Ended))
}

/// Returns of which batch a new item becomes a member, after a check that its options allow it.
///
/// # Errors
/// [`Error::Full`], and those of [`join`].
async fn check_new(
    tr: &impl Transaction,
    keys: &Keys,
    options: &Enqueue,
    changes: &Changes,
) -> Result<Option<BatchMember>> {
    check_depth(tr, keys, options, changes).await?;
    match &options.batch {
        Some(joining) => join(tr, keys, *joining).await.map(Some),
        None => Ok(None),
    }
}

/// Returns of which batch an item becomes a member that gets a new value, or `None` if its membership stays as it is.
///
/// # Errors
/// [`Error::OtherBatch`] if it is a member of another batch, and those of [`join`].
async fn joined(
    tr: &impl Transaction,
    keys: &Keys,
    options: &Enqueue,
    member: Option<BatchMember>,
) -> Result<Option<BatchMember>> {
    let Some(joining) = options.batch else {
        return Ok(None);
    };
    match member {
        None => join(tr, keys, joining).await.map(Some),
        Some(member) if member.batch == joining.batch.id_in(keys)? => Ok(None),
        Some(member) => Err(Error::OtherBatch {
            batch: keys.batch_ref(member.batch),
        }),
    }
}

/// Returns an error if the queue has as many items as the options of a new item allow.
async fn check_depth(
    tr: &impl Transaction,
    keys: &Keys,
    options: &Enqueue,
    changes: &Changes,
) -> Result<()> {
    let Some(limit) = options.max_depth else {
        return Ok(());
    };
    // Safe as a snapshot read: the documentation says that concurrent enqueues may exceed the limit.
    let stored = read_counter(tr, keys, Counter::Queued).await?;
    let depth = stored.saturating_add_signed(changes.of(Counter::Queued));
    if depth < limit {
        return Ok(());
    }
    Err(Error::Full {
        queue: keys.queue.clone(),
        depth,
        limit,
    })
}

/// Returns when a new item is due, or `None` if it is ready.
fn ready_millis(keys: &Keys, item: &NewItem<'_>) -> Option<u64> {
    let enqueued = item.record.enqueued_millis;
    let now = wall_millis(&keys.env);
    item.options.ready_millis(enqueued, enqueued, now)
}

/// Stages a new item.
async fn stage_new(
    tr: &impl Transaction,
    keys: &Keys,
    item: NewItem<'_>,
    changes: &mut Changes,
) -> Result<Enqueued> {
    let member = check_new(tr, keys, item.options, changes).await?;
    let ready = ready_millis(keys, &item);
    let mut record = item.record;
    record.member = member;
    if item.options.dedupe().is_some() {
        record.token = Some(Token {
            random: keys.env.random_bytes(),
            read_version: tr.read_version().await?,
            staged_millis: record.enqueued_millis,
            ready_millis: ready.unwrap_or(0),
            priority: record.priority,
            is_member: member.is_some(),
        });
    }
    let id = put_new(tr, keys, &record, ready, changes).await?;
    if let Some(token) = record.token {
        claim(tr, keys, &record, token, id);
    }
    Ok(Enqueued::Staged(keys.staged_ref(id)))
}

/// Replaces the value of an item that this transaction has staged.
fn restage(tr: &impl Transaction, keys: &Keys, item: NewItem<'_>, own: &Claim) -> Result<Enqueued> {
    let token = own.token;
    if token.is_member || item.options.batch.is_some() {
        // The row of its claim does not say of which batch.
        return Err(Error::EnqueuedWithOtherPlace);
    }
    if item.options.on_repeat == OnRepeat::Debounce {
        let began = token.staged_millis;
        let now = wall_millis(&keys.env);
        let ready = item.options.ready_millis(began, began, now);
        // An item whose time passes while it is staged stays delayed, and is due at once.
        let is_due = token.ready_millis <= now && ready.is_none();
        let is_other_time = !is_due && ready.unwrap_or(0) != token.ready_millis;
        if is_other_time || item.record.priority != token.priority {
            return Err(Error::EnqueuedWithOtherPlace);
        }
    }
    let mut record = item.record;
    record.enqueued_millis = token.staged_millis;
    record.priority = token.priority;
    record.group = own.group.clone();
    record.token = Some(token);
    let id = StagedId::of_call(own.call);
    match token.ready_millis {
        0 => keys.items_at(&Spot::of(&record)).restage(tr, id, &record)?,
        ready => keys.delayed(ready).restage(tr, id, &record)?,
    }
    Ok(Enqueued::Staged(keys.staged_ref(id)))
}

/// Applies `on_repeat` to the item that has the dedupe id. Returns `None` if a session holds that item: then it
/// gives the id up, and the caller enqueues a new item that takes the id over.
async fn repeat(
    tr: &impl Transaction,
    keys: &Keys,
    new: &NewItem<'_>,
    changes: &mut Changes,
) -> Result<Option<Enqueued>> {
    let on_repeat = new.options.on_repeat;
    let Some(id) = holder(tr, keys, &new.record.dedupe).await? else {
        return Ok(None);
    };
    let Some((location, mut record)) = find(tr, keys, &id).await? else {
        return Ok(None);
    };
    if matches!(location, Location::Held(_) | Location::Granted { .. }) {
        // First, so that nothing is staged if the queue is full or the batch is over.
        check_new(tr, keys, new.options, changes).await?;
        // The held item no longer has the id.
        record.token = None;
        rewrite(tr, keys, &id, &location, record)?;
        return Ok(None);
    }
    // Before anything is staged, too.
    let joined = joined(tr, keys, new.options, record.member).await?;
    record.replace_payload(new.record.payload.clone());
    let has_other_kind = record.kind != new.record.kind;
    record.kind = new.record.kind.clone();
    record.limits = new.record.limits;
    record.trace_context = new.record.trace_context.clone();
    match location {
        Location::Held(_) | Location::Granted { .. } | Location::Done => return Ok(None),
        Location::Queued(_) | Location::Delayed(_) if on_repeat == OnRepeat::Replace => {
            record.member = joined.or(record.member);
            if has_other_kind {
                // Sessions that have passed over it may take it now.
                changes.wake();
                if let Location::Queued(spot) = &location {
                    changes.add_notice_at(spot);
                }
            }
            rewrite(tr, keys, &id, &location, record)?;
        }
        Location::Queued(_) | Location::Delayed(_) | Location::Dead => {
            if matches!(location, Location::Dead) {
                record.reset_counts();
            }
            let now = wall_millis(&keys.env);
            let began = record.burst_began(now);
            let enqueued = new.record.enqueued_millis;
            let ready = new.options.ready_millis(enqueued, began, now);
            record.priority = new.record.priority;
            take_out(tr, keys, &id, &record, &location, changes)?;
            record.member = joined.or(record.member);
            put_in(tr, keys, &id, record, Destination::of_due(ready), changes)?;
        }
    }
    add_member(tr, keys, &id, joined, changes);
    Ok(Some(Enqueued::Replaced(keys.item_ref(id))))
}

/// Returns the kind with a name.
///
/// # Errors
/// [`Error::Kind`].
pub(crate) fn kind_named(name: &str) -> Result<Kind> {
    Kind::new(name).ok_or_else(|| Error::Kind {
        kind: name.to_owned(),
    })
}

/// Returns the payload as the record of a new item.
///
/// # Errors
/// [`Error::Priority`], [`Error::Group`], [`Error::Kind`].
pub(crate) fn record_of(payload: Bytes, enqueued_millis: u64, options: &Enqueue) -> Result<Record> {
    let mut record = Record::new(enqueued_millis, payload);
    record.dedupe = options.dedupe().cloned().unwrap_or_default();
    record.limits = options.limits;
    let priority = options.priority();
    record.priority = Priority::new(priority).ok_or(Error::Priority { priority })?;
    if let Some(group) = options.group() {
        check_group(group)?;
        record.group = group.clone();
    }
    if let Some(kind) = options.kind() {
        record.kind = kind_named(kind)?;
    }
    Ok(record)
}
