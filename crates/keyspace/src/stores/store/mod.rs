//! One type for all stores: one that is chosen by a URL at run time, or a database of any other type.

mod other;

use std::any::Any;
use std::future::Future;
use std::path::PathBuf;

use bytes::Bytes;
use futures::future::Either;

#[doc(hidden)]
pub use self::other::{OtherDatabase, OtherTransaction};
use crate::contract::error::{Error, OpenError, Result};
use crate::contract::mutation::{MutationOp, Versionstamp};
use crate::contract::selector::{KeySelector, RangeBatch, RangeQuery};
use crate::contract::transaction::{
    Commit, ConflictKind, Database, DatabaseOption, Isolation, OwnedTransaction, Transaction,
    TransactionOption,
};
use crate::stores::embedded::{self, Embedded, EmbeddedTransaction};
#[cfg(feature = "fdb")]
use crate::stores::fdb::{Fdb, FdbTransaction};
use crate::stores::url::StoreUrl;

/// Opens the store that a URL names.
///
/// | URL | store |
/// |---|---|
/// | `memory:` | a new embedded store in memory |
/// | `embedded:<path>` | the embedded store in a file, which is created if it does not exist |
/// | `fdb:` | the default FoundationDB cluster, in a build with one of the `fdb-` features |
/// | `fdb:<cluster file>` | the cluster of that file, in a build with one of the `fdb-` features |
///
/// ```
/// # fn main() -> Result<(), keyspace::OpenError> {
/// let db = keyspace::open("memory:")?;
/// # drop(db);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`OpenError::Url`] if the URL names no store that this build can open. Otherwise the errors of
/// [`embedded::Options::open`] and of `Fdb::open`.
pub fn open(url: &str) -> Result<Store, OpenError> {
    open_with(url, |path| embedded::Options::new().open(path))
}

/// Opens the store that a URL names, as [`open`] does, but never creates a file.
///
/// Use it in programs that only inspect a store, so that a mistyped path is an error and does not create a
/// new store. `memory:` and `fdb:` behave as in [`open`].
///
/// ```
/// use keyspace::OpenError;
///
/// let mistyped = keyspace::open_existing("embedded:no/such/store");
/// assert!(matches!(mistyped, Err(OpenError::NoStore { .. })));
/// ```
///
/// # Errors
/// [`OpenError::NoStore`] if there is no file at the path. Otherwise the errors of [`open`].
pub fn open_existing(url: &str) -> Result<Store, OpenError> {
    open_with(url, |path| embedded::Options::new().open_existing(path))
}

fn open_with(
    url: &str,
    file: impl FnOnce(PathBuf) -> Result<Embedded, OpenError>,
) -> Result<Store, OpenError> {
    match url.parse()? {
        StoreUrl::Memory => embedded::Options::new().memory().map(Store::Embedded),
        StoreUrl::Embedded { path } => file(path).map(Store::Embedded),
        #[cfg(feature = "fdb")]
        StoreUrl::Fdb { cluster_file } => Fdb::open(cluster_file.as_deref()).map(Store::Fdb),
        #[cfg(not(feature = "fdb"))]
        StoreUrl::Fdb { .. } => Err(OpenError::Url {
            url: url.to_owned(),
            reason: "this build has no support for FoundationDB: enable the feature fdb-7_1, \
                     fdb-7_3 or fdb-7_4"
                .to_owned(),
        }),
    }
}

/// The API version of FoundationDB that this build requests from the client library: 710 with the feature
/// `fdb-7_1`, 730 with `fdb-7_3`, 740 with `fdb-7_4`. `None` in a build without FoundationDB.
pub const FDB_API_VERSION: Option<u32> = if cfg!(feature = "fdb-7_1") {
    Some(710)
} else if cfg!(feature = "fdb-7_3") {
    Some(730)
} else if cfg!(feature = "fdb-7_4") {
    Some(740)
} else {
    None
};

