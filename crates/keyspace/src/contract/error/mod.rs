//! Errors, with FoundationDB's own codes and names.
//!
//! A [`Code`] is the error code that a store returned: the same number and name on every store. [`Error`]
//! adds the states that only this library has. The retry loop looks at codes alone. [`code_of`] finds the
//! code of any error by walking its sources.

mod map;
mod open;
mod source;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use foundationdb_tuple::Subspace;

pub use self::map::MapError;
pub use self::open::OpenError;
pub use self::source::{RecordKey, StorageFailure};
use crate::contract::foreign;
use crate::contract::limits::MAX_VALUE_BYTES;
use crate::text::names::queue_name;

/// The result of every operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A FoundationDB error code, with FoundationDB's name for it.
///
/// ```
/// use keyspace::Code;
///
/// assert_eq!(Code::NOT_COMMITTED.number(), 1020);
/// assert_eq!(Code::NOT_COMMITTED.name(), "not_committed");
/// assert!(Code::NOT_COMMITTED.is_retryable());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(i32);

macro_rules! codes {
    ($($constant:ident = $number:literal, $name:literal, $description:literal;)*) => {
        impl Code {
            $(
                #[doc = concat!("`", $name, "` (", $number, "): ", $description, ".")]
                pub const $constant: Code = Code($number);
            )*

            fn entry(self) -> Option<(&'static str, &'static str)> {
                match self.0 {
                    $($number => Some(($name, $description)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    TRANSACTION_TOO_OLD = 1007, "transaction_too_old", "transaction is too old to perform reads or be committed";
    FUTURE_VERSION = 1009, "future_version", "request for future version";
    NOT_COMMITTED = 1020, "not_committed", "transaction not committed due to conflict with another transaction";
    COMMIT_UNKNOWN_RESULT = 1021, "commit_unknown_result", "transaction may or may not have committed";
    TRANSACTION_CANCELLED = 1025, "transaction_cancelled", "operation aborted because the transaction was cancelled";
    TRANSACTION_TIMED_OUT = 1031, "transaction_timed_out", "operation aborted because the transaction timed out";
    TOO_MANY_WATCHES = 1032, "too_many_watches", "too many watches set";
    WATCHES_DISABLED = 1034, "watches_disabled", "watches cannot be set if read your writes is disabled";
    ACCESSED_UNREADABLE = 1036, "accessed_unreadable", "read or wrote an unreadable key";
    PROCESS_BEHIND = 1037, "process_behind", "storage process does not have recent mutations";
    DATABASE_LOCKED = 1038, "database_locked", "database is locked: unlock it, or wait for the restore that has locked it";
    CLUSTER_VERSION_CHANGED = 1039, "cluster_version_changed", "the protocol version of the cluster has changed";
    COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED = 1042, "commit_proxy_memory_limit_exceeded", "commit queue is over its memory limit";
    BATCH_TRANSACTION_THROTTLED = 1051, "batch_transaction_throttled", "batch GRV request rate limit exceeded";
    GRV_PROXY_MEMORY_LIMIT_EXCEEDED = 1078, "grv_proxy_memory_limit_exceeded", "read version queue is over its memory limit";
    BLOB_GRANULE_REQUEST_FAILED = 1079, "blob_granule_request_failed", "a blob granule request failed";
    TAG_THROTTLED = 1213, "tag_throttled", "transaction tag is being throttled";
    PROXY_TAG_THROTTLED = 1223, "proxy_tag_throttled", "transaction tag is being throttled by the proxy";
    PLATFORM_ERROR = 1500, "platform_error", "platform error";
    IO_ERROR = 1510, "io_error", "disk i/o operation failed";
    FILE_CORRUPT = 1522, "file_corrupt", "a structurally corrupt data file was detected";
    CLIENT_INVALID_OPERATION = 2000, "client_invalid_operation", "invalid API call";
    KEY_OUTSIDE_LEGAL_RANGE = 2004, "key_outside_legal_range", "key outside legal range";
    INVERTED_RANGE = 2005, "inverted_range", "range begin key larger than end key";
    INVALID_OPTION_VALUE = 2006, "invalid_option_value", "option set with an invalid value";
    INVALID_OPTION = 2007, "invalid_option", "option not valid in this context";
    READ_VERSION_ALREADY_SET = 2010, "read_version_already_set", "transaction already has a read version set";
    VERSION_INVALID = 2011, "version_invalid", "version not valid";
    USED_DURING_COMMIT = 2017, "used_during_commit", "operation issued while a commit was outstanding";
    TRANSACTION_INVALID_VERSION = 2020, "transaction_invalid_version", "transaction does not have a valid commit version";
    NO_COMMIT_VERSION = 2021, "no_commit_version", "transaction is read-only and has no commit version";
    TRANSACTION_TOO_LARGE = 2101, "transaction_too_large", "transaction exceeds byte limit";
    KEY_TOO_LARGE = 2102, "key_too_large", "key length exceeds limit";
    VALUE_TOO_LARGE = 2103, "value_too_large", "value length exceeds limit";
    UNSUPPORTED_OPERATION = 2108, "unsupported_operation", "operation is not supported";
    EXACT_MODE_WITHOUT_LIMITS = 2210, "exact_mode_without_limits", "exact mode requires limits, but none were given";
}

impl Code {
    /// Returns the code with a number that FoundationDB returned, known to this crate or not.
    #[must_use]
    pub const fn from_number(number: i32) -> Self {
        Self(number)
    }

    /// Returns FoundationDB's number for the error.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0
    }

    /// Returns FoundationDB's name for the error, or `unknown_error` if this crate does not know the
    /// number.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().map_or("unknown_error", |(name, _)| name)
    }

    /// Returns the meaning of the error, in one clause.
    #[must_use]
    pub fn description(self) -> &'static str {
        self.entry()
            .map_or("error not known to this library", |(_, text)| text)
    }

    /// Returns true if the transaction may have committed, as `fdb_error_predicate` with
    /// `MAYBE_COMMITTED` does: `commit_unknown_result` and `cluster_version_changed`.
    const fn is_maybe_committed(self) -> bool {
        matches!(
            self,
            Self::COMMIT_UNKNOWN_RESULT | Self::CLUSTER_VERSION_CHANGED
        )
    }

    /// Returns true if the transaction certainly did not commit and a retry may succeed, as
    /// `fdb_error_predicate` with `RETRYABLE_NOT_COMMITTED` does.
    const fn is_retryable_not_committed(self) -> bool {
        matches!(
            self,
            Self::TRANSACTION_TOO_OLD
                | Self::FUTURE_VERSION
                | Self::NOT_COMMITTED
                | Self::PROCESS_BEHIND
                | Self::DATABASE_LOCKED
                | Self::COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED
                | Self::BATCH_TRANSACTION_THROTTLED
                | Self::GRV_PROXY_MEMORY_LIMIT_EXCEEDED
                | Self::BLOB_GRANULE_REQUEST_FAILED
                | Self::TAG_THROTTLED
                | Self::PROXY_TAG_THROTTLED
        )
    }

    /// Returns true if a retry may succeed, as `fdb_error_predicate` with `RETRYABLE` does.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        self.is_maybe_committed() || self.is_retryable_not_committed()
    }

    /// Returns true if a commit that fails with this code may have happened, or may still happen: the
    /// maybe-committed codes and `transaction_timed_out`.
    #[must_use]
    pub const fn leaves_commit_unknown(self) -> bool {
        self.is_maybe_committed() || matches!(self, Self::TRANSACTION_TIMED_OUT)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({} {})", self.0, self.name())
    }
}

/// FoundationDB's name and number: `not_committed 1020`.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.0)
    }
}

