//! The transaction contract for [`foundationdb::Transaction`] itself.

use std::borrow::Cow;
use std::future::Future;

use bytes::Bytes;
use foundationdb::future::FdbValues;
use foundationdb::options;
use futures::TryFutureExt;

use super::{error, milliseconds, number, retry_limit};
use crate::contract::error::{Code, Result};
use crate::contract::mutation::{MutationOp, Versionstamp};
use crate::contract::selector::{KeySelector, KeyValue, RangeBatch, RangeQuery, StreamingMode};
use crate::contract::transaction::{ConflictKind, Isolation, Transaction, TransactionOption};

/// Each method makes the client library's call immediately. The offsets of key selectors are limited to
/// 2^30 in either direction, because larger ones can crash a server.
///
/// `NextWriteNoWriteConflictRange` and the write that it applies to are two calls. Tasks that share a
/// transaction must not interleave such pairs.
impl Transaction for foundationdb::Transaction {
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<> {
        self.get(key, is_snapshot(isolation))
            .map_ok(|value| value.map(Bytes::from_owner))
            .map_err(error)
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<> {
        self.get_key(&selector_of(selector), is_snapshot(isolation))
            .map_ok(Bytes::from_owner)
            .map_err(error)
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<> {
        let range = foundationdb::RangeOption {
            begin: selector_of(&query.begin),
            end: selector_of(&query.end),
            limit: Some(query.limit),
            mode: mode_of(query.mode),
            reverse: query.reverse,
            ..foundationdb::RangeOption::default()
        };
        self.get_range(&range, query.iteration, is_snapshot(isolation))
            .map_ok(|values| batch_of(&values))
            .map_err(error)
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<> {
        self.get_read_version().map_err(error)
    }

    fn set_read_version(&self, version: i64) {
        self.set_read_version(version);
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.set(key, value);
    }

    fn clear(&self, key: &[u8]) {
        self.clear(key);
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.clear_range(begin, end);
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        self.atomic_op(key, param, mutation_of(op));
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        let kind = match kind {
            ConflictKind::Read => options::ConflictRangeType::Read,
            ConflictKind::Write => options::ConflictRangeType::Write,
        };
        self.add_conflict_range(begin, end, kind).map_err(error)
    }

    fn set_option(&self, option: TransactionOption) -> Result<()> {
        self.set_option(option_of(option)?).map_err(error)
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<> {
        self.watch(key).map_err(error)
    }

    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<> {
        self.get_versionstamp().map_err(error).and_then(|stamp| {
            let bytes = stamp.as_ref().try_into();
            let stamp = bytes.map(Versionstamp::from_bytes);
            std::future::ready(stamp.map_err(|_| Code::CLIENT_INVALID_OPERATION.into()))
        })
    }

    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<> {
        self.get_approximate_size()
            .map_ok(|bytes| usize::try_from(bytes).unwrap_or(0))
            .map_err(error)
    }
}

fn is_snapshot(isolation: Isolation) -> bool {
    isolation == Isolation::Snapshot
}

/// The largest offset of a key selector. A storage server of 7.3.79 computes with the offset in 32 bits,
/// and crashes with a segmentation fault when that overflows. No server could count that many keys in time
/// anyway.
const MAX_OFFSET: i32 = 1 << 30;

fn selector_of(selector: &KeySelector) -> foundationdb::KeySelector<'_> {
    foundationdb::KeySelector::new(
        Cow::Borrowed(&selector.key),
        selector.or_equal,
        selector.offset.clamp(-MAX_OFFSET, MAX_OFFSET),
    )
}

fn mode_of(mode: StreamingMode) -> options::StreamingMode {
    match mode {
        StreamingMode::WantAll => options::StreamingMode::WantAll,
        StreamingMode::Iterator => options::StreamingMode::Iterator,
        StreamingMode::Exact => options::StreamingMode::Exact,
        StreamingMode::Small => options::StreamingMode::Small,
        StreamingMode::Medium => options::StreamingMode::Medium,
        StreamingMode::Large => options::StreamingMode::Large,
        StreamingMode::Serial => options::StreamingMode::Serial,
    }
}

fn mutation_of(op: MutationOp) -> options::MutationType {
    match op {
        MutationOp::Add => options::MutationType::Add,
        MutationOp::BitAnd => options::MutationType::BitAnd,
        MutationOp::BitOr => options::MutationType::BitOr,
        MutationOp::BitXor => options::MutationType::BitXor,
        MutationOp::AppendIfFits => options::MutationType::AppendIfFits,
        MutationOp::Max => options::MutationType::Max,
        MutationOp::Min => options::MutationType::Min,
        MutationOp::ByteMin => options::MutationType::ByteMin,
        MutationOp::ByteMax => options::MutationType::ByteMax,
        MutationOp::CompareAndClear => options::MutationType::CompareAndClear,
        MutationOp::SetVersionstampedKey => options::MutationType::SetVersionstampedKey,
        MutationOp::SetVersionstampedValue => options::MutationType::SetVersionstampedValue,
    }
}

fn option_of(option: TransactionOption) -> Result<options::TransactionOption> {
    use options::TransactionOption as Native;
    Ok(match option {
        TransactionOption::Timeout(timeout) => Native::Timeout(milliseconds(timeout)?),
        TransactionOption::RetryLimit(limit) => Native::RetryLimit(retry_limit(limit)?),
        TransactionOption::MaxRetryDelay(delay) => Native::MaxRetryDelay(milliseconds(delay)?),
        TransactionOption::SizeLimit(bytes) => Native::SizeLimit(number(bytes)?),
        TransactionOption::SnapshotRywEnable => Native::SnapshotRywEnable,
        TransactionOption::SnapshotRywDisable => Native::SnapshotRywDisable,
        TransactionOption::NextWriteNoWriteConflictRange => Native::NextWriteNoWriteConflictRange,
        TransactionOption::BypassUnreadable => Native::BypassUnreadable,
        TransactionOption::CausalWriteRisky => Native::CausalWriteRisky,
    })
}

/// Copies a batch into one buffer that its rows share.
fn batch_of(values: &FdbValues) -> RangeBatch {
    let rows: Vec<_> = values.iter().map(|row| [row.key(), row.value()]).collect();
    let mut buffer = Bytes::from(rows.as_flattened().concat());
    let row = |[key, value]: &[&[u8]; 2]| {
        let row = buffer.split_to(key.len() + value.len());
        KeyValue::from_row(row, key.len())
    };
    RangeBatch {
        rows: rows.iter().map(row).collect(),
        more: values.more(),
    }
}