/// An embedded store or a cluster. Clones share it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Store {
    /// The embedded store.
    Embedded(Embedded),
    /// A FoundationDB cluster.
    #[cfg(feature = "fdb")]
    Fdb(Fdb),
    /// A database of another type, such as a wrapper in a test.
    #[doc(hidden)]
    Other(OtherDatabase),
}

/// A transaction of a [`Store`].
#[expect(
    clippy::large_enum_variant,
    reason = "in a box, each transaction of the embedded store would cost an allocation"
)]
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreTransaction {
    /// A transaction of the embedded store.
    Embedded(EmbeddedTransaction),
    /// A transaction of a FoundationDB cluster.
    #[cfg(feature = "fdb")]
    Fdb(FdbTransaction),
    /// A transaction of a database of another type.
    #[doc(hidden)]
    Other(OtherTransaction),
}

impl From<Embedded> for Store {
    fn from(store: Embedded) -> Self {
        Self::Embedded(store)
    }
}

#[cfg(feature = "fdb")]
impl From<Fdb> for Store {
    fn from(store: Fdb) -> Self {
        Self::Fdb(store)
    }
}

impl Store {
    /// Returns a database of any type as a store, so that code for all of them is compiled once. It shares
    /// the database, and is the database itself if that is a store of this library.
    #[doc(hidden)]
    #[must_use]
    pub fn of<D: Database>(db: &D) -> Self {
        let any: &dyn Any = db;
        if let Some(store) = any.downcast_ref::<Self>() {
            return store.clone();
        }
        if let Some(embedded) = any.downcast_ref::<Embedded>() {
            return Self::Embedded(embedded.clone());
        }
        #[cfg(feature = "fdb")]
        if let Some(fdb) = any.downcast_ref::<Fdb>() {
            return Self::Fdb(fdb.clone());
        }
        Self::Other(OtherDatabase::new(db.clone()))
    }

    /// Closes an embedded store for all its handles, as [`Embedded::close`] does. The store is a single
    /// file after that, unless another process has it open. Does nothing to another store.
    ///
    /// Blocks until the store is closed.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if the store has failed, or fails while it closes.
    pub fn close(&self) -> Result<()> {
        match self {
            Self::Embedded(store) => store.close(),
            #[cfg(feature = "fdb")]
            Self::Fdb(_) => Ok(()),
            Self::Other(_) => Ok(()),
        }
    }
}

impl Database for Store {
    type Transaction = StoreTransaction;

    fn begin(&self) -> Result<Self::Transaction> {
        match self {
            Self::Embedded(store) => store.begin().map(StoreTransaction::Embedded),
            #[cfg(feature = "fdb")]
            Self::Fdb(store) => store.begin().map(StoreTransaction::Fdb),
            Self::Other(store) => store.begin().map(StoreTransaction::Other),
        }
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        match self {
            Self::Embedded(store) => store.set_option(option),
            #[cfg(feature = "fdb")]
            Self::Fdb(store) => store.set_option(option),
            Self::Other(store) => store.set_option(option),
        }
    }

    fn owned_since(&self) -> Option<i64> {
        match self {
            Self::Embedded(store) => store.owned_since(),
            #[cfg(feature = "fdb")]
            Self::Fdb(store) => store.owned_since(),
            Self::Other(store) => store.owned_since(),
        }
    }
}

impl StoreTransaction {
    /// Returns the transaction as one of `T`, which is this type or that of the database it was begun on.
    #[inline]
    pub(crate) fn typed<T: Transaction>(&self) -> &T {
        let store: &dyn Any = self;
        store.downcast_ref().unwrap_or_else(|| {
            let tr: &dyn Any = match self {
                Self::Embedded(tr) => tr,
                #[cfg(feature = "fdb")]
                Self::Fdb(tr) => tr,
                Self::Other(tr) => tr.as_any(),
            };
            tr.downcast_ref()
                .expect("a transaction has the type of its database")
        })
    }
}

/// Calls a method of the wrapped transaction.
macro_rules! call {
    ($self:expr, $tr:ident => $call:expr) => {
        match $self {
            StoreTransaction::Embedded($tr) => $call,
            #[cfg(feature = "fdb")]
            StoreTransaction::Fdb($tr) => $call,
            StoreTransaction::Other($tr) => $call,
        }
    };
}