impl std::error::Error for Code {}

/// A failure of a store, a transaction or a stored record.
///
/// Every variant is a state that a caller can act on. [`Error::code`] returns FoundationDB's code, if the
/// error has one. The retry loop looks at nothing else.
///
/// What [`code_of`] and [`corrupt_key`] look for is not only in this type but also in the source of the error.
/// So they find it through wrappers that forward to an error and thereby hide it: `#[error(transparent)]`,
/// [`io::Error::other`](std::io::Error::other), `Box` and `Arc`.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store answered with a FoundationDB error.
    #[error("{} ({})", .0.description(), .0)]
    Store(#[source] Code),

    /// The commit may or may not have happened. The retry loop could not find out within its limits, or a
    /// sweep removed the ledger's slot. The loop did not run the closure again. Before repeating the
    /// transaction, read the state that it would have written.
    #[error(
        "outcome of the transaction is unknown after {attempts} attempts: read the state before repeating it{}",
        cause.iter().map(|cause| format!(": {}", chain(cause))).collect::<String>()
    )]
    OutcomeUnknown {
        /// The number of attempts.
        attempts: u32,
        /// The last error before the loop stopped. It is not the `source()`, because code that classifies
        /// errors by their sources would find a code there that asks for a retry.
        cause: Option<Arc<Error>>,
    },

    /// A clone of the transaction handle outlived the closure that it was given to. Nothing was committed.
    /// Make sure that every clone is dropped before the closure's future ends.
    #[error(
        "a clone of the transaction outlived its closure: drop every clone before the closure ends"
    )]
    HandleKept,

    /// Stored bytes do not decode.
    #[error("record under key {} is corrupt: {reason}", printable(key))]
    Corrupt {
        /// The key of the record.
        #[source]
        key: RecordKey,
        /// The expected and the actual content.
        reason: String,
    },

    /// A subspace overlaps one in the registry of [ids](crate::ids). Nothing was changed. Choose another
    /// subspace for the recipe.
    #[error(
        "subspace `{given}` overlaps `{registered}`, which belongs to `{recipe}`: choose another subspace",
        given = queue_name(given),
        registered = queue_name(registered)
    )]
    Overlap {
        /// The requested subspace.
        given: Box<Subspace>,
        /// The registered subspace.
        registered: Box<Subspace>,
        /// The recipe that owns the registered subspace.
        recipe: String,
    },

    /// A value could not be encoded.
    #[error("value cannot be encoded as {codec}: {reason}")]
    Encode {
        /// The codec that refused it.
        codec: &'static str,
        /// What the codec reported.
        reason: String,
    },

    /// An encoded value is larger than a value of the store can be. Nothing was staged. The code is `value_too_large`
    /// (2103).
    #[error(
        "value of {bytes} bytes under key {} is too large: the limit is {MAX_VALUE_BYTES} bytes ({code})",
        printable(key)
    )]
    ValueTooLarge {
        /// The key of the value.
        key: Bytes,
        /// The size of the encoded value.
        bytes: usize,
        /// `value_too_large`.
        #[source]
        code: Code,
    },

    /// A [map](crate::Map) has refused a call. Nothing was staged.
    #[error(transparent)]
    Map(Box<MapError>),

    /// The cluster gave no answer within the transaction's time limit. The code is `transaction_timed_out`
    /// (1031).
    ///
    /// Check that the cluster runs (`fdbcli --exec status`), that it is the cluster that the file names,
    /// and that its addresses are reachable from this machine.
    #[error(
        "the cluster of {} gave no answer within the time limit: check that it runs and is \
         reachable from here ({})",
        cluster_file.display(),
        Code::TRANSACTION_TIMED_OUT
    )]
    Unreachable {
        /// The cluster file.
        cluster_file: PathBuf,
        /// `transaction_timed_out`.
        #[source]
        code: Code,
    },

    /// The store had an I/O failure and refuses all further work, so that nothing builds on a state that
    /// may not be on disk. The code is `io_error` (1510).
    ///
    /// Commits that were acknowledged and flushed are safe. With
    /// [`Durability::Relaxed`](crate::embedded::Durability::Relaxed), commits that were acknowledged since
    /// the last flush may be missing. Remove the cause (free the disk, check the device) and open the store
    /// again.
    #[error("store stopped after an i/o failure: remove the cause and open the store again")]
    Poisoned {
        /// The failure that stopped the store.
        #[source]
        cause: StorageFailure,
    },

    /// The store found that its file does not hold what was written to it. It refuses all further work and
    /// writes nothing more, so that the damage does not spread. The code is `file_corrupt` (1522).
    ///
    /// `console check` and [`embedded::verify`](crate::embedded::verify) say what is damaged. Restore a
    /// backup.
    #[error("store {} is damaged: {reason}: restore a backup, or run `console check`", path.display())]
    Damaged {
        /// The store's file.
        path: PathBuf,
        /// What was found.
        reason: String,
        /// `file_corrupt`.
        #[source]
        code: Code,
    },
}

