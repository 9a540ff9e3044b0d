//! Which runs are merged, and when.
//!
//! Merges keep reads fast, because each run costs a read a seek, and the file short, because runs repeat keys. What
//! they write is the price. The rules, which look at the runs from the newest to the oldest:
//!
//! - Once the others have, and their Gaps hide, half of the bytes of the oldest run and 16 MiB, the oldest ones are
//!   merged into it: up to 2, or all of them in a small store. If they are more, the others are first merged into one.
//! - Before that, the newest runs become one if there are 4 of which none is much larger than those before it together,
//!   or, if there are too many runs, fewer.
//! - In a store at rest, there are at most 3 runs, and the others have at most an eighth of the bytes of the oldest.
//!
//! A merge of many bytes takes many steps, one for each table that it writes. Merges of newer runs go first, so that
//! there are never too many of those.

use std::ops::Range;

/// What the rules know of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunSize {
    pub(super) bytes: u64,
    /// About how many bytes of older runs its Gaps hide.
    pub(super) hidden_bytes: u64,
    pub(super) role: MergeRole,
}

/// What a run is to a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MergeRole {
    /// No merge concerns it.
    Free,
    /// It is being merged into an older one.
    Input,
    /// It is the output of a merge that has not ended. It does not overlap with the inputs.
    Output,
}

/// How many runs of about the same size become one.
const FAN_IN: usize = 4;

/// The most runs that are merged into the oldest one, unless the store is small.
const MAX_OLD: usize = 2;

/// The bytes of runs up to which a store is small: a merge of all of them takes a few seconds.
const SMALL_BYTES: u64 = 512 << 20;

/// The most runs of a store at rest.
const MAX_AT_REST: usize = 3;

/// What the runs of a busy store may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunLimits {
    /// How many runs there are at most.
    pub(crate) max_runs: usize,
    /// How many bytes what is replaced or cleared may take, in addition to as many as the rest takes.
    pub(crate) garbage_bytes: u64,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            max_runs: 8,
            garbage_bytes: 64 << 20,
        }
    }
}

/// Returns whether another run must wait for a merge.
pub(super) fn is_full(runs: &[RunSize], limits: RunLimits) -> bool {
    let outputs = runs
        .iter()
        .filter(|run| run.role == MergeRole::Output)
        .count();
    let oldest = match runs {
        // What the merge has not taken of the oldest run yet belongs to it.
        [.., input, output] if output.role == MergeRole::Output => input.bytes + output.bytes,
        [.., oldest] => oldest.bytes,
        [] => return false,
    };
    runs.len() - outputs >= limits.max_runs
        || total(runs) > (2 * oldest).saturating_add(limits.garbage_bytes)
}

/// Returns the runs whose merge is to go on or to begin. `runs` are newest first.
pub(super) fn next_merge(
    runs: &[RunSize],
    limits: RunLimits,
    is_at_rest: bool,
) -> Option<Range<usize>> {
    if let Some(begin) = runs.iter().position(|run| run.role != MergeRole::Free) {
        let inputs = runs[begin..].iter();
        let inputs = inputs
            .take_while(|run| run.role == MergeRole::Input)
            .count();
        let has_room = begin + inputs < limits.max_runs;
        let newest = newest_to_merge(&runs[..begin], has_room);
        return Some(newest.map_or(begin..begin + inputs, |count| 0..count));
    }
    let (oldest, others) = runs.split_last()?;
    let enough = if is_at_rest {
        oldest.bytes / 8
    } else {
        oldest.bytes / 2 + limits.garbage_bytes / 4
    };
    if !others.is_empty() && weight(others) >= enough {
        let is_small = total(runs) < SMALL_BYTES;
        let old = others.len().min(MAX_OLD);
        let begin = others.len() - old;
        return Some(if is_small {
            0..runs.len()
        } else if weight(&others[begin..]) >= enough {
            begin..runs.len()
        } else {
            0..others.len()
        });
    }
    if is_at_rest && runs.len() > MAX_AT_REST {
        return Some(0..others.len());
    }
    let has_room = runs.len() < limits.max_runs;
    match newest_to_merge(others, has_room) {
        Some(count) => Some(0..count),
        None if has_room || others.is_empty() => None,
        None => Some(0..2),
    }
}

/// Returns how many of the newest runs are to become one.
fn newest_to_merge(runs: &[RunSize], has_room: bool) -> Option<usize> {
    let count = similar(runs, 1.5);
    if count >= FAN_IN {
        return Some(count);
    }
    let count = similar(runs, 3.0);
    if has_room || count <= 1 {
        return None;
    }
    Some(count)
}

/// Returns how many of the newest runs have up to `ratio` times the bytes of those before them.
fn similar(runs: &[RunSize], ratio: f64) -> usize {
    let mut sum = 0;
    let is_similar = |run: &&RunSize| {
        let is_similar = sum == 0 || run.bytes as f64 <= ratio * sum as f64;
        sum += run.bytes;
        is_similar
    };
    runs.iter().take_while(is_similar).count()
}

/// Returns the runs whose merge is to go on or to begin when the store is closed: all of them, if what is hidden takes
/// more than its limit.
pub(super) fn hidden(runs: &[RunSize], limits: RunLimits) -> Option<Range<usize>> {
    let (_, others) = runs.split_last()?;
    let hidden: u64 = others.iter().map(|run| run.hidden_bytes).sum();
    let left = total(runs).saturating_sub(hidden);
    // What is hidden is only an estimate, so this leaves a margin.
    let is_much = total(runs) > (2 * left).saturating_add(limits.garbage_bytes / 2);
    match runs.iter().position(|run| run.role != MergeRole::Free) {
        Some(_) if is_much => next_merge(runs, limits, false),
        None if is_much && !others.is_empty() => Some(0..runs.len()),
        _ => None,
    }
}

/// Returns the bytes of runs, and those that they hide.
fn weight(runs: &[RunSize]) -> u64 {
    let hidden: u64 = runs.iter().map(|run| run.hidden_bytes).sum();
    total(runs) + hidden
}

fn total(runs: &[RunSize]) -> u64 {
    runs.iter().map(|run| run.bytes).sum()
}
