//! What figures taken on a cluster belong to.

use foundationdb::Database;
use serde_json::Value;

use crate::cores;

/// Returns the cluster's configuration and the machine's cores, in a line.
///
/// # Panics
/// If the cluster does not answer.
pub async fn describe(cluster: &Database) -> String {
    let tr = cluster.create_trx().expect("the network runs");
    let status: Value = serde_json::from_slice(
        &tr.get(b"\xff\xff/status/json", false)
            .await
            .expect("the cluster answers")
            .expect("it has a status"),
    )
    .expect("the status is JSON");
    let cluster = &status["cluster"];
    let processes = cluster["processes"].as_object();
    let version = processes
        .and_then(|processes| processes.values().next())
        .map(|process| process["version"].to_string());
    format!(
        "FoundationDB {}, processes: {}, engine: {}, redundancy: {}, cores: {}",
        version.unwrap_or_default(),
        processes.map_or(0, serde_json::Map::len),
        cluster["configuration"]["storage_engine"],
        cluster["configuration"]["redundancy_mode"],
        cores(),
    )
}