impl Error {
    /// Returns the error of a record that does not decode, or of a key that belongs to no record.
    #[must_use]
    pub fn corrupt(key: &[u8], reason: impl Into<String>) -> Self {
        Self::Corrupt {
            key: Bytes::copy_from_slice(key).into(),
            reason: reason.into(),
        }
    }

    /// Returns FoundationDB's code for the error, if it has one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Store(code)
            | Self::ValueTooLarge { code, .. }
            | Self::Unreachable { code, .. }
            | Self::Damaged { code, .. } => Some(*code),
            Self::Poisoned { .. } => Some(Code::IO_ERROR),
            Self::Map(error) => code_of(&**error),
            _ => None,
        }
    }
}

impl From<Code> for Error {
    fn from(code: Code) -> Self {
        Self::Store(code)
    }
}

/// An error that a closure of [`Runner::run`](crate::Runner::run) may return.
///
/// Implemented for
///
/// - every [`std::error::Error`] that implements `From<Error>`
/// - `Box<dyn std::error::Error + Send + Sync>`
/// - `anyhow::Error`, with the feature `anyhow`
///
/// A closure may use `?` on any error that converts to its own error type.
///
/// `Kind` distinguishes these three implementations and is always inferred. A function that is generic over
/// the error takes `Kind` as one more type parameter.
///
/// ```
/// use keyspace::{Isolation, Runner, Transaction};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let count = runner.run(async |tr| {
///     let digits = tr.get(b"count", Isolation::Serializable).await?.unwrap_or_default();
///     let count: u32 = std::str::from_utf8(&digits)?.parse()?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(count)
/// });
/// let refused = count.await.unwrap_err();
/// assert!(refused.is::<std::num::ParseIntError>());
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "a closure of a transaction cannot return the error `{Self}`",
    note = "it can return a type that implements `std::error::Error` and `From<keyspace::Error>`",
    note = "it can return `Box<dyn std::error::Error + Send + Sync>`",
    note = "it can return `anyhow::Error` with the feature `anyhow` of `fdbq-keyspace`, which its recipes have, too"
)]
pub trait RunError<Kind>: From<Error> + Send + 'static {
    /// Returns FoundationDB's code of the error or of its sources, if there is one. The retry loop uses
    /// this code to decide whether to retry.
    fn code(&self) -> Option<Code>;
}

