//! The adapter and the recipes on a FoundationDB cluster.
//!
//! `cargo xtask bench foundationdb [-- <workload>...]`, on the cluster of `$FDB_CLUSTER_FILE` or a
//! private one; the workloads are `overhead` and `enqueue`, both unless named. Keys lie under a random
//! prefix, which is cleared at the end. Prints tables in Markdown.
//!
//! The yardstick is always the bare `foundationdb` crate in the same run: rounds of one and of the
//! other alternate, and ratios are medians over the rounds.

#[cfg(feature = "fdb")]
mod cluster;
#[cfg(feature = "fdb")]
mod enqueue;
#[cfg(feature = "fdb")]
mod overhead;
#[cfg(feature = "fdb")]
mod rounds;

use std::io::{self, Write};

#[cfg(feature = "fdb")]
use cluster::Cluster;

/// Runs and returns a table.
#[cfg(feature = "fdb")]
type Workload = fn(&Cluster) -> String;

#[cfg(feature = "fdb")]
fn main() -> io::Result<()> {
    // Cargo passes a flag of its own to every benchmark.
    let named: Vec<_> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let cluster = match Cluster::open() {
        Ok(cluster) => cluster,
        Err(error) => return writeln!(io::stderr(), "skipped: foundationdb: {error}"),
    };
    let mut out = io::stdout();
    writeln!(out, "{}\n", cluster.description())?;
    let workloads: [(&str, Workload); 2] =
        [("overhead", overhead::table), ("enqueue", enqueue::table)];
    for (name, table) in workloads {
        if named.is_empty() || named.iter().any(|named| named == name) {
            writeln!(out, "{}", table(&cluster))?;
        }
    }
    cluster.clear();
    Ok(())
}

#[cfg(not(feature = "fdb"))]
fn main() -> io::Result<()> {
    writeln!(
        io::stderr(),
        "skipped: foundationdb: built without it, see docs/foundationdb.md and build with \
         --features fdb-7_3"
    )
}
