//! Refuses a build for several versions of FoundationDB before anything else is built.

#[cfg(any(
    all(feature = "fdb-7_1", feature = "fdb-7_3"),
    all(feature = "fdb-7_1", feature = "fdb-7_4"),
    all(feature = "fdb-7_3", feature = "fdb-7_4"),
))]
compile_error!(
    "choose exactly one of the features fdb-7_1, fdb-7_3 and fdb-7_4: a process can request only one \
     API version from the client library"
);

#[cfg(all(
    feature = "fdb",
    not(any(feature = "fdb-7_1", feature = "fdb-7_3", feature = "fdb-7_4"))
))]
compile_error!(
    "the feature fdb is not meant to be used alone: choose one of the features fdb-7_1, fdb-7_3 and \
     fdb-7_4"
);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