/// The kinds of error types that [`RunError`] is implemented for.
pub mod error_kind {
    /// A type that implements [`std::error::Error`].
    #[derive(Debug)]
    pub enum Typed {}

    /// `Box<dyn std::error::Error + Send + Sync>`.
    #[derive(Debug)]
    pub enum Boxed {}

    /// `anyhow::Error`.
    #[cfg(feature = "anyhow")]
    #[derive(Debug)]
    pub enum Anyhow {}
}

// Without the attribute, the compiler would say that `anyhow::Error` lacks `std::error::Error`, and not what `RunError`
// says.
#[diagnostic::do_not_recommend]
impl<E> RunError<error_kind::Typed> for E
where
    E: std::error::Error + From<Error> + Send + Sync + 'static,
{
    fn code(&self) -> Option<Code> {
        code_of(self)
    }
}

impl RunError<error_kind::Boxed> for Box<dyn std::error::Error + Send + Sync> {
    fn code(&self) -> Option<Code> {
        code_of(&**self)
    }
}

#[cfg(feature = "anyhow")]
impl RunError<error_kind::Anyhow> for anyhow::Error {
    fn code(&self) -> Option<Code> {
        code_of(&**self)
    }
}

/// Finds FoundationDB's code in an error or in its sources.
///
/// The retry loop classifies errors with this function, so an application's error type needs only
/// `source()`, either the wrapped error itself or, with `#[error(transparent)]`, that of the wrapped error.
#[must_use]
pub fn code_of(error: &(dyn std::error::Error + 'static)) -> Option<Code> {
    for cause in all_causes(error) {
        if let Some(known) = cause.downcast_ref::<Error>() {
            return known.code();
        }
        // A wrapper that forwards to an `Error` has the source of the `Error`, but not the `Error` itself.
        if let Some(code) = cause.downcast_ref::<Code>() {
            return Some(*code);
        }
        if cause.is::<StorageFailure>() {
            return Some(Code::IO_ERROR);
        }
    }
    None
}

/// Finds the key of a record that does not decode, in an error or in its sources. It looks through the same
/// wrappers as [`code_of`].
#[must_use]
pub fn corrupt_key<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a [u8]> {
    // The key is the source of the error, so it is found whether or not a wrapper hides the error itself.
    all_causes(error).find_map(|cause| Some(&***cause.downcast_ref::<RecordKey>()?))
}

/// The most errors of a chain that are looked at: an error of an application may be its own source.
const MAX_CAUSES: usize = 32;

/// Returns an error and its sources, up to one whose source panics.
fn all_causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    let source = |error: &&'a (dyn std::error::Error + 'static)| {
        let source = foreign::call(|| error.source());
        source.ok().flatten()
    };
    std::iter::successors(Some(error), source).take(MAX_CAUSES)
}

