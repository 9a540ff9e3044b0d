//! Refuses a build for several versions of FoundationDB at once, before anything else is built.

#[cfg(any(
    all(feature = "fdb-7_1", feature = "fdb-7_3"),
    all(feature = "fdb-7_1", feature = "fdb-7_4"),
    all(feature = "fdb-7_3", feature = "fdb-7_4"),
))]
compile_error!(
    "choose exactly one of the features fdb-7_1, fdb-7_3 and fdb-7_4: it is the API version that \
     the client library is asked for, and one process has one"
);

#[cfg(all(
    feature = "fdb",
    not(any(feature = "fdb-7_1", feature = "fdb-7_3", feature = "fdb-7_4"))
))]
compile_error!(
    "the feature fdb is what the features fdb-7_1, fdb-7_3 and fdb-7_4 have in common: choose one \
     of those"
);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
