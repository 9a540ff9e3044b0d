//! Databases of any other type, such as wrappers in tests: each begin and each future takes an allocation.

use std::any::{Any, type_name};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::contract::error::{Error, Result};
use crate::contract::mutation::{MutationOp, Versionstamp};
use crate::contract::selector::{KeySelector, RangeBatch, RangeQuery};
use crate::contract::transaction::{
    Commit, ConflictKind, Database, DatabaseOption, Isolation, OwnedTransaction, Transaction,
    TransactionOption,
};

/// A database of any type. Clones share it.
#[derive(Clone)]
pub struct OtherDatabase(Arc<dyn AnyDatabase>);

/// A transaction of an [`OtherDatabase`].
pub struct OtherTransaction(Box<dyn AnyTransaction>);

impl OtherDatabase {
    pub(super) fn new(db: impl Database) -> Self {
        Self(Arc::new(db))
    }
}

impl OtherTransaction {
    /// Returns the transaction of the database's own type.
    pub(super) fn as_any(&self) -> &dyn Any {
        &*self.0
    }
}

impl fmt::Debug for OtherDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OtherDatabase")
            .field(&self.0.type_name())
            .finish()
    }
}

impl fmt::Debug for OtherTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OtherTransaction")
            .field(&self.0.type_name())
            .finish()
    }
}

/// [`Database`] without its type of transactions.
trait AnyDatabase: Send + Sync {
    fn type_name(&self) -> &'static str;
    fn begin(&self) -> Result<OtherTransaction>;
    fn set_option(&self, option: DatabaseOption) -> Result<()>;
    fn owned_since(&self) -> Option<i64>;
}

impl<D: Database> AnyDatabase for D {
    fn type_name(&self) -> &'static str {
        type_name::<D>()
    }

    fn begin(&self) -> Result<OtherTransaction> {
        let tr = Database::begin(self)?;
        Ok(OtherTransaction(Box::new(tr)))
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        Database::set_option(self, option)
    }

    fn owned_since(&self) -> Option<i64> {
        Database::owned_since(self)
    }
}

impl Database for OtherDatabase {
    type Transaction = OtherTransaction;

    fn begin(&self) -> Result<Self::Transaction> {
        self.0.begin()
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        self.0.set_option(option)
    }

    fn owned_since(&self) -> Option<i64> {
        self.0.owned_since()
    }
}

/// [`OwnedTransaction`] without the types of its futures.
trait AnyTransaction: Any + Send + Sync {
    fn type_name(&self) -> &'static str;
    fn get(&self, key: &[u8], isolation: Isolation) -> BoxFuture<'static, Result<Option<Bytes>>>;
    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> BoxFuture<'static, Result<Bytes>>;
    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> BoxFuture<'static, Result<RangeBatch>>;
    fn read_version(&self) -> BoxFuture<'static, Result<i64>>;
    fn fix_read_version(&self) -> BoxFuture<'static, Result<()>>;
    fn set_read_version(&self, version: i64);
    fn set(&self, key: &[u8], value: &[u8]);
    fn clear(&self, key: &[u8]);
    fn clear_range(&self, begin: &[u8], end: &[u8]);
    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]);
    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()>;
    fn set_option(&self, option: TransactionOption) -> Result<()>;
    fn watch(&self, key: &[u8]) -> BoxFuture<'static, Result<()>>;
    fn versionstamp(&self) -> BoxFuture<'static, Result<Versionstamp>>;
    fn approximate_size(&self) -> BoxFuture<'static, Result<usize>>;
    fn commit(&mut self) -> BoxFuture<'_, Result<Commit>>;
    fn on_error(&mut self, error: Error) -> BoxFuture<'_, Result<()>>;
    fn reset(&mut self);
    fn cancel(&mut self);
}

impl<T: OwnedTransaction> AnyTransaction for T {
    fn type_name(&self) -> &'static str {
        type_name::<T>()
    }

    fn get(&self, key: &[u8], isolation: Isolation) -> BoxFuture<'static, Result<Option<Bytes>>> {
        Box::pin(Transaction::get(self, key, isolation))
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> BoxFuture<'static, Result<Bytes>> {
        Box::pin(Transaction::get_key(self, selector, isolation))
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> BoxFuture<'static, Result<RangeBatch>> {
        Box::pin(Transaction::get_range(self, query, isolation))
    }

    fn read_version(&self) -> BoxFuture<'static, Result<i64>> {
        Box::pin(Transaction::read_version(self))
    }

    fn fix_read_version(&self) -> BoxFuture<'static, Result<()>> {
        Box::pin(Transaction::fix_read_version(self))
    }

    fn set_read_version(&self, version: i64) {
        Transaction::set_read_version(self, version);
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        Transaction::set(self, key, value);
    }

    fn clear(&self, key: &[u8]) {
        Transaction::clear(self, key);
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        Transaction::clear_range(self, begin, end);
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        Transaction::atomic(self, op, key, param);
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        Transaction::add_conflict_range(self, kind, begin, end)
    }

    fn set_option(&self, option: TransactionOption) -> Result<()> {
        Transaction::set_option(self, option)
    }

    fn watch(&self, key: &[u8]) -> BoxFuture<'static, Result<()>> {
        Box::pin(Transaction::watch(self, key))
    }

    fn versionstamp(&self) -> BoxFuture<'static, Result<Versionstamp>> {
        Box::pin(Transaction::versionstamp(self))
    }

    fn approximate_size(&self) -> BoxFuture<'static, Result<usize>> {
        Box::pin(Transaction::approximate_size(self))
    }

    fn commit(&mut self) -> BoxFuture<'_, Result<Commit>> {
        Box::pin(OwnedTransaction::commit(self))
    }

    fn on_error(&mut self, error: Error) -> BoxFuture<'_, Result<()>> {
        Box::pin(OwnedTransaction::on_error(self, error))
    }

    fn reset(&mut self) {
        OwnedTransaction::reset(self);
    }

    fn cancel(&mut self) {
        OwnedTransaction::cancel(self);
    }
}

impl Transaction for OtherTransaction {
    crate::forward_transaction!([] self => self.0;
        get, get_key, get_range, read_version, fix_read_version, set_read_version, set, clear, clear_range, atomic,
        add_conflict_range, set_option, watch, versionstamp, approximate_size);
}

impl OwnedTransaction for OtherTransaction {
    crate::forward_transaction!([] self => self.0; commit, on_error, reset, cancel);
}