/// Returns an error and those of its sources that say more than the errors before them: the text of an error
/// already contains its code and its key. [`chain`] renders the same errors.
///
/// ```
/// use keyspace::Error;
/// use keyspace::error::causes;
///
/// let error = Error::corrupt(b"key", "no bytes");
/// assert_eq!(causes(&error).count(), 1);
/// ```
pub fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    let sources = all_causes(error).skip(1);
    let says_more = |cause: &&'a (dyn std::error::Error + 'static)| {
        !(cause.is::<Code>() || cause.is::<RecordKey>())
    };
    std::iter::once(error).chain(sources.filter(says_more))
}

/// Renders an error and its sources, from the outermost to the first cause:
/// `the store failed: disk i/o operation failed (io_error 1510)`.
///
/// An error of an application may panic while it is formatted; the text then says so.
///
/// ```
/// use keyspace::error::chain;
/// use keyspace::{Code, Error};
///
/// let error = Error::Store(Code::IO_ERROR);
/// assert_eq!(chain(&error).to_string(), "disk i/o operation failed (io_error 1510)");
/// ```
#[must_use]
pub fn chain<'a>(error: &'a (dyn std::error::Error + 'static)) -> impl fmt::Display + 'a {
    Chain(error)
}

struct Chain<'a>(&'a (dyn std::error::Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, cause) in causes(self.0).enumerate() {
            let separator = if place == 0 { "" } else { ": " };
            match foreign::call(|| cause.to_string()) {
                Ok(text) => write!(f, "{separator}{text}")?,
                Err(panicked) => {
                    let panic = panicked.message();
                    write!(
                        f,
                        "{separator}an error that panicked while it was formatted: {panic}"
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// Renders a key the way FoundationDB's tools do: printable ASCII as it is, other bytes as `\xNN`.
#[must_use]
pub fn printable(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}
