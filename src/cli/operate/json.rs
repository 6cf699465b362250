//! The JSON of `list --json` and `describe --json`, with the field names of Kafka's own tool (KIP-1279) and, behind them, ours.
//! Must not compute anything.

use serde::Serialize;

use super::show::{Row, time, wanted};
use crate::wire::mirror_rpc::ListedMirror;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PartitionJson<'g> {
    mirror: &'g str,
    topic: &'g str,
    partition: i32,
    source_offset: i64,
    destination_offset: i64,
    lag: i64,
    state: &'g str,
    retry_attempt: i16,
    error_message: Option<&'g str>,
    lag_seconds: Option<f64>,
    undecided_records: Option<i64>,
    source_log_start_offset: Option<i64>,
    next_retry_seconds: Option<f64>,
    sidecar: Option<&'g str>,
    state_epoch: Option<i32>,
    desired_state: Option<&'static str>,
    source_reachable: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MirrorJson<'g> {
    mirror: &'g str,
    topics: i32,
    topic_names: Vec<&'g str>,
    source_cluster_id: &'g str,
    source_bootstrap: &'g str,
    desired_state: Option<&'static str>,
}

fn known<T: PartialOrd + From<i8>>(number: T) -> Option<T> {
    (number >= T::from(0)).then_some(number)
}

/// Partitions as an indented array with a line feed at its end.
pub(super) fn partitions(rows: &[Row<'_>]) -> Result<Vec<u8>, serde_json::Error> {
    let rows = rows.iter().map(|row| {
        let partition = row.partition;
        PartitionJson {
            mirror: &row.mirror.mirror_name,
            topic: row.topic,
            partition: partition.partition_index,
            source_offset: partition.source_offset,
            destination_offset: partition.destination_offset,
            lag: partition.lag,
            state: &partition.state_value,
            retry_attempt: partition.retry_attempt,
            error_message: partition.error_message.as_deref(),
            lag_seconds: time(partition.lag_ms).map(|time| time.as_secs_f64()),
            undecided_records: known(partition.undecided_records),
            source_log_start_offset: known(partition.source_log_start_offset),
            next_retry_seconds: time(partition.next_retry_ms).map(|time| time.as_secs_f64()),
            sidecar: partition.sidecar.as_deref(),
            state_epoch: known(partition.state_epoch),
            desired_state: wanted(row.mirror.desired_state),
            source_reachable: row.mirror.source_reachable,
        }
    });
    lines(&rows.collect::<Vec<_>>())
}

/// Mirrors as an indented array with a line feed at its end.
pub(super) fn mirrors(mirrors: &[ListedMirror]) -> Result<Vec<u8>, serde_json::Error> {
    let mirrors = mirrors.iter().map(|mirror| MirrorJson {
        mirror: &mirror.mirror_name,
        topics: mirror.topic_count,
        topic_names: mirror.topic_names.iter().map(|name| &**name).collect(),
        source_cluster_id: &mirror.source_cluster_id,
        source_bootstrap: &mirror.source_bootstrap,
        desired_state: wanted(mirror.desired_state),
    });
    lines(&mirrors.collect::<Vec<_>>())
}

fn lines(document: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = serde_json::to_vec_pretty(document)?;
    bytes.push(b'\n');
    Ok(bytes)
}
