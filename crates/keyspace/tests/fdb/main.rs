//! Tests of a build with FoundationDB on a cluster of their own, or on a cluster that does not answer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "fdb")]
mod on_fdb;

#[cfg(not(feature = "fdb"))]
#[test]
fn on_fdb() {
    let reason =
        "built without FoundationDB: `cargo xtask test` builds with it if libfdb_c is installed";
    conformance::stores::skip("fdb::on_fdb", reason);
}