/// Calls a method of the wrapped transaction that returns a future. Each store has its own type of future.
#[cfg(feature = "fdb")]
macro_rules! issue {
    ($self:expr, $tr:ident => $call:expr) => {
        match $self {
            StoreTransaction::Embedded($tr) => Either::Left($call),
            StoreTransaction::Fdb($tr) => Either::Right(Either::Left($call)),
            StoreTransaction::Other($tr) => Either::Right(Either::Right($call)),
        }
    };
}

#[cfg(not(feature = "fdb"))]
macro_rules! issue {
    ($self:expr, $tr:ident => $call:expr) => {
        match $self {
            StoreTransaction::Embedded($tr) => Either::Left($call),
            StoreTransaction::Other($tr) => Either::Right($call),
        }
    };
}

impl Transaction for StoreTransaction {
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<> {
        issue!(self, tr => tr.get(key, isolation))
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<> {
        issue!(self, tr => tr.get_key(selector, isolation))
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<> {
        issue!(self, tr => tr.get_range(query, isolation))
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<> {
        issue!(self, tr => tr.read_version())
    }

    fn fix_read_version(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        issue!(self, tr => tr.fix_read_version())
    }

    fn set_read_version(&self, version: i64) {
        call!(self, tr => tr.set_read_version(version));
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        call!(self, tr => tr.set(key, value));
    }

    fn clear(&self, key: &[u8]) {
        call!(self, tr => tr.clear(key));
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        call!(self, tr => tr.clear_range(begin, end));
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        call!(self, tr => tr.atomic(op, key, param));
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        call!(self, tr => tr.add_conflict_range(kind, begin, end))
    }

    fn set_option(&self, option: TransactionOption) -> Result<()> {
        call!(self, tr => tr.set_option(option))
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<> {
        issue!(self, tr => tr.watch(key))
    }

    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<> {
        issue!(self, tr => tr.versionstamp())
    }

    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<> {
        issue!(self, tr => tr.approximate_size())
    }
}

impl OwnedTransaction for StoreTransaction {
    async fn commit(&mut self) -> Result<Commit> {
        call!(self, tr => tr.commit().await)
    }

    async fn on_error(&mut self, error: Error) -> Result<()> {
        call!(self, tr => tr.on_error(error).await)
    }

    fn reset(&mut self) {
        call!(self, tr => tr.reset());
    }

    fn cancel(&mut self) {
        call!(self, tr => tr.cancel());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database of another type whose transactions have the type of one of this library's.
    #[derive(Clone)]
    struct Wrapped<D>(D);

    impl<D: Database> Database for Wrapped<D> {
        type Transaction = D::Transaction;

        fn begin(&self) -> Result<Self::Transaction> {
            self.0.begin()
        }

        fn set_option(&self, option: DatabaseOption) -> Result<()> {
            self.0.set_option(option)
        }
    }

    #[test]
    fn a_database_is_a_store_whose_transactions_have_its_own_type() {
        fn store_of<D: Database>(db: &D) -> Store {
            let store = Store::of(db);
            let tr = store.begin().unwrap();
            let _own: &D::Transaction = tr.typed();
            let _same: &StoreTransaction = tr.typed();
            store
        }
        let embedded = embedded::Options::new().memory().unwrap();
        let store = Store::from(embedded.clone());
        assert!(matches!(store_of(&embedded), Store::Embedded(_)));
        assert!(matches!(store_of(&store), Store::Embedded(_)));
        assert!(matches!(store_of(&Wrapped(embedded)), Store::Other(_)));
        let wrapped = Store::of(&Wrapped(store));
        assert!(matches!(store_of(&wrapped), Store::Other(_)));
    }

    #[cfg(not(feature = "fdb"))]
    #[test]
    fn a_transaction_of_the_embedded_store_is_hardly_larger_in_a_store() {
        let word = size_of::<usize>();
        assert!(size_of::<StoreTransaction>() <= size_of::<EmbeddedTransaction>() + word);
    }
}
